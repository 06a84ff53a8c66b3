package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// returnTime bounds the tries to return an instance that was launched for a drain that is called off. The
	// node stays cordoned meanwhile.
	returnTime = 5 * time.Minute
	// hurryTime bounds them where an urgent notice waits for the end of the drain that is called off.
	hurryTime = 2 * time.Second
	// endTime is how long the node's own instance is tried to be terminated, even if its deadline is near, or if a
	// hook waits.
	endTime = time.Minute
)

// replacesFirst reports whether a node that carries an intent waits for a replacement, or for the attempt
// to get one.
func (c *Controller) replacesFirst(i intent.Intent) bool {
	return c.Replacements != nil && c.Leader == nil && i.ReplacesFirst()
}

// replaceFirst takes the next step towards the replacement of a node that is held back, and whose drain may
// begin otherwise. It returns t if the drain begins now. Otherwise it says until when the drain
// waits, and nodes is closed when the Node of the replacement may be ready.
//
// Each step is written down before the call that takes it. So a leader that takes over repeats the call, and
// it has no second effect.
func (c *Controller) replaceFirst(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, t permit,
) (_ permit, nodes <-chan struct{}, err error) {
	nodes = c.Cluster.Changed()
	carried, _ := nd.current()
	now := time.Now().UTC()
	if nd.replaceSince.IsZero() {
		nd.replaceSince = now
	}
	r := carried.Replacement
	calling, stop := c.whileHeldBack(ctx, nd)
	defer stop()
	waits := permit{why: decision.WhyReplacement, again: r.Until, detail: describeReplacement(r)}
	switch replacement.Next(r, c.hasReadyNode(r.Instance), now) {
	case replacement.Look:
		var until time.Time
		if until = c.currentPolicy().ReplacementUntil(carried, nd.replaceSince); !now.Before(until) {
			return t, nodes, c.noReplacement(ctx, log, nd, decision.WhyReplacementLate, "no time is left for one")
		}
		if r = c.openReplacement(nd.ref); !r.Open() {
			r, err = c.chooseReplacement(calling, nd, carried, until, now)
		}
	case replacement.Mark:
		if err = c.Replacements.MarkUnhealthy(calling, nd.ref.Instance); err == nil {
			r.Step = intent.Marked
		}
	case replacement.Launch:
		r, err = c.launch(calling, nd, r)
	case replacement.GiveUp:
		return t, nodes, c.noReplacement(ctx, log, nd, decision.WhyReplacementLate,
			"the group has not replaced the instance in time")
	case replacement.Begin:
		c.reportReplaced(log, nd, r)
		return t, nodes, nil
	case replacement.Wait, replacement.End, replacement.Settle, replacement.Return, replacement.Forget:
		return waits, nodes, nil
	}
	refusal, refused := errors.AsType[*replacement.Refusal](err)
	switch {
	case ctx.Err() != nil:
		return t, nodes, context.Cause(ctx)
	case refused:
		return t, nodes, c.noReplacement(ctx, log, nd, whyRefused(refusal.Reason), refusal.Text)
	case err != nil && calling.Err() == nil:
		log.Info("the replacement of the node is tried again", "error", err)
		fallthrough
	case err != nil: // the intent has changed, or it is tried again
		waits.again = now.Add(lastPause)
		return waits, nil, nil // Nodes that come do not make it sooner
	}
	waits.again, waits.detail = r.Until, describeReplacement(r)
	chosen := carried.Replacement.Step == intent.NotReplacing
	return waits, nodes, c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
		if chosen && (!i.HeldBack || !i.ReplacesFirst()) { // nothing was done yet, and nobody waits for it any more
			return i
		}
		i.Replacement = r
		return i
	})
}

