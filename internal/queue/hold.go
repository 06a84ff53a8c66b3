package queue

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/node-termination-handler/node-termination-handler/internal/renew"
)

// maxLease bounds what one extension asks for. Each asks for twice the one
// before, so that a message that is held for an hour costs little more than one
// that is held for a minute, and one that was held for a minute is not gone for
// an hour after a crash. Two minutes is all that a spot warning has.
const maxLease = 2 * time.Minute

// hold is the loop that extends every held message, until none is left. The
// server starts it again with the next one.
//
// It looks eight times in a lease, and extends what has lost half of its own:
// soon enough for a few more tries, and messages that came in one after another
// share a batch.
func (s *Server) hold(ctx context.Context) {
	failing := outage{name: "extending visibility"}
	step := s.visibility() / 8
	err := renew.Every(ctx, step, step, func(ctx context.Context) error {
		due, some := s.due(time.Now())
		if !some {
			return renew.ErrGone
		}
		err := s.extend(ctx, due)
		if err != nil && ctx.Err() == nil {
			failing.failed(s.Log, err)
			return err
		}
		failing.ended(s.Log)
		return nil
	})
	if err != nil { // else due has said so already
		s.mu.Lock()
		defer s.mu.Unlock()
		s.extending = false
		s.changed.Broadcast()
	}
}

// extension is one batch of messages to extend, with the receipts and leases to
// do it with: a redelivery may change those of the messages meanwhile.
type extension struct {
	held     []*held
	receipts []string
	leases   []time.Duration
	ended    chan struct{}
}

// due returns the messages of which half the lease has gone, the most overdue
// first, and whether any message is held at all.
func (s *Server) due(now time.Time) (batches []extension, some bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
		s.extending = false
		s.changed.Broadcast()
		return nil, false
	}
	var due []*held
	for _, h := range s.held {
		if !h.settling && !h.gone && !now.Before(h.renewAt) {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *held) int { return a.renewAt.Compare(b.renewAt) })
	longest := max(maxLease, s.visibility())
	for chunk := range slices.Chunk(due, batchSize) {
		b := extension{held: chunk, ended: make(chan struct{})}
		for _, h := range chunk {
			h.extension = b.ended
			b.receipts = append(b.receipts, h.receipt)
			b.leases = append(b.leases, min(2*h.lease, longest))
		}
		batches = append(batches, b)
	}
	return batches, true
}

// extend asks SQS for the batches and returns an error if another try is worth
// it: it is not for a message that is gone, nor without the permission.
func (s *Server) extend(ctx context.Context, batches []extension) error {
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for _, b := range batches {
		calls.Go(func() error {
			asked := time.Now()
			return s.extended(b, asked, s.changeVisibility(ctx, b.receipts, b.leases))
		})
	}
	return calls.Wait()
}

// extended notes what became of a batch.
func (s *Server) extended(b extension, asked time.Time, errs []error) error {
	var failed error
	var done, refused int
	s.mu.Lock()
	for i, h := range b.held {
		h.extension = nil
		switch err := errs[i]; {
		case err == nil:
			done++
			if h.receipt == b.receipts[i] { // else it was delivered again meanwhile
				h.lease = b.leases[i]
				h.renewAt = asked.Add(h.lease / 2)
			}
		case gone(err):
			refused++
			h.gone = h.receipt == b.receipts[i]
		case !denied(err):
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
		s.Log.V(1).Info("messages can be held no longer, their handlers go on", "messages", refused)
	}
	return failed
}
