// Package asg speaks to EC2 Auto Scaling: it keeps a lifecycle hook open by heartbeats while work
// runs, completes it, and gets another instance of a group ready before a node of the group is drained.
//
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
package asg

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/go-logr/logr"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/flight"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// All calls of an account to EC2 Auto Scaling in a region share one rate limit. AWS does
	// not publish it, and autoscalers and consoles use it too. Ten calls a second complete
	// a hundred instances, a large scale-in, within 8 s, and keep 300 hooks open at the
	// shortest heartbeat-interval.
	callsPerSecond = 10
	callBurst      = 20

	// Enough for the three tries of the SDK with an API that answers within a second.
	callTimeout = 10 * time.Second

	// The limits of a hook are settings of its group, which seldom change.
	limitsKept = 5 * time.Minute
	// A missing hook or permission is asked for again after this time.
	refusalKept = 10 * time.Minute

	// What EC2 Auto Scaling uses where a hook has no limits of its own.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
	defaultTimeout = time.Hour
	maxTimeouts    = 100
	maxGlobal      = 48 * time.Hour
)

var (
	// A call that failed is tried again after 250 to 500 ms, then after twice as long
	// each time, up to 5 to 10 s.
	failures = retry.Backoff{First: 250 * time.Millisecond, Max: 5 * time.Second, Factor: 2, Jitter: 1}
	// A missing permission is granted by a person. The shortest hook is open for 30 s.
	denials = retry.Backoff{First: 10 * time.Second, Jitter: 1}
)

// Classes of [pace.Priority]. An instance waits for its completion; a late heartbeat
// loses one; a description can wait. A call that was denied before is probably denied
// again, and must not delay the others.
const (
	refused = iota
	describing
	heartbeating
	completing
)

const (
	describePermission  = "autoscaling:DescribeLifecycleHooks"
	heartbeatPermission = "autoscaling:RecordLifecycleActionHeartbeat"
	completePermission  = "autoscaling:CompleteLifecycleAction"
)

// Permissions are all that hooks need, for metrics that start at zero.
var Permissions = []string{describePermission, heartbeatPermission, completePermission}

// Hooks keeps lifecycle hooks open, completes them, and reads their limits. All its calls
// share one rate limit: completions go before heartbeats, and these before descriptions.
// Set the exported fields before the first use. The methods may be called concurrently.
type Hooks struct {
	Client API
	// HeartbeatInterval is the longest time between two heartbeats of a hook.
	// Not positive: no heartbeats.
	HeartbeatInterval time.Duration
	// HeartbeatUntil bounds the heartbeats of a hook, from its start. Not
	// positive: Auto Scaling's own bound, [notice.HookLimits.Global].
	HeartbeatUntil time.Duration
	Log            logr.Logger
	Metrics        Metrics

	pacing  sync.Once
	limiter *pace.Limiter

	completions  flight.Group[intent.Hook, bool] // whether the action was gone already
	descriptions flight.Group[hookName, notice.HookLimits]
	looks        flight.Group[string, Group]

	mu        sync.Mutex
	known     *lru.Cache // of knowledge, by hookName; the zero key counts for all hooks
	denied    *lru.Cache // permissions that were denied and have not been granted since
	gone      *lru.Cache // when a hook that was held was found ended, by the action
	held      map[intent.Hook]beat
	completed *lru.Cache // completed actions with a token, without their times; whether they were gone already
	groups    *lru.Cache // of describedGroup, by name
}

type hookName struct{ group, name string }

type knowledge struct {
	limits notice.HookLimits
	err    error
	until  time.Time
}

type permission struct{ action, group string }

// bounded returns a memory, which it makes at the first use. It has a limit because its
// keys come from messages.
func (h *Hooks) bounded(memory **lru.Cache) *lru.Cache {
	const size = 1024
	h.mu.Lock()
	defer h.mu.Unlock()
	if *memory == nil {
		*memory = lru.New(size)
	}
	return *memory
}

func (h *Hooks) log(hook intent.Hook) logr.Logger {
	return h.Log.WithValues("instance", hook.Instance, "group", hook.Group, "hook", hook.Name)
}

// optional returns nil for an empty string: Auto Scaling rejects empty parameters.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

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

// API has the calls of EC2 Auto Scaling that Hooks makes. They are functions: because text/template looks methods up by
// name, the linker keeps every method of a client that an interface holds.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html
type API struct {
	DescribeLifecycleHooks operation[
		autoscaling.DescribeLifecycleHooksInput, autoscaling.DescribeLifecycleHooksOutput]
	DescribeAutoScalingGroups operation[
		autoscaling.DescribeAutoScalingGroupsInput, autoscaling.DescribeAutoScalingGroupsOutput]
	DescribeAutoScalingInstances operation[
		autoscaling.DescribeAutoScalingInstancesInput, autoscaling.DescribeAutoScalingInstancesOutput]
	SetInstanceHealth operation[
		autoscaling.SetInstanceHealthInput, autoscaling.SetInstanceHealthOutput]
	RecordLifecycleActionHeartbeat operation[
		autoscaling.RecordLifecycleActionHeartbeatInput, autoscaling.RecordLifecycleActionHeartbeatOutput]
	CompleteLifecycleAction operation[
		autoscaling.CompleteLifecycleActionInput, autoscaling.CompleteLifecycleActionOutput]
}

type operation[In, Out any] func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error)

// Of returns the calls of a client.
func Of(c *autoscaling.Client) API {
	return API{
		c.DescribeLifecycleHooks, c.DescribeAutoScalingGroups, c.DescribeAutoScalingInstances, c.SetInstanceHealth,
		c.RecordLifecycleActionHeartbeat, c.CompleteLifecycleAction,
	}
}

// Metrics counts the calls to Auto Scaling with their results: nil, ErrGone, a *PermissionError,
// or another error. The methods are called concurrently and must not block.
type Metrics interface {
	// Completed is told the hook's deadline; zero: not known.
	Completed(deadline time.Time, err error)
	Heartbeat(err error)
	Described(err error)
}
