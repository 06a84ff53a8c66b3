package pace

import (
	"context"
	"time"
)

// longestRest is how long one answer can close a gate. An API server asks for 1 to 32 s
// (https://github.com/kubernetes/kubernetes/blob/v1.34.0/staging/src/k8s.io/apiserver/pkg/util/flowcontrol/dropped_requests_tracker.go),
// and a proxy in between may ask for any time. But a drain may have two minutes in all,
// with 5 s in reserve. A server that is still busy then says so again, to half as many calls.
const longestRest = 5 * time.Second

// A Gate bounds how many calls are in flight at once. The most urgent caller that
// waits enters first. The bound follows the server: an answer that the server is too
// busy halves it, and calls that succeed widen it again, by one after about as many
// calls as the bound.
//
// Low-priority calls get at most an eighth of the slots, so that kubelets can still
// report the status of pods when the evictions are done.
//
// A call of a higher class than all calls inside enters beyond the bound. Else, with a
// bound of one, a call that nobody waits for could keep a cordon out until its timeout.
// There are four classes, so at most three calls are beyond the bound.
//
// It runs no goroutine. A nil Gate has no bound. Its methods may be called concurrently.
type Gate struct {
	most float64

	line
	bound   float64     // how many calls the server takes at present
	inside  int         // calls in flight
	classes map[int]int // how many of them, by class
	low     int         // how many of them have low priority
	closed  time.Time   // nobody enters before
}

// NewGate returns a Gate for at most most calls at once, and at least one.
func NewGate(most int) *Gate {
	bound := float64(max(most, 1))
	return &Gate{most: bound, bound: bound, classes: map[int]int{}}
}

// Enter returns when the caller may make its call. The caller must then call leave
// once: with 0, or, if the server is too busy, with how long it asked to wait, of which
// 5 s at most count. If ctx ends first, Enter returns the cause of ctx.
func (g *Gate) Enter(ctx context.Context, p Priority) (leave func(busy time.Duration), err error) {
	if g == nil {
		return func(time.Duration) {}, nil
	}
	low := 0
	if p.isLow() {
		low = 1
	}
	err = g.wait(ctx, p, func(now time.Time) time.Duration {
		switch {
		case now.Before(g.closed):
			return g.closed.Sub(now)
		case g.inside >= int(g.bound) && !g.above(p.Class), low > 0 && g.low >= max(1, int(g.bound/8)):
			return forever // until somebody leaves
		}
		g.inside++
		g.classes[p.Class]++
		g.low += low
		return 0
	})
	if err != nil {
		return nil, err
	}
	return func(busy time.Duration) { g.leave(busy, p.Class, low) }, nil
}

// above reports whether a class is higher than the classes of all calls inside.
func (g *Gate) above(class int) bool {
	for inside := range g.classes {
		if inside >= class {
			return false
		}
	}
	return true
}

func (g *Gate) leave(busy time.Duration, class, low int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.classes[class]--; g.classes[class] == 0 {
		delete(g.classes, class)
	}
	g.low -= low
	if busy > 0 {
		g.slowDown(busy)
	} else {
		g.bound = min(g.most, g.bound+1/g.bound)
	}
	g.wakeFirst()
}

// Busy tells the gate that the server is too busy, and how long it asked to wait. It is
// for an answer that the caller in the gate does not see, because a client in between
// tries again.
func (g *Gate) Busy(busy time.Duration) {
	if g == nil || busy <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slowDown(busy)
	g.wakeFirst()
}

func (g *Gate) slowDown(busy time.Duration) {
	// Many calls get the same answer at once. It counts once.
	if now := time.Now(); !now.Before(g.closed) {
		g.bound = max(1, g.bound/2)
		g.closed = now.Add(min(busy, longestRest))
	}
}
