package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestADelayedContextEndsAfterTheDelayWithTheSameCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the process stops")
		ctx, stop := context.WithCancelCause(t.Context())
		delayed, cancel := WithDelayedCancel(ctx, time.Second)
		defer cancel()
		time.Sleep(time.Hour)
		stop(why)
		time.Sleep(time.Second - time.Nanosecond)
		synctest.Wait()
		if delayed.Err() != nil {
			t.Error("it ended before the delay")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := context.Cause(delayed); !errors.Is(got, why) {
			t.Errorf("its cause is %v, want %v", got, why)
		}
	})
}

func TestACancelledDelayedContextEndsAtOnceAndLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails where a timer or a goroutine is left
		ctx, stop := context.WithCancel(t.Context())
		delayed, cancel := WithDelayedCancel(ctx, time.Hour)
		stop()
		synctest.Wait()
		cancel()
		if delayed.Err() == nil {
			t.Error("it goes on")
		}
	})
}
