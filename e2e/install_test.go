package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// In a cluster of its own: the pods of the manifests go to any node. The
// namespace enforces the restricted Pod Security Standard: pods that it does not
// admit are never created.
func TestTheManifestsGiveTwoRunningReplicasUnderTheRestrictedStandard(t *testing.T) {
	s := newScenario(t)
	cluster, err := sandbox.Start(s.ctx, sandbox.Options{})
	s.must(err)
	t.Cleanup(func() { s.must(cluster.Stop()) })
	for _, name := range []string{"a", "b"} {
		_, err := cluster.AddNode(s.ctx, sandbox.NodeSpec{Name: name})
		s.must(err)
	}
	s.must(release.Apply(s.ctx, cluster, manifests, release.Name))
	s.must(release.Apply(s.ctx, cluster, flowSchema, release.Name))
	s.eventually("two replicas are ready", func() bool {
		d, err := cluster.Client().AppsV1().Deployments(release.Name).Get(s.ctx, release.Name, metav1.GetOptions{})
		s.must(err)
		return d.Status.ReadyReplicas == 2
	})
	s.eventually("the budget counts them", func() bool {
		b, err := cluster.Client().PolicyV1().PodDisruptionBudgets(release.Name).Get(s.ctx, release.Name, metav1.GetOptions{})
		s.must(err)
		return b.Status.CurrentHealthy == 2 && b.Status.DisruptionsAllowed == 1
	})
}
