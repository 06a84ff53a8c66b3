// Package notice reads what EC2, Auto Scaling, AWS Health and SNS put into the
// queue. It is pure and total: any body gives a Notice or an error, quickly.
package notice

import (
	"regexp"
	"slices"
	"time"
)

// Kind is what a notice announces. The zero value announces nothing.
type Kind uint8

// The kinds of notice that are acted on, and Ignored for the others.
const (
	// Ignored is a well-formed body that asks for nothing; Notice.Ignored says why.
	Ignored Kind = iota
	// SpotInterruption is the two-minute warning of a spot reclaim.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
	SpotInterruption
	// RebalanceRecommendation says that a spot instance is at elevated risk.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
	RebalanceRecommendation
	// StateChange says that an instance is stopping, shutting down or gone, or that it runs.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
	StateChange
	// ScheduledChange is maintenance that AWS Health announces, or its end.
	// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
	ScheduledChange
	// ASGTerminate is a termination held by an Auto Scaling lifecycle hook.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
	ASGTerminate
	// ASGLaunch is a launch held by an Auto Scaling lifecycle hook.
	ASGLaunch
	// CapacityReservationInterruption says that EC2 takes an instance back which runs in
	// capacity that is only lent, or in a Capacity Block.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitor-interruptible-cr.html
	CapacityReservationInterruption
	// CapacityBlockExpiration says that a Capacity Block ends, and all its instances with it.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
	CapacityBlockExpiration
	// InstanceImpaired says that the status checks of an instance fail, or that they do not fail
	// any more. No message tells of it: the leader asks EC2.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
	InstanceImpaired
)

// Kinds are all kinds that are acted on, in the order of their constants.
var Kinds = []Kind{
	SpotInterruption, RebalanceRecommendation, StateChange, ScheduledChange, ASGTerminate, ASGLaunch,
	CapacityReservationInterruption, CapacityBlockExpiration, InstanceImpaired,
}

// String is the kind's name in logs, metrics and the intent annotation.
func (k Kind) String() string {
	return [...]string{
		"Ignored", "SpotInterruption", "RebalanceRecommendation", "StateChange", "ScheduledChange", "ASGTerminate",
		"ASGLaunch", "CapacityReservationInterruption", "CapacityBlockExpiration", "InstanceImpaired",
	}[k]
}

// KindOf is the inverse of String; names it does not know are Ignored.
func KindOf(name string) Kind {
	at := slices.IndexFunc(Kinds, func(k Kind) bool { return k.String() == name })
	if at < 0 {
		return Ignored
	}
	return Kinds[at]
}

// NoAccount stands for the account of a message that names none. It is no account's, so it is never among those that
// are expected.
const NoAccount = "none"

// Urgent reports whether notices of the kind are about minutes.
func (k Kind) Urgent() bool {
	switch k {
	case SpotInterruption, StateChange, CapacityReservationInterruption, CapacityBlockExpiration:
		return true
	case RebalanceRecommendation, ScheduledChange, ASGTerminate, ASGLaunch, InstanceImpaired, Ignored:
	}
	return false
}

// EndsInstance reports whether the end of the instance is to be expected after notices of the
// kind. A recommendation does not say that it ends.
func (k Kind) EndsInstance() bool {
	return k.Urgent() || k == ScheduledChange || k == ASGTerminate || k == InstanceImpaired
}

// OfSpot reports whether notices of the kind are about spot instances alone.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
func (k Kind) OfSpot() bool { return k == SpotInterruption || k == RebalanceRecommendation }

// CanEnd reports whether a later notice can say that what a notice of the kind announced is over
// or was called off.
func (k Kind) CanEnd() bool { return k == ScheduledChange || k == InstanceImpaired }

// SurvivesRestart reports whether notices of the kind still hold for an instance that was
// started after them. A Capacity Block ends for whatever runs in it.
func (k Kind) SurvivesRestart() bool { return k == CapacityBlockExpiration }

// MarshalText makes a Kind readable in JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (k *Kind) UnmarshalText(text []byte) error {
	*k = KindOf(string(text))
	return nil
}

// Reason says why a body is ignored. It is a metric label: a closed set.
type Reason string

