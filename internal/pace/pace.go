// Package pace limits calls to an API: a [Limiter] by rate, a [Gate] by number. Where
// several callers wait, the most urgent one goes first.
package pace

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Classes for callers that share a [Gate] without knowing each other.
const (
	Aside  = iota - 1 // nobody waits for the call
	Normal            // the zero value
	Urgent
	Foremost
)

// Ranks for callers with the same class and deadline. Work that has begun goes before
// work that has not, so that a crowd is finished one after the other.
const (
	Force    = iota - 1 // is the last that can be done
	Advance             // goes on with work that has begun
	Begin               // begins work
	Retry               // was refused before, and may be refused again
	Conclude            // only records that all is done
)

// Priority says who goes first where several wait. The zero value has class Normal and
// no deadline.
type Priority struct {
	// Class decides first: the greater one goes first.
	Class int
	// Deadline decides within a class: the nearer one goes first, and no deadline goes
	// last. It does not end a wait; the context does.
	Deadline time.Time
	// Rank decides where the deadlines are equal: the lower one goes first.
	Rank int
	// Lends: the call may hang, and lends its place in a [Gate] to another then.
	Lends bool
	// Hangs: the last call like it has hung. It takes no place from others.
	Hangs bool
}

// lane is where the call waits. Those of low priority, or that hang, keep out no others: there may be slots for these.
// Marks keep out no Events, and Events no marks.
func (p Priority) lane() int {
	switch {
	case p.Hangs:
		return hangingLane
	case p.Class == Aside:
		return asideLane
	case p.Rank == Conclude:
		return lowLane
	}
	return mainLane
}

// isLow reports whether the call only records what has already happened.
func (p Priority) isLow() bool { return p.lane() == lowLane || p.lane() == asideLane }

// Same reports whether p and q are equally urgent.
func (p Priority) Same(q Priority) bool { return p.compare(q) == 0 }

// compare is negative where p goes before q.
func (p Priority) compare(q Priority) int {
	if c := cmp.Compare(q.Class, p.Class); c != 0 {
		return c
	}
	switch {
	case p.Deadline.Equal(q.Deadline):
		return cmp.Compare(p.Rank, q.Rank)
	case p.Deadline.IsZero():
		return +1
	case q.Deadline.IsZero():
		return -1
	}
	return p.Deadline.Compare(q.Deadline)
}

// A Limiter is a token bucket. The next token goes to the most urgent caller that
// waits, and among equal ones to the first. Urgent callers that come at the full rate
// therefore starve the others.
//
// It runs no goroutine. The zero value has no limit. Its methods may be called
// concurrently.
type Limiter struct {
	// The state of the bucket is one instant, as in the generic cell rate algorithm of
	// ITU-T I.371: sums of durations are exact, sums of fractions of tokens are not.

	interval time.Duration // from one token to the next; 0 is no limit
	slack    time.Duration // how far ahead of the interval a burst may run

	line
	due time.Time // when the bucket is full again
}

// New returns a Limiter that hands out perSecond tokens in each second, and up
// to burst at once after a rest. Both are at least 1.
func New(perSecond, burst int) *Limiter {
	interval := (time.Second + time.Duration(perSecond) - 1) / time.Duration(perSecond)
	return &Limiter{interval: interval, slack: interval * time.Duration(burst-1)}
}

// forever is the longest wait. It is far beyond the life of a process, and
// small enough to be added to an instant.
const forever = 100 * 365 * 24 * time.Hour

// Wait returns nil when the caller has a token. If ctx ends first, it returns the cause
// of ctx, and no token is spent.
func (l *Limiter) Wait(ctx context.Context, p Priority) error {
	return l.wait(ctx, &waiter{priority: p, tryAcquire: func(now time.Time) time.Duration {
		if wait := l.due.Add(-l.slack).Sub(now); wait > 0 {
			return wait
		}
		if now.After(l.due) {
			l.due = now
		}
		l.due = l.due.Add(l.interval)
		return 0
	}})
}

