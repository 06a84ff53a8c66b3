package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Intents are those of the other Nodes of the instance. It also asks the drains: the watch
// may be behind.
func (r *Registry) Intents(ref cluster.Ref) []intent.Intent {
	intents := r.Cluster.Intents(ref)
	for _, nd := range r.drains.others(ref) {
		if i := nd.carried(); i.Version > 0 {
			i.Hooks = nil
			intents = append(intents, i)
		}
	}
	return intents
}

// informNewNodes records the notices of an instance on each Node that the instance gets after
// or beside another one.
func (r upkeep) informNewNodes(ctx context.Context) {
	nodes := cluster.PerNode{Log: r.Log}
	defer nodes.Wait()
	r.Cluster.AtEachChange(ctx, nil, func() error {
		for _, ref := range r.Cluster.NodesToInform() {
			nodes.Do(ref.UID, func() {
				if node, there := r.Cluster.Look(ref); there {
					intents := func() []intent.Intent { return r.Intents(ref) }
					_, _ = r.inform(ctx, r.Log.WithValues("instance", ref.Instance), intents, node) // it ends with ctx or the Node
				}
			})
		}
		return nil
	})
}

// inform records what intents carry on a Node of the same instance: the notices that are
// still in force, and the hooks of unfinished drains. It returns the drain of the node; nil if
// nothing is left to do. A notice is not in force if it is older than the last launch of the
// instance, if it was cancelled since, or if intents, asked again, does not return it any more. The error is
// cluster.ErrNodeGone, or the cause of ctx.
func (r *Registry) inform(
	ctx context.Context, log logr.Logger, intents func() []intent.Intent, node *corev1.Node,
) (next *Drain, err error) {
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
	all = slices.DeleteFunc(all, func(n pending) bool { return r.isCancelled(ref.Instance, n.entry) })
	if len(all) == 0 {
		return nil, nil
	}
	var deadline time.Time
	for _, n := range all {
		deadline = intent.Earlier(deadline, n.entry.Deadline)
	}
	launched, err := r.launchOf(ctx, log, ref.Instance, deadline)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.hook == nil && n.entry.Before(launched) {
			continue
		}
		isPending := func(i intent.Intent) bool { return i.HasPending(n.entry, time.Now()) }
		void := func() bool {
			return r.isCancelled(ref.Instance, n.entry) || !slices.ContainsFunc(intents(), isPending)
		}
		nd, err := r.Record(ctx, log, ref, &News{Entry: &n.entry, Hook: n.hook, Why: decision.WhyNextNode, Void: void})
		switch {
		case ctx.Err() == nil && errors.Is(err, ErrOutdated):
			return r.inform(ctx, log, intents, node)
		case err != nil:
			return nil, err
		case nd != nil:
			next = nd
			log.Info("another Node of the instance gets the notice", "node", ref.Name, "kind", n.entry.Kind)
		}
	}
	return next, nil
}

// launchOf is when the instance was started last, as EC2 says; zero where it does not say, or not in time for a
// deadline. The error is the cause of ctx.
func (r *Registry) launchOf(ctx context.Context, log logr.Logger, id string, deadline time.Time) (time.Time, error) {
	if deadline.IsZero() {
		return r.Lookup.LaunchOf(ctx, log, id)
	}
	until := laterOf(deadline.Add(-decision.Young), time.Now().Add(lookup.DoubtTimeout))
	asking, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	launched, err := r.Lookup.LaunchOf(asking, log, id)
	if err != nil {
		return time.Time{}, context.Cause(ctx)
	}
	return launched, nil
}

func (c *Config) isCancelled(instance string, e intent.Entry) bool {
	return c.Cancelled != nil && c.Cancelled(instance, e)
}
