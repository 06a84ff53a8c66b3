// Package asg answers the lifecycle hooks of EC2 Auto Scaling: it holds one
// open while work runs, and completes it once.
//
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
package asg

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
)

// A Hook is one lifecycle action in progress: one instance that a lifecycle
// hook of its group keeps waiting.
type Hook struct {
	Group    string // name of the Auto Scaling group
	Name     string // of the lifecycle hook
	Instance string // id
	// Token names this very action. Empty, the instance's current action at this
	// hook is meant, which may be a later one.
	Token string
	// Deadline is when the hook ends by itself; zero: not known. It tells urgent
	// ones from others and does not name the action.
	Deadline time.Time
}

// Limits is how long a hook may stay open.
type Limits struct {
	Timeout time.Duration // from one heartbeat to the next
	Global  time.Duration // in all, whatever the heartbeats
}

// ErrNoHook says that the group has no lifecycle hook of that name, or that
// there is no such group.
var ErrNoHook = errors.New("no such lifecycle hook")

// A PermissionError says which permission the role of this process lacks.
type PermissionError struct {
	Action string // as IAM names it
	Group  string // the group it lacks it on; empty for an action that knows no groups
	Err    error  // the answer of Auto Scaling
}

func (e *PermissionError) Error() string {
	where := ""
	if e.Group != "" {
		where = " on group " + e.Group
	}
	return "permission " + e.Action + " is missing" + where + ": " + e.Err.Error()
}

func (e *PermissionError) Unwrap() error { return e.Err }

func lacksPermission(err error) bool {
	_, ok := errors.AsType[*PermissionError](err)
	return ok
}

// API is the part of EC2 Auto Scaling that Hooks uses.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html
type API interface {
	DescribeLifecycleHooks(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
	RecordLifecycleActionHeartbeat(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	CompleteLifecycleAction(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
}

// Metrics counts the calls to Auto Scaling, each with its result: nil, a
// *PermissionError, or another. A hook that is gone is no error. The methods
// are called concurrently and must not block.
type Metrics interface {
	// Completed is told the hook's deadline; zero: not known.
	Completed(deadline time.Time, err error)
	Heartbeat(err error)
	Described(err error)
}

// silent stands in where there are no Metrics.
type silent struct{}

// Completed counts nothing.
func (silent) Completed(time.Time, error) {}

// Heartbeat counts nothing.
func (silent) Heartbeat(error) {}

// Described counts nothing.
func (silent) Described(error) {}
