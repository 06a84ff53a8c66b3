package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// undo reverts what a cancelled scheduled change, or an impairment that is over, did to the
// nodes of its instance. The change is in Controller.cancelled by now, and is written to the
// node: no new notice for it is recorded.
//
// A maintenance often stops and starts the instance. Notices of before the start are about
// an earlier life of the instance, and do not keep the node cordoned.
func (c *Controller) undo(ctx context.Context, log logr.Logger, t *task) error {
	now := time.Now().UTC()
	change := func(i intent.Intent) intent.Intent {
		return c.putOff(i, i.Without(t.n.Kind, t.n.Change, t.n.HappenedAt(now)).SinceLaunch(t.found.Launched), now)
	}
	for _, ref := range t.found.Refs {
		if err := c.Registry.Revert(ctx, log, ref, t.Why, change); err != nil {
			return err
		}
	}
	return nil
}

// putOff is what is left of an intent when a notice is taken back. What the rules let begin later only is held back
// again: otherwise the node would stay empty until then. A drained machine that terminates stays cordoned.
func (c *Controller) putOff(before, left intent.Intent, now time.Time) intent.Intent {
	opens, _ := c.CurrentPolicy().Opens(left, now)
	terminates := before.Finished() && left.Has(notice.ASGTerminate) // other hooks may still wait
	if terminates || before.HeldBack || len(left.Entries) == 0 || len(left.Entries) == len(before.Entries) ||
		!opens.After(now) || !decision.CanWait(left, now, c.Policy) {
		return left
	}
	return left.PutOff(now)
}

// runsAgain reverts what was done to the nodes of an instance in its earlier lives, because EC2
// says that it runs. Where EC2 may not be asked when that began, the notice itself says so.
func (c *Controller) runsAgain(ctx context.Context, log logr.Logger, t *task) error {
	launched := t.found.Launched
	if launched.IsZero() {
		launched = t.n.Time
	}
	since := func(i intent.Intent) intent.Intent { return i.SinceLaunch(launched) }
	for _, ref := range t.found.Refs {
		if err := c.Registry.Revert(ctx, log, ref, decision.WhyRestarted, since); err != nil {
			return err
		}
	}
	return nil
}

// cancelledChanges remembers when scheduled changes were cancelled, for announcements that
// SQS delivers after that. It is bounded, because this order is rare: for each instance by itself,
// because a pod on a node can report ever new ends of changes.
type cancelledChanges struct {
	mu    *sync.Mutex
	ended *utilcache.LRUExpireCache // of instances: their changes as []cancelled, which nobody changes
}

type cancelled struct {
	change string
	at     time.Time
}

func newCancelledChanges() cancelledChanges {
	const instances = 4096
	return cancelledChanges{new(sync.Mutex), utilcache.NewLRUExpireCache(instances)}
}

func (c cancelledChanges) add(n notice.Notice, id string) {
	const (
		ttl  = time.Hour // SQS does not reorder messages by more
		most = 16
	)
	c.mu.Lock()
	defer c.mu.Unlock()
	all, at := slices.Clone(c.of(id)), n.Time
	if k := slices.IndexFunc(all, func(e cancelled) bool { return e.change == n.Change }); k >= 0 {
		if all[k].at.After(at) {
			at = all[k].at
		}
		all = slices.Delete(all, k, k+1)
	}
	all = append(all, cancelled{n.Change, at})
	c.ended.Add(id, all[max(0, len(all)-most):], ttl)
}

func (c cancelledChanges) of(id string) []cancelled {
	all, _ := c.ended.Get(id)
	known, _ := all.([]cancelled)
	return known
}

// has reports whether the change was cancelled for the instance after this announcement.
func (c cancelledChanges) has(n notice.Notice, id string) bool {
	return n.Kind == notice.ScheduledChange && !n.Ended && slices.ContainsFunc(c.of(id), func(ended cancelled) bool {
		return ended.change == n.Change && !n.Time.After(ended.at)
	})
}
