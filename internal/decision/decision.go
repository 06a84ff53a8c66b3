// Package decision says what a notice means for one instance: [Decide] is the one
// function that a newcomer has to read. All of it is pure: facts in, a decision out.
package decision

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Action is what to do about a notice for one instance. The zero value does
// nothing and loses nothing.
type Action uint8

// The actions.
const (
	Leave    Action = iota // not ours: leave the message to others
	Drop                   // nothing begins: the message can be deleted. What an earlier life has left is taken back
	Hold                   // ours, but without a Node so far: hold the message until one comes
	Cordon                 // cordon the node, and that is all
	Drain                  // cordon the node and drain it
	Undo                   // revert what a scheduled change that is cancelled, or an impairment, did to the node
	Finish                 // nothing runs on the instance any more: end its drain
	Complete               // no Node has anything left to do: complete the lifecycle hook
	Launch                 // complete the launch hook once the Node is ready
	Reject                 // the message cannot be read
)

// String is the action's name in logs and in metric labels.
func (a Action) String() string {
	return [...]string{"leave", "drop", "hold", "cordon", "drain", "undo", "finish", "complete", "launch", "reject"}[a]
}

// Ownership says whose the instance is that a notice names.
type Ownership uint8

// The ownerships.
const (
	Foreign   Ownership = iota // not this cluster's, as far as anybody can tell
	Elsewhere                  // of another account or region
	Unmanaged                  // the tag check is on and the instance does not have the tag
	Unknown                    // the role lacks the permission to ask EC2, or EC2 does not show its tags so far
	Pending                    // this cluster's, but no Node of it so far
	Departed                   // this cluster's, but its Node or the instance is gone
	Ours                       // a Node has it
)

// InstanceState is what EC2 says of an instance at the moment.
type InstanceState uint8

// The states of an instance.
const (
	NotKnown InstanceState = iota // nobody has asked, or there was no answer
	Running                       // or pending
	Stopping                      // or shutting down
	Gone                          // stopped, terminated, or not known any more
)

// Facts are what a decision about a notice rests on, beside the notice itself.
type Facts struct {
	Ownership Ownership
	State     InstanceState
	// Launched is when the instance was started last; zero: not known.
	Launched time.Time
	// NotSpot: EC2 says that it is no spot instance. False where it is not known.
	NotSpot bool
	// Limits are those of the notice's hook; zero where it has none, or they could not be read.
	Limits notice.HookLimits
	// CalledOff: the scheduled change that the notice announces is over, as a later notice
	// has said.
	CalledOff bool
	// HookEnded: Auto Scaling does not wait for the notice's hook any more, and the machine
	// was to come back from it.
	HookEnded bool
	// Drained: the end of the instance was announced before, and all its Nodes are as the
	// drain for that has left them: cordoned, and without a pod that would have to leave.
	Drained bool
	// Labels are those of the Node; nil: there is none.
	Labels map[string]string
	Now    time.Time
}

// EarlierLife reports whether the notice is about an earlier life of the instance: it
// was stopped, and has been started again since.
func (f Facts) EarlierLife(n notice.Notice) bool {
	return !n.Time.IsZero() && n.Time.Before(f.Launched) && !n.Kind.SurvivesRestart()
}

// Policy is what the options say about decisions.
type Policy struct {
	CordonOnly      bool
	CordonRebalance bool          // for a rebalance recommendation cordon the node, and that is all
	DeleteForeign   bool          // delete messages of instances that are not found here
	NodeGracePeriod time.Duration // bounds a drain where the notice has no deadline
	// HeartbeatUntil is how long heartbeats can hold a hook open; zero: none are sent.
	HeartbeatUntil time.Duration
	// HookNames are the lifecycle hooks to hold open and to complete; empty: all.
	HookNames []string
	// Accounts are those whose notices are acted on, and Region the one they have to
	// come from. Empty: not known, not compared.
	Accounts []string
	Region   string
	// ManagedTag must be on an instance for its notices to be acted on. Empty: no tag check.
	ManagedTag string
	// Exclusion says which nodes are excluded from load balancers.
	Exclusion Exclusion
	// DrainByKarpenter leaves the pods of Karpenter's nodes to Karpenter, unless a rule says otherwise.
	DrainByKarpenter bool
	// Rules are those of the policy file.
	Rules Rules
}

// Elsewhere reports whether the notice is about another account or region.
func (p Policy) Elsewhere(n notice.Notice) bool {
	return len(p.Accounts) > 0 && n.Account != "" && !slices.Contains(p.Accounts, n.Account) ||
		p.Region != "" && n.Region != "" && n.Region != p.Region
}

