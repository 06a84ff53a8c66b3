package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
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
	t := &task{&n, "", lookup.Found{Ownership: ownership}, d}
	c.reportDecision(log, t, false)
	if c.DryRun {
		return []error{errDryRun}
	}
	return []error{c.act(ctx, log, t)}
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
