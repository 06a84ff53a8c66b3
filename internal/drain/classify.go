package drain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// refresh updates the pods from the store. It returns the lowest tier with pods that are waited
// for; above self if there are none.
func (r *run) refresh(now time.Time) tier {
	if ready := r.nodeState().Ready; ready != r.ready {
		r.ready, r.kubeletChanged = ready, now
	}
	pods := r.store.list()
	if leave := r.newcomers.cordonedAgain(r.request.Terms.CordonedAt, pods); len(leave) > 0 {
		r.request.Log.Info("the node was cordoned again: pods that came in the meantime have to leave after all",
			"pods", len(leave))
		for _, pod := range leave {
			r.claims.note(pod)
			r.pods[pod.UID] = r.newPodState(pod, now)
		}
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return r.departed[pod.UID] != nil }) // the watch is behind
	r.classify(pods, now)
	seen := map[types.UID]bool{}
	front := self + 1
	r.settledAt = time.Time{}
	var kept []string
	for _, pod := range pods {
		p := r.pods[pod.UID]
		if p == nil {
			seen[pod.UID] = true
			continue
		}
		r.update(p, pod, now)
		if at := p.countsAsGoneAt(); !at.IsZero() && !now.Before(at) {
			kept = append(kept, strings.TrimSuffix(nameOf(pod)+": "+p.keptBy, ": "))
			continue
		}
		seen[pod.UID] = true
		if p.turn.Stays && r.mayStay(pod, p) {
			continue
		}
		r.settledAt = earlier(r.settledAt, p.countsAsGoneAt())
		if !p.unconfirmed && p.keptBy == "" {
			front = min(front, p.countsAs(now))
		}
	}
	if len(kept) > 0 {
		r.request.Log.Info("pods are not waited for any more: they have ended, and their objects are still there",
			"pods", len(kept), "which", strings.Join(evacuation.Names(kept, maxNames), "; "))
	}
	r.listed = true
	r.removeDeparted(seen, now)
	return front
}

// update brings a pod that has to leave up to date, and reports what keeps it.
func (r *run) update(p *podState, pod *corev1.Pod, now time.Time) {
	p.update(pod, now)
	p.reconsider(pod, r.request.Rules, r.request.Terms, now)
	r.warnOfMistake(pod, p.turn)
	if p.noteEnd(pod, now); p.keptBy != "" {
		p.unconfirmed, p.blocks = false, nil
		return
	}
	unconfirmed := r.isUnconfirmed(p, now)
	if unconfirmed && !p.unconfirmed {
		logging.Warn(r.request.Log,
			"a pod is not waited for any more: it should have ended, but its kubelet has not confirmed it",
			"pod", nameOf(pod), "end", p.stopsAt(),
		)
	}
	p.unconfirmed = unconfirmed
	if !unconfirmed {
		p.noteLast(r.request.Terms, now)
		p.noteRollout(now)
		r.reportBlocked(pod, p, now)
	}
}

// removeDeparted takes the pods out that are not among those seen: they are gone, or count as gone.
func (r *run) removeDeparted(seen map[types.UID]bool, now time.Time) {
	for uid, p := range r.pods {
		if !seen[uid] {
			delete(r.pods, uid)
			r.depart(uid, p, now)
			p.dequeue()
			p.endSurge()
		}
	}
	maps.DeleteFunc(r.staying, func(uid types.UID, _ bool) bool { return !seen[uid] })
	maps.DeleteFunc(r.newcomers.staying, func(uid types.UID, _ newcomer) bool { return !seen[uid] })
}

// depart notes that a pod is gone, or counts as gone.
func (r *run) depart(uid types.UID, p *podState, now time.Time) {
	r.departed[uid] = p
	if p.idle {
		return
	}
	left := now
	if p.hasEnded() {
		left = p.endedAt
	}
	r.result.Record.LastLeft = later(r.result.Record.LastLeft, left)
	if p.cutShort(left) {
		had := p.killedAt.Sub(p.askedAt).Round(time.Second)
		r.result.Record.CutShort = append(r.result.Record.CutShort, fmt.Sprintf("%s after %s of %s", p.name, had, p.grace))
	}
}

// cutShort reports whether a pod that has left then was killed before its grace period was over.
func (p podState) cutShort(left time.Time) bool {
	const blink = time.Second // the API server cuts times to seconds
	had := p.killedAt.Sub(p.askedAt)
	if p.killedAt.IsZero() || had >= p.grace-blink {
		return false
	}
	return !left.Before(p.killedAt.Add(-min(blink, had-blink)))
}

