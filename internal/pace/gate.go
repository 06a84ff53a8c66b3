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

// Answers after less than fastAnswer say that the server takes more calls at once, and those after more than slowAnswer
// that it does not. A control plane with many cores evicts a pod in 10 to 30 ms. One with two cores, where 64 calls are
// more than enough, takes 0.4 s for each of them.
const (
	fastAnswer = 100 * time.Millisecond
	slowAnswer = 250 * time.Millisecond
)

// While the server answers slowly on average, and for quiet after that, low-priority calls are limited: marks to one
// each markGap, Events to one each eventGap. A small control plane that answers evictions slowly has no room for what
// can be written later. After the last eviction it is still busy with the kubelets' reports about the pods.
const (
	quiet    = time.Second
	markGap  = 100 * time.Millisecond
	eventGap = 500 * time.Millisecond
)

// A call that may hang, and has no answer for lendAfter, lends its place to another, if no more calls than the bound
// have done so, and after lendAnyway in any case. An admission webhook may hang for half a minute, and the calls that
// it does not concern must not wait for it; but a server that takes seconds for each answer must not get calls without
// end.
const (
	lendAfter  = 2 * time.Second
	lendAnyway = 10 * time.Second
)

// A Gate bounds how many calls are in flight at once. The most urgent caller that
// waits enters first. The bound follows the server: an answer that the server is too
// busy halves it, and calls that succeed widen it again, by one after about as many
// calls as the bound. Beyond a first bound only fast answers widen it, while others wait, and
// slow ones narrow it again.
//
// Low-priority calls get at most an eighth of the slots, so that kubelets can still
// report the status of pods when the evictions are done. While answers are slow they enter one by one. Those that wait
// for one of these slots keep no other call out.
//
// A call of a higher class than all calls inside enters beyond the bound. Else, with a
// bound of one, a call that nobody waits for could keep a cordon out until its timeout.
// There are four classes, so at most three calls are beyond the bound.
//
// A call that may hang lends its place to another, see lendAfter. If the last one like it has hung, it takes none: of
// these half as many as the bound are in flight beside the others.
//
// A nil Gate has no bound. Its methods may be called concurrently.
type Gate struct {
	first, most float64 // bounds: that at the beginning, and the widest

	line
	bound   float64          // how many calls the server takes at present
	inside  int              // calls in flight, without those that have lent their place
	lent    int              // calls that have
	hanging int              // calls in flight that take no place, as they may hang again
	classes map[int]int      // how many of them, by class
	low     int              // how many of them have low priority
	usual   time.Duration    // what the last answers to other calls took, on average
	slow    time.Time        // when that was not fast, for the last time
	entered [lanes]time.Time // when a low-priority call of a lane last entered
	closed  time.Time        // no call enters before
	busy    time.Time        // when the server has said last that it is too busy
}

// NewGate returns a Gate for first calls at once, and at least one, which widens up to most.
func NewGate(first, most int) *Gate {
	first = max(first, 1)
	return &Gate{first: float64(first), most: float64(max(first, most)), bound: float64(first), classes: map[int]int{}}
}

// Bound returns how many calls may be in flight at present.
func (g *Gate) Bound() int {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(g.bound)
}

// Enter returns when the caller may make its call. The caller must then call leave
// once: with 0, or, if the server is too busy, with how long it asked to wait, of which
// 5 s at most count. If ctx ends first, Enter returns the cause of ctx.
func (g *Gate) Enter(ctx context.Context, p Priority) (leave func(busy time.Duration), err error) {
	if g == nil {
		return func(time.Duration) {}, nil
	}
	if err := g.wait(ctx, g.waiterOf(p)); err != nil {
		return nil, err
	}
	return g.leaving(p), nil
}

// EnterAsync is Enter for a caller that does not block: entered is called when the caller may make its call, at once or
// on another goroutine. It must not block, nor use the gate. cancel gives the place up, and returns whether entered
// will not be called.
func (g *Gate) EnterAsync(p Priority, entered func(leave func(busy time.Duration))) (cancel func() bool) {
	if g == nil {
		entered(func(time.Duration) {})
		return func() bool { return false }
	}
	w := g.waiterOf(p)
	w.acquired = func() { entered(g.leaving(p)) }
	g.mu.Lock()
	defer g.mu.Unlock()
	g.join(w)
	return func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.withdraw(w)
	}
}

// waiterOf returns a waiter for a call of a priority.
func (g *Gate) waiterOf(p Priority) *waiter {
	tryAcquire := func(now time.Time) time.Duration { return g.tryEnter(p, now) }
	return &waiter{priority: p, tryAcquire: tryAcquire, lane: p.lane()}
}

