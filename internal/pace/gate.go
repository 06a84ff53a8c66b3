package pace

import (
	"context"
	"time"
)

// A Gate bounds how many calls are under way at once, and lets the most urgent
// of those who wait in first. The bound follows the server: each answer that it
// is too busy halves it, and calls that go well bring it back, one in about as
// many calls as it is wide.
//
// Of calls that nobody is in a hurry for it lets in an eighth of that: when the others
// are done, kubelets still have to tell what became of the pods.
//
// It runs no goroutine of its own. A nil Gate has no bound. Its methods may be
// called concurrently.
type Gate struct {
	most float64

	line
	bound     float64 // what the server takes now
	inside    int
	unhurried int       // of those inside
	closed    time.Time // nobody enters before
}

// NewGate returns a Gate that lets in most calls at once, at least one.
func NewGate(most int) *Gate {
	bound := float64(max(most, 1))
	return &Gate{most: bound, bound: bound}
}

// Enter returns when the caller may make its call. The caller tells how that
// went by calling leave, once: with zero, or with how long the server, being too
// busy, wants to be left alone. If ctx ends first Enter returns its cause.
func (g *Gate) Enter(ctx context.Context, p Priority) (leave func(busy time.Duration), err error) {
	if g == nil {
		return func(time.Duration) {}, nil
	}
	unhurried := 0
	if p.unhurried() {
		unhurried = 1
	}
	err = g.wait(ctx, p, func(now time.Time) time.Duration {
		switch {
		case now.Before(g.closed):
			return g.closed.Sub(now)
		case g.inside >= int(g.bound), unhurried > 0 && g.unhurried >= max(1, int(g.bound/8)):
			return forever // until somebody leaves
		}
		g.inside++
		g.unhurried += unhurried
		return 0
	})
	if err != nil {
		return nil, err
	}
	return func(busy time.Duration) { g.leave(busy, unhurried) }, nil
}

func (g *Gate) leave(busy time.Duration, unhurried int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.unhurried -= unhurried
	if busy > 0 {
		g.slowDown(busy)
	} else {
		g.bound = min(g.most, g.bound+1/g.bound)
	}
	g.wakeFirst()
}

// Busy tells what a server has answered to a call whose caller does not get to see
// the answer, because a client in between tries again: for how long the server,
// being too busy, wants to be left alone.
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
	// The answers of one crowd are one piece of news.
	if now := time.Now(); !now.Before(g.closed) {
		g.bound = max(1, g.bound/2)
		g.closed = now.Add(min(busy, forever))
	}
}
