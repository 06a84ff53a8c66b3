package controller

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
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

// completeUncarried completes a hook, unless a drain carries it. That drain completes it then, and is waited for: the
// next Node of the instance is drained before. Nor does it complete one while a Node of its instance is being drained
// for another reason: the machine would go away with its pods.
func (c *Controller) completeUncarried(ctx context.Context, log logr.Logger, t *task) error {
	carrier, others := c.Registry.About(t.hook())
	if carrier != nil {
		return carrier.Await(ctx)
	}
	if err := c.awaitOthers(ctx, t, others); err != nil {
		return err
	}
	return c.Registry.Complete(ctx, log, t.hook())
}

// awaitOthers waits for the end of other drains of the machine, and holds the hook open meanwhile.
func (c *Controller) awaitOthers(ctx context.Context, t *task, others []*nodedrain.Drain) error {
	if len(others) == 0 {
		return nil
	}
	defer c.holdOpen(ctx, t.hook(), *t.n)()
	for _, nd := range others {
		if err := nd.AwaitEnd(ctx); err != nil {
			return err
		}
	}
	return nil
}

// limitsTimeout is how long a node can wait for its cordon.
const limitsTimeout = 10 * time.Second

// limits reads the limits of a hook. They are zero where that fails, or takes longer than a
// node can wait for its cordon.
func (c *Controller) limits(ctx context.Context, log logr.Logger, hook intent.Hook) notice.HookLimits {
	ctx, cancel := context.WithTimeout(ctx, limitsTimeout)
	defer cancel()
	limits, err := c.Hooks.Limits(ctx, hook)
	if err != nil {
		log.V(1).Info("the hook cannot be read", "why", err.Error())
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
