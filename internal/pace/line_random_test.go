package pace

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Callers come, give up and leave at random, and the server is busy at times. Nobody waits while there is room, nobody
// has a place after giving it up, and all places are free at the end.
func TestWhateverHappensAGateForgetsNobody(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			g := NewGate(1+random.IntN(20), 1+random.IntN(40))
			var mu sync.Mutex
			var inside []func(time.Duration)
			type place struct {
				cancel        func() bool
				entered, gone bool
			}
			var places []*place
			came, left := 0, 0
			var all sync.WaitGroup
			priority := func() Priority {
				p := Priority{Class: random.IntN(4) - 1, Rank: random.IntN(4), Hangs: random.IntN(8) == 0}
				if k := random.IntN(4); k > 0 {
					p.Deadline = time.Unix(2_000_000_000+int64(k), 0)
				}
				return p
			}
			for range 300 {
				switch k := random.IntN(10); {
				case k < 3:
					pl := &place{}
					places = append(places, pl)
					came++
					pl.cancel = g.EnterAsync(priority(), func(leave func(time.Duration)) {
						mu.Lock()
						defer mu.Unlock()
						if pl.entered || pl.gone {
							t.Errorf("seed %d: entered %t, gave up %t", seed, pl.entered, pl.gone)
						}
						pl.entered = true
						inside = append(inside, leave)
					})
				case k < 5:
					came++
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(3000))*time.Millisecond)
					p := priority()
					all.Go(func() {
						defer cancel()
						leave, err := g.Enter(ctx, p)
						mu.Lock()
						defer mu.Unlock()
						if err == nil {
							inside = append(inside, leave)
						} else {
							left++
						}
					})
				case k == 5 && len(places) > 0:
					pl := places[random.IntN(len(places))]
					if pl.cancel() {
						mu.Lock()
						pl.gone = true
						left++
						mu.Unlock()
					} else if !pl.entered && !pl.gone {
						t.Errorf("seed %d: nobody was called, and cancel says so", seed)
					}
				case k == 6 && random.IntN(3) == 0:
					g.Busy(time.Duration(random.IntN(8000)) * time.Millisecond)
				default:
					mu.Lock()
					var leave func(time.Duration)
					if n := len(inside); n > 0 {
						k := random.IntN(n)
						leave = inside[k]
						inside[k] = inside[n-1]
						inside = inside[:n-1]
						left++
					}
					mu.Unlock()
					if leave != nil {
						busy := time.Duration(0)
						if random.IntN(15) == 0 {
							busy = time.Duration(random.IntN(8000)) * time.Millisecond
						}
						leave(busy)
					}
				}
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				synctest.Wait()
				mu.Lock()
				g.mu.Lock()
				if g.inside+g.hanging != len(inside) || came-left-len(inside) != g.length() {
					t.Errorf("seed %d: %d are inside and %d wait, want %d and %d", seed, g.inside+g.hanging, g.length(),
						len(inside), came-left-len(inside))
				}
				if open := !time.Now().Before(g.closed); open && g.inside < int(g.bound) {
					for lane := range g.lanes {
						now := time.Now()
						room := lane == mainLane || lane == hangingLane && g.hanging < max(1, int(g.bound/2)) ||
							lane != hangingLane && g.low < max(1, int(g.bound/8)) && !now.Before(g.nextLow(lane))
						if room && len(g.lanes[lane]) > 0 {
							t.Errorf("seed %d: %d wait in lane %d, and %d of %v are inside", seed, len(g.lanes[lane]), lane, g.inside, g.bound)
						}
					}
				}
				g.mu.Unlock()
				mu.Unlock()
			}
			for {
				mu.Lock()
				leaves := inside
				inside = nil
				mu.Unlock()
				for _, leave := range leaves {
					leave(0)
				}
				time.Sleep(6 * time.Second)
				synctest.Wait()
				if mu.Lock(); len(inside) == 0 {
					mu.Unlock()
					break
				}
				mu.Unlock()
			}
			all.Wait()
			if g.inside != 0 || g.hanging != 0 || g.low != 0 || len(g.classes) != 0 || g.length() != 0 {
				t.Errorf("seed %d: at the end %d are inside, %d low, %v, %d wait", seed, g.inside, g.low, g.classes, g.length())
			}
		})
	}
}
