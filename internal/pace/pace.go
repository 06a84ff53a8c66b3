// Package pace spaces out calls to an API, by rate or by number, the most urgent
// first.
package pace

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"sync"
	"time"
)

// Classes for callers that share a [Gate] without knowing each other.
const (
	Aside  = iota - 1 // nobody waits for it
	Normal            // the zero value
	Urgent
	Foremost
)

// Ranks for callers whose class and deadline are the same: what is begun is
// brought forward before more is begun, so that a crowd is worked through one
// after the other.
const (
	Advance = iota
	Begin
	Retry    // it was refused before, and may be again
	Conclude // it only says that all is done
)

// Priority says who goes first where several wait. The zero value is of class Normal, without a deadline.
type Priority struct {
	// Class comes first: the greater, the more urgent.
	Class int
	// Deadline decides within a class: the nearer goes first, none after all of
	// them. It does not end a wait; the context does.
	Deadline time.Time
	// Rank decides where the deadlines are equal: the lower goes first.
	Rank int
}

// unhurried reports whether nothing but an account of what was done waits for the call.
func (p Priority) unhurried() bool { return p.Class == Aside || p.Rank == Conclude }

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

// A Limiter hands out tokens at a rate, the next one always to the most urgent
// who waits, and to those of equal priority in the order they came. A stream
// of urgent callers at the full rate therefore starves the others.
//
// It runs no goroutine of its own. The zero value has no limit. Its methods may
// be called concurrently.
type Limiter struct {
	// The bucket is kept as one instant, as the generic cell rate algorithm of
	// ITU-T I.371 does, because durations add up exactly where fractions of
	// tokens do not.

	interval time.Duration // from one token to the next; 0 is no limit
	slack    time.Duration // how far ahead of the interval a burst may run

	line
	due time.Time // when the bucket is full again
}

// New returns a Limiter that hands out perSecond tokens in each second, and up
// to burst (at least one) at once after a rest. A rate that is not positive is
// no limit.
func New(perSecond float64, burst int) *Limiter {
	if !(perSecond > 0) {
		return &Limiter{}
	}
	interval := rounded(math.Ceil(float64(time.Second) / perSecond))
	return &Limiter{
		interval: interval,
		slack:    rounded(float64(interval) * float64(max(burst, 1)-1)),
	}
}

// forever stands in for every longer duration: far beyond any process, and
// still small enough to be added to an instant.
const forever = 100 * 365 * 24 * time.Hour

func rounded(nanoseconds float64) time.Duration {
	return time.Duration(min(nanoseconds, float64(forever)))
}

// Wait returns nil once the caller has a token. If ctx ends first it returns
// the cause of ctx, and takes neither a token nor a place in the queue.
func (l *Limiter) Wait(ctx context.Context, p Priority) error {
	return l.wait(ctx, p, func(now time.Time) time.Duration {
		wait := l.next().Sub(now)
		if wait <= 0 {
			l.take(now)
		}
		return wait
	})
}

// Hold gives no token to anyone for d, as an API demands by Retry-After. After
// that the bucket is empty: a server that asked for a rest is not met by a
// burst. Of several holds the one that ends last counts; a d that is not
// positive is none.
func (l *Limiter) Hold(d time.Duration) {
	if d <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if due := time.Now().Add(min(d, forever) + l.slack); due.After(l.due) {
		l.due = due
	}
}

// next returns when there is a token.
func (l *Limiter) next() time.Time { return l.due.Add(-l.slack) }

func (l *Limiter) take(now time.Time) {
	if now.After(l.due) {
		l.due = now
	}
	l.due = l.due.Add(l.interval)
}

// line is where callers wait for their turn, in the order of their priorities.
type line struct {
	mu      sync.Mutex // guards what embeds it too
	waiting queue
	arrived uint64
}

// wait returns nil when it is the caller's turn, or the cause of ctx. turn is
// asked, under the lock, by the first of the line alone: it takes what it is
// about and returns no more than zero, or says how long to wait for it.
func (l *line) wait(ctx context.Context, p Priority, turn func(now time.Time) time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	w := &waiter{priority: p, arrival: l.arrived, first: make(chan struct{}, 1)}
	l.arrived++
	heap.Push(&l.waiting, w)
	// Whoever leaves, with what it came for or without, lets the next one look:
	// only the first of the line sleeps by the clock.
	defer func() {
		heap.Remove(&l.waiting, w.place)
		l.wakeFirst()
	}()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait := forever
		if w.place == 0 {
			if wait = turn(time.Now()); wait <= 0 {
				return nil
			}
		}
		timer := time.NewTimer(wait)
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.first:
		}
		timer.Stop()
		l.mu.Lock()
	}
}

// wakeFirst lets the first of the line look again. mu is held.
func (l *line) wakeFirst() {
	if len(l.waiting) > 0 {
		l.waiting[0].wake()
	}
}

type waiter struct {
	priority Priority
	arrival  uint64
	place    int           // in the queue; kept by it
	first    chan struct{} // has a value when place has become 0
}

// wake never blocks: one value in the channel is as good as two.
func (w *waiter) wake() {
	select {
	case w.first <- struct{}{}:
	default:
	}
}

// queue is a heap of those who wait, the most urgent first.
type queue []*waiter

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	return cmp.Or(q[i].priority.compare(q[j].priority), cmp.Compare(q[i].arrival, q[j].arrival)) < 0
}

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements [heap.Interface].
func (q *queue) Push(x any) {
	w := x.(*waiter)
	w.place = len(*q)
	*q = append(*q, w)
}

// Pop implements [heap.Interface].
func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return w
}
