package controller

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A permit says whether the drain of a node may begin.
type permit struct {
	begins bool
	why    decision.Why
	detail string    // for people, where the node is held back
	again  time.Time // when to ask again, where the node is held back
}

// permitFor says whether the drain of a node that carries an intent may begin now. If so, the node counts
// as out of use from now on. A drain that cannot wait begins in any case. Otherwise it begins when one
// of its notices lets it: the time of its rule has come, and fewer nodes are out of use than its rule
// and the options say.
func (c *Controller) permitFor(ref cluster.Ref, i intent.Intent, now time.Time) permit {
	if !decision.CanWait(i, now, c.Policy) {
		c.goes(ref)
		return permit{begins: true, why: decision.WhyDeadlineNear}
	}
	if terms := i.Terms(); terms.NotBefore.After(now) {
		c.unready.leaveLine(ref.UID) // it may have been in line before its change was moved
		c.ruleLimits.leaveLine(ref.UID)
		again := terms.NotBefore
		if d := i.Deadline(); !d.IsZero() {
			again = intent.Earlier(again, d.Add(-c.NodeGracePeriod))
		}
		return permit{
			why: decision.WhyRuleTime, again: again,
			detail: fmt.Sprintf("rule %s lets the drain begin at %s", terms.Rule, terms.NotBefore.UTC().Format(time.RFC3339)),
		}
	}
	if c.isDraining(ref) { // another Node of the machine, which waits for the pods of this one in the end
		c.goes(ref)
		return permit{begins: true, why: decision.WhyEnoughReady}
	}
	limit, rule, free := c.limitFor(ref, i, now)
	if free {
		c.ruleLimits.leaveLine(ref.UID)
	}
	switch {
	case !free && !limit.tryAcquire(ref.UID, i.Deadline()):
		return permit{
			why: decision.WhyRuleLimit, again: now.Add(lookAgain),
			detail: fmt.Sprintf("rule %s allows %s nodes out of use, per %q", rule.Name, rule.Limit.Nodes, rule.Limit.Per),
		}
	case !c.unready.tryAcquire(ref.UID, i.Deadline()):
		limit.forgo(ref.UID, i.Deadline())
		_, why := c.heldBackByOption()
		return permit{why: decision.WhyMaxUnready, again: now.Add(lookAgain), detail: why}
	}
	if free && c.unready == nil {
		return permit{begins: true, why: decision.WhyRuleTime}
	}
	return permit{begins: true, why: decision.WhyEnoughReady}
}

// goes says that the drain of a node begins, whatever the limits say.
func (c *Controller) goes(ref cluster.Ref) {
	c.unready.acquire(ref.UID)
	c.ruleLimits.leaveLine(ref.UID)
}

// limitFor returns the limit of the rules that decided about the notices of a node. free: one of the
// notices has none, or has waited as long as its rule says.
func (c *Controller) limitFor(
	ref cluster.Ref, i intent.Intent, now time.Time,
) (limit *unreadyLimit, rule *decision.NodeRule, free bool) {
	node, there := c.Cluster.Look(ref)
	if !there {
		return nil, nil, true
	}
	rules := c.currentPolicy().Rules
	for _, e := range i.Entries {
		if e.NotBefore.After(now) {
			continue
		}
		r := rules.Named(e.Rule)
		if r == nil || r.Limit.Nodes == "" {
			return nil, nil, true
		}
		since := i.CordonedAt
		if e.NotBefore.After(since) {
			since = e.NotBefore
		}
		if r.Limit.Wait > 0 && i.HeldBack && now.Sub(since) >= r.Limit.Wait {
			return nil, nil, true
		}
		if limit == nil {
			limit, rule = c.ruleLimits.of(r, ref.UID, node.Labels), r
		}
	}
	return limit, rule, limit == nil
}

// mustHoldBack reports whether a node has to wait when it gets the notice; see permitFor. A drain that is
// not held back goes on, and so does the next Node of a machine.
func (c *Controller) mustHoldBack(nd *nodeDrain, entry *intent.Entry, now time.Time) bool {
	if c.unready == nil && entry.Rule == "" {
		return false
	}
	carried, _ := nd.current()
	if node, there := c.Cluster.Look(nd.ref); there && carried.Version == 0 {
		carried, _, _ = cluster.ReadIntent(node) // what cannot be read is replaced
	}
	next := carried.With(*entry, nil, now)
	switch {
	case carried.Over(*entry) || inWork(carried) || next.Finished():
		return false
	case c.isDraining(nd.ref):
		c.unready.acquire(nd.ref.UID)
		return false
	}
	if !decision.CanWait(next, now, c.Policy) {
		return !c.permitFor(nd.ref, next, now).begins
	}
	if entry.Rule != "" && c.currentPolicy().Rules.Named(entry.Rule) == nil || c.replacesFirst(next) {
		return true // the rules have changed since it was decided about: awaitBegin decides again
	}
	return !c.permitFor(nd.ref, next, now).begins
}

