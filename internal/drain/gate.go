package drain

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// The gate bounds how many requests of all drains are in flight. Who enters it gets a function
// that releases the slot, to be called once: with how long the API server asked to be left
// alone, or zero. Here such functions are called release.

// startWatch waits for a slot at the gate and starts the pod watch. The slot is not released
// then: the first request takes it over. Otherwise the next node would be started before this
// one makes progress. startWatch returns when all pods have been seen once, early at the
// deadline, or with the cause of ctx when that ends. The watch ends with the context of the requests.
func (r *run) startWatch(ctx, calls context.Context) error {
	release, err := r.acquireSlot(ctx)
	if err != nil || release == nil {
		return err
	}
	r.line.start = release
	go r.store.watch(calls, r.drainer, r.request.Node)
	for timeout := time.Now().Add(requestTimeout); !r.store.synced(); {
		until := earlier(timeout, r.end())
		if !time.Now().Before(until) {
			r.line.releaseStart()
			return nil
		}
		if err := r.sleep(ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// acquireSlot waits at the gate, with the priority of the present terms. At the deadline it
// returns nil and no error.
func (r *run) acquireSlot(ctx context.Context) (release func(time.Duration), err error) {
	for {
		end := r.end()
		if !end.IsZero() && !time.Now().Before(end) {
			return nil, nil
		}
		granted := make(chan func(time.Duration), 1)
		priority := pace.Priority{Deadline: r.request.Terms.Deadline, Rank: pace.Begin}
		withdraw := r.drainer.Gate.Line(priority, func(release func(time.Duration)) { granted <- release })
		release, err := r.awaitSlot(ctx, granted, end)
		if release == nil && !withdraw() {
			release = <-granted
		}
		switch {
		case err != nil:
			if release != nil {
				release(0)
			}
			return nil, err
		case release != nil:
			return release, nil
		}
	}
}

// awaitSlot returns what granted delivers, or nil at the end of the drain or when the deadline has changed, or the
// cause of ctx.
func (r *run) awaitSlot(
	ctx context.Context, granted <-chan func(time.Duration), end time.Time,
) (release func(time.Duration), err error) {
	var alarm <-chan time.Time
	if !end.IsZero() {
		timer := time.NewTimer(time.Until(end))
		defer timer.Stop()
		alarm = timer.C
	}
	for deadline := r.request.Terms.Deadline; r.request.Terms.Deadline.Equal(deadline); {
		select {
		case release := <-granted:
			return release, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-alarm:
			return nil, nil
		case terms := <-r.request.Changed:
			r.request.Terms = terms
		case reply := <-r.request.Asked:
			reply <- evacuation.Progress{Waits: []overview.Wait{atGate}}
		}
	}
	return nil, nil
}

// line is where the requests of one drain wait at the gate. It belongs to the goroutine of Drain.
type line struct {
	gate    *pace.Gate
	post    func(func()) bool        // run.post
	pending map[bool]int             // requests that wait here or are in flight; true: the urgent ones
	start   func(busy time.Duration) // releases the slot of startWatch; nil: it was released or passed on
}

// begin counts a request that is made, and done one that is not waited for any more.
func (l *line) begin(urgent bool) { l.pending[urgent]++ }
func (l *line) done(urgent bool)  { l.pending[urgent]-- }

// releaseStart releases the slot of startWatch, unless a request has taken it over.
func (l *line) releaseStart() {
	if l.start != nil {
		l.start(0)
		l.start = nil
	}
}

// take returns the release of a slot that a pod's next request takes over: the one that it
// has waited for, or that of startWatch. nil: there is none.
func (l *line) take(p *podState) (release func(time.Duration)) {
	if p.ticket == nil {
		release, l.start = l.start, nil
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
func (l *line) enter(p *podState, priority pace.Priority) {
	t := &ticket{priority: priority}
	p.ticket = t
	l.begin(urgent(priority))
	// The wait has ended, with a slot or without. This runs on a goroutine of its own.
	ended := func(release func(time.Duration)) {
		posted := l.post(func() {
			l.done(urgent(priority))
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
	withdraw := l.gate.Line(priority, func(release func(time.Duration)) { go ended(release) })
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
func (l *line) idle() bool { return l.pending[false]+l.pending[true] == 0 }
