package controller

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// undo reverts what a cancelled scheduled change, or an impairment that is over, did to the
// nodes of its instance. The change is in decider.cancelled by now, and is written to the
// node: no new notice for it is recorded.
//
// A maintenance often stops and starts the instance. Notices of before the start are about
// an earlier life of the instance, and do not keep the node cordoned.
func (t *task) undo(ctx context.Context) error {
	now := time.Now().UTC()
	change := func(i intent.Intent) intent.Intent {
		return t.putOff(i, i.Without(t.n.Kind, t.n.Change, t.n.HappenedAt(now)).SinceLaunch(t.found.Launched), now)
	}
	for _, ref := range t.found.Refs {
		if err := t.c.Registry.Revert(ctx, t.log, ref, t.Why, change); err != nil {
			return err
		}
	}
	return nil
}

// putOff is what is left of an intent when a notice is taken back. What the rules let begin later only is held back
// again: otherwise the node would stay empty until then. A drained machine that terminates stays cordoned.
func (t *task) putOff(before, left intent.Intent, now time.Time) intent.Intent {
	opens, _ := t.c.CurrentPolicy().Opens(left, now)
	terminates := before.Finished() && left.Has(notice.ASGTerminate) // other hooks may still wait
	if terminates || before.HeldBack || len(left.Entries) == 0 || len(left.Entries) == len(before.Entries) ||
		!opens.After(now) || !decision.CanWait(left, now, t.c.Policy) {
		return left
	}
	return left.PutOff(now)
}

// runsAgain reverts what was done to the nodes of an instance in its earlier lives, because EC2
// says that it runs. Where EC2 may not be asked when that began, the notice itself says so.
func (t *task) runsAgain(ctx context.Context) error {
	launched := t.found.Launched
	if launched.IsZero() {
		launched = t.n.Time
	}
	since := func(i intent.Intent) intent.Intent { return i.SinceLaunch(launched) }
	for _, ref := range t.found.Refs {
		if err := t.c.Registry.Revert(ctx, t.log, ref, decision.WhyRestarted, since); err != nil {
			return err
		}
	}
	return nil
}
