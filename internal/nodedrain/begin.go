package nodedrain

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
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
	for first := true; ; first = false {
		newRules := d.r.RulesChanged()
		if newRules != decidedBy || first && d.resumed || d.isRuledOtherwise() { // also while a notice was being recorded
			if err := d.decideAgain(ctx); err != nil {
				return err
			}
			decidedBy = newRules
		}
		carried, changed := d.current()
		if !carried.HeldBack || !d.r.Cluster.Exists(d.ref) { // an urgent notice may have come, or the Node have gone
			return nil
		}
		now := time.Now().UTC()
		t := d.place.Ask(carried, now, first || !reflect.DeepEqual(asked, carried))
		asked = carried
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
		waiting, done := context.WithDeadline(ctx, t.Again)
		_ = awaitAny(waiting, changed, newRules, relabelled, gone)
		done()
		if isClosed(gone) || ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// watchLabels tells when, by the labels of the node, another rule is about one of its notices, until stop is called.
func (d beginStage) watchLabels() (relabelled <-chan struct{}, stop func()) {
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
func (d beginStage) isRuledOtherwise() bool {
	node, there := d.r.Cluster.Look(d.ref)
	return there && d.r.CurrentPolicy().IsRuledOtherwise(d.carried(), node.Labels)
}

// unlessReplaced is the permit of a drain, but for one that waits for a replacement first. It is empty where that has
// turned out to be in vain.
func (d beginStage) unlessReplaced(
	ctx context.Context, t holdback.Permit, carried intent.Intent,
) (holdback.Permit, error) {
	if t.Begins && t.Why != decision.WhyDeadlineNear && d.r.replacesFirst(carried) {
		return replacing(d).next(ctx)
	}
	return t, nil
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
	if err := d.cordon(ctx, now); err != nil {
		return err
	}
	d.say(overview.Draining)
	d.log.Info("the drain is no longer held back", "why", why)
	d.log.Info("cordoned", "why", why)
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.Cordon, Why: why})
	return nil
}

// cordon writes that a node is held back no longer, and cordons it. If that cannot be written while half of the time
// to the deadline passes, the pods leave without the cordon; see goUnrecorded.
func (d beginStage) cordon(ctx context.Context, now time.Time) error {
	released := func(i intent.Intent) intent.Intent { return i.Released(now) }
	return cluster.Retry(ctx, d.log, "cordon the node", func(try context.Context) error {
		if d.unrecorded.Load() { // a notice that came meanwhile has begun the drain
			return nil
		}
		err := d.rewriteOnce(try, released)
		carried := d.carried()
		deadline := carried.Deadline()
		if err == nil || deadline.IsZero() || time.Since(now) < firstTries || time.Since(now) < time.Until(deadline) {
			return err
		}
		if err := d.lock(ctx); err != nil { // try may have ended
			return err
		}
		defer d.unlock()
		carried = d.carried() // a notice may have been recorded meanwhile
		if !carried.HeldBack || d.unrecorded.Load() {
			return nil
		}
		d.goUnrecorded(d.log, released(carried))
		return nil
	})
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
			return d.quitIf(ctx, errIgnored, func(i intent.Intent) bool { return i.HeldBack && len(change(i).Entries) == 0 })
		}
		d.log.Info("the rules or labels have changed: the notices of the node are decided about again",
			"rule", next.Terms().Rule)
		if err := d.rewrite(ctx, unlessNothingIsLeft(change)); err != nil {
			return err
		}
	}
}

// againAfter is when something is asked once more that AWS has not answered.
const againAfter = 10 * time.Second

// replacesFirst reports whether a node that carries an intent waits for a replacement, or for the attempt
// to get one.
func (c *Config) replacesFirst(i intent.Intent) bool {
	return c.Replacements != nil && i.ReplacesFirst()
}

// A replacing gets the node of a drain that is held back replaced.
type replacing struct{ *Drain }