// whileHeldBack is a context that ends when the node is not held back any more: an urgent notice does not wait
// for an answer of Auto Scaling.
func (c *Controller) whileHeldBack(ctx context.Context, nd *nodeDrain) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		for {
			carried, changed := nd.current()
			if !carried.HeldBack || !carried.ReplacesFirst() {
				stop()
			}
			select {
			case <-changed:
			case <-nd.instanceGone.done:
				stop()
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, stop
}

// chooseReplacement is what is to be written down before the first call that changes something.
func (c *Controller) chooseReplacement(
	ctx context.Context, nd *nodeDrain, i intent.Intent, until, now time.Time,
) (intent.Replacement, error) {
	none, id := intent.Replacement{}, nd.ref.Instance
	if id == "" {
		return none, &replacement.Refusal{Reason: replacement.Impossible, Text: "the instance of the node is not known"}
	}
	members, err := c.Replacements.Members(ctx, id)
	if err != nil {
		return none, err
	}
	own, ok := members[id]
	switch {
	case !ok:
		return none, &replacement.Refusal{
			Reason: replacement.Impossible,
			Text:   "instance " + id + " is in no Auto Scaling group: whoever launched it replaces it",
		}
	case own.Goes: // the notice of its termination comes
		return intent.Replacement{Step: intent.Marked, Group: own.Group, Since: now, Until: until}, nil
	}
	nd.group = own.Group
	g, err := c.Replacements.Group(ctx, own.Group)
	if err != nil {
		return none, err
	}
	var kinds []notice.Kind
	for _, e := range i.Entries {
		kinds = append(kinds, e.Kind)
	}
	r := intent.Replacement{Group: own.Group, Since: now, Until: until}
	switch way, why := replacement.Choose(kinds, g, c.completesHooksOf(g)); way {
	case replacement.ByItself:
		r.Step = intent.Marked
	case replacement.ByGroup:
		r.Step = intent.Marking
	case replacement.ByLaunch:
		r.Step, r.Zone, r.For, r.Desired = intent.Launching, own.Zone, replacement.For(i), g.Desired
	case replacement.NoWay:
		return none, &replacement.Refusal{Reason: replacement.Impossible, Text: why}
	}
	return r, nil
}

// completesHooksOf reports whether a termination hook of the group is completed by this handler.
func (c *Controller) completesHooksOf(g replacement.Group) bool {
	return slices.ContainsFunc(g.TerminationHooks, func(name string) bool { return c.Owns(notice.Hook{Name: name}) })
}

// launch launches another instance, or learns which one the same call has launched before. A kubelet can write
// the intent of its node: the instance has to be of the group.
func (c *Controller) launch(ctx context.Context, nd *nodeDrain, r intent.Replacement) (intent.Replacement, error) {
	own := nd.ref.Instance
	if nd.group == "" {
		members, err := c.Replacements.Members(ctx, own)
		if err != nil {
			return r, err
		}
		nd.group = members[own].Group
	}
	if nd.group != r.Group || r.Group == "" {
		return r, &replacement.Refusal{
			Reason: replacement.Impossible, Text: "instance " + own + " is not in group " + r.Group + " (any more)",
		}
	}
	id, err := c.Replacements.Launch(ctx, r.Group, r.Zone, replacement.Token(own, r.For))
	if err != nil {
		return r, err
	}
	if r.Instance = id; r.Step != intent.Launching {
		return r, nil
	}
	desired, err := c.Replacements.Desired(ctx, r.Group)
	if err != nil {
		return r, err
	}
	r.Step, r.Raised = intent.Launched, desired > r.Desired
	return r, nil
}

// hasReadyNode reports whether an instance has a Node that is ready, and whose startup is over.
func (c *Controller) hasReadyNode(id string) bool {
	if id == "" {
		return false
	}
	nodes := c.Cluster.ByInstance(id)
	return len(nodes) > 0 && c.ofNodes(id, nodes).ready
}

func describeReplacement(r intent.Replacement) string {
	until := ", at most until " + r.Until.Format(time.RFC3339)
	switch r.Step {
	case intent.Marking, intent.Marked:
		return "group " + r.Group + " replaces the instance" + until
	case intent.Launching:
		return "group " + r.Group + " launches another instance" + until
	case intent.Launched:
		return "instance " + r.Instance + " of group " + r.Group + " is to become a ready node" + until
	case intent.Returning:
		return "instance " + r.Instance + " of group " + r.Group + " is being returned" + until
	case intent.NotReplacing, intent.Ending, intent.Over:
	}
	return "a replacement is looked for"
}

// whyRefused is the reason for metrics.
func whyRefused(r replacement.Reason) decision.Why {
	switch r {
	case replacement.NoCapacity:
		return decision.WhyNoCapacity
	case replacement.Denied:
		return decision.WhyReplacementRight
	case replacement.Impossible:
		return decision.WhyNoReplacement
	case replacement.Refused:
	}
	return decision.WhyReplacementFails
}

// noReplacement says that the node gets none, and writes it down.
func (c *Controller) noReplacement(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, why decision.Why, detail string,
) error {
	err := c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
		i.Replacement.Step, i.Replacement.Why = intent.Over, detail
		return i
	})
	if err != nil {
		return err
	}
	log.Warn("the node gets no replacement before its drain", "why", why, "because", detail)
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.Replace, Why: why, Err: errors.New(detail)})
	return nil
}

