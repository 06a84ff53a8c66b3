package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// Names that users of AWS Node Termination Handler know from their nodes.
const (
	taintPrefix  = "aws-node-termination-handler/"
	excludeLabel = corev1.LabelNodeExcludeBalancers
	excludeValue = "aws-node-termination-handler"
	outOfService = corev1.TaintNodeOutOfService
	// Not the value in the Kubernetes documents, which an administrator would copy: this
	// value shows that the taint is ours.
	outOfServiceVal = "node-termination-handler"
)

// taintKey is the taint's key for a kind of notice; empty if the kind has no taint.
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
	case notice.CapacityReservationInterruption:
		return taintPrefix + "capacity-reservation-interruption"
	case notice.CapacityBlockExpiration:
		return taintPrefix + "capacity-block-expiration"
	case notice.InstanceImpaired:
		return taintPrefix + "instance-impaired"
	case notice.StateChange, notice.ASGLaunch, notice.Ignored:
	}
	return ""
}

// CordonOptions say what a cordon does besides making a node unschedulable.
type CordonOptions struct {
	// TaintEffect is the effect of the taint for the kind of the notice; empty: no taint.
	TaintEffect corev1.TaintEffect
	// ExcludeFromLoadBalancers reports whether a node with this intent is labelled for the service
	// controllers; nil: none is.
	ExcludeFromLoadBalancers func(intent.Intent) bool
}

// nodePatch is a JSON merge patch of a Node. It replaces lists as a whole, so it
// is valid only for the resourceVersion that it was made from.
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
	mark     bool      // says that a drain has ended, and nothing is left to evict
}

// priority is the patch's priority at the gate. A cordon goes before all other requests, because it is a single request
// and keeps new pods away. So do the others: who writes to a node holds its lock, and a notice about it cannot be
// recorded meanwhile. Only the mark of a node that has nothing left to evict can wait.
func (p *nodePatch) priority() pace.Priority {
	if p.mark {
		return pace.Priority{Deadline: p.deadline, Rank: pace.Conclude}
	}
	return pace.Priority{Class: pace.Foremost, Deadline: p.deadline}
}

func newPatch(node *corev1.Node) *nodePatch {
	p := &nodePatch{}
	p.Metadata.UID = node.UID
	p.Metadata.ResourceVersion = node.ResourceVersion
	p.Metadata.Labels = map[string]*string{}
	p.Metadata.Annotations = map[string]*string{}
	return p
}

// cordon is the patch that makes the node unschedulable, marks it, and writes the intent.
// The intent records only what the node did not have before. A node that is held back
// gets only the intent.
func cordon(node *corev1.Node, i intent.Intent, marks CordonOptions) (intent.Intent, *nodePatch, error) {
	p := newPatch(node)
	i.BootID = cmp.Or(i.BootID, node.Status.NodeInfo.BootID)
	if i.HeldBack {
		return i, p, p.write(i)
	}
	if !node.Spec.Unschedulable && i.Uncordoned < 2 {
		i.Cordoned, i.CordonedAt = true, time.Now().UTC()
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
			if !slices.Contains(i.Taints, key) {
				i.Taints = append(slices.Clone(i.Taints), key)
			}
		}
		if len(taints) > len(node.Spec.Taints) {
			p.Spec.Taints = &taints
		}
	}
	if exclude := marks.ExcludeFromLoadBalancers; exclude != nil && !Excluded(node) && exclude(i) {
		i.Excluded = true
		p.Metadata.Labels[excludeLabel] = new(excludeValue)
	}
	return i, p, p.write(i)
}

// write adds the intent and its state to the patch.
func (p *nodePatch) write(i intent.Intent) error {
	p.deadline = i.Deadline()
	text, err := i.Encode()
	if err != nil {
		return fmt.Errorf("write the intent: %w", err)
	}
	state := StateDraining
	switch {
	case i.Finished():
		state = stateOf(i.Outcome)
	case i.HeldBack:
		state = StateWaiting
	}
	p.Metadata.Annotations[IntentAnnotation] = new(text)
	p.Metadata.Labels[StateLabel], p.Metadata.Labels[KindLabel] = new(state), nil
	if kind := i.Cause().Kind; slices.Contains(notice.Kinds, kind) { // a kubelet can write another one
		p.Metadata.Labels[KindLabel] = new(kind.Dashed())
	}
	if len(i.Entries) == 0 { // no notice asks for anything
		p.Metadata.Labels[StateLabel] = nil
	}
	return nil
}

// uncordon is the patch that undoes what the intent says that we did. The intent keeps its past notices, and what is
// known of the episode that the node has carried. The out-of-service taint stays, because only EC2 knows whether it is
// right.
func uncordon(node *corev1.Node, carried, i intent.Intent) (*nodePatch, error) {
	p, now := newPatch(node), time.Now().UTC()
	if i.Cordoned && node.Spec.Unschedulable {
		p.Spec.Unschedulable = new(false)
	}
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.Contains(i.Taints, t.Key)
	})
	if len(taints) < len(node.Spec.Taints) {
		p.Spec.Taints = &taints
	}
	left := intent.Intent{
		Version: intent.Version, Queue: i.Queue, Past: i.Past, OutOfServiceAt: i.OutOfServiceAt, FinishedAt: now,
		Last: carried.Memory(now),
	}
	if i.HeldBack && len(i.Entries) > 0 { // what is left is ahead
		left = i
		left.Cordoned, left.Taints, left.Excluded = false, nil, false
		if carried.Finished() {
			left.Last = carried.Memory(now)
		}
	}
	err := p.write(left)
	if i.Excluded && node.Labels[excludeLabel] == excludeValue {
		p.Metadata.Labels[excludeLabel] = nil
	}
	return p, err
}

// outOfServiceTaint is the patch that adds or removes our out-of-service taint.
// Because of this taint Kubernetes detaches the volumes of a node that is shut down.
// https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/
func outOfServiceTaint(node *corev1.Node, i intent.Intent, on bool, now time.Time) (*nodePatch, error) {
	p := newPatch(node)
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), isOurOutOfService)
	i.OutOfServiceAt = time.Time{}
	if on {
		i.OutOfServiceAt = now
		taints = append(taints, corev1.Taint{Key: outOfService, Value: outOfServiceVal, Effect: corev1.TaintEffectNoExecute})
	}
	p.Spec.Taints = &taints
	return p, p.write(i)
}

// Excluded reports whether the node has the label that keeps load balancers from it, whatever its value.
func Excluded(node *corev1.Node) bool {
	_, there := node.Labels[excludeLabel]
	return there
}

func hasKey(key string) func(corev1.Taint) bool {
	return func(t corev1.Taint) bool { return t.Key == key }
}

// isOurOutOfService reports whether this controller set an out-of-service taint.
// NodeRestriction forbids kubelets to write taints, so the value is a proof.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
func isOurOutOfService(t corev1.Taint) bool {
	return t.Key == outOfService && t.Value == outOfServiceVal
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
