package controller

import (
	"context"
	"sync"

	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Run carries out what Handle begins, after the drains that the nodes carry from an earlier leader. It returns the
// cause of ctx when ctx ends, or ErrGiveWay. Nothing is written after it has returned.
func (c *Controller) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	if c.OutOfServiceTaint {
		beside.Go(func() { outOfService{c.Cluster, c.Lookup, c.Log}.takeBack(ctx) })
	}
	if !c.DryRun && !c.OnNode && c.Lease != "" {
		beside.Go(func() { reports{c.Cluster, c.Log, c.Lease, c.HandleNotice}.handleAll(ctx) })
	}
	return c.Registry.Run(ctx)
}

// Load returns what is in progress. It may be called at any time.
func (c *Controller) Load() report.Load {
	l := c.Registry.Load()
	c.awaited.addTo(&l)
	return l
}
