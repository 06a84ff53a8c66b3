// Package notice reads what EC2, Auto Scaling, AWS Health and SNS put into the
// queue. It is pure and total: any body gives a Notice or an error, quickly.
package notice

import "time"

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
	// StateChange says that an instance is stopping, shutting down or gone.
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
)

// Kinds are all kinds that are acted on, in the order of their constants.
var Kinds = []Kind{SpotInterruption, RebalanceRecommendation, StateChange, ScheduledChange, ASGTerminate, ASGLaunch}

// String is the kind's name in logs, metrics and the intent annotation.
func (k Kind) String() string {
	switch k {
	case SpotInterruption:
		return "SpotInterruption"
	case RebalanceRecommendation:
		return "RebalanceRecommendation"
	case StateChange:
		return "StateChange"
	case ScheduledChange:
		return "ScheduledChange"
	case ASGTerminate:
		return "ASGTerminate"
	case ASGLaunch:
		return "ASGLaunch"
	case Ignored:
	}
	return "Ignored"
}

// KindOf is the inverse of String; names it does not know are Ignored.
func KindOf(name string) Kind {
	for _, k := range Kinds {
		if k.String() == name {
			return k
		}
	}
	return Ignored
}

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
	NoInstance       Reason = "no-instance"       // a scheduled change of other things than instances
	TestNotification Reason = "test-notification" // Auto Scaling tries out a hook's target
	Confirmation     Reason = "sns-confirmation"  // SNS asks for a subscription to be confirmed
)

// Reasons are all of them, for metrics that start at zero.
var Reasons = []Reason{OtherService, OtherState, NotScheduled, NoInstance, TestNotification, Confirmation}

// Notice is one message from the queue in the terms of this program. It carries
// no behaviour; == of the parts is equality.
type Notice struct {
	Kind Kind
	// Ignored says why Kind is Ignored; empty otherwise.
	Ignored Reason
	// ID is the event's own id, for logs and taints; it can be empty.
	ID string
	// Account and Region are where the event happened; empty where the body does not say.
	Account, Region string
	// Time is when the event happened; zero where the body does not say.
	Time time.Time
	// Deadline is when the machine goes away, as far as the body knows; else zero.
	Deadline time.Time
	// Instances are the EC2 instance ids that the notice is about: at least one,
	// each once, each well-formed. Only a ScheduledChange has more than one.
	Instances []string
	// Change names a ScheduledChange across its updates: the ARN of the Health event.
	Change string
	// Ended is true for a ScheduledChange that is over or was called off.
	Ended bool
	// Gone is true for a StateChange after which nothing runs on the instance any more.
	Gone bool
	// Detail is the instance-action, state or event type code, for people.
	Detail string
	// Hook is set for ASGTerminate and ASGLaunch.
	Hook Hook
}

// Hook is the lifecycle action that Auto Scaling waits for.
type Hook struct {
	Group string // AutoScalingGroupName
	Name  string // LifecycleHookName
	Token string // LifecycleActionToken; can be empty, then the instance id names the action
}
