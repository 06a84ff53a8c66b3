package drain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// confirmTime is how long a pod that should have ended is waited for until its kubelet confirms it. A kubelet that is
// restarted is back within seconds, a machine mostly within two minutes; then it has as long once more.
const confirmTime = 2 * time.Minute

// unconfirmedAt returns from when on a stopping pod is not waited for any more. Zero: the pod is not stopping.
func (r *run) unconfirmedAt(p *podState) time.Time {
	if !p.stopping() {
		return time.Time{}
	}
	heard := later(p.seen, r.kubeletChanged)
	if r.ready { // its containers may run: its kubelet gives it the whole grace from when it hears of the deletion
		heard = heard.Add(p.given)
	}
	return later(p.stopsAt(), heard).Add(confirmTime)
}

// isOverdue reports whether a pod should have ended so long ago that it is not waited for any more, unless a ready node
// may have confirmed its end where the watch has not brought it.
func (r *run) isOverdue(p *podState, now time.Time) bool {
	at := r.unconfirmedAt(p)
	return !at.IsZero() && !now.Before(at)
}

// isUnconfirmed reports whether a pod is not waited for any more.
func (r *run) isUnconfirmed(p *podState, now time.Time) bool {
	return r.isOverdue(p, now) && (!r.ready || !p.stillThere.Before(r.unconfirmedAt(p)))
}

// failures are calls in a row that may fail while kubelets hear from the API server. After more of them they did not.
const failures = 1

// askForOverdue asks the API server for the pods of a ready node that are overdue. While it does not answer, kubelets
// do not hear of deletions, and we do not hear of ends: when it answers after a long silence, the pods have all of
// their time once more. A silence before they are overdue goes unnoticed. It returns when to look again; zero: when
// something changes.
func (r *run) askForOverdue(calls context.Context, now time.Time) time.Time {
	if r.asking || !r.ready {
		return time.Time{}
	}
	if now.Before(r.askAt) {
		return r.askAt
	}
	var overdue []*corev1.Pod
	for _, pod := range r.sortedPods() {
		if p := r.pods[pod.UID]; r.isOverdue(p, now) && !r.isUnconfirmed(p, now) && p.keptBy == "" {
			overdue = append(overdue, pod)
		}
	}
	if len(overdue) == 0 {
		r.silences = 0
		return time.Time{}
	}
	r.asking = true
	go func() {
		asked := time.Now()
		var there []*corev1.Pod
		silent := false
		for _, pod := range overdue {
			ctx, cancel := context.WithTimeout(calls, requestTimeout)
			answer := r.readPod(ctx, pod)
			cancel()
			if silent = !answer.known; silent {
				break
			}
			if answer.exists {
				there = append(there, pod)
			}
		}
		r.post(func() {
			r.asking = false
			switch {
			case silent:
				r.silences++
				r.askAt = time.Now().Add(recheckInterval)
				return
			case r.silences > failures:
				r.silences, r.kubeletChanged = 0, time.Now()
				return
			}
			r.silences = 0
			for _, pod := range there {
				if p := r.pods[pod.UID]; p != nil {
					p.stillThere = asked
				}
			}
		})
	}()
	return time.Time{}
}
