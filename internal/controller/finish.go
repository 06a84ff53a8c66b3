package controller

import (
	"context"
	"errors"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// finish ends the drains of the nodes of an instance on which nothing runs any more.
func (t *task) finish(ctx context.Context) error {
	f := &t.found
	awaitEnds := t.c.Registry.InstanceGone(f.Refs...)
	for _, ref := range f.Refs {
		if !t.c.OutOfServiceTaint || f.State != decision.Stopping && f.State != decision.Gone { // only the message says so
			break
		}
		// It may be started meanwhile.
		trying, cancel := context.WithTimeoutCause(ctx, lookup.KeptShort, nodedrain.ErrOutdated)
		err := cluster.Retry(trying, t.log, "taint the node out of service", func(ctx context.Context) error {
			return t.c.Cluster.SetOutOfService(ctx, ref, true)
		})
		cancel()
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	if err := awaitEnds(ctx); err != nil {
		return err
	}
	for _, ref := range f.Refs {
		node, there := t.c.Cluster.Look(ref)
		if !there || f.State == decision.NotKnown {
			continue
		}
		if i, _, err := cluster.ReadIntent(node); err != nil || !i.Finished() || len(i.Pending(time.Now())) == 0 {
			continue
		}
		// A deadline that is ahead would bind the next life of the instance.
		err := cluster.Retry(ctx, t.log, "note that the machine has gone", func(ctx context.Context) error {
			_, err := t.c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
				if i.Finished() {
					i = i.Gone(time.Now().UTC())
				}
				return i
			})
			return err
		})
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	return nil
}

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
	return t.revert(ctx, t.Why, change)
}

// revert removes notices from what the nodes of the instance carry.
func (t *task) revert(ctx context.Context, why decision.Why, change cluster.Change) error {
	for _, ref := range t.found.Refs {
		if err := t.c.Registry.Revert(ctx, t.log, ref, why, change); err != nil {
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
	return t.revert(ctx, decision.WhyRestarted, func(i intent.Intent) intent.Intent { return i.SinceLaunch(launched) })
}

// noteConsequence records, on the Nodes of finished drains, a notice that the instance ends.
// It holds even if the notice of the drain is cancelled, and the next Node of the instance is
// told. cluster.ErrNodeGone, nodedrain.ErrOutdated: a Node has changed meanwhile.
func (t *task) noteConsequence(ctx context.Context) error {
	d := t.Decision
	if d.Deadline.IsZero() {
		d.Deadline = decision.DeadlineOf(*t.n, time.Now(), t.c.Policy)
	}
	entry := d.Entry(*t.n, time.Now())
	for _, ref := range t.found.Refs {
		noted := false
		err := cluster.Retry(ctx, t.log, "note what follows from the drain", func(ctx context.Context) error {
			_, err := t.c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
				noted = i.DrainedForEnd()
				return i.Noting(entry)
			})
			return err
		})
		if err != nil {
			return err
		}
		if !noted {
			return nodedrain.ErrOutdated
		}
	}
	return nil
}

// outOfService are the nodes that have the out-of-service taint from us.
type outOfService struct{ *Controller }

// takeBack takes the taint from nodes whose instance runs again, until ctx ends.
func (o outOfService) takeBack(ctx context.Context) {
	nodes := cluster.PerNode{Log: o.Log}
	defer nodes.Wait()
	for {
		changed := o.Cluster.Changed()
		waiting := o.Cluster.OutOfService()
		for _, ref := range waiting {
			nodes.Do(ref.UID, func() { o.takeBackFrom(ctx, ref) })
		}
		var again <-chan time.Time
		if len(waiting) > 0 { // what EC2 says may change without a change of the Node
			again = time.After(lookup.KeptShort)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// takeBackFrom takes the taint from a node if its instance runs again.
func (o outOfService) takeBackFrom(ctx context.Context, ref cluster.Ref) {
	inst, known, err := o.Lookup.Look(ctx, ref.Instance, lookup.Fresh, true)
	runs := err == nil && known && inst.Alive()
	if errors.Is(err, instance.ErrDenied) {
		runs = o.Cluster.ReadyAgain(ref)
	}
	if !runs {
		return
	}
	err = cluster.Retry(ctx, o.Log, "take the out-of-service taint back", func(ctx context.Context) error {
		return o.Cluster.SetOutOfService(ctx, ref, false)
	})
	if err == nil {
		o.Log.Info("the node is back in service", "node", ref.Name)
	}
}
