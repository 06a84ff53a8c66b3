package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// carryOut does what the node's intent asks for, to the end: the pods, the
// hooks, the mark that it is done. nil means that every message about it can go.
func (c *Controller) carryOut(ctx context.Context, w *work) error {
	log := c.Log.WithValues("node", w.ref.Name, "instance", w.ref.Instance)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-w.quit.given:
			stop(errUndone)
		case <-ctx.Done():
		}
	}()
	release := c.holdHooks(ctx, w)
	defer release()

	err := c.comeForward(ctx, log, w)
	if err == nil {
		err = c.evacuate(ctx, log, w)
	}
	if err == nil {
		err = c.delay(ctx, w)
	}
	if err == nil {
		release()
		err = c.conclude(ctx, log, w)
	}
	if errors.Is(err, errUndone) {
		return nil
	}
	return err
}

// evacuate gets the pods off the node, unless only cordoning is wanted.
func (c *Controller) evacuate(ctx context.Context, log logr.Logger, w *work) error {
	if c.CordonOnly {
		return nil
	}
	free, err := c.takeSlot(ctx, w)
	if err != nil {
		return err
	}
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go c.watchGone(ctx, w, stop)
	intent, changed := w.now()
	terms := make(chan pods.Terms)
	go w.tighten(ctx, changed, terms)
	start := time.Now()
	result, err := c.Drainer.Drain(ctx, pods.Order{Node: w.ref.Name, CordonedAt: intent.CordonedAt, Terms: termsOf(intent), Changed: terms, Log: log})
	gone := errors.Is(context.Cause(ctx), errNodeGone)
	if gone {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("drain node %s: %w", w.ref.Name, err)
	}
	if result.Self {
		log.Info("only the pod of this program is left on the node: giving the lease away")
		return ErrGiveWay
	}
	w.emptied()
	final, _ := w.now()
	c.Metrics.Ended(final, result, gone)
	c.Observer.Drained(w.ref, result, time.Since(start), final.Deadline())
	w.span.Set("evicted", result.Evicted, "forced", result.Forced, "missed", len(result.Missed))
	values := []any{"evicted", result.Evicted, "forced", result.Forced, "took", time.Since(start).Round(time.Millisecond).String()}
	if d := final.Deadline(); !d.IsZero() {
		values = append(values, "left", time.Until(d).Round(time.Second).String())
	}
	if len(result.Missed) > 0 {
		values = append(values, "missed", result.Missed)
	}
	log.Info("drained", values...)
	return nil
}

// tighten sends the terms of the work on each time its intent has changed.
func (w *work) tighten(ctx context.Context, changed <-chan struct{}, terms chan<- pods.Terms) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		var intent cluster.Intent
		intent, changed = w.now()
		select {
		case <-ctx.Done():
			return
		case terms <- termsOf(intent):
		}
	}
}

func termsOf(i cluster.Intent) pods.Terms {
	return pods.Terms{Deadline: i.Deadline(), IgnoreBudgets: dated(i, notice.StateChange)}
}

// takeSlot waits for a worker, where their number is bounded and nothing urgent
// is about the node. free gives it back. A drain that has taken longer than the
// node's grace period gives it back before its end: what it still waits for is
// budgets, mostly, and one that never clears must not stop all other drains.
func (c *Controller) takeSlot(ctx context.Context, w *work) (free func(), err error) {
	for c.slots != nil {
		intent, changed := w.now()
		if urgent(intent) {
			break
		}
		var hurry <-chan time.Time // the deadline comes first
		if d := intent.Deadline(); !d.IsZero() {
			hurry = time.After(time.Until(d.Add(-c.NodeGracePeriod)))
		}
		select {
		case c.slots <- struct{}{}:
			release := sync.OnceFunc(func() { <-c.slots })
			patience := time.AfterFunc(c.NodeGracePeriod, release)
			return func() {
				patience.Stop()
				release()
			}, nil
		case <-changed:
		case <-hurry:
			return func() {}, nil
		case <-w.gone.given:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {}, nil
}

// watchGone stops the evictions when there is nothing left to evict from.
func (c *Controller) watchGone(ctx context.Context, w *work, stop context.CancelCauseFunc) {
	for {
		changed := c.Cluster.Changed()
		if !c.Cluster.Exists(w.ref) || isClosed(w.gone.given) {
			stop(errNodeGone)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.gone.given:
		case <-changed:
		}
	}
}

// delay waits between the end of the drain and the completion of the hooks, from
// a moment that the node carries, so that a failover does not begin it anew.
func (c *Controller) delay(ctx context.Context, w *work) error {
	intent, _ := w.now()
	if c.CompletionDelay <= 0 || len(intent.Hooks) == 0 {
		return nil
	}
	if intent.DrainedAt.IsZero() {
		now := time.Now().UTC()
		if err := c.rewrite(ctx, w, func(i cluster.Intent) cluster.Intent {
			i.DrainedAt = now
			return i
		}); err != nil {
			return err
		}
		intent.DrainedAt = now
	}
	timer := time.NewTimer(time.Until(cluster.Earlier(intent.DrainedAt.Add(c.CompletionDelay), intent.Deadline())))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// conclude completes the node's hooks, each once, and marks the intent finished.
// A hook that comes meanwhile is completed too.
func (c *Controller) conclude(ctx context.Context, log logr.Logger, w *work) error {
	completed := map[cluster.Hook]bool{}
	for {
		intent, _ := w.now()
		for _, h := range intent.Hooks {
			if completed[h] {
				continue
			}
			if err := c.complete(ctx, asg.Hook{Group: h.Group, Name: h.Name, Token: h.Token, Instance: h.Instance, Deadline: intent.HookDeadline()}); err != nil {
				return err
			}
			completed[h] = true
			log.Info("lifecycle hook completed", "group", h.Group, "hook", h.Name)
		}
		more := false
		finished := time.Now().UTC()
		err := c.rewrite(ctx, w, func(i cluster.Intent) cluster.Intent {
			more = false
			for _, h := range i.Hooks {
				more = more || !completed[h]
			}
			if !more {
				i.Hooks, i.FinishedAt = nil, finished
			}
			return i
		})
		if err != nil || !more {
			return err
		}
	}
}

// rewrite changes the intent of a node under way. A node that is gone needs none.
func (c *Controller) rewrite(ctx context.Context, w *work, change func(cluster.Intent) cluster.Intent) error {
	if err := w.take(ctx); err != nil {
		return err
	}
	defer w.giveBack()
	err := c.persist(ctx, c.Log.WithValues("node", w.ref.Name), "write the intent", func(ctx context.Context) error {
		intent, err := c.Cluster.Record(ctx, w.ref, change)
		if err == nil {
			w.update(intent)
			if intent.Finished() { // who comes now opens it again
				c.end(w)
			}
		}
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	return err
}

// holdHooks sends the heartbeats of all hooks of the node, those that come later
// too, until release is called, which returns when there will be no more.
func (c *Controller) holdHooks(ctx context.Context, w *work) (release func()) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		held := map[cluster.Hook]bool{}
		for {
			intent, changed := w.now()
			for _, h := range intent.Hooks {
				if !held[h] {
					held[h] = true
					all.Go(func() {
						c.Hooks.Hold(ctx, asg.Hook{Group: h.Group, Name: h.Name, Token: h.Token, Instance: h.Instance}, h.Started)
					})
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	})
	return func() {
		stop()
		all.Wait()
	}
}
