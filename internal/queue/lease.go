package queue

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// maxLease bounds the visibility that one extension asks for. Each extension asks for
// twice the one before: a message in flight for an hour then costs few calls more than
// one for a minute, and one in flight for a minute does not stay hidden for an hour after
// a crash. A spot warning leaves two minutes.
const maxLease = 2 * time.Minute

// extendLeases extends the visibility of all messages in flight, until none is left. The
// server starts it again with the next one.
//
// It looks eight times in a visibility timeout, and extends what is due, see renewAfter.
// Messages that came in one after another share a batch.
func (s *Server) extendLeases(ctx context.Context) {
	failing := outage("extending visibility")
	step := s.visibility() / 8
	err := retry.Renew(ctx, step, step, func(ctx context.Context) error {
		due, some := s.due(time.Now())
		if !some {
			return retry.ErrNothingToRenew
		}
		err := s.extend(ctx, due)
		if err != nil && ctx.Err() == nil {
			failing.Failed(s.Log, err)
			return err
		}
		failing.Ended(s.Log)
		return nil
	})
	if err != nil { // else due has cleared extending
		s.mu.Lock()
		defer s.mu.Unlock()
		s.extending = false
		s.changed.Broadcast()
	}
}

// outage logs calls of SQS that fail.
func outage(what string) logging.Outage {
	return logging.Outage{Fails: "SQS fails, trying again", Works: "SQS works again", What: what}
}

// extension is one batch of messages to extend, with copies of their receipts and leases:
// a redelivery may change those of the messages meanwhile.
type extension struct {
	messages []*inFlight
	receipts []string
	leases   []time.Duration
	ended    chan struct{}
}

// renewAfter is when to extend a lease that begins now: when half of the first one is left, and later a quarter, or as
// much as three quarters of the first. That leaves time for another try, also where SQS does not answer the first. A
// storm is mostly over before its messages are due for a second time.
func (s *Server) renewAfter(lease time.Duration) time.Duration {
	if lease <= s.visibility() {
		return lease / 2
	}
	return lease - max(lease/4, 3*s.visibility()/4)
}

// due returns the messages whose lease is to be extended, the most overdue first, and
// whether any message is in flight at all.
func (s *Server) due(now time.Time) (batches []extension, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.inFlight) == 0 {
		s.extending = false
		s.changed.Broadcast()
		return nil, false
	}
	var due []*inFlight
	for _, f := range s.inFlight {
		if !f.settling && !f.expired && !now.Before(f.renewAt) {
			due = append(due, f)
		}
	}
	slices.SortFunc(due, func(a, b *inFlight) int { return a.renewAt.Compare(b.renewAt) })
	longest := max(maxLease, s.visibility())
	for chunk := range slices.Chunk(due, batchSize) {
		b := extension{messages: chunk, ended: make(chan struct{})}
		for _, f := range chunk {
			f.extension = b.ended
			b.receipts = append(b.receipts, f.receipt)
			b.leases = append(b.leases, min(2*f.lease, longest))
		}
		batches = append(batches, b)
	}
	return batches, true
}

// extend makes the calls for the batches. It returns an error if another try may help,
// which it does not for a message that is gone, nor without the permission.
func (s *Server) extend(ctx context.Context, batches []extension) error {
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for _, b := range batches {
		calls.Go(func() error {
			asked := time.Now()
			return s.recordExtension(b, asked, s.changeVisibility(ctx, b.receipts, b.leases))
		})
	}
	return calls.Wait()
}

// recordExtension records the results of a batch, and returns an error as extend does.
func (s *Server) recordExtension(b extension, asked time.Time, errs []error) error {
	var failed error
	var done, refused int
	s.mu.Lock()
	for i, f := range b.messages {
		f.extension = nil
		switch err := errs[i]; {
		case err == nil:
			done++
			if f.receipt == b.receipts[i] { // else it was delivered again meanwhile
				f.lease = b.leases[i]
				f.renewAt = asked.Add(s.renewAfter(f.lease))
			}
		case isGone(err):
			refused++
			f.expired = f.receipt == b.receipts[i]
		case !awserr.Denied(err):
			failed = err
		}
	}
	close(b.ended)
	s.mu.Unlock()

	if done > 0 {
		s.metrics().Extended(done)
	}
	if refused > 0 {
		s.metrics().ExtendRefused(refused)
		s.Log.V(1).Info("SQS refuses to extend the visibility of messages, their handlers go on", "messages", refused)
	}
	return failed
}
