package decision

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const (
	// Young is how old an instance or a notice may be for a Node to be still expected.
	Young = 15 * time.Minute
	// LateAfter is how old a notice is when EC2 is asked what has become of the
	// instance since: EventBridge and SQS deliver within seconds.
	LateAfter = time.Minute

	// Before what a notice about a Capacity Reservation or a Capacity Block announces it is
	// sent so much earlier. It counts where the notice does not say when that happens.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
	reservationNotice = 2 * time.Minute
	blockNotice       = 10 * time.Minute
)

// Decide says what a notice means for one of its instances. It is pure: the
// tables of TestDecide are its specification.
//
//	             ours            no Node yet   Node or instance gone   foreign, elsewhere, unmanaged
//	spot …       drain           hold          drop                    leave
//	impaired     drain           hold          drop                    leave
//	closed, ok   undo            hold          drop                    leave
//	stopped …    finish          drop          drop                    leave
//	running      drop            drop          drop                    drop
//	terminating  drain, hook     hold, hook    complete the hook       leave
//	launching    launch hook     launch hook   complete the hook       leave
//
// An option can have dropped what would be left, but for an instance whose owner is unknown.
//
// A notice may be older than the present state. It is dropped if the instance was started
// again after it, unless it is about a Capacity Block, which ends for that instance too. It is
// dropped if it says that the instance stops, and EC2 says that the instance runs, or if it tells of
// a hook from which the machine returns, and nobody waits for that any more. Nothing is
// drained that EC2 says is gone, nor for a notice about spot instances where EC2 says that this is none.
//
// That an instance runs is no reason to do anything to its node. It says that notices of before are
// about an earlier life: they are forgotten, and what was done for them is reverted.
//
// The end of an instance is often announced before: a spot warning comes before the stop.
// If all Nodes of the instance were drained for the first notice, the second one asks for
// no second drain. A hook that waits for such an instance is completed.
//
// A hook that is not this program's is neither held open nor completed. Its instance
// terminates nevertheless, so its node is drained, for as long as that takes.
func Decide(n notice.Notice, f Facts, p Policy) Decision {
	if n.Runs {
		return Decision{Action: Drop, Why: WhyStillRuns}
	}
	switch f.Ownership {
	case Foreign, Elsewhere, Unmanaged:
		why := map[Ownership]Why{Foreign: WhyForeign, Elsewhere: WhyElsewhere, Unmanaged: WhyUnmanaged}
		return Decision{Action: p.Foreign(), Why: why[f.Ownership]}
	case Unknown: // the message comes back, and by then the Node may be there
		return Decision{Action: Leave, Why: WhyUnknown}
	case Departed:
		if p.Owns(n.Hook) {
			return Decision{Action: Complete, Why: WhyGone}
		}
		return Decision{Action: Drop, Why: WhyGone}
	case Pending, Ours:
	}
	if why := void(n, f, p); why != "" {
		return Decision{Action: Drop, Why: why}
	}
	d := byKind(n, f.Limits, f.Now, p)
	switch {
	case n.Kind == notice.ASGLaunch:
		d.Action = Launch
	case Late(n, f.Now) && f.State == Gone && n.Kind.Urgent():
		d = Decision{Action: Finish, Why: WhyNothingRuns}
	case n.Ended || n.Gone:
		d = atEnd(d, n, f)
	case f.Ownership == Pending:
		d.Action, d.Why, d.HoldUntil = Hold, WhyNoNodeYet, expectUntil(n, d.Deadline, f.Now, p)
	case f.Drained:
		if d.Action, d.Why = Drop, WhyConsequence; p.Owns(n.Hook) {
			d.Action = Complete
		}
	default:
		d = byRule(d, n, f, p)
	}
	return d
}

