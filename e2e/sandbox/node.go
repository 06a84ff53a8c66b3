package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Annotations that tell KWOK what the kubelet of a node does. hack/controlplane/kwok/stages.yaml
// has the rules.
const (
	// NotReady keeps a Node or a Pod from being Ready while it is there, whatever its value.
	NotReady = "sandbox/not-ready"
	// StopAfter is how long a Pod takes to stop once it is deleted, such as 500ms,
	// 20s or 2m: without it 100ms, and never longer than its grace period.
	StopAfter = "sandbox/stop-after"
)

// NodeSpec describes a node of a cluster.
type NodeSpec struct {
	Name        string
	ProviderID  string            // such as aws:///eu-west-1a/i-0123456789abcdef0
	Labels      map[string]string // kubernetes.io/os is linux unless they say otherwise
	Annotations map[string]string
	Taints      []corev1.Taint
	NotReady    bool // until SetReady
}

// AddNode creates a Node with room for 110 pods and returns when it is Ready and
// pods can be scheduled on it; with NotReady, when the Node says that it is not
// Ready. The Node's machine is removed by deleting the Node.
func (c *Cluster) AddNode(ctx context.Context, spec NodeSpec) (*corev1.Node, error) {
	room := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("8"),
		corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Name,
			Labels: map[string]string{
				corev1.LabelHostname: spec.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			},
			Annotations: map[string]string{},
		},
		Spec: corev1.NodeSpec{ProviderID: spec.ProviderID, Taints: spec.Taints},
		Status: corev1.NodeStatus{
			Capacity:    room,
			Allocatable: room,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
				{Type: corev1.NodeHostName, Address: spec.Name},
			},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: c.version, OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
	maps.Copy(node.Labels, spec.Labels)
	node.Status.NodeInfo.OperatingSystem = node.Labels[corev1.LabelOSStable]
	maps.Copy(node.Annotations, spec.Annotations)
	if spec.NotReady {
		node.Annotations[NotReady] = ""
	}
	if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create node %s: %w", spec.Name, err)
	}
	return c.awaitReady(ctx, spec.Name, !spec.NotReady)
}

// SetBootID makes a node tell another boot id, as its kubelet does after a boot. A node has none
// before.
func (c *Cluster) SetBootID(ctx context.Context, node, id string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": id}}})
	if err != nil {
		return err
	}
	nodes := c.client.CoreV1().Nodes()
	_, err = nodes.Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("set the boot id of node %s: %w", node, err)
	}
	return nil
}

// SetReady makes a node Ready, or not, and returns when it is so.
func (c *Cluster) SetReady(ctx context.Context, node string, ready bool) error {
	annotations := map[string]any{NotReady: ""}
	if ready {
		annotations[NotReady] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("annotate node %s: %w", node, err)
	}
	_, err = c.awaitReady(ctx, node, ready)
	return err
}

// awaitReady returns the node when its Ready condition and the taint that the
// controller manager derives from it are as wanted.
func (c *Cluster) awaitReady(ctx context.Context, name string, ready bool) (node *corev1.Node, err error) {
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		node, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return isReady(node) == ready && isTainted(node) == !ready, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait until node %s has Ready %t: %w", name, ready, err)
	}
	return node, nil
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

func isTainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeNotReady
	})
}
