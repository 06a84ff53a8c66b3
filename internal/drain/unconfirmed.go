package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// confirmTime is how long a pod that should have ended is waited for until its kubelet confirms it. A kubelet that is
// restarted is back within seconds, a machine mostly within two minutes; then it has as long once more.
const confirmTime = 2 * time.Minute

// kubelet is what is known of the node's: whether it can confirm the end of a pod.
type kubelet struct {
	ready   bool      // the node is
	changed time.Time // when it was seen to become ready, or not ready, or nothing could be seen; zero: never

	asking   bool      // the API server is being asked for pods that are overdue
	silences int       // how often in a row it has not answered
	askAt    time.Time // when it is asked again then
}

// note notes whether the node is ready.
func (k *kubelet) note(ready bool, now time.Time) {
	if ready != k.ready {
		k.ready, k.changed = ready, now
	}
}

// unconfirmedAt returns from when on a stopping pod is not waited for any more. Zero: the pod is not stopping.
func (k *kubelet) unconfirmedAt(p *podState) time.Time {
	if !p.stopping() {
		return time.Time{}
	}
	heard := later(p.seen, k.changed)
	if k.ready { // its containers may run: its kubelet gives it the whole grace from when it hears of the deletion
		heard = heard.Add(p.given)
	}
	return later(p.stopsAt(), heard).Add(confirmTime)
}

// isOverdue reports whether a pod should have ended so long ago that it is not waited for any more, unless a ready node
// may have confirmed its end where the watch has not brought it.
func (k *kubelet) isOverdue(p *podState, now time.Time) bool {
	at := k.unconfirmedAt(p)
	return !at.IsZero() && !now.Before(at)
}

// isUnconfirmed reports whether a pod is not waited for any more.
func (k *kubelet) isUnconfirmed(p *podState, now time.Time) bool {
	return k.isOverdue(p, now) && (!k.ready || !p.stillThere.Before(k.unconfirmedAt(p)))
}

// mostSilences is how many requests in a row may fail while kubelets still hear from the API server.
const mostSilences = 1

// askForOverdue asks the API server for the pods of a ready node that are overdue. While it does not answer, kubelets
// do not hear of deletions, and we do not hear of ends: when it answers after a long silence, the pods have all of
// their time once more. A silence before they are overdue goes unnoticed. It returns when to look again; zero: when
// something changes.
func (r *run) askForOverdue(calls context.Context, now time.Time) time.Time {
	k := &r.pods.kubelet
	if k.asking || !k.ready {
		return time.Time{}
	}
	if now.Before(k.askAt) {
		return k.askAt
	}
	var overdue []*corev1.Pod
	for _, pod := range r.pods.sorted() {
		if p := r.pods.leaving[pod.UID]; k.isOverdue(p, now) && !k.isUnconfirmed(p, now) && p.end.keptBy == "" {
			overdue = append(overdue, pod)
		}
	}
	if len(overdue) == 0 {
		k.silences = 0
		return time.Time{}
	}
	k.asking = true
	go func() {
		asked := time.Now()
		var there []*corev1.Pod
		silent := false
		for _, pod := range overdue {
			ctx, cancel := context.WithTimeout(calls, requestTimeout)
			answer := r.requests.readPod(ctx, pod)
			cancel()
			if silent = !answer.known; silent {
				break
			}
			if answer.exists {
				there = append(there, pod)
			}
		}
		r.post(func() {
			k.asking = false
			switch {
			case silent:
				k.silences++
				k.askAt = time.Now().Add(recheckInterval)
				return
			case k.silences > mostSilences:
				k.silences, k.changed = 0, time.Now()
				return
			}
			k.silences = 0
			for _, pod := range there {
				if p := r.pods.leaving[pod.UID]; p != nil {
					p.stillThere = asked
				}
			}
		})
	}()
	return time.Time{}
}
