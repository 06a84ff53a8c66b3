package pace

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestAGateLetsInNoMoreThanItsBoundAndTheMostUrgentFirst(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		most := rapid.IntRange(1, 5).Draw(rt, "most")
		classes := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 30).Draw(rt, "classes")
		synctest.Test(t, func(t *testing.T) {
			g := NewGate(most, most)
			var mu sync.Mutex
			inside, peak := 0, 0
			var order []int
			var all sync.WaitGroup
			first := make([]func(time.Duration), most)
			for k := range first { // all wait behind these, so that their order counts
				first[k], _ = g.Enter(t.Context(), Priority{Class: 9})
			}
			for _, class := range classes {
				all.Go(func() {
					leave, err := g.Enter(t.Context(), Priority{Class: class})
					if err != nil {
						rt.Error(err)
						return
					}
					mu.Lock()
					inside++
					peak = max(peak, inside)
					order = append(order, class)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					inside--
					mu.Unlock()
					leave(0)
				})
			}
			synctest.Wait()
			for _, leave := range first {
				leave(0)
				synctest.Wait()
			}
			all.Wait()
			if peak > most {
				rt.Errorf("%d at once, the bound is %d", peak, most)
			}
			if most == 1 && !slices.IsSortedFunc(order, func(a, b int) int { return b - a }) {
				rt.Errorf("entered in the order %v", order)
			}
		})
	})
}

func TestLowPriorityCallsGetAnEighthOfTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(16, 16)
		entered := func(p Priority) (leaves []func(time.Duration)) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var all sync.WaitGroup
			var mu sync.Mutex
			for range 20 {
				all.Go(func() {
					if leave, err := g.Enter(ctx, p); err == nil {
						mu.Lock()
						defer mu.Unlock()
						leaves = append(leaves, leave)
					}
				})
			}
			synctest.Wait()
			cancel()
			all.Wait()
			return leaves
		}
		for _, low := range []Priority{{Rank: Conclude}, {Class: Aside}} {
			few := entered(low)
			if len(few) != 2 {
				t.Errorf("%d of %+v at once, want an eighth of 16", len(few), low)
			}
			others := entered(Priority{})
			if len(others) != 14 {
				t.Errorf("%d others beside them, want the rest", len(others))
			}
			for _, leave := range slices.Concat(few, others) {
				leave(0)
			}
		}
		if more := len(entered(Priority{})); more != 16 {
			t.Errorf("%d at once after all have left, want all 16", more)
		}
	})
}

func TestABusyServerGetsNoCallForAWhileAndThenHalfAsMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(4, 4)
		var leaves []func(time.Duration)
		for range 4 {
			leave, err := g.Enter(t.Context(), Priority{})
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		start := time.Now()
		for _, leave := range leaves {
			leave(3 * time.Second)
		}
		entered := 0
		for range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			if _, err := g.Enter(ctx, Priority{}); err == nil {
				entered++
				if time.Since(start) < 3*time.Second {
					t.Errorf("entered after %s", time.Since(start))
				}
			}
			cancel()
		}
		if entered != 2 {
			t.Errorf("%d entered, want half of 4", entered)
		}
	})
}

// Whatever stands between the API server and us can send Retry-After: 3600.
func TestNoAnswerClosesAGateForLongerThanAFewSeconds(t *testing.T) {
	for name, tell := range map[string]func(g *Gate, busy time.Duration){
		"told by who leaves": func(g *Gate, busy time.Duration) {
			leave, err := g.Enter(t.Context(), Priority{})
			if err != nil {
				t.Fatal(err)
			}
			leave(busy)
		},
		"told by another": (*Gate).Busy,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGate(4, 4)
				tell(g, time.Hour)
				begin := time.Now()
				leave, err := g.Enter(t.Context(), Priority{Class: Foremost})
				if err != nil {
					t.Fatal(err)
				}
				leave(0)
				if waited := time.Since(begin); waited != longestRest {
					t.Errorf("the next call waited %s, want %s", waited, longestRest)
				}
			})
		})
	}
}

