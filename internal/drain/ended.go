package drain

import (
	"cmp"
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

// A podEnd says whether a pod has ended. The zero value: it has not.
type podEnd struct {
	at     time.Time // when that was first seen
	keptBy string    // the finalizers that keep its object then
}

// note notes whether a pod has ended, and what keeps its object.
func (e *podEnd) note(pod *corev1.Pod, now time.Time) {
	if !evacuation.Ended(pod) {
		*e = podEnd{}
		return
	}
	e.at = cmp.Or(e.at, now)
	e.keptBy = strings.Join(evacuation.Names(pod.Finalizers, maxNames), ", ")
}

// hasCome reports whether nothing of the pod runs any more.
func (e podEnd) hasCome() bool { return !e.at.IsZero() }

// countsAsGoneAt returns when a pod that has ended is not waited for any more; zero: it has not ended.
func (e podEnd) countsAsGoneAt() time.Time {
	if !e.hasCome() {
		return time.Time{}
	}
	return e.at.Add(endedTime)
}
