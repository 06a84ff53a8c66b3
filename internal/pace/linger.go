package pace

import (
	"context"
	"time"
)

// Linger returns a context for calls that are not to be cut off in the middle
// when ctx ends: it ends d later than ctx, or with cancel. Which calls may still
// begin after the end of ctx is the caller's to say.
func Linger(ctx context.Context, d time.Duration) (_ context.Context, cancel context.CancelFunc) {
	lingering, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(d, func() { end(context.Cause(ctx)) })
		context.AfterFunc(lingering, func() { late.Stop() })
	})
	return lingering, func() {
		stop()
		end(context.Canceled)
	}
}
