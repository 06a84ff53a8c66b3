package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestTheLabelComesWithTheNoticeThatEndsTheMachine(t *testing.T) {
	marks := CordonOptions{ExcludeFromLoadBalancers: decision.Policy{}.Excludes}
	rebalance := intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"a"}, Time: now}
	first, p, err := cordon(&corev1.Node{}, intent.Intent{Version: intent.Version}.With(rebalance, nil, now), marks)
	if err != nil {
		t.Fatal(err)
	}
	if first.Excluded || p.Metadata.Labels[excludeLabel] != nil {
		t.Errorf("excluded for a recommendation: %v", p.Metadata.Labels)
	}
	node := corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
	second, p, err := cordon(&node, first.With(spot("b"), nil, now), marks)
	if err != nil {
		t.Fatal(err)
	}
	if label := p.Metadata.Labels[excludeLabel]; !second.Excluded || label == nil || *label != excludeValue {
		t.Errorf("not excluded for the spot warning: %v", p.Metadata.Labels)
	}
	node.Labels = map[string]string{excludeLabel: excludeValue}
	if p, err = uncordon(&node, second, second); err != nil {
		t.Fatal(err)
	}
	if label, there := p.Metadata.Labels[excludeLabel]; !there || label != nil {
		t.Errorf("the label stays: %v", p.Metadata.Labels)
	}
}