// void says why a notice for an instance of this cluster asks for nothing; empty: it does ask.
func void(n notice.Notice, f Facts, p Policy) Why {
	switch launch := n.Kind == notice.ASGLaunch; {
	case f.CalledOff:
		return WhyChangeEnded
	case f.NotSpot && n.Kind.OfSpot():
		return WhyNotSpot
	case launch && !p.Owns(n.Hook):
		return WhyOthersHook
	case launch: // of whatever life
		return ""
	case f.HookEnded:
		return WhyHookEnded
	case !n.Ended && f.EarlierLife(n):
		return WhyEarlierLife
	case n.Kind == notice.StateChange && f.State == Running && (n.Gone || Late(n, f.Now)):
		return WhyStillRuns
	}
	return ""
}

// atEnd is the decision about a notice that a change or an impairment is over, or that the machine has gone.
func atEnd(d Decision, n notice.Notice, f Facts) Decision {
	switch pending := f.Ownership == Pending; {
	case n.Kind == notice.InstanceImpaired && n.Ended && (f.State == Stopping || f.State == Gone):
		return Decision{Action: Drop, Why: WhyNothingRuns} // EC2 checks only what runs
	case n.Ended && pending: // its Node has to learn that the change is over
		d.Action, d.Why, d.HoldUntil = Hold, WhyNoNodeYet, n.HappenedAt(f.Now).Add(Young)
	case pending:
		d.Action = Drop
	case n.Ended:
		d.Action = Undo
	default:
		d.Action = Finish
	}
	return d
}

// byRule is the decision about a notice for a node that is here and whose machine may go: the first
// rule that matches makes it. Who ignores a notice does not wait for its hook either.
func byRule(d Decision, n notice.Notice, f Facts, p Policy) Decision {
	rule := p.RuleFor(n, f.Labels)
	d.Rule = rule.Name
	switch rule.Do {
	case Ignoring, Notifying:
		d = Decision{Action: Drop, Why: WhyIgnoredByRule, Deadline: d.Deadline, Rule: rule.Name}
		if rule.Do == Notifying {
			d.Why = WhyNotifiedByRule
		}
		if p.Owns(n.Hook) {
			d.Action = Complete
		}
		return d
	case Cordoning:
		if d.Action = Cordon; n.Kind == notice.InstanceImpaired { // the machine may stay: its deadline is for a drain
			d.Deadline = time.Time{}
		}
	case Draining:
		d.Action = Drain
	}
	if !d.ByFile() {
		return d
	}
	d.Terms = p.terms(&rule, intent.Entry{Kind: n.Kind, Deadline: d.Deadline}, d.Assumed, f.Now)
	waits := !d.Terms.NotBefore.IsZero() || rule.Limit != (Limit{}) || d.Terms.ReplaceFirst
	if waits && n.Kind != notice.ASGTerminate { // the node carries the rest; a hook may outlive its Node
		d.HoldUntil = f.Now.Add(p.NodeGracePeriod)
	}
	return d
}

// latestBegin is when the drain for a notice has to begin at the latest; zero: it can wait forever. If the deadline of
// a termination is only a guess, half of the time until then is left to become known, as in CanWait.
func (p Policy) latestBegin(e intent.Entry, assumed bool, now time.Time) time.Time {
	switch {
	case e.Kind == notice.InstanceImpaired, // it may go at any moment
		e.Deadline.IsZero() && (e.Kind == notice.ScheduledChange || e.Kind == notice.ASGTerminate):
		return now
	case e.Deadline.IsZero():
		return time.Time{}
	case e.Kind.Urgent():
		return now
	case e.Kind == notice.ASGTerminate && assumed:
		return e.Deadline.Add(-p.NodeGracePeriod / 2)
	}
	return e.Deadline.Add(-p.NodeGracePeriod)
}

// expectUntil is how long a Node of the notice's instance is waited for.
func expectUntil(n notice.Notice, deadline, now time.Time, p Policy) time.Time {
	patience := Young
	if n.Kind == notice.ASGTerminate { // a node that never joined must not keep its group from scaling in
		patience = p.NodeGracePeriod
	}
	return intent.Earlier(n.HappenedAt(now).Add(patience), deadline)
}

