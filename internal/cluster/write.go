package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// A Change makes an intent of the one that a node carries, which is zero if there is none. It must have no side effect,
// because it is called again if somebody else wrote the node meanwhile.
type Change = func(intent.Intent) intent.Intent

// Record changes the node's intent, and cordons, marks and annotates the node in one
// patch. It returns the intent that the node now carries. An unchanged intent writes nothing.
// Record returns ErrNodeGone if the node was deleted before the patch.
func (c *Cluster) Record(ctx context.Context, ref Ref, change Change) (*intent.Intent, error) {
	var written intent.Intent
	ref = c.Identify(ref)
	err := c.update(ctx, ref, func(node *corev1.Node, carried, old intent.Intent, found bool) (*nodePatch, error) {
		next := c.owned(change(old.CountUncordon(node.Spec.Unschedulable)))
		next.Version = intent.Version // also if somebody has removed the annotation
		if next.Instance = cmp.Or(ref.Instance, next.Instance); InstanceID(node) != "" {
			next.Instance = ""
		}
		if carried.Finished() && !next.Finished() && len(carried.Entries) > 0 {
			next.Last = carried.Memory(time.Now().UTC())
		}
		if found && same(carried, next) {
			written = next
			return nil, nil
		}
		var p *nodePatch
		var err error
		if next.Finished() { // do not cordon again: somebody may have uncordoned it on purpose
			p = newPatch(node)
			written, err = next, p.write(next)
			p.mark = next.Outcome == intent.Drained || next.Outcome == intent.Gone
		} else {
			written, p, err = cordon(node, next, c.options)
		}
		return p, err
	})
	return &written, err
}

// owned is an intent that has a queue. One that has another queue's does not get ours too: who hears
// that something is over does not drain the node.
func (c *Cluster) owned(i intent.Intent) intent.Intent {
	if i.Queue == "" {
		return c.Joined(i)
	}
	return i
}

// An Undoing is what [Cluster.Undo] has undone.
type Undoing uint8

// What there is to undo.
const (
	NothingUndone Undoing = iota // notices remain that ask for it
	Undone                       // all but a cordon: somebody else has cordoned the node, or nobody
	Uncordoned                   // all, and the node takes pods again
)

// Undo changes the node's intent. If no notice remains in the intent, or change holds back what remains, Undo reverts
// what the intent says that we did. The intent keeps its past notices.
func (c *Cluster) Undo(ctx context.Context, ref Ref, change Change) (undone Undoing, err error) {
	err = c.update(ctx, ref, func(node *corev1.Node, carried, old intent.Intent, found bool) (*nodePatch, error) {
		undone = NothingUndone
		next := c.owned(change(old))
		next.Version = intent.Version
		if len(next.Entries) == 0 {
			next.Instance = ""
		}
		done := len(carried.Entries) > 0 || old.Cordoned || old.Excluded || len(old.Taints) > 0
		if done && (len(next.Entries) == 0 || next.HeldBack && !carried.HeldBack) {
			undone = Undone
			if next.Cordoned && node.Spec.Unschedulable {
				undone = Uncordoned
			}
			return uncordon(node, carried, next)
		}
		if found && same(carried, next) || !found && len(next.Past) == 0 {
			return nil, nil
		}
		if !found { // nothing was done, and there is nothing to do
			next.FinishedAt = time.Now().UTC()
		}
		p := newPatch(node)
		if stale := staleTaints(next); len(stale) > 0 {
			p.Spec.Taints = new(slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
				return slices.Contains(stale, t.Key)
			}))
			next.Taints = slices.DeleteFunc(slices.Clone(next.Taints), func(key string) bool {
				return slices.Contains(stale, key)
			})
		}
		return p, p.write(next)
	})
	return undone, err
}

