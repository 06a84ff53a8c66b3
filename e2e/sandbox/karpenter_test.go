package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestKarpenterMakesANodeForAPodThatFindsNoRoom(t *testing.T) {
	tier.Full(t, "Karpenter, which takes minutes to compile")
	c := startCluster(t)
	path, err := BuildKarpenter(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	karpenter, err := c.AddKarpenter(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddNodePool(t.Context(), "pool", map[string]string{"of": "karpenter"}); err != nil {
		t.Fatal(err)
	}
	pod := barePod("lonely")
	pod.Spec.NodeName, pod.Spec.NodeSelector = "", map[string]string{"of": "karpenter"}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	if _, err := c.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod runs on a node of Karpenter's", func() error {
		now, err := c.Client().CoreV1().Pods("default").Get(t.Context(), "lonely", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Status.Phase != corev1.PodRunning {
			return errors.New("it is " + string(now.Status.Phase))
		}
		node, err := c.Client().CoreV1().Nodes().Get(t.Context(), now.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node.Labels["karpenter.sh/initialized"] != "true" || node.Labels["karpenter.sh/nodepool"] != "pool" {
			return fmt.Errorf("its node has the labels %v", node.Labels)
		}
		if !strings.HasPrefix(node.Spec.ProviderID, "aws:///eu-west-1a/i-") {
			return fmt.Errorf("its node has the provider id %q", node.Spec.ProviderID)
		}
		return nil
	})
	pid := karpenter.PID()
	if err := c.Stop(); err != nil || alive(pid) {
		t.Errorf("Stop = %v, and Karpenter is alive: %t", err, alive(pid))
	}
}
