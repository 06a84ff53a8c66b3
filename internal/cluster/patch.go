package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// Names that users of AWS Node Termination Handler know from their nodes.
const (
	taintPrefix     = "aws-node-termination-handler/"
	excludeLabel    = corev1.LabelNodeExcludeBalancers
	excludeValue    = "aws-node-termination-handler"
	outOfService    = corev1.TaintNodeOutOfService
	outOfServiceVal = "nodeshutdown"
)

// taintKey is the taint of a kind; empty where the kind has none.
func taintKey(kind notice.Kind) string {
	switch kind {
	case notice.SpotInterruption:
		return taintPrefix + "spot-itn"
	case notice.ScheduledChange:
		return taintPrefix + "scheduled-maintenance"
	case notice.ASGTerminate:
		return taintPrefix + "asg-lifecycle-termination"
	case notice.RebalanceRecommendation:
		return taintPrefix + "rebalance-recommendation"
	case notice.StateChange, notice.ASGLaunch, notice.Ignored:
	}
	return ""
}

// Marks are what a cordon does beside making a node unschedulable.
type Marks struct {
	// TaintEffect is the effect of a taint by the kind of the notice; empty: no taint.
	TaintEffect corev1.TaintEffect
	// ExcludeFromLoadBalancers labels the node for the service controllers.
	ExcludeFromLoadBalancers bool
}

// nodePatch is a JSON merge patch of a Node. A list is replaced as a whole, so
// the patch holds for the resourceVersion that it was made from, and no other.
type nodePatch struct {
	Metadata struct {
		UID             types.UID          `json:"uid"`
		ResourceVersion string             `json:"resourceVersion"`
		Labels          map[string]*string `json:"labels,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool           `json:"unschedulable,omitempty"`
		Taints        *[]corev1.Taint `json:"taints,omitempty"`
	} `json:"spec,omitzero"`

	deadline time.Time // of the intent; zero: none
}

// priority is the patch's turn at the gate: a cordon goes before all other
// requests, because it is one and keeps new pods away.
func (p *nodePatch) priority() pace.Priority {
	if p.Spec.Unschedulable != nil && *p.Spec.Unschedulable {
		return pace.Priority{Class: pace.Foremost, Deadline: p.deadline}
	}
	return pace.Priority{Class: pace.Normal, Deadline: p.deadline, Rank: pace.Conclude}
}

func newPatch(node *corev1.Node) *nodePatch {
	p := &nodePatch{}
	p.Metadata.UID = node.UID
	p.Metadata.ResourceVersion = node.ResourceVersion
	p.Metadata.Labels = map[string]*string{}
	p.Metadata.Annotations = map[string]*string{}
	return p
}

// cordon is the patch that makes the node carry the intent: unschedulable, the
// marks, and the intent itself with what of it nobody had done before. A node that
// is held back gets the intent alone.
func cordon(node *corev1.Node, i Intent, marks Marks) (Intent, *nodePatch, error) {
	p := newPatch(node)
	if i.HeldBack {
		return i, p, p.write(i)
	}
	if !node.Spec.Unschedulable {
		i.Cordoned = true
		p.Spec.Unschedulable = new(true)
	}
	if marks.TaintEffect != "" {
		taints := slices.Clone(node.Spec.Taints)
		for _, e := range i.Entries {
			key := taintKey(e.Kind)
			if key == "" || slices.ContainsFunc(taints, hasKey(key)) {
				continue
			}
			taints = append(taints, corev1.Taint{Key: key, Value: taintValue(e.IDs), Effect: marks.TaintEffect})
			i.Taints = append(slices.Clone(i.Taints), key)
		}
		if len(taints) > len(node.Spec.Taints) {
			p.Spec.Taints = &taints
		}
	}
	if _, there := node.Labels[excludeLabel]; marks.ExcludeFromLoadBalancers && !there {
		i.Excluded = true
		p.Metadata.Labels[excludeLabel] = new(excludeValue)
	}
	return i, p, p.write(i)
}

// write adds the intent and its state to the patch.
func (p *nodePatch) write(i Intent) error {
	p.deadline = i.Deadline()
	text, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("write the intent: %w", err)
	}
	state := StateDraining
	switch {
	case i.Finished():
		state = StateDrained
	case i.HeldBack:
		state = StateWaiting
	}
	p.Metadata.Annotations[IntentAnnotation] = new(string(text))
	p.Metadata.Labels[StateLabel] = new(state)
	return nil
}

// uncordon is the patch that undoes what the intent says that we did.
func uncordon(node *corev1.Node, i Intent) *nodePatch {
	p := newPatch(node)
	p.Metadata.Annotations[IntentAnnotation] = nil
	p.Metadata.Labels[StateLabel] = nil
	if i.Cordoned && node.Spec.Unschedulable {
		p.Spec.Unschedulable = new(false)
	}
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.Contains(i.Taints, t.Key) || !i.OutOfServiceAt.IsZero() && t.Key == outOfService
	})
	if len(taints) < len(node.Spec.Taints) {
		p.Spec.Taints = &taints
	}
	if i.Excluded && node.Labels[excludeLabel] == excludeValue {
		p.Metadata.Labels[excludeLabel] = nil
	}
	return p
}

// outOfServiceTaint is the patch that adds the out-of-service taint, by which
// Kubernetes detaches volumes of a node that is known to be shut down, or takes
// it back. https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
func outOfServiceTaint(node *corev1.Node, i Intent, on bool, now time.Time) (*nodePatch, error) {
	p := newPatch(node)
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), hasKey(outOfService))
	i.OutOfServiceAt = time.Time{}
	if on {
		i.OutOfServiceAt = now
		taints = append(taints, corev1.Taint{Key: outOfService, Value: outOfServiceVal, Effect: corev1.TaintEffectNoExecute})
	}
	p.Spec.Taints = &taints
	return p, p.write(i)
}

func hasKey(key string) func(corev1.Taint) bool {
	return func(t corev1.Taint) bool { return t.Key == key }
}

// taintValue makes the first event id a valid taint value, which is a label value.
func taintValue(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	const limit = 63
	value := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, ids[0])
	if len(value) > limit {
		value = value[:limit]
	}
	return strings.Trim(value, "-_.")
}
