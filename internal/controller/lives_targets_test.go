package controller

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
)

// A load balancer in the world: its controller deregisters a Node that is excluded, and the connections of a machine
// take some time to end.

// isTarget reports whether a machine is in the target group still; excluded: only for Nodes that are taken out of it.
// w.mu is held.
func (w *world) isTarget(m *machine, excluded bool) bool {
	const notices = 2 * time.Second
	for _, r := range w.nodes {
		ended := r.excluded.Before(m.began) // the machine, and its connections, and it was started again
		if r.m != m || !r.deleted.IsZero() || excluded && ended {
			continue
		}
		if r.excluded.IsZero() {
			if !excluded && r.ready {
				return true
			}
		} else if r.wasTarget && time.Since(r.excluded) < notices+w.h.options.deregistration {
			return true
		}
	}
	return false
}

// Await implements LoadBalancers.
func (w *world) Await(ctx context.Context, m loadbalancer.Machine, waits func(groups []string)) (left []string, err error) {
	const group = "web"
	for told := false; ; told = true {
		w.mu.Lock()
		is := false
		for _, of := range w.machines {
			is = is || of.id == m.Instance && w.isTarget(of, false)
		}
		w.mu.Unlock()
		if !is {
			return nil, nil
		}
		if !told {
			waits([]string{group})
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return []string{group}, context.Cause(ctx)
		}
	}
}
