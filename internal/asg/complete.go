package asg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// Complete tells Auto Scaling to CONTINUE with the instance. It returns nil when Auto
// Scaling has accepted that, and an error that wraps ErrGone when there is nothing left to
// complete. It may be called again, and then makes no request if the hook has a token.
// Concurrent calls share one request.
//
// Complete tries again until ctx ends after every failure that may pass: throttling,
// faults of the service and of the network, missing credentials and, at longer intervals,
// a missing permission. All of these can be corrected while an instance waits. The error
// then wraps the cause of ctx and the last failure, which is a *PermissionError where
// autoscaling:CompleteLifecycleAction is missing.
//
// Complete gives up earlier, with an error that wraps ErrRefused, if Auto Scaling finds
// the request invalid, or if the hook began longer ago than its global limit. No heartbeat
// keeps a hook open for longer: its default result has decided by then.
func (h *Hooks) Complete(ctx context.Context, hook intent.Hook) error {
	// The memory is read and written within the shared call, so that no other call can
	// come in between.
	gone, err := h.completions.Do(ctx, hook.Action(), func(ctx context.Context, report func(error)) (bool, error) {
		if gone, done := h.bounded(&h.completed).Get(hook.Action()); done {
			return gone.(bool), nil
		}
		gone, err := h.complete(ctx, hook, report)
		if err == nil && hook.Token != "" {
			h.bounded(&h.completed).Add(hook.Action(), gone)
		}
		return gone, err
	})
	if err == nil && gone {
		err = ErrGone
	}
	if err != nil {
		return fmt.Errorf("complete lifecycle hook %s of group %s for %s: %w", hook.Name, hook.Group, hook.Instance, err)
	}
	return nil
}

// Failure is why a hook that is being completed is not completed yet; nil: it is not being completed, or no try has
// failed so far.
func (h *Hooks) Failure(hook intent.Hook) error { return h.completions.Failure(hook.Action()) }

// complete reports whether the action was gone before it was completed here.
func (h *Hooks) complete(ctx context.Context, hook intent.Hook, report func(error)) (bool, error) {
	in := &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName:  aws.String(hook.Group),
		LifecycleHookName:     aws.String(hook.Name),
		LifecycleActionResult: aws.String("CONTINUE"),
		InstanceId:            optional(hook.Instance),
		LifecycleActionToken:  optional(hook.Token),
	}
	if hook.Started.IsZero() {
		hook.Started = time.Now()
	}
	ends := hook.Deadline
	if hook.Assumed { // it may be open for long
		ends = time.Time{}
	}
	longest := h.longest(hook)
	urgency := pace.Priority{Class: completing, Deadline: hook.Deadline}
	for try := 1; ; try++ {
		err := h.call(ctx, urgency, callTimeout, func(ctx context.Context) error {
			_, err := h.Client.CompleteLifecycleAction(ctx, in)
			return err
		})
		if err != nil && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		gone := isGone(err)
		if gone {
			err = nil
		}
		err = h.permitted(completePermission, hook.Group, err)
		late := !ends.IsZero() && time.Now().After(ends)
		if gone && (try == 1 || late) { // before its end it may be the work of a try whose response was lost
			h.Metrics.Completed(ends, ErrGone)
			return true, nil
		}
		switch {
		case err == nil:
		case isInvalid(err):
			err = fmt.Errorf("%w: %w", ErrRefused, err)
		case time.Since(hook.Started) > longest:
			err = fmt.Errorf("%w: the hook began %s ago, which is longer than it can be open: %w",
				ErrRefused, time.Since(hook.Started).Round(time.Second), err)
		}
		h.Metrics.Completed(ends, err)
		if err == nil || errors.Is(err, ErrRefused) {
			return false, err
		}
		report(err)
		if try == 1 {
			logging.Warn(h.log(hook), "the lifecycle hook is not completed yet, trying again", "error", err)
		}
		urgency.Class = completing
		pause := failures.Pause(try)
		if lacksPermission(err) {
			urgency.Class = refused
			pause = denials.Pause(try)
		}
		if err := retry.Sleep(ctx, pause); err != nil {
			return false, err
		}
	}
}

// longest is how long the hook can be open in all: its global limit if that is known, or
// else the longest that any hook can have.
func (h *Hooks) longest(hook intent.Hook) time.Duration {
	if k, ok := h.recall(hookName{hook.Group, hook.Name}); ok && k.err == nil {
		return k.limits.Global
	}
	return maxGlobal
}
