package controller

import (
	"context"
	"errors"
	"log/slog"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/apart"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// join makes all Nodes of the instance carry the notice. The first of them that has something left to do carries the
// hook; the end of its drain completes it. Where none has, the hook is completed here: the Node that carried it may be
// gone, and the process that remembered it too. wait waits for the end of their drains.
func (c *Controller) join(ctx context.Context, log *slog.Logger, t *task) (wait func() error, err error) {
	joined, hook, err := c.recordOnAll(ctx, log, t)
	until := t.HoldUntil
	switch {
	case err != nil:
		return nil, err
	case hook == hookPending && len(joined) == 0:
		return nil, c.completeUncarried(ctx, log, t.hook())
	case hook == hookLeftOut:
		log.Warn("the node carries too many lifecycle hooks: this one is completed when its message is done",
			"hook", t.n.Hook.Name, "group", t.n.Hook.Group)
		return func() error {
			release := c.holdOpen(ctx, t.hook(), *t.n)
			defer release()
			defer c.count(*t.n, t.Deadline)()
			if ended, err := c.awaitAll(ctx, log, joined, until); err != nil || !ended {
				return err
			}
			release()
			return c.complete(ctx, log, t.hook())
		}, nil
	}
	return func() error {
		_, err := c.awaitAll(ctx, log, joined, until)
		return err
	}, nil
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
func (c *Controller) recordOnAll(
	ctx context.Context, log *slog.Logger, t *task,
) (joined []*nodeDrain, place hookPlace, err error) {
	entry := new(t.Entry(*t.n, time.Now()))
	entry.Trace = trace.Carry(ctx)
	var hook *intent.Hook // to be recorded; nil: there is none of ours, or it is recorded
	if c.Owns(t.n.Hook) {
		hook, place = new(t.hook()), hookPending
	}
	refs := t.found.refs
	for k := 0; k < len(refs); k++ {
		ref := refs[k]
		nd, err := c.recordOn(ctx, log, ref, entry, hook, t.Why, func() bool { return c.cancelled.has(*t.n, t.id) })
		switch {
		case errors.Is(err, cluster.ErrNodeGone) && k > 0:
		case err != nil:
			return nil, place, err
		case nd == nil:
			log.Debug("nothing is left to do for this event", "node", ref.Name)
		default:
			joined = append(joined, nd)
			if hook != nil {
				place = hookLeftOut
				if nd.carries(hook) {
					place = hookRecorded
				}
				hook = nil
			}
		}
		if k == len(refs)-1 { // a Node may have come that did not find the notice on the others
			refs = c.andNew(refs, t.id)
		}
	}
	return joined, place, nil
}

// awaitAll waits for the end of all drains, but no longer than until; zero: as long as it
// takes. ended is false where that was too long: the Nodes carry the rest.
func (c *Controller) awaitAll(
	ctx context.Context, log *slog.Logger, drains []*nodeDrain, until time.Time,
) (ended bool, err error) {
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		late = timer.C
	}
	var names []string
	for _, nd := range drains {
		names = append(names, nd.ref.Name)
	}
	// A goroutine dump tells which nodes a message waits for.
	pprof.Do(ctx, pprof.Labels("node", strings.Join(names, " ")), func(ctx context.Context) {
		for _, nd := range drains {
			select {
			case <-nd.done:
				if err = nd.err; err != nil {
					return
				}
			case <-late:
				log.Info("the message is deleted, and the drain continues: the node carries the intent", "node", nd.ref.Name)
				return
			case <-ctx.Done():
				err = context.Cause(ctx)
				return
			}
		}
		ended = true
	})
	return ended, err
}

// andNew adds the Nodes that the instance has got since.
func (c *Controller) andNew(refs []cluster.Ref, id string) []cluster.Ref {
	for _, node := range c.Cluster.ByInstance(id) {
		if !slices.ContainsFunc(refs, func(ref cluster.Ref) bool { return ref.UID == node.UID }) {
			refs = append(refs, cluster.RefOf(node))
		}
	}
	return refs
}

// recordOn records a notice on a node; see record. It returns errOutdated if that does not
// succeed within answerKeptShort: the decision may not hold any more.
func (c *Controller) recordOn(
	ctx context.Context, log *slog.Logger, ref cluster.Ref,
	entry *intent.Entry, hook *intent.Hook, why decision.Why, void func() bool,
) (nd *nodeDrain, err error) {
	_, span := trace.Begin(ctx, "cordon", "node", ref.Name)
	trying, cancel := context.WithTimeoutCause(ctx, answerKeptShort, errOutdated)
	defer cancel()
	begins := false
	err = c.retry(trying, log, "cordon the node", func(ctx context.Context) error {
		with, first, err := c.record(ctx, ref, entry, hook, void)
		nd, begins = with, begins || first // also where the answer to the write was lost
		if err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			c.Observer.Stepped(report.Step{Node: ref, Kind: report.Cordon, Why: why, Err: err})
		}
		return err
	})
	if err == nil && begins && nd != nil && !nd.heldBack() {
		log.Info("cordoned", "node", ref.Name, "why", why)
		c.Observer.Stepped(report.Step{Node: ref, Kind: report.Cordon, Why: why})
	}
	span.End(err)
	return nd, err
}

