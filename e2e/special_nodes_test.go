package e2e

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// Helm waits until all pods of a release are ready. It waits in vain where a pod can run nowhere, or is meant for a node
// that has no metadata, or where the new pod needs the place of the old one.
func TestHelmWaitsForTheReleaseInVainNowhere(t *testing.T) {
	t.Parallel()
	const controlPlane, computeType = "node-role.kubernetes.io/control-plane", "eks.amazonaws.com/compute-type"
	worker := sandbox.NodeSpec{Name: "worker"}
	special := []sandbox.NodeSpec{
		worker,
		{Name: "worker2"},
		{Name: "fargate", Labels: map[string]string{computeType: "fargate"}, Taints: []corev1.Taint{{Key: computeType, Value: "fargate", Effect: corev1.TaintEffectNoSchedule}}},
		{Name: "hybrid", Labels: map[string]string{computeType: "hybrid"}},
	}
	for name, tt := range map[string]struct {
		nodes  []sandbox.NodeSpec
		values []string
		on     []string // the nodes of the pods; those of a Deployment beside a DaemonSet may be on any
	}{
		"kOps with a control plane of one node": {
			nodes: []sandbox.NodeSpec{worker, {
				Name: "control", Labels: map[string]string{controlPlane: ""}, Taints: []corev1.Taint{{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule}},
			}},
			values: []string{"--values=" + filepath.Join("..", "deploy", "helm", "node-termination-handler", "values", "kops.yaml"), "--set=queueURL=https://sqs.us-east-1.amazonaws.com/123456789012/nth"},
			on:     []string{"control"},
		},
		"no queue, beside Fargate and a hybrid node": {
			nodes: special, values: []string{"--set=queueURL=none"}, on: []string{"any", "any", "worker", "worker2"},
		},
		"IMDS mode, beside Fargate and a hybrid node": {
			nodes: special, values: []string{"--set=enableSqsTerminationDraining=false"}, on: []string{"worker", "worker2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChartScenario(t)
			c.namespaceEnforces("privileged") // for the network of the nodes
			for _, n := range tt.nodes {
				labels := map[string]string{"home": c.name}
				maps.Copy(labels, n.Labels)
				n.Name, n.Labels = c.name+"-"+n.Name, labels
				_, err := c.cluster.AddNode(c.ctx, n)
				c.must(err)
			}
			values := append(slices.Clone(tt.values), "--set=linuxNodeSelector.home="+c.name) // a DaemonSet is for no other nodes
			c.helm(values...)
			c.helm(append(values, "--set=podAnnotations.version=two")...) // the next pods take the place of these
			c.eventually("its pods, and no others, run where they should", func() bool {
				pods, err := c.kube.CoreV1().Pods(c.namespace).List(c.ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
				c.must(err)
				var on []string
				for _, p := range pods.Items {
					where := strings.TrimPrefix(p.Spec.NodeName, c.name+"-")
					if slices.Contains(tt.on, "any") && p.OwnerReferences[0].Kind == "ReplicaSet" {
						where = "any"
					}
					on = append(on, where)
				}
				slices.Sort(on)
				return slices.Equal(on, tt.on)
			})
		})
	}
}
