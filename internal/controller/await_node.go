package controller

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// pause waits for a change, for lookup.KeptShort, or for until, whichever comes first. It
// returns the cause of ctx if ctx ends.
func pause(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	timer := time.NewTimer(min(lookup.KeptShort, max(0, time.Until(until))))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
	case <-timer.C:
	}
	return nil
}

// awaitNode waits until an instance of ours has its Node, or is gone, or t.HoldUntil has
// passed, and returns what to do then. The hook of the notice is held open meanwhile.
func (c *Controller) awaitNode(ctx context.Context, log logr.Logger, t *task) (next *task, err error) {
	defer c.count(*t.n, t.Deadline)()
	defer c.holdOpen(ctx, t.hook(), *t.n)()
	for {
		changed := c.Cluster.Changed()
		next, err = c.resolveAndDecide(ctx, log, t.n, t.id, lookup.KeptShort)
		if err != nil || next.Action != decision.Hold {
			return next, err
		}
		if !time.Now().Before(t.HoldUntil) {
			next.Action = c.WithoutNode(*t.n)
			return next, nil
		}
		if err := pause(ctx, changed, t.HoldUntil); err != nil {
			return next, err
		}
	}
}

// awaitReady completes a launch hook once the Node of the instance is ready, or the instance
// is gone. If the node is not ready by the deadline of the hook, the default result of the
// hook decides. An instance in a warm pool is an exception: it may join no cluster from
// there, and so its hook is completed.
func (c *Controller) awaitReady(ctx context.Context, log logr.Logger, t *task) error {
	n, id, d := *t.n, t.id, &t.Decision
	defer c.count(n, d.Deadline)()
	for {
		changed := c.Cluster.Changed()
		next, err := c.resolveAndDecide(ctx, log, t.n, id, lookup.KeptShort)
		if err != nil {
			return err
		}
		found := next.found
		if next.Action == decision.Launch {
			d.Deadline = next.Deadline // the limits of the hook may have been read by now
		}
		late := !time.Now().Before(d.Deadline)
		switch {
		case next.Action == decision.Launch && found.Ready && c.hasRestarted(n, found):
			if err := c.backInService(ctx, log, n, found); err != nil {
				return err
			}
			fallthrough
		case next.Action == decision.Complete, late && n.Hook.Destination == notice.WarmPool:
			hook := hookOf(&n, id, d)
			hook.Assumed = true // that it is gone by then is no loss: the node is ready
			return c.Registry.Complete(ctx, log.WithValues("node", found.Ref().Name, "ready", found.Ready), hook)
		case late:
			logging.Warn(log, "the node is not ready at the hook's deadline: its default result decides",
				"node", found.Ref().Name)
			return nil
		}
		if err := pause(ctx, changed, d.Deadline); err != nil {
			return err
		}
	}
}

// hasRestarted reports whether what a Node says is of after the launch that the notice tells of. A
// machine that gets another root volume reboots, in less time maybe than a kubelet can be silent
// before its node is not ready.
func (c *Controller) hasRestarted(n notice.Notice, f lookup.Found) bool {
	const silence = time.Minute // a kubelet that was silent for so long is not ready
	node, there := c.Cluster.Look(f.Ref())
	waits := slices.ContainsFunc(f.Intent.Entries, func(e intent.Entry) bool { return e.Returns })
	return n.Hook.Action != notice.ReplaceRootVolume || !there || !waits ||
		f.Intent.BootID != "" && cluster.BootID(node) != f.Intent.BootID ||
		cluster.ReadySince(node).After(n.Time) || time.Since(n.Time) > silence
}

// backInService reverts what was done to the nodes in earlier lives of the instance,
// because its Auto Scaling group wants it again. Notices after the last launch stay, except
// for a termination that ended in a warm pool whose instances keep running. Where the role
// has no permission to ask EC2, the open launch hook counts as the launch.
func (c *Controller) backInService(ctx context.Context, log logr.Logger, n notice.Notice, f lookup.Found) error {
	intents := append(c.Registry.Intents(f.Ref()), f.Intent) // also of a Node that was deleted: its next Node would get it
	if !slices.ContainsFunc(intents, func(i intent.Intent) bool { return len(i.Entries) > 0 }) {
		return nil
	}
	id := f.Ref().Instance
	launched, err := c.Lookup.LaunchOf(ctx, log, id)
	if err != nil {
		return err
	}
	fromPool := func(e intent.Entry) bool {
		// EC2 may not be asked. Another root volume is no launch: the machine ends as it was told before.
		unknown := launched.IsZero() && e.Kind != notice.ScheduledChange && n.Hook.Action != notice.ReplaceRootVolume
		return e.Before(n.Time) && (e.Kind == notice.ASGTerminate || unknown)
	}
	waits := false
	if slices.ContainsFunc(intents, func(i intent.Intent) bool {
		left := i.SinceLaunch(launched)
		return len(left.Hooks) == 0 && slices.ContainsFunc(left.Entries, fromPool)
	}) {
		// Anybody who can send messages could claim that: Auto Scaling has to confirm it.
		err := cluster.Retry(ctx, log, "ask for the launch hook", func(ctx context.Context) (err error) {
			waits, err = c.Hooks.Waits(ctx, hookOf(&n, id, &decision.Decision{}))
			return err
		})
		if err != nil {
			return err
		}
	}
	since := func(i intent.Intent) intent.Intent {
		if i = i.SinceLaunch(launched); waits && len(i.Hooks) == 0 {
			i = i.Forget(fromPool)
		}
		return i
	}
	c.Cluster.ChangeRemembered(id, since)
	for _, ref := range f.Refs {
		if err := c.Registry.Revert(ctx, log, ref, decision.WhyBackInService, since); err != nil {
			return err
		}
	}
	return nil
}