// reportReplaced says how the wait for an instance that was launched, or may have been, has ended.
func (c *Controller) reportReplaced(log *slog.Logger, nd *nodeDrain, r intent.Replacement) {
	if c.hasReadyNode(r.Instance) {
		name := c.Cluster.ByInstance(r.Instance)[0].Name
		log.Info("the replacement is ready", "replacement", r.Instance, "replacementNode", name)
		c.Observer.Stepped(report.Step{
			Node: nd.ref, Kind: report.Replace, Why: decision.WhyReplaced, Detail: "node " + name + " is ready",
		})
		return
	}
	detail := "instance " + r.Instance + " has no ready node yet"
	if r.Instance == "" {
		detail = "it is not known whether group " + r.Group + " has launched an instance"
	}
	log.Warn("the node gets no replacement before its drain", "why", decision.WhyReplacementLate, "because", detail)
	c.Observer.Stepped(report.Step{
		Node: nd.ref, Kind: report.Replace, Why: decision.WhyReplacementLate, Err: errors.New(detail),
	})
}

// openReplacement is what a deleted or another Node of the instance carries of a replacement that is not
// over: a new Node of the instance goes on with it.
func (c *Controller) openReplacement(ref cluster.Ref) intent.Replacement {
	if c.Replacements == nil || ref.Instance == "" {
		return intent.Replacement{}
	}
	for _, i := range c.intents(ref) {
		if i.Replacement.Open() {
			return i.Replacement
		}
	}
	return intent.Replacement{}
}

