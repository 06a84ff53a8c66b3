package kubesim

import (
	"context"
	"sync"
	"time"
)

// waitLimit is how long a request waits for seats: a quarter of --request-timeout.
const waitLimit = 15 * time.Second

// longestRetryAfter is the most that an answer 429 asks to wait, in seconds.
const longestRetryAfter = 32

// flowControl gives the seats of one priority level to the requests of one client, in their order. As in
// k8s.io/apiserver, a wide request at the head of the queue is waited for. The zero value has no limit.
type flowControl struct {
	seats int // 0: no limit
	queue int // requests that may wait

	mu      sync.Mutex
	inUse   int
	waiting []*waiter
	peak    int           // of inUse
	longest time.Duration // that a request has waited
	refused refusals
}

type waiter struct {
	seats   int
	entered chan struct{} // closed when it has its seats
}

func newFlowControl(t Tier, l Level) *flowControl {
	return &flowControl{seats: l.seats(t), queue: l.HandSize * queueLength}
}

// enter takes the seats of a request, when it is its turn. If the request is refused, it returns false and how many
// seconds the client should wait.
func (f *flowControl) enter(ctx context.Context, c cost) (retryAfter int, ok bool) {
	if f.seats == 0 {
		return 0, true
	}
	needed := max(c.seats, c.after)
	f.mu.Lock()
	if len(f.waiting) == 0 && f.take(needed) {
		f.mu.Unlock()
		return 0, true
	}
	if len(f.waiting) >= f.queue {
		defer f.mu.Unlock()
		return f.refused.note(time.Now()), false
	}
	w := &waiter{seats: needed, entered: make(chan struct{})}
	f.waiting = append(f.waiting, w)
	f.mu.Unlock()

	came := time.Now()
	limit := time.NewTimer(waitLimit)
	defer limit.Stop()
	select {
	case <-w.entered:
	case <-limit.C:
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest = max(f.longest, time.Since(came))
	for k := range f.waiting {
		if f.waiting[k] == w {
			f.waiting = append(f.waiting[:k], f.waiting[k+1:]...)
			f.admit() // it may have stood before narrower ones
			return f.refused.note(time.Now()), false
		}
	}
	return 0, true // it got its seats meanwhile
}

// leave gives the seats of a request back, those of its watches later.
func (f *flowControl) leave(c cost) {
	if f.seats == 0 {
		return
	}
	if c.after > 0 {
		time.AfterFunc(c.lasts, func() { f.free(c.after) })
	}
	f.free(max(c.seats, c.after) - c.after)
}

func (f *flowControl) free(seats int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inUse -= seats
	f.admit()
}

// admit lets in who waits. The caller holds mu.
func (f *flowControl) admit() {
	n := 0
	for n < len(f.waiting) && f.take(f.waiting[n].seats) {
		close(f.waiting[n].entered)
		n++
	}
	f.waiting = f.waiting[n:]
}

// take takes seats if there are as many, or if nobody has any. The caller holds mu.
func (f *flowControl) take(seats int) bool {
	if f.inUse > 0 && f.inUse+seats > f.seats {
		return false
	}
	f.inUse += seats
	f.peak = max(f.peak, f.inUse)
	return true
}

// refusals say how long who is refused should wait: a second at first, twice as long while many are refused, and a
// second less where few are. See dropped_requests_tracker.go of k8s.io/apiserver/pkg/util/flowcontrol.
type refusals struct {
	second     int64 // of the Unix time, that is counted
	count      int   // in it
	retryAfter int
	raised     int64 // the second in which retryAfter was raised
	history    map[int64]int
}

// note counts a refusal, and returns how many seconds to wait.
func (r *refusals) note(now time.Time) int {
	if r.history == nil {
		r.history, r.retryAfter = map[int64]int{}, 1
	}
	second := now.Unix()
	if second != r.second {
		r.history[r.second] = r.count
		r.second, r.count = second, 0
		recent := 0
		for then, count := range r.history {
			switch {
			case second-then > longestRetryAfter:
				delete(r.history, then)
			case second-then <= int64(r.retryAfter):
				recent += count
			}
		}
		switch {
		case second-r.raised >= int64(r.retryAfter) && recent >= 3*r.retryAfter:
			r.retryAfter, r.raised = min(2*r.retryAfter, longestRetryAfter), second
		case recent < r.retryAfter && r.retryAfter > 1:
			r.retryAfter--
		}
	}
	r.count++
	return r.retryAfter
}
