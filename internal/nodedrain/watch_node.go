package nodedrain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
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
func (d *Drain) watchNode(ctx context.Context) (stop func()) {
	wasReady := true
	l := looker{look: func() error {
		node, there := d.r.Cluster.Look(d.ref)
		if !there {
			return nil
		}
		isReady := cluster.Ready(node)
		carried, _ := d.current()
		bootID := cluster.BootID(node)
		restarted := carried.BootID != "" && bootID != "" && bootID != carried.BootID
		if isReady && (!wasReady || restarted) {
			if err := d.forgetEarlierLife(ctx); err != nil {
				return err
			}
		}
		wasReady = isReady
		if node.Spec.Unschedulable {
			return nil
		}
		return d.onUncordon(ctx, node)
	}}
	remove := d.r.Cluster.OnChange(d.ref, func() {
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

// onUncordon reacts if somebody has uncordoned the node. An error means that the drain ends.
func (d *Drain) onUncordon(ctx context.Context, node *corev1.Node) error {
	uncordoned, times, goes := d.r.uncordoned(node)
	switch {
	case !uncordoned || times > 1:
		return nil
	case goes:
		return d.reread(ctx)
	}
	return d.quitIf(ctx, errUncordoned, func(carried intent.Intent) bool {
		now := time.Now()
		return carried.Uncordoned == times && !decision.MachineGoes(carried.Current(now), now, d.r.Policy)
	})
}

// quitIf ends the drain for a reason, if what the node carries is such that it ends. It asks while it
// holds the lock of the node: a notice that is being recorded is heeded, and one that comes later
// begins another drain. The error is the reason if the drain ends, or the cause of ctx.
func (d *Drain) quitIf(
	ctx context.Context, reason error, ends func(intent.Intent) bool,
) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	carried, _ := d.current()
	switch {
	case !ends(carried), carried.Delegated(): // Karpenter ends the machine whatever we do
		return nil
	case isClosed(d.quit.done): // an undo, for example
		return d.quitReason()
	}
	d.quitOn = &carried
	d.quitFor(reason)
	return reason
}

// uncordoned reports whether somebody has uncordoned the node during its drain, how many times
// they had done so before, and whether the machine goes away anyway. It goes by the intent on the
// node: a node that has lost its intent is not cordoned again.
func (c *Config) uncordoned(node *corev1.Node) (uncordoned bool, times int, goes bool) {
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
func (d *Drain) forgetEarlierLife(ctx context.Context) error {
	if d.ref.Instance == "" {
		return nil
	}
	launched, err := d.r.Lookup.LaunchOf(ctx, d.log, d.ref.Instance)
	if err != nil {
		return err
	}
	return d.forgetBefore(ctx, launched)
}

// forgetWhatPassed does so for a drain of an earlier leader, as nobody knows how long there was
// no leader, and for one that was held back. Without a quick answer of EC2 the drain goes on as it was.
func (d *Drain) forgetWhatPassed(ctx context.Context) error {
	carried, _ := d.current()
	old := func(e intent.Entry) bool { return time.Since(e.Time) > decision.LateAfter }
	if d.ref.Instance == "" || !slices.ContainsFunc(carried.Entries, old) {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
	defer cancel()
	launched, err := d.r.Lookup.LaunchOf(asking, d.log, d.ref.Instance)
	if err != nil {
		return context.Cause(ctx)
	}
	return d.forgetBefore(ctx, launched)
}

// ForgetEarlierLife does so for the drain of a node, if there is one.
func (r *Registry) ForgetEarlierLife(ctx context.Context, ref cluster.Ref) error {
	nd := r.Get(ref)
	if nd == nil {
		return nil
	}
	if err := nd.forgetEarlierLife(ctx); err != nil && !errors.Is(err, errRestarted) {
		return err
	}
	return nil
}

// forgetBefore forgets notices that are older than a launch, and those that the last restart has
// ended. An error means that the drain ends.
func (d *Drain) forgetBefore(ctx context.Context, launched time.Time) error {
	for {
		carried, _ := d.current()
		since := d.r.sinceRestart(d.ref, launched, d.r.endedHooks(ctx, d.ref, carried)...)
		switch now := since(carried); {
		case len(now.Entries) == len(carried.Entries) && now.BootID == carried.BootID:
			return nil
		case len(now.Entries) == 0:
			err := d.quitIf(ctx, errRestarted, func(i intent.Intent) bool { return len(since(i).Entries) == 0 })
			if err != nil || carried.Delegated() {
				return err
			}
			continue // a notice has joined meanwhile
		case len(now.Entries) < len(carried.Entries):
			d.log.Info("the machine was restarted: older notices are void")
		}
		if err := d.rewrite(ctx, unlessNothingIsLeft(since)); err != nil {
			return err
		}
	}
}

// unlessNothingIsLeft is a change of an intent that does nothing where no notice would be left: a drain is called off
// then, which is no change of its intent.
func unlessNothingIsLeft(change func(intent.Intent) intent.Intent) func(intent.Intent) intent.Intent {
	return func(i intent.Intent) intent.Intent {
		if left := change(i); len(left.Entries) > 0 {
			return left
		}
		return i
	}
}

// endedHooks are those of an intent's hooks for which Auto Scaling does not wait any more. It is asked if the machine
// has another boot id and was to come back after a hook: a leader may have completed the hook, and ended before it
// could write that. Without an answer a hook counts as open.
func (c *Config) endedHooks(ctx context.Context, ref cluster.Ref, i intent.Intent) (ended []intent.Hook) {
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
