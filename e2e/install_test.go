package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

// The namespace enforces the restricted Pod Security Standard: pods that it does
// not admit are never created.
func TestTheManifestsGiveTwoRunningReplicasUnderTheRestrictedStandard(t *testing.T) {
	s := newScenario(t)
	s.nodes(2)
	namespace := s.name + "-release"
	s.must(release.Apply(s.ctx, shared, manifests, namespace))
	s.eventually("two replicas are ready", func() bool {
		d, err := s.kube.AppsV1().Deployments(namespace).Get(s.ctx, release.Name, metav1.GetOptions{})
		s.must(err)
		return d.Status.ReadyReplicas == 2
	})
	s.eventually("the budget counts them", func() bool {
		b, err := s.kube.PolicyV1().PodDisruptionBudgets(namespace).Get(s.ctx, release.Name, metav1.GetOptions{})
		s.must(err)
		return b.Status.CurrentHealthy == 2 && b.Status.DisruptionsAllowed == 1
	})
	s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx, namespace, metav1.DeleteOptions{}))
}
