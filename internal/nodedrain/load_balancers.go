package nodedrain

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
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

var (
	errNoTimeForTargets = errors.New("there is no time to wait for load balancers any longer")
	errTakesConnections = errors.New("another Node of the instance is not excluded from load balancers")
)

// A detaching waits until the machine has left its target groups, when its pods have left.
type detaching struct{ *Drain }

// awaitLoadBalancers waits until no load balancer sends connections to the machine of a node whose pods have
// left. It waits only for what is excluded from load balancers: nobody takes anything else out of them. The error is
// errTakesConnections, if another Node has come meanwhile that is not, or the cause of ctx.
func (d *Drain) awaitLoadBalancers(ctx context.Context) (*report.Targets, error) {
	t, carried := detaching{d}, d.carried()
	node, there := d.r.Cluster.Look(d.ref)
	until := t.until(carried)
	if d.r.LoadBalancers == nil || d.ref.Instance == "" || !there || !t.isExcluded(carried) ||
		!time.Now().Before(until) {
		return &report.Targets{}, nil
	}
	machine := loadbalancer.Machine{
		Instance: d.ref.Instance, Node: node.Labels,
		Since: carried.CordonedAt, Patience: t.excludedAt(carried).Add(d.r.NodeGracePeriod),
	}
	begin := time.Now()
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	d.goBeside(func() { t.stopInTime(waiting, stop) })
	told := func() bool { return true }
	left, err := d.r.LoadBalancers.Await(waiting, machine, func(groups []string) {
		names := strings.Join(groups, ", ")
		d.say(overview.Detaching, waitsForTargets(groups, until))
		d.log.Info("waiting for load balancers", "targetGroups", names, "until", until.UTC().Format(time.RFC3339))
		told = time.AfterFunc(targetsBlocked, func() { t.report(names) }).Stop
	})
	told()
	d.say(overview.Detaching)
	targets := &report.Targets{Waited: time.Since(begin), Left: left}
	d.detached = !errors.Is(err, errTakesConnections)
	switch {
	case !d.detached: // they are waited for again
		targets.Left = nil
	case errors.Is(err, errNoTimeForTargets):
		return targets, nil
	case errors.Is(err, evacuation.ErrMachineGone): // there is nothing to connect to
		return &report.Targets{Waited: targets.Waited}, nil
	}
	return targets, err
}

func (t detaching) report(names string) {
	if t.r.Blocked != nil {
		why := "the machine is still a target of load balancer " + names
		t.r.Blocked(evacuation.Blocked{Node: t.ref.Name, Why: why, First: true})
	}
}

// isExcluded reports whether the machine is on its way out of its target groups: a Node that another handler, or a
// person, has excluded is not while its instance has another Node that takes connections.
func (t detaching) isExcluded(carried intent.Intent) bool {
	return carried.Excluded || !slices.ContainsFunc(t.r.Cluster.ByInstance(t.ref.Instance), func(node *corev1.Node) bool {
		return !cluster.Excluded(node)
	})
}

// stopInTime calls stop when there is no time to wait for load balancers any longer, also if the deadline has become
// earlier meanwhile, and when nobody takes the machine out of them any more.
func (t detaching) stopInTime(ctx context.Context, stop context.CancelCauseFunc) {
	for {
		nodes := t.r.Cluster.Changed()
		carried, changed := t.current()
		left := time.Until(t.until(carried))
		switch {
		case left <= 0:
			stop(errNoTimeForTargets)
		case !t.isExcluded(carried):
			stop(errTakesConnections)
		}
		if awaitFor(ctx, left, changed, nodes, nil) != nil {
			return
		}
	}
}

// until is how long load balancers are waited for: until shortly before the hooks have to be completed or, where
// there is no such time, for the grace period of a node.
func (t detaching) until(i intent.Intent) time.Time {
	if at := t.r.completeBy(i, 0); !at.IsZero() {
		return at.Add(-targetsMargin)
	}
	return t.excludedAt(i).Add(t.r.NodeGracePeriod)
}

// excludedAt is when the node was excluded from load balancers: with its cordon.
func (t detaching) excludedAt(i intent.Intent) time.Time { return cmp.Or(i.CordonedAt, t.since) }
