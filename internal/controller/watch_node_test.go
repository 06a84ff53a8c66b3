package controller

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
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
		l.running.Wait()
	})
}

// An undo that has quit a drain may give up waiting for its end. Then the drain may find a reason of its own to end, too.
func TestADrainThatAnUndoHasQuitEndsForThat(t *testing.T) {
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Second)
		nd := newNodeDrain(cluster.RefOf(s.node()))
		nd.setIntent(s.intent())
		nd.quitFor(nil)
		err := s.c.quitIf(s.ctx, nd, errRestarted, func(intent.Intent) bool { return true })
		if !errors.Is(err, errUndone) {
			t.Errorf("it ends for %v", err)
		}
		if err := s.c.runEnded(s.ctx, slog.New(slog.DiscardHandler), nd, err); err != nil {
			t.Errorf("runEnded = %v", err)
		}
	})
}
