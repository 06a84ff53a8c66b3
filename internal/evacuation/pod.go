package evacuation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Ended reports whether nothing of a pod runs any more, though its object is there. It is the one answer to that
// question, for drains and for simulations:
//
//	not being deleted              | its phase is Succeeded or Failed
//	being deleted                  | no: the object goes when its kubelet has cleaned up
//	being deleted, with finalizers | the phase is Succeeded or Failed; or no container runs, and either all have
//	                               | ended, or the kubelet has confirmed the end: the API server sets the grace to
//	                               | zero then
//
// Whoever deletes a pod by force sets the grace to zero as well. So a container that runs counts for more.
func Ended(pod *corev1.Pod) bool {
	switch deleted := pod.DeletionTimestamp != nil; {
	case deleted && len(pod.Finalizers) == 0:
		return false
	case !deleted, finished(pod):
		return finished(pod)
	}
	s := &pod.Status
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		if c.State.Running != nil {
			return false
		}
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil && *grace == 0 {
		return true
	}
	return len(s.ContainerStatuses) > 0 && !slices.ContainsFunc(s.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated == nil
	})
}

// finished reports whether the phase of a pod says that all of its containers have ended for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Unprotected reports whether the eviction API evicts the pod without asking its budgets.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func Unprotected(pod *corev1.Pod) bool {
	return finished(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// Ready reports whether the pod is ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// NameOf is the pod's name for people, with its namespace unless that is the default one.
func NameOf(pod *corev1.Pod) string {
	if pod.Namespace == corev1.NamespaceDefault {
		return pod.Name
	}
	return pod.Namespace + "/" + pod.Name
}
