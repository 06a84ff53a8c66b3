package nodedrain

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A beginStage is the first stage of a drain: a node that is held back is not cordoned, and waits until its drain may
// begin.
type beginStage struct{ *Drain }

// run waits while the node is held back, and cordons it then.
func (d beginStage) run(ctx context.Context) error {
	if !d.carried().HeldBack {
		return nil
	}
	gone := make(chan struct{})
	defer d.afterMachine(sync.OnceFunc(func() { close(gone) }))()
	relabelled, stop := d.watchLabels()
	defer stop()
	var told decision.Why
	var asked intent.Intent       // what it was asked about last
	var decidedBy <-chan struct{} // closed when there are other rules than those of the node's intent
	for {
		newRules := d.r.RulesChanged()
		if newRules != decidedBy || d.isOutdated() { // also while a notice was being recorded
			if err := d.untilItMustBegin(ctx, d.decideAgain); err != nil {
				return err
			}
			decidedBy = newRules
		}
		carried, changed := d.current()
		if !carried.HeldBack || !d.r.Cluster.Exists(d.ref) { // an urgent notice may have come, or the Node have gone
			return nil
		}
		now := time.Now().UTC()
		pressing := d.r.pressing(carried)
		t := d.place.Ask(pressing, now, !reflect.DeepEqual(asked, pressing))
		asked = pressing
		if t.Begins && d.r.RulesChanged() != newRules {
			continue // it may be the old rules that let it begin
		}
		t, err := d.unlessReplaced(ctx, t, carried)
		switch {
		case err != nil:
			return err
		case t.Begins:
			return d.goAhead(ctx, t.Why, now)
		case t.Why == "": // there is no replacement: it has to take its place now
			continue
		}
		d.tellHeldBack(t, told, carried.Terms().Rule)
		told = t.Why
		if len(carried.Hooks) > 0 { // nobody tells when their heartbeats fail
			t.Again = intent.Earlier(t.Again, now.Add(againAfter))
		}
		waiting, done := context.WithDeadline(ctx, t.Again)
		_ = awaitAny(waiting, changed, newRules, relabelled, gone)
		done()
		if isClosed(gone) || ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// watchLabels tells when, by the labels of the node, it is to be decided again about its notices, until stop is called.
func (d beginStage) watchLabels() (relabelled <-chan struct{}, stop func()) {
	told := make(chan struct{}, 1)
	return told, d.r.Cluster.OnChange(d.ref, func() {
		if !d.isOutdated() {
			return
		}
		select {
		case told <- struct{}{}:
		default:
		}
	})
}

// isOutdated reports whether the rules, or labels, of now say something else of a notice of the node than it carries.
func (d beginStage) isOutdated() bool {
	node, there := d.r.Cluster.Look(d.ref)
	return there && d.r.CurrentPolicy().IsOutdated(d.carried(), node.Labels, time.Now().UTC())
}

// unlessReplaced is the permit of a drain, but for one that waits for a replacement first. It is empty where that has
// turned out to be in vain. The time of that wait also ends while something else holds the drain back: the Node of a
// replacement that never turns ready uses up a limit itself. Which Node that is, the group does not tell.
func (d beginStage) unlessReplaced(
	ctx context.Context, t holdback.Permit, carried intent.Intent,
) (holdback.Permit, error) {
	until := carried.Replacement.Until
	isLate := !until.IsZero() && !time.Now().Before(until)
	mayBeAsked := carried.Replacement.Step == intent.Marking // the group, and what has begun goes on
	if (t.Begins || isLate || mayBeAsked) && t.Why != decision.WhyDeadlineNear && d.r.replacesFirst(carried) {
		t = holdback.Permit{}
		err := d.untilItMustBegin(ctx, func(ctx context.Context) error {
			next, err := replacing(d).next(ctx)
			if err == nil {
				t = next
			}
			return err
		})
		return t, err
	}
	return t, nil
}

// untilItMustBegin does something that writes the node, and leaves it undone where the drain begins without it: at the
// last moment, or by a notice that could not be recorded.
func (d beginStage) untilItMustBegin(ctx context.Context, do func(context.Context) error) error {
	doing, stop := d.whileNot(ctx, nil, d.unrecorded.Load)
	defer stop()
	carried, policy := d.r.pressing(d.carried()), d.r.CurrentPolicy()
	if last := carried.Deadline().Add(-policy.NodeGracePeriod); !decision.CanWait(carried, last, policy) {
		var cancel context.CancelFunc
		doing, cancel = context.WithTimeout(doing, max(firstTries, time.Until(last)))
		defer cancel()
	}
	err := do(doing)
	if doing.Err() != nil && ctx.Err() == nil && errors.Is(err, context.Cause(doing)) {
		return nil
	}
	return err
}

// tellHeldBack says what holds the drain back; told is the reason that was said last.
func (d beginStage) tellHeldBack(t holdback.Permit, told decision.Why, rule string) {
	d.say(overview.HeldBack, heldBackBy(t, rule))
	if t.Why == told {
		return
	}
	d.history.heldBack = t.Detail
	d.log.Info("the drain is held back", "why", t.Why, "detail", t.Detail, "rule", rule)
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.HoldBack, Why: t.Why, Detail: t.Detail})
}