func TestACallOfAHigherClassThanAllInsideNeedNotWaitForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1, 1)
		enters := func(class int) (leave func(time.Duration), entered bool) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			leave, err := g.Enter(ctx, Priority{Class: class})
			return leave, err == nil
		}
		var leaves []func(time.Duration)
		for _, class := range []int{Aside, Normal, Urgent, Foremost} {
			leave, entered := enters(class)
			if !entered {
				t.Fatalf("class %d waits for lower ones", class)
			}
			leaves = append(leaves, leave)
			if _, entered := enters(class); entered {
				t.Errorf("a second call of class %d has entered", class)
			}
		}
		if _, entered := enters(Normal); entered {
			t.Error("a call of a lower class than one inside has entered beside the bound")
		}
		for _, leave := range leaves {
			leave(0)
		}
		if leave, entered := enters(Normal); !entered {
			t.Error("the gate is taken though all have left")
		} else {
			leave(0)
		}
	})
}

func TestAGateOpensAgainAsCallsGoWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(8, 8)
		for range 10 {
			leave, _ := g.Enter(t.Context(), Priority{})
			leave(time.Second)
		}
		for range 100 {
			leave, _ := g.Enter(t.Context(), Priority{})
			leave(0)
		}
		if int(g.bound) != 8 {
			t.Errorf("the bound is %v after 100 calls that went well", g.bound)
		}
	})
}

func TestACallerThatStopsWaitingAtAGateTakesNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1, 1)
		leave, _ := g.Enter(t.Context(), Priority{})
		cause := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if _, err := g.Enter(ctx, Priority{Class: 1}); !errors.Is(err, cause) {
			t.Errorf("Enter = %v, want %v", err, cause)
		}
		leave(0)
		if leave, err := g.Enter(t.Context(), Priority{}); err != nil {
			t.Error(err)
		} else {
			leave(0)
		}
	})
}

func TestANilGateIsOpen(t *testing.T) {
	leave, err := (*Gate)(nil).Enter(t.Context(), Priority{})
	if err != nil {
		t.Fatal(err)
	}
	leave(time.Hour)
}

// work has n callers make calls of that length, one after another, until the time is over, and returns the widest bound.
func work(t *testing.T, g *Gate, n int, call, lasts time.Duration) (widest int) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	until := time.Now().Add(lasts)
	for range n {
		all.Go(func() {
			for time.Now().Before(until) {
				leave, err := g.Enter(t.Context(), Priority{})
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(call)
				bound := g.Bound()
				mu.Lock()
				widest = max(widest, bound)
				mu.Unlock()
				leave(0)
			}
		})
	}
	all.Wait()
	return widest
}

func TestAGateWidensWhileAnswersAreFast(t *testing.T) {
	for name, test := range map[string]struct {
		callers int
		call    time.Duration
		want    int
	}{
		"fast answers":              {600, 20 * time.Millisecond, 256},
		"slow answers":              {600, 400 * time.Millisecond, 64},
		"answers in between":        {600, 150 * time.Millisecond, 64},
		"few callers, nobody waits": {60, 20 * time.Millisecond, 64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := work(t, NewGate(64, 256), test.callers, test.call, 20*time.Second); got != test.want {
					t.Errorf("the bound became %d, want %d", got, test.want)
				}
			})
		})
	}
}

func TestAGateIsNarrowAgainWhenAnswersBecomeSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(64, 256)
		if wide := work(t, g, 600, 20*time.Millisecond, 20*time.Second); wide != 256 {
			t.Fatalf("the bound became %d", wide)
		}
		work(t, g, 600, time.Second, 5*time.Minute)
		if bound := g.Bound(); bound != 64 {
			t.Errorf("the bound is %d after minutes of slow answers", bound)
		}
		leave, _ := g.Enter(t.Context(), Priority{})
		leave(time.Second)
		if bound := g.Bound(); bound != 32 {
			t.Errorf("the bound is %d when the server is too busy", bound)
		}
	})
}