// LacksTag reports whether an instance with these tags is not this program's to drain.
func (p Policy) LacksTag(tags map[string]string) bool {
	_, tagged := tags[p.ManagedTag]
	return p.ManagedTag != "" && !tagged
}

// Owns reports whether a hook is this program's to hold open and to complete.
func (p Policy) Owns(h notice.Hook) bool {
	return h.Name != "" && (len(p.HookNames) == 0 || slices.Contains(p.HookNames, h.Name))
}

// A Decision is what to do about a notice for one instance, and why.
type Decision struct {
	Action Action
	Why    Why
	// Deadline is when the machine goes away: pods are forced off before. Zero: nothing is forced.
	Deadline time.Time
	// Assumed: the deadline is a guess, because the hook's limits could not be read.
	Assumed bool
	// HoldUntil is how long the message is held for the end of the work; zero: as long
	// as it takes. Work that takes longer goes on without the message.
	HoldUntil time.Time
	// Rule is the name of the rule that decided; empty: none was asked. Terms are what it says of the
	// drain; zero where it stands for options.
	Rule  string
	Terms intent.Terms
}

// ByFile reports whether a rule of the policy file has decided.
func (d Decision) ByFile() bool { return d.Rule != "" && !IsOption(d.Rule) }

// Why is the reason of a decision: a log field and a metric label, so a closed set.
type Why string

// The reasons.
const (
	WhyForeign          Why = "instance-not-in-cluster"
	WhyElsewhere        Why = "other-account-or-region"
	WhyUnmanaged        Why = "instance-not-managed"
	WhyUnknown          Why = "instance-unknown"
	WhyNoNodeYet        Why = "node-not-registered-yet"
	WhyGone             Why = "instance-gone"
	WhyNothingRuns      Why = "instance-stopped"
	WhyNotSpot          Why = "instance-not-spot"
	WhyEarlierLife      Why = "before-the-last-launch"
	WhyStillRuns        Why = "instance-runs"
	WhySpotInterruption Why = "spot-interruption"
	WhyRebalance        Why = "rebalance-recommendation"
	WhyStopping         Why = "instance-stopping"
	WhyReservation      Why = "capacity-reservation-interruption"
	WhyBlockExpires     Why = "capacity-block-expiration"
	WhyScheduledStop    Why = "scheduled-stop"
	WhyScheduledReboot  Why = "scheduled-reboot"
	WhyScheduledNetwork Why = "scheduled-network-maintenance"
	WhyScheduledChange  Why = "scheduled-change"
	WhyChangeEnded      Why = "scheduled-change-ended"
	WhyImpaired         Why = "instance-impaired"
	WhyRecovered        Why = "instance-not-impaired"
	WhyConsequence      Why = "consequence-of-finished-drain"
	WhyScaleIn          Why = "lifecycle-hook-terminating"
	WhyLaunch           Why = "lifecycle-hook-launching"
	WhyOthersHook       Why = "lifecycle-hook-of-others"
	WhyHookEnded        Why = "lifecycle-hook-ended"
	WhyMaxUnready       Why = "max-unready-nodes"
	WhyEnoughReady      Why = "enough-nodes-ready"
	WhyDeadlineNear     Why = "deadline-near"
	WhyUncordoned       Why = "uncordoned-by-somebody"
	WhyUncordonedAgain  Why = "uncordoned-by-somebody-again"
	WhyBackInService    Why = "back-in-service"
	WhyRestarted        Why = "machine-restarted"
	WhyNextNode         Why = "another-node-of-the-instance"
	WhyUndecodable      Why = "undecodable"
	WhyNoInstanceID     Why = "no-instance-id"
	WhyDryRun           Why = "dry-run"
	WhyIgnoredByRule    Why = "ignored-by-rule"
	WhyNotifiedByRule   Why = "notified-by-rule"
	WhyRuleTime         Why = "time-of-rule"
	WhyRuleLimit        Why = "limit-of-rule"
	WhyReplacement      Why = "replacement-awaited"
	WhyReplacementLate  Why = "replacement-late"
	WhyNoReplacement    Why = "replacement-impossible"
	WhyReplacementRight Why = "replacement-denied"
	WhyReplacementFails Why = "replacement-refused"

	WhyDelegated        Why = "drained-by-karpenter"
	WhyKarpenterOff     Why = "drain-by-karpenter-is-off"
	WhyNoNodeClaim      Why = "no-nodeclaim"
	WhyKarpenterRefused Why = "nodeclaim-not-deleted"
	WhyKarpenterAway    Why = "karpenter-does-not-act"
	WhyRuleByHandler    Why = "handler-by-rule"
)
