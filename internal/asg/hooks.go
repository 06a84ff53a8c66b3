package asg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/renew"
)

const (
	// All calls of an account to EC2 Auto Scaling in a region share one bucket,
	// whose size AWS does not publish; autoscalers and consoles live on it too.
	// Ten a second completes a hundred instances, a large scale-in, within 8 s,
	// and keeps 300 alive at the shortest interval that heartbeat-interval takes.
	callsPerSecond = 10
	callBurst      = 20

	// Covers the three tries of the SDK at an API that answers within a second.
	callTimeout = 10 * time.Second

	firstRetry = 500 * time.Millisecond
	mostRetry  = 10 * time.Second
	// A permission comes back by hand. The shortest hook is open for 30 s.
	deniedRetry = 20 * time.Second

	// A hook's limits are part of a group's set-up.
	limitsKept = 5 * time.Minute
	// What was wrong with the set-up is asked again after this.
	refusalKept = 10 * time.Minute

	// What EC2 Auto Scaling takes where it says nothing.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
	defaultTimeout = time.Hour
	mostTimeouts   = 100
	mostGlobal     = 48 * time.Hour
)

// Classes of [pace.Priority]: a completion lets an instance go, a late
// heartbeat loses one, a description can wait. What was refused before is
// refused again in all likelihood, and must not take the turns of the others.
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

// Permissions are all that Hooks needs, for metrics that start at zero.
var Permissions = []string{describePermission, heartbeatPermission, completePermission}

// Hooks speaks to EC2 Auto Scaling about lifecycle hooks. All its calls share
// one bucket: completions before heartbeats before descriptions. The exported
// fields are set before its first use; its methods may be called concurrently.
type Hooks struct {
	Client API
	// HeartbeatInterval is the longest time between two heartbeats of a hook.
	// Not positive: no heartbeats.
	HeartbeatInterval time.Duration
	// HeartbeatUntil bounds the heartbeats of a hook, from its start. Not
	// positive: Auto Scaling's own bound, [Limits.Global].
	HeartbeatUntil time.Duration
	Log            logr.Logger
	Metrics        Metrics // may be nil

	pacing  sync.Once
	limiter *pace.Limiter

	completions  shared[Hook, struct{}]
	descriptions shared[hookName, Limits]

	mu     sync.Mutex
	known  map[hookName]knowledge // without what is out of date; the zero key is what holds for all
	denied map[permission]bool    // without an answer since that was none; as many as there are groups
}

type hookName struct{ group, name string }

type knowledge struct {
	limits Limits
	err    error
	until  time.Time
}

type permission struct{ action, group string }

// Limits returns how long the hook may stay open, as its group has it. It
// returns ErrNoHook if there is no such hook, and a *PermissionError without
// autoscaling:DescribeLifecycleHooks. These answers are remembered for some
// minutes, other errors are not; concurrent callers share a call.
func (h *Hooks) Limits(ctx context.Context, hook Hook) (Limits, error) {
	name := hookName{hook.Group, hook.Name}
	known, ok := h.recall(name)
	if !ok {
		known.limits, known.err = h.descriptions.ask(ctx, name, func(ctx context.Context, _ func(error)) (Limits, error) {
			return h.describe(ctx, name)
		})
	}
	if known.err != nil {
		return Limits{}, fmt.Errorf("read the limits of lifecycle hook %s of group %s: %w", hook.Name, hook.Group, known.err)
	}
	return known.limits, nil
}

// describe asks for the limits of a hook and remembers what can be known.
func (h *Hooks) describe(ctx context.Context, name hookName) (Limits, error) {
	var out *autoscaling.DescribeLifecycleHooksOutput
	err := h.call(ctx, pace.Priority{Class: describing}, callTimeout, func(ctx context.Context) (err error) {
		out, err = h.Client.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{
			AutoScalingGroupName: aws.String(name.group),
			LifecycleHookNames:   []string{name.name},
		})
		return err
	})
	if gone(err) {
		out, err = &autoscaling.DescribeLifecycleHooksOutput{}, nil
	}
	// This permission knows no groups: refused for one is refused for all.
	err = h.permitted(describePermission, "", err)
	h.metrics().Described(err)
	if err != nil {
		if lacksPermission(err) {
			h.remember(hookName{}, knowledge{err: err, until: time.Now().Add(refusalKept)})
		}
		return Limits{}, err
	}
	for _, found := range out.LifecycleHooks {
		if aws.ToString(found.LifecycleHookName) == name.name {
			limits := limitsOf(found)
			h.remember(name, knowledge{limits: limits, until: time.Now().Add(limitsKept)})
			return limits, nil
		}
	}
	h.remember(name, knowledge{err: ErrNoHook, until: time.Now().Add(refusalKept)})
	return Limits{}, ErrNoHook
}

