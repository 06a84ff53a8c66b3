package rehearsal

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
)

const (
	// ordinaryPod is more than a pod has that nobody has made large, and mostOfLarge is how many labels, annotations,
	// containers and conditions are read of a larger one.
	ordinaryPod  = 32 << 10
	mostOfLarge  = 32
	longestImage = 512
)

// TrimPod returns the pod as it is or, if it is large, what a drain reads of it, and names. It may change the pod.
func TrimPod(pod *corev1.Pod) *corev1.Pod {
	pod.ManagedFields = nil
	if pod.Size() <= ordinaryPod {
		return pod
	}
	small := new(drain.PodTrimmer).Trim(pod, &decision.Rules{})
	small.Labels, small.Annotations = some(pod.Labels), some(pod.Annotations)
	small.Spec.ServiceAccountName = pod.Spec.ServiceAccountName
	for _, c := range pod.Spec.Containers[:min(len(pod.Spec.Containers), mostOfLarge)] {
		image := c.Image[:min(len(c.Image), longestImage)]
		small.Spec.Containers = append(small.Spec.Containers, corev1.Container{Name: c.Name, Image: image})
	}
	small.Status.Conditions = nil
	for _, c := range pod.Status.Conditions[:min(len(pod.Status.Conditions), mostOfLarge)] {
		small.Status.Conditions = append(small.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
	}
	return small
}

// some are entries that are as short as those that a rule or a PodDisruptionBudget looks for.
func some(all map[string]string) map[string]string {
	const short = 256
	kept := map[string]string{}
	for key, value := range all {
		if len(value) <= short && len(kept) < mostOfLarge {
			kept[key] = value
		}
	}
	return kept
}
