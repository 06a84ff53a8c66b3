package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// undo reverts what a cancelled scheduled change, or an impairment that is over, did to the
// nodes of its instance. The change is in Controller.cancelled by now, and is written to the
// node: no new notice for it is recorded.
//
// A maintenance often stops and starts the instance. Notices of before the start are about
// an earlier life of the instance, and do not keep the node cordoned.
func (c *Controller) undo(ctx context.Context, log *slog.Logger, t *task) error {
	change := func(i intent.Intent) intent.Intent {
		return i.Without(t.n.Kind, t.n.Change, t.n.HappenedAt(time.Now())).SinceLaunch(t.found.launched)
	}
	for _, ref := range t.found.refs {
		if err := c.revert(ctx, log, ref, t.Why, change); err != nil {
			return err
		}
	}
	return nil
}

// revert removes notices from the intent of a node. If none is left, it ends the drain of the
// node, and reverts what was done.
func (c *Controller) revert(
	ctx context.Context, log *slog.Logger, ref cluster.Ref, why decision.Why, change func(intent.Intent) intent.Intent,
) error {
	if c.isDelegated(ref) {
		log.Warn("the node is not uncordoned: Karpenter replaces it, which cannot be taken back",
			"node", ref.Name, "why", why)
		c.Observer.Stepped(report.Step{Node: ref, Kind: report.KeepDelegated, Why: why})
		return nil
	}
	ctx, span := trace.Begin(ctx, "uncordon", "node", ref.Name)
	undone := false
	err := c.retry(ctx, log, "uncordon the node", func(ctx context.Context) (err error) {
		undone, err = c.revertLocked(ctx, ref, change)
		if undone || err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			c.Observer.Stepped(report.Step{Node: ref, Kind: report.Uncordon, Why: why, Err: err})
		}
		return err
	})
	span.End(err, "undone", undone)
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	if undone {
		log.Info("uncordoned", "node", ref.Name, "why", why)
	}
	return err
}

// revertLocked does so while it holds the lock of the node, so that a notice that is being
// recorded at this moment is heeded, and that nobody begins a drain for what is being reverted.
func (c *Controller) revertLocked(
	ctx context.Context, ref cluster.Ref, change func(intent.Intent) intent.Intent,
) (undone bool, err error) {
	nd, err := c.lockOf(ctx, ref)
	if err != nil {
		return false, err
	}
	if carried, _ := nd.current(); nd.started && len(carried.Entries) > 0 && len(change(carried).Entries) == 0 {
		next := c.succeed(nd)
		nd.quitFor(nil)
		err := nd.awaitEnd(ctx)
		nd.unlock()
		switch {
		case next == nil && err == nil:
			return c.revertLocked(ctx, ref, change)
		case next == nil:
			return false, err
		case err != nil:
			c.end(next, nil)
			next.unlock()
			return false, err
		}
		nd = next
	}
	defer nd.unlock()
	var kept intent.Intent
	undone, err = c.Cluster.Undo(ctx, ref, func(i intent.Intent) intent.Intent {
		kept = change(i)
		return kept
	})
	switch {
	case nd.started && err == nil && !undone:
		if nd.setIntent(kept); c.hasEnded(nd) {
			return false, c.goOn(ctx, c.Log, ref)
		}
	case nd.started:
	case err == nil && !undone && !kept.Finished() && len(kept.Entries) > 0 && c.Cluster.Serves(kept):
		// Its drain has ended for nothing: another handler has recorded a notice meanwhile, which the lock of
		// the node does not prevent.
		return false, c.begin(ctx, nd, kept)
	default:
		c.end(nd, nil)
	}
	return undone, err
}

// callOff reverts a drain that has not ended, for the reason that it was quit for.
func (c *Controller) callOff(ctx context.Context, log *slog.Logger, nd *nodeDrain, reason error) error {
	step, why := report.Uncordon, decision.WhyEarlierLife
	if errors.Is(reason, errUncordoned) {
		step, why = report.CallOff, decision.WhyUncordoned
	}
	if errors.Is(reason, errIgnored) {
		why = decision.WhyIgnoredByRule
	}
	log.Warn("the drain is called off", "why", reason)
	now := time.Now()
	var kept intent.Intent
	err := c.retry(ctx, log, "revert the drain", func(ctx context.Context) error {
		_, err := c.Cluster.Undo(ctx, nd.ref, func(i intent.Intent) intent.Intent {
			if kept = i.CalledOff(nd.quitOn.Entries, now); errors.Is(reason, errIgnored) {
				kept = i.Dismiss(nd.quitOn.Asks)
			}
			return kept
		})
		return err
	})
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNodeGone):
		return err
	case err == nil && len(kept.Entries) > 0:
		c.remove(nd)
		return c.goOn(ctx, log, nd.ref)
	}
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: step, Why: why})
	return nil
}

// goOn begins the drain of a node again whose drain has ended, and that carries a notice.
func (c *Controller) goOn(ctx context.Context, log *slog.Logger, ref cluster.Ref) error {
	err := c.retry(ctx, log, "go on with the drain", func(ctx context.Context) error {
		_, err := c.revertLocked(ctx, ref, func(i intent.Intent) intent.Intent { return i })
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	return err
}

// releaseUncordoned reverts what is left of a drain on nodes that somebody has uncordoned after
// it. A cordon that comes later is theirs.
func (c *Controller) releaseUncordoned(ctx context.Context) {
	c.atEachChange(ctx, func() error {
		for _, ref := range c.Cluster.Uncordoned() {
			err := c.retry(ctx, c.Log, "revert what is left of a drain", func(ctx context.Context) error {
				// The read itself drops the claim that the cordon is ours.
				_, err := c.Cluster.Undo(ctx, ref, func(i intent.Intent) intent.Intent { return i })
				return err
			})
			if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
				return err
			}
		}
		return nil
	})
}

// cancelledChanges remembers when scheduled changes were cancelled, for announcements that
// SQS delivers after that. It is bounded, because this order is rare.
type cancelledChanges struct{ ended *utilcache.LRUExpireCache }

func newCancelledChanges() cancelledChanges {
	const size = 4096
	return cancelledChanges{utilcache.NewLRUExpireCache(size)}
}

func (c cancelledChanges) add(n notice.Notice, id string) {
	const ttl = time.Hour // SQS does not reorder messages by more
	c.ended.Add(n.Change+" "+id, n.Time, ttl)
}

// has reports whether the change was cancelled for the instance after this announcement.
func (c cancelledChanges) has(n notice.Notice, id string) bool {
	if n.Kind != notice.ScheduledChange || n.Ended {
		return false
	}
	when, ok := c.ended.Get(n.Change + " " + id)
	return ok && !n.Time.After(when.(time.Time))
}
