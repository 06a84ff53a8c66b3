// Package controller is what a notice means for this cluster: whose instance it
// is, what to do, and the one drain that every affected node has.
package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Controller handles the messages of the queue during one term of leadership: [Controller.Run]
// carries out what [Controller.Handle] begins. Its methods may be called concurrently.
type Controller struct {
	Config

	Registry *nodedrain.Registry

	decider decider
	lookUps chan struct{} // a semaphore, see lookUpsAtOnce
	crowds  chan struct{} // a semaphore, see crowdsAtOnce
	awaited openHooks
	told    once // the notices that change no node, as a rule says
	strange once // the messages about ids that are no instance's
}

// Handle does what a message asks for, and returns when that is done. nil means that the
// message can be deleted. Handle may be called again for the same message, in any order with
// other messages, and by another process.
func (c *Controller) Handle(ctx context.Context, m queue.Message) error {
	log := c.Log.WithValues("message", m.ID)
	n, err := c.read(log, m)
	if n == nil || err != nil {
		return err
	}
	m.Release() // what follows may take hours
	defer pprof.SetGoroutineLabels(ctx)
	ctx = pprof.WithLabels(ctx, pprof.Labels("message", m.ID))
	pprof.SetGoroutineLabels(ctx)
	log = log.WithValues("kind", n.Kind, "event", n.ID)
	if hasMembers(n) || len(n.Instances) != 1 {
		return verdictOf(c.handleSeveral(ctx, log, *n)...)
	}
	return verdictOf(c.handle(ctx, log, n, func(decision.Action) {}))
}

// read reads the notice of a message; nil, with the verdict: it asks for nothing, or cannot be read.
func (c *Controller) read(log logr.Logger, m queue.Message) (*notice.Notice, error) {
	n, err := notice.Parse(m.Body)
	if errors.Is(err, notice.ErrInstanceID) {
		return nil, c.leaveUnknown(log, m, err)
	}
	if err != nil {
		c.Observer.Decided(report.Decision{Action: decision.Reject, Why: decision.WhyUndecodable, DryRun: c.DryRun})
		if c.DryRun {
			logging.Warn(log, "a message cannot be read", "why", err.Error(), "body", quoted(m.Body))
			return nil, verdictOf(errDryRun)
		}
		return nil, queue.Reject(err) // the queue logs it, and not at each delivery
	}
	if n.Kind == notice.Ignored {
		c.Observer.Decided(report.Decision{Notice: n, Action: decision.Drop, Why: decision.Why(n.Ignored), DryRun: c.DryRun})
		log.V(1).Info("a message asks for nothing", "why", n.Ignored)
		if c.DryRun {
			return nil, verdictOf(errDryRun)
		}
		return nil, nil
	}
	if len(n.Instances) == 1 && len(n.Hosts) == 0 {
		n = ofOne(n, n.Instances[0])
	}
	return &n, nil
}

// handle does what a notice asks for its one instance. It calls decided, more than once
// maybe, when the decision is made or has failed; failed, the action is [decision.Leave].
func (c *Controller) handle(
	ctx context.Context, log logr.Logger, n *notice.Notice, decided func(decision.Action),
) error {
	log = log.WithValues("instance", n.Instances[0])
	for try := 1; ; try++ {
		changed := c.Cluster.Changed()
		t, err := c.decide(ctx, log, n, try, decided)
		if err == nil {
			err = t.act(ctx)
		}
		switch {
		case ctx.Err() == nil && errors.Is(err, nodedrain.ErrOutdated):
			continue
		case !errors.Is(err, cluster.ErrNodeGone):
			return err
		}
		// The Node was deleted, which says nothing about the instance. The watch may be behind.
		if err := pause(ctx, changed, time.Now().Add(lookup.KeptShort)); err != nil {
			return err
		}
	}
}

// decide decides what is to be done about a notice. Where that is to wait for a Node, it waits.
func (c *Controller) decide(
	ctx context.Context, log logr.Logger, n *notice.Notice, try int, decided func(decision.Action),
) (*task, error) {
	t := &task{c: c, log: log, n: n, id: n.Instances[0]}
	err := t.decide(ctx, lookup.Kept)
	if err != nil {
		decided(decision.Leave)
		return nil, err
	}
	decided(t.Action)
	t.report(try > 1)
	if c.DryRun {
		return nil, errDryRun
	}
	if t.Action == decision.Hold {
		if t, err = t.awaitNode(ctx); err != nil {
			return nil, err
		}
		t.report(true)
	}
	return t, nil
}

// leaveUnknown is the verdict on a message about what is no instance, as far as we know: it is treated as one about an
// instance of somebody else.
func (c *Controller) leaveUnknown(log logr.Logger, m queue.Message, err error) error {
	action := c.CurrentPolicy().Foreign()
	c.Observer.Decided(report.Decision{Action: action, Why: decision.WhyNoInstanceID, DryRun: c.DryRun})
	if !c.strange.said(m.ID) {
		logging.Warn(log, "a message is about an id that is no instance's (logged once)",
			"why", err.Error(), "body", quoted(m.Body))
	}
	switch {
	case c.DryRun:
		return verdictOf(errDryRun)
	case action == decision.Drop:
		return nil
	}
	return verdictOf(leaveError{decision.WhyNoInstanceID})
}

// quoted is the beginning of a body, safe to log.
func quoted(body string) string {
	const limit = 256
	if len(body) > limit {
		body = body[:limit]
	}
	return strconv.QuoteToASCII(body)
}
