package asg

import (
	"cmp"
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

// heartbeatEnds is how long a heartbeat in flight may still take when no more are wanted. If it were cut off, it could
// reach Auto Scaling after the completion that follows.
const heartbeatEnds = 500 * time.Millisecond

// Hold keeps the hook open by heartbeats. It blocks until ctx ends, the action does not
// exist any more, or HeartbeatUntil has passed since hook.Started. Without a positive
// HeartbeatInterval, and where the action is completed, it returns at once.
//
// The interval between heartbeats is HeartbeatInterval, but at most a third of the hook's
// own timeout, if that can be read: with the shortest timeout, 30 s, that leaves the 20 s
// that the next leader may need to take over. The first heartbeat is sent one interval
// after hook.Started, or at once if that has passed, or if hook.Started is ahead: it is of another
// clock then, and nobody knows how long ago the last heartbeat was. After a failure the next one is
// sent sooner, also where autoscaling:RecordLifecycleActionHeartbeat is missing, because the
// permission may be granted while the hook is still open. If the first two fail, or the permission
// is missing, those of an earlier leader may have failed too: then the hook's timeout counts from
// hook.Started or, where it would have ended by now, from half of the timeout ago.
func (h *Hooks) Hold(ctx context.Context, hook intent.Hook) {
	if _, done := h.bounded(&h.completed).Get(hook.Action()); done || h.HeartbeatInterval <= 0 {
		return
	}
	if h.HeartbeatUntil > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, hook.Started.Add(h.HeartbeatUntil))
		defer cancel()
	}
	interval, timeout := h.interval(ctx, hook)
	log := h.log(hook)
	log.V(1).Info("keeping the lifecycle hook open", "interval", interval)
	now := time.Now()
	first := interval - now.Sub(hook.Started)
	b := beat{since: now, assumed: hook.Started, timeout: timeout} // somebody may have held it open until now
	switch {
	case first > interval:
		first, b.assumed = 0, now
	case first > 0:
		b.since = hook.Started
	case now.Sub(hook.Started) > timeout: // somebody has; how long ago is not known
		b.assumed = now.Add(-timeout / 2)
	}
	gone := h.bounded(&h.gone)
	gone.Remove(hook.Action()) // it may be an action of later, and have no token
	h.beginBeats(hook, b)
	defer h.endBeats(hook)
	failed := false // one failure tells nothing: all first heartbeats of a new leader are sent at once
	_ = retry.Renew(ctx, first, interval, func(ctx context.Context) error {
		sent := time.Now()
		err := h.heartbeat(ctx, hook, interval)
		switch {
		case err == nil:
			h.acceptedBeat(hook, sent)
		case ctx.Err() != nil:
		case errors.Is(err, retry.ErrNothingToRenew):
			logging.Warn(log, "the lifecycle hook is not open any more, no further heartbeats")
			gone.Add(hook.Action(), time.Now())
		default:
			log.V(1).Info("heartbeat failed, trying again", "error", err)
			h.failedBeat(hook, err, failed || lacksPermission(err))
			failed = true
		}
		return err
	})
}

// A beat is what is known of the heartbeats of a hook that is being held.
type beat struct {
	since   time.Time     // when the last that was accepted was sent; before the first: when it may have been
	assumed time.Time     // what takes the place of since if the first ones fail; zero: one was accepted
	timeout time.Duration // of the hook; 0: not known
	err     error         // of the last one; nil: it was accepted, or there is none
	holders int           // calls of Hold that hold it
}

// beginBeats notes that one more holds a hook. What another one knows of its heartbeats stays.
func (h *Hooks) beginBeats(hook intent.Hook, b beat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = map[intent.Hook]beat{}
	}
	if known := h.held[hook.Action()]; known.holders > 0 {
		known.timeout = cmp.Or(known.timeout, b.timeout)
		b = known
	}
	b.holders++
	h.held[hook.Action()] = b
}

// acceptedBeat notes that a heartbeat was accepted that was sent at a time.
func (h *Hooks) acceptedBeat(hook intent.Hook, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.held[hook.Action()]
	if b.err = nil; !b.assumed.IsZero() || sent.After(b.since) {
		b.since = sent
	}
	b.assumed = time.Time{}
	h.held[hook.Action()] = b
}

// failedBeat notes that a heartbeat has failed. again: those before it may have, too.
func (h *Hooks) failedBeat(hook intent.Hook, err error, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.held[hook.Action()]
	if b.err = err; again && !b.assumed.IsZero() {
		b.since = b.assumed
	}
	h.held[hook.Action()] = b
}

