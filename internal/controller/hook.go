package controller

import (
	"context"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// holdOpen sends heartbeats for the hook of a notice until release is called. release
// returns when no heartbeat is in flight any more.
func (t *task) holdOpen(ctx context.Context) (release func()) {
	if !t.c.Owns(t.n.Hook) {
		return func() {}
	}
	hook := t.hook()
	ctx, stop := context.WithCancel(ctx)
	held := make(chan struct{})
	go func() {
		defer close(held)
		t.c.Hooks.Hold(ctx, hook)
	}()
	return func() {
		stop()
		<-held
	}
}

// count makes the hook of the notice part of the load, until done is called.
func (t *task) count(deadline time.Time) (done func()) {
	if !t.c.Owns(t.n.Hook) {
		return func() {}
	}
	return t.c.awaited.add(deadline)
}

// completeUncarried completes a hook, unless a drain carries it. That drain completes it then, and is waited for: the
// next Node of the instance is drained before. Nor does it complete one while a Node of its instance is being drained
// for another reason: the machine would go away with its pods.
func (t *task) completeUncarried(ctx context.Context) error {
	carrier, others := t.c.Registry.About(t.hook())
	if carrier != nil {
		return carrier.Await(ctx)
	}
	if err := t.awaitOthers(ctx, others); err != nil {
		return err
	}
	return t.c.Registry.Complete(ctx, t.log, t.hook())
}

// awaitOthers waits for the end of other drains of the machine, and holds the hook open meanwhile.
func (t *task) awaitOthers(ctx context.Context, others []*nodedrain.Drain) error {
	if len(others) == 0 {
		return nil
	}
	defer t.holdOpen(ctx)()
	for _, nd := range others {
		if err := nd.AwaitEnd(ctx); err != nil {
			return err
		}
	}
	return nil
}

// openHooks are the deadlines of the hooks that no drain is about: those of launches, and of instances without a Node.
type openHooks struct {
	mu        sync.Mutex
	deadlines map[*time.Time]bool
}

// add adds a hook, until done is called.
func (o *openHooks) add(deadline time.Time) (done func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deadlines[&deadline] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.deadlines, &deadline)
	}
}

// addTo adds the hooks to a load.
func (o *openHooks) addTo(l *report.Load) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l.Hooks += len(o.deadlines)
	for deadline := range o.deadlines {
		l.HookDeadline = intent.Earlier(l.HookDeadline, *deadline)
	}
}
