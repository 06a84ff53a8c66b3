package nodedrain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// A carrier is the node of a drain with the intent that it carries: who may write it, and who is told of its changes.
type carrier struct {
	ref cluster.Ref
	log logr.Logger // with the node and its instance

	// turn is a lock that can wait with a context: see lock. It is held to write unrecorded.
	turn       chan struct{}
	unrecorded atomic.Bool // the node cannot be written: the intent is here alone

	mu      sync.Mutex
	reserve bool          // Karpenter gets the pods off; see delegate
	intent  intent.Intent // as the node carries it, and what learn has added
	changed chan struct{} // closed and replaced when the intent has changed

	listening sync.Mutex // held while listeners are called
	listeners []*func()  // see onChange
}

// Ref is the Node that is drained.
func (c *carrier) Ref() cluster.Ref { return c.ref }

// current returns the intent, and a channel that is closed when the intent changes.
func (c *carrier) current() (intent.Intent, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.intent, c.changed
}

// carried returns the intent.
func (c *carrier) carried() intent.Intent {
	i, _ := c.current()
	return i
}

// Carries reports whether the intent has a hook.
func (c *carrier) Carries(h *intent.Hook) bool { return c.carried().HasHook(*h) }

// terms are what the drain of the pods has to observe now.
func (c *carrier) terms() evacuation.Terms {
	c.mu.Lock()
	defer c.mu.Unlock()
	terms := TermsOf(c.intent)
	terms.Reserve = c.reserve
	return terms
}

// onChange calls look now, after each change, and when the drain is called off or its instance is gone, until remove is
// called: a drain that waits for hours, beside thousands of others, needs no goroutine for that. look runs on the
// goroutine of whoever makes the change, once at a time: it must not block, make a change, nor call remove. When remove
// returns, look has too.
func (c *carrier) onChange(look func()) (remove func()) {
	c.listening.Lock()
	defer c.listening.Unlock()
	c.listeners = append(c.listeners, &look)
	look()
	return func() {
		c.listening.Lock()
		defer c.listening.Unlock()
		c.listeners = slices.DeleteFunc(c.listeners, func(l *func()) bool { return l == &look })
	}
}

// whileNot returns a context that ends with a cause as soon as over reports true. That is asked now and after each
// change, and must not block. stop is to be called.
func (c *carrier) whileNot(ctx context.Context, cause error, over func() bool) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	remove := c.onChange(func() {
		if over() {
			cancel(cause)
		}
	})
	return ctx, func() {
		remove()
		cancel(nil)
	}
}

func (c *carrier) tell() {
	c.listening.Lock()
	defer c.listening.Unlock()
	for _, look := range c.listeners {
		(*look)()
	}
}

// change changes what current and terms return. do is called with mu held.
func (c *carrier) change(do func()) {
	c.mu.Lock()
	do()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	c.tell()
}

// setIntent notes the intent that the node carries now.
func (c *carrier) setIntent(i intent.Intent) { c.change(func() { c.intent = i }) }

// setReserve sets whether the drain is in reserve, as its terms say.
func (c *carrier) setReserve(on bool) { c.change(func() { c.reserve = on }) }

// lock waits for the turn to write to the node, or returns the cause of ctx. It is no
// mutex, because it is held for as long as the API server takes to answer.
func (c *carrier) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *carrier) unlock() { <-c.turn }

// rewrite changes the intent of a node that is being drained, and tries until that is done. If the Node was deleted, it
// changes what is remembered of it. Others may write the node between two tries. The error is the cause of ctx.
func (d *Drain) rewrite(ctx context.Context, change cluster.Change) error {
	return cluster.Retry(ctx, d.log, "write the intent", func(ctx context.Context) error {
		return d.rewriteOnce(ctx, change)
	})
}

// rewriteOnce is one try of rewrite.
func (d *Drain) rewriteOnce(ctx context.Context, change cluster.Change) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	ended := d.r.hasEnded(d)
	err := d.recordAtLast(ctx)
	if err == nil {
		var carried *intent.Intent
		carried, err = d.r.Cluster.Record(ctx, d.ref, func(i intent.Intent) intent.Intent {
			if i = change(i); !ended { // the next episode may be another handler's
				i = d.r.Cluster.Joined(i)
			}
			return i
		})
		if err == nil {
			d.applyIntent(carried)
		}
	}
	if errors.Is(err, cluster.ErrNodeGone) { // the drain goes on without it
		left := change(d.carried())
		d.setIntent(left)
		d.r.Cluster.Remember(d.ref, left)
		return nil
	}
	return err
}

// learn changes the intent of a drain, and then that of the node. So the drain heeds what was learned also
// while the API server does not answer. The next leader learns it for itself.
func (d *Drain) learn(ctx context.Context, change cluster.Change) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	carried := d.carried()
	d.setIntent(change(carried))
	d.unlock()
	return d.rewrite(ctx, change)
}

// recordAtLast records what could not be recorded before, and cordons the node with that. The caller holds the lock.
func (d *Drain) recordAtLast(ctx context.Context) error {
	if !d.unrecorded.Load() {
		return nil
	}
	_, err := d.r.Cluster.Record(ctx, d.ref, d.orUnrecorded)
	d.unrecorded.Store(err != nil)
	return err
}

// orUnrecorded is what the node carries, or would carry if it could be written. That somebody has uncordoned it
// meanwhile stays counted. The caller holds the lock.
func (c *carrier) orUnrecorded(on intent.Intent) intent.Intent {
	if !c.unrecorded.Load() {
		return on
	}
	carried := c.carried()
	carried.Uncordoned = max(carried.Uncordoned, on.Uncordoned)
	return carried
}