// staleTaints are the keys of our taints for what is over.
func staleTaints(i intent.Intent) (keys []string) {
	for _, kind := range notice.Kinds {
		if key := taintKey(kind); kind.CanEnd() && !i.Has(kind) && slices.Contains(i.Taints, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Report changes what the node carries of notices that its instance metadata has told. change gets a zero Report where
// there is none, or where it cannot be read, and must have no effects of its own: it may be called again. One that is
// empty is removed.
func (c *Cluster) Report(ctx context.Context, ref Ref, change func(notice.Report) notice.Report) error {
	return c.update(ctx, ref, func(node *corev1.Node, _, _ intent.Intent, _ bool) (*nodePatch, error) {
		before, err := ReadReport(node)
		if err != nil {
			before = notice.Report{}
		}
		var text *string
		if next := change(before); !next.IsEmpty() {
			encoded, err := next.Encode()
			if err != nil {
				return nil, fmt.Errorf("write the report: %w", err)
			}
			text = &encoded
		}
		present, there := node.Annotations[ReportAnnotation]
		if there == (text != nil) && present == ptr.Deref(text, "") {
			return nil, nil
		}
		p := newPatch(node)
		p.Metadata.Annotations[ReportAnnotation] = text
		return p, nil
	})
}

// SetOutOfService adds the out-of-service taint, or removes ours. The taint's value proves
// that it is ours. An annotation would prove nothing, because a kubelet may write it.
func (c *Cluster) SetOutOfService(ctx context.Context, ref Ref, on bool) error {
	return c.update(ctx, ref, func(node *corev1.Node, _, old intent.Intent, _ bool) (*nodePatch, error) {
		if on && slices.ContainsFunc(node.Spec.Taints, hasKey(outOfService)) ||
			!on && !slices.ContainsFunc(node.Spec.Taints, isOurOutOfService) {
			return nil, nil
		}
		now := time.Now().UTC()
		if old.Version == 0 { // a node without an intent gets a finished one: there is nothing to drain
			old = intent.Intent{Version: intent.Version, Queue: c.queue, CordonedAt: now, FinishedAt: now}
		}
		return outOfServiceTaint(node, old, on, now)
	})
}

// A builder returns the patch of a node; nil: nothing is to be written. It gets the intent as the node carries it, then
// what of it is still true (see holding), and whether the node carries one.
type builder func(node *corev1.Node, carried, old intent.Intent, found bool) (*nodePatch, error)

// update patches a node with the patch that build returns.
// The first try uses the node from the watch. If that was behind, or there seems to be
// nothing to write, update reads the node and tries again.
// After three conflicts update returns the error: try again later.
func (c *Cluster) update(ctx context.Context, ref Ref, build builder) error {
	ref = c.Identify(ref)
	node := c.ByName(ref.Name)
	for try, fresh := 1, false; ; try++ {
		if fresh = fresh || node == nil || node.UID != ref.UID; fresh {
			var err error
			if node, err = c.Read(ctx, ref); err != nil {
				return err
			}
		}
		body, priority, err := patchOf(node, ref, build)
		if err != nil || body == nil && fresh {
			return err
		}
		if body == nil {
			fresh = true
			continue
		}
		asked := time.Now()
		leave, err := c.gate.Enter(ctx, c.afterHanging(ref, priority))
		if err != nil {
			return fmt.Errorf("patch node %s: %w: %w", ref.Name, ErrNoTurn, err)
		}
		if time.Since(asked) >= time.Second { // else the node would carry a cordon from before the wait
			if body, _, err = patchOf(node, ref, build); err != nil || body == nil {
				leave(0)
				if err != nil || fresh {
					return err
				}
				fresh = true
				continue
			}
		}
		err = c.patch(ctx, ref, body)
		leave(0)
		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err):
			return ErrNodeGone
		case apierrors.IsConflict(err) && try < tries:
			fresh = true
		default:
			return fmt.Errorf("patch node %s: %w", ref.Name, err)
		}
	}
}

// patch patches a Node.
func (c *Cluster) patch(ctx context.Context, ref Ref, body []byte) error {
	began := time.Now()
	_, err := c.client.CoreV1().Nodes().Patch(ctx, ref.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if hung := time.Since(began) >= hangsAfter; hung || ctx.Err() == nil { // else it was cut, and tells nothing
		c.noteHang(ref, hung && !c.gate.BusySince(began))
	}
	return err
}

// afterHanging is the priority of a patch of a Node: if the last one has hung, nobody else waits for the next.
func (c *Cluster) afterHanging(ref Ref, p pace.Priority) pace.Priority {
	if c.LastHung(ref) {
		p.Hangs = true
	}
	return p
}

// patchOf returns the body of the patch that build returns for a node, and its priority at the gate; nil: nothing is
// to be written. In a storm thousands of patches wait at the gate, so the intents stay out of the stack of update.
func patchOf(node *corev1.Node, ref Ref, build builder) ([]byte, pace.Priority, error) {
	// An annotation that cannot be read is replaced: the notice at hand counts more.
	carried, found, err := readAnnotation(node)
	if err != nil {
		carried, found = intent.Intent{}, false
	}
	old := holding(carried.ForInstance(cmp.Or(InstanceID(node), ref.Instance), taintPrefix), node, time.Now())
	patch, err := build(node, carried, old, found)
	if err != nil || patch == nil {
		return nil, pace.Priority{}, err
	}
	body, _ := json.Marshal(patch) // it fails only for what is no JSON
	return body, patch.priority(), nil
}

// Read gets a node from the API server, because the watch may be behind. It returns
// ErrNodeGone if the node does not exist.
func (c *Cluster) Read(ctx context.Context, ref Ref) (*corev1.Node, error) {
	node, err := c.client.CoreV1().Nodes().Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, ErrNodeGone
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", ref.Name, err)
	case node.UID != ref.UID:
		return nil, ErrNodeGone
	}
	return node, nil
}

func same(a, b intent.Intent) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

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
	return pace.Priority{Class: pace.Foremost, Deadline: p.deadline, Lends: true}
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
		if i.Uncordoned > 0 {
			i.FirstCordonedAt = cmp.Or(i.FirstCordonedAt, i.CordonedAt)
		}
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
		Version: intent.Version, Queue: i.Queue, Past: i.Past, FinishedAt: now,
		OutOfServiceAt: i.OutOfServiceAt, ReadyAt: i.ReadyAt, Last: carried.Memory(now),
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
	i.OutOfServiceAt, i.ReadyAt = time.Time{}, time.Time{}
	if on {
		i.OutOfServiceAt, i.ReadyAt = now, ReadySince(node).UTC()
		taints = append(taints, corev1.Taint{Key: outOfService, Value: outOfServiceVal, Effect: corev1.TaintEffectNoExecute})
	}
	p.Spec.Taints = &taints
	return p, p.write(i)
}

// Excluded reports whether the node has the label, with any value, that keeps load balancers from it.
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
