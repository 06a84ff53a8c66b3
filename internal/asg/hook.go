// Package asg answers the lifecycle hooks of EC2 Auto Scaling: it keeps a hook open by
// heartbeats while work runs, and completes it.
//
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
package asg

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

// ErrNoHook means that the group has no lifecycle hook of that name, or that there is
// no such group.
var ErrNoHook = errors.New("no such lifecycle hook")

// ErrGone means that there is nothing left to complete or to keep open: the action has ended, or its
// hook or group was deleted.
var ErrGone = errors.New("the lifecycle action has ended, or its hook or group is gone")

// ErrRefused means that another try cannot succeed: Auto Scaling finds the request
// invalid, or the hook is older than its global limit.
var ErrRefused = errors.New("refused for good")

// A PermissionError is the failure of a call because the role of this process lacks a
// permission.
type PermissionError struct {
	Action string // as IAM names it
	Group  string // the group of the call; empty for an action that is not limited by group
	Err    error  // what Auto Scaling answered
}

func (e *PermissionError) Error() string {
	where := ""
	if e.Group != "" {
		where = " on group " + e.Group
	}
	if awserr.Unsupported(e.Err) {
		return "the server does not have " + e.Action + where + ": " + e.Err.Error()
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
	DescribeLifecycleHooks(
		context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options),
	) (*autoscaling.DescribeLifecycleHooksOutput, error)
	DescribeAutoScalingGroups(
		context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options),
	) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	RecordLifecycleActionHeartbeat(
		context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options),
	) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	CompleteLifecycleAction(
		context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options),
	) (*autoscaling.CompleteLifecycleActionOutput, error)
}

// Metrics counts the calls to Auto Scaling with their results: nil, ErrGone, a *PermissionError,
// or another error. The methods are called concurrently and must not block.
type Metrics interface {
	// Completed is told the hook's deadline; zero: not known.
	Completed(deadline time.Time, err error)
	Heartbeat(err error)
	Described(err error)
}

// silent is used where Hooks has no Metrics.
type silent struct{}

// Completed counts nothing.
func (silent) Completed(time.Time, error) {}

// Heartbeat counts nothing.
func (silent) Heartbeat(error) {}

// Described counts nothing.
func (silent) Described(error) {}
