package queue

import (
	"context"
	"fmt"
	"math/bits"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// serveMessage is the life of a message, from its receive to its settlement. All that
// waits for a message waits in here.
func (s *Server) serveMessage(ctx, settling context.Context, f *inFlight, m Message) {
	// A body can have a megabyte, and its handler may run for hours. Only the part
	// that may be logged is kept here.
	kept := m
	kept.Body = strings.Clone(m.Body[:min(logged, len(m.Body))])
	err := s.handle(ctx, m)
	s.messages.releaseBody(f)
	if !s.messages.claim(f) { // the server stops, and nackUnfinished has returned it to the queue
		return
	}
	s.finish(ctx, settling, f, kept, err)
}

// finish does with a claimed message what the handler's return asks for. It is the only
// place that deletes messages.
func (s *Server) finish(ctx, settling context.Context, f *inFlight, m Message, err error) {
	defer s.messages.countDown(&s.messages.running)
	outcome, why := outcomeOf(err), err
	switch outcome {
	case Deleted:
		err = s.settle(ctx, settling, f, Deleted)
	case Left:
		s.messages.forget(f)
		err = nil
	case Rejected:
		err = s.reject(ctx, settling, f, m, err)
	case GivenBack, Unsettled:
		s.messages.awaitExtension(f)
		err = s.settle(ctx, settling, f, GivenBack)
	}
	if err != nil {
		logging.Warn(s.Log, "the message could not be deleted or returned: SQS delivers it again",
			"error", err, "message", m.ID, "outcome", outcome.String())
		outcome, why = Unsettled, err
	}
	s.metrics().Settled(outcome, why)
}

// handle calls the handler and recovers from a panic: a message that ends the process
// would do so again at every delivery.
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

// reject deletes a message that can never be handled where the queue has no redrive
// policy. With one, the message is left until SQS parks it.
func (s *Server) reject(ctx, settling context.Context, f *inFlight, m Message, why error) error {
	redrive := redrive(s.redrive.Load())

	// A message that is left comes back every few seconds, for days if the retention is
	// long. One line for each doubling of its receives is enough.
	if m.ReceiveCount <= 0 || bits.OnesCount(uint(m.ReceiveCount)) == 1 {
		logging.Warn(s.Log, "message rejected", "message", m.ID, "error", why, "redrive", redrive.String(),
			"receives", m.ReceiveCount, "body", strconv.QuoteToASCII(m.Body))
	}

	if redrive == redriveAbsent {
		return s.settle(ctx, settling, f, Deleted)
	}
	s.messages.forget(f)
	return nil
}

// errUnfinished is why a message is returned to the queue whose handler did not end with
// its context.
var errUnfinished = fmt.Errorf("%w: handler did not return in time", ErrStopping)

// nackUnfinished starts to return to the queue the messages whose handlers still run.
// What those handlers return is ignored.
func (s *Server) nackUnfinished(ctx, settling context.Context) {
	for _, f := range s.messages.claimAll() {
		logging.Warn(s.Log, "message returned to the queue while its handler runs", "error", errUnfinished, "message", f.id)
		go s.finish(ctx, settling, f, Message{ID: f.id}, errUnfinished)
	}
}
