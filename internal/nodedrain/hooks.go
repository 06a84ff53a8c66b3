package nodedrain

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A hookKeeper keeps the lifecycle hooks of a node open, and completes them at the end of its drain.
type hookKeeper struct{ *Drain }

// completeAll completes the hooks of the node, concurrently, and those that come
// meanwhile: none has to wait for one that takes hours. It adds them to ended: true, if they were completed here, or
// false, if they had ended.
func (k hookKeeper) completeAll(ctx context.Context, ended map[intent.Hook]bool) error {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	type end struct {
		hook      intent.Hook
		completed bool
		err       error
	}
	ends := make(chan end)
	asked := maps.Clone(ended)
	for running := 0; ; {
		carried, changed := k.current()
		for _, h := range carried.Hooks {
			if _, begun := asked[h.Action()]; begun {
				continue
			}
			asked[h.Action()] = true
			running++
			all.Go(func() {
				var completed bool
				err := logging.Recover(k.log, func() (err error) {
					completed, err = k.r.Complete(ctx, k.log, h)
					return err
				})
				select {
				case ends <- end{h, completed, err}:
				case <-ctx.Done():
				}
			})
		}
		if running == 0 {
			return nil
		}
		k.say(overview.Completing, completing(carried.Hooks, ended)...)
		select {
		case e := <-ends:
			if e.err != nil {
				return e.err
			}
			running--
			ended[e.hook.Action()] = e.completed
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// About are drains that a hook has to do with: the one that carries it, of a Node that was deleted maybe, and one for
// another reason that needs the machine.
func (r *Registry) About(h intent.Hook) (carrier, other *Drain) {
	for _, nd := range r.allDrains() {
		i := nd.carried()
		if slices.ContainsFunc(i.Hooks, h.MayBe) {
			carrier = nd
		} else if nd.ref.Instance == h.Instance && nd.needsMachine() {
			other = nd
		}
	}
	return carrier, other
}

// Complete completes a hook; see asg.Hooks. It reports whether it has: with a hook that is gone there is nothing to do.
// Nor with one that Auto Scaling refuses for good: trying again would never end.
func (r *Registry) Complete(ctx context.Context, log logr.Logger, h intent.Hook) (completed bool, err error) {
	switch err = r.Hooks.Complete(ctx, h); {
	case errors.Is(err, errNotOurs):
		log.Info("lifecycle hook is left alone: a handler without a queue completes none", "group", h.Group, "hook", h.Name)
	case errors.Is(err, asg.ErrGone):
		log.Info("lifecycle hook is gone, there was nothing to complete", "group", h.Group, "hook", h.Name)
	case errors.Is(err, asg.ErrRefused):
		log.Error(err, "the lifecycle hook cannot be completed: its default result applies", "group", h.Group, "hook", h.Name)
	case err != nil:
		return false, err
	default:
		log.Info("lifecycle hook completed", "group", h.Group, "hook", h.Name)
		return true, nil
	}
	return false, nil
}

const (
	// hookMargin is how long before the end of its heartbeats a hook is completed.
	hookMargin = 5 * time.Second
	// leastGlobal is the shortest global limit that a hook can have: a hundred times the shortest timeout.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
	leastGlobal = 100 * 30 * time.Second
	// longestTimeout is the longest timeout of a hook: without heartbeats none is open for longer.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	longestTimeout = 2 * time.Hour
)

// hooksEnd is when the first of a node's hooks ends by itself; zero: not known. What follows the drain of the pods goes
// by this: a deadline that is a guess does not end a hook that heartbeats hold. unheld is how long another hook with a
// guess counts as open at least; zero: the guess has to do, because the hook is to be completed before it times out.
func (c *Config) hooksEnd(i intent.Intent, unheld time.Duration) (at time.Time) {
	open := unheld
	switch {
	case c.HeartbeatUntil > 0 && unheld > 0: // for as long as they are accepted
		open = c.HeartbeatUntil
	case c.HeartbeatUntil > 0:
		open = min(c.HeartbeatUntil, leastGlobal)
	}
	for _, h := range i.Hooks {
		end := h.Deadline
		if held := h.Started.Add(open - hookMargin); h.Assumed && open > 0 && held.After(end) {
			end = held
		}
		at = intent.Earlier(at, end)
	}
	return at
}

// completeBy is when the hooks have to be completed at the latest or, without hooks, the machine goes; zero: not known.
// For unheld see hooksEnd.
func (c *Config) completeBy(i intent.Intent, unheld time.Duration) time.Time {
	by := c.hooksEnd(i, unheld)
	for _, e := range i.Entries {
		if e.Kind != notice.ASGTerminate || len(i.Hooks) == 0 {
			by = intent.Earlier(by, e.Deadline)
		}
	}
	return by
}

// pressing is an intent with the ends of hooks that heartbeats do not hold: a drain that is held back has to begin, and
// a completion delay to be over, in time for them. Nothing is forced because of them: the node carries its deadlines as
// they are.
func (c *Config) pressing(i intent.Intent) intent.Intent {
	for _, h := range i.Hooks {
		if ends, _ := c.Hooks.HeartbeatFailure(h); !ends.IsZero() {
			i = i.WithDeadline(h, ends.Add(-hookMargin))
		}
	}
	return i
}

// delayUntil is when a completion delay has to be over at the latest; zero: not known. A hook that is gone ends none as
// long as another one is open: somebody has completed theirs.
func (c *Config) delayUntil(i intent.Intent) time.Time {
	isGone := func(h intent.Hook) bool {
		_, err := c.Hooks.HeartbeatFailure(h)
		return errors.Is(err, asg.ErrGone)
	}
	if open := slices.DeleteFunc(slices.Clone(i.Hooks), isGone); len(open) > 0 {
		i.Hooks = open
	}
	return c.completeBy(c.pressing(i), longestTimeout) // somebody has asked for the delay
}

// holdAll sends heartbeats for all hooks of the node but those that have ended, also for hooks that come later, until
// release is called. release returns when no heartbeat is in flight any more. ended does not change until then.
func (k hookKeeper) holdAll(ctx context.Context, ended map[intent.Hook]bool) (release func()) {
	var all sync.WaitGroup
	var held map[intent.Hook]bool // nil: there was none so far, as for most nodes
	stop := func() {}
	remove := k.onChange(func() {
		carried := k.carried()
		for _, h := range carried.Hooks {
			if held == nil {
				held = map[intent.Hook]bool{}
				ctx, stop = context.WithCancel(ctx) //nolint:gosec // release calls stop
			}
			if _, over := ended[h.Action()]; !over && !held[h.Action()] {
				held[h.Action()] = true
				all.Go(func() { k.r.Hooks.Hold(ctx, h) })
			}
		}
	})
	return func() {
		remove()
		stop()
		all.Wait()
	}
}

// read reads the limits of hooks whose deadlines are assumed, until that works, and
// sets the real deadlines: pods must not be forced off the node by a guess.
func (k hookKeeper) read(ctx context.Context) {
	var unreadable []intent.Hook
	for {
		carried, changed := k.current()
		at := slices.IndexFunc(carried.Hooks, func(h intent.Hook) bool {
			return h.Assumed && !slices.Contains(unreadable, h.Action())
		})
		var again <-chan time.Time // nil: there is nothing to read
		if at >= 0 {
			h := carried.Hooks[at]
			limits, err := k.r.Hooks.Limits(ctx, h)
			_, denied := errors.AsType[*asg.PermissionError](err)
			switch {
			case err == nil:
				deadline := h.Started.Add(decision.HookTime(limits, k.r.Policy))
				if k.learn(ctx, func(i intent.Intent) intent.Intent { return i.WithDeadline(h, deadline) }) != nil {
					return // the drain ends
				}
				continue
			case denied || errors.Is(err, asg.ErrNoHook):
				unreadable = append(unreadable, h.Action())
				continue
			}
			again = time.After(againAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// NoHooks are the lifecycle hooks of the IMDS mode: there are none, because the metadata names no
// hook. A node may carry the hook of a handler with a queue, which does what is to be done about it.
// It implements [Hooks].
type NoHooks struct{}

// Limits are not known, and will not be.
func (NoHooks) Limits(context.Context, intent.Hook) (notice.HookLimits, error) {
	return notice.HookLimits{}, asg.ErrNoHook
}

// Hold does nothing.
func (NoHooks) Hold(ctx context.Context, _ intent.Hook) { <-ctx.Done() }

// Waits knows of none.
func (NoHooks) Waits(context.Context, intent.Hook) (waits, ended bool, err error) {
	return false, false, nil
}

// errNotOurs is why a hook is not completed that a handler with a queue has recorded.
var errNotOurs = errors.New("a handler without a queue completes no hooks")

// Complete leaves the hook as it is.
func (NoHooks) Complete(context.Context, intent.Hook) error { return errNotOurs }

// Failure is nil: nothing is tried.
func (NoHooks) Failure(intent.Hook) error { return nil }

// HeartbeatFailure is nil as well.
func (NoHooks) HeartbeatFailure(intent.Hook) (time.Time, error) { return time.Time{}, nil }