// goAhead cordons a node that was held back.
func (d beginStage) goAhead(ctx context.Context, why decision.Why, now time.Time) error {
	if err := d.forgetWhatPassed(ctx); err != nil {
		return err
	}
	if err := d.cordon(ctx, why, now); err != nil {
		return err
	}
	d.say(overview.Draining)
	d.log.Info("the drain is no longer held back", "why", why)
	if d.unrecorded.Load() || !d.r.Cluster.Exists(d.ref) { // it goes on without the cordon
		return nil
	}
	d.tellCordoned(d.log, why)
	return nil
}

// cordon writes that a node is held back no longer, and cordons it. If that cannot be written while half of the time
// to the deadline passes, the pods leave without the cordon, and it is tried on beside that; see goUnrecorded.
func (d beginStage) cordon(ctx context.Context, why decision.Why, now time.Time) error {
	released := func(i intent.Intent) intent.Intent { return i.Released(now) }
	return d.r.Cluster.RetryWrite(ctx, d.log, d.ref, "cordon the node", func(try context.Context) error {
		if d.unrecorded.Load() { // a notice that came meanwhile has begun the drain
			return nil
		}
		half := d.halfAfter(now)
		trying, cancel := context.WithTimeout(try, d.r.tryTimeout(d.ref, half))
		defer cancel()
		err := d.rewriteOnce(trying, released)
		if half = d.halfAfter(now); err == nil || half.IsZero() || time.Since(now) < firstTries || time.Now().Before(half) {
			return err
		}
		if err := d.lock(ctx); err != nil { // try may have ended
			return err
		}
		defer d.unlock()
		carried := d.carried() // a notice may have been recorded meanwhile
		if !carried.HeldBack || d.unrecorded.Load() {
			return nil
		}
		d.goUnrecorded(d.log, released(carried), why, err)
		d.goBeside(func() { _ = d.rewrite(ctx, unchanged) }) // it ends with ctx alone
		return nil
	})
}

// halfAfter is when half of the time from a moment to the deadline is over; zero: there is no deadline.
func (d beginStage) halfAfter(now time.Time) time.Time {
	deadline := d.r.pressing(d.carried()).Deadline()
	if deadline.IsZero() {
		return time.Time{}
	}
	return now.Add(deadline.Sub(now) / 2)
}

// decideAgain applies the current rules to the notices of a node that is held back. Notices that the rules ignore are
// removed. The hooks of a termination stay.
func (d beginStage) decideAgain(ctx context.Context) error {
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
		carried := d.carried()
		next := change(carried)
		switch {
		case reflect.DeepEqual(next.Entries, carried.Entries):
			return nil
		case len(next.Entries) == 0:
			reason := errIgnored
			if _, leftAlone := node.Labels[decision.LeaveAloneLabel]; leftAlone {
				reason = errLeftAlone
			}
			return d.quitIf(ctx, reason, func(i intent.Intent) bool { return i.HeldBack && len(change(i).Entries) == 0 })
		}
		d.log.Info("the rules or labels have changed: the notices of the node are decided about again",
			"rule", next.Terms().Rule)
		if err := d.rewrite(ctx, unlessNothingIsLeft(change)); err != nil {
			return err
		}
	}
}
