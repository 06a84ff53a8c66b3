package drain

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// The gate bounds the requests of all drains that are in flight. Each of them has a slot there. A function that is
// called release gives a slot back. It is called once, with how long the API server asks to wait, or with zero.

// acquireSlot waits at the gate, with the priority of the present terms. At the deadline it
// returns nil and no error.
func (r *run) acquireSlot(ctx context.Context) (release func(time.Duration), err error) {
	r.waitsAtGate = true
	defer func() { r.waitsAtGate = false }()
	for release == nil && err == nil && !r.pastEnd(time.Now()) {
		deadline := r.request.Terms.Deadline
		priority := pace.Priority{Deadline: deadline, Rank: pace.Begin}
		withdraw := r.drainer.Gate.EnterAsync(priority, func(slot func(time.Duration)) {
			go r.post(func() { release = slot })
		})
		for release == nil && err == nil && !r.pastEnd(time.Now()) && r.request.Terms.Deadline.Equal(deadline) {
			err = r.sleep(ctx, r.end(), nil)
		}
		if release == nil && !withdraw() { // the slot comes: before the watch begins, nothing else is posted
			(<-r.posted)()
		}
	}
	if err != nil && release != nil {
		release(0)
		release = nil
	}
	return release, err
}

// slots are what one drain has at the gate, and waits for. They belong to the goroutine of Drain.
type slots struct {
	pending map[bool]int             // requests that wait for a slot or are in flight; true: the urgent ones
	start   func(busy time.Duration) // releases the slot of startWatch; nil: it was released or passed on
}

// releaseStart releases the slot of startWatch, unless a request has taken it over.
func (s *slots) releaseStart() {
	if s.start != nil {
		s.start(0)
		s.start = nil
	}
}

// take returns the release of a slot that a pod's next request takes over: the one that it
// has waited for, or that of startWatch. nil: there is none.
func (s *slots) take(p *podState) (release func(time.Duration)) {
	if p.ticket == nil {
		release, s.start = s.start, nil
		return release
	}
	if release = p.ticket.release; release != nil {
		p.ticket = nil
	}
	return release
}

// A ticket is the place of a pod's next request at the gate. Which request that is, is decided
// when it has a slot.
type ticket struct {
	priority  pace.Priority
	withdraw  func()              // ends the wait; does nothing once that has ended
	withdrawn bool                // a slot that comes nevertheless is given back
	release   func(time.Duration) // of its slot; nil: it still waits
}

// enter has a pod wait at the gate.
func (r *run) enter(p *podState, priority pace.Priority) {
	t := &ticket{priority: priority}
	p.ticket = t
	r.slots.pending[urgent(priority)]++
	// The wait has ended, with a slot or without. This runs on a goroutine of its own.
	ended := func(release func(time.Duration)) {
		posted := r.post(func() {
			r.slots.pending[urgent(priority)]--
			switch t.release = release; {
			case release == nil:
				p.ticket = nil
			case t.withdrawn:
				p.dequeue()
			}
		})
		if !posted && release != nil {
			release(0)
		}
	}
	withdraw := r.drainer.Gate.EnterAsync(priority, func(release func(time.Duration)) { go ended(release) })
	t.withdraw = func() {
		if withdraw() {
			go ended(nil)
		}
	}
}

// dequeue takes a pod out of the gate: it needs no request now, or another priority. While it
// waits for a slot its ticket is kept until the wait has ended.
func (p *podState) dequeue() {
	t := p.ticket
	if t == nil {
		return
	}
	if t.withdrawn = true; t.release == nil {
		t.withdraw()
		return
	}
	t.release(0)
	p.ticket = nil
}

// dequeueAll takes all pods out of the gate.
func (n *nodePods) dequeueAll() {
	for _, p := range n.leaving {
		p.dequeue()
	}
}

// priorityOf returns the priority of a pod's request at the gate. What was refused once may be
// refused for ever, so it goes behind what has not been tried.
func priorityOf(p podState, s step, terms evacuation.Terms, now time.Time) pace.Priority {
	priority := pace.Priority{Deadline: terms.Deadline, Rank: pace.Advance}
	switch {
	case s.kind == stepDelete, p.mustForce(terms, now), p.hurries(terms, now):
		priority.Class = pace.Urgent
	case p.refused > 0:
		priority.Rank = pace.Retry
	}
	return priority
}

// mostPending returns below how many pending requests one of this priority may join them. What was refused once leaves
// half of the places to what has not been tried: at a busy gate it waits until other nodes are drained.
func mostPending(p pace.Priority) int {
	if p.Rank == pace.Retry {
		return maxPending / 2
	}
	return maxPending
}

// urgent reports whether a priority is that of a pod which must be forced.
func urgent(p pace.Priority) bool { return p.Class == pace.Urgent }

// idle reports whether no request waits at the gate, and none is in flight.
func (s *slots) idle() bool { return s.pending[false]+s.pending[true] == 0 }
