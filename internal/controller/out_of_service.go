package controller

import (
	"context"
	"errors"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
)

// takeTaintsBack takes the out-of-service taint from nodes whose instance runs again, until ctx ends.
func (c *Controller) takeTaintsBack(ctx context.Context) {
	nodes := cluster.PerNode{Log: c.Log}
	defer nodes.Wait()
	for {
		changed := c.Cluster.Changed()
		waiting := c.Cluster.OutOfService()
		for _, ref := range waiting {
			nodes.Do(ref.UID, func() { c.takeTaintFrom(ctx, ref) })
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

// isRunning reports whether an instance that was stopped runs: by EC2 or, without the permission or the provider id to
// ask it, by the kubelet.
func (c *Controller) isRunning(ctx context.Context, ref cluster.Ref) bool {
	if ref.Instance == "" {
		return c.Cluster.ReadyAgain(ref)
	}
	inst, known, err := c.Lookup.Look(ctx, ref.Instance, lookup.Fresh, true)
	if errors.Is(err, instance.ErrDenied) {
		return c.Cluster.ReadyAgain(ref)
	}
	return err == nil && known && inst.Alive()
}

// takeTaintFrom takes the taint from a node if its instance runs again.
func (c *Controller) takeTaintFrom(ctx context.Context, ref cluster.Ref) {
	if !c.isRunning(ctx, ref) {
		return
	}
	err := c.Cluster.RetryWrite(ctx, c.Log, ref, "take the out-of-service taint back", func(ctx context.Context) error {
		return c.Cluster.SetOutOfService(ctx, ref, false)
	})
	if err == nil {
		c.Log.Info("the node is back in service", "node", ref.Name)
	}
}
