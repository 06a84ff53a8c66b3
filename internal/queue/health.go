package queue

import (
	"sync"
	"time"
)

// A health is what a server knows of its receives. It may be used concurrently.
type health struct {
	mu       sync.Mutex
	received time.Time // when SQS last answered one

	failures int // in a row
	since    time.Time
	why      string // the last one has failed
}

// noteReceive notes that SQS has answered a receive.
func (h *health) noteReceive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.received, h.failures = time.Now(), 0
}

// noteFailure notes that a receive has failed.
func (h *health) noteFailure(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures == 0 {
		h.since = time.Now()
	}
	h.failures++
	h.why = err.Error()
}

// lastReceive returns when SQS last answered a receive; zero if it never did.
func (h *health) lastReceive() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.received
}

// failing is [Server.Failing].
func (h *health) failing() (since time.Time, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures < 2 { // the next long poll may succeed, and tells only at its end
		return time.Time{}, ""
	}
	return h.since, h.why
}