// The reasons to ignore a body.
const (
	OtherService     Reason = "other-service"     // of a service or a type that takes no machine away
	OtherState       Reason = "other-state"       // an instance state that asks for nothing
	NotScheduled     Reason = "not-scheduled"     // AWS Health, but not a change of EC2 instances
	NoInstance       Reason = "no-instance"       // a scheduled change of other things than instances and Dedicated Hosts
	TestNotification Reason = "test-notification" // Auto Scaling tries out a hook's target
	Confirmation     Reason = "sns-confirmation"  // SNS asks for a subscription to be confirmed
	Replayed         Reason = "replayed"          // a custom event bus delivers an event of the past once more
	OtherPublisher   Reason = "other-publisher"   // a custom event bus does not confirm that AWS has sent the event
)

// Reasons are all of them, for metrics that start at zero.
var Reasons = []Reason{
	OtherService, OtherState, NotScheduled, NoInstance, TestNotification, Confirmation, Replayed, OtherPublisher,
}

// Notice is one message from the queue in the terms of this program. It carries
// almost no behaviour; == of the parts is equality.
type Notice struct {
	Kind Kind
	// Ignored says why Kind is Ignored; empty otherwise.
	Ignored Reason
	// ID is the event's own id, for logs and taints; it can be empty.
	ID string
	// Account and Region are where the event happened. A message that does not name an account has [NoAccount], and one
	// that does not name a region has none; what the program finds out itself has neither.
	Account, Region string
	// Time is when the event happened; zero where the body does not say.
	Time time.Time
	// Deadline is when the machine goes away, as far as the body knows; else zero.
	Deadline time.Time
	// Instances are the EC2 instance ids that the notice is about, each once, each
	// well-formed. A CapacityBlockExpiration has none: EC2 has to say which instances
	// its Reservation has. Only a ScheduledChange has more than one.
	Instances []string
	// Hosts are the ids of the Dedicated Hosts that a ScheduledChange is about, each once, each
	// well-formed: EC2 has to say which instances run on them.
	Hosts []string
	// Reservation is the id of the Capacity Reservation of a CapacityBlockExpiration.
	Reservation string
	// Change names a ScheduledChange across its updates: the ARN of the Health event, or the
	// InstanceEventId that EC2 lists; see IsPolled.
	Change string
	// Ended is true for a ScheduledChange that is over or was called off, and for an
	// InstanceImpaired of an instance whose status checks do not fail any more.
	Ended bool
	// Resolved are those of Instances and Hosts for which a ScheduledChange that goes on is over.
	Resolved []string
	// Gone is true for a StateChange after which nothing runs on the instance any more.
	Gone bool
	// Runs is true for a StateChange that says that the instance runs, for the first time or again.
	Runs bool
	// Detail is the instance-action, state, event type code or status check. See EffectOf for the code.
	Detail string
	// Hook is set for ASGTerminate and ASGLaunch.
	Hook Hook
	// Reported: the pod on the node of the instance tells it, out of the metadata.
	Reported bool
}

var polledChange = regexp.MustCompile(`^instance-event-[0-9A-Za-z-]{1,48}$`)

// IsPolled reports whether a Change is the InstanceEventId of a scheduled event, which EC2 lists.
// No message has to tell of it.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceStatusEvent.html
func IsPolled(change string) bool { return polledChange.MatchString(change) }

// Hook is the lifecycle action that Auto Scaling waits for.
type Hook struct {
	Group string // AutoScalingGroupName
	Name  string // LifecycleHookName
	Token string // LifecycleActionToken; can be empty, then the instance id names the action
	// Origin and Destination are where the instance comes from and goes to: EC2,
	// AutoScalingGroup or WarmPool; empty where the body does not say.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/warm-pools-eventbridge-events.html
	Origin, Destination string
	// Action is what an instance refresh does to the instance, such as ReplaceRootVolume; empty
	// where the body does not say.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/replace-root-volume.html
	Action string
}

// Names in the events of lifecycle actions.
const (
	WarmPool          = "WarmPool"          // an Origin, a Destination
	ReplaceRootVolume = "ReplaceRootVolume" // an Action
)

// Returns reports whether the instance comes back after its termination hook: it gets another
// root volume, or goes to a warm pool.
func (h Hook) Returns() bool { return h.Action == ReplaceRootVolume || h.Destination == WarmPool }

// HookLimits is how long a lifecycle hook can stay open, as its Auto Scaling group has it.
type HookLimits struct {
	Timeout time.Duration // from one heartbeat to the next
	Global  time.Duration // in all, whatever the heartbeats
}

// HappenedAt is when the event happened; now where the body does not say, or where it
// says a later time, because clocks differ.
func (n Notice) HappenedAt(now time.Time) time.Time {
	if n.Time.IsZero() || n.Time.After(now) {
		return now
	}
	return n.Time
}