// next takes the next step towards the replacement of a node that is held back, and whose drain may
// begin otherwise. It returns until when the drain waits; the notice that the group terminates the instance begins it
// sooner. Without a replacement it writes down why: the node does not wait for one any more.
//
// That the group may have been asked is written down before the call, which may be made twice.
func (p replacing) next(ctx context.Context) (holdback.Permit, error) {
	carried := p.carried()
	now := time.Now().UTC()
	calling, stop := p.whileNot(ctx, nil, func() bool { // an urgent notice does not wait for an answer of Auto Scaling
		now := p.carried()
		return !now.HeldBack || !now.ReplacesFirst() || isClosed(p.instanceGone.done)
	})
	defer stop()
	next := carried.Replacement
	// Another notice, or other rules, may leave less time than there was.
	until := intent.Earlier(next.Until, p.r.CurrentPolicy().ReplacementUntil(carried, now))
	var err error
	switch {
	case next.Until.IsZero(): // the next leader does not begin to count anew
		next.Until = until
	case !now.Before(until):
		const detail = "the group has not replaced the instance in time"
		return holdback.Permit{}, p.none(ctx, decision.WhyReplacementLate, detail)
	case next.Step == intent.Marked:
		return awaitsReplacement(next, until), nil
	case next.Step == intent.Marking:
		if err = p.r.Replacements.MarkUnhealthy(calling, p.ref.Instance); err == nil {
			next.Step = intent.Marked
		}
	default:
		next, err = p.choose(calling, carried)
	}
	refusal, refused := errors.AsType[*replacement.Refusal](err)
	switch {
	case ctx.Err() != nil:
		return holdback.Permit{}, context.Cause(ctx)
	case refused:
		return holdback.Permit{}, p.none(ctx, whyRefused(refusal.Reason), refusal.Text)
	case err != nil:
		if calling.Err() == nil {
			p.log.Info("the replacement of the node is tried again", "error", err)
		}
		return awaitsReplacement(carried.Replacement, now.Add(againAfter)), nil
	}
	asked := carried.Replacement.Step == intent.Marking
	return awaitsReplacement(next, until), p.rewrite(ctx, func(i intent.Intent) intent.Intent {
		if asked || i.HeldBack && i.ReplacesFirst() { // otherwise nothing was done, and nobody waits for it any more
			i.Replacement = next
		}
		return i
	})
}

// awaitsReplacement is the permit of a drain that waits for a replacement; it asks again at a time.
func awaitsReplacement(r intent.Replacement, again time.Time) holdback.Permit {
	detail := "a replacement is looked for"
	if r.Step != intent.NotReplacing {
		detail = "group " + r.Group + " replaces the instance, at most until " + r.Until.Format(time.RFC3339)
	}
	return holdback.Permit{Why: decision.WhyReplacement, Again: again, Detail: detail}
}

// choose is what is to be written down before the first call that changes something.
func (p replacing) choose(ctx context.Context, i intent.Intent) (intent.Replacement, error) {
	nothing, id := intent.Replacement{}, p.ref.Instance
	if id == "" {
		return nothing, &replacement.Refusal{Reason: replacement.Impossible, Text: "the instance of the node is not known"}
	}
	own, ok, err := p.r.Replacements.Member(ctx, id)
	if err != nil {
		return nothing, err
	}
	next := intent.Replacement{Group: own.Group, Until: i.Replacement.Until}
	switch {
	case !ok:
		return nothing, &replacement.Refusal{
			Reason: replacement.Impossible,
			Text:   "instance " + id + " is in no Auto Scaling group: whoever launched it replaces it",
		}
	case own.Goes: // the notice of its termination comes
		next.Step = intent.Marked
		return next, nil
	}
	g, err := p.r.Replacements.Group(ctx, own.Group)
	if err != nil {
		return nothing, err
	}
	var kinds []notice.Kind
	for _, e := range i.Entries {
		kinds = append(kinds, e.Kind)
	}
	switch way, why := replacement.Choose(kinds, g, p.completesHooksOf(g)); way {
	case replacement.ByItself:
		next.Step = intent.Marked
	case replacement.ByGroup:
		next.Step = intent.Marking
	case replacement.NoWay:
		return nothing, &replacement.Refusal{Reason: replacement.Impossible, Text: why}
	}
	return next, nil
}

// completesHooksOf reports whether a termination hook of the group is completed by this handler.
func (p replacing) completesHooksOf(g replacement.Group) bool {
	return slices.ContainsFunc(g.TerminationHooks, func(name string) bool { return p.r.Owns(notice.Hook{Name: name}) })
}

// whyRefused is the reason for metrics.
func whyRefused(r replacement.Reason) decision.Why {
	switch r {
	case replacement.Denied:
		return decision.WhyReplacementRight
	case replacement.Impossible:
		return decision.WhyNoReplacement
	case replacement.Refused:
	}
	return decision.WhyReplacementFails
}

// none says that the node gets none, and writes it down.
func (p replacing) none(ctx context.Context, why decision.Why, detail string) error {
	err := p.rewrite(ctx, func(i intent.Intent) intent.Intent {
		i.Replacement.Step, i.Replacement.Why = intent.Over, detail
		return i
	})
	if err != nil {
		return err
	}
	logging.Warn(p.log, "the node gets no replacement before its drain", "why", why, "detail", detail)
	p.r.Observer.Stepped(report.Step{Node: p.ref, Kind: report.Replace, Why: why, Err: errors.New(detail)})
	return nil
}