// line is where callers wait, in the order of their priorities. It has no goroutine: each change of what they wait for
// must call serve. A caller in one lane does not keep out the callers in another one.
type line struct {
	mu      sync.Mutex       // also guards the type that embeds line
	lanes   [lanes][]*waiter // the most urgent one first
	arrived uint64
	alarm   *time.Timer // calls serve when the first is to look again; nil: nobody has waited for a time so far
}

// The lanes of a line.
const (
	mainLane = iota
	lowLane
	asideLane // of those of low priority whom nobody waits for
	hangingLane
	lanes
)

// waiter is somebody in the line.
type waiter struct {
	priority Priority
	// tryAcquire takes what is waited for and returns 0, or returns how long to wait before the next try. It is called
	// with mu held, and only for the first of each lane.
	tryAcquire func(now time.Time) time.Duration
	// acquired is called then, with mu held: it must not block.
	acquired func()
	// over reports whether nobody waits any more, although the waiter is still in the line; nil: that cannot be.
	over func() bool
	lane int

	arrival uint64 // no two have the same
}

// compare is negative where w goes before another waiter.
func (w *waiter) compare(other *waiter) int {
	return cmp.Or(w.priority.compare(other.priority), cmp.Compare(w.arrival, other.arrival))
}

// join puts a waiter in the line. The caller holds mu.
func (l *line) join(w *waiter) {
	w.arrival = l.arrived
	l.arrived++
	lane := &l.lanes[w.lane]
	at, _ := slices.BinarySearchFunc(*lane, w, (*waiter).compare)
	*lane = slices.Insert(*lane, at, w)
	l.serve()
}

// withdraw takes a waiter out of the line. It returns false if the waiter has what it waited for. The caller holds mu.
func (l *line) withdraw(w *waiter) bool {
	lane := &l.lanes[w.lane]
	at, waits := slices.BinarySearchFunc(*lane, w, (*waiter).compare)
	if waits {
		*lane = slices.Delete(*lane, at, at+1)
		l.serve()
	}
	return waits
}

// length is how many wait.
func (l *line) length() (n int) {
	for k := range l.lanes {
		n += len(l.lanes[k])
	}
	return n
}

// firsts returns the first of each lane, the most urgent one first.
func (l *line) firsts() []*waiter {
	firsts := make([]*waiter, 0, lanes)
	for k := range l.lanes {
		if len(l.lanes[k]) > 0 {
			firsts = append(firsts, l.lanes[k][0])
		}
	}
	slices.SortFunc(firsts, (*waiter).compare)
	return firsts
}

// serve gives the first of the line what it waits for, then the next, until one has to wait. The caller holds mu.
func (l *line) serve() {
	wait := l.serveOne()
	for wait <= 0 {
		wait = l.serveOne()
	}
	switch {
	case wait == forever:
		if l.alarm != nil {
			l.alarm.Stop()
		}
	case l.alarm == nil:
		l.alarm = time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.serve()
		})
	default:
		l.alarm.Reset(wait)
	}
}

// serveOne serves the first that need not wait, and returns 0 or less, or returns when to look again. The caller holds
// mu.
func (l *line) serveOne() time.Duration {
	wait := forever
	for _, w := range l.firsts() {
		if w.over != nil && w.over() {
			l.pop(w.lane)
			return 0
		}
		if wait = min(wait, w.tryAcquire(time.Now())); wait <= 0 {
			l.pop(w.lane)
			w.acquired()
			return 0
		}
	}
	return wait
}

// pop takes the first out of a lane.
func (l *line) pop(lane int) {
	l.lanes[lane][0] = nil
	l.lanes[lane] = l.lanes[lane][1:]
}

// wait returns nil when w, of which acquired and over are not set, has what it waits for, or the cause of ctx.
func (l *line) wait(ctx context.Context, w *waiter) error {
	has, turn := false, make(chan struct{})
	w.acquired = func() { has = true; close(turn) }
	w.over = func() bool { return ctx.Err() != nil }
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.join(w); !has {
		l.mu.Unlock()
		select {
		case <-turn:
		case <-ctx.Done():
		}
		l.mu.Lock()
		l.withdraw(w)
	}
	if !has {
		return context.Cause(ctx)
	}
	return nil
}
