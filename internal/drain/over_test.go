package drain

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A request in flight may end after the loss of the lease, and the deletion of a Job's pod is two requests.
func TestNoRequestBeginsAfterTheLossOfTheLease(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("job", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", Controller: new(true)}}
			p.Spec.NodeName = "node"
		})
		ctx, cancel := context.WithCancelCause(s.Context())
		marked, deleted := false, false
		s.kube.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			marked = true
			cancel(errors.New("the lease is lost"))
			time.Sleep(900 * time.Millisecond)
			return false, nil, nil
		})
		s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			deleted = true
			return false, nil, nil
		})
		_, _ = s.drainIn(ctx, Terms{Deadline: s.begin.Add(30 * time.Second), IgnoreBudgets: true}, nil)
		if !marked || deleted {
			t.Errorf("it is marked: %t, and its deletion begins: %t", marked, deleted)
		}
	})
}
