package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// watchNode watches the node during its drain, until stop is called.
//
// Somebody who uncordons the node means it, or has made a mistake; nobody is to fight with
// the controller over a cordon. If the machine goes away the node is cordoned again, once.
// A drain that can wait is called off.
//
// A node that turns ready again, or has another boot id, may have been restarted: notices of
// before that may be void.
func (c *Controller) watchNode(ctx context.Context, nd *nodeDrain) (stop func()) {
	wasReady := true
	l := looker{look: func() error {
		node, there := c.Cluster.Look(nd.ref)
		if !there {
			return nil
		}
		isReady := cluster.Ready(node)
		carried, _ := nd.current()
		bootID := cluster.BootID(node)
		restarted := carried.BootID != "" && bootID != "" && bootID != carried.BootID
		if isReady && (!wasReady || restarted) {
			if err := c.forgetEarlierLife(ctx, nd); err != nil {
				return err
			}
		}
		wasReady = isReady
		if err := c.adopt(ctx, nd); err != nil {
			return err
		}
		if node.Spec.Unschedulable {
			return nil
		}
		return c.onUncordon(ctx, nd, node)
	}}
	remove := c.Cluster.OnChange(nd.ref, func() {
		if ctx.Err() == nil {
			l.changed()
		}
	})
	return func() {
		remove()
		l.running.Wait()
	}
}

// A looker looks after each change, on a goroutine of its own that ends then: one that waits for the next change would
// cost each of thousands of drains a stack. It looks once at a time, and never again after an error.
type looker struct {
	look    func() error
	running sync.WaitGroup

	mu                    sync.Mutex
	looking, again, ended bool
}

// changed has it look, soon. It does not block.
func (l *looker) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
	case l.looking:
		l.again = true
	default:
		l.looking = true
		l.running.Go(l.run)
	}
}

func (l *looker) run() {
	for more := true; more; {
		err := l.look()
		l.mu.Lock()
		l.ended = err != nil
		more, l.again = l.again && !l.ended, false
		l.looking = more
		l.mu.Unlock()
	}
}

// atEachChange calls look now and after each change of the nodes, until look returns an
// error or ctx ends.
func (c *Controller) atEachChange(ctx context.Context, look func() error) {
	for {
		changed := c.Cluster.Changed()
		if look() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// onUncordon reacts if somebody has uncordoned the node. An error means that the drain ends.
func (c *Controller) onUncordon(ctx context.Context, nd *nodeDrain, node *corev1.Node) error {
	uncordoned, times, goes := c.uncordoned(node)
	switch {
	case !uncordoned || times > 1:
		return nil
	case goes:
		return c.reread(ctx, nd)
	}
	return c.quitIf(ctx, nd, errUncordoned, func(carried intent.Intent) bool {
		now := time.Now()
		return carried.Uncordoned == times && !decision.MachineGoes(carried.Current(now), now, c.Policy)
	})
}

// quitIf ends the drain for a reason, if what the node carries is such that it ends. It asks while it
// holds the lock of the node: a notice that is being recorded is heeded, and one that comes later
// begins another drain. The error is the reason if the drain ends, or the cause of ctx.
func (c *Controller) quitIf(
	ctx context.Context, nd *nodeDrain, reason error, ends func(intent.Intent) bool,
) error {
	if err := nd.lock(ctx); err != nil {
		return err
	}
	defer nd.unlock()
	carried, _ := nd.current()
	switch {
	case !ends(carried), carried.Delegated(): // Karpenter ends the machine whatever we do
		return nil
	case isClosed(nd.quit.done): // an undo, for example
		return nd.quitReason()
	}
	nd.quitOn = &carried
	nd.quitFor(reason)
	return reason
}

// uncordoned reports whether somebody has uncordoned the node during its drain, how many times
// they had done so before, and whether the machine goes away anyway. It goes by the intent on the
// node: a node that has lost its intent is not cordoned again.
func (c *Controller) uncordoned(node *corev1.Node) (uncordoned bool, times int, goes bool) {
	if node.Spec.Unschedulable { // as most are, and a drain asks often
		return false, 0, false
	}
	i, _, err := cluster.ReadIntent(node)
	if err != nil || !i.UncordonedWithin(false) {
		return false, 0, false
	}
	now := time.Now()
	return true, i.Uncordoned, decision.MachineGoes(i.Current(now), now, c.Policy)
}

// forgetEarlierLife forgets notices about an earlier life of the instance. An error means
// that the drain ends.
func (c *Controller) forgetEarlierLife(ctx context.Context, nd *nodeDrain) error {
	if nd.ref.Instance == "" {
		return nil
	}
	log := c.Log.With("node", nd.ref.Name, "instance", nd.ref.Instance)
	launched, err := c.launchOf(ctx, log, nd.ref.Instance)
	if err != nil {
		return err
	}
	return c.forgetBefore(ctx, log, nd, launched)
}

// forgetWhatPassed does so for a drain of an earlier leader, as nobody knows how long there was
// no leader, and for one that was held back. Without a quick answer of EC2 the drain goes on as it was.
func (c *Controller) forgetWhatPassed(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	carried, _ := nd.current()
	old := func(e intent.Entry) bool { return time.Since(e.Time) > decision.LateAfter }
	if nd.ref.Instance == "" || !slices.ContainsFunc(carried.Entries, old) {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	launched, err := c.launchOf(asking, log, nd.ref.Instance)
	if err != nil {
		return context.Cause(ctx)
	}
	return c.forgetBefore(ctx, log, nd, launched)
}

// forgetEarlierLives does so for the drains of all nodes of an instance.
func (c *Controller) forgetEarlierLives(ctx context.Context, f *resolution) error {
	for _, ref := range f.refs {
		nd := c.get(ref)
		if nd == nil {
			continue
		}
		if err := c.forgetEarlierLife(ctx, nd); err != nil && !errors.Is(err, errRestarted) {
			return err
		}
	}
	return nil
}

// forgetBefore forgets notices that are older than a launch, and those that the last restart has
// ended. An error means that the drain ends.
func (c *Controller) forgetBefore(ctx context.Context, log *slog.Logger, nd *nodeDrain, launched time.Time) error {
	carried, _ := nd.current()
	since := c.sinceRestart(nd.ref, launched, c.endedHooks(ctx, nd.ref, carried)...)
	switch now := since(carried); {
	case len(now.Entries) == len(carried.Entries) && now.BootID == carried.BootID:
		return nil
	case len(now.Entries) > 0:
		if len(now.Entries) < len(carried.Entries) {
			log.Info("the machine was restarted: older notices are void")
		}
		return c.rewrite(ctx, nd, since)
	}
	return c.quitIf(ctx, nd, errRestarted, func(i intent.Intent) bool { return len(since(i).Entries) == 0 })
}

// endedHooks are those of an intent's hooks for which Auto Scaling does not wait any more. It is asked if the machine
// has another boot id and was to come back after a hook: a leader may have completed the hook, and ended before it
// could write that. Without an answer a hook counts as open.
func (c *Controller) endedHooks(ctx context.Context, ref cluster.Ref, i intent.Intent) (ended []intent.Hook) {
	node, there := c.Cluster.Look(ref)
	returns := slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
		return e.Kind == notice.ASGTerminate && e.Returns
	})
	if !there || !returns || i.BootID == "" || cluster.BootID(node) == "" || i.BootID == cluster.BootID(node) {
		return nil
	}
	for _, h := range i.Hooks {
		if over, err := c.Hooks.Ended(ctx, h); err == nil && over {
			ended = append(ended, h.Action())
		}
	}
	return ended
}