// Foreign is what is done with a message that is not this cluster's: Leave or Drop.
func (p Policy) Foreign() Action {
	if p.DeleteForeign {
		return Drop
	}
	return Leave
}

// byKind returns the reason and the deadline of the work, and how long its message is held at the longest.
func byKind(n notice.Notice, limits notice.HookLimits, now time.Time, p Policy) Decision {
	var d Decision
	switch n.Kind {
	case notice.SpotInterruption:
		d = Decision{Why: WhySpotInterruption, Deadline: spotDeadline(n, now)}
	case notice.CapacityReservationInterruption:
		d = Decision{Why: WhyReservation, Deadline: n.Deadline}
		if n.Deadline.IsZero() {
			d.Deadline = n.HappenedAt(now).Add(reservationNotice)
		}
	case notice.CapacityBlockExpiration:
		d = Decision{Why: WhyBlockExpires, Deadline: n.Deadline}
		if n.Deadline.IsZero() {
			d.Deadline = n.HappenedAt(now).Add(blockNotice)
		}
	case notice.RebalanceRecommendation:
		d = Decision{Why: WhyRebalance}
	case notice.StateChange:
		if n.Gone {
			return Decision{Why: WhyNothingRuns}
		}
		d = Decision{Why: WhyStopping, Deadline: n.HappenedAt(now).Add(p.NodeGracePeriod)}
	case notice.ScheduledChange:
		if n.Ended {
			return Decision{Why: WhyChangeEnded}
		}
		d = Decision{Why: whyScheduled(notice.EffectOf(n.Detail))}
		if n.Deadline.After(now) {
			d.Deadline = n.Deadline
		}
	case notice.InstanceImpaired:
		if n.Ended {
			return Decision{Why: WhyRecovered}
		}
		d = Decision{Why: WhyImpaired, Deadline: n.HappenedAt(now).Add(p.NodeGracePeriod)}
	case notice.ASGTerminate:
		d = Decision{Why: WhyScaleIn}
		if p.Owns(n.Hook) { // another one does not end the instance: ours holds it open
			d.Deadline, d.Assumed = n.HappenedAt(now).Add(HookTime(limits, p)), limits.Timeout <= 0
		}
	case notice.ASGLaunch:
		return Decision{Why: WhyLaunch, Deadline: n.HappenedAt(now).Add(launchTime(limits))}
	case notice.Ignored:
		return d
	}
	d.Deadline = intent.InForce(d.Deadline, now)
	if d.Deadline.IsZero() || n.Kind == notice.ScheduledChange { // days may be left: the node carries the rest
		d.HoldUntil = now.Add(p.NodeGracePeriod)
	}
	return d
}

// spotDeadline is when EC2 interrupts a spot instance.
func spotDeadline(n notice.Notice, now time.Time) time.Time {
	latest := now.Add(2 * time.Minute)
	switch {
	case n.Detail == notice.Hibernate: // it has begun, also where the metadata names a later time
		return n.HappenedAt(now)
	case n.Deadline.IsZero(), n.Deadline.After(latest) && !notice.OfMetadata(n.ID):
		return latest // a message tells no time of the action, and its own may be one of the future
	}
	return n.Deadline
}

// whyScheduled names what a scheduled change does to the machine.
func whyScheduled(e notice.Effect) Why {
	return [...]Why{
		notice.Unclear: WhyScheduledChange, notice.EndsMachine: WhyScheduledStop,
		notice.RebootsMachine: WhyScheduledReboot, notice.CutsNetwork: WhyScheduledNetwork,
	}[e]
}

