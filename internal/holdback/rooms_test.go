package holdback

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

func TestTheBoundOfUnreadyNodesIsANumberOrAPercentage(t *testing.T) {
	for _, tt := range []struct {
		bound       string
		nodes, want int
	}{
		{"3", 100, 3}, {"3", 2, 3}, {"10%", 100, 10}, {"10%", 99, 9}, {"10%", 5, 1}, {"10%", 0, 1}, {"100%", 7, 7},
	} {
		if got := most(intstr.Parse(tt.bound), tt.nodes); got != tt.want {
			t.Errorf("%s of %d nodes: %d, want %d", tt.bound, tt.nodes, got, tt.want)
		}
	}
}

func TestTheUsesOfLimitsNameTheOtherNodes(t *testing.T) {
	rule := &decision.NodeRule{Name: "zones", Do: decision.Draining}
	rule.Limit.Nodes, rule.Limit.Per = "1", "zone"
	node := func(name, zone string, cordoned, ready bool) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"zone": zone}}}
		n.Spec.Unschedulable = cordoned
		if ready {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}
		return n
	}
	nodes := []corev1.Node{
		node("asked", "a", true, true), node("cordoned", "a", true, true), node("broken", "a", false, false),
		node("well", "a", false, true), node("elsewhere", "b", true, true),
	}
	ofRule := Use{Rule: "zones", Per: "zone=a", Most: 1, Nodes: []string{"broken", "cordoned"}}
	ofOption := Use{Most: 2, Nodes: []string{"broken", "cordoned", "elsewhere"}}
	unlimited := &decision.NodeRule{Name: "other", Do: decision.Draining}
	for _, tt := range []struct {
		rule  *decision.NodeRule
		bound intstr.IntOrString
		want  []Use
	}{
		{nil, intstr.IntOrString{}, nil},
		{unlimited, intstr.IntOrString{}, nil},
		{rule, intstr.IntOrString{}, []Use{ofRule}},
		{unlimited, intstr.Parse("50%"), []Use{ofOption}},
		{nil, intstr.Parse("2"), []Use{ofOption}},
		{rule, intstr.Parse("2"), []Use{ofRule, ofOption}},
	} {
		if diff := cmp.Diff(tt.want, Uses(tt.rule, tt.bound, &nodes[0], nodes)); diff != "" {
			t.Errorf("%v and %v (-want +got):\n%s", tt.rule, tt.bound, diff)
		}
	}
}
