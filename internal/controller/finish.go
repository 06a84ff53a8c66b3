package controller

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// finish ends the drains of the nodes of an instance on which nothing runs any more.
func (c *Controller) finish(ctx context.Context, log logr.Logger, f *lookup.Found) error {
	for _, ref := range f.Refs {
		if !c.OutOfServiceTaint || f.State != decision.Stopping && f.State != decision.Gone { // only the message says so
			break
		}
		// It may be started meanwhile.
		trying, cancel := context.WithTimeoutCause(ctx, lookup.KeptShort, nodedrain.ErrOutdated)
		err := cluster.Retry(trying, log, "taint the node out of service", func(ctx context.Context) error {
			return c.Cluster.SetOutOfService(ctx, ref, true)
		})
		cancel()
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	for _, ref := range f.Refs {
		if err := c.Registry.InstanceGone(ctx, ref); err != nil {
			return err
		}
		node, there := c.Cluster.Look(ref)
		if !there || f.State == decision.NotKnown {
			continue
		}
		if i, _, err := cluster.ReadIntent(node); err != nil || !i.Finished() || len(i.Pending(time.Now())) == 0 {
			continue
		}
		// A deadline that is ahead would bind the next life of the instance.
		err := cluster.Retry(ctx, log, "note that the machine has gone", func(ctx context.Context) error {
			_, err := c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
				if i.Finished() {
					i = i.Gone(time.Now().UTC())
				}
				return i
			})
			return err
		})
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	return nil
}

// removeOutOfServiceTaints removes the out-of-service taint, where we have added it, from nodes
// whose instance runs again.
func (c *Controller) removeOutOfServiceTaints(ctx context.Context) {
	for {
		changed := c.Cluster.Changed()
		waiting := c.Cluster.OutOfService()
		for _, ref := range waiting {
			inst, known, err := c.Lookup.Look(ctx, ref.Instance, lookup.Fresh, true)
			runs := err == nil && known && inst.Alive()
			if errors.Is(err, instance.ErrDenied) {
				runs = c.Cluster.ReadyAgain(ref)
			}
			if !runs {
				continue
			}
			err = cluster.Retry(ctx, c.Log, "take the out-of-service taint back", func(ctx context.Context) error {
				return c.Cluster.SetOutOfService(ctx, ref, false)
			})
			if err == nil {
				c.Log.Info("the node is back in service", "node", ref.Name)
			}
		}
		var again <-chan time.Time
		if len(waiting) > 0 { // what EC2 says may change without a change of the Node
			again = time.After(lookup.KeptShort)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}
