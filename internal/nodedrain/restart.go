package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// revertRestarted reverts what was done to nodes whose machines have come back since: they were
// rebooted for a scheduled change, stopped and started, or have got another root volume. Nodes
// whose drains have not ended are watched by their drains too; see watchNode.
func (r upkeep) revertRestarted(ctx context.Context) {
	nodes := cluster.PerNode{Log: r.Log}
	defer nodes.Wait()
	r.Cluster.AtEachChange(ctx, nil, func() error {
		for _, ref := range r.Cluster.Restarted() {
			nodes.Do(ref.UID, func() { _ = r.revertIfRestarted(ctx, ref) }) // it ends with ctx alone
		}
		return nil
	})
}

// revertIfRestarted does so for one node, after the end of its drain. The error is the cause of ctx.
func (r upkeep) revertIfRestarted(ctx context.Context, ref cluster.Ref) error {
	drained := false
	for nd := r.Get(ref); nd != nil; nd = r.Get(ref) {
		drained = true
		if err := nd.AwaitEnd(ctx); err != nil {
			return err
		}
	}
	node, there := r.Cluster.Look(ref)
	if !there || ref.Instance == "" || !cluster.Ready(node) {
		return nil
	}
	i, ok, err := cluster.ReadIntent(node)
	restarted := drained || i.BootID != cluster.BootID(node) || cluster.ReadySince(node).After(i.FinishedAt)
	if !ok || err != nil || !drained && !i.Finished() || len(i.Entries) == 0 || !restarted || !r.Cluster.Reverts(i) {
		return nil
	}
	log := r.Log.WithValues("node", ref.Name, "instance", ref.Instance)
	launched, err := r.Lookup.LaunchOf(ctx, log, ref.Instance)
	if err != nil {
		return err
	}
	return r.Revert(ctx, log, ref, decision.WhyRestarted, r.sinceRestart(ref, launched))
}

// sinceRestart forgets what the last restart of a node's machine has ended. launched is when
// EC2 has started the machine last; zero: not known. The hooks of an instance stand on one of its
// Nodes, and hold on all of them, but for those that have ended.
func (r *Registry) sinceRestart(
	ref cluster.Ref, launched time.Time, ended ...intent.Hook,
) func(intent.Intent) intent.Intent {
	now, bootID := time.Now(), ""
	if node, there := r.Cluster.Look(ref); there && cluster.Ready(node) {
		bootID = cluster.BootID(node)
	}
	elsewhere := r.drains.hooksOfOthers(ref)
	return func(i intent.Intent) intent.Intent {
		own := slices.DeleteFunc(slices.Clone(i.Hooks), func(h intent.Hook) bool {
			return slices.Contains(ended, h.Action())
		})
		i.Hooks = slices.Concat(own, elsewhere)
		i = i.SinceLaunch(launched).SinceBoot(bootID, !launched.IsZero(), now)
		i.Hooks = own
		return i
	}
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
	carried := d.carried()
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

// ForgetEarlierLife has the drain of a node, if there is one, forget notices about an earlier life of the instance. A
// drain that has no other notices ends.
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
		carried := d.carried()
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