// tryEnter lets a call in and returns 0, if there is room for it. Otherwise it returns how long to wait. The caller
// holds mu.
func (g *Gate) tryEnter(p Priority, now time.Time) time.Duration {
	lane, low := p.lane(), p.isLow()
	switch {
	case now.Before(g.closed):
		return g.closed.Sub(now)
	case lane == hangingLane && g.hanging >= max(1, int(g.bound/2)):
		return forever
	case lane == hangingLane:
		g.hanging++
		return 0
	case g.inside >= int(g.bound) && !g.above(p.Class), low && g.low >= max(1, int(g.bound/8)):
		return forever // until a call leaves
	case low && now.Before(g.slow.Add(quiet)) && now.Before(g.nextLow(lane)):
		return g.nextLow(lane).Sub(now)
	}
	g.inside++
	g.classes[p.Class]++
	if low {
		g.low++
		g.entered[lane] = now
	}
	return 0
}

// nextLow is when the next call of a lane may enter while answers are slow.
func (g *Gate) nextLow(lane int) time.Time {
	gap := markGap
	if lane == asideLane {
		gap = eventGap
	}
	return g.entered[lane].Add(gap)
}

// A call is in flight.
type call struct {
	gate     *Gate
	priority Priority
	entered  time.Time
	late     *time.Timer // nil: it lends its place to nobody

	lent, over bool // the gate's mu guards them
}

// leaving is what a call that enters now is to call at its end.
func (g *Gate) leaving(p Priority) (leave func(busy time.Duration)) {
	c := &call{gate: g, priority: p, entered: time.Now()}
	if p.Lends && p.lane() != hangingLane {
		c.late = time.AfterFunc(lendAfter, c.lend)
	}
	return c.leave
}

// lend lends the call's place to another.
func (c *call) lend() {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case c.over:
		return
	case g.lent >= int(g.bound) && time.Since(c.entered) < lendAnyway:
		time.AfterFunc(lendAnyway-lendAfter, c.lend)
		return
	}
	c.lent = true
	g.lent++
	g.exit(c.priority)
	g.slow = time.Now()
	if g.bound > g.first {
		g.bound = max(g.first, g.bound-1)
	}
	g.serve()
}

func (c *call) leave(busy time.Duration) {
	if c.late != nil {
		c.late.Stop()
	}
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	c.over = true
	switch {
	case c.lent:
		g.lent--
	case c.priority.lane() == hangingLane:
		g.hanging--
	default:
		g.answered(busy, time.Since(c.entered), c.priority)
		busy = 0
	}
	if busy > 0 {
		g.slowDown(busy)
	}
	g.serve()
}

// exit gives the place of a call free. The caller holds mu.
func (g *Gate) exit(p Priority) {
	g.inside--
	if g.classes[p.Class]--; g.classes[p.Class] == 0 {
		delete(g.classes, p.Class)
	}
	if p.isLow() {
		g.low--
	}
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

// answered takes in the end of a call. The caller holds mu.
func (g *Gate) answered(busy, took time.Duration, p Priority) {
	g.exit(p)
	if !p.isLow() {
		g.usual += (took - g.usual) / 8 // one slow answer of many tells nothing
		if g.usual > fastAnswer {
			g.slow = time.Now()
		}
	}
	switch {
	case busy > 0:
		g.slowDown(busy)
	case !p.isLow(): // an Event may be refused alone, which tells nothing of the server
		g.succeeded(took)
	}
}

// succeeded has the bound follow a call that the server was not too busy for. The caller holds mu.
func (g *Gate) succeeded(took time.Duration) {
	switch step := 1 / g.bound; {
	case g.bound < g.first:
		g.bound = min(g.first, g.bound+step)
	case took < fastAnswer && g.length() > 0:
		g.bound = min(g.most, g.bound+step)
	case took > slowAnswer:
		g.bound = max(g.first, g.bound-step)
	}
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
	g.serve()
}

// BusySince reports whether the server has said since then that it is too busy.
func (g *Gate) BusySince(at time.Time) bool {
	if g == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.busy.Before(at)
}

func (g *Gate) slowDown(busy time.Duration) {
	now := time.Now()
	g.busy = now
	// Many calls get the same answer at once. It counts once.
	if !now.Before(g.closed) {
		g.bound = max(1, g.bound/2)
		g.closed = now.Add(min(busy, longestRest))
	}
}
