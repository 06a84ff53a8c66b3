package controller

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
)

// outOfService are the nodes that have the out-of-service taint from us.
type outOfService struct {
	cluster *cluster.Cluster
	lookup  *lookup.Lookup
	log     logr.Logger
}

// takeBack takes the taint from nodes whose instance runs again, until ctx ends.
func (o outOfService) takeBack(ctx context.Context) {
	nodes := cluster.PerNode{Log: o.log}
	defer nodes.Wait()
	for {
		changed := o.cluster.Changed()
		waiting := o.cluster.OutOfService()
		for _, ref := range waiting {
			nodes.Do(ref.UID, func() { o.takeBackFrom(ctx, ref) })
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

// takeBackFrom takes the taint from a node if its instance runs again.
func (o outOfService) takeBackFrom(ctx context.Context, ref cluster.Ref) {
	inst, known, err := o.lookup.Look(ctx, ref.Instance, lookup.Fresh, true)
	runs := err == nil && known && inst.Alive()
	if errors.Is(err, instance.ErrDenied) {
		runs = o.cluster.ReadyAgain(ref)
	}
	if !runs {
		return
	}
	err = cluster.Retry(ctx, o.log, "take the out-of-service taint back", func(ctx context.Context) error {
		return o.cluster.SetOutOfService(ctx, ref, false)
	})
	if err == nil {
		o.log.Info("the node is back in service", "node", ref.Name)
	}
}
