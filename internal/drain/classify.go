package drain

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// refresh updates the pods from the store. It returns the lowest tier with pods that are waited
// for; above self if there are none.
func (r *run) refresh(now time.Time) tier {
	if r.nodeState().Ready {
		r.notReadySince = time.Time{}
	} else if r.notReadySince.IsZero() {
		r.notReadySince = now
	}
	pods := r.store.list()
	if leave := r.newcomers.cordonedAgain(r.request.Terms.CordonedAt, pods); len(leave) > 0 {
		r.request.Log.Info("the node was cordoned again: pods that came in the meantime have to leave after all",
			"pods", len(leave))
		for _, pod := range leave {
			r.pods[pod.UID] = r.newPodState(pod, now)
		}
	}
	seen := map[types.UID]bool{}
	front := self + 1
	for _, pod := range pods {
		if r.departed[pod.UID] != nil { // the watch is behind
			continue
		}
		seen[pod.UID] = true
		p := r.pods[pod.UID]
		if p == nil && !r.staying[pod.UID] && !r.newcomers.contains(pod.UID) {
			p = r.classify(pod, now)
		}
		if p == nil {
			continue
		}
		if r.update(p, pod, now); p.turn.Stays && r.mayStay(pod, p) {
			continue
		}
		if !p.unconfirmed {
			front = min(front, p.countsAs(now))
		}
	}
	r.listed = true
	r.removeDeparted(seen)
	return front
}

// update brings a pod that has to leave up to date, and reports what keeps it.
func (r *run) update(p *podState, pod *corev1.Pod, now time.Time) {
	p.update(pod, now)
	p.reconsider(pod, r.request.Rules, r.request.Terms, now)
	r.warnOfMistake(pod, p.turn)
	unconfirmed := p.isUnconfirmed(r.notReadySince, now)
	if unconfirmed && !p.unconfirmed {
		r.request.Log.Warn(
			"a pod is not waited for any more: it should have ended, but its kubelet is not there to confirm it",
			"pod", nameOf(pod), "end", p.stopsAt(),
		)
	}
	p.unconfirmed = unconfirmed
	if !unconfirmed {
		p.noteFinalizers(pod, r.notReadySince.IsZero(), now)
		p.noteLast(r.request.Terms, now)
		p.noteRollout(now)
		r.reportBlocked(pod, p, now)
	}
}

// removeDeparted takes the pods out that are not among those seen.
func (r *run) removeDeparted(seen map[types.UID]bool) {
	for uid, p := range r.pods {
		if !seen[uid] {
			r.endSpan(uid, nil)
			delete(r.pods, uid)
			r.departed[uid] = p
			p.dequeue()
			p.endSurge()
		}
	}
	maps.DeleteFunc(r.staying, func(uid types.UID, _ bool) bool { return !seen[uid] })
	maps.DeleteFunc(r.newcomers.staying, func(uid types.UID, _ newcomer) bool { return !seen[uid] })
}

// classify decides whether a pod that is seen for the first time has to leave. nil: it stays.
func (r *run) classify(pod *corev1.Pod, now time.Time) *podState {
	log := r.request.Log.With("pod", nameOf(pod))
	p := r.newPodState(pod, now)
	if p.tier >= own {
		r.pods[pod.UID] = p
		return p
	}
	r.warnOfMistake(pod, p.turn)
	if leaves, why := r.mustLeave(pod, p.turn); !leaves {
		r.stay(pod)
		if why != "" {
			r.result.Stayed = append(r.result.Stayed, nameOf(pod))
			log.Warn("a pod stays on the node, and is lost with it", "why", why)
		}
		return nil
	}
	if r.listed { // the pods of the first list have to leave, whatever they tolerate
		stays, replaces, why := r.newcomers.classify(pod, r.nodeState().Cordoned, now)
		if stays {
			if why != "" {
				log.Info("a pod that came during the drain stays on the node", "why", why)
			}
			return nil
		}
		p.replaces = replaces
	}
	r.noteClaims(pod)
	r.pods[pod.UID] = p
	return p
}

// newPodState returns the state of a pod that was not asked to leave yet.
func (r *run) newPodState(pod *corev1.Pod, now time.Time) *podState {
	p := newPodState(pod, r.drainer.Grace, r.drainer.Self, now)
	if p.tier == self && r.drainer.EvictSelf {
		p.tier = own
	}
	p.reconsider(pod, r.request.Rules, r.request.Terms, now)
	return p
}

// mustLeave reports whether a pod has to leave, as Filter.mustLeave does. A pod of a DaemonSet that
// comes during the drain stays, whatever its rule: if it were asked, there would be another one.
func (r *run) mustLeave(pod *corev1.Pod, turn decision.Turn) (leaves bool, why string) {
	kept := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name} == r.drainer.Keep
	if ofDaemonSet(pod) && (r.listed || kept) {
		turn.Stays = true
	}
	return r.drainer.Filter.mustLeave(pod, turn)
}

// stay notes that a pod does not have to leave. It is not looked at again.
func (r *run) stay(pod *corev1.Pod) {
	if r.staying == nil {
		r.staying = map[types.UID]bool{}
	}
	r.staying[pod.UID] = true
}

// mayStay lets a pod stay whose annotation or label had it leave, if that was taken off before the
// pod was asked. It reports whether it stays.
func (r *run) mayStay(pod *corev1.Pod, p *podState) bool {
	leaves, _ := r.drainer.Filter.mustLeave(pod, p.turn)
	if leaves || p.requested || p.stopping() {
		return false
	}
	p.dequeue()
	delete(r.pods, pod.UID)
	r.stay(pod)
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
	r.request.Log.Warn("a pod cannot leave as its owner wants", "pod", nameOf(pod), "why", turn.Mistake)
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
