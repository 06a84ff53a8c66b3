package asg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// fakeASG is EC2 Auto Scaling as far as lifecycle actions go: one times out
// unless heartbeats extend it, can be completed once, and is unknown after that.
type fakeASG struct {
	mu      sync.Mutex
	hooks   map[hookName]notice.HookLimits
	actions map[string]*action // by token
	faults  map[string][]*fault
	calls   []call

	latency    time.Duration
	hang       string // the operation that never answers
	loseAnswer bool   // of the next completion: it takes effect, the caller gets an error
}

type action struct {
	intent.Hook
	limits           notice.HookLimits
	deadline, global time.Time
	heartbeats       int
	completed        bool
}

type fault struct {
	err   error
	left  int    // calls; negative is all
	group string // empty: every one
}

type call struct {
	at        time.Time
	operation string
	hook      intent.Hook
}

func newFakeASG() *fakeASG {
	return &fakeASG{hooks: map[hookName]notice.HookLimits{}, actions: map[string]*action{}, faults: map[string][]*fault{}}
}

func (f *fakeASG) client() API {
	return API{
		DescribeAutoScalingGroups: f.DescribeAutoScalingGroups, DescribeLifecycleHooks: f.DescribeLifecycleHooks,
		RecordLifecycleActionHeartbeat: f.RecordLifecycleActionHeartbeat, CompleteLifecycleAction: f.CompleteLifecycleAction,
	}
}

func (f *fakeASG) putHook(_ *testing.T, group, name string, timeout time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooks[hookName{group, name}] = notice.HookLimits{Timeout: timeout, Global: min(100*timeout, 48*time.Hour)}
}

func (f *fakeASG) begin(t *testing.T, group, name string) intent.Hook {
	f.mu.Lock()
	defer f.mu.Unlock()
	limits, ok := f.hooks[hookName{group, name}]
	if !ok {
		t.Fatalf("no hook %s of group %s", name, group)
	}
	now := time.Now()
	hook := intent.Hook{Group: group, Name: name, Instance: instance, Token: fmt.Sprintf("token-%d", len(f.actions))}
	f.actions[hook.Token] = &action{Hook: hook, limits: limits, deadline: now.Add(limits.Timeout), global: now.Add(limits.Global)}
	return hook
}

func (f *fakeASG) state(_ *testing.T, hook intent.Hook) actionState {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.actions[hook.Token]
	s := actionState{Heartbeats: a.heartbeats}
	switch {
	case a.completed:
		s.Outcome = "completed"
	case !a.open():
		s.Outcome = "timed out"
	}
	return s
}

func (f *fakeASG) fail(_ *testing.T, operation, code string, status, count int) {
	f.failWith(operation, count, &smithy.GenericAPIError{Code: code, Message: fmt.Sprintf("HTTP %d", status)})
}

func (f *fakeASG) failWith(operation string, count int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if count == 0 {
		count = -1
	}
	f.faults[operation] = append(f.faults[operation], &fault{err: err, left: count})
}

func (f *fakeASG) failGroup(group, operation string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[operation] = append(f.faults[operation], &fault{err: err, left: -1, group: group})
}

func (f *fakeASG) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.faults)
}

// made returns the calls of an operation, of all if it is empty.
func (f *fakeASG) made(operation string) []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c call) bool {
		return operation != "" && c.operation != operation
	})
}

func (f *fakeASG) counts() map[string]int {
	counts := map[string]int{}
	for _, c := range f.made("") {
		counts[c.operation]++
	}
	return counts
}

// arrive is what all operations have in common: a record, the time on the way,
// faults.
func (f *fakeASG) arrive(ctx context.Context, operation string, hook intent.Hook) error {
	f.mu.Lock()
	f.calls = append(f.calls, call{time.Now(), operation, hook})
	var err error
	for _, fault := range f.faults[operation] {
		if fault.left != 0 && (fault.group == "" || fault.group == hook.Group) {
			fault.left--
			err = fault.err
			break
		}
	}
	latency := f.latency
	if f.hang == operation {
		latency = math.MaxInt64
	}
	f.mu.Unlock()
	if latency > 0 {
		select {
		case <-ctx.Done():
			err = &smithy.CanceledError{Err: ctx.Err()}
		case <-time.After(latency):
		}
	}
	if err != nil {
		return failed(operation, err)
	}
	return nil
}

