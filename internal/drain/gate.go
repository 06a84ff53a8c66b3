package drain

import (
	"context"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// The gate bounds how many requests of all drains are in flight. Who enters it gets a function
// that releases the slot, to be called once: with how long the API server asked to be left
// alone, or zero. Here such functions are called release.

// startWatch waits for a slot at the gate and starts the pod watch. The slot is not released
// then: the first request takes it over. Otherwise the next node would be started before this
// one makes progress. startWatch returns when all pods have been seen once, early at the
// deadline, or with the cause of ctx when that ends.
func (r *run) startWatch(ctx context.Context) error {
	release, err := r.acquireSlot(ctx)
	if err != nil || release == nil {
		return err
	}
	r.startSlot = release
	go r.store.watch(ctx, r.drainer.Client, r.request.Node)
	for timeout := time.Now().Add(requestTimeout); !r.store.synced(); {
		until := earlier(timeout, r.end())
		if !time.Now().Before(until) {
			r.releaseStartSlot()
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
		waiting, stop := context.WithCancel(ctx)
		if !end.IsZero() {
			stop()
			waiting, stop = context.WithDeadline(ctx, end)
		}
		priority := pace.Priority{Deadline: r.request.Terms.Deadline, Rank: pace.Begin}
		changed := make(chan struct{})
		go func() {
			defer close(changed)
			for {
				select {
				case r.request.Terms = <-r.request.Changed:
					if !r.request.Terms.Deadline.Equal(priority.Deadline) {
						stop()
					}
				case <-waiting.Done():
					return
				}
			}
		}()
		release, err := r.drainer.Gate.Enter(waiting, priority)
		stop()
		<-changed
		switch {
		case err == nil:
			return release, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
}

// releaseStartSlot releases the slot of startWatch, unless a request has taken it over.
func (r *run) releaseStartSlot() {
	if r.startSlot != nil {
		r.startSlot(0)
		r.startSlot = nil
	}
}

// takeSlot returns the release of a slot that a pod's next request takes over: the one that it
// has waited for, or that of startWatch. nil: there is none.
func (r *run) takeSlot(p *podState) (release func(time.Duration)) {
	if p.ticket == nil {
		release, r.startSlot = r.startSlot, nil
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
	priority pace.Priority
	cancel   func()              // ends the wait; does nothing once that has ended
	release  func(time.Duration) // of its slot; nil: it still waits
}

// enqueue has a pod wait at the gate.
func (r *run) enqueue(ctx context.Context, p *podState, priority pace.Priority) {
	ctx, cancel := context.WithCancel(ctx)
	t := &ticket{priority: priority, cancel: cancel}
	p.ticket = t
	r.pending[urgent(priority)]++
	go func() {
		defer cancel()
		release, err := r.drainer.Gate.Enter(ctx, priority)
		posted := r.post(func() {
			r.pending[urgent(priority)]--
			switch {
			case err != nil:
				p.ticket = nil
			case p.departed:
				release(0)
			default:
				t.release = release
			}
		})
		if !posted && err == nil {
			release(0)
		}
	}()
}

// dequeue takes a pod out of the gate: it needs no request now, or another priority. While it
// waits for a slot its ticket is kept until the wait has ended.
func (p *podState) dequeue() {
	switch t := p.ticket; {
	case t == nil:
	case t.release == nil:
		t.cancel()
	default:
		t.release(0)
		p.ticket = nil
	}
}

// priority returns the priority of a pod's request at the gate. What was refused once may be
// refused for ever, so it goes behind what has not been tried.
func (r *run) priority(p podState, s step, now time.Time) pace.Priority {
	priority := pace.Priority{Deadline: r.request.Terms.Deadline, Rank: pace.Advance}
	switch {
	case s.kind == stepDelete || p.mustForce(r.request.Terms, now):
		priority.Class = pace.Urgent
	case p.refused > 0:
		priority.Rank = pace.Retry
	}
	return priority
}

// urgent reports whether a priority is that of a pod which must be forced.
func urgent(p pace.Priority) bool { return p.Class == pace.Urgent }

// idle reports whether no request waits at the gate, and none is in flight.
func (r *run) idle() bool { return r.pending[false]+r.pending[true] == 0 }
