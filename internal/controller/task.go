package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A task is what is to be done about a notice for one instance. Thousands wait with theirs.
type task struct {
	c     *Controller
	log   logr.Logger
	n     *notice.Notice
	id    string // of the instance; empty: it is about none
	found lookup.Found
	decision.Decision
}

// hook is the lifecycle action that the notice is about.
func (t *task) hook() intent.Hook {
	h := hookOf(t.n, t.id)
	h.Deadline, h.Assumed = t.Deadline, t.Assumed
	return h
}

// hookOf is the lifecycle action of a notice for an instance; nobody knows yet how long it waits.
func hookOf(n *notice.Notice, id string) intent.Hook {
	return intent.Hook{
		Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: id, Started: n.HappenedAt(time.Now()),
	}
}

// decide finds out whose the instance is, by answers of EC2 that are not older than maxAge, and what is to be done.
func (t *task) decide(ctx context.Context, maxAge time.Duration) (err error) {
	t.found, t.Decision, err = t.c.decider.decide(ctx, t.log, t.n, t.id, maxAge)
	return err
}

// again is the task as it is decided now.
func (t *task) again(ctx context.Context) (*task, error) {
	next := &task{c: t.c, log: t.log, n: t.n, id: t.id}
	return next, next.decide(ctx, lookup.KeptShort)
}

// report logs the decision and tells the observer. Messages that are not ours are
// logged at debug level only: in a shared queue most are of this sort. So are those whose notice the node carries
// already, as many do in a new term: each drain is resumed, and says so, once.
func (t *task) report(waited bool) {
	n, d, log := *t.n, t.Decision, t.log
	repeated := t.found.Intent.Covers(d.Entry(n, time.Now()))
	if d.Why == decision.WhyIgnoredByRule || d.Why == decision.WhyNotifiedByRule {
		repeated = t.c.told.said(t.id + " " + t.n.ID + t.n.Change)
	}
	t.c.Observer.Decided(report.Decision{
		Notice: n, Instance: t.id, Node: t.found.Ref(), Action: d.Action, Why: d.Why, Rule: d.Rule,
		Deadline: d.Deadline, DryRun: t.c.DryRun, Repeated: repeated, Waited: waited,
	})
	if repeated || d.Action == decision.Leave || d.Action == decision.Drop && !d.ByFile() {
		log = log.V(1)
	}
	values := []any{"action", d.Action.String(), "why", d.Why}
	if node := t.found.Ref().Name; node != "" {
		values = append(values, "node", node)
	}
	if d.Rule != "" {
		values = append(values, "rule", d.Rule)
	}
	if !d.Deadline.IsZero() {
		values = append(values,
			"deadline", d.Deadline.Format(time.RFC3339), "left", time.Until(d.Deadline).Round(time.Second).String())
	}
	if t.c.DryRun {
		values = append(values, "dryRun", true)
	}
	log.Info("decided", values...)
}

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
			return t.runsAgain(ctx)
		case t.Why == decision.WhyEarlierLife, t.Why == decision.WhyStillRuns: // so may the present drain be
			for _, ref := range t.found.Refs {
				if err := t.c.Registry.ForgetEarlierLife(ctx, ref); err != nil {
					return err
				}
			}
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
