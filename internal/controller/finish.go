package controller

import (
	"context"
	"errors"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
)

// finish ends the drains of the nodes of an instance on which nothing runs any more.
func (t *task) finish(ctx context.Context) error {
	f := &t.found
	awaitEnds := t.c.Registry.InstanceGone(f.Refs...)
	for _, ref := range f.Refs {
		if !t.c.OutOfServiceTaint || f.State != decision.Stopping && f.State != decision.Gone { // only the message says so
			break
		}
		// It may be started meanwhile.
		trying, cancel := context.WithTimeoutCause(ctx, lookup.KeptShort, nodedrain.ErrOutdated)
		err := cluster.Retry(trying, t.log, "taint the node out of service", func(ctx context.Context) error {
			return t.c.Cluster.SetOutOfService(ctx, ref, true)
		})
		cancel()
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	if err := awaitEnds(ctx); err != nil {
		return err
	}
	for _, ref := range f.Refs {
		node, there := t.c.Cluster.Look(ref)
		if !there || f.State == decision.NotKnown {
			continue
		}
		if i, _, err := cluster.ReadIntent(node); err != nil || !i.Finished() || len(i.Pending(time.Now())) == 0 {
			continue
		}
		// A deadline that is ahead would bind the next life of the instance.
		err := cluster.Retry(ctx, t.log, "note that the machine has gone", func(ctx context.Context) error {
			_, err := t.c.Cluster.Record(ctx, ref, func(i intent.Intent) intent.Intent {
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
