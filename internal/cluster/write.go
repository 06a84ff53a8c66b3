package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
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

// Undo changes the node's intent. If no notice remains in the intent, or change holds back what remains, Undo reverts
// what the intent says that we did, and returns true. The intent keeps its past notices.
func (c *Cluster) Undo(ctx context.Context, ref Ref, change Change) (undone bool, err error) {
	err = c.update(ctx, ref, func(node *corev1.Node, carried, old intent.Intent, found bool) (*nodePatch, error) {
		undone = false
		next := c.owned(change(old))
		next.Version = intent.Version
		if len(next.Entries) == 0 {
			next.Instance = ""
		}
		done := len(carried.Entries) > 0 || old.Cordoned || old.Excluded || len(old.Taints) > 0
		if done && (len(next.Entries) == 0 || next.HeldBack && !carried.HeldBack) {
			undone = true
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
// there is none, or where it cannot be read, and must have no effects of its own: it may be called again. A report
// without notices and answers is removed.
func (c *Cluster) Report(ctx context.Context, ref Ref, change func(notice.Report) notice.Report) error {
	return c.update(ctx, ref, func(node *corev1.Node, _, _ intent.Intent, _ bool) (*nodePatch, error) {
		before, err := ReadReport(node)
		if err != nil {
			before = notice.Report{}
		}
		var text *string
		if next := change(before); len(next.Notices)+len(next.Answered) > 0 {
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
		leave, err := c.gate.Enter(ctx, priority)
		if err != nil {
			return fmt.Errorf("patch node %s: %w: %w", ref.Name, ErrNoTurn, err)
		}
		_, err = c.client.CoreV1().Nodes().Patch(ctx, ref.Name, types.MergePatchType, body, metav1.PatchOptions{})
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

// patchOf returns the body of the patch that build returns for a node, and its priority at the gate; nil: nothing is
// to be written. In a storm thousands of patches wait at the gate, so the intents stay out of the stack of update.
func patchOf(node *corev1.Node, ref Ref, build builder) ([]byte, pace.Priority, error) {
	// An annotation that cannot be read is replaced: the notice at hand counts more.
	carried, found, err := readAnnotation(node)
	if err != nil {
		carried, found = intent.Intent{}, false
	}
	old := holding(forInstance(carried, cmp.Or(InstanceID(node), ref.Instance)), node, time.Now())
	patch, err := build(node, carried, old, found)
	if err != nil || patch == nil {
		return nil, pace.Priority{}, err
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, pace.Priority{}, fmt.Errorf("patch node %s: %w", ref.Name, err)
	}
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
