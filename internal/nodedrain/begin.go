package nodedrain

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

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
		return true // the rules have changed since it was decided about: awaitBegin decides again
	}
	begins := d.place.AskToRecord(next, now).Begins
	return !begins || d.r.RulesChanged() != rules
}

// inWork reports whether the node is being drained, and is not held back.
func inWork(i intent.Intent) bool { return i.Version > 0 && !i.Finished() && !i.HeldBack }

// awaitBegin waits while the node is held back, and cordons it then.
func (d *Drain) awaitBegin(ctx context.Context, log logr.Logger) error {
	if !d.heldBack() {
		return nil
	}
	return d.awaitPermit(ctx, log)
}

// awaitPermit is awaitBegin for a node that is held back.
func (d *Drain) awaitPermit(ctx context.Context, log logr.Logger) error {
	gone := make(chan struct{})
	defer d.afterMachine(sync.OnceFunc(func() { close(gone) }))()
	relabelled, stop := d.watchLabels()
	defer stop()
	var told decision.Why
	var asked intent.Intent       // what it was asked about last
	var decidedBy <-chan struct{} // closed when there are other rules than those of the node's intent
	for first := true; ; first = false {
		newRules := d.r.RulesChanged()
		if newRules != decidedBy || first && d.resumed || d.isRuledOtherwise() { // also while a notice was being recorded
			if err := d.decideAgain(ctx, log); err != nil {
				return err
			}
			decidedBy = newRules
		}
		carried, changed := d.current()
		if !d.waits(carried) {
			return nil
		}
		now := time.Now().UTC()
		t := d.place.Ask(carried, now, first || !reflect.DeepEqual(asked, carried))
		asked = carried
		if t.Begins && d.r.RulesChanged() != newRules {
			continue // it may be the old rules that let it begin
		}
		t, err := d.unlessReplaced(ctx, log, t, carried)
		switch {
		case err != nil:
			return err
		case t.Begins:
			return d.goAhead(ctx, log, t.Why, now)
		case t.Why == "": // there is no replacement: it has to take its place now
			continue
		}
		d.tellHeldBack(log, t, told, carried.Terms().Rule)
		told = t.Why
		timer := time.NewTimer(time.Until(t.Again))
		select {
		case <-changed:
		case <-timer.C:
		case <-newRules:
		case <-relabelled:
		case <-gone:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// waits reports whether the node is held back still: an urgent notice may have come, or the Node have gone.
func (d *Drain) waits(carried intent.Intent) bool {
	return carried.HeldBack && d.r.Cluster.Exists(d.ref)
}

// watchLabels tells when, by the labels of the node, another rule is about one of its notices, until stop is called.
func (d *Drain) watchLabels() (relabelled <-chan struct{}, stop func()) {
	told := make(chan struct{}, 1)
	return told, d.r.Cluster.OnChange(d.ref, func() {
		if !d.isRuledOtherwise() {
			return
		}
		select {
		case told <- struct{}{}:
		default:
		}
	})
}

// isRuledOtherwise reports whether, by the labels of now, another rule is about a notice of the node than the one that
// has decided about it.
func (d *Drain) isRuledOtherwise() bool {
	node, there := d.r.Cluster.Look(d.ref)
	carried, _ := d.current()
	return there && d.r.CurrentPolicy().IsRuledOtherwise(carried, node.Labels)
}

// unlessReplaced is the permit of a drain, but for one that waits for a replacement first. It is empty where that has
// turned out to be in vain.
func (d *Drain) unlessReplaced(
	ctx context.Context, log logr.Logger, t holdback.Permit, carried intent.Intent,
) (holdback.Permit, error) {
	if t.Begins && t.Why != decision.WhyDeadlineNear && d.r.replacesFirst(carried) {
		return d.replacing().next(ctx, log)
	}
	return t, nil
}

// tellHeldBack says what holds the drain back; told is the reason that was said last.
func (d *Drain) tellHeldBack(log logr.Logger, t holdback.Permit, told decision.Why, rule string) {
	d.say(overview.HeldBack, heldBackBy(t, rule))
	if t.Why == told {
		return
	}
	d.record.heldBack = t.Detail
	log.Info("the drain is held back", "why", t.Why, "detail", t.Detail, "rule", rule)
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.HoldBack, Why: t.Why, Detail: t.Detail})
}

// goAhead cordons a node that was held back.
func (d *Drain) goAhead(
	ctx context.Context, log logr.Logger, why decision.Why, now time.Time,
) error {
	if err := d.forgetWhatPassed(ctx, log); err != nil {
		return err
	}
	if err := d.release(ctx, log, now); err != nil {
		return err
	}
	d.say(overview.Draining)
	log.Info("the drain is no longer held back", "why", why)
	log.Info("cordoned", "why", why)
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.Cordon, Why: why})
	return nil
}

// release writes that a node is held back no longer, and cordons it. If that cannot be written while half of the time
// to the deadline passes, the pods leave without the cordon; see drainUnrecorded.
func (d *Drain) release(ctx context.Context, log logr.Logger, now time.Time) error {
	released := func(i intent.Intent) intent.Intent { return i.Released(now) }
	return cluster.Retry(ctx, log, "cordon the node", func(ctx context.Context) error {
		if d.unrecorded.Load() { // a notice that came meanwhile has begun the drain
			return nil
		}
		err := d.rewriteOnce(ctx, released)
		carried, _ := d.current()
		deadline := carried.Deadline()
		if err == nil || deadline.IsZero() || time.Since(now) < firstTries || time.Since(now) < time.Until(deadline) {
			return err
		}
		if err := d.lock(ctx); err != nil {
			return err
		}
		defer d.unlock()
		carried, _ = d.current() // a notice may have been recorded meanwhile
		if !carried.HeldBack || d.unrecorded.Load() {
			return nil
		}
		d.goUnrecorded(log, released(carried))
		return nil
	})
}

// decideAgain has the rules of now decide about the notices of a node that is held back. What they
// ignore by now is taken back. The hooks of a termination stay.
func (d *Drain) decideAgain(ctx context.Context, log logr.Logger) error {
	now, policy := time.Now().UTC(), d.r.CurrentPolicy()
	for {
		node, there := d.r.Cluster.Look(d.ref) // its labels may change while it is written
		if !there {
			return nil
		}
		change := func(i intent.Intent) intent.Intent {
			if !i.HeldBack { // its drain has begun meanwhile
				return i
			}
			return policy.DecideAgain(i, node.Labels, now)
		}
		carried, _ := d.current()
		next := change(carried)
		switch {
		case reflect.DeepEqual(next.Entries, carried.Entries):
			return nil
		case len(next.Entries) == 0:
			return d.quitIf(ctx, errIgnored, func(i intent.Intent) bool { return i.HeldBack && len(change(i).Entries) == 0 })
		}
		log.Info("the rules or labels have changed: the notices of the node are decided about again",
			"rule", next.Terms().Rule)
		if err := d.rewrite(ctx, unlessNothingIsLeft(change)); err != nil {
			return err
		}
	}
}

// CurrentPolicy are the options with the rules of now.
func (c *Config) CurrentPolicy() decision.Policy {
	p := c.Policy
	if c.PolicyFile != nil {
		p.Rules = *c.PolicyFile.Rules()
	}
	return p
}

// RulesChanged returns a channel that is closed when the rules change; nil: they never do.
func (c *Config) RulesChanged() <-chan struct{} {
	if c.PolicyFile == nil {
		return nil
	}
	return c.PolicyFile.Changed()
}
