// Package retry decides when to try again: pauses between failed tries, the
// renewal of claims with a time limit, and the time that a call gets to end by
// itself when its context ends.
//
// It imports the standard library only, so that every package may import it.
// [k8s.io/apimachinery/pkg/util/wait.Backoff] has the same fields, but counts its
// steps in place: each user would need a copy and a number of steps.
package retry

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff says how long to pause after failed tries. It is plain data, and may be
// used concurrently.
type Backoff struct {
	First time.Duration // the pause after the first failure
	// Max bounds a pause before its jitter; not positive: no bound.
	Max time.Duration
	// Factor is how much longer each pause is than the one before. Less than 1
	// counts as 1.
	Factor float64
	// Jitter is the largest part of a pause that is added to it at random, so that
	// those who failed together do not come back together. 0: none.
	Jitter float64
}

// Pause returns how long to pause after n failures in a row. n less than 1 counts
// as 1.
func (b Backoff) Pause(n int) time.Duration {
	if b.First <= 0 {
		return 0
	}
	longest := float64(b.Max)
	if b.Max <= 0 {
		longest = forever
	}
	pause := float64(b.First) * math.Pow(max(b.Factor, 1), float64(max(n, 1)-1))
	return Jitter(time.Duration(min(pause, longest)), b.Jitter)
}

// forever keeps a pause without a bound, and its jitter, within a Duration.
const forever = float64(100 * 365 * 24 * time.Hour)

// Jitter returns d with a random part of it added: at least 0, and less than
// fraction × d.
func Jitter(d time.Duration, fraction float64) time.Duration {
	if most := time.Duration(float64(d) * fraction); most > 0 {
		d += rand.N(most)
	}
	return d
}

// Sleep waits for d and returns nil, or returns the cause of ctx if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// ErrNothingToRenew is returned by a renewal when there is nothing left to renew.
var ErrNothingToRenew = errors.New("nothing to renew")

// renewalTries is how many times a failing renewal is tried within one interval.
// Callers choose an interval of half the time limit or less. A claim then survives
// more failures than an AWS endpoint shows in a bad minute.
const renewalTries = 4

// Renew keeps a claim alive that has a time limit, such as the visibility of an SQS
// message or a lifecycle hook. It calls renew once after first (at once if first is
// not positive), and then once in each interval. After an error of renew the next
// call comes sooner, after a quarter of the interval. Calls never overlap.
//
// Renew returns the cause of ctx when ctx ends, and nil when renew has returned
// ErrNothingToRenew.
func Renew(ctx context.Context, first, interval time.Duration, renew func(context.Context) error) error {
	for next := first; ; {
		if err := Sleep(ctx, next); err != nil {
			return err
		}
		next = interval
		if err := renew(ctx); errors.Is(err, ErrNothingToRenew) {
			return nil
		} else if err != nil {
			next = interval / renewalTries
		}
	}
}

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
