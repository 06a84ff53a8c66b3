package pace

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What only records that all is done waits for the few slots of its sort. Others do not wait for it: there is room.
func TestACallThatWaitsForALowPrioritySlotKeepsNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(64, 64)
		for range 4 { // the server is so busy that one slot is left for low priorities
			g.Busy(time.Second)
			time.Sleep(time.Second)
		}
		slow, err := g.Enter(t.Context(), Priority{Class: Aside}) // an Event, whose webhook hangs
		if err != nil {
			t.Fatal(err)
		}
		near := time.Now().Add(time.Minute)
		go func() {
			if leave, err := g.Enter(t.Context(), Priority{Deadline: near, Rank: Conclude}); err == nil {
				leave(0)
			}
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if leave, err := g.Enter(ctx, Priority{Deadline: near.Add(time.Second)}); err != nil {
			t.Errorf("an eviction with a later deadline does not enter, though %d of %d slots are free", g.Bound()-1, g.Bound())
		} else {
			leave(0)
		}
		slow(0)
		synctest.Wait()
	})
}

// When a small control plane has answered the last evictions, kubelets have a lot to tell it: Events
// and the marks of finished nodes can wait.
func TestLowPriorityCallsComeOneByOneWhileAnswersAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(64, 64)
		var written atomic.Int32
		enter := func(n int) {
			for k := range n {
				g.EnterAsync([]Priority{{Class: Aside}, {Rank: Conclude}}[k%2], func(leave func(time.Duration)) {
					written.Add(1)
					time.AfterFunc(time.Millisecond, func() { leave(0) })
				})
			}
		}
		want := func(what string, after time.Duration, least, most int) {
			t.Helper()
			time.Sleep(after)
			if n := int(written.Load()); n < least || n > most {
				t.Errorf("%s: %d were written, want %d to %d", what, n, least, most)
			}
		}
		evict := func(took time.Duration) {
			leave, err := g.Enter(t.Context(), Priority{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(took)
			leave(0)
		}
		for range 20 {
			evict(fastAnswer / 10)
		}
		evict(slowAnswer)
		enter(100)
		want("after fast answers, and a slow one", 50*time.Millisecond, 100, 100)
		written.Store(0)
		for range 8 {
			evict(slowAnswer)
		}
		enter(100)
		want("after slow ones", quiet/2, 6, 8)
		evict(slowAnswer)
		want("after another", quiet/2, 12, 18)
		want("a while after", quiet, 100, 100)
	})
}

// The admission plugin EventRateLimit refuses Events fast, which does not mean that the server takes more evictions.
func TestLowPriorityAnswersDoNotWidenTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(4, 64)
		for range 100 {
			go func() {
				if leave, err := g.Enter(t.Context(), Priority{Class: Aside}); err == nil {
					time.Sleep(fastAnswer / 10)
					leave(0)
				}
			}()
		}
		time.Sleep(time.Minute)
		if g.Bound() != 4 {
			t.Errorf("the bound is %d, want 4", g.Bound())
		}
	})
}

func TestEventsAreWrittenBesideMarksWhileAnswersAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(64, 64)
		var events atomic.Int32
		stop := time.Now().Add(time.Minute)
		for range 8 { // evictions
			go func() {
				for time.Now().Before(stop) {
					if leave, err := g.Enter(t.Context(), Priority{}); err == nil {
						time.Sleep(2 * fastAnswer)
						leave(0)
					}
				}
			}()
		}
		for range 10_000 {
			g.EnterAsync(Priority{Rank: Conclude}, func(leave func(time.Duration)) { time.AfterFunc(fastAnswer, func() { leave(0) }) })
		}
		go func() {
			for time.Now().Before(stop) {
				if leave, err := g.Enter(t.Context(), Priority{Class: Aside}); err == nil {
					events.Add(1)
					leave(0)
				}
			}
		}()
		time.Sleep(10 * time.Second)
		if n := events.Load(); n < 18 {
			t.Errorf("%d Events were written in 10 s, want about 20", n)
		}
		time.Sleep(time.Hour)
	})
}
