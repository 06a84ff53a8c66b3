package nodedrain

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// News are what is to be recorded on a node.
type News struct {
	Entry *intent.Entry
	Hook  *intent.Hook // nil: there is none of ours, or another Node carries it
	Why   decision.Why
	Void  func() bool // reports whether the notice is called off by now
}

// Record writes a notice to a node, and begins its drain, unless that has begun. It returns nil if nothing is left to
// do, and ErrOutdated if it does not succeed within lookup.KeptShort: the decision may not hold any more.
func (r *Registry) Record(
	ctx context.Context, log logr.Logger, ref cluster.Ref, n *News,
) (nd *Drain, err error) {
	begin := time.Now()
	trying, cancel := context.WithTimeoutCause(ctx, lookup.KeptShort, ErrOutdated)
	defer cancel()
	begins := false
	err = cluster.Retry(trying, log, "cordon the node", func(try context.Context) error {
		spent := time.Since(begin) > firstTries && halfPassed(n.Entry, time.Now())
		with, first, err := r.record(try, ref, n, spent)
		begins = begins || first // also where the answer to the write was lost
		if nd = nil; err == nil || errors.Is(err, cluster.ErrNodeGone) {
			nd = with
			return err
		}
		if try.Err() == nil {
			r.Observer.Stepped(report.Step{Node: ref, Kind: report.Cordon, Why: n.Why, Err: err})
		}
		if with != nil {
			return errors.Join(err, with.drainUnrecorded(ctx, log, n, spent))
		}
		return err
	})
	if err == nil && begins && nd != nil && !nd.heldBack() {
		log.Info("cordoned", "node", ref.Name, "why", n.Why)
		r.Observer.Stepped(report.Step{Node: ref, Kind: report.Cordon, Why: n.Why})
	}
	return nd, err
}

// record writes a notice to the node and begins its drain, unless that has begun. It returns
// nil if the drain is finished already, or if the notice is void. It asks for the latter
// while it holds the lock of the node: who makes the notice void later has to wait for the
// lock, and then finds the notice recorded. With an error it returns the drain only if drainUnrecorded is to go on
// with it: the time for tries is spent, or it goes on already. begins: the node was in no drain before.
func (r *Registry) record(
	ctx context.Context, ref cluster.Ref, n *News, spent bool,
) (nd *Drain, begins bool, err error) {
	entry, hook := n.Entry, n.Hook
	for {
		nd := r.drains.getOrCreate(ref)
		if err := nd.lock(ctx); err != nil {
			return nil, false, err
		}
		if r.drains.hasEnded(nd) { // it ended while we waited for the lock
			nd.unlock()
			continue
		}
		if isClosed(nd.quit.done) { // it is being called off, and this notice is to begin another drain
			nd.unlock()
			if err := nd.AwaitEnd(ctx); err != nil {
				return nil, false, err
			}
			continue
		}
		defer nd.unlock()
		if n.Void() {
			if !nd.started {
				r.end(nd, nil)
			}
			return nil, false, nil
		}
		now := time.Now().UTC()
		defer nd.place.Recorded()
		repeated, over := false, false
		carried, err := r.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
			begins = !inWork(i)
			i = nd.orUnrecorded(i)
			repeated, over = i.Covers(*entry), i.Over(*entry)
			if over {
				return i
			}
			holdBack := nd.mustHoldBack(i, entry, hook, now)
			next := r.with(i, *entry, hook, holdBack, now)
			return r.Cluster.Joined(next)
		})
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) && (spent || nd.unrecorded.Load()) {
			return nd, begins, err // drainUnrecorded goes on with it
		}
		if err != nil || over || carried.Finished() {
			if !nd.started {
				r.end(nd, nil)
			}
			return nil, begins, err
		}
		if !repeated && !carried.HeldBack {
			r.Observer.Recorded(*entry)
		}
		nd.unrecorded.Store(false)
		nd.applyIntent(carried)
		if nd.started {
			return nd, begins, nil
		}
		nd.resumed = !begins // another handler has begun it: what the node carries may be of an earlier life of the machine
		return nd, begins, r.start(ctx, nd)
	}
}

// with is the intent with a notice. It begins to be carried out at once, unless it has to be held
// back and can wait.
func (c *Config) with(
	i intent.Intent, entry intent.Entry, hook *intent.Hook, holdBack bool, now time.Time,
) intent.Intent {
	next := i.With(entry, hook, now)
	switch {
	case inWork(i) || next.Finished():
		return next
	case holdBack && decision.CanWait(next, now, c.Policy):
		next.HeldBack = true
		return next
	}
	return next.Released(now)
}

// start hands the drain to Run. The caller holds the lock.
func (r *Registry) start(ctx context.Context, nd *Drain) error {
	select {
	case r.toRun <- nd:
		nd.started = true
		return nil
	case <-ctx.Done():
		r.end(nd, context.Cause(ctx))
		return context.Cause(ctx)
	}
}

// applyIntent notes the intent that the node carries now, and tells if somebody has
// uncordoned the node during the drain. With a finished intent the drain has ended.
func (d *Drain) applyIntent(i *intent.Intent) {
	before, _ := d.current()
	d.setIntent(*i)
	if i.Finished() {
		d.r.drains.remove(d) // the next notice begins another drain
		return
	}
	if i.Uncordoned <= before.Uncordoned {
		return
	}
	if i.Uncordoned > 1 {
		logging.Warn(d.log, "somebody has uncordoned the node again: it stays uncordoned, although its machine goes away; "+
			"new pods on it are not drained")
		d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.LeftUncordoned, Why: decision.WhyUncordonedAgain})
		return
	}
	logging.Warn(d.log, "somebody has uncordoned the node during its drain: it is cordoned again, once, "+
		"because its machine goes away")
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.CordonAgain, Why: decision.WhyUncordoned})
}

// mustHoldBack reports whether a node has to wait when it gets the notice, by what it carries. A drain that is not held
// back goes on, and so does the next Node of a machine. The caller calls place.Recorded afterwards.
func (d *Drain) mustHoldBack(
	carried intent.Intent, entry *intent.Entry, hook *intent.Hook, now time.Time,
) bool {
	if d.r.MaxUnready == (intstr.IntOrString{}) && entry.Rule == "" {
		return false
	}
	rules := d.r.RulesChanged()
	next := carried.With(*entry, hook, now)
	if carried.Over(*entry) || inWork(carried) || next.Finished() {
		return false
	}
	if decision.CanWait(next, now, d.r.Policy) && !d.r.isDraining(d.ref) &&
		(entry.Rule != "" && d.r.CurrentPolicy().Rules.Named(entry.Rule) == nil || d.r.replacesFirst(next)) {
		return true // the rules have changed since it was decided about: the stage decides again
	}
	begins := d.place.AskToRecord(next, now).Begins
	return !begins || d.r.RulesChanged() != rules
}

// inWork reports whether the node is being drained, and is not held back.
func inWork(i intent.Intent) bool { return i.Version > 0 && !i.Finished() && !i.HeldBack }
