package controller

import (
	"context"
	"errors"
	"runtime/pprof"
	"sync"

	"github.com/node-termination-handler/node-termination-handler/internal/carried"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Unannounced is a controller for those who look for what no message has told of. They ask what the Nodes carry.
type Unannounced struct {
	*Controller
	*carried.Nodes
}

// Unannounced returns the controller with what the Nodes carry.
func (c *Controller) Unannounced() Unannounced {
	return Unannounced{c, &carried.Nodes{
		Cluster: c.Cluster, Resolver: c.decider.resolver, Observer: c.Observer, Log: c.Log, DryRun: c.DryRun,
	}}
}

// HandleNotice does what a notice about one instance asks for, of which no message has told.
// It calls acts when it begins to do something. It returns nil when that is done, or when the
// instance is not this cluster's to drain. It may be called again for the same notice, by
// another process too.
func (c *Controller) HandleNotice(ctx context.Context, n notice.Notice, acts func()) error {
	defer pprof.SetGoroutineLabels(ctx)
	ctx = pprof.WithLabels(ctx, pprof.Labels("event", n.ID))
	pprof.SetGoroutineLabels(ctx)
	log := c.Log.WithValues("kind", n.Kind, "event", n.ID)
	acts = sync.OnceFunc(acts)
	err := logging.Recover(c.Log, func() error {
		return c.handle(ctx, log, &n, func(a decision.Action) {
			if !c.DryRun && a != decision.Leave && a != decision.Drop {
				acts()
			}
		})
	})
	if isLeave(err) || errors.Is(err, nodedrain.ErrGiveWay) { // the next leader goes on with what the node carries
		return nil
	}
	return err
}

// Acts reports whether HandleNotice would do something about a notice now. The error is the cause of ctx.
func (c *Controller) Acts(ctx context.Context, n notice.Notice) (bool, error) {
	log := c.Log.WithValues("kind", n.Kind, "event", n.ID, "instance", n.Instances[0])
	t := &task{c: c, log: log, n: &n, id: n.Instances[0]}
	err := c.decider.decide(ctx, t, lookup.Kept)
	return err == nil && t.Action != decision.Leave && t.Action != decision.Drop, err
}
