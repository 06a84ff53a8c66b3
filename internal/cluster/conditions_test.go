package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTheWatchKeepsReadyAndTheConditionsThatAreOurs(t *testing.T) {
	since := metav1.Now()
	ours := corev1.NodeCondition{Type: Drained, Status: corev1.ConditionTrue, Reason: "SpotInterruption", Message: "m", LastTransitionTime: since}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse},
		ours,
		{Type: "example.com/Disk", Status: corev1.ConditionTrue},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "long", LastHeartbeatTime: since, LastTransitionTime: since},
	}}}
	small, err := trim(node)
	if err != nil {
		t.Fatal(err)
	}
	want := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: since}, ours}
	if diff := cmp.Diff(want, small.(*corev1.Node).Status.Conditions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAHandlerSpeaksForNodesOfItsQueueAndForThoseThatNobodySpeaksFor(t *testing.T) {
	const mine = `{"v":1,"queue":"q","cordonedAt":"2026-01-01T00:00:00Z"}`
	stale := []corev1.NodeCondition{{Type: DrainInProgress, Status: corev1.ConditionTrue, Reason: "SpotInterruption"}}
	others := []corev1.NodeCondition{
		{Type: DrainInProgress, Status: corev1.ConditionTrue, Reason: "KubectlDrain"}, {Type: MaintenancePlanned, Status: corev1.ConditionTrue},
	}
	over := []corev1.NodeCondition{{Type: DrainInProgress, Status: corev1.ConditionFalse}}
	for _, tt := range []struct {
		name, intent string
		conditions   []corev1.NodeCondition
		want         bool
	}{
		{"no intent", "", nil, false},
		{"no intent, and all is over", "", over, false},
		{"the intent was removed", "", stale, true},
		{"no intent, and the conditions of somebody else", "", others, false},
		{"an intent of this queue", mine, nil, true},
		{"of another", `{"v":1,"queue":"other","cordonedAt":"2026-01-01T00:00:00Z"}`, stale, false},
		{"one that cannot be read", "{", stale, false},
	} {
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: tt.conditions}}
		if tt.intent != "" {
			node.Annotations = map[string]string{IntentAnnotation: tt.intent}
		}
		if _, got := (&Cluster{owner: owner{"q"}}).SpeaksFor(node); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