func (f *fakeASG) DescribeAutoScalingGroups(context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	return nil, errors.New("the tests of Waiting have their own answers")
}

func (f *fakeASG) DescribeLifecycleHooks(ctx context.Context, in *autoscaling.DescribeLifecycleHooksInput, _ ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	group := aws.ToString(in.AutoScalingGroupName)
	if err := f.arrive(ctx, describe, intent.Hook{Group: group, Name: in.LifecycleHookNames[0]}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.hasGroup(group) {
		return nil, noGroup(describe, group)
	}
	out := &autoscaling.DescribeLifecycleHooksOutput{}
	for name, limits := range f.hooks {
		if name.group == group && slices.Contains(in.LifecycleHookNames, name.name) {
			out.LifecycleHooks = append(out.LifecycleHooks, types.LifecycleHook{
				AutoScalingGroupName: aws.String(name.group),
				LifecycleHookName:    aws.String(name.name),
				HeartbeatTimeout:     aws.Int32(int32(limits.Timeout / time.Second)),
				GlobalTimeout:        aws.Int32(int32(limits.Global / time.Second)),
			})
		}
	}
	return out, nil
}

func (f *fakeASG) RecordLifecycleActionHeartbeat(ctx context.Context, in *autoscaling.RecordLifecycleActionHeartbeatInput, _ ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	hook := hookOf(in.AutoScalingGroupName, in.LifecycleHookName, in.InstanceId, in.LifecycleActionToken)
	if err := f.arrive(ctx, heartbeat, hook); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.active(heartbeat, hook)
	if err != nil {
		return nil, err
	}
	a.heartbeats++
	a.deadline = time.Now().Add(a.limits.Timeout)
	return &autoscaling.RecordLifecycleActionHeartbeatOutput{}, nil
}

func (f *fakeASG) CompleteLifecycleAction(ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, _ ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	hook := hookOf(in.AutoScalingGroupName, in.LifecycleHookName, in.InstanceId, in.LifecycleActionToken)
	if err := f.arrive(ctx, complete, hook); err != nil {
		return nil, err
	}
	if result := aws.ToString(in.LifecycleActionResult); result != "CONTINUE" {
		return nil, invalidRequest(complete, "Lifecycle Action Result must be CONTINUE here, but was "+result)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a, err := f.active(complete, hook)
	if err != nil {
		return nil, err
	}
	a.completed = true
	if f.loseAnswer {
		f.loseAnswer = false
		return nil, failed(complete, errors.New("connection reset by peer"))
	}
	return &autoscaling.CompleteLifecycleActionOutput{}, nil
}

func (f *fakeASG) hasGroup(group string) bool {
	for name := range f.hooks {
		if name.group == group {
			return true
		}
	}
	return false
}

func (f *fakeASG) active(operation string, hook intent.Hook) (*action, error) {
	if !f.hasGroup(hook.Group) {
		return nil, noGroup(operation, hook.Group)
	}
	for _, token := range slices.Sorted(maps.Keys(f.actions)) {
		a := f.actions[token]
		named := hook.Token == a.Token || hook.Token == "" && hook.Instance == a.Instance
		if named && a.Group == hook.Group && a.Name == hook.Name && a.open() {
			return a, nil
		}
	}
	if hook.Token != "" {
		return nil, invalidRequest(operation, "No active Lifecycle Action found with token "+hook.Token)
	}
	return nil, invalidRequest(operation, "No active Lifecycle Action found with instance ID "+hook.Instance)
}

func (a *action) open() bool {
	now := time.Now()
	return !a.completed && now.Before(a.deadline) && now.Before(a.global)
}

func hookOf(group, name, instance, token *string) intent.Hook {
	return intent.Hook{Group: aws.ToString(group), Name: aws.ToString(name), Instance: aws.ToString(instance), Token: aws.ToString(token)}
}

func noGroup(operation, group string) error {
	return invalidRequest(operation, "AutoScalingGroup name not found - AutoScalingGroup "+group+" not found")
}

func invalidRequest(operation, message string) error {
	return failed(operation, &smithy.GenericAPIError{Code: "ValidationError", Message: message})
}

func failed(operation string, err error) error {
	return &smithy.OperationError{ServiceID: autoscaling.ServiceID, OperationName: operation, Err: err}
}
