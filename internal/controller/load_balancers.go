package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/apart"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// LoadBalancers tells when a machine has left its target groups; see package loadbalancer.
type LoadBalancers interface {
	// Await returns when the machine has left all of them. Otherwise it returns the names of the others, and the
	// cause of ctx if that has ended first. It calls waits at most once, when there is something to wait for.
	Await(ctx context.Context, m loadbalancer.Machine, waits func(groups []string)) (left []string, err error)
}

const (
	// targetsMargin is what remains to the deadline when load balancers are not waited for any longer: the
	// hooks have to be completed.
	targetsMargin = 5 * time.Second
	// targetsBlocked is how long a drain waits for load balancers before somebody is told.
	targetsBlocked = 10 * time.Second
)

var errNoTimeForTargets = errors.New("there is no time to wait for load balancers any longer")

// A targetWait is what a drain waits for when its pods have left: that its machine leaves its target groups.
type targetWait struct {
	machine loadbalancer.Machine
	until   time.Time // the last moment
}

// awaitLoadBalancers waits until no load balancer sends connections to the machine of a node whose pods have
// left. The error is the cause of ctx.
func (c *Controller) awaitLoadBalancers(
	ctx context.Context, log *slog.Logger, nd *nodeDrain,
) (*report.Targets, error) {
	var w *targetWait
	apart.Do(func() { w = c.targetWaitOf(nd) })
	if w == nil {
		return &report.Targets{}, nil
	}
	return c.awaitTargets(ctx, log, nd, w)
}

// targetWaitOf is what the drain of a node waits for; nil: nothing. It waits only for a node that is excluded from load
// balancers: nobody takes another one out of them.
func (c *Controller) targetWaitOf(nd *nodeDrain) *targetWait {
	carried, _ := nd.current()
	node, there := c.Cluster.Look(nd.ref)
	until := c.awaitsTargetsUntil(nd, carried)
	if c.LoadBalancers == nil || nd.ref.Instance == "" || !there || !carried.Excluded && !cluster.Excluded(node) ||
		!time.Now().Before(until) {
		return nil
	}
	return &targetWait{until: until, machine: loadbalancer.Machine{
		Instance: nd.ref.Instance, Node: node.Labels,
		Since: carried.CordonedAt, Patience: excludedAt(nd, carried).Add(c.NodeGracePeriod),
	}}
}

func (c *Controller) awaitTargets(
	ctx context.Context, log *slog.Logger, nd *nodeDrain, w *targetWait,
) (*report.Targets, error) {
	begin := time.Now()
	var span trace.Span
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go c.stopBeforeDeadline(waiting, nd, stop)
	told := func() bool { return true }
	left, err := c.LoadBalancers.Await(waiting, w.machine, func(groups []string) {
		names := strings.Join(groups, ", ")
		nd.say(overview.Detaching, waitsForTargets(groups, w.until))
		_, span = trace.Begin(ctx, "await load balancers")
		log.Info("waits for: load balancer "+names, "until", w.until.UTC().Format(time.RFC3339))
		told = time.AfterFunc(targetsBlocked, func() { c.reportTargets(nd, names) }).Stop
	})
	told()
	nd.say(overview.Detaching)
	span.End(nil, "left", len(left))
	targets := &report.Targets{Waited: time.Since(begin), Left: left}
	switch {
	case errors.Is(err, errNoTimeForTargets):
		return targets, nil
	case errors.Is(err, drain.ErrMachineGone): // there is nothing to connect to
		return &report.Targets{Waited: targets.Waited}, nil
	}
	return targets, err
}

func (c *Controller) reportTargets(nd *nodeDrain, names string) {
	if c.Blocked != nil {
		why := "the machine is still a target of load balancer " + names
		c.Blocked(drain.Blocked{Node: nd.ref.Name, Why: why, First: true})
	}
}

// stopBeforeDeadline calls stop when there is no time to wait for load balancers any longer, also if the
// deadline has become earlier meanwhile.
func (c *Controller) stopBeforeDeadline(ctx context.Context, nd *nodeDrain, stop context.CancelCauseFunc) {
	for {
		carried, changed := nd.current()
		timer := time.NewTimer(time.Until(c.awaitsTargetsUntil(nd, carried)))
		select {
		case <-timer.C:
			stop(errNoTimeForTargets)
			return
		case <-changed:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return
		}
	}
}

// awaitsTargetsUntil is how long load balancers are waited for: until shortly before the deadline or, where
// there is none, for the grace period of a node.
func (c *Controller) awaitsTargetsUntil(nd *nodeDrain, i intent.Intent) time.Time {
	if d := i.Deadline(); !d.IsZero() {
		return d.Add(-targetsMargin)
	}
	return excludedAt(nd, i).Add(c.NodeGracePeriod)
}

// excludedAt is when the node was excluded from load balancers: with its cordon.
func excludedAt(nd *nodeDrain, i intent.Intent) time.Time { return cmp.Or(i.CordonedAt, nd.since) }
