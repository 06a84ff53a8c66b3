package pace

import (
	stdcmp "cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestABurstGoesAtOnceAndTheRestAtTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(10, 3)
		start := time.Now()
		var granted []time.Duration
		for range 5 {
			wait(t, l, Priority{})
			granted = append(granted, time.Since(start))
		}
		want := []time.Duration{0, 0, 0, 100 * time.Millisecond, 200 * time.Millisecond}
		if diff := cmp.Diff(want, granted); diff != "" {
			t.Errorf("tokens (-want +got):\n%s", diff)
		}
	})
}

func TestTheMoreUrgentGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1, 1)
		wait(t, l, Priority{})
		near, far := time.Now().Add(time.Minute), time.Now().Add(time.Hour)
		order := queueUp(t, l, []caller{
			{"no deadline", Priority{}},
			{"far", Priority{Deadline: far}},
			{"near, first", Priority{Deadline: near}},
			{"near, to be concluded", Priority{Deadline: near, Rank: Conclude}},
			{"near, to be begun", Priority{Deadline: near, Rank: Begin}},
			{"near, second", Priority{Deadline: near}},
			{"urgent, no deadline", Priority{Class: 1}},
			{"urgent, far", Priority{Class: 1, Deadline: far}},
			{"aside", Priority{Class: Aside, Deadline: near}},
		})
		want := []string{
			"urgent, far", "urgent, no deadline",
			"near, first", "near, second", "near, to be begun", "near, to be concluded", "far", "no deadline",
			"aside",
		}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("order of tokens (-want +got):\n%s", diff)
		}
	})
}

func TestACallerWhoGivesUpReturnsItsCauseAndCostsNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1, 1)
		wait(t, l, Priority{})
		start := time.Now()
		lost := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		var gone, next time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := l.Wait(ctx, Priority{Class: 1}); !errors.Is(err, lost) {
				t.Errorf("Wait = %v, want %v", err, lost)
			}
			gone = time.Since(start)
		})
		synctest.Wait()
		wg.Go(func() {
			wait(t, l, Priority{})
			next = time.Since(start)
		})
		time.Sleep(500 * time.Millisecond)
		cancel(lost)
		wg.Wait()
		if gone != 500*time.Millisecond || next != time.Second {
			t.Errorf("the first left after %v, the second had a token after %v; want 500ms and 1s", gone, next)
		}
	})
}

func TestAnEndedContextTakesNoToken(t *testing.T) {
	l := New(1, 1)
	lost := errors.New("lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if err := l.Wait(ctx, Priority{}); !errors.Is(err, lost) {
		t.Errorf("Wait = %v, want %v", err, lost)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		wait(t, l, Priority{})
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the token was gone: waited %v", waited)
		}
	})
}

func TestTheZeroValueHasNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := new(Limiter), time.Now()
		for range 1000 {
			wait(t, l, Priority{})
		}
		if waited := time.Since(start); waited > time.Millisecond {
			t.Errorf("1,000 tokens took %v", waited)
		}
	})
}

// TestProperties drives limiters with callers that come, wait and give up at
// random, and checks what must hold of any history: no window of time sees more
// tokens than the bucket allows, nobody is passed by a less urgent caller,
// nobody who stays is forgotten.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]int{1, 3, 7, 1000}).Draw(rt, "rate")
		burst := rapid.IntRange(1, 5).Draw(rt, "burst")
		visits := rapid.SliceOfN(rapid.Custom(drawVisit), 1, 30).Draw(rt, "visits")

		play(t, New(rate, burst), visits)

		var granted []visit
		for _, v := range visits {
			if v.err == nil {
				granted = append(granted, v)
			} else if v.left != v.come+v.patience {
				rt.Errorf("a caller that gives up after %v left after %v: %v", v.patience, v.left-v.come, v.err)
			}
		}
		slices.SortStableFunc(granted, func(a, b visit) int { return stdcmp.Compare(a.left, b.left) })
		for i := range granted {
			for j := i; j < len(granted); j++ {
				window := granted[j].left - granted[i].left
				if allowed := float64(burst) + float64(rate)*window.Seconds(); float64(j-i+1) > allowed+1e-9 {
					rt.Errorf("%d tokens in %v, allowed are %v", j-i+1, window, allowed)
				}
			}
		}
		for _, g := range granted {
			for _, v := range visits {
				passed := v.come < g.left && v.left > g.left
				if passed && v.before(g) {
					rt.Errorf("at %v the token of %+v went to %+v", g.left, v, g)
				}
			}
		}
	})
}

// A visit is one caller of Wait; times count from the start of the history.
type visit struct {
	come, patience time.Duration
	class          int
	deadline       time.Duration // 0 is none

	left time.Duration
	err  error
}

func drawVisit(rt *rapid.T) visit {
	return visit{
		come:     milliseconds(rt, "come", 0, 5000),
		patience: milliseconds(rt, "patience", 1, 60_000) + time.Nanosecond,
		class:    rapid.IntRange(-1, 1).Draw(rt, "class"),
		deadline: milliseconds(rt, "deadline", 0, 3) * 1000,
	}
}

func milliseconds(rt *rapid.T, label string, least, most int) time.Duration {
	return time.Duration(rapid.IntRange(least, most).Draw(rt, label)) * time.Millisecond
}

// before says who should be served first of two that wait.
func (v visit) before(w visit) bool {
	switch {
	case v.class != w.class:
		return v.class > w.class
	case v.deadline != w.deadline:
		return v.deadline != 0 && (w.deadline == 0 || v.deadline < w.deadline)
	default:
		return v.come < w.come
	}
}

func (v visit) at(epoch time.Time) Priority {
	p := Priority{Class: v.class}
	if v.deadline > 0 {
		p.Deadline = epoch.Add(v.deadline)
	}
	return p
}

// play lets the visits happen in virtual time and fills in how each ended.
func play(t *testing.T, l *Limiter, visits []visit) {
	synctest.Test(t, func(t *testing.T) {
		epoch := time.Now()
		var wg sync.WaitGroup
		for i := range visits {
			v := &visits[i]
			wg.Go(func() {
				time.Sleep(v.come)
				ctx, cancel := context.WithTimeout(t.Context(), v.patience)
				defer cancel()
				v.err = l.Wait(ctx, v.at(epoch))
				v.left = time.Since(epoch)
			})
		}
		wg.Wait()
		if n := l.length(); n > 0 {
			t.Errorf("%d callers are still in the queue", n)
		}
	})
}

type caller struct {
	name     string
	priority Priority
}

// queueUp has the callers wait one after the other and returns their names in
// the order in which they got a token.
func queueUp(t *testing.T, l *Limiter, callers []caller) []string {
	t.Helper()
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	for _, c := range callers {
		wg.Go(func() {
			wait(t, l, c.priority)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, c.name)
		})
		synctest.Wait()
	}
	wg.Wait()
	return order
}

func wait(t *testing.T, l *Limiter, p Priority) {
	t.Helper()
	if err := l.Wait(t.Context(), p); err != nil {
		t.Errorf("Wait = %v", err)
	}
}
