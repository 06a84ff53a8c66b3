package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// awaitOtherNodes waits until the hooks of the instance can be completed, and an instance that was replaced be
// terminated: an instance may have more Nodes than this one. The pods of all its Nodes have to leave first. If the Node
// was deleted and its instance still runs, the next Node of the instance gets the notices
// and the hooks; its drain is returned as next, and does the rest.
func (c *Controller) awaitOtherNodes(
	ctx context.Context, log *slog.Logger, nd *nodeDrain,
) (next *nodeDrain, err error) {
	if nd.ref.Instance == "" {
		return nil, nil
	}
	begin, logged := time.Now(), false
	for {
		changed := c.Cluster.Changed()
		carried, ours := nd.current()
		_, there := c.Cluster.Look(nd.ref)
		switch {
		case isClosed(nd.instanceGone.done):
			return nil, nil
		case there && len(carried.Hooks) == 0:
			if with, theirs := c.otherWithHooks(nd); with != nil {
				// If the Node of the others is deleted, another Node gets the hooks: this one maybe.
				nd.say(overview.Completing, waitsForNode([]*nodeDrain{with}))
				if err := awaitAny(ctx, with.done, theirs, ours, nd.instanceGone.done); err != nil {
					return nil, err
				}
				continue
			}
			if !carried.Replacement.EndsOwn() {
				return nil, nil
			}
		case !there:
			if next, done, err := c.passOn(ctx, log, nd, carried); done || err != nil {
				return next, err
			}
		}
		others := c.othersWithPods(nd) // after passOn, which makes requests
		switch {
		case len(others) > 0 && hooksEnd(carried):
			return nil, nil
		case len(others) > 0:
		case there:
			return nil, nil
		default:
			if over, err := c.noNodeExpected(ctx, log, nd, carried, begin); over || err != nil {
				return nil, err
			}
			until := c.nextNodeUntil(carried, begin)
			nd.say(overview.Completing, waitsForNextNode(until))
			if !logged {
				logged = true
				log.Info("the Node was deleted and its instance runs: the next Node gets the notices", "until", until)
			}
		}
		var emptied <-chan struct{}
		if len(others) > 0 {
			emptied = others[0].podsGone.done
			nd.say(overview.Completing, waitsForNode(others))
		}
		wait := answerKeptShort
		if end := carried.HookDeadline(); !end.IsZero() {
			wait = min(wait, max(0, time.Until(end)))
		}
		later, cancel := context.WithTimeout(ctx, wait)
		_ = awaitAny(ctx, changed, emptied, nd.instanceGone.done, later.Done())
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// hooksEnd reports whether a hook ends by itself now: nothing is gained if it is not completed, and the group may
// do something else with the instance then.
func hooksEnd(i intent.Intent) bool {
	end := i.HookDeadline()
	return !end.IsZero() && !time.Now().Before(end)
}

// passOn gives the notices and hooks of a deleted Node to the next Node of its instance. It
// returns the drain of that Node. done: there is one, or that Node has finished before; it
// may never have carried the hooks, so that they are completed here.
func (c *Controller) passOn(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, carried intent.Intent,
) (next *nodeDrain, done bool, err error) {
	nodes := c.Cluster.ByInstance(nd.ref.Instance)
	if len(nodes) == 0 {
		return nil, false, nil
	}
	next, err = c.inform(ctx, log, func() []intent.Intent { return []intent.Intent{carried} }, nodes[0])
	if err != nil || next == nil {
		return nil, err == nil && doneOn(nodes[0], carried), err
	}
	carried.Hooks = nil // the other drain completes them
	nd.setIntent(carried)
	return next, true, nil
}

// awaitAny waits until one of the channels is closed, or returns the cause of ctx. A nil
// channel is never closed.
func awaitAny(ctx context.Context, a, b, c, d <-chan struct{}) error {
	select {
	case <-a:
	case <-b:
	case <-c:
	case <-d:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// doneOn reports whether the Node has finished all that the intent asks for.
func doneOn(node *corev1.Node, carried intent.Intent) bool {
	i, ok, err := cluster.ReadIntent(node)
	return ok && err == nil && i.Finished() &&
		!slices.ContainsFunc(carried.Entries, func(e intent.Entry) bool { return !i.Covers(e) })
}

// noNodeExpected reports whether the instance will get no further Node: it has one, it does
// not run, or the time is over.
func (c *Controller) noNodeExpected(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, carried intent.Intent, begin time.Time,
) (over bool, err error) {
	if len(c.Cluster.ByInstance(nd.ref.Instance)) > 0 || !time.Now().Before(c.nextNodeUntil(carried, begin)) {
		return true, nil
	}
	inst, known, err := c.ask(ctx, log, "look up the instance whose Node went", nd.ref.Instance, answerFresh)
	return !known || !alive(inst), err
}

// nextNodeUntil is how long the next Node of an instance is waited for. While an Auto Scaling
// group waits for a hook, that is no longer than for an instance that never joined.
func (c *Controller) nextNodeUntil(i intent.Intent, begin time.Time) time.Time {
	if len(i.Hooks) > 0 {
		return intent.Earlier(begin.Add(c.NodeGracePeriod), i.Deadline())
	}
	return intent.Earlier(begin.Add(decision.Young), i.Deadline())
}

// otherWithHooks returns the drain of another Node of the instance that has hooks to
// complete, and a channel that is closed when its intent changes; nil if there is none.
func (c *Controller) otherWithHooks(nd *nodeDrain) (with *nodeDrain, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.drains {
		if other == nd || other.ref.Instance != nd.ref.Instance {
			continue
		}
		if i, changed := other.current(); len(i.Hooks) > 0 {
			return other, changed
		}
	}
	return nil, nil
}

// hooksOnOthers are the hooks of the instance that its other Nodes carry.
func (c *Controller) hooksOnOthers(ref cluster.Ref) (hooks []intent.Hook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.drains {
		if other.ref.UID != ref.UID && other.ref.Instance == ref.Instance && ref.Instance != "" {
			i, _ := other.current()
			hooks = append(hooks, i.Hooks...)
		}
	}
	return hooks
}

// othersWithPods are the drains of other Nodes of the instance whose pods have not left.
func (c *Controller) othersWithPods(nd *nodeDrain) []*nodeDrain {
	c.mu.Lock()
	defer c.mu.Unlock()
	var others []*nodeDrain
	for _, other := range c.drains {
		if other != nd && other.ref.Instance == nd.ref.Instance && !isClosed(other.podsGone.done) {
			others = append(others, other)
		}
	}
	return others
}

// intents are those of the other Nodes of the instance. It also asks the drains: the watch
// may be behind.
func (c *Controller) intents(ref cluster.Ref) []intent.Intent {
	intents := c.Cluster.Intents(ref)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, nd := range c.drains {
		if nd.ref.Instance != ref.Instance || nd.ref.UID == ref.UID {
			continue
		}
		if i, _ := nd.current(); i.Version > 0 {
			i.Hooks = nil
			intents = append(intents, i)
		}
	}
	return intents
}

// isDraining reports whether another Node of the instance, present or deleted, is being drained.
func (c *Controller) isDraining(ref cluster.Ref) bool {
	return slices.ContainsFunc(c.Cluster.Intents(ref), func(i intent.Intent) bool { return !i.Finished() && !i.HeldBack })
}

// informNewNodes records the notices of an instance on each Node that the instance gets after
// or beside another one.
func (c *Controller) informNewNodes(ctx context.Context) {
	c.atEachChange(ctx, func() error {
		for _, ref := range c.Cluster.NodesToInform() {
			node, there := c.Cluster.Look(ref)
			if !there {
				continue
			}
			intents := func() []intent.Intent { return c.intents(ref) }
			if _, err := c.inform(ctx, c.Log.With("instance", ref.Instance), intents, node); err != nil {
				return err
			}
		}
		return nil
	})
}

// inform records what intents carry on a Node of the same instance: the notices that are
// still in force, and the hooks of unfinished drains. It returns the drain of the node; nil if
// nothing is left to do. A notice is not in force if it is older than the last launch of the
// instance, or if intents, asked again, does not return it any more.
func (c *Controller) inform(
	ctx context.Context, log *slog.Logger, intents func() []intent.Intent, node *corev1.Node,
) (next *nodeDrain, err error) {
	ref, now := cluster.RefOf(node), time.Now()
	type pending struct {
		entry intent.Entry
		hook  *intent.Hook
	}
	var all []pending
	for _, i := range intents() {
		i = i.SinceBoot(cluster.BootID(node), true, now)
		hooks := i.Hooks
		for _, e := range i.Pending(now) {
			for e.Kind == notice.ASGTerminate && len(hooks) > 0 {
				all = append(all, pending{e, &hooks[0]})
				hooks = hooks[1:]
			}
			all = append(all, pending{e, nil})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	launched, err := c.launchOf(ctx, log, ref.Instance)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.hook == nil && n.entry.Before(launched) {
			continue
		}
		void := func() bool {
			return !slices.ContainsFunc(intents(), func(i intent.Intent) bool { return i.HasPending(n.entry, time.Now()) })
		}
		nd, err := c.recordOn(ctx, log, ref, &n.entry, n.hook, decision.WhyNextNode, void)
		switch {
		case errors.Is(err, cluster.ErrNodeGone):
			return nil, nil
		case ctx.Err() == nil && errors.Is(err, errOutdated):
			return c.inform(ctx, log, intents, node)
		case err != nil:
			return nil, err
		case nd != nil:
			next = nd
			log.Info("another Node of the instance gets the notice", "node", ref.Name, "kind", n.entry.Kind)
		}
	}
	return next, nil
}