func limitsOf(hook types.LifecycleHook) Limits {
	limits := Limits{
		Timeout: time.Duration(aws.ToInt32(hook.HeartbeatTimeout)) * time.Second,
		Global:  time.Duration(aws.ToInt32(hook.GlobalTimeout)) * time.Second,
	}
	if limits.Timeout <= 0 {
		limits.Timeout = defaultTimeout
	}
	if limits.Global <= 0 {
		limits.Global = min(mostTimeouts*limits.Timeout, mostGlobal)
	}
	return limits
}

// recall returns what is known of a hook, if anything is.
func (h *Hooks) recall(name hookName) (knowledge, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, key := range []hookName{{}, name} {
		if k, ok := h.known[key]; ok && time.Now().Before(k.until) {
			return k, true
		}
	}
	return knowledge{}, false
}

func (h *Hooks) remember(name hookName, k knowledge) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = map[hookName]knowledge{}
	}
	maps.DeleteFunc(h.known, func(_ hookName, k knowledge) bool { return !time.Now().Before(k.until) })
	h.known[name] = k
}

// Hold keeps the hook open by heartbeats, until ctx ends, or there is no such
// action any more, or HeartbeatUntil has passed since started; it blocks until
// then. Without a positive HeartbeatInterval it returns at once.
//
// The interval is HeartbeatInterval, but a third of the hook's own timeout at
// most, where that can be read: of the shortest timeout, 30 s, that leaves the
// 20 s that the next leader may need to come. The first heartbeat is due one
// interval after started, and at once where that has passed. One that fails is
// sent again sooner; also one that lacks the permission
// autoscaling:RecordLifecycleActionHeartbeat, which may be given back while the
// hook is still open.
func (h *Hooks) Hold(ctx context.Context, hook Hook, started time.Time) {
	if h.HeartbeatInterval <= 0 {
		return
	}
	if h.HeartbeatUntil > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, started.Add(h.HeartbeatUntil))
		defer cancel()
	}
	interval := h.interval(ctx, hook)
	log := h.log(hook)
	log.V(1).Info("holding the lifecycle hook", "interval", interval)
	// Whether it ends by ctx or by the hook's own end is all the same here.
	_ = renew.Every(ctx, interval-time.Since(started), interval, func(ctx context.Context) error {
		err := h.heartbeat(ctx, hook, interval)
		if errors.Is(err, renew.ErrGone) {
			log.Info("the lifecycle hook is not open any more, no further heartbeats")
		} else if err != nil {
			log.V(1).Info("heartbeat failed, trying again", "error", err.Error())
		}
		return err
	})
}

// interval returns the time between two heartbeats of the hook.
func (h *Hooks) interval(ctx context.Context, hook Hook) time.Duration {
	// The heartbeats must not wait for long for what only makes them better.
	ctx, cancel := context.WithTimeout(ctx, h.HeartbeatInterval/2)
	defer cancel()
	for try := 0; ; try++ {
		limits, err := h.Limits(ctx, hook)
		if err == nil {
			return min(h.HeartbeatInterval, limits.Timeout/3)
		}
		// That there is no hook is for Auto Scaling to say to a heartbeat.
		if lacksPermission(err) || invalid(err) || errors.Is(err, ErrNoHook) || !sleep(ctx, backoff(try)) {
			return h.HeartbeatInterval
		}
	}
}

