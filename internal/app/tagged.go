package app

import (
	"context"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// countTagged keeps the metrics of instances with the managed tag up to date until ctx ends.
// AWS Node Termination Handler has the same metrics: a difference between its two numbers is
// a machine that never joined. Nodes without the tag are counted too, because nobody acts on
// a notice about them. Each round costs a call for every 200 instances.
func (a *App) countTagged(ctx context.Context) {
	const pause = 5 * time.Minute
	for {
		ids, err := a.instances.Tagged(ctx, a.options.ManagedTag)
		switch {
		case err == nil:
			a.metrics.Tagged(a.joined(ids), len(ids), a.unmanaged(ids))
		case ctx.Err() == nil:
			a.log.V(1).Info("the tagged instances could not be counted", "error", err)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// joined returns how many of the instances have a Node.
func (a *App) joined(ids []string) (n int) {
	for _, id := range ids {
		if len(a.nodes.ByInstance(id)) > 0 {
			n++
		}
	}
	return n
}

// unmanaged returns how many instances with a ready Node are not among the tagged ones.
func (a *App) unmanaged(tagged []string) (n int) {
	tagged = slices.Sorted(slices.Values(tagged))
	for _, id := range a.nodes.ReadyInstances() {
		if _, found := slices.BinarySearch(tagged, id); !found {
			n++
		}
	}
	return n
}
