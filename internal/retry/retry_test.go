package retry

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPausesGrowByTheFactorUpToTheLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		backoff Backoff
		want    []time.Duration // after 0, 1, 2 … failures
	}{
		"doubled": {
			Backoff{First: time.Second, Max: 5 * time.Second, Factor: 2},
			[]time.Duration{time.Second, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second},
		},
		"half as long again": {
			Backoff{First: time.Second, Max: 2 * time.Second, Factor: 1.5},
			[]time.Duration{time.Second, time.Second, 1500 * time.Millisecond, 2 * time.Second},
		},
		"no factor":                 {Backoff{First: time.Second, Max: time.Minute}, []time.Duration{time.Second, time.Second, time.Second}},
		"no limit":                  {Backoff{First: time.Hour, Factor: 24}, []time.Duration{time.Hour, time.Hour, 24 * time.Hour}},
		"more at once than allowed": {Backoff{First: time.Minute, Max: time.Second}, []time.Duration{time.Second, time.Second}},
		"zero value":                {Backoff{}, []time.Duration{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []time.Duration
			for n := range tc.want {
				got = append(got, tc.backoff.Pause(n))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPauseIsNeverNegativeAndJitterAddsLessThanItsPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			First:  time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "first")),
			Max:    time.Duration(rapid.Int64Range(-1, int64(24*time.Hour)).Draw(t, "max")),
			Factor: rapid.Float64Range(0, 10).Draw(t, "factor"),
		}
		n := rapid.IntRange(-1, math.MaxInt).Draw(t, "failures")
		base := b.Pause(n)
		b.Jitter = rapid.Float64Range(0, 1).Draw(t, "jitter")
		pause := b.Pause(n)
		if most := base + time.Duration(float64(base)*b.Jitter); base < 0 || pause < base || pause > most {
			t.Errorf("%+v pauses for %v after %d failures, want %v to %v", b, pause, n, base, most)
		}
	})
}

func TestASleepEndsAfterItsTimeOrWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if err := Sleep(t.Context(), time.Second); err != nil || time.Since(begin) != time.Second {
			t.Errorf("slept for %v: %v", time.Since(begin), err)
		}
		cause := errors.New("the lease is lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(cause) })
		begin = time.Now()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, cause) || time.Since(begin) != time.Minute {
			t.Errorf("slept for %v: %v, want %v", time.Since(begin), err, cause)
		}
	})
}
