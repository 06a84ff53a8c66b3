package drain

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Filter says which pods have to leave a node: those that `kubectl drain --force`
// asks to, which a test compares.
type Filter struct {
	// IgnoreDaemonSets keeps quiet about the pods of DaemonSets. They stay in any case.
	IgnoreDaemonSets bool
	// DeleteEmptyDir lets pods go that use emptyDir volumes. Without it they stay.
	DeleteEmptyDir bool
}

// leaves reports whether a pod has to leave its node. If not, why names the option
// that keeps it; it is empty for pods that nobody expects to leave.
func (f Filter) leaves(pod *corev1.Pod) (leaves bool, why string) {
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case ofDaemonSet(pod) && !finished:
		// Its successor would come to the same node: DaemonSets tolerate the cordon.
		if f.IgnoreDaemonSets {
			return false, ""
		}
		return false, "it belongs to a DaemonSet: ignore-daemon-sets is false"
	case static: // the kubelet runs it from a file
		return false, ""
	case hasEmptyDir(pod) && !finished && !f.DeleteEmptyDir:
		return false, "it has an emptyDir volume: delete-local-data is false"
	}
	return true, ""
}

func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == appsv1.SchemeGroupVersion.String()
}

func hasEmptyDir(pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil {
			return true
		}
	}
	return false
}