// HookTime is how long a termination hook stays open, less a margin to complete it
// before it times out.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
func HookTime(limits notice.HookLimits, p Policy) time.Duration {
	open := limits.Timeout
	switch {
	case limits.Timeout <= 0:
		return p.NodeGracePeriod
	case p.HeartbeatUntil > 0:
		open = max(limits.Timeout, min(p.HeartbeatUntil, limits.Global))
	}
	return inTime(open)
}

// launchTime is the same for a launch hook. It gets no heartbeats: an instance that does
// not join the cluster is to be replaced after the hook's own timeout. Where that cannot
// be read, Auto Scaling's default is assumed, which does no harm: it forces nothing.
func launchTime(limits notice.HookLimits) time.Duration {
	if limits.Timeout <= 0 {
		return time.Hour
	}
	return inTime(limits.Timeout)
}

func inTime(open time.Duration) time.Duration {
	const margin = 5 * time.Second
	return open - min(margin, open/4)
}

// CanWait reports whether the drain of a node can be put off: it is not urgent, and more
// time is left than the grace period of a node. A deadline that is only a guess does not count for half of that
// time, in which it may become known. Nobody knows how much time a termination has that only hooks of others hold, or
// whose deadline passed long ago: on none of the Nodes of its machine, whichever carries the hooks.
func CanWait(i intent.Intent, now time.Time, p Policy) bool {
	guessed := isGuessed(i) && !slices.ContainsFunc(i.Hooks, func(h intent.Hook) bool {
		return now.Sub(h.Started) >= p.NodeGracePeriod/2
	})
	var d time.Time
	for _, e := range i.Entries {
		termination := e.Kind == notice.ASGTerminate
		if termination && e.Deadline.IsZero() {
			return false
		}
		if !termination || !guessed {
			d = intent.Earlier(d, e.Deadline)
		}
	}
	return !i.Urgent() && (d.IsZero() || now.Before(d.Add(-p.NodeGracePeriod)))
}

// isGuessed reports whether nobody knows when the hooks of a node's termination end.
func isGuessed(i intent.Intent) bool {
	return len(i.Hooks) > 0 && !slices.ContainsFunc(i.Hooks, func(h intent.Hook) bool { return !h.Assumed })
}

// CordonsOnly reports whether a node with this intent is cordoned, and that is all.
func CordonsOnly(i intent.Intent, p Policy) bool {
	if len(i.Entries) == 0 {
		return p.CordonOnly || p.CordonRebalance
	}
	return !slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
		byOption := p.CordonOnly || p.CordonRebalance && e.Kind == notice.RebalanceRecommendation
		return !e.CordonOnly && (e.Rule != "" || !byOption)
	})
}

// MachineGoes reports whether the machine goes away even if somebody uncordons its node.
// Otherwise the drain is called off by that. An impaired machine may stay, and the deadline of its
// drain is ours.
func MachineGoes(i intent.Intent, now time.Time, p Policy) bool {
	if i.Delegated() {
		return true
	}
	i = i.Forget(func(e intent.Entry) bool { return e.Kind == notice.InstanceImpaired })
	return i.Has(notice.ASGTerminate) || !CanWait(i, now, p)
}

// Late reports whether a notice is so old that it might no longer hold.
func Late(n notice.Notice, now time.Time) bool {
	return !n.Time.IsZero() && now.Sub(n.Time) > LateAfter
}

// CanFollow reports whether a notice can be the consequence of an earlier one. An instance
// that is interrupted, scaled in or maintained stops in the end, and its Auto Scaling group
// may hold that end open by a hook.
func CanFollow(n notice.Notice) bool {
	return n.Kind == notice.StateChange && !n.Gone && !n.Runs || n.Kind == notice.ASGTerminate
}

// WithoutNode is what to do about a notice whose instance has got no Node in time. unsure: the instance may be another
// cluster's, which drains it.
func (p Policy) WithoutNode(n notice.Notice, unsure bool) Action {
	switch {
	case !p.Owns(n.Hook):
		return Drop
	case unsure:
		return p.Foreign()
	}
	return Complete
}
