package retry

import (
	"context"
	"errors"
	"time"
)

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
