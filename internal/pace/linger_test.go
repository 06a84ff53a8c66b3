package pace

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestACallLingersForAMomentAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the process stops")
		ctx, stop := context.WithCancelCause(t.Context())
		lingering, cancel := Linger(ctx, time.Second)
		defer cancel()
		time.Sleep(time.Hour)
		stop(why)
		time.Sleep(time.Second - time.Nanosecond)
		synctest.Wait()
		if lingering.Err() != nil {
			t.Error("it is cut off at once")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := context.Cause(lingering); !errors.Is(got, why) {
			t.Errorf("its cause is %v, want %v", got, why)
		}
	})
}

func TestACallThatHasEndedDoesNotLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails where a timer or a goroutine is left
		ctx, stop := context.WithCancel(t.Context())
		lingering, cancel := Linger(ctx, time.Hour)
		stop()
		synctest.Wait()
		cancel()
		if lingering.Err() == nil {
			t.Error("it goes on")
		}
	})
}
