package queue

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

const (
	defaultVisibility = 20 * time.Second
	defaultReceivers  = 8

	// defaultMaxHeld is far below the 120,000 messages that SQS lets be in
	// flight, because memory ends first: a held message takes 5 KB with the
	// smallest of bodies and handlers, most of it stack, and 10 KB with usual
	// ones, so this is 100 MB. It is three notices for each of 3,000 nodes at once.
	defaultMaxHeld = 10_000

	// logged is how many bytes of a rejected message go into the log.
	logged = 256

	// handlersStop and settleStop bound what Serve still does once its context
	// has ended. Their sum leaves room in the ten seconds that the process has
	// for all of its end.
	handlersStop = 5 * time.Second
	settleStop   = 2500 * time.Millisecond
)

// Server hands the messages of one queue to a handler. Client, URL and Handler
// are required; set the fields before the first call and leave them then.
// [Server.Serve] is called once; the other methods may be called at any time
// from any goroutine.
type Server struct {
	Client  API
	URL     string // of the queue
	Handler Handler

	// Visibility is how long a received message is hidden from others unless it
	// is extended; 20 s if zero. SQS counts in seconds: a fraction is rounded up.
	// After a crash it is how long messages that had just arrived stay away.
	Visibility time.Duration
	// MaxHeld bounds the messages that are held, or asked for and not yet here;
	// 10,000 if zero. At the bound receiving waits.
	MaxHeld int
	// Receivers bounds the receives that run at once in a storm; 8 if zero. At
	// rest there is one.
	Receivers int

	// Probation is how long after its beginning Serve still ends when the role may
	// not receive, as long as no receive has succeeded. Later than that the
	// permission may have been taken away, and may be given back.
	Probation time.Duration

	Log     logr.Logger // the zero Logger discards
	Metrics Metrics     // nil is [Discard]

	mu sync.Mutex
	// changed is signalled when a message or a receiver is no longer there.
	changed *sync.Cond
	// calls limits the batch calls that run at once.
	calls chan struct{}

	held      map[string]*held // by message id
	busy      int              // how many of held may still ask for a settlement
	live      int              // messages that are not quite done with: a goroutine is at each
	reserved  int              // room kept for messages of the receives under way
	receivers int
	extending bool // the hold loop runs
	full      bool // receiving waits for room
	received  time.Time
	open      map[Outcome]*batch // settlements that are being collected
	redrive   redrive
	denial    denial

	clockWrong bool // at the last look; see compareClocks
}

// held is a message between its receive and its settlement. Server.mu guards
// all but id.
type held struct {
	id       string
	since    time.Time
	receipt  string // of the newest delivery: an older one may do nothing
	receives int

	lease     time.Duration // what SQS was last asked for
	renewAt   time.Time     // when half of lease has gone
	gone      bool          // SQS refused to extend receipt
	extension chan struct{} // closed when the extension under way has ended; nil without one

	settling bool  // the handler is done, or not waited for
	err      error // of the last batch that held was part of
}

// Serve receives and handles messages until ctx ends. It survives every failure
// of SQS, but for a permission that is missing from the start, see Probation;
// [Server.Check] is there to find before it what will not heal.
//
// Then it stops receiving, cancels the handlers, waits five seconds for them,
// and gives back what they did not finish, so that the next leader has it a
// second later. It returns within eight seconds whatever handlers and SQS
// do: nil if every message was settled, else an error that says how many were
// not. Those come back when their visibility has run out.
func (s *Server) Serve(ctx context.Context) error {
	if !s.begin() {
		return errors.New("serve: called a second time")
	}
	// Settling outlives ctx: a message that is finished must be deleted, and one
	// that is not must be given back, also while the process stops.
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
	s.giveBackUnfinished(working, settling)
	if s.awaitIdle(settling, settleStop) {
		return nil
	}
	n, _ := s.Held()
	return fmt.Errorf("stop serving %s: %d messages are not settled", s.URL, n)
}

// begin makes the server ready to serve, once.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		return false
	}
	s.changed = sync.NewCond(&s.mu)
	s.calls = make(chan struct{}, callsAtOnce)
	s.held = make(map[string]*held)
	s.open = make(map[Outcome]*batch)
	s.receivers = 1
	return true
}

// LastReceive returns when SQS last answered a receive, with messages or
// without; zero if it never did. While receiving waits for room it returns the
// present: that is no failure of SQS, and a restart would make it worse.
func (s *Server) LastReceive() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return time.Now()
	}
	return s.received
}

// Held returns how many messages are held, and since when the oldest of them
// is; zero without any.
func (s *Server) Held() (n int, oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.held {
		if oldest.IsZero() || h.since.Before(oldest) {
			oldest = h.since
		}
	}
	return len(s.held), oldest
}

