package controller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// handleBlock does what the end of a Capacity Block asks for each of its instances, as if the
// notice named them. The message is in flight until the drains of all their Nodes have ended.
// After a crash it is delivered again, and EC2 is asked again: then it finds the drains that
// the Nodes carry, and what is left to do.
func (c *Controller) handleBlock(ctx context.Context, log *slog.Logger, n notice.Notice) []error {
	n, ownership, err := c.instancesOf(ctx, log, n)
	if err != nil {
		return []error{err}
	}
	if len(n.Instances) > 0 {
		return c.handleAll(ctx, log, n)
	}
	d := decision.Decide(n, decision.Facts{Ownership: ownership, Now: time.Now()}, c.Policy)
	t := &task{&n, "", resolution{ownership: ownership}, d}
	c.reportDecision(log, t, false)
	if c.DryRun {
		return []error{errDryRun}
	}
	_, err = c.act(ctx, log, t) // without an instance there is no wait
	return []error{err}
}

// capacityBlock is the lifecycle of an instance in a Capacity Block, as EC2 names it.
const capacityBlock = "capacity-block"

// instancesOf adds the instances of a Capacity Block to the notice about it. If there are
// none, ownership says why.
func (c *Controller) instancesOf(
	ctx context.Context, log *slog.Logger, n notice.Notice,
) (with notice.Notice, ownership decision.Ownership, err error) {
	if c.Elsewhere(n) {
		c.warnOfOtherAccount(n)
		return n, decision.Elsewhere, nil
	}
	var found []instance.Instance
	ownership = decision.Foreign
	err = c.retry(ctx, log, "look up the instances of the Capacity Block", func(ctx context.Context) error {
		err := c.unlessDenied(func() (err error) {
			found, err = c.Instances.InReservation(ctx, n.Reservation, blockKept)
			return err
		})
		if errors.Is(err, instance.ErrDenied) && c.ManagedTag == "" {
			ownership = decision.Unknown
			return nil
		}
		return err
	})
	for _, i := range found {
		if i.Lifecycle != capacityBlock { // the reservation is of another sort: its end takes no instance away
			continue
		}
		n = n.OnType(i.Type) // all have the same
		n.Instances = append(n.Instances, i.ID)
	}
	return n, ownership, err
}
