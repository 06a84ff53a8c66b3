package controller

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// hasMembers reports whether only EC2 can say which instances the notice is about: those of a Capacity Block, or those
// on Dedicated Hosts.
func hasMembers(n *notice.Notice) bool {
	return n.Kind == notice.CapacityBlockExpiration || len(n.Hosts) > 0
}

// handleMembers does what the end of a Capacity Block, or the change of a host, asks for each of its instances, as if
// the notice named them. The message is in flight until the drains of all their Nodes have ended.
// After a crash it is delivered again, and EC2 is asked again: then it finds the drains that
// the Nodes carry, and what is left to do.
func (c *Controller) handleMembers(ctx context.Context, log logr.Logger, n notice.Notice) []error {
	if n.Reservation != "" {
		log = log.WithValues("reservation", n.Reservation)
	}
	n, ownership, err := c.withMembers(ctx, log, n)
	if err != nil {
		return []error{err}
	}
	if len(n.Hosts) > 0 {
		log.V(1).Info("the notice is about Dedicated Hosts", "hosts", n.Hosts, "instances", len(n.Instances))
	}
	if len(n.Instances) > 0 {
		errs := c.handleAll(ctx, log, n)
		if ownership == decision.Unknown { // those on the hosts remain to be asked for
			errs = append(errs, leaveError{decision.WhyUnknown})
		}
		return errs
	}
	d := decision.Decide(n, decision.Facts{Ownership: ownership, Now: time.Now()}, c.Policy)
	t := &task{c: c, log: log, n: &n, found: lookup.Found{Ownership: ownership}, Decision: d}
	t.report(false)
	if c.DryRun {
		return []error{errDryRun}
	}
	return []error{t.act(ctx)}
}

// withMembers adds the instances of a Capacity Block, or those on the hosts, to the notice. If there are
// none, ownership says why.
func (c *Controller) withMembers(
	ctx context.Context, log logr.Logger, n notice.Notice,
) (with notice.Notice, ownership decision.Ownership, err error) {
	if c.Elsewhere(n) {
		c.resolver.WarnOfOtherAccount(n)
		return n, decision.Elsewhere, nil
	}
	var found []instance.Instance
	ownership = decision.Foreign
	err = cluster.Retry(ctx, log, "look up which instances the notice is about", func(ctx context.Context) error {
		err := c.Lookup.Permitted(func() (err error) {
			found, err = c.Lookup.Members(ctx, &n)
			return err
		})
		if errors.Is(err, instance.ErrDenied) && c.ManagedTag == "" {
			ownership = decision.Unknown
			return nil
		}
		return err
	})
	n.Instances = slices.Clone(n.Instances)
	for _, i := range found {
		if slices.Contains(n.Instances, i.ID) {
			continue
		}
		n = n.OnType(i.Type) // all of a block have the same
		n.Instances = append(n.Instances, i.ID)
		if slices.Contains(n.Resolved, i.Host) {
			n.Resolved = append(n.Resolved, i.ID)
		}
	}
	return n, ownership, err
}

// handleAll does what a notice asks for each of several instances. It returns one error of
// each sort. While the drains go on it keeps nothing of the notice in memory.
func (c *Controller) handleAll(ctx context.Context, log logr.Logger, n notice.Notice) (errs []error) {
	select {
	case c.crowds <- struct{}{}:
	default:
		return []error{errCrowded}
	}
	var mu sync.Mutex
	add := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return isLeave(e) == isLeave(err) }) {
			errs = append(errs, err)
		}
	}
	var all sync.WaitGroup
	for _, id := range n.Instances {
		select {
		case c.lookUps <- struct{}{}:
		case <-ctx.Done():
			add(context.Cause(ctx))
			continue
		}
		one := ofOne(n, id)
		all.Go(func() {
			decided := sync.OnceFunc(func() { <-c.lookUps })
			defer decided()
			add(logging.Recover(c.Log, func() error {
				return c.handle(ctx, log, &one, func(decision.Action) { decided() })
			}))
		})
	}
	<-c.crowds
	n.Instances, n.Hosts, n.Resolved = nil, nil, nil
	all.Wait()
	return errs
}

// ofOne is the notice for one of its instances.
func ofOne(n notice.Notice, id string) notice.Notice {
	if slices.Contains(n.Resolved, id) {
		n.Ended, n.Deadline = true, time.Time{}
	}
	n.Instances, n.Hosts, n.Resolved = []string{id}, nil, nil
	return n
}

// errCrowded returns a message to the queue: it names several instances, and crowdsAtOnce
// such messages are being looked up.
var errCrowded = errors.New("too many messages that name several instances at once")
