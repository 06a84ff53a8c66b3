package drain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// endedTime is how long a pod is waited for that has ended, and whose object is still there. A finalizer mostly comes
// off within a second or two: the Job controller gathers the ends of pods for one second. If it takes longer,
// nothing is lost: the object outlives the machine, too.
const endedTime = 5 * time.Second

// keepContainers keeps of a Pod what Ended reads of its containers.
func keepContainers(small, pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil || len(pod.Finalizers) == 0 {
		return
	}
	small.Status.InitContainerStatuses = states(pod.Status.InitContainerStatuses)
	small.Status.ContainerStatuses = states(pod.Status.ContainerStatuses)
	small.Status.EphemeralContainerStatuses = states(pod.Status.EphemeralContainerStatuses)
}

// states are the states that some containers have, each once.
func states(of []corev1.ContainerStatus) (kept []corev1.ContainerStatus) {
	for k := range of {
		var s corev1.ContainerState
		switch state := &of[k].State; {
		case state.Running != nil:
			s.Running = &corev1.ContainerStateRunning{}
		case state.Terminated != nil:
			s.Terminated = &corev1.ContainerStateTerminated{}
		default:
			s.Waiting = &corev1.ContainerStateWaiting{}
		}
		same := func(c corev1.ContainerStatus) bool {
			return (c.State.Running != nil) == (s.Running != nil) && (c.State.Terminated != nil) == (s.Terminated != nil)
		}
		if !slices.ContainsFunc(kept, same) {
			kept = append(kept, corev1.ContainerStatus{State: s})
		}
	}
	return kept
}

// noteEnd notes whether a pod has ended, and what keeps its object.
func (p *podState) noteEnd(pod *corev1.Pod, now time.Time) {
	if !evacuation.Ended(pod) {
		p.endedAt, p.keptBy = time.Time{}, ""
		return
	}
	if p.endedAt.IsZero() {
		p.endedAt = now
	}
	p.keptBy = strings.Join(evacuation.Names(pod.Finalizers, maxNames), ", ")
}

// hasEnded reports whether nothing of a pod runs any more.
func (p podState) hasEnded() bool { return !p.endedAt.IsZero() }

// countsAsGoneAt returns when a pod that has ended is not waited for any more; zero: it has not ended.
func (p podState) countsAsGoneAt() time.Time {
	if !p.hasEnded() {
		return time.Time{}
	}
	return p.endedAt.Add(endedTime)
}