// hang has calls enter that have no answer for a time, and returns after how many seconds each has entered, and how many
// were in flight at once.
func hang(t *testing.T, g *Gate, calls int, p Priority, answer time.Duration, busy time.Duration) (entered []int, most int) {
	t.Helper()
	begin, inFlight := time.Now(), 0
	var mu sync.Mutex
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			leave, err := g.Enter(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			entered = append(entered, int(time.Since(begin)/time.Second))
			inFlight++
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(answer)
			mu.Lock()
			inFlight--
			mu.Unlock()
			leave(busy)
		})
	}
	all.Wait()
	slices.Sort(entered)
	return entered, most
}

func TestACallThatHangsLendsItsPlace(t *testing.T) {
	for name, test := range map[string]struct {
		priority Priority
		answer   time.Duration
		want     []int
	}{
		"after two seconds, at most as many as the bound, and the others after ten": {
			Priority{Lends: true}, 35 * time.Second, []int{0, 0, 2, 2, 12, 12},
		},
		"a slow server has at most twice the bound": {Priority{Lends: true}, 5 * time.Second, []int{0, 0, 2, 2, 7, 7}},
		"none that does not lend":                   {Priority{}, 35 * time.Second, []int{0, 0, 35, 35, 70, 70}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGate(2, 2)
				entered, _ := hang(t, g, len(test.want), test.priority, test.answer, 0)
				if !slices.Equal(entered, test.want) {
					t.Errorf("entered after %v s, want %v", entered, test.want)
				}
				if g.inside != 0 || g.lent != 0 || len(g.classes) != 0 {
					t.Errorf("%d are inside, %d have lent, classes %v", g.inside, g.lent, g.classes)
				}
			})
		})
	}
}

func TestASlowServerGetsNoMoreThanTwiceTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, most := hang(t, NewGate(8, 64), 200, Priority{Lends: true}, 7*time.Second, 0); most > 16 {
			t.Errorf("%d in flight at once, want 16 at most", most)
		}
	})
}

func TestAPlaceThatIsLentSaysNothingGoodOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(8, 64)
		g.Busy(time.Second)
		hang(t, g, 8, Priority{Lends: true}, 3*time.Second, 0)
		if n := g.Bound(); n > 4 {
			t.Errorf("the bound is %d after calls that hang, want 4 as before", n)
		}
		hang(t, g, 4, Priority{Lends: true}, 3*time.Second, time.Second)
		if n := g.Bound(); n > 2 {
			t.Errorf("the bound is %d though the answers that came late said that the server is busy", n)
		}
	})
}

// It may hang again, whatever is urgent about it: of those that hang there may be more than the bound.
func TestACallThatHasHungBeforeTakesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(4, 4)
		entered, most := hang(t, g, 6, Priority{Hangs: true, Lends: true, Deadline: time.Unix(1, 0)}, 35*time.Second, 0)
		if want := []int{0, 0, 35, 35, 70, 70}; !slices.Equal(entered, want) || most != 2 {
			t.Errorf("entered after %v s, %d at once, want %v, half of the bound", entered, most, want)
		}
		var leaves []func(time.Duration)
		for range 2 {
			leave, err := g.Enter(t.Context(), Priority{Hangs: true})
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		waits := false
		cancel := g.EnterAsync(Priority{Hangs: true, Deadline: time.Unix(1, 0)}, func(func(time.Duration)) { waits = true })
		if entered, _ := hang(t, g, 4, Priority{}, time.Second, 0); !slices.Equal(entered, []int{0, 0, 0, 0}) || waits {
			t.Errorf("the others entered after %v s, want all at once", entered)
		}
		if !cancel() {
			t.Error("it has entered")
		}
		leaves[0](0)
		leaves[1](5 * time.Second)
		if now := time.Now(); !g.BusySince(now) || g.BusySince(now.Add(time.Second)) {
			t.Error("it does not say since when the server is busy")
		}
		if n := g.Bound(); n != 2 || g.hanging != 0 || g.inside != 0 {
			t.Errorf("bound %d, %d hang, %d are inside after an answer that the server is busy", n, g.hanging, g.inside)
		}
	})
}
