package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// join makes all Nodes of the instance carry the notice, and waits for the end of their drains. The first Node that has
// something left to do carries the hook; the end of its drain completes it. Where none has, the hook is completed here:
// the Node that carried it may be gone, and the process that remembered it too.
func (c *Controller) join(ctx context.Context, log logr.Logger, t *task) error {
	joined, hook, err := c.recordOnAll(ctx, log, t)
	switch {
	case err != nil:
		return err
	case hook == hookPending && len(joined) == 0:
		return c.completeUncarried(ctx, log, t)
	case hook == hookLeftOut:
		logging.Warn(log, "the node carries too many lifecycle hooks: this one is completed when its message is done",
			"hook", t.n.Hook.Name, "group", t.n.Hook.Group)
		return c.completeLeftOut(ctx, log, t, joined)
	}
	_, err = c.awaitAll(ctx, log, joined, t.HoldUntil)
	return err
}

// completeLeftOut holds a hook open that no Node carries, until the end of the drains, and completes it.
func (c *Controller) completeLeftOut(ctx context.Context, log logr.Logger, t *task, drains []*nodedrain.Drain) error {
	release := c.holdOpen(ctx, t.hook(), *t.n)
	defer release()
	defer c.count(*t.n, t.Deadline)()
	if ended, err := c.awaitAll(ctx, log, drains, t.HoldUntil); err != nil || !ended {
		return err
	}
	release()
	return c.Registry.Complete(ctx, log, t.hook())
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
func (c *Controller) recordOnAll(
	ctx context.Context, log logr.Logger, t *task,
) (joined []*nodedrain.Drain, place hookPlace, err error) {
	entry := new(t.Entry(*t.n, time.Now()))
	var hook *intent.Hook // to be recorded; nil: there is none of ours, or it is recorded
	if c.Owns(t.n.Hook) {
		hook, place = new(t.hook()), hookPending
	}
	refs := t.found.Refs
	for k := 0; k < len(refs); k++ {
		ref := refs[k]
		n := &nodedrain.News{Entry: entry, Hook: hook, Why: t.Why, Void: func() bool { return c.cancelled.has(*t.n, t.id) }}
		nd, err := c.Registry.Record(ctx, log, ref, n)
		switch {
		case errors.Is(err, cluster.ErrNodeGone) && k > 0:
		case err != nil:
			return nil, place, err
		case nd == nil:
			log.V(1).Info("nothing is left to do for this event", "node", ref.Name)
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
			refs = c.andNew(refs, t.id)
		}
	}
	return joined, place, nil
}

// awaitAll waits for the end of all drains, but no longer than until, and until Nodes carry the rest; zero: as long as
// it takes. ended is false where that was too long.
func (c *Controller) awaitAll(
	ctx context.Context, log logr.Logger, drains []*nodedrain.Drain, until time.Time,
) (ended bool, err error) {
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
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
				if slices.ContainsFunc(drains, func(nd *nodedrain.Drain) bool { return !c.isCarried(nd) }) {
					late = time.After(lookup.KeptShort)
					continue
				}
				log.Info("the message is deleted, and the drain continues: the node carries the intent", "node", nd.Ref().Name)
				return
			case <-ctx.Done():
				err = context.Cause(ctx)
				return
			}
		}
		ended = true
	})
	return ended, err
}

// isCarried reports whether a Node carries what a drain is for, as the watch says: its own or, if that was deleted, the
// next Node of its instance. Otherwise it is remembered here alone.
func (c *Controller) isCarried(nd *nodedrain.Drain) bool {
	if node, there := c.Cluster.Look(nd.Ref()); there {
		return lookup.CarriesNotice(node)
	}
	return slices.ContainsFunc(c.Cluster.ByInstance(nd.Ref().Instance), lookup.CarriesNotice)
}

// andNew adds the Nodes that the instance has got since.
func (c *Controller) andNew(refs []cluster.Ref, id string) []cluster.Ref {
	for _, node := range c.Cluster.ByInstance(id) {
		if !slices.ContainsFunc(refs, func(ref cluster.Ref) bool { return ref.UID == node.UID }) {
			refs = append(refs, cluster.RefOf(node))
		}
	}
	return refs
}
