package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// act does what was decided, and waits for its end. cluster.ErrNodeGone: the Node was deleted first.
func (t *task) act(ctx context.Context) error {
	if t.Why == decision.WhyConsequence {
		if err := t.noteConsequence(ctx); err != nil {
			return err
		}
	}
	switch t.Action {
	case decision.Leave:
		return leaveError{t.Why}
	case decision.Drop:
		switch {
		case t.n.Runs:
			return t.revertEarlierLives(ctx)
		case t.Why == decision.WhyEarlierLife, t.Why == decision.WhyStillRuns: // so may the present drain be
			return t.onEach(func(ref cluster.Ref) error { return t.c.Registry.ForgetEarlierLife(ctx, ref) })
		}
		return nil
	case decision.Cordon, decision.Drain:
		return t.join(ctx)
	case decision.Undo:
		return t.undo(ctx)
	case decision.Finish:
		return t.finish(ctx)
	case decision.Complete:
		return t.completeUncarried(ctx)
	case decision.Launch:
		return t.awaitReady(ctx)
	case decision.Hold, decision.Reject:
		// What waits for a Node was decided again before this; what cannot be read has no instance.
	}
	return fmt.Errorf("no way to %s", t.Action)
}

// join makes all Nodes of the instance carry the notice, and waits for the end of their drains. The first Node that has
// something left to do carries the hook; the end of its drain completes it. Where none has, the hook is completed here:
// the Node that carried it may be gone, and the process that remembered it too.
func (t *task) join(ctx context.Context) error {
	release := t.holdOpen(ctx) // as long as the Node cannot be written
	joined, hook, err := t.recordOnAll(ctx)
	release()
	switch {
	case err != nil:
		return err
	case hook == hookPending:
		return t.completeUncarried(ctx)
	case hook == hookLeftOut:
		logging.Warn(t.log, "the node carries too many lifecycle hooks: this one is completed when its message is done",
			"hook", t.n.Hook.Name, "group", t.n.Hook.Group)
		return t.completeLeftOut(ctx, joined)
	}
	return t.awaitAll(ctx, joined, t.HoldUntil)
}

// completeLeftOut holds a hook open that no Node carries, until the end of the drains, and completes it. The message
// alone tells of the hook, and so is kept until then.
func (t *task) completeLeftOut(ctx context.Context, drains []*nodedrain.Drain) error {
	release := t.holdOpen(ctx)
	defer release()
	defer t.count()()
	if err := t.awaitAll(ctx, drains, time.Time{}); err != nil {
		return err
	}
	release()
	_, err := t.c.Registry.Complete(ctx, t.log, t.hook())
	return err
}

// hookPlace says where the hook of a notice is.
type hookPlace uint8

const (
	hookRecorded hookPlace = iota // on a Node, or there is none of ours
	hookPending                   // on no Node
	hookLeftOut                   // on no Node, because the Node carries too many, nearly all forged
)

// recordOnAll records a notice on all Nodes of its instance. It returns their drains, but
// for those that have nothing left to do.
func (t *task) recordOnAll(ctx context.Context) (joined []*nodedrain.Drain, place hookPlace, err error) {
	entry := new(t.Entry(*t.n, time.Now()))
	var hook *intent.Hook // to be recorded; nil: there is none of ours, or it is recorded
	if t.c.Owns(t.n.Hook) {
		hook, place = new(t.hook()), hookPending
	}
	var unwritten error // of a Node that cannot be written: it holds up no other
	refs := t.found.Refs
	for k := 0; k < len(refs); k++ {
		ref := refs[k]
		void := func() bool { return t.c.cancelled.has(*t.n, t.id) }
		n := &nodedrain.News{Entry: entry, Hook: hook, Why: t.Why, Void: void}
		nd, err := t.c.Registry.Record(ctx, t.log, ref, n)
		switch {
		case errors.Is(err, cluster.ErrNodeGone) && k > 0:
		case errors.Is(err, nodedrain.ErrOutdated): // a hook that no Node has yet is this one's
			unwritten, hook = err, nil
		case err != nil:
			return nil, place, err
		case nd == nil:
			t.log.V(1).Info("nothing is left to do for this event", "node", ref.Name)
		default:
			joined = append(joined, nd)
			if hook != nil {
				place = hookLeftOut
				if nd.Carries(hook) {
					place = hookRecorded
				}
				hook = nil
			}
		}
		if k == len(refs)-1 { // a Node may have come that did not find the notice on the others
			refs = t.andNew(refs)
		}
	}
	return joined, place, unwritten
}

// awaitAll waits for the end of all drains, but no longer than until, and until Nodes carry the rest; zero: as long
// as it takes. It waits no more once the scheduled change of the notice is over, though the drains may go on for other
// reasons: delivered again, to a leader that does not know of the end, the message would ask for another drain.
func (t *task) awaitAll(ctx context.Context, drains []*nodedrain.Drain, until time.Time) (err error) {
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		late = timer.C
	}
	var names []string
	for _, nd := range drains {
		names = append(names, nd.Ref().Name)
	}
	// A goroutine dump tells which nodes a message waits for.
	pprof.Do(ctx, pprof.Labels("node", strings.Join(names, " ")), func(ctx context.Context) {
		for len(drains) > 0 {
			nd := drains[0]
			changed := nd.Changed()
			if t.c.cancelled.has(*t.n, t.id) {
				return
			}
			select {
			case <-changed:
			case <-nd.Done():
				if err = nd.Err(); err != nil {
					return
				}
				drains = drains[1:]
			case <-late:
				if slices.ContainsFunc(drains, func(nd *nodedrain.Drain) bool { return !t.isCarried(nd) }) {
					late = time.After(lookup.KeptShort)
					continue
				}
				t.log.Info("the message is deleted, and the drain continues: the node carries the intent", "node", nd.Ref().Name)
				return
			case <-ctx.Done():
				err = context.Cause(ctx)
				return
			}
		}
	})
	return err
}

