package drain

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
			r.pods[pod.UID] = r.newPodState(pod)
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
		if r.update(p, pod, now); !p.unconfirmed {
			front = min(front, p.tier)
		}
	}
	r.listed = true
	r.removeDeparted(seen)
	return front
}

// update brings a pod that has to leave up to date, and reports what keeps it.
func (r *run) update(p *podState, pod *corev1.Pod, now time.Time) {
	p.update(pod, now)
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
			p.departed = true
			p.dequeue()
		}
	}
	maps.DeleteFunc(r.staying, func(uid types.UID, _ bool) bool { return !seen[uid] })
	maps.DeleteFunc(r.newcomers.staying, func(uid types.UID, _ newcomer) bool { return !seen[uid] })
}

// classify decides whether a pod that is seen for the first time has to leave. nil: it stays.
func (r *run) classify(pod *corev1.Pod, now time.Time) *podState {
	log := r.request.Log.With("pod", nameOf(pod))
	p := r.newPodState(pod)
	if p.tier >= last {
		r.pods[pod.UID] = p
		return p
	}
	if leaves, why := r.drainer.Filter.mustLeave(pod); !leaves {
		if r.staying == nil {
			r.staying = map[types.UID]bool{}
		}
		r.staying[pod.UID] = true
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
func (r *run) newPodState(pod *corev1.Pod) *podState {
	p := newPodState(pod, r.drainer.Grace, r.drainer.Self)
	if p.tier == self && r.drainer.EvictSelf {
		p.tier = last
	}
	return p
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
