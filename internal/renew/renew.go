// Package renew keeps a claim that has a time limit, such as the visibility of
// an SQS message or the heartbeat of a lifecycle hook, alive while work runs.
package renew

import (
	"context"
	"errors"
	"time"
)

// ErrGone is returned by a renewal that found nothing left to renew.
var ErrGone = errors.New("the claim is gone")

// retries is how many times a failing renewal is tried within one interval.
// Callers choose the interval as half the time limit or less, so that a claim
// survives more failures than an AWS endpoint shows in a bad minute.
const retries = 4

// Every calls renew once after first (at once, if first is not positive) and
// then each interval until ctx ends, which returns the cause of ctx, or until
// renew returns ErrGone, which returns nil. Any other error of renew brings its
// next call forward to a fraction of the interval. The calls never overlap.
func Every(ctx context.Context, first, interval time.Duration, renew func(context.Context) error) error {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		next := interval
		if err := renew(ctx); errors.Is(err, ErrGone) {
			return nil
		} else if err != nil {
			next = interval / retries
		}
		timer.Reset(next)
	}
}
