package drain

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// hostilePod has as much as the API server takes, or more, of all that is kept.
func hostilePod() *corev1.Pod {
	long := func(k int) string { return fmt.Sprintf("%010000d", k) }
	grace := int64(30)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: strings.Repeat("n", 253), Namespace: strings.Repeat("s", 63), UID: types.UID(strings.Repeat("u", 36)), ResourceVersion: "123456789",
			DeletionTimestamp: new(metav1.Now()), DeletionGracePeriodSeconds: &grace, Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: long(0), Kind: long(0), Name: long(0), UID: types.UID(long(0)), Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: strings.Repeat("m", 253), TerminationGracePeriodSeconds: &grace},
	}
	for k := range 100 {
		pod.Finalizers = append(pod.Finalizers, fmt.Sprintf("%0253d/%063d", k, k)) // the API server takes no longer ones
		pod.Labels[fmt.Sprint(k)], pod.Annotations[fmt.Sprint(k)] = long(k)[:63], long(k)
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: long(k)}}
		switch k {
		case 1:
			source = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": long(k)}},
			}}}
		case 2:
			source = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMedium(long(k))}}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("%063d", k), VolumeSource: source})
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Value: long(k)})
		state := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: long(k)}}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: long(k), Image: long(k), State: state})
		for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.DisruptionTarget} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: long(k), Message: long(k)})
		}
	}
	for _, key := range []string{decision.LeaveAnnotation, decision.DoNotDisruptAnnotation, decision.SafeToEvictAnnotation, corev1.MirrorPodAnnotationKey} {
		pod.Annotations[key] = long(0)
	}
	return pod
}

func TestAHostilePodTakesLittleMemory(t *testing.T) {
	const most = 14 << 10
	pod := hostilePod()
	small := new(PodTrimmer).Trim(pod, &decision.Rules{})
	t.Logf("%d bytes are left of %d", small.Size(), pod.Size())
	if small.Size() > most {
		t.Errorf("%d bytes are left, want %d at most", small.Size(), most)
	}
	if len(small.Annotations) != 4 || len(small.Finalizers) != mostFinalizers || len(small.Spec.Volumes) != mostClaims+1 ||
		len(small.Status.Conditions) != 2 || small.OwnerReferences[0].Name == "" || len(small.Status.ContainerStatuses) != 1 {
		t.Errorf("something is left out that is read: %v", small)
	}
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, nil
	if small = new(PodTrimmer).Trim(pod, &decision.Rules{}); len(small.Spec.Volumes) != 1 {
		t.Errorf("a pod that its kubelet has refused keeps %d volumes, want its emptyDir alone", len(small.Spec.Volumes))
	}
}
