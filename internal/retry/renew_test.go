package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAClaimIsRenewedAtOnceThenInEachInterval(t *testing.T) {
	calls := record(t, 0, 35*time.Second, func(int) error { return nil })
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 30 * time.Second}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("renewals (-want +got):\n%s", diff)
	}
}

func TestAFailedRenewalIsTriedAgainSooner(t *testing.T) {
	calls := record(t, 10*time.Second, 34*time.Second, func(n int) error {
		if n < 2 {
			return errors.New("throttled")
		}
		return nil
	})
	want := []time.Duration{10 * time.Second, 12500 * time.Millisecond, 15 * time.Second, 25 * time.Second}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("renewals (-want +got):\n%s", diff)
	}
}

func TestRenewalEndsWhenNothingIsLeftToRenew(t *testing.T) {
	calls := record(t, 0, time.Hour, func(n int) error {
		if n == 1 {
			return ErrNothingToRenew
		}
		return nil
	})
	want := []time.Duration{0, 10 * time.Second}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("renewals (-want +got):\n%s", diff)
	}
}

func TestRenewalReturnsTheCauseOfItsContext(t *testing.T) {
	cause := errors.New("lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := Renew(ctx, time.Hour, time.Hour, func(context.Context) error { return nil }); !errors.Is(err, cause) {
		t.Errorf("Renew = %v, want %v", err, cause)
	}
}

// record runs Renew with an interval of 10 s for a virtual while and returns when it renewed.
func record(t *testing.T, first, while time.Duration, result func(call int) error) []time.Duration {
	t.Helper()
	var calls []time.Duration
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), while)
		defer cancel()
		err := Renew(ctx, first, 10*time.Second, func(context.Context) error {
			calls = append(calls, time.Since(start))
			return result(len(calls) - 1)
		})
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Renew = %v", err)
		}
	})
	return calls
}
