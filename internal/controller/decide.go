package controller

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// action is what to do about a notice for one instance. The zero value does
// nothing and loses nothing.
type action uint8

const (
	leave    action = iota // not ours: leave the message to others
	drop                   // nothing to do (any more): the message can go
	hold                   // ours, but without a Node so far: wait for one
	cordon                 // cordon the node, and that is all
	drain                  // cordon the node and drain it
	undo                   // take back what a scheduled change has brought
	finish                 // nothing runs on the instance any more: end its drain
	complete               // no Node will come: complete the lifecycle hook
	launch                 // complete the launch hook once the Node is ready
)

// String is the action's name in logs.
func (a action) String() string {
	return [...]string{"leave", "drop", "hold", "cordon", "drain", "undo", "finish", "complete", "launch"}[a]
}

// whose is what is known of the instance that a notice names.
type whose uint8

const (
	foreign   whose = iota // not this cluster's, as far as anybody can tell
	unmanaged              // the tag check is on and the instance does not have the tag
	unknown                // no Node has it, and EC2 may not be asked
	pending                // this cluster's, but no Node of it so far
	departed               // this cluster's, but its Node or the instance is gone
	ours                   // a Node has it
)

// facts are what a decision about a notice rests on, beside the notice itself.
type facts struct {
	whose whose
	// limits are those of the notice's hook; zero where it has none, or they could not be read.
	limits asg.Limits
	// calledOff: the scheduled change that the notice announces is over, as a later one has said.
	calledOff bool
	now       time.Time
}

// Policy is what the options say about decisions.
type Policy struct {
	CordonOnly      bool
	DeleteForeign   bool          // delete messages of instances that are not found here
	NodeGracePeriod time.Duration // bounds a drain where the notice has no deadline
	// HeartbeatUntil is how long heartbeats may hold a hook open; zero: none are sent.
	HeartbeatUntil time.Duration
	// HookNames are the lifecycle hooks to hold open and to complete; empty: all.
	HookNames []string
	// MaxUnready is how many nodes may be not ready or cordoned for drains that can
	// wait: a number, or a percentage of all nodes. Zero: no bound.
	MaxUnready intstr.IntOrString
}

// owns reports whether a hook is this program's to hold open and to complete.
func (p Policy) owns(h notice.Hook) bool {
	return h.Name != "" && (len(p.HookNames) == 0 || slices.Contains(p.HookNames, h.Name))
}

// decision is what to do about a notice for one instance, and why.
type decision struct {
	action action
	why    Why
	// deadline is when the machine goes away: pods are forced off before. Zero: nothing is forced.
	deadline time.Time
	// patience is how long the message waits for the end of the work; zero: as long
	// as it takes. Work that goes on longer goes on without the message.
	patience time.Time
}

// Why is the reason of a decision: a log field and a metric label, so a closed set.
type Why string

// The reasons.
const (
	WhyForeign          Why = "instance-not-in-cluster"
	WhyUnmanaged        Why = "instance-not-managed"
	WhyUnknown          Why = "instance-unknown"
	WhyNoNodeYet        Why = "node-not-registered-yet"
	WhyGone             Why = "instance-gone"
	WhyNothingRuns      Why = "nothing-runs-there-any-more"
	WhySpotInterruption Why = "spot-interruption"
	WhyRebalance        Why = "rebalance-recommendation"
	WhyStopping         Why = "instance-stopping"
	WhyScheduledChange  Why = "scheduled-change"
	WhyChangeEnded      Why = "scheduled-change-ended"
	WhyScaleIn          Why = "lifecycle-hook-terminating"
	WhyLaunch           Why = "lifecycle-hook-launching"
	WhyOthersHook       Why = "lifecycle-hook-of-others"
	WhyMaxUnready       Why = "max-unready-nodes"
	WhyEnoughReady      Why = "enough-nodes-ready"
	WhyDeadlineNear     Why = "deadline-near"
	WhyUndecodable      Why = "undecodable"
	WhyDryRun           Why = "dry-run"
)

const (
	// young is how old an instance or a notice may be for a Node to be still expected.
	young = 15 * time.Minute
	// overdue is how long after its deadline a machine that is still there is taken
	// to go any moment. After that it has been started again, or its notice lay in the
	// queue: nothing is known of its end any more, and nothing is forced.
	overdue = 15 * time.Minute
)

