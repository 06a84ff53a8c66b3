package controller

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/apart"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// holdOpen sends heartbeats for the hook of a notice until release is called. release
// returns when no heartbeat is in flight any more.
func (c *Controller) holdOpen(ctx context.Context, hook intent.Hook, n notice.Notice) (release func()) {
	if !c.Owns(n.Hook) {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	held := make(chan struct{})
	go func() {
		defer close(held)
		c.Hooks.Hold(ctx, hook)
	}()
	return func() {
		stop()
		<-held
	}
}

// count makes the hook of a notice part of the load, until done is called.
func (c *Controller) count(n notice.Notice, deadline time.Time) (done func()) {
	if !c.Owns(n.Hook) {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[&deadline] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.awaited, &deadline)
	}
}

// completeHooks completes the hooks of the node, concurrently, and those that come
// meanwhile: none has to wait for one that takes hours. It adds them to completed.
func (c *Controller) completeHooks(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, completed map[intent.Hook]bool,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type end struct {
		hook intent.Hook
		err  error
	}
	ends := make(chan end)
	asked := maps.Clone(completed)
	for running := 0; ; {
		carried, changed := nd.current()
		for _, h := range carried.Hooks {
			if asked[h.Action()] {
				continue
			}
			asked[h.Action()] = true
			running++
			go func() {
				e := end{h, c.complete(ctx, log, h)}
				select {
				case ends <- e:
				case <-ctx.Done():
				}
			}()
		}
		if running == 0 {
			return nil
		}
		nd.say(overview.Completing, completing(carried.Hooks, completed)...)
		select {
		case e := <-ends:
			if e.err != nil {
				return e.err
			}
			running--
			completed[e.hook.Action()] = true
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// completeUncarried completes a hook, unless a drain carries it, of a Node that was deleted maybe. That
// drain completes it then, and is waited for: the next Node of the instance is drained before.
func (c *Controller) completeUncarried(ctx context.Context, log *slog.Logger, h intent.Hook) error {
	c.mu.Lock()
	var with *nodeDrain
	for _, nd := range c.drains {
		if i, _ := nd.current(); slices.ContainsFunc(i.Hooks, h.MayBe) {
			with = nd
		}
	}
	c.mu.Unlock()
	if with != nil {
		return with.await(ctx)
	}
	return c.complete(ctx, log, h)
}

// complete completes a hook; see asg.Hooks. A hook that Auto Scaling refuses for good
// counts as completed: trying again would never end.
func (c *Controller) complete(ctx context.Context, log *slog.Logger, h intent.Hook) error {
	ctx, span := trace.Begin(ctx, "complete hook", "group", h.Group, "hook", h.Name, "instance", h.Instance)
	err := c.Hooks.Complete(ctx, h)
	span.End(err)
	if errors.Is(err, asg.ErrRefused) {
		log.Error("the lifecycle hook cannot be completed: its default result applies",
			"error", err, "group", h.Group, "hook", h.Name)
		return nil
	}
	if err == nil {
		log.Info("lifecycle hook completed", "group", h.Group, "hook", h.Name)
	}
	return err
}

// holdHooks sends heartbeats for all hooks of the node, also for those that come later,
// until release is called. release returns when no heartbeat is in flight any more.
func (c *Controller) holdHooks(ctx context.Context, nd *nodeDrain) (release func()) {
	var all sync.WaitGroup
	var held map[intent.Hook]bool // nil: there was none so far, as for most nodes
	stop := func() {}
	holdNew := func() {
		if held == nil {
			held = map[intent.Hook]bool{}
			ctx, stop = context.WithCancel(ctx) //nolint:gosec // release calls stop
		}
		carried, _ := nd.current()
		for _, h := range carried.Hooks {
			if !held[h.Action()] {
				held[h.Action()] = true
				all.Go(func() { c.Hooks.Hold(ctx, h) })
			}
		}
	}
	remove := nd.onChange(func() {
		if nd.hasHooks() {
			apart.Do(holdNew)
		}
	})
	return func() {
		remove()
		stop()
		all.Wait()
	}
}

// readHooks reads the limits of hooks whose deadlines are assumed, until that works, and
// sets the real deadlines: pods must not be forced off the node by a guess.
func (c *Controller) readHooks(ctx context.Context, nd *nodeDrain) {
	var unreadable []intent.Hook
	for {
		_, changed := nd.current()
		again, err := c.readHook(ctx, nd, &unreadable)
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// readHook reads what readHooks has to read now. again delivers when to try once more; nil: there is nothing to. An
// error means that the drain ends.
func (c *Controller) readHook(
	ctx context.Context, nd *nodeDrain, unreadable *[]intent.Hook,
) (again <-chan time.Time, err error) {
	for {
		carried, _ := nd.current()
		at := slices.IndexFunc(carried.Hooks, func(h intent.Hook) bool {
			return h.Assumed && !slices.Contains(*unreadable, h.Action())
		})
		if at < 0 {
			return nil, nil
		}
		h := carried.Hooks[at]
		limits, err := c.Hooks.Limits(ctx, h)
		_, denied := errors.AsType[*asg.PermissionError](err)
		switch {
		case err == nil:
			deadline := h.Started.Add(decision.HookTime(limits, c.Policy))
			if err := c.learn(ctx, nd, func(i intent.Intent) intent.Intent { return i.WithDeadline(h, deadline) }); err != nil {
				return nil, err
			}
		case denied || errors.Is(err, asg.ErrNoHook):
			*unreadable = append(*unreadable, h.Action())
		default:
			return time.After(lastPause), nil
		}
	}
}

// learn changes the intent of a drain, and then that of the node. So the drain heeds what was learned also
// while the API server does not answer. The next leader learns it for itself.
func (c *Controller) learn(ctx context.Context, nd *nodeDrain, change func(intent.Intent) intent.Intent) error {
	if err := nd.lock(ctx); err != nil {
		return err
	}
	carried, _ := nd.current()
	nd.setIntent(change(carried))
	nd.unlock()
	return c.rewrite(ctx, nd, change)
}

// limits reads the limits of a hook. They are zero where that fails, or takes longer than a
// node can wait for its cordon.
func (c *Controller) limits(ctx context.Context, log *slog.Logger, hook intent.Hook) notice.HookLimits {
	ctx, cancel := context.WithTimeout(ctx, lastPause)
	defer cancel()
	limits, err := c.Hooks.Limits(ctx, hook)
	if err != nil {
		log.Debug("the hook cannot be read", "why", err.Error())
	}
	return limits
}

// hookOf is the lifecycle action of a notice for an instance.
func hookOf(n *notice.Notice, id string, d *decision.Decision) intent.Hook {
	return intent.Hook{
		Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: id,
		Started: n.HappenedAt(time.Now()), Deadline: d.Deadline, Assumed: d.Assumed,
	}
}