// endReplaced terminates the instance of a drained node whose replacement was launched, and makes the group as
// large as it was. The termination comes through the hooks of the group, if it has any: their
// notice finds the node drained.
//
// It tries until Auto Scaling answers: otherwise the group would be one instance too large for good. If the
// machine goes away at a time, it tries for no longer than that. A hook waits for it a minute at most.
//
// A node that is only cordoned by now keeps its instance, and the other one is returned.
func (c *Controller) endReplaced(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	begin := time.Now()
	for tries := 1; c.Replacements != nil; tries++ {
		carried, _ := nd.current()
		if !carried.Replacement.Open() {
			return nil
		}
		if nd.outcome == intent.Missed && carried.Terms().Patient {
			const stays = "pods are left on the instance, and a rule says that none is forced"
			c.leaveSurplus(log, nd, carried.Replacement, stays)
			return c.writeReplacement(ctx, nd, over(carried.Replacement, stays))
		}
		step := c.endStep
		if nd.outcome == intent.Cordoned { // by another rule than the one that asked for it: the pods are there
			step = c.returnStep
		}
		next, err := step(ctx, log, nd, carried.Replacement)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			if err := c.writeReplacement(ctx, nd, next); err != nil {
				return err
			}
			tries = 0
			continue
		}
		refusal, refused := errors.AsType[*replacement.Refusal](err)
		deadline := carried.Deadline()
		late := (len(carried.Hooks) > 0 || !deadline.IsZero() && time.Now().After(deadline)) && time.Since(begin) > endTime
		if refused || late {
			text := err.Error()
			if refused {
				text = refusal.Text
			}
			c.leaveSurplus(log, nd, carried.Replacement, text)
			return c.writeReplacement(ctx, nd, over(carried.Replacement, text))
		}
		log.Warn("the instance that was replaced cannot be terminated so far: trying again", "error", err)
		pause := retry.Backoff{First: firstPause, Max: lastPause, Factor: 2}.Pause(tries)
		if err := retry.Sleep(ctx, pause); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// endStep takes the next step after the drain, and returns what is to be written down.
func (c *Controller) endStep(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, r intent.Replacement,
) (intent.Replacement, error) {
	own := nd.ref.Instance
	if r.Step == intent.Launched { // written down before the call
		members, err := c.Replacements.Members(ctx, own)
		if err != nil {
			return r, err
		}
		if replacement.AtEnd(r, member(members, own), nil, time.Now()) == replacement.End {
			r.Step = intent.Ending
			return r, nil
		}
		return c.settle(ctx, log, nd, r)
	}
	if r.Step == intent.Launching {
		if replacement.AtEnd(r, nil, nil, time.Now()) == replacement.Forget {
			c.leaveSurplus(log, nd, r, "it is not known whether an instance was launched")
			return over(r, "the launch was too long ago to be asked for again"), nil
		}
		return c.launch(ctx, nd, r)
	}
	doomed, ended := own, "the instance was replaced, and is terminated"
	if r.Step == intent.Returning {
		if !replacement.CanProve(r, time.Now()) {
			c.leaveSurplus(log, nd, r, "the launch was too long ago to be asked for again")
			return over(r, "the launch was too long ago to be asked for again"), nil
		}
		next, err := c.launch(ctx, nd, r) // confirms the instance, whatever the node carries
		if err != nil {
			return r, err
		}
		r = next
		doomed, ended = r.Instance, "it was called off, and the instance is returned"
	}
	_, err := c.endings.Do(ctx, doomed, func(ctx context.Context, _ func(error)) (struct{}, error) {
		members, err := c.Replacements.Members(ctx, doomed)
		if err != nil {
			return struct{}{}, err
		}
		switch m := member(members, doomed); replacement.AtEnd(r, m, m, time.Now()) {
		case replacement.End, replacement.Return:
			return struct{}{}, c.Replacements.Terminate(ctx, doomed, r.Raised)
		case replacement.Begin, replacement.Look, replacement.Mark, replacement.Launch, replacement.Wait, replacement.GiveUp,
			replacement.Settle, replacement.Forget:
		}
		return struct{}{}, nil
	})
	if err != nil {
		return r, err
	}
	log.Info(ended, "terminated", doomed, "group", r.Group, "replacement", r.Instance)
	return over(r, ended), nil
}

// settle ends a replacement whose instance goes without us. If nobody has lowered the desired capacity for
// that, the group stays larger than it was.
func (c *Controller) settle(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, r intent.Replacement,
) (intent.Replacement, error) {
	desired, err := c.Replacements.Desired(ctx, r.Group)
	if err != nil {
		return r, err
	}
	if r.Raised && desired > r.Desired {
		c.leaveSurplus(log, nd, r, fmt.Sprintf("the instance ended before it was terminated, and the desired capacity "+
			"is %d, which was %d", desired, r.Desired))
	}
	return over(r, "the instance has ended by itself"), nil
}

func member(members map[string]replacement.Member, id string) *replacement.Member {
	if m, ok := members[id]; ok {
		return &m
	}
	return nil
}

func over(r intent.Replacement, why string) intent.Replacement {
	r.Step, r.Why = intent.Over, why
	return r
}

func (c *Controller) writeReplacement(ctx context.Context, nd *nodeDrain, r intent.Replacement) error {
	return c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
		i.Replacement = r
		return i
	})
}

// leaveSurplus says that a group may have an instance more than before.
func (c *Controller) leaveSurplus(log *slog.Logger, nd *nodeDrain, r intent.Replacement, why string) {
	log.Warn("an Auto Scaling group may have an instance too many",
		"group", r.Group, "replacement", r.Instance, "because", why)
	c.Observer.Stepped(report.Step{
		Node: nd.ref, Kind: report.Replace, Why: decision.WhySurplusLeft,
		Err: fmt.Errorf("group %s may have an instance too many: %s", r.Group, why),
	})
}

