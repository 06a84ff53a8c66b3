package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// silence is how long the queue may give no answer before the process is unwell:
// four long polls and a bit.
const silence = 90 * time.Second

// health is what the probes tell.
type health struct {
	mu      sync.Mutex
	missing map[string]string // what the process waits for, by name; empty: ready
	leading time.Time         // since when; zero: this replica stands by
	// lastReceive is when the queue last answered.
	lastReceive func() time.Time
	// heldBack says what a leader holds back, and why; nothing if empty.
	heldBack func() string
	// lastAnswer is when the API server last answered about the lease, and failure
	// what it or the way there has said since; nil: nothing.
	lastAnswer time.Time
	failure    error
}

func newHealth(lastReceive func() time.Time, heldBack func() string) *health {
	return &health{
		missing: map[string]string{"start": "nothing is checked yet"}, lastReceive: lastReceive, heldBack: heldBack, lastAnswer: time.Now(),
	}
}

// asked takes in how a request to the API server has ended.
func (h *health) asked(err error) {
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

func (h *health) lead(yes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = time.Time{}
	if yes {
		h.leading = time.Now()
	}
}

// ready answers the readiness probe: what is missing, a line each.
func (h *health) ready(w http.ResponseWriter, _ *http.Request) {
	missing := h.lacks(time.Now())
	if len(missing) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, part := range slices.Sorted(maps.Keys(missing)) {
			fmt.Fprintf(w, "%s: %s\n", part, missing[part])
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leading.IsZero() {
		fmt.Fprintln(w, "ok: standing by")
		return
	}
	fmt.Fprintln(w, "ok: leading")
	if why := h.heldBack(); why != "" {
		fmt.Fprintln(w, why)
	}
}

// lacks is what is missing now, by part.
func (h *health) lacks(now time.Time) map[string]string {
	// A long poll and what it may take beyond; the time that a leader has to renew its lease.
	const queueSilence, serverSilence = 35 * time.Second, 10 * time.Second
	quiet, leading := h.quiet(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	missing := maps.Clone(h.missing)
	if leading && quiet > queueSilence {
		missing["queue"] = fmt.Sprintf("no answer for %s", quiet.Round(time.Second))
	}
	if silent := now.Sub(h.lastAnswer); h.failure != nil && silent > serverSilence {
		missing["lease"] = fmt.Sprintf("no answer of the API server for %s: %v", silent.Round(time.Second), h.failure)
	}
	return missing
}

// quiet is for how long the queue has not answered the leader; not leading, nobody asks it.
func (h *health) quiet(now time.Time) (quiet time.Duration, leading bool) {
	last := h.lastReceive() // it may wait for others
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leading.IsZero() {
		return 0, false
	}
	if last.Before(h.leading) {
		last = h.leading
	}
	return now.Sub(last), true
}

// alive answers the liveness probe: whether the leader still hears from the queue.
func (h *health) alive(w http.ResponseWriter, _ *http.Request) {
	if quiet, leading := h.quiet(time.Now()); leading && quiet > silence {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "the queue has not answered for %s\n", quiet.Round(time.Second))
		return
	}
	fmt.Fprintln(w, "ok")
}

// newHTTPServer gives a client that is slow, or says too much, no more than it needs.
func newHTTPServer(handler http.Handler) *http.Server {
	const patience = 10 * time.Second
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: patience,
		ReadTimeout:       patience,
		WriteTimeout:      patience,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
}

// serveHTTP listens on all of the pod's addresses and serves until ctx ends.
func serveHTTP(ctx context.Context, log logr.Logger, port int, mux *http.ServeMux) (stop func(), err error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", port, err)
	}
	server := newHTTPServer(mux)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "serve HTTP", "port", port)
		}
	}()
	log.V(1).Info("serving HTTP", "address", strings.Replace(listener.Addr().String(), "[::]", "localhost", 1))
	return func() {
		server.Close()
		<-done
	}, nil
}
