package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

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
		i := p.carried()
		return !i.HeldBack || !i.ReplacesFirst() || isClosed(p.instanceGone.done)
	})
	defer stop()
	next := carried.Replacement
	// Another notice, or other rules, may leave less time than there was.
	until := intent.Earlier(next.Until, p.r.CurrentPolicy().ReplacementUntil(carried, now))
	var err error
	switch {
	case next.Until.IsZero(), until.Before(next.Until): // the next leader does not count from the start
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
	refusal, refused := errors.AsType[*asg.Refusal](err)
	switch {
	case ctx.Err() != nil:
		return holdback.Permit{}, context.Cause(ctx)
	case refused:
		return holdback.Permit{}, p.none(ctx, refusal.Why, refusal.Text)
	case err != nil:
		if calling.Err() == nil {
			p.log.V(1).Info("the replacement of the node is tried again", "error", err)
		}
		return awaitsReplacement(carried.Replacement, intent.Earlier(now.Add(againAfter), until)), nil
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
		return nothing, &asg.Refusal{Why: decision.WhyNoReplacement, Text: "the instance of the node is not known"}
	}
	own, ok, err := p.r.Replacements.Member(ctx, id)
	if err != nil {
		return nothing, err
	}
	next := intent.Replacement{Group: own.Group, Until: i.Replacement.Until}
	switch {
	case !ok:
		return nothing, &asg.Refusal{
			Why:  decision.WhyNoReplacement,
			Text: "instance " + id + " is in no Auto Scaling group: whoever launched it replaces it",
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
	step, why := asg.Choose(kinds, g, p.completesHooksOf(g))
	if step == intent.NotReplacing {
		return nothing, &asg.Refusal{Why: decision.WhyNoReplacement, Text: why}
	}
	next.Step = step
	return next, nil
}

// completesHooksOf reports whether a termination hook of the group is completed by this handler.
func (p replacing) completesHooksOf(g asg.Group) bool {
	return slices.ContainsFunc(g.TerminationHooks, func(name string) bool { return p.r.Owns(notice.Hook{Name: name}) })
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
