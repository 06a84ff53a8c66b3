package retry

import (
	"context"
	"time"
)

// WithDelayedCancel returns a context that ends d after ctx, with the cause of ctx,
// or when cancel is called. It is for calls that need a moment to end by themselves:
// a call that is cut off may have had its effect, and nobody knows. The caller decides
// which calls may still begin after the end of ctx. cancel must be called.
func WithDelayedCancel(ctx context.Context, d time.Duration) (_ context.Context, cancel context.CancelFunc) {
	delayed, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(d, func() { end(context.Cause(ctx)) })
		context.AfterFunc(delayed, func() { late.Stop() })
	})
	return delayed, func() {
		stop()
		end(context.Canceled)
	}
}