// endBeats notes that one holds a hook no longer.
func (h *Hooks) endBeats(hook intent.Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.held[hook.Action()]
	if b.holders--; b.holders == 0 {
		delete(h.held, hook.Action())
		return
	}
	h.held[hook.Action()] = b
}

// errNoTurn is why a hook ends whose heartbeats do not fail.
var errNoTurn = errors.New("so many heartbeats are due that this one has not had its turn")

// HeartbeatFailure is why a hook that is being held open may end by itself: its last heartbeat has failed, or has found
// it ended. nil: it has not, or the hook is not held open. ends is when that is, once no heartbeat has been accepted
// for half of the hook's timeout: one that fails is soon sent again. Zero: it is not known.
func (h *Hooks) HeartbeatFailure(hook intent.Hook) (ends time.Time, err error) {
	if found, gone := h.bounded(&h.gone).Get(hook.Action()); gone {
		return found.(time.Time), ErrGone
	}
	h.mu.Lock()
	b := h.held[hook.Action()]
	h.mu.Unlock()
	if b.timeout > 0 && time.Since(b.since) >= b.timeout/2 {
		return b.since.Add(b.timeout), cmp.Or(b.err, errNoTurn)
	}
	return time.Time{}, b.err
}

// interval returns the time between two heartbeats of the hook, and the hook's timeout; 0: it is not known.
func (h *Hooks) interval(ctx context.Context, hook intent.Hook) (interval, timeout time.Duration) {
	// The limits only improve the interval: the heartbeats must not wait for them for long.
	ctx, cancel := context.WithTimeout(ctx, h.HeartbeatInterval/2)
	defer cancel()
	for try := 1; ; try++ {
		limits, err := h.Limits(ctx, hook)
		if err == nil {
			return min(h.HeartbeatInterval, limits.Timeout/3), limits.Timeout
		}
		// If there is no hook, Auto Scaling will say so to the heartbeat.
		if lacksPermission(err) || isInvalid(err) || errors.Is(err, ErrNoHook) {
			return h.HeartbeatInterval, 0
		}
		if retry.Sleep(ctx, failures.Pause(try)) != nil {
			return h.HeartbeatInterval, 0
		}
	}
}

// heartbeat sends one heartbeat. It returns retry.ErrNothingToRenew if the action does
// not exist any more.
func (h *Hooks) heartbeat(ctx context.Context, hook intent.Hook, interval time.Duration) error {
	// The hook with the shorter interval is lost sooner, so it goes first. A call that
	// hangs must leave time for another one.
	urgency := pace.Priority{Class: heartbeating, Deadline: time.Now().Add(interval)}
	if _, denied := h.bounded(&h.denied).Get(permission{heartbeatPermission, hook.Group}); denied {
		urgency.Class = refused
	}
	timeout := min(callTimeout, interval/2)
	lasting, cut := retry.WithDelayedCancel(ctx, heartbeatEnds)
	defer cut()
	err := h.call(ctx, urgency, timeout, func(context.Context) error {
		ctx, cancel := context.WithTimeout(lasting, timeout)
		defer cancel()
		_, err := h.Client.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
			AutoScalingGroupName: aws.String(hook.Group),
			LifecycleHookName:    aws.String(hook.Name),
			InstanceId:           optional(hook.Instance),
			LifecycleActionToken: optional(hook.Token),
		})
		return err
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if isGone(err) {
		_ = h.permitted(heartbeatPermission, hook.Group, nil)
		h.Metrics.Heartbeat(ErrGone)
		return retry.ErrNothingToRenew
	}
	err = h.permitted(heartbeatPermission, hook.Group, err)
	h.Metrics.Heartbeat(err)
	return err
}

// Waits reports whether Auto Scaling waits for the hook at present, or has ended it. It sends a heartbeat,
// the only call that tells and needs no further permission. Without the permission for
// heartbeats neither is known. An error may pass: ask again.
func (h *Hooks) Waits(ctx context.Context, hook intent.Hook) (waits, ended bool, err error) {
	err = h.heartbeat(ctx, hook, callTimeout)
	waits, ended = err == nil, errors.Is(err, retry.ErrNothingToRenew)
	if waits || ended || lacksPermission(err) || isInvalid(err) {
		return waits, ended, nil
	}
	return false, false, fmt.Errorf("ask for lifecycle hook %s of group %s: %w", hook.Name, hook.Group, err)
}