// decide says what a notice means for one of its instances. It is pure: the
// tables of TestDecide are its specification.
//
//	             ours            no Node yet   Node or instance gone   foreign, unmanaged (unknown: leave)
//	spot …       drain           hold          drop                    leave (drop, by option)
//	closed       undo            drop          drop                    leave
//	stopped …    finish          drop          drop                    leave
//	terminating  drain, hook     hold, hook    complete the hook       leave
//	launching    launch hook     launch hook   complete the hook       leave
//
// A hook that is somebody else's is neither held nor completed: its instance
// terminates all the same, and so its node is drained, for as long as it takes.
func decide(n notice.Notice, f facts, p Policy) decision {
	switch f.whose {
	case foreign, unmanaged:
		d := decision{action: leave, why: WhyForeign}
		if f.whose == unmanaged {
			d.why = WhyUnmanaged
		}
		if p.DeleteForeign {
			d.action = drop
		}
		return d
	case unknown: // its Node may come, and then so does the message
		return decision{action: leave, why: WhyUnknown}
	case departed:
		if p.owns(n.Hook) {
			return decision{action: complete, why: WhyGone}
		}
		return decision{action: drop, why: WhyGone}
	case pending, ours:
	}
	d := terms(n, f.limits, f.now, p)
	switch {
	case f.calledOff:
		d = decision{action: drop, why: WhyChangeEnded}
	case n.Kind == notice.ASGLaunch && !p.owns(n.Hook):
		d = decision{action: drop, why: WhyOthersHook}
	case n.Kind == notice.ASGLaunch:
		d.action = launch
	case n.Ended || n.Gone:
		d.action = drop
		if f.whose == ours && n.Ended {
			d.action = undo
		} else if f.whose == ours {
			d.action = finish
		}
	case f.whose == pending:
		d.action, d.why = hold, WhyNoNodeYet
		d.patience = began(n, f.now).Add(young)
		if n.Kind == notice.ASGTerminate { // a node that never joined must not keep its group from scaling in
			d.patience = began(n, f.now).Add(p.NodeGracePeriod)
		}
		d.patience = cluster.Earlier(d.patience, d.deadline)
	case p.CordonOnly:
		d.action = cordon
	default:
		d.action = drain
	}
	return d
}

// terms are the reason, the deadline and the patience that a notice gives the work.
func terms(n notice.Notice, limits asg.Limits, now time.Time, p Policy) decision {
	var d decision
	switch n.Kind {
	case notice.SpotInterruption:
		d = decision{why: WhySpotInterruption, deadline: n.Deadline}
		if latest := now.Add(2 * time.Minute); n.Deadline.IsZero() || n.Deadline.After(latest) {
			d.deadline = latest // no time, or one of the future
		}
	case notice.RebalanceRecommendation:
		d = decision{why: WhyRebalance}
	case notice.StateChange:
		if n.Gone {
			return decision{why: WhyNothingRuns}
		}
		d = decision{why: WhyStopping, deadline: began(n, now).Add(p.NodeGracePeriod)}
	case notice.ScheduledChange:
		if n.Ended {
			return decision{why: WhyChangeEnded}
		}
		d = decision{why: WhyScheduledChange}
		if n.Deadline.After(now) {
			d.deadline = n.Deadline
		}
	case notice.ASGTerminate:
		d = decision{why: WhyScaleIn}
		if p.owns(n.Hook) { // the time of somebody else's says nothing: ours holds the instance longer
			d.deadline = began(n, now).Add(hookTime(limits, p))
		}
	case notice.ASGLaunch:
		return decision{why: WhyLaunch, deadline: began(n, now).Add(hookTime(limits, p))}
	case notice.Ignored:
		return d
	}
	if now.Sub(d.deadline) > overdue {
		d.deadline = time.Time{}
	}
	if d.deadline.IsZero() {
		d.patience = now.Add(p.NodeGracePeriod)
	}
	return d
}

// hookTime is how long a lifecycle hook stays open, less what it takes to
// complete it before it times out.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
func hookTime(limits asg.Limits, p Policy) time.Duration {
	const margin = 5 * time.Second
	open := limits.Timeout
	switch {
	case limits.Timeout <= 0:
		return p.NodeGracePeriod
	case p.HeartbeatUntil > 0:
		open = max(limits.Timeout, min(p.HeartbeatUntil, limits.Global))
	}
	return open - min(margin, open/4)
}

// began is when the event happened; clocks differ, so never after now.
func began(n notice.Notice, now time.Time) time.Time {
	if n.Time.IsZero() || n.Time.After(now) {
		return now
	}
	return n.Time
}

// urgent reports whether a machine is going within minutes, whatever becomes of the cluster.
func urgent(i cluster.Intent) bool {
	return dated(i, notice.SpotInterruption) || dated(i, notice.StateChange)
}

// dated reports whether a notice of the kind tells when the machine goes away.
func dated(i cluster.Intent, kind notice.Kind) bool {
	return slices.ContainsFunc(i.Entries, func(e cluster.Entry) bool { return e.Kind == kind && !e.Deadline.IsZero() })
}

// canWait reports whether the drain of a node can be put off: it is not urgent,
// and there is more time left than it may take.
func canWait(i cluster.Intent, now time.Time, p Policy) bool {
	d := i.Deadline()
	return !urgent(i) && (d.IsZero() || now.Before(d.Add(-p.NodeGracePeriod)))
}

// mostUnready is how many of the cluster's nodes may be not ready or cordoned. A
// percentage is rounded down, but one node may always be.
func (p Policy) mostUnready(nodes int) int {
	most, err := intstr.GetScaledValueFromIntOrPercent(&p.MaxUnready, nodes, false)
	if err != nil { // neither a number nor a percentage: the configuration has no such value
		return nodes
	}
	return max(1, most)
}
