package asg

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Limits returns how long the hook may stay open, as its group says. The error wraps
// ErrNoHook if there is no such hook, and is a *PermissionError without
// autoscaling:DescribeLifecycleHooks. Limits are remembered for five minutes, these two
// errors for ten, and other errors are not. Concurrent callers share a call.
func (h *Hooks) Limits(ctx context.Context, hook intent.Hook) (notice.HookLimits, error) {
	name := hookName{hook.Group, hook.Name}
	known, ok := h.recall(name)
	if !ok {
		describe := func(ctx context.Context, _ func(error)) (notice.HookLimits, error) {
			if known, ok := h.recall(name); ok { // another call has ended just now
				return known.limits, known.err
			}
			return h.describe(ctx, name)
		}
		known.limits, known.err = h.descriptions.Do(ctx, name, describe)
	}
	if known.err != nil {
		return notice.HookLimits{}, fmt.Errorf("read the limits of lifecycle hook %s of group %s: %w",
			hook.Name, hook.Group, known.err)
	}
	return known.limits, nil
}

// describe asks Auto Scaling for the limits of a hook, and remembers the answer.
func (h *Hooks) describe(ctx context.Context, name hookName) (notice.HookLimits, error) {
	hooks, err := h.describeHooks(ctx, name.group, name.name)
	// This permission cannot be limited to groups: denied for one is denied for all.
	err = h.permitted(describePermission, "", err)
	h.Metrics.Described(err)
	if err != nil {
		if lacksPermission(err) {
			h.bounded(&h.known).Add(hookName{}, knowledge{err: err, until: time.Now().Add(refusalKept)})
		}
		return notice.HookLimits{}, err
	}
	for _, found := range hooks {
		if aws.ToString(found.LifecycleHookName) == name.name {
			limits := LimitsOf(found)
			h.bounded(&h.known).Add(name, knowledge{limits: limits, until: time.Now().Add(limitsKept)})
			return limits, nil
		}
	}
	h.bounded(&h.known).Add(name, knowledge{err: ErrNoHook, until: time.Now().Add(refusalKept)})
	return notice.HookLimits{}, ErrNoHook
}

// describeHooks returns the hooks of the group that have one of the names, all hooks without
// names, and none if there is no such group.
func (h *Hooks) describeHooks(ctx context.Context, group string, names ...string) ([]types.LifecycleHook, error) {
	out, err := inTurn(ctx, h, h.Client.DescribeLifecycleHooks, &autoscaling.DescribeLifecycleHooksInput{
		AutoScalingGroupName: aws.String(group), LifecycleHookNames: names,
	})
	switch {
	case isGone(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return out.LifecycleHooks, nil
}

// LimitsOf are the limits of a hook, or Auto Scaling's own where it says none.
func LimitsOf(hook types.LifecycleHook) notice.HookLimits {
	limits := notice.HookLimits{
		Timeout: time.Duration(aws.ToInt32(hook.HeartbeatTimeout)) * time.Second,
		Global:  time.Duration(aws.ToInt32(hook.GlobalTimeout)) * time.Second,
	}
	if limits.Timeout <= 0 {
		limits.Timeout = defaultTimeout
	}
	if limits.Global <= 0 {
		limits.Global = min(maxTimeouts*limits.Timeout, maxGlobal)
	}
	return limits
}

// recall returns what is known about a hook, and whether anything is.
func (h *Hooks) recall(name hookName) (knowledge, bool) {
	for _, key := range []hookName{{}, name} {
		if known, ok := h.bounded(&h.known).Get(key); ok {
			if k := known.(knowledge); time.Now().Before(k.until) {
				return k, true
			}
		}
	}
	return knowledge{}, false
}