// classify decides which of the pods that are seen for the first time have to leave.
func (r *run) classify(pods []*corev1.Pod, now time.Time) {
	var candidates []candidate
	var states []*podState
	for _, pod := range pods {
		if r.pods[pod.UID] != nil || r.staying[pod.UID] || r.newcomers.contains(pod.UID) {
			continue
		}
		p := r.newPodState(pod, now)
		if p.tier >= own {
			r.pods[pod.UID] = p
			continue
		}
		r.warnOfMistake(pod, p.turn)
		candidates, states = append(candidates, r.candidate(pod, p.turn)), append(states, p)
	}
	if len(candidates) == 0 {
		return
	}
	answers, warnings := r.drainer.Filter.mustLeave(candidates)
	if warnings != "" && !r.listed {
		r.request.Log.Info("kubectl's drain warns of pods", "says", truncate(warnings))
	}
	for k, c := range candidates {
		r.sort(c.pod, states[k], answers[k], now)
	}
}

// sort puts a pod to those that have to leave, or to those that stay.
func (r *run) sort(pod *corev1.Pod, p *podState, answer chosen, now time.Time) {
	if !answer.leaves {
		r.stay(pod, answer.why)
		return
	}
	if r.listed { // the pods of the first list have to leave, whatever they tolerate
		stays, replaces, why := r.newcomers.classify(pod, r.nodeState().Cordoned, now)
		if stays {
			if why != "" {
				r.request.Log.Info("a pod that came during the drain stays on the node", "pod", nameOf(pod), "why", why)
			}
			return
		}
		p.replaces = replaces
	}
	r.claims.note(pod)
	r.pods[pod.UID] = p
}

// newPodState returns the state of a pod that was not asked to leave yet.
func (r *run) newPodState(pod *corev1.Pod, now time.Time) *podState {
	p := newPodState(pod, r.drainer.Grace, r.drainer.Self, now)
	if p.tier == self && r.drainer.EvictSelf {
		p.tier = own
	}
	p.reconsider(pod, r.request.Rules, r.request.Terms, now)
	if r.request.Resumed {
		p.noteEarlier(pod, r.request.Terms.CordonedAt)
	}
	return p
}

// candidate returns what the filter is asked of a pod. A pod of a DaemonSet that comes during the drain stays,
// whatever its rule: if it were asked, there would be another one.
func (r *run) candidate(pod *corev1.Pod, turn decision.Turn) candidate {
	kept := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name} == r.drainer.Keep
	if ofDaemonSet(pod) && (r.listed || kept) {
		turn.Stays = true
	}
	return candidate{pod, turn}
}

// stay notes that a pod does not have to leave. It is not looked at again. why is empty where that is no news.
func (r *run) stay(pod *corev1.Pod, why string) {
	if r.staying == nil {
		r.staying = map[types.UID]bool{}
	}
	r.staying[pod.UID] = true
	if why != "" {
		r.result.Stayed = append(r.result.Stayed, nameOf(pod))
		logging.Warn(r.request.Log, "a pod stays on the node, and is lost with it", "pod", nameOf(pod), "why", why)
	}
}

// mayStay lets a pod stay whose annotations or labels had it leave, if they have changed before the
// pod was asked. It reports whether it stays.
func (r *run) mayStay(pod *corev1.Pod, p *podState) bool {
	if p.requested || p.stopping() {
		return false
	}
	answers, _ := r.drainer.Filter.mustLeave([]candidate{{pod, p.turn}})
	if answers[0].leaves {
		return false
	}
	p.dequeue()
	p.endSurge()
	delete(r.pods, pod.UID)
	r.stay(pod, answers[0].why)
	return true
}

// warnOfMistake logs what is wrong with the annotation of a pod, once for all pods that share it.
func (r *run) warnOfMistake(pod *corev1.Pod, turn decision.Turn) {
	if turn.Mistake == "" || r.mistakes[turn.Mistake] {
		return
	}
	if r.mistakes == nil {
		r.mistakes = map[string]bool{}
	}
	r.mistakes[turn.Mistake] = true
	logging.Warn(r.request.Log, "a pod cannot leave as its owner wants", "pod", nameOf(pod), "why", turn.Mistake)
}

// sortedPods returns the pods that have to leave: lower tiers first, then by name.
func (r *run) sortedPods() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range r.store.list() {
		if r.pods[pod.UID] != nil {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if byTier := int(r.pods[a.UID].tier) - int(r.pods[b.UID].tier); byTier != 0 {
			return byTier
		}
		return strings.Compare(nameOf(a), nameOf(b))
	})
	return pods
}

// nameOf returns a pod's namespace/name, as logs and results have it.
func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
