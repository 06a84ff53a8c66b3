package rehearsal

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	small.Labels, small.Annotations = some(small.Labels, pod.Labels), some(small.Annotations, pod.Annotations)
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

// some are those that a drain reads and, as far as there is room, the first by key that are as short as those that a
// rule or a PodDisruptionBudget looks for.
func some(read, all map[string]string) map[string]string {
	const short = 256
	kept := map[string]string{}
	maps.Copy(kept, read)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if value := all[key]; len(value) <= short && len(kept) < mostOfLarge {
			kept[key] = value
		}
	}
	return kept
}

// TrimBudget returns what this package reads of a PodDisruptionBudget, which has up to 1.5 MB. A selector that is too
// long selects no pod.
func TrimBudget(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	const longestSelector = 4 << 10
	small := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: b.Name, Namespace: b.Namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: b.Spec.Selector, UnhealthyPodEvictionPolicy: b.Spec.UnhealthyPodEvictionPolicy,
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: b.Status.DisruptionsAllowed,
			CurrentHealthy:     b.Status.CurrentHealthy, DesiredHealthy: b.Status.DesiredHealthy,
		},
	}
	if text, err := json.Marshal(b.Spec.Selector); err != nil || len(text) > longestSelector {
		small.Spec.Selector = nil
	}
	return small
}
