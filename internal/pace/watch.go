package pace

import (
	"context"
	"errors"
	"time"
)

const (
	// client-go begins a watch at once again that was cut within its first events:
	// hundreds of times a second, where a load balancer cuts each of them.
	watchesPerSecond = 2
	watchBurst       = 5
	// A watch begins within milliseconds. client-go would wait for one that does
	// not for as long as the connection lives.
	watchBegins = 10 * time.Second
	// The list of thousands of objects takes seconds.
	listEnds = 30 * time.Second
)

// Watches begins the watches of one informer.
type Watches struct{ limiter *Limiter }

// NewWatches returns a Watches that has begun none.
func NewWatches() Watches { return Watches{New(watchesPerSecond, watchBurst)} }

// List calls list with a context that ends early if it has not returned in time.
func List[L any](ctx context.Context, list func(context.Context) (L, error)) (L, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listEnds, errNoList)
	defer cancel()
	return list(ctx)
}

var errNoList = errors.New("no list in time")

var errNoWatch = errors.New("the watch has not begun in time")

// BeginWatch calls begin when its turn has come, with a context that lives as long as
// ctx, but ends early if begin has not returned in time.
func BeginWatch[W any](ctx context.Context, w Watches, begin func(context.Context) (W, error)) (W, error) {
	if err := w.limiter.Wait(ctx, Priority{}); err != nil {
		var none W
		return none, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(watchBegins, func() { cancel(errNoWatch) })
	watch, err := begin(ctx)
	timer.Stop()
	if err != nil {
		cancel(err)
	}
	return watch, err // which goes on with its context, until ctx ends
}
