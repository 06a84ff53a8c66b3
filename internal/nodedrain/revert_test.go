package nodedrain

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestALookerLooksOnceAtATimeAndNeverMissesAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks, at, seen atomic.Int32
		changes := atomic.Int32{}
		l := looker{look: func() error {
			if at.Add(1) > 1 {
				t.Error("it looks twice at once")
			}
			seen.Store(changes.Load())
			time.Sleep(time.Second)
			at.Add(-1)
			if looks.Add(1) == 4 {
				return errors.New("no more")
			}
			return nil
		}}
		change := func(n int32) {
			for range n {
				changes.Add(1)
				l.changed()
			}
		}
		want := func(after time.Duration, wantLooks, wantSeen int32) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if looks.Load() != wantLooks || seen.Load() != wantSeen {
				t.Errorf("it has looked %d times and seen %d changes, want %d and %d", looks.Load(), seen.Load(), wantLooks, wantSeen)
			}
		}
		change(1)
		want(time.Minute, 1, 1)
		change(1)
		time.Sleep(time.Millisecond)
		change(10) // while it looks: once more is enough
		want(time.Minute, 3, 12)
		change(1)
		time.Sleep(time.Millisecond)
		change(1)
		want(time.Minute, 4, 13) // and fails
		change(1)
		want(time.Minute, 4, 13)
		l.looks.Wait()
	})
}
