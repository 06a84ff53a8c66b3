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
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// pause waits for a change, for lookup.KeptShort, or for until, whichever comes first. It
// returns the cause of ctx if ctx ends.
func pause(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	waiting, stop := context.WithTimeout(ctx, min(lookup.KeptShort, time.Until(until)))
	defer stop()
	select {
	case <-waiting.Done():
	case <-changed:
	}
	return context.Cause(ctx)
}

// awaitNode waits until an instance of ours has its Node, or is gone, or t.HoldUntil has
// passed, and returns what to do then. The hook of the notice is held open meanwhile.
func (t *task) awaitNode(ctx context.Context) (next *task, err error) {
	defer t.count()()
	if !t.found.Unsure {
		defer t.holdOpen(ctx)()
	}
	t.c.nodeless.Store(t, overview.Held{Instance: t.id, Until: t.HoldUntil})
	defer t.c.nodeless.Delete(t)
	for {
		changed := t.c.Cluster.Changed()
		next, err = t.again(ctx)
		if err != nil || next.Action != decision.Hold {
			return next, err
		}
		if !time.Now().Before(t.HoldUntil) {
			next.Action = t.c.WithoutNode(*t.n, next.found.Unsure)
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
func (t *task) awaitReady(ctx context.Context) error {
	defer t.count()()
	for {
		changed := t.c.Cluster.Changed()
		next, err := t.again(ctx)
		if err != nil {
			return err
		}
		if next.Action == decision.Launch {
			t.Deadline = next.Deadline // the limits of the hook may have been read by now
		}
		late := !time.Now().Before(t.Deadline)
		ready := next.isReady()
		if ready {
			if err := next.backInService(ctx); err != nil {
				return err
			}
		}
		// By the tag of a cluster or of this program it is another's: EC2 did not show the instance before. Without those
		// it was only taken for ours while it was young.
		isOthers := next.Why == decision.WhyForeign && (t.c.ClusterName != "" || t.c.ManagedTag != "")
		switch {
		case next.Why == decision.WhyUnmanaged, isOthers, late && next.Why == decision.WhyUnknown:
			return next.act(ctx)
		case ready, next.Action == decision.Complete, late && t.n.Hook.Destination == notice.WarmPool:
			hook := t.hook()
			hook.Assumed = true // that it is gone by then is no loss: the node is ready
			log := t.log.WithValues("node", next.found.Ref().Name, "ready", next.found.Ready)
			return t.complete(ctx, log, hook)
		case late:
			logging.Warn(t.log, "the node is not ready at the hook's deadline: its default result decides",
				"node", next.found.Ref().Name)
			return nil
		}
		if err := pause(ctx, changed, t.Deadline); err != nil {
			return err
		}
	}
}

// isReady reports whether the Node of a launch is ready, and not by what it was before the launch.
func (t *task) isReady() bool {
	return t.Action == decision.Launch && t.found.Ready && t.hasRestarted()
}

// hasRestarted reports whether what a Node says is of after the launch that the notice tells of. A
// machine that gets another root volume reboots, in less time maybe than a kubelet can be silent
// before its node is not ready.
func (t *task) hasRestarted() bool {
	const silence = time.Minute // a kubelet that was silent for so long is not ready
	node, there := t.c.Cluster.Look(t.found.Ref())
	waits := slices.ContainsFunc(t.found.Intent.Entries, func(e intent.Entry) bool { return e.Returns })
	return t.n.Hook.Action != notice.ReplaceRootVolume || there && (!waits ||
		t.found.Intent.BootID != "" && cluster.BootID(node) != t.found.Intent.BootID ||
		cluster.ReadySince(node).After(t.n.Time) || time.Since(t.n.Time) > silence)
}

// backInService reverts what was done to the nodes in earlier lives of the instance,
// because its Auto Scaling group wants it again. Notices after the last launch stay, except
// for a termination that ended in a warm pool whose instances keep running. Where the role
// has no permission to ask EC2, the open launch hook counts as the launch.
func (t *task) backInService(ctx context.Context) error {
	// Also of a Node that was deleted: its next Node would get it.
	intents := append(t.c.Registry.Intents(t.found.Ref()), t.found.Intent)
	if !slices.ContainsFunc(intents, func(i intent.Intent) bool { return len(i.Entries) > 0 }) {
		return nil
	}
	launched, err := t.c.Lookup.LaunchOf(ctx, t.log, t.id)
	if err != nil {
		return err
	}
	fromPool := func(e intent.Entry) bool {
		// The role lacks the permission to ask EC2. Another root volume is no launch: the machine still ends.
		unknown := launched.IsZero() && e.Kind != notice.ScheduledChange && t.n.Hook.Action != notice.ReplaceRootVolume
		return e.Before(t.n.Time) && (e.Kind == notice.ASGTerminate || unknown)
	}
	ended, err := t.endedHooks(ctx, intents)
	if err != nil {
		return err
	}
	sinceLaunch := func(i intent.Intent) intent.Intent {
		i.Hooks = slices.DeleteFunc(slices.Clone(i.Hooks), func(h intent.Hook) bool {
			return slices.Contains(ended, h.Action())
		})
		return i.SinceLaunch(launched)
	}
	waits := false
	if slices.ContainsFunc(intents, func(i intent.Intent) bool {
		left := sinceLaunch(i)
		return len(left.Hooks) == 0 && slices.ContainsFunc(left.Entries, fromPool)
	}) {
		// Anybody who can send messages could claim that: Auto Scaling has to confirm it.
		err := cluster.Retry(ctx, t.log, "ask for the launch hook", func(ctx context.Context) (err error) {
			waits, _, err = t.c.Hooks.Waits(ctx, hookOf(t.n, t.id))
			return err
		})
		if err != nil {
			return err
		}
	}
	since := func(i intent.Intent) intent.Intent {
		if i = sinceLaunch(i); waits && len(i.Hooks) == 0 {
			i = i.Forget(fromPool)
		}
		return i
	}
	t.c.Cluster.ChangeRemembered(t.id, since)
	return t.revert(ctx, decision.WhyBackInService, since)
}

// endedHooks are those that a Node carries and Auto Scaling has ended, though the end of its drain is not written yet.
func (t *task) endedHooks(ctx context.Context, intents []intent.Intent) (ended []intent.Hook, err error) {
	for _, i := range intents {
		for _, h := range i.Hooks {
			var over bool
			err := cluster.Retry(ctx, t.log, "ask for the termination hook", func(ctx context.Context) (err error) {
				_, over, err = t.c.Hooks.Waits(ctx, h)
				return err
			})
			if err != nil {
				return nil, err
			}
			if over {
				ended = append(ended, h.Action())
			}
		}
	}
	return ended, nil
}

// holdOpen sends heartbeats for the hook of a notice until release is called. release
// returns when no heartbeat is in flight any more.
func (t *task) holdOpen(ctx context.Context) (release func()) {
	if !t.c.Owns(t.n.Hook) {
		return func() {}
	}
	hook := t.hook()
	ctx, stop := context.WithCancel(ctx)
	held := make(chan struct{})
	go func() {
		defer close(held)
		t.c.Hooks.Hold(ctx, hook)
	}()
	return func() {
		stop()
		<-held
	}
}

// count makes the hook of the notice part of the load, until done is called.
func (t *task) count() (done func()) {
	if !t.c.Owns(t.n.Hook) {
		return func() {}
	}
	t.c.awaited.Store(t, t.Deadline)
	return func() { t.c.awaited.Delete(t) }
}

// complete completes a hook that no drain carries.
func (t *task) complete(ctx context.Context, log logr.Logger, h intent.Hook) error {
	t.c.uncarried.Store(t, h)
	defer t.c.uncarried.Delete(t)
	_, err := t.c.Registry.Complete(ctx, log, h)
	return err
}

// completeUncarried completes a hook, unless a drain carries it. That drain completes it then, and is waited for: the
// next Node of the instance is drained before. Nor does it complete one while a Node of its instance is being drained
// for another reason: the machine would go away with its pods.
func (t *task) completeUncarried(ctx context.Context) error {
	carrier, other := t.c.Registry.About(t.hook())
	if carrier != nil {
		return carrier.Await(ctx)
	}
	defer t.count()()
	if other == nil {
		return t.complete(ctx, t.log, t.hook())
	}
	defer t.holdOpen(ctx)()
	if err := other.AwaitRelease(ctx); err != nil {
		return err
	}
	return nodedrain.ErrOutdated // the Node may be another one by now
}