// isCarried reports whether a Node carries what a drain is for, as the watch says: its own or, if that was deleted, the
// next Node of its instance. Otherwise it is remembered here alone.
func (t *task) isCarried(nd *nodedrain.Drain) bool {
	if node, there := t.c.Cluster.Look(nd.Ref()); there {
		return lookup.CarriesNotice(node)
	}
	return slices.ContainsFunc(t.c.Cluster.ByInstance(nd.Ref().Instance), lookup.CarriesNotice)
}

// andNew adds the Nodes that the instance has got since.
func (t *task) andNew(refs []cluster.Ref) []cluster.Ref {
	for _, node := range t.c.Cluster.ByInstance(t.id) {
		if !slices.ContainsFunc(refs, func(ref cluster.Ref) bool { return ref.UID == node.UID }) {
			refs = append(refs, cluster.RefOf(node))
		}
	}
	return refs
}

// finish ends the drains of the nodes of an instance on which nothing runs any more.
func (t *task) finish(ctx context.Context) error {
	f := &t.found
	drains := t.c.Registry.InstanceGone(f.Refs...)
	for _, ref := range f.Refs {
		if !t.c.OutOfServiceTaint || f.State != decision.Stopping && f.State != decision.Gone { // only the message says so
			break
		}
		// It may be started meanwhile.
		trying, cancel := context.WithTimeoutCause(ctx, t.c.Cluster.TryTimeout(ref), nodedrain.ErrOutdated)
		err := t.c.Cluster.RetryWrite(trying, t.log, ref, "taint the node out of service", func(ctx context.Context) error {
			return t.c.Cluster.SetOutOfService(ctx, ref, true)
		})
		cancel()
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	for _, nd := range drains {
		if err := nd.Await(ctx); err != nil {
			return err
		}
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
		err := t.c.Cluster.RetryWrite(ctx, t.log, ref, "note that the machine has gone", func(ctx context.Context) error {
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
// nodes of its instance. The change is in Controller.cancelled by now, and is written to the
// node: no new notice for it is recorded.
//
// A maintenance often stops and starts the instance. Notices of before the start are about
// an earlier life of the instance, and do not keep the node cordoned.
func (t *task) undo(ctx context.Context) error {
	at := t.n.Time // by the clock of the announcement: that of a message is AWS's, and no later than it was sent
	if at.IsZero() || t.n.Reported {
		at = t.n.HappenedAt(time.Now().UTC())
	}
	change := func(i intent.Intent) intent.Intent {
		return i.EndedBy(t.n.Kind, t.n.Change, at).SinceLaunch(t.found.Launched)
	}
	return t.revert(ctx, t.Why, change)
}

// revert removes notices from what the nodes of the instance carry.
func (t *task) revert(ctx context.Context, why decision.Why, change cluster.Change) error {
	return t.onEach(func(ref cluster.Ref) error { return t.c.Registry.Revert(ctx, t.log, ref, why, change) })
}

// onEach does something on all Nodes of the instance at once: one that cannot be written holds up no other.
func (t *task) onEach(do func(ref cluster.Ref) error) error {
	errs := make([]error, len(t.found.Refs))
	var all sync.WaitGroup
	for k, ref := range t.found.Refs {
		all.Go(func() { errs[k] = logging.Recover(t.log, func() error { return do(ref) }) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// revertEarlierLives reverts what was done to the nodes of an instance in its earlier lives, because EC2
// says that it runs. Without the permission to ask EC2 when that began, the time of the notice stands for it.
func (t *task) revertEarlierLives(ctx context.Context) error {
	launched := t.found.Launched
	if launched.IsZero() {
		launched = t.n.Time
	}
	return t.revert(ctx, decision.WhyRestarted, func(i intent.Intent) intent.Intent { return i.SinceLaunch(launched) })
}

// noteConsequence records, on the Nodes of finished drains, a notice that the instance ends.
// It holds even if the notice of the drain is cancelled, and the next Node of the instance is
// told. cluster.ErrNodeGone, nodedrain.ErrOutdated: a Node has changed meanwhile. A hook that is to be completed does
// not wait for a Node that cannot be written.
func (t *task) noteConsequence(ctx context.Context) error {
	entry := t.Entry(*t.n, time.Now())
	noting := ctx
	if t.Action == decision.Complete {
		var stop context.CancelFunc
		noting, stop = context.WithTimeout(ctx, lookup.KeptShort)
		defer stop()
	}
	for _, ref := range t.found.Refs {
		noted := false
		const doing = "note what follows from the drain"
		err := t.c.Cluster.RetryWrite(noting, t.log, ref, doing, func(ctx context.Context) error {
			_, err := t.c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
				noted = i.DrainedForEnd()
				return i.Noting(entry)
			})
			return err
		})
		if noting.Err() != nil && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !noted {
			return nodedrain.ErrOutdated
		}
	}
	return nil
}