// inWork reports whether the node is being drained, and is not held back.
func inWork(i intent.Intent) bool { return i.Version > 0 && !i.Finished() && !i.HeldBack }

// awaitBegin waits while the node is held back, and cordons it then.
func (c *Controller) awaitBegin(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	if !nd.heldBack() {
		return nil
	}
	return c.awaitPermit(ctx, log, nd)
}

// awaitPermit is awaitBegin for a node that is held back.
func (c *Controller) awaitPermit(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	var told decision.Why
	var decidedBy <-chan struct{} // closed when there are other rules than those that the node's intent is of
	for first := true; ; first = false {
		newRules := c.rulesChanged()
		if newRules != decidedBy || first && nd.resumed { // also while the notice was being recorded
			if err := c.decideAgain(ctx, log, nd); err != nil {
				return err
			}
			decidedBy = newRules
		}
		carried, changed := nd.current()
		if !carried.HeldBack { // an urgent notice has come
			c.goes(nd.ref) // while it was being written, the node may have got in line again
			return nil
		}
		if !c.Cluster.Exists(nd.ref) {
			return nil
		}
		now := time.Now().UTC()
		t := c.permitFor(nd.ref, carried, now)
		if t.begins && c.rulesChanged() != newRules {
			continue // it may be the old rules that let it begin
		}
		var nodes <-chan struct{}
		if t.begins && t.why != decision.WhyDeadlineNear && c.replacesFirst(carried) {
			var err error
			if t, nodes, err = c.replaceFirst(ctx, log, nd, t); err != nil {
				return err
			}
		}
		if t.begins {
			return c.goAhead(ctx, log, nd, t.why, now)
		}
		nd.say(overview.HeldBack, heldBackBy(t, carried.Terms().Rule))
		if t.why != told {
			told = t.why
			nd.record.heldBack = t.detail
			log.Info("the drain is held back", "why", t.why, "because", t.detail, "rule", carried.Terms().Rule)
			c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.HoldBack, Why: t.why, Detail: t.detail})
		}
		timer := time.NewTimer(time.Until(t.again))
		select {
		case <-changed:
		case <-timer.C:
		case <-newRules:
		case <-nodes:
		case <-nd.instanceGone.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// goAhead cordons a node that was held back.
func (c *Controller) goAhead(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, why decision.Why, now time.Time,
) error {
	if err := c.forgetWhatPassed(ctx, log, nd); err != nil {
		return err
	}
	if err := c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent { return i.Released(now) }); err != nil {
		return err
	}
	nd.say(overview.Draining)
	log.Info("the drain is no longer held back", "why", why)
	log.Info("cordoned", "why", why)
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.Cordon, Why: why})
	return nil
}

// decideAgain has the rules of now decide about the notices of a node that is held back. What they
// ignore by now is taken back. The hooks of a termination stay.
func (c *Controller) decideAgain(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	node, there := c.Cluster.Look(nd.ref)
	if !there {
		return nil
	}
	now, policy := time.Now().UTC(), c.currentPolicy()
	change := func(i intent.Intent) intent.Intent {
		if !i.HeldBack { // its drain has begun meanwhile
			return i
		}
		return policy.DecideAgain(i, node.Labels, now)
	}
	carried, _ := nd.current()
	next := change(carried)
	switch {
	case reflect.DeepEqual(next.Entries, carried.Entries):
		return nil
	case len(next.Entries) > 0:
		log.Info("the rules have changed: the notices of the node are decided about again", "rule", next.Terms().Rule)
		return c.rewrite(ctx, nd, change)
	}
	return c.quitIf(ctx, nd, errIgnored, func(i intent.Intent) bool { return i.HeldBack && len(change(i).Entries) == 0 })
}

// currentPolicy are the options with the rules of now.
func (c *Controller) currentPolicy() decision.Policy {
	p := c.Policy
	if c.PolicyFile != nil {
		p.Rules = *c.PolicyFile.Rules()
	}
	return p
}

// rulesChanged returns a channel that is closed when the rules change; nil: they never do.
func (c *Controller) rulesChanged() <-chan struct{} {
	if c.PolicyFile == nil {
		return nil
	}
	return c.PolicyFile.Changed()
}
