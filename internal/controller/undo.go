package controller

import (
	"context"
	"errors"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// undo takes back what a scheduled change that is over brought to its node. That
// it is over is known to calledOff by now: nothing is recorded for it any more.
func (c *Controller) undo(ctx context.Context, log logr.Logger, n notice.Notice, ref cluster.Ref) error {
	ctx, span := trace.Begin(ctx, "uncordon", "node", ref.Name)
	undone := false
	err := c.persist(ctx, log, "uncordon the node", func(ctx context.Context) (err error) {
		undone, err = c.takeBack(ctx, ref, n.Change)
		if undone || err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			c.Observer.Node(ref, StepUncordon, string(WhyChangeEnded), err)
		}
		return err
	})
	span.End(err, "undone", undone)
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	if undone {
		log.Info("uncordoned", "node", ref.Name)
	}
	return err
}

// takeBack ends the node's work if there is no other reason for it, and then
// takes back what was done. It waits for its turn: what is being recorded for the
// change at this moment is part of it.
func (c *Controller) takeBack(ctx context.Context, ref cluster.Ref, change string) (undone bool, err error) {
	w, err := c.turn(ctx, ref)
	if err != nil {
		return false, err
	}
	if w != nil {
		defer w.giveBack()
		if intent, _ := w.now(); intent.HasChange(change) && len(intent.Without(change).Entries) == 0 {
			w.quit.give()
			select {
			case <-w.done:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		}
	}
	var kept cluster.Intent
	undone, err = c.Cluster.Undo(ctx, ref, func(i cluster.Intent) (cluster.Intent, bool) {
		had := i.HasChange(change)
		kept = i.Without(change)
		return kept, !had || len(kept.Entries) > 0
	})
	if w != nil && err == nil && !undone {
		w.update(kept)
	}
	return undone, err
}

// turn waits for the turn to write to a node with work under way, and returns
// that work; nil, without a turn, if there is none.
func (c *Controller) turn(ctx context.Context, ref cluster.Ref) (*work, error) {
	for {
		w := c.underWay(ref)
		if w == nil {
			return nil, nil
		}
		if err := w.take(ctx); err != nil {
			return nil, err
		}
		if !c.isOver(w) {
			return w, nil
		}
		w.giveBack() // it ended while we waited for it
	}
}

// finish ends the work on a node whose instance runs nothing any more.
func (c *Controller) finish(ctx context.Context, log logr.Logger, ref cluster.Ref) error {
	if c.OutOfServiceTaint {
		err := c.persist(ctx, log, "taint the node out of service", func(ctx context.Context) error {
			return c.Cluster.SetOutOfService(ctx, ref, true)
		})
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	w := c.underWay(ref)
	if w == nil {
		return nil
	}
	w.gone.give()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// welcomeBack takes the out-of-service taint back from nodes that have returned.
func (c *Controller) welcomeBack(ctx context.Context) {
	for {
		changed := c.Cluster.Changed()
		for _, ref := range c.Cluster.Returned() {
			err := c.persist(ctx, c.Log, "take the out-of-service taint back", func(ctx context.Context) error {
				return c.Cluster.SetOutOfService(ctx, ref, false)
			})
			if err == nil {
				c.Log.Info("the node is back in service", "node", ref.Name)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
