package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
//
// What a message counts as, from its receive to its end:
//
//	reserved   a receive is under way that may bring it
//	inFlight   SQS has delivered it, and it is neither deleted nor returned nor left
//	unsettled  … and its handler runs, or its settlement failed: it may still join a batch
//	open       … it waits in a batch for others to share its call
//	running    its goroutine has not ended: all of inFlight, and those that are being counted
//
// Receiving goes on while reserved and inFlight together leave room. Open batches are sent
// when unsettled is zero, because nobody can join them any more. Serve returns when
// running and receivers are zero and the leases are no longer extended.
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

	// Probation is how long after its start Serve still ends if the role may not receive
	// and no receive has succeeded. After that the permission may have been taken away
	// for a while, and Serve goes on.
	Probation time.Duration

	Log     logr.Logger
	Metrics Metrics // nil is [Discard]

	calls chan struct{} // a semaphore for the batch calls that run at once
	large chan struct{} // a semaphore for the one response that may be large
	clock clock

	mu      sync.Mutex // guards all that follows
	changed *sync.Cond // signalled when a message or a receiver has ended, or there is more room

	inFlight map[string]*inFlight // by message id
	batcher  batcher
	running  int // goroutines of messages
	bodies   int // bytes of the bodies that handlers still use

	receivers   int  // goroutines that receive
	reserved    int  // messages that the receives under way may bring
	receiveMost int  // messages to ask for in one receive, by the size of the last ones
	full        bool // receiving waits for room
	received    time.Time
	refused     refusal

	extending bool // the loop runs that extends leases
	redrive   redrive
	denial    denial
}

// inFlight is a message from its receive to its settlement. Server.mu guards all
// but id.
type inFlight struct {
	id       string
	since    time.Time
	receipt  string // of the newest delivery: an older one may do nothing
	receives int
	body     int // bytes of the body, until the handler has released it

	lease     time.Duration // the visibility that SQS was last asked for
	renewAt   time.Time     // see renewAfter
	expired   bool          // SQS refused to extend receipt
	extension chan struct{} // closed when the extension under way has ended; nil without one

	settling bool  // the handler has returned, or is not waited for
	err      error // of the last batch with this message
}

// Serve receives and handles messages until ctx ends. It survives every failure
// of SQS, except a permission that is missing from the start, see Probation. Call
// [Client.Check] before it to find what is wrong with the queue.
//
// When ctx ends, Serve stops receiving, cancels the handlers, waits five seconds for
// them, and returns to the queue what they did not finish, so that the next leader
// receives it a second later. Serve returns within eight seconds whatever handlers and
// SQS do: nil if every message was settled, else an error that says how many were
// not. Those come back when their visibility has run out.
func (s *Server) Serve(ctx context.Context) error {
	if !s.begin() {
		return errors.New("serve: called a second time")
	}
	// Settling outlives ctx: also while the process stops, a message that is finished must
	// be deleted, and another must be returned to the queue.
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

	if s.awaitIdle(settling, handlersStop) {
		return nil
	}
	s.nackUnfinished(working, settling)
	if s.awaitIdle(settling, settleStop) {
		return nil
	}
	n, _ := s.InFlight()
	return fmt.Errorf("stop serving %s: %d messages are not settled", s.URL, n)
}

// begin prepares the server to serve. It returns false at the second call.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		return false
	}
	s.changed = sync.NewCond(&s.mu)
	s.calls = make(chan struct{}, callsAtOnce)
	s.large = make(chan struct{}, 1)
	s.receiveMost = batchSize
	s.inFlight = make(map[string]*inFlight)
	s.batcher.open = make(map[Outcome]*batch)
	s.receivers = 1
	return true
}

// LastReceive returns when SQS last answered a receive, with messages or without;
// zero if it never did. While receiving waits for room it returns the present time:
// that is no failure of SQS, and a restart would make it worse.
func (s *Server) LastReceive() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return time.Now()
	}
	return s.received
}

// Failing returns since when receives fail, and why the last one has; empty: they do not.
func (s *Server) Failing() (since time.Time, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.times < 2 { // the next long poll may succeed, and tells only at its end
		return time.Time{}, ""
	}
	return s.refused.since, s.refused.why
}

// noteFailure notes that a receive has failed.
func (s *Server) noteFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused.times == 0 {
		s.refused.since = time.Now()
	}
	s.refused.times++
	s.refused.why = err.Error()
}

// A refusal is since when receives fail, and why the last one has.
type refusal struct {
	times int // in a row
	since time.Time
	why   string
}

// InFlight returns how many messages are in flight, and since when the oldest of them
// is; the zero time if there is none.
func (s *Server) InFlight() (n int, oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.inFlight {
		if oldest.IsZero() || f.since.Before(oldest) {
			oldest = f.since
		}
	}
	return len(s.inFlight), oldest
}

// countDown counts one less of what Serve waits for.
func (s *Server) countDown(count *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count--
	s.changed.Broadcast()
}

// awaitIdle waits until nothing is received, handled or extended any more. It returns
// false if that takes longer than limit.
func (s *Server) awaitIdle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.await(ctx, func() bool { return s.receivers == 0 && s.running == 0 && !s.extending })
}

// await waits until ready returns true, or returns false if ctx ends first. ready is
// called with mu held, each time s.changed is signalled.
func (s *Server) await(ctx context.Context, ready func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !ready() {
		if ctx.Err() != nil {
			return false
		}
		s.changed.Wait()
	}
	return true
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