// heartbeat sends one heartbeat. It returns renew.ErrGone if there is nothing
// to keep alive.
func (h *Hooks) heartbeat(ctx context.Context, hook Hook, interval time.Duration) error {
	// Of two hooks the one with the shorter timeout is lost sooner. A call that
	// hangs must leave time for another.
	urgency := pace.Priority{Class: heartbeating, Deadline: time.Now().Add(interval)}
	if h.wasDenied(permission{heartbeatPermission, hook.Group}) {
		urgency.Class = refused
	}
	err := h.call(ctx, urgency, min(callTimeout, interval/2), func(ctx context.Context) error {
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
	isGone := gone(err)
	if isGone {
		err = nil
	}
	err = h.permitted(heartbeatPermission, hook.Group, err)
	h.metrics().Heartbeat(err)
	if isGone {
		return renew.ErrGone
	}
	return err
}

// Complete tells Auto Scaling to CONTINUE with the instance. It returns nil
// when that is accepted, and also when there is nothing left to complete: the
// action has ended, or its hook or group is gone. Calling it again is harmless;
// concurrent calls for one hook share one request.
//
// Everything that may pass is tried again until ctx ends: throttling, faults of
// the service and of the way there, also missing credentials and, slowly, a
// missing permission, since all of these can be mended while an instance waits.
// The error then wraps both the cause of ctx and the last failure, which is a
// *PermissionError where autoscaling:CompleteLifecycleAction was missing. Only a
// request that Auto Scaling finds invalid is given up earlier.
func (h *Hooks) Complete(ctx context.Context, hook Hook) error {
	action := hook
	action.Deadline = time.Time{}
	_, err := h.completions.ask(ctx, action, func(ctx context.Context, report func(error)) (struct{}, error) {
		return struct{}{}, h.complete(ctx, hook, report)
	})
	if err != nil {
		return fmt.Errorf("complete lifecycle hook %s of group %s for %s: %w", hook.Name, hook.Group, hook.Instance, err)
	}
	return nil
}

func (h *Hooks) complete(ctx context.Context, hook Hook, report func(error)) error {
	in := &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName:  aws.String(hook.Group),
		LifecycleHookName:     aws.String(hook.Name),
		LifecycleActionResult: aws.String("CONTINUE"),
		InstanceId:            optional(hook.Instance),
		LifecycleActionToken:  optional(hook.Token),
	}
	urgency := pace.Priority{Class: completing, Deadline: hook.Deadline}
	for try := 0; ; try++ {
		err := h.call(ctx, urgency, callTimeout, func(ctx context.Context) error {
			_, err := h.Client.CompleteLifecycleAction(ctx, in)
			return err
		})
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if gone(err) {
			h.log(hook).V(1).Info("the lifecycle hook needed no completion any more", "answer", err.Error())
			err = nil
		}
		err = h.permitted(completePermission, hook.Group, err)
		h.metrics().Completed(hook.Deadline, err)
		if err == nil || invalid(err) {
			return err
		}
		report(err)
		if try == 0 {
			h.log(hook).Info("the lifecycle hook is not completed yet, trying again", "error", err.Error())
		}
		urgency.Class = completing
		pause := backoff(try)
		if lacksPermission(err) {
			urgency.Class = refused
			pause = jittered(deniedRetry)
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
	}
}

// call makes one call when its turn has come, and gives it up after timeout.
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

var errCallTimeout = errors.New("no answer from Auto Scaling in time")

// permitted makes a *PermissionError of a denial. The log gets the first of a
// permission and a group, and another only after the permission was there.
func (h *Hooks) permitted(action, group string, err error) error {
	key := permission{action, group}
	if !denied(err) {
		if err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.denied, key)
		}
		return err
	}
	refusal := &PermissionError{Action: action, Group: group, Err: err}
	if h.firstDenial(key) {
		h.Log.Error(refusal, "the role of this controller lacks a permission", "permission", action, "group", group)
	}
	return refusal
}

func (h *Hooks) firstDenial(key permission) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.denied[key] {
		return false
	}
	if h.denied == nil {
		h.denied = map[permission]bool{}
	}
	h.denied[key] = true
	return true
}

// wasDenied reports whether the latest answer about a permission was a denial.
func (h *Hooks) wasDenied(key permission) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.denied[key]
}

func (h *Hooks) log(hook Hook) logr.Logger {
	return h.Log.WithValues("instance", hook.Instance, "group", hook.Group, "hook", hook.Name)
}

func (h *Hooks) metrics() Metrics {
	if h.Metrics == nil {
		return silent{}
	}
	return h.Metrics
}

// backoff returns the pause after a number of failed tries before this one.
func backoff(tries int) time.Duration {
	return jittered(min(firstRetry<<min(tries, 10), mostRetry))
}

// jittered returns between half of d and d, so that those who failed together
// do not come back together.
func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2)
}

// sleep reports whether d has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// optional leaves out what is empty: Auto Scaling rejects an empty parameter.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