// serveMessage is the life of a message, from its receive to its settlement. Whatever
// waits for a message waits in here.
func (s *Server) serveMessage(ctx, settling context.Context, h *held, m Message) {
	// A body can have a megabyte, and its handler may run for hours: all that is
	// kept of it here is what the log can get.
	kept := m
	kept.Body = strings.Clone(m.Body[:min(logged, len(m.Body))])
	ctx = trace.Receive(ctx, m.ID)
	err := s.handle(ctx, m)
	if !s.claim(h) { // the server stops and gives the message back
		trace.Settled(ctx, time.Now(), GivenBack.String())
		return
	}
	s.finish(ctx, settling, h, kept, err)
}

// finish does with a claimed message what its handler's error asks for.
func (s *Server) finish(ctx, settling context.Context, h *held, m Message, err error) {
	defer s.ends(&s.live)
	begin := time.Now()
	outcome, why := outcomeOf(err), err
	switch outcome {
	case Deleted:
		err = s.settle(ctx, settling, h, Deleted)
	case Left:
		s.forget(h)
		err = nil
	case Rejected:
		err = s.reject(ctx, settling, h, m, err)
	case GivenBack, Unsettled:
		s.awaitExtension(h)
		err = s.settle(ctx, settling, h, GivenBack)
	}
	if err != nil {
		s.Log.Error(err, "could not settle message, it comes back by itself", "message", m.ID, "outcome", outcome.String())
		outcome, why = Unsettled, err
	}
	s.metrics().Settled(outcome, why)
	trace.Settled(ctx, begin, outcome.String())
}

// handle calls the handler, and is the one place that recovers: a message that
// brings the process down would do it again at every delivery.
func (s *Server) handle(ctx context.Context, m Message) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx) // arrived while stopping
	}
	id := m.ID // m itself would be kept for as long as the handler runs
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v", p)
			s.Log.Error(err, "handler panicked", "message", id, "stack", string(debug.Stack()))
		}
	}()
	return s.Handler.Handle(ctx, m)
}

// reject gets a message out of the way that can never be handled.
func (s *Server) reject(ctx, settling context.Context, h *held, m Message, why error) error {
	s.mu.Lock()
	redrive := s.redrive
	s.mu.Unlock()

	// What is left comes back every few seconds, for days where retention is
	// long: a line for each doubling of its receives is enough.
	log := s.Log
	if m.ReceiveCount > 0 && bits.OnesCount(uint(m.ReceiveCount)) != 1 {
		log = log.V(1)
	}
	log.Info("message rejected", "message", m.ID, "why", why.Error(), "redrive", redrive.String(),
		"receives", m.ReceiveCount, "body", strconv.QuoteToASCII(m.Body))

	if redrive == redriveAbsent {
		return s.settle(ctx, settling, h, Deleted)
	}
	s.forget(h)
	return nil
}

// claim makes a message the caller's to settle; it succeeds once. From then on
// the message is not extended any more.
func (s *Server) claim(h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.settling {
		return false
	}
	h.settling = true
	return true
}

// awaitExtension waits until no extension of a claimed message is under way:
// reaching SQS after the message was given back, it would hide it again.
func (s *Server) awaitExtension(h *held) {
	s.mu.Lock()
	extension := h.extension
	s.mu.Unlock()
	if extension != nil {
		<-extension
	}
}

// forget lets go of a message that needs no call to SQS any more.
func (s *Server) forget(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, h.id)
	s.idle()
	s.changed.Broadcast()
}

// ends counts one less of what Serve waits for.
func (s *Server) ends(count *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*count--
	s.changed.Broadcast()
}

// errUnfinished gives back a message whose handler ignored that its context ended.
var errUnfinished = fmt.Errorf("%w: handler did not return in time", ErrStopping)

// giveBackUnfinished takes the messages away from the handlers that still run
// and starts to give them back. What those handlers return is ignored.
func (s *Server) giveBackUnfinished(ctx, settling context.Context) {
	var unfinished []*held
	s.mu.Lock()
	for _, h := range s.held {
		if !h.settling {
			h.settling = true
			unfinished = append(unfinished, h)
		}
	}
	s.mu.Unlock()
	for _, h := range unfinished {
		s.Log.Error(errUnfinished, "message given back while its handler runs", "message", h.id)
		go s.finish(ctx, settling, h, Message{ID: h.id}, errUnfinished)
	}
}

// awaitIdle waits until nothing is received, worked on or extended any more, and
// reports whether that came to be in time.
func (s *Server) awaitIdle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.await(ctx, func() bool { return s.receivers == 0 && s.live == 0 && !s.extending })
}

// await waits until ready, which is called with mu held and looks at what
// s.changed tells of, and reports false if ctx ended first.
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

// visibility is the one to receive with, in whole seconds.
func (s *Server) visibility() time.Duration {
	if s.Visibility <= 0 {
		return defaultVisibility
	}
	return time.Duration(seconds(s.Visibility)) * time.Second
}

// seconds rounds up to what SQS counts in.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
