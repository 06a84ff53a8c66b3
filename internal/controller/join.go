package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// join makes all Nodes of the instance carry the notice, and waits for the end of their drains. The first Node that has
// something left to do carries the hook; the end of its drain completes it. Where none has, the hook is completed here:
// the Node that carried it may be gone, and the process that remembered it too.
func (t *task) join(ctx context.Context) error {
	joined, hook, err := t.recordOnAll(ctx)
	switch {
	case err != nil:
		return err
	case hook == hookPending && len(joined) == 0:
		return t.completeUncarried(ctx)
	case hook == hookLeftOut:
		logging.Warn(t.log, "the node carries too many lifecycle hooks: this one is completed when its message is done",
			"hook", t.n.Hook.Name, "group", t.n.Hook.Group)
		return t.completeLeftOut(ctx, joined)
	}
	return t.awaitAll(ctx, joined)
}

// completeLeftOut holds a hook open that no Node carries, until the end of the drains, and completes it. The message
// alone tells of the hook, and so is kept until then.
func (t *task) completeLeftOut(ctx context.Context, drains []*nodedrain.Drain) error {
	release := t.holdOpen(ctx)
	defer release()
	defer t.count(t.Deadline)()
	t.HoldUntil = time.Time{}
	if err := t.awaitAll(ctx, drains); err != nil {
		return err
	}
	release()
	return t.c.Registry.Complete(ctx, t.log, t.hook())
}

// hookPlace says where the hook of a notice is.
type hookPlace uint8

const (
	hookRecorded hookPlace = iota // on a Node, or there is none of ours
	hookPending                   // on no Node
	hookLeftOut                   // on no Node, because the Node carries too many, nearly all forged
)

// recordOnAll records a notice on all Nodes of its instance. It returns their drains, but
// for those that have nothing left to do.
func (t *task) recordOnAll(ctx context.Context) (joined []*nodedrain.Drain, place hookPlace, err error) {
	entry := new(t.Entry(*t.n, time.Now()))
	var hook *intent.Hook // to be recorded; nil: there is none of ours, or it is recorded
	if t.c.Owns(t.n.Hook) {
		hook, place = new(t.hook()), hookPending
	}
	refs := t.found.Refs
	for k := 0; k < len(refs); k++ {
		ref := refs[k]
		void := func() bool { return t.c.decider.cancelled.has(*t.n, t.id) }
		n := &nodedrain.News{Entry: entry, Hook: hook, Why: t.Why, Void: void}
		nd, err := t.c.Registry.Record(ctx, t.log, ref, n)
		switch {
		case errors.Is(err, cluster.ErrNodeGone) && k > 0:
		case err != nil:
			return nil, place, err
		case nd == nil:
			t.log.V(1).Info("nothing is left to do for this event", "node", ref.Name)
		default:
			joined = append(joined, nd)
			if hook != nil {
				place = hookLeftOut
				if nd.Carries(hook) {
					place = hookRecorded
				}
				hook = nil
			}
		}
		if k == len(refs)-1 { // a Node may have come that did not find the notice on the others
			refs = t.andNew(refs)
		}
	}
	return joined, place, nil
}

// awaitAll waits for the end of all drains, but no longer than HoldUntil, and until Nodes carry the rest; zero: as long
// as it takes.
func (t *task) awaitAll(ctx context.Context, drains []*nodedrain.Drain) (err error) {
	var late <-chan time.Time
	if !t.HoldUntil.IsZero() {
		timer := time.NewTimer(time.Until(t.HoldUntil))
		defer timer.Stop()
		late = timer.C
	}
	var names []string
	for _, nd := range drains {
		names = append(names, nd.Ref().Name)
	}
	// A goroutine dump tells which nodes a message waits for.
	pprof.Do(ctx, pprof.Labels("node", strings.Join(names, " ")), func(ctx context.Context) {
		for len(drains) > 0 {
			nd := drains[0]
			select {
			case <-nd.Done():
				if err = nd.Err(); err != nil {
					return
				}
				drains = drains[1:]
			case <-late:
				if slices.ContainsFunc(drains, func(nd *nodedrain.Drain) bool { return !t.isCarried(nd) }) {
					late = time.After(lookup.KeptShort)
					continue
				}
				t.log.Info("the message is deleted, and the drain continues: the node carries the intent", "node", nd.Ref().Name)
				return
			case <-ctx.Done():
				err = context.Cause(ctx)
				return
			}
		}
	})
	return err
}

// isCarried reports whether a Node carries what a drain is for, as the watch says: its own or, if that was deleted, the
// next Node of its instance. Otherwise it is remembered here alone.
func (t *task) isCarried(nd *nodedrain.Drain) bool {
	if node, there := t.c.Cluster.Look(nd.Ref()); there {
		return lookup.CarriesNotice(node)
	}
	return slices.ContainsFunc(t.c.Cluster.ByInstance(nd.Ref().Instance), lookup.CarriesNotice)
}

// andNew adds the Nodes that the instance has got since.
func (t *task) andNew(refs []cluster.Ref) []cluster.Ref {
	for _, node := range t.c.Cluster.ByInstance(t.id) {
		if !slices.ContainsFunc(refs, func(ref cluster.Ref) bool { return ref.UID == node.UID }) {
			refs = append(refs, cluster.RefOf(node))
		}
	}
	return refs
}
