package asg

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/smithy-go"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// call makes one call when it is its turn, and gives up after timeout.
func (h *Hooks) call(ctx context.Context, p pace.Priority, timeout time.Duration, f func(context.Context) error) error {
	h.pacing.Do(func() { h.limiter = pace.New(callsPerSecond, callBurst) })
	if err := h.limiter.Wait(ctx, p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errCallTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// inTurn makes a call that can wait for the others.
func inTurn[In, Out any](ctx context.Context, h *Hooks, op operation[In, Out], in *In) (out *Out, err error) {
	err = h.call(ctx, pace.Priority{Class: describing}, callTimeout, func(ctx context.Context) (err error) {
		out, err = op(ctx, in)
		return err
	})
	return out, err
}

var errCallTimeout = errors.New("no answer from Auto Scaling in time")

// permitted turns a denial into a *PermissionError. It logs the first denial of a
// permission on a group, and logs another one only after a call was allowed.
func (h *Hooks) permitted(action, group string, err error) error {
	key := permission{action, group}
	if !awserr.Denied(err) {
		if err == nil {
			h.bounded(&h.denied).Remove(key)
		}
		return err
	}
	refusal := denial(action, group, err)
	if h.noteDenial(key) {
		why := "the role of this controller lacks a permission"
		if awserr.Unsupported(err) {
			why = "the server does not have a call"
		}
		h.Log.Error(refusal, why, "permission", action, "group", group)
	}
	return refusal
}

// denial turns a denial into a *PermissionError, and leaves other errors as they are.
func denial(action, group string, err error) error {
	if !awserr.Denied(err) {
		return err
	}
	return &PermissionError{Action: action, Group: group, Err: err}
}

// noteDenial remembers a denial and reports whether it is the first one. Two calls may be
// denied at the same time, and one of them is to be logged.
func (h *Hooks) noteDenial(key permission) (first bool) {
	denials := h.bounded(&h.denied)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := denials.Get(key); known {
		return false
	}
	denials.Add(key, nil)
	return true
}

// validationError is the code for every request that Auto Scaling finds wrong.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
const validationError = "ValidationError"

// isGone reports whether err says that there is nothing left to complete or to keep
// open: the action has ended, or its hook or group was deleted, which ends the action.
//
// Auto Scaling has no codes for these. They are validationError as others are, so only
// the text tells them apart. Only its beginning is compared.
func isGone(err error) bool {
	if awserr.Code(err) != validationError {
		return false
	}
	return slices.ContainsFunc([]string{
		"No active Lifecycle Action found", // … with instance ID i-…, … with token …
		"No Lifecycle Hook found",
		"AutoScalingGroup name not found",
	}, func(beginning string) bool { return strings.HasPrefix(awserr.Message(err), beginning) })
}

// isInvalid reports whether err says that the request itself is wrong: the same request
// can never succeed.
func isInvalid(err error) bool {
	if _, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		return true // the SDK has found it before it sent the request
	}
	return awserr.Code(err) == validationError
}
