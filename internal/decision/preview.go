package decision

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A Preview is what a notice would mean for a node.
type Preview struct {
	Why Why
	// Ignored: the notice is left alone, for the reason Why, and the node with it.
	Ignored bool
	// Rule is the name of the rule that would decide; empty: the notice is not asked about.
	Rule string
	// Follows: the node was drained for the end of its instance, and the notice only
	// tells of that: if no pods have come since, nothing is done.
	Follows bool
	// Intent is what the node would carry.
	Intent intent.Intent
}

// A Subject is what is known of the node that a notice is about.
type Subject struct {
	// Tags are those of its instance; nil: not known, and then they are taken to be right.
	Tags map[string]string
	// NotSpot: EC2 says that its instance is no spot instance. False where the controller would not ask.
	NotSpot bool
	// Limits are those of the notice's hook; zero where it has none, or they are not known.
	Limits notice.HookLimits
	// Carried is the node's intent, or the zero one.
	Carried intent.Intent
	// Cordoned: the node is, by whomever.
	Cordoned bool
	// Labels are those of the node.
	Labels map[string]string
}

// Preview decides about a notice for a node of this cluster as the controller would.
func (p Policy) Preview(n notice.Notice, of Subject, now time.Time) Preview {
	f := Facts{Ownership: Ours, NotSpot: of.NotSpot, Limits: of.Limits, Labels: of.Labels, Now: now}
	switch {
	case p.Elsewhere(n):
		f.Ownership = Elsewhere
	case of.Tags != nil && p.LacksTag(of.Tags):
		f.Ownership = Unmanaged
	}
	d := Decide(n, f, p)
	if f.Ownership != Ours || d.Why == WhyNotSpot || d.Why == WhyIgnoredByRule || d.Why == WhyNotifiedByRule {
		return Preview{Why: d.Why, Ignored: true, Rule: d.Rule}
	}
	return Preview{
		Why:     d.Why,
		Rule:    d.Rule,
		Follows: CanFollow(n) && of.Cordoned && of.Carried.DrainedForEnd(),
		Intent:  of.Carried.With(d.Entry(n, now), nil, now),
	}
}

// Entry is the notice as a node carries it, with what was decided about it.
func (d Decision) Entry(n notice.Notice, now time.Time) intent.Entry {
	e := intent.Entry{Kind: n.Kind, Change: n.Change, Time: n.HappenedAt(now), Deadline: d.Deadline, Terms: d.Terms}
	// The leader that has found a change by a poll finds out when it is over. The metadata may forget to say so.
	e.Returns = n.Kind == notice.ASGTerminate && n.Hook.Returns() ||
		n.Kind == notice.ScheduledChange && notice.EffectOf(n.Detail) == notice.RebootsMachine &&
			(!notice.IsPolled(n.Change) || notice.OfMetadata(n.ID))
	if n.Kind == notice.ScheduledChange || n.Kind == notice.InstanceImpaired {
		e.Code = n.Detail
	}
	if n.ID != "" {
		e.IDs = []string{n.ID}
	}
	return e
}

// Knows reports whether an intent tells of a notice already: a drain for it is recorded or was; what it ends is ended.
func Knows(i intent.Intent, n notice.Notice, now time.Time) bool {
	if n.Ended {
		return !i.Asks(intent.Entry{Kind: n.Kind, Change: n.Change})
	}
	return i.HasHeardOf(Decision{Deadline: n.Deadline}.Entry(n, now), now)
}