// returnReplacement returns the instance that was launched for a drain that is being called off. It writes
// to the node without its lock, which those may hold that call it off: nobody else writes it then.
//
// Which instance that is, the same launch has to confirm, because a kubelet can write the intent of its node.
// An instance that may have pods goes only through a hook of its group, which lets it be drained;
// otherwise it stays, and people are told. It also stays if an urgent notice waits for the end of this, and the
// calls do not succeed soon.
func (c *Controller) returnReplacement(ctx context.Context, log *slog.Logger, nd *nodeDrain) {
	if carried, _ := nd.current(); c.Replacements == nil || !carried.Replacement.Open() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, returnTime)
	defer cancel()
	go func() {
		select {
		case <-nd.hurry.done:
			if retry.Sleep(ctx, hurryTime) == nil {
				cancel()
			}
		case <-ctx.Done():
		}
	}()
	for tries := 1; ; tries++ {
		carried, _ := nd.current()
		r := carried.Replacement
		next, err := c.returnStep(ctx, log, nd, r)
		refusal, refused := errors.AsType[*replacement.Refusal](err)
		switch {
		case refused && r.Step == intent.Launching && refusal.Reason != replacement.Impossible: // nothing was launched
			next, err = over(r, refusal.Text), nil
		case refused:
			c.leaveSurplus(log, nd, r, refusal.Text)
			return
		}
		if err == nil {
			_, err = c.Cluster.Undo(ctx, nd.ref, func(i intent.Intent) intent.Intent { // which does not cordon
				i.Replacement = next
				return i
			})
			if err == nil || errors.Is(err, cluster.ErrNodeGone) {
				carried.Replacement = next
				nd.setIntent(carried)
				if !next.Open() {
					return
				}
				tries = 0
				continue
			}
		}
		if ctx.Err() != nil {
			c.leaveSurplus(log, nd, r, err.Error())
			return
		}
		log.Info("the replacement cannot be returned so far: trying again", "error", err)
		if retry.Sleep(ctx, retry.Backoff{First: firstPause, Max: lastPause, Factor: 2}.Pause(tries)) != nil {
			c.leaveSurplus(log, nd, r, err.Error())
			return
		}
	}
}

// returnStep takes the next step to return an instance, and returns what is to be written down.
func (c *Controller) returnStep(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, r intent.Replacement,
) (intent.Replacement, error) {
	switch {
	case r.Step == intent.Returning && replacement.CanProve(r, time.Now()):
		next, err := c.endStep(ctx, log, nd, r)
		if err == nil {
			c.Observer.Stepped(report.Step{
				Node: nd.ref, Kind: report.Replace, Why: decision.WhySurplusReturned,
				Detail: "instance " + r.Instance + " is returned",
			})
		}
		return next, err
	case r.Step == intent.Ending: // the node's own instance may be terminated already
		return over(r, "it was called off when the instance was being terminated"), nil
	case !replacement.CanProve(r, time.Now()):
		c.leaveSurplus(log, nd, r, "the launch was too long ago to be asked for again")
		return over(r, "the launch was too long ago to be asked for again"), nil
	}
	r, err := c.launch(ctx, nd, r)
	if err != nil {
		return r, err
	}
	members, err := c.Replacements.Members(ctx, nd.ref.Instance)
	if err != nil {
		return r, err
	}
	if m := member(members, nd.ref.Instance); m == nil || m.Goes { // the group needs the other one
		return c.settle(ctx, log, nd, r)
	}
	g, err := c.Replacements.Group(ctx, r.Group)
	if err != nil {
		return r, err
	}
	if len(c.Cluster.ByInstance(r.Instance)) > 0 && !c.completesHooksOf(g) {
		c.leaveSurplus(log, nd, r, "instance "+r.Instance+" has a node, and no termination hook lets that be drained")
		return over(r, "instance "+r.Instance+" stays"), nil
	}
	r.Step = intent.Returning
	return r, nil
}
