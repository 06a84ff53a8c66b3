package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// What fails is tried again after firstPause, then twice as long each time, up to lastPause.
	firstPause = 500 * time.Millisecond
	lastPause  = 10 * time.Second
	// worthAWarning is the pause from which a failure is logged as a warning: the third
	// failure in a row. A conflict or a throttled request has succeeded by then.
	worthAWarning = 4 * firstPause
	// tryTimeout bounds one try, so that a server that hangs costs one try. Where the last patch of a Node has hung the
	// next has longer: an API server takes half a minute where it asks webhooks in vain that it then ignores.
	tryTimeout     = 15 * time.Second
	longTryTimeout = 35 * time.Second
)

// Retry tries until it succeeds, or the Node is gone, or ctx ends; the error then wraps the
// cause of ctx. A message is held meanwhile: returning it to the queue would count as one
// more receive, and too many of them move it to the dead-letter queue.
func Retry(ctx context.Context, log logr.Logger, doing string, try func(context.Context) error) error {
	return retryEach(ctx, log, doing, func() time.Duration { return tryTimeout }, try)
}

// RetryWrite is Retry for what writes a Node: each try has its TryTimeout.
func (c *Cluster) RetryWrite(
	ctx context.Context, log logr.Logger, ref Ref, doing string, try func(context.Context) error,
) error {
	return retryEach(ctx, log, doing, func() time.Duration { return c.TryTimeout(ref) }, try)
}

// TryTimeout is how long a try to write a Node may take: 15 s, or 35 s where its last patch has hung.
func (c *Cluster) TryTimeout(ref Ref) time.Duration {
	if c.LastHung(ref) {
		return longTryTimeout
	}
	return tryTimeout
}

func retryEach(
	ctx context.Context, log logr.Logger, doing string, timeout func() time.Duration, try func(context.Context) error,
) error {
	for tries := 1; ; tries++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout())
			defer cancel()
			return try(ctx)
		}()
		if err == nil || errors.Is(err, ErrNodeGone) {
			return err
		}
		if errors.Is(err, ErrNoTurn) && ctx.Err() == nil {
			tries = 0 // it was not tried
			continue
		}
		if ended := PauseAfter(ctx, log, err, doing, tries); ended != nil {
			return fmt.Errorf("%s: %w (the last try: %w)", doing, ended, err)
		}
	}
}

// PauseAfter logs that something has failed for the n-th time in a row, and returns when it is to be tried again, or
// the cause of ctx.
func PauseAfter(ctx context.Context, log logr.Logger, err error, doing string, n int) error {
	pause := retry.Backoff{First: firstPause, Max: lastPause, Factor: 2}.Pause(n)
	switch {
	case ctx.Err() != nil:
	case pause >= worthAWarning:
		logging.Warn(log, "trying again", "error", err, "what", doing, "in", pause.String())
	default:
		log.V(1).Info("trying again", "error", err, "what", doing, "in", pause.String())
	}
	return retry.Sleep(ctx, pause)
}

// PerNode does work for nodes, for each on a goroutine of its own: a node that cannot be written holds up no other. Set
// Log before the first call. Its methods may be called concurrently.
type PerNode struct {
	Log logr.Logger // of panics

	all  sync.WaitGroup
	mu   sync.Mutex
	busy map[types.UID]bool // nodes whose work has not ended; true: once more
}

// Do begins the work for a node. Where it has begun, and has not ended, it is done once more after that. A panic ends
// it.
func (p *PerNode) Do(node types.UID, work func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == nil {
		p.busy = map[types.UID]bool{}
	}
	_, begun := p.busy[node]
	p.busy[node] = begun
	if begun {
		return
	}
	p.all.Go(func() {
		for again := true; again; again = p.again(node) {
			_ = logging.Recover(p.Log, func() error { // which logs it
				work()
				return nil
			})
		}
	})
}

// again reports whether the work for a node is to be done once more; else it has ended.
func (p *PerNode) again(node types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	again := p.busy[node]
	if again {
		p.busy[node] = false
	} else {
		delete(p.busy, node)
	}
	return again
}

// Wait waits for the end of all work. Do must not be called any more.
func (p *PerNode) Wait() { p.all.Wait() }
