package rehearsal

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// A tool may run in the handler's container, and a pod has up to 1.5 MB.
func TestALargePodTakesAToolLittleMemory(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "m"}}},
		}
	}
	if diff := cmp.Diff(pod(), TrimPod(pod())); diff != "" {
		t.Errorf("of an ordinary pod all is read (-want +got):\n%s", diff)
	}
	megabyte := strings.Repeat("x", 1<<20)
	for name, grow := range map[string]func(*corev1.Pod){
		"an annotation": func(p *corev1.Pod) { p.Annotations = map[string]string{"a": megabyte} },
		"annotations": func(p *corev1.Pod) {
			p.Annotations = map[string]string{decision.LeaveAnnotation: "last"}
			for k := range 10_000 {
				p.Annotations[fmt.Sprint(k)] = megabyte[:100]
			}
		},
		"a variable":  func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = megabyte },
		"a message":   func(p *corev1.Pod) { p.Status.Conditions[0].Message = megabyte },
		"an argument": func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{megabyte} },
		"a condition": func(p *corev1.Pod) {
			for range 10_000 {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Message: megabyte[:100]})
			}
		},
	} {
		large := pod()
		grow(large)
		small := TrimPod(large)
		if again := pod(); name == "annotations" {
			grow(again)
			again = TrimPod(again)
			if diff := cmp.Diff(small, again); diff != "" || small.Annotations[decision.LeaveAnnotation] != "last" {
				t.Errorf("two answers, or not what its owner asks for: %s", diff)
			}
		}
		if size := small.Size(); size > ordinaryPod {
			t.Errorf("%s: %d bytes are left", name, size)
		}
		if small.Name != "a" || small.Namespace != "ns" || small.Spec.NodeName != "n" || small.Spec.Containers[0].Image != "i" ||
			small.Status.Conditions[0].Status != corev1.ConditionTrue || name != "annotations" && small.Labels["app"] != "web" {
			t.Errorf("%s: %+v", name, small)
		}
	}
}

func TestALargePodDisruptionBudgetTakesAToolLittleMemory(t *testing.T) {
	megabyte := strings.Repeat("x", 1<<20)
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	read := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector("web"), UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow)},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2},
	}
	large := read.DeepCopy()
	large.Annotations, large.Finalizers = map[string]string{"a": megabyte}, []string{megabyte}
	large.Status.DisruptedPods = map[string]metav1.Time{megabyte: {}}
	large.Status.Conditions = []metav1.Condition{{Message: megabyte}}
	if diff := cmp.Diff(read, TrimBudget(large)); diff != "" {
		t.Errorf("trimmed (-want +got):\n%s", diff)
	}
	large.Spec.Selector = selector(megabyte)
	if small := TrimBudget(large); small.Size() > 1<<10 || small.Spec.Selector != nil { // nil selects no pod
		t.Errorf("%d bytes are left", small.Size())
	}
}
