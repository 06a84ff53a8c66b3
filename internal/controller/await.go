package controller

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// awaitNode waits until an instance of ours has its Node, has gone, or patience
// has run out, and returns what to do then. The notice's hook is held open.
func (c *Controller) awaitNode(ctx context.Context, log logr.Logger, n notice.Notice, id string, d decision) (found finding, next decision, err error) {
	ctx, span := trace.Begin(ctx, "await node", "instance", id)
	defer func() { span.End(err, "node", found.ref.Name, "action", next.action, "why", next.why) }()
	defer c.count(n, d.deadline)()
	defer c.holdOpen(ctx, hookOf(n, id, d), n)()
	for {
		changed := c.Cluster.Changed()
		found, next, err = c.consider(ctx, log, n, id, unsettled)
		if err != nil || next.action != hold {
			return found, next, err
		}
		if !time.Now().Before(d.patience) {
			next.action = c.afterPatience(n)
			return found, next, nil
		}
		if err := pause(ctx, changed, d.patience); err != nil {
			return found, next, err
		}
	}
}

// afterPatience is what to do about an instance whose Node did not come in time.
func (p Policy) afterPatience(n notice.Notice) action {
	if p.owns(n.Hook) {
		return complete
	}
	return drop
}

// awaitReady completes a launch hook once the instance's Node is ready, or the
// instance has gone. A node that is not ready by the hook's deadline is left to
// the hook's own default result.
func (c *Controller) awaitReady(ctx context.Context, log logr.Logger, n notice.Notice, id string, d decision) error {
	hook := hookOf(n, id, d)
	defer c.count(n, d.deadline)()
	release := c.holdOpen(ctx, hook, n)
	defer release()
	for {
		changed := c.Cluster.Changed()
		found, next, err := c.consider(ctx, log, n, id, unsettled)
		switch {
		case err != nil:
			return err
		case next.action == launch && !found.ready && !time.Now().Before(d.deadline):
			log.Info("the node is not ready at the hook's deadline: its default result decides", "node", found.ref.Name)
			return nil
		case next.action != launch || found.ready:
			release()
			if err := c.complete(ctx, hook); err != nil {
				return err
			}
			log.Info("launch hook completed", "node", found.ref.Name, "ready", found.ready)
			return nil
		}
		if err := pause(ctx, changed, d.deadline); err != nil {
			return err
		}
	}
}

// holdOpen sends the heartbeats of a notice's hook until release is called,
// which returns when there will be no more.
func (c *Controller) holdOpen(ctx context.Context, hook asg.Hook, n notice.Notice) (release func()) {
	if !c.owns(n.Hook) {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	held := make(chan struct{})
	go func() {
		defer close(held)
		c.Hooks.Hold(ctx, hook, began(n, time.Now()))
	}()
	return func() {
		stop()
		<-held
	}
}

// pause waits for a change, for unsettled, or for until, whichever is first. It
// returns the cause of ctx when that ends.
func pause(ctx context.Context, changed <-chan struct{}, until time.Time) error {
	timer := time.NewTimer(min(unsettled, max(0, time.Until(until))))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
	case <-timer.C:
	}
	return nil
}
