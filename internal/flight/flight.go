// Package flight lets all callers that want the same thing at the same time share
// one call.
//
// It is what golang.org/x/sync/singleflight is, with contexts: a caller can leave,
// and the call is cancelled when the last caller has left. singleflight knows no
// contexts: a call outlives everybody who wanted it.
package flight

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A Func does the work of a call. It may report a failure after which it tries again:
// a caller that leaves gets the latest one.
type Func[V any] func(ctx context.Context, report func(failure error)) (V, error)

// A Call is one call in flight and those who wait for it. Its methods may be called
// concurrently.
type Call[V any] struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when value and err are set
	value  V
	err    error

	mu      sync.Mutex
	waiting int
	over    bool  // f has returned, or nobody waits for it: nobody can join any more
	failure error // the latest that f has reported
}

var errNobodyWaits = errors.New("nobody waits for the result any more")

// Start calls f in a goroutine of its own and counts the caller as its first waiter,
// who has to call [Call.Wait] once. The context of f has the values of ctx. It ends
// when the last waiter has left.
func Start[V any](ctx context.Context, f Func[V]) *Call[V] {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &Call[V]{cancel: cancel, done: make(chan struct{}), waiting: 1}
	go func() {
		value, err := f(ctx, c.report)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.value, c.err, c.over = value, err, true
		close(c.done)
	}()
	return c
}

// Join counts the caller as a waiter, who then has to call [Call.Wait] once. It
// returns false where the call has ended or was cancelled: there is nothing to wait for.
func (c *Call[V]) Join() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.waiting++
	return true
}

// Wait returns what f returned. If ctx ends first the caller leaves, and the others
// do not notice; the error then wraps the cause of ctx and the latest failure that f
// has reported, if any.
func (c *Call[V]) Wait(ctx context.Context) (V, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	failure := c.leave()
	select {
	case <-c.done:
		if ctx.Err() == nil || !errors.Is(c.err, errNobodyWaits) { // else the caller left, and f has noticed that
			return c.value, c.err
		}
	default:
	}
	var none V
	if failure != nil {
		return none, fmt.Errorf("%w, after: %w", context.Cause(ctx), failure)
	}
	return none, context.Cause(ctx)
}

// leave counts a waiter out and returns the latest failure.
func (c *Call[V]) leave() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	if c.waiting == 0 {
		c.over = true
		c.cancel(errNobodyWaits)
	}
	return c.failure
}

func (c *Call[V]) report(failure error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = failure
}

// A Group has at most one call in flight for each key. The zero value is ready for
// use. Its methods may be called concurrently.
type Group[K comparable, V any] struct {
	mu    sync.Mutex
	calls map[K]*Call[V]
}

// Do returns what the call for key returns: one that is in flight already, or else
// f. It starts nothing if ctx has ended. See [Call.Wait] for what happens when ctx
// ends meanwhile.
func (g *Group[K, V]) Do(ctx context.Context, key K, f Func[V]) (V, error) {
	if ctx.Err() != nil {
		var none V
		return none, context.Cause(ctx)
	}
	return g.join(ctx, key, f).Wait(ctx)
}

// Failure returns the latest failure that the call in flight for key has reported; nil: there is none.
func (g *Group[K, V]) Failure(key K) error {
	g.mu.Lock()
	c := g.calls[key]
	g.mu.Unlock()
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

func (g *Group[K, V]) join(ctx context.Context, key K, f Func[V]) *Call[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[key]; c != nil && c.Join() {
		return c
	}
	var c *Call[V]
	c = Start(ctx, func(ctx context.Context, report func(error)) (V, error) {
		defer func() { // the next caller starts another one
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.calls[key] == c { // else another call has taken the place of a cancelled one
				delete(g.calls, key)
			}
		}()
		return f(ctx, report)
	})
	if g.calls == nil {
		g.calls = map[K]*Call[V]{}
	}
	g.calls[key] = c
	return c
}
