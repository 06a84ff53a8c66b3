package kubesim

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestALevelHasItsShareOfTheSeats(t *testing.T) {
	for tier, want := range map[string][3]int{
		"none": {0, 0, 0}, "default": {245, 98, 66}, "xl": {694, 278, 186}, "2xl": {1388, 556, 371}, "4xl": {2776, 1111, 742},
	} {
		got := [3]int{ServiceAccounts.seats(Tiers[tier]), KubeSystem.seats(Tiers[tier]), Own.seats(Tiers[tier])}
		if got != want {
			t.Errorf("%s: %v, want %v", tier, got, want)
		}
	}
}

func TestWhatRequestsCost(t *testing.T) {
	for _, r := range []struct {
		name      string
		got, want cost
	}{
		{"a write that few watch", writeCost(9, 10), cost{seats: 1}},
		{"a write that 10 watch", writeCost(10, 10), cost{seats: 1, after: 1, lasts: 5 * time.Millisecond}},
		{"a write that 11 watch", writeCost(11, 10), cost{seats: 1, after: 2, lasts: 5 * time.Millisecond}},
		{"a write that 100 watch", writeCost(100, 10), cost{seats: 1, after: 10, lasts: 5 * time.Millisecond}},
		{"a write that 15,000 watch", writeCost(15_000, 10), cost{seats: 1, after: 10, lasts: 750 * time.Millisecond}},
		{"the same in a narrow level", writeCost(15_000, 5), cost{seats: 1, after: 5, lasts: 1500 * time.Millisecond}},
		{"a short list", listCost(10, 2000, 10), cost{seats: 1}},
		{"a list of 0.3 MB", listCost(150, 2000, 10), cost{seats: 3}},
		{"a list of all", listCost(225_000, 2000, 10), cost{seats: 10}},
	} {
		if r.got != r.want {
			t.Errorf("%s: %+v, want %+v", r.name, r.got, r.want)
		}
	}
	for seats, want := range map[int]int{3: 1, 12: 2, 30: 5, 66: 10, 694: 10} {
		if got := width(seats, 6); got != want {
			t.Errorf("a request takes %d of %d seats, want %d", got, seats, want)
		}
	}
}

// played are requests that came at once: when each left, and how long those that were refused are to wait.
type played struct {
	Left    []time.Duration
	Refused []int
}

// play lets so many requests come at once, of which each is worked on for a while.
func play(t *testing.T, f *flowControl, count int, c cost, worked time.Duration) (p played) {
	t.Helper()
	begin, results := time.Now(), make(chan any, count)
	for range count {
		go func() {
			retryAfter, ok := f.enter(t.Context(), c)
			if !ok {
				results <- retryAfter
				return
			}
			<-time.After(worked)
			f.leave(c)
			results <- time.Since(begin)
		}()
	}
	for range count {
		switch result := (<-results).(type) {
		case int:
			p.Refused = append(p.Refused, result)
		case time.Duration:
			p.Left = append(p.Left, result)
		}
	}
	return p
}

func TestRequestsWaitForSeats(t *testing.T) {
	const ms = time.Millisecond
	for _, r := range []struct {
		name   string
		flow   *flowControl
		count  int
		cost   cost
		worked time.Duration
		want   played
	}{
		{"two at once", &flowControl{seats: 2, queue: 10}, 5, read, 10 * ms, played{Left: []time.Duration{10 * ms, 10 * ms, 20 * ms, 20 * ms, 30 * ms}}},
		{"wide ones one after another", &flowControl{seats: 3, queue: 10}, 3, cost{seats: 2}, 10 * ms, played{Left: []time.Duration{10 * ms, 20 * ms, 30 * ms}}},
		{"one that is wider than all", &flowControl{seats: 3, queue: 10}, 2, cost{seats: 10}, 10 * ms, played{Left: []time.Duration{10 * ms, 20 * ms}}},
		{"seats are kept for the watches", &flowControl{seats: 10, queue: 10}, 3, writeCost(15_000, 10), 10 * ms, played{Left: []time.Duration{10 * ms, 770 * ms, 1530 * ms}}},
		{"no limit", &flowControl{}, 3, cost{seats: 9}, 10 * ms, played{Left: []time.Duration{10 * ms, 10 * ms, 10 * ms}}},
		{"the queue is full", &flowControl{seats: 1, queue: 1}, 4, read, 10 * ms, played{Left: []time.Duration{10 * ms, 20 * ms}, Refused: []int{1, 1}}},
		{"they wait too long", &flowControl{seats: 1, queue: 2}, 3, read, 20 * time.Second, played{Left: []time.Duration{20 * time.Second}, Refused: []int{1, 1}}},
	} {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if diff := gocmp.Diff(r.want, play(t, r.flow, r.count, r.cost, r.worked)); diff != "" {
					t.Error(diff)
				}
				<-time.After(time.Minute)
				synctest.Wait()
				if r.flow.inUse != 0 || len(r.flow.waiting) != 0 {
					t.Errorf("in the end %d seats are in use, and %d requests wait", r.flow.inUse, len(r.flow.waiting))
				}
			})
		})
	}
}

func TestARequestThatIsGivenUpMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flowControl{seats: 2, queue: 10}
		f.enter(t.Context(), read)
		ctx, giveUp := context.WithCancel(t.Context())
		go f.enter(ctx, cost{seats: 2})
		synctest.Wait()
		var entered atomic.Bool
		go func() {
			f.enter(t.Context(), read)
			entered.Store(true)
		}()
		synctest.Wait()
		if entered.Load() {
			t.Error("a narrow request came before a wide one that waited already")
		}
		giveUp()
		synctest.Wait()
		if !entered.Load() {
			t.Error("the next request waits for one that was given up")
		}
	})
}

func TestWhoIsRefusedOftenIsToWaitLonger(t *testing.T) {
	var r refusals
	second := func(n int64, count int) (retryAfter int) {
		for range count {
			retryAfter = r.note(time.Unix(1000+n, 0))
		}
		return retryAfter
	}
	var got []int
	for n, count := range []int{1, 10, 10, 10, 50, 50, 50, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1} {
		got = append(got, second(int64(n), count))
	}
	// A second's refusals count from the next one on. The pause is doubled at most once in its own time.
	want := []int{1, 1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := second(1000, 1); got != 7 {
		t.Errorf("after a long time: %d s", got)
	}
}
