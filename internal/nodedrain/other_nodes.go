package nodedrain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// awaitOtherNodes waits until the hooks of the instance can be completed: an instance may have more Nodes
// than this one, and the pods of all of them have to leave first. If the Node was deleted and its instance
// still runs, the next Node of the instance gets the notices and the hooks; its drain is returned as next,
// and does the rest.
func (d endStage) awaitOtherNodes(ctx context.Context) (next *Drain, err error) {
	if d.ref.Instance == "" {
		return nil, nil
	}
	begun, logged := time.Now(), sync.Once{}
	informing, stop := context.WithCancel(ctx)
	defer stop()
	told := map[types.UID]chan struct{}{}
	for !isClosed(d.instanceGone.done) {
		nodes := d.r.Cluster.Changed()
		carried, ours := d.current()
		hasNode := d.r.Cluster.Exists(d.ref)
		if hasNode && len(carried.Hooks) == 0 {
			if more, err := d.awaitOtherHooks(ctx, ours); !more || err != nil {
				return nil, err
			}
			continue
		}
		informed := false
		if !hasNode {
			if next, informed, err = d.passOn(ctx, carried); next != nil || err != nil {
				return next, err
			}
		}
		then, untold := d.tellOthers(informing, told) // closed when more is to be done about another Node
		others := d.othersWithPods()                  // after what makes requests
		waits := then != nil || len(others) > 0
		switch {
		case waits && d.r.haveHooksEnded(carried), !waits && (hasNode || informed):
			return nil, nil
		case len(others) > 0:
			then = others[0].podsGone.done
			d.say(overview.Completing, waitsForNode(others[0].ref.Name, len(others)))
		case then != nil:
			d.say(overview.Completing, waitsForNode(untold, 1))
		default:
			until := d.r.nextNodeUntil(carried, begun)
			if over, err := d.noNodeExpected(ctx, until); over || err != nil {
				return nil, err
			}
			d.say(overview.Completing, waitsForNextNode(until))
			logged.Do(func() {
				d.log.Info("the Node was deleted and its instance runs: the next Node gets the notices",
					"until", until.UTC().Format(time.RFC3339))
			})
		}
		if err := awaitFor(ctx, d.r.untilAskedAgain(carried), nodes, then, d.instanceGone.done); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// awaitOtherHooks is for a Node without hooks: it waits for a change of another drain of the instance that has some.
// If the Node of that is deleted, another Node gets its hooks: this one maybe. ours is closed when the intent of this
// one changes. more: there was such a drain.
func (d endStage) awaitOtherHooks(ctx context.Context, ours <-chan struct{}) (more bool, err error) {
	with, theirs := d.otherWithHooks()
	if with == nil {
		return false, nil
	}
	d.say(overview.Completing, waitsForNode(with.ref.Name, 1))
	return true, awaitAny(ctx, with.done, theirs, ours, d.instanceGone.done)
}

// untilAskedAgain is how long EC2 is believed about the instance: not beyond the end of a hook.
func (c *Config) untilAskedAgain(i intent.Intent) time.Duration {
	if end := c.hooksEnd(i, 0); !end.IsZero() {
		return min(lookup.KeptShort, max(0, time.Until(end)))
	}
	return lookup.KeptShort
}

// haveHooksEnded reports whether a hook ends by itself now: nothing is gained if it is not completed, and the group may
// do something else with the instance then.
func (c *Config) haveHooksEnded(i intent.Intent) bool {
	end := c.hooksEnd(i, 0)
	return !end.IsZero() && !time.Now().Before(end)
}

// passOn gives the notices and hooks of a deleted Node to the next Node of its instance, and returns the drain of that
// Node. informed: there is such a Node. Without a drain nothing is left to do on it: it may never have carried the
// hooks, so that they are completed here.
func (d endStage) passOn(ctx context.Context, carried intent.Intent) (next *Drain, informed bool, err error) {
	nodes := d.r.Cluster.ByInstance(d.ref.Instance)
	if len(nodes) == 0 {
		return nil, false, nil
	}
	log := d.r.Log.WithValues("instance", d.ref.Instance) // it is about another Node
	next, err = d.r.inform(ctx, log, func() []intent.Intent { return []intent.Intent{carried} }, nodes[0])
	switch {
	case errors.Is(err, cluster.ErrNodeGone): // the watch is behind
		return nil, false, nil
	case next != nil:
		theirs := next.carried() // the other drain completes them, but for those that are beyond its bound
		carried.Hooks = slices.DeleteFunc(slices.Clone(carried.Hooks), func(h intent.Hook) bool {
			return len(theirs.Hooks) < intent.MaxHooks || theirs.HasHook(h)
		})
		d.setIntent(carried)
	}
	return next, true, err
}

// toldWithin is how long hooks wait at least for another Node of the instance to get its notices.
const toldWithin = 30 * time.Second

// tellOthers gives the notices to other Nodes of the instance, each once, that have registered just now and got none
// yet: their pods leave before the hooks are completed. So do those of a Node whose drain has failed, which begins
// again. then is closed when one of them, untold, has got the notices; nil: none waits.
func (d endStage) tellOthers(
	ctx context.Context, told map[types.UID]chan struct{},
) (then <-chan struct{}, untold string) {
	if d.r.DryRun || len(d.carried().Hooks) == 0 {
		return nil, ""
	}
	for _, node := range d.r.Cluster.ByInstance(d.ref.Instance) {
		ref := cluster.RefOf(node)
		i, carries := d.r.intentOn(ref)
		has := carries && d.r.Cluster.Serves(i) && len(i.Entries) > 0
		tells, begun := told[ref.UID]
		switch {
		case ref.UID == d.ref.UID, d.r.Get(ref) != nil, has && i.Finished(), begun && isClosed(tells) && !has:
		case begun && isClosed(tells): // its drain has failed
			then, untold = make(chan struct{}), ref.Name
		case begun:
			then, untold = tells, ref.Name
		default:
			tells = make(chan struct{})
			told[ref.UID], then, untold = tells, tells, ref.Name
			d.beside.Go(func() {
				defer close(tells)
				_ = logging.Recover(d.log, func() error { d.tell(ctx, ref); return nil }) // which logs it
			})
		}
	}
	return then, untold
}

// tell gives the notices to another Node of the instance. Without an answer of EC2 it tries for as long as pods need
// what is left of the hooks, but for toldWithin at least.
func (d endStage) tell(ctx context.Context, ref cluster.Ref) {
	until := time.Now().Add(toldWithin)
	if end := d.r.hooksEnd(d.carried(), 0); !end.IsZero() {
		until = slices.MaxFunc([]time.Time{until, end.Add(-d.r.NodeGracePeriod)}, time.Time.Compare)
	}
	telling, stop := context.WithDeadline(ctx, until)
	defer stop()
	d.r.informNode(telling, ref)
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

// awaitFor is awaitAny for a time at most.
func awaitFor(ctx context.Context, most time.Duration, a, b, c <-chan struct{}) error {
	waiting, stop := context.WithTimeout(ctx, most)
	defer stop()
	_ = awaitAny(waiting, a, b, c, nil)
	return context.Cause(ctx)
}

// noNodeExpected reports whether an instance that has no Node will get none: it does not run, or the time is over.
func (d endStage) noNodeExpected(ctx context.Context, until time.Time) (over bool, err error) {
	if !time.Now().Before(until) {
		return true, nil
	}
	asking, stop := context.WithDeadline(ctx, until)
	defer stop()
	defer d.onChange(func() {
		if isClosed(d.instanceGone.done) {
			stop()
		}
	})()
	d.goBeside(func() { // the next Node needs its notice more than an answer
		d.r.Cluster.AtEachChange(asking, nil, func() {
			if len(d.r.Cluster.ByInstance(d.ref.Instance)) > 0 {
				stop()
			}
		})
	})
	inst, known, err := d.r.Lookup.Ask(asking, d.log, "look up the instance whose Node went", d.ref.Instance, lookup.Fresh)
	if err != nil { // the time is over, there is a Node, or the instance is gone by now: it is looked at again
		return false, context.Cause(ctx)
	}
	return !known || !inst.Alive(), nil
}

// nextNodeUntil is how long the next Node of an instance is waited for. While an Auto Scaling
// group waits for a hook, that is no longer than for an instance that never joined.
func (c *Config) nextNodeUntil(i intent.Intent, begin time.Time) time.Time {
	patience := decision.Young
	if len(i.Hooks) > 0 {
		patience = c.NodeGracePeriod
	}
	return intent.Earlier(begin.Add(patience), c.completeBy(i, 0))
}

// others are the other drains of the instance: also the next one of this Node, where this one has ended by what another
// handler has written.
func (d endStage) others() []*Drain {
	return slices.DeleteFunc(d.r.drainsOf(d.ref.Instance), func(other *Drain) bool { return other == d.Drain })
}

// otherWithHooks returns another drain of the instance that has hooks to complete, and a channel that is closed when
// its intent changes; nil if there is none.
func (d endStage) otherWithHooks() (with *Drain, changed <-chan struct{}) {
	for _, other := range d.others() {
		if i, changed := other.current(); len(i.Hooks) > 0 {
			return other, changed
		}
	}
	return nil, nil
}

// othersWithPods are the other drains of the instance whose pods have not left.
func (d endStage) othersWithPods() []*Drain {
	return slices.DeleteFunc(d.others(), func(other *Drain) bool { return !other.hasPods() })
}

// isDraining reports whether another Node of the instance, present or deleted, is being drained.
func (r *Registry) isDraining(ref cluster.Ref) bool {
	return slices.ContainsFunc(r.Cluster.Others(ref), func(other cluster.Ref) bool {
		nd := r.Get(other)
		return nd != nil && nd.carried().InWork()
	})
}

// Intents are those of the other Nodes of the instance. It also asks the drains: the watch
// may be behind.
func (r *Registry) Intents(ref cluster.Ref) []intent.Intent {
	intents := r.Cluster.Intents(ref)
	for _, nd := range r.otherDrains(ref) {
		if i := nd.carried(); i.Version > 0 {
			i.Hooks = nil
			intents = append(intents, i)
		}
	}
	return intents
}

// informNode records the notices of an instance on a Node that the instance has got after or beside another one.
func (r *Registry) informNode(ctx context.Context, ref cluster.Ref) {
	if node, there := r.Cluster.Look(ref); there {
		intents := func() []intent.Intent { return r.Intents(ref) }
		_, _ = r.inform(ctx, r.Log.WithValues("instance", ref.Instance), intents, node) // it ends with ctx or the Node
	}
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
	all = slices.DeleteFunc(all, func(n pending) bool { return r.Cancelled(ref.Instance, n.entry) })
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
			return r.Cancelled(ref.Instance, n.entry) || !slices.ContainsFunc(intents(), isPending)
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
	until := deadline.Add(-decision.Young)
	if soon := time.Now().Add(lookup.DoubtTimeout); until.Before(soon) {
		until = soon
	}
	asking, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	launched, err := r.Lookup.LaunchOf(asking, log, id)
	if err != nil {
		return time.Time{}, context.Cause(ctx)
	}
	return launched, nil
}
