package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/instance"
)

// lookUp asks EC2 about an instance; see unlessDenied.
//
// node: the instance has a Node here. Such requests go before those about unknown ids.
func (c *Controller) lookUp(
	ctx context.Context, id string, maxAge time.Duration, node bool,
) (inst *instance.Instance, known bool, err error) {
	get := c.Instances.Get
	if node {
		get = c.Instances.GetUrgent
	}
	inst = new(instance.Instance)
	err = c.unlessDenied(func() (err error) {
		*inst, known, err = get(ctx, id, maxAge)
		return err
	})
	return inst, known, err
}

// lookUpWithin is lookUp with a timeout.
func (c *Controller) lookUpWithin(
	ctx context.Context, timeout time.Duration, id string, maxAge time.Duration, node bool,
) (inst *instance.Instance, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.lookUp(ctx, id, maxAge, node)
}

// unlessDenied asks EC2. Without the tag check the role needs no permission for that: if it
// has none, that is logged once, and EC2 is asked again after answerKept.
func (c *Controller) unlessDenied(ask func() error) error {
	if c.ManagedTag != "" {
		return ask()
	}
	c.mu.Lock()
	err := c.denied
	again := !time.Now().Before(c.askAgain)
	c.mu.Unlock()
	if err != nil && !again {
		return err
	}
	err = ask()
	if err != nil && !errors.Is(err, instance.ErrDenied) {
		return err
	}
	c.mu.Lock()
	first := err != nil && c.denied == nil
	c.denied, c.askAgain = err, time.Now().Add(answerKept)
	c.mu.Unlock()
	if first {
		c.Log.Warn("messages about instances that have no Node here, and about Capacity Blocks, are left in the queue: "+
			"EC2 cannot be asked whose they are", "why", err.Error())
	}
	return err
}

// ask looks up an instance that has, or had, a Node here, and tries until EC2 answers.
// known is false where the role has no permission to ask.
func (c *Controller) ask(
	ctx context.Context, log *slog.Logger, doing, id string, maxAge time.Duration,
) (inst instance.Instance, known bool, err error) {
	err = c.retry(ctx, log, doing, func(ctx context.Context) error {
		found, ok, err := c.lookUp(ctx, id, maxAge, true)
		inst, known = *found, ok
		if errors.Is(err, instance.ErrDenied) {
			return nil
		}
		return err
	})
	return inst, known, err
}

// launchOf is when the instance was started last, as EC2 says; zero where it does not say.
func (c *Controller) launchOf(ctx context.Context, log *slog.Logger, id string) (time.Time, error) {
	inst, _, err := c.ask(ctx, log, "look up the launch of the instance", id, answerFresh)
	return lastLaunch(inst), err
}
