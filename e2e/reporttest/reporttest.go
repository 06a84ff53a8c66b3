// Package reporttest has what the tests of several receivers of reports are told: a node
// and its interruption. Only tests use it.
package reporttest

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const (
	// Instance is that of the node.
	Instance = "i-0123456789abcdef0"
	// Secret stands in every place where a webhook has secrets: no log line and no error may
	// hold it.
	Secret = "hush"
)

// Noon is when the interruption is announced.
var Noon = time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)

// Spot is the decision to drain a node because of a spot warning.
func Spot() report.Decision {
	return report.Decision{
		Notice: notice.Notice{
			Kind: notice.SpotInterruption, ID: "event-1", Account: "123456789012", Region: "us-east-1", Time: Noon,
			Deadline: Noon.Add(2 * time.Minute), Instances: []string{Instance}, Detail: "terminate",
		},
		Instance: Instance, Node: cluster.Ref{Name: "node-1", UID: "uid-1", Instance: Instance},
		Action: decision.Drain, Why: "spot-interruption", Deadline: Noon.Add(2 * time.Minute),
	}
}

// Node is the node of the stories, as it is while it drains.
func Node(t *testing.T) *corev1.Node {
	t.Helper()
	carried, err := json.Marshal(intent.Intent{Version: 1, Entries: []intent.Entry{
		{Kind: notice.RebalanceRecommendation},
		{Kind: notice.SpotInterruption, Deadline: Noon.Add(2 * time.Minute)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", UID: "uid-1", Annotations: map[string]string{cluster.IntentAnnotation: string(carried)},
			Labels: map[string]string{corev1.LabelInstanceTypeStable: "m7g.large", corev1.LabelTopologyZone: "us-east-1a"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + Instance},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, // of another interface
			{Type: corev1.NodeInternalDNS, Address: "ip-10-0-0-1.ec2.internal"},
			{Type: corev1.NodeHostName, Address: "node-1"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeExternalDNS, Address: "ec2-192-0-2-1.compute-1.amazonaws.com"},
		}},
	}
}
