package app

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// silence is how long the source may give no answer before the process is unhealthy: four
// long polls of a queue and a bit.
const silence = 90 * time.Second

// health is what the probes answer. Its methods may be called concurrently.
type health struct {
	source string // of the notices, as the probes name it

	mu      sync.Mutex
	missing map[string]string // what the process waits for, and why, by part; empty: ready
	leader  *leader           // nil: this replica stands by
	// lastAnswer is when the API server last answered about the lease; failure is the error
	// since then, or nil.
	lastAnswer time.Time
	failure    error
}

// A leader is what the probes know of the present term.
type leader struct {
	since       time.Time
	lastReceive func() time.Time                // when the source last answered
	heldBack    func() (drains int, why string) // empty: nothing is held back
}

func newHealth() *health {
	return &health{source: "queue", missing: map[string]string{"start": "nothing is checked yet"}, lastAnswer: time.Now()}
}

// leaseAnswered takes in how a request to the API server about the lease has ended.
func (h *health) leaseAnswered(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = err
	if err == nil {
		h.lastAnswer = time.Now()
	}
}

// set says what is missing of a part; nothing if why is empty.
func (h *health) set(part, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why == "" {
		delete(h.missing, part)
		return
	}
	h.missing[part] = why
}

// lead begins a term, which the probes know of until end is called. lastReceive says when
// the source last answered; heldBack says what is held back and why, or nothing.
func (h *health) lead(lastReceive func() time.Time, heldBack func() (drains int, why string)) (end func()) {
	h.setLeader(&leader{time.Now(), lastReceive, heldBack})
	return func() { h.setLeader(nil) }
}

func (h *health) setLeader(l *leader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leader = l
}

func (h *health) present() *leader {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leader
}

// silent is for how long the source has not answered. A nil leader asks it for nothing.
func (l *leader) silent(now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	last := l.lastReceive()
	if last.Before(l.since) {
		last = l.since
	}
	return now.Sub(last)
}

// ready answers the readiness probe: what is missing, a line each.
func (h *health) ready(w http.ResponseWriter, _ *http.Request) {
	l := h.present()
	missing := h.lacks(l, time.Now())
	if len(missing) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, part := range slices.Sorted(maps.Keys(missing)) {
			fmt.Fprintf(w, "%s: %s\n", part, missing[part])
		}
		return
	}
	if l == nil {
		fmt.Fprintln(w, "ok: standing by")
		return
	}
	fmt.Fprintln(w, "ok: leading")
	if _, why := l.heldBack(); why != "" {
		fmt.Fprintln(w, "drains held back: "+why)
		fmt.Fprintln(w, "node by node: node-termination-handler status")
	}
}

// lacks is what is missing now, by part.
func (h *health) lacks(l *leader, now time.Time) map[string]string {
	// A long poll and what it may take beyond; longer than any answer of an API server that is there.
	const queueSilence, serverSilence = 35 * time.Second, 10 * time.Second
	quiet := l.silent(now) // outside of the lock: it may wait for the server's
	h.mu.Lock()
	defer h.mu.Unlock()
	missing := maps.Clone(h.missing)
	if quiet > queueSilence {
		missing[h.source] = fmt.Sprintf("no answer for %s", quiet.Round(time.Second))
	}
	if silent := now.Sub(h.lastAnswer); h.failure != nil && silent > serverSilence {
		missing["lease"] = fmt.Sprintf("no answer from the API server for %s: %v", silent.Round(time.Second), h.failure)
	}
	return missing
}

// alive answers the liveness probe: whether the leader still hears from its source of notices.
func (h *health) alive(w http.ResponseWriter, _ *http.Request) {
	if quiet := h.present().silent(time.Now()); quiet > silence {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "the %s has not answered for %s\n", h.source, quiet.Round(time.Second))
		return
	}
	fmt.Fprintln(w, "ok")
}