// record writes a notice to the node and begins its drain, unless that has begun. It returns
// nil if the drain is finished already, or if the notice is void. It asks for the latter
// while it holds the lock of the node: who makes the notice void later has to wait for the
// lock, and then finds the notice recorded. begins: the node was in no drain before.
func (c *Controller) record(
	ctx context.Context, ref cluster.Ref, entry *intent.Entry, hook *intent.Hook, void func() bool,
) (nd *nodeDrain, begins bool, err error) {
	for {
		nd := c.getOrCreate(ref)
		if entry.Kind.Urgent() {
			nd.hurry.close()
		}
		if err := nd.lock(ctx); err != nil {
			return nil, false, err
		}
		if c.hasEnded(nd) { // it ended while we waited for the lock
			nd.unlock()
			continue
		}
		if isClosed(nd.quit.done) { // it is being called off, and this notice is to begin another drain
			nd.unlock()
			if err := nd.awaitEnd(ctx); err != nil {
				return nil, false, err
			}
			continue
		}
		defer nd.unlock()
		if void() {
			if !nd.started {
				c.end(nd, nil)
			}
			return nil, false, nil
		}
		now := time.Now().UTC()
		holdBack := false
		apart.Do(func() { holdBack = c.mustHoldBack(nd, entry, now) })
		repeated, over, elsewhere := false, false, c.openReplacement(ref)
		carried, err := c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
			repeated, over, begins = i.Covers(*entry), i.Over(*entry), !inWork(i)
			if over {
				return i
			}
			next := c.with(i, *entry, hook, holdBack, now)
			if next.Replacement.Step == intent.NotReplacing {
				next.Replacement = elsewhere
			}
			return c.Cluster.Joined(next)
		})
		if err != nil || over || carried.Finished() {
			if !nd.started {
				c.end(nd, nil)
			}
			return nil, begins, err
		}
		if !repeated && !carried.HeldBack {
			c.Observer.Recorded(*entry)
		}
		c.applyIntent(nd, carried)
		if nd.started {
			nd.span.Join(ctx)
			return nd, begins, nil
		}
		_, span := trace.Begin(ctx, "drain", "node", ref.Name, "instance", ref.Instance)
		return nd, begins, c.start(ctx, nd, span)
	}
}

// with is the intent with a notice. It begins to be carried out at once, unless it has to be held
// back and can wait.
func (c *Controller) with(
	i intent.Intent, entry intent.Entry, hook *intent.Hook, holdBack bool, now time.Time,
) intent.Intent {
	next := i.With(entry, hook, now)
	switch {
	case inWork(i) || next.Finished():
		return next
	case holdBack && decision.CanWait(next, now, c.Policy):
		next.HeldBack = true
		return next
	}
	return next.Released(now)
}

// start hands the drain to Run. span is its span. The caller holds the lock.
func (c *Controller) start(ctx context.Context, nd *nodeDrain, span trace.Span) error {
	nd.span = span
	if !nd.heldBack() {
		c.unready.acquire(nd.ref.UID)
	}
	select {
	case c.toRun <- nd:
		nd.started = true
		return nil
	case <-ctx.Done():
		c.end(nd, context.Cause(ctx))
		return context.Cause(ctx)
	}
}

// applyIntent notes the intent that the node carries now, and tells if somebody has
// uncordoned the node during the drain. With a finished intent the drain has ended.
func (c *Controller) applyIntent(nd *nodeDrain, i *intent.Intent) {
	before, _ := nd.current()
	nd.setIntent(*i)
	if i.Finished() {
		c.remove(nd) // the next notice begins another drain
		return
	}
	if i.Uncordoned <= before.Uncordoned {
		return
	}
	log := c.Log.With("node", nd.ref.Name, "instance", nd.ref.Instance)
	if i.Uncordoned > 1 {
		log.Warn("somebody has uncordoned the node again: it stays uncordoned, although its machine goes away; " +
			"new pods on it are not drained")
		c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.LeftUncordoned, Why: decision.WhyUncordonedAgain})
		return
	}
	log.Warn("somebody has uncordoned the node during its drain: it is cordoned again, once, " +
		"because its machine goes away")
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.CordonAgain, Why: decision.WhyUncordoned})
}

// rewrite changes the intent of a node that is being drained. If the Node was deleted it
// changes what is remembered of it.
func (c *Controller) rewrite(ctx context.Context, nd *nodeDrain, change func(intent.Intent) intent.Intent) error {
	if err := nd.lock(ctx); err != nil {
		return err
	}
	defer nd.unlock()
	ended := c.hasEnded(nd)
	err := c.retry(ctx, c.Log.With("node", nd.ref.Name), "write the intent", func(ctx context.Context) error {
		carried, err := c.Cluster.Record(ctx, nd.ref, func(i intent.Intent) intent.Intent {
			if i = change(i); !ended { // the next episode may be another handler's
				i = c.Cluster.Joined(i)
			}
			return i
		})
		if err == nil {
			c.applyIntent(nd, carried)
		}
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) { // the drain goes on without it
		c.rewriteMemory(nd, change)
		return nil
	}
	return err
}

// rewriteMemory changes what is remembered of a Node that was deleted.
func (c *Controller) rewriteMemory(nd *nodeDrain, change func(intent.Intent) intent.Intent) {
	carried, _ := nd.current()
	carried = change(carried)
	nd.setIntent(carried)
	c.Cluster.Remember(nd.ref, carried)
}

// reread reads the node, because the watch may be behind, and takes over the intent that it carries.
// A node that somebody has uncordoned in its drain is cordoned by that; see cluster.Cluster.Record.
func (c *Controller) reread(ctx context.Context, nd *nodeDrain) error {
	return c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent { return i })
}
