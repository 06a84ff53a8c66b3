package controller

import (
	"context"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// A lifeGroup is the Auto Scaling group of a world, which replaces an instance that is said to be unhealthy: it launches
// another one, and then terminates it. It implements Replacements.
type lifeGroup struct{ *world }

func (g lifeGroup) Member(_ context.Context, id string) (m asg.Member, ok bool, err error) {
	state := g.aws.LifecycleState(id)
	return asg.Member{Group: "workers", Goes: state != "InService"}, state != "", nil
}

func (lifeGroup) Group(context.Context, string) (asg.Group, error) {
	return asg.Group{Name: "workers", LaunchesFirst: true, TerminationHooks: []string{"drain"}}, nil
}

// MarkUnhealthy is heeded once for each life of a machine, as long as there is another one to launch.
func (g lifeGroup) MarkUnhealthy(_ context.Context, id string) error {
	w := g.world
	w.mu.Lock()
	at := slices.IndexFunc(w.machines, func(m *machine) bool { return m.id == id })
	next := slices.IndexFunc(w.machines, func(m *machine) bool { return m.state == "" })
	marked := at >= 0 && w.machines[at].unhealthy == w.machines[at].life+1
	if at >= 0 {
		w.machines[at].unhealthy = w.machines[at].life + 1
	}
	w.mu.Unlock()
	if at < 0 || next < 0 || marked {
		return nil
	}
	m, other := w.machines[at], w.machines[next]
	const joins = 40 * time.Second
	w.after(startTakes, func() {
		if w.now(other).state == "" {
			w.launch(other, joins)
		}
	})
	w.after(2*startTakes+2*joins, func() {
		if w.now(m).state == "running" && w.aws.LifecycleState(id) == "InService" {
			_, err := w.aws.StartTransition(id, awssim.Terminating)
			w.must(err)
		}
	})
	return nil
}

// patience is how long a drain with time and room may wait for another instance. w.mu is held.
func (w *world) patience(i intent.Intent) time.Duration {
	if !i.ReplacesFirst() {
		return 0
	}
	wait := decision.DefaultPatience
	for _, r := range w.policy {
		wait = max(wait, r.wait)
	}
	return wait
}
