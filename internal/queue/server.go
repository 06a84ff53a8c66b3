package queue

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	defaultVisibility = 20 * time.Second
	defaultReceivers  = 8

	// defaultMaxInFlight is far below the 120,000 messages that SQS allows in flight,
	// because memory ends first. A message takes 5 KB with the smallest body and handler,
	// most of it stack, and 10 KB usually: 100 MB in all. It is three notices for each of
	// 3,000 nodes at once. Bodies are limited apart from that, in bytes: see maxBodies.
	defaultMaxInFlight = 10_000

	// logged is how many bytes of a rejected message go into the log.
	logged = 256

	// handlersStop and settleStop bound what Serve still does when its context has ended.
	// Together they leave room in the ten seconds that the process has to stop.
	//
	// That may be after the next leader has taken the lease, and is harmless: the server
	// only deletes messages whose work is finished, and returns the others to the queue.
	// Their visibility lasts until then. If it is set to less, the next leader may have
	// received one already: a further delivery then joins its handler.
	handlersStop = 5 * time.Second
	settleStop   = 2500 * time.Millisecond
)

// Server hands the messages of one queue to a handler. Client, URL and Handler
// are required; set the fields before the first call and do not change them then.
// [Server.Serve] is called once; the other methods may be called at any time
// from any goroutine.
type Server struct {
	Client  API
	URL     string // of the queue
	Handler Handler

	// Visibility is how long a received message is hidden from other receivers, unless
	// it is extended; 20 s if zero. SQS counts in seconds: a fraction is rounded up.
	// After a crash, messages that had just arrived come back after this time.
	Visibility time.Duration
	// MaxInFlight bounds the messages that are in flight or that a receive may bring;
	// 10,000 if zero. At the bound nothing is received.
	MaxInFlight int
	// Receivers bounds the receives that run at once in a storm; 8 if zero. At
	// rest there is one.
	Receivers int

	// Probation is how long after its start Serve still ends if the role lacks the permission
	// to receive and no receive has succeeded. After that the permission may have been taken away
	// for a while, and Serve goes on.
	Probation time.Duration

	Log     logr.Logger
	Metrics Metrics // nil is [Discard]

	clock    clock
	health   health
	messages messages
	calls    calls
	large    chan struct{} // a semaphore for the one response that may be large
	redrive  atomic.Int32  // a redrive
}

// Serve receives and handles messages until ctx ends. It survives every failure
// of SQS, except a permission that is missing from the start, see Probation. Call
// [Client.Check] before it to find what is wrong with the queue.
//
// When ctx ends, Serve stops receiving, cancels the handlers, waits five seconds for
// them, and returns to the queue what they did not finish, so that the next leader
// receives it a second later. Serve returns within eight seconds whatever handlers and
// SQS do: nil if no message is in flight any more, else an error that says how many
// are. Those come back when their visibility has run out.
func (s *Server) Serve(ctx context.Context) error {
	s.begin()
	// Also while the process stops, a message that is finished must be deleted, and another
	// must be returned to the queue.
	settling, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	working, stop := context.WithCancelCause(settling)
	defer stop(nil)

	refused := make(chan error, 1)
	go s.receive(working, settling, refused)
	select {
	case <-ctx.Done():
	case err := <-refused:
		return err
	}
	stop(fmt.Errorf("%w: %w", ErrStopping, context.Cause(ctx)))

	if s.messages.awaitIdle(settling, handlersStop) {
		return nil
	}
	s.nackUnfinished(working, settling)
	if s.messages.awaitIdle(settling, settleStop) {
		return nil
	}
	n, _ := s.InFlight()
	return fmt.Errorf("stop serving %s: %d messages are neither deleted nor returned to the queue", s.URL, n)
}

func (s *Server) begin() {
	s.messages.begin(cmp.Or(s.MaxInFlight, defaultMaxInFlight))
	s.large = make(chan struct{}, 1)
	s.calls.client, s.calls.slots = s.client(), make(chan struct{}, callsAtOnce)
}

// LastReceive returns when SQS last answered a receive, with messages or without;
// zero if it never did.
func (s *Server) LastReceive() time.Time { return s.health.lastReceive() }

// Alive is LastReceive, but while receiving waits for room it is the present time:
// that is no failure of SQS, and a restart would make it worse.
func (s *Server) Alive() time.Time {
	if !s.messages.full().IsZero() {
		return time.Now()
	}
	return s.LastReceive()
}

// longFull is how long receiving waits for room before that counts as a failure.
const longFull = 30 * time.Second

// Failing returns since when receives fail or wait for room, and why; empty: they do not.
func (s *Server) Failing() (since time.Time, why string) {
	if full := s.messages.full(); !full.IsZero() && time.Since(full) > longFull {
		n, _ := s.InFlight()
		return full, fmt.Sprintf("%d messages are in flight, and no more are received before some of them end", n)
	}
	return s.health.failing()
}

// InFlight returns how many messages are in flight, and since when the oldest of them
// is; the zero time if there is none.
func (s *Server) InFlight() (n int, oldest time.Time) { return s.messages.count() }

func (s *Server) client() Client {
	return Client{API: s.Client, URL: s.URL, Log: s.Log, Metrics: s.metrics()}
}

func (s *Server) metrics() Metrics {
	if s.Metrics == nil {
		return Discard
	}
	return s.Metrics
}

// visibility is the visibility timeout to receive with, in whole seconds.
func (s *Server) visibility() time.Duration {
	if s.Visibility <= 0 {
		return defaultVisibility
	}
	return time.Duration(seconds(s.Visibility)) * time.Second
}

// seconds rounds up to whole seconds, as SQS counts.
func seconds(d time.Duration) int32 {
	return int32((d + time.Second - 1) / time.Second) //nolint:gosec // SQS knows no time beyond twelve hours
}

// redrive is what the server knows of the queue's redrive policy.
type redrive int32

const (
	redriveUnknown redrive = iota
	redriveAbsent
	redrivePresent
)

func (r redrive) String() string { return [...]string{"unknown", "absent", "present"}[r] }

// Check is [Client.Check] of the queue that is served. The server remembers whether the
// queue has a redrive policy.
func (s *Server) Check(ctx context.Context) error {
	found, err := s.client().check(ctx, &s.clock)
	if err != nil || found == redriveUnknown {
		return err
	}
	s.redrive.Store(int32(found))
	return nil
}

// A health is what a server knows of its receives. It may be used concurrently.
type health struct {
	mu       sync.Mutex
	received time.Time // when SQS last answered one

	failures int       // in a row
	since    time.Time // the first of these began
	silent   bool      // the last one had no answer for longer than a long poll takes, nor had others meanwhile
	why      string    // the last one has failed
}

func (h *health) noteReceive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.received, h.failures, h.silent = time.Now(), 0, false
}

// noteFailure notes that a receive has failed that began then.
func (h *health) noteFailure(err error, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.received.After(began) { // another receiver's
		began = h.received
	}
	if h.failures == 0 {
		h.since = began
	}
	h.failures++
	h.silent, h.why = time.Since(began) > longPoll, err.Error()
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
	if h.failures < 3 && !h.silent { // the next long poll may succeed, and tells only at its end
		return time.Time{}, ""
	}
	return h.since, h.why
}
