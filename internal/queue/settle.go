package queue

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// batchWindow is how long a settlement, which deletes a message or returns it to the
	// queue, waits for others to share its call. That costs nothing, because the message
	// stays hidden meanwhile. Where handlers end at ten a second or more, it fills the
	// batches. A settlement does not wait where no other one can come.
	batchWindow = time.Second

	// A settlement that failed is tried again for about four seconds. Then the
	// message comes back by itself, and its handler will find little to do.
	settleTries = 5

	// stopNackDelay is how long the messages of a server that stops stay hidden. One
	// that is visible at once may still be given to the long poll that was cancelled
	// just before, because SQS might not know of that yet. The next leader would then not
	// see it until its visibility has run out.
	stopNackDelay = time.Second

	// maxNackDelay is the longest delay of a message that is returned to the queue: a
	// spot warning must get several more tries in its two minutes.
	maxNackDelay = 30 * time.Second
)

// settleBackoff is the pause between the tries of one settlement.
var settleBackoff = retry.Backoff{First: 250 * time.Millisecond, Factor: 2}

// errDeliveredAgain is the error of a settlement with a receipt that is no longer the
// newest. SQS accepts such a receipt and may do nothing.
var errDeliveredAgain = errors.New("delivered again meanwhile")

// batch is up to ten settlements of the same kind in one call. The first one leads: its
// goroutine waits until the batch is sealed and makes the call, and the others wait for it.
// messages.mu guards messages until the batch is sealed.
type batch struct {
	messages []*inFlight
	sealed   chan struct{} // closed when no more can join
	done     chan struct{} // closed when inFlight.err is set for each message
}

// batcher collects settlements of the same kind into batches. messages.mu guards it.
type batcher struct {
	unsettled int                // messages that may still join a batch
	open      map[Outcome]*batch // batches that can be joined
}

// add puts a message into the open batch of its kind, and reports whether it leads it.
func (b *batcher) add(f *inFlight, how Outcome) (_ *batch, leads bool) {
	joined := b.open[how]
	leads = joined == nil
	if leads {
		joined = &batch{sealed: make(chan struct{}), done: make(chan struct{})}
		b.open[how] = joined
	}
	joined.messages = append(joined.messages, f)
	if len(joined.messages) == batchSize {
		b.seal(how)
	}
	b.countOut()
	return joined, leads
}

// countOut notes that a message will not join a batch any more. After the last one the
// open batches have nothing to wait for.
func (b *batcher) countOut() {
	b.unsettled--
	if b.unsettled > 0 {
		return
	}
	for how := range b.open {
		b.seal(how)
	}
}

// seal closes an open batch to others.
func (b *batcher) seal(how Outcome) {
	close(b.open[how].sealed)
	delete(b.open, how)
}

// settle has SQS delete a message or make it visible again, as how says, in a call that
// it shares with others. It forgets the message in the same moment. A failed call is
// tried again a few times, until the second context ends; then the message is forgotten
// and the error returned.
func (s *Server) settle(ctx, settling context.Context, f *inFlight, how Outcome) error {
	for try := 1; ; try++ {
		err := s.settleOnce(ctx, settling, f, how)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errDeliveredAgain):
			continue
		case how == GivenBack && (isGone(err) || awserr.Denied(err)):
			// The message is not there any more; or it comes back later than it should,
			// and the one warning about the missing permission has said so.
			s.messages.forget(f)
			return nil
		case try >= settleTries, isGone(err), awserr.Denied(err), settling.Err() != nil:
			s.messages.forget(f)
			return err
		}
		_ = retry.Sleep(settling, settleBackoff.Pause(try)) // the next try sees an end of the context
	}
}

// settleOnce adds a message to a batch and returns its result.
func (s *Server) settleOnce(ctx, settling context.Context, f *inFlight, how Outcome) error {
	s.messages.mu.Lock()
	b, leads := s.messages.batcher.add(f, how)
	s.messages.mu.Unlock()
	if !leads {
		<-b.done
		return f.err
	}

	timer := time.NewTimer(batchWindow)
	defer timer.Stop()
	select {
	case <-b.sealed:
	case <-timer.C:
		s.messages.mu.Lock()
		if s.messages.batcher.open[how] == b {
			s.messages.batcher.seal(how)
		}
		s.messages.mu.Unlock()
	}
	s.flush(ctx, settling, b, how)
	return f.err
}

// flush makes the call for a sealed batch. It forgets each message for which that succeeded,
// under the lock under which it sees that the message was not delivered again meanwhile.
func (s *Server) flush(ctx, settling context.Context, b *batch, how Outcome) {
	receipts := make([]string, len(b.messages))
	delays := make([]time.Duration, len(b.messages))
	s.messages.mu.Lock()
	for i, f := range b.messages {
		receipts[i] = f.receipt
		delays[i] = nackDelay(f.receives)
		if ctx.Err() != nil { // the server stops
			delays[i] = stopNackDelay
		}
	}
	s.messages.mu.Unlock()

	var errs []error
	if how == Deleted {
		errs = s.calls.deleteMessages(settling, receipts)
	} else {
		errs = s.calls.changeVisibility(settling, receipts, delays)
	}

	s.messages.mu.Lock()
	defer s.messages.mu.Unlock()
	for i, f := range b.messages {
		f.err = errs[i]
		if f.receipt != receipts[i] {
			f.err = errDeliveredAgain
		}
		if f.err == nil {
			delete(s.messages.inFlight, f.id)
		} else {
			s.messages.batcher.unsettled++ // it may join another batch
		}
	}
	s.messages.changed.Broadcast()
	close(b.done)
}

// nackDelay is how long a message stays hidden that is returned to the queue after so
// many receives: 1, 2, 4 s and so on up to 30 s, less up to a half at random, so that
// messages that failed together do not come back together. The first delay is short
// because most failures are: the API server restarts, a call is throttled. SQS counts
// in whole seconds.
func nackDelay(receives int) time.Duration {
	longest := int(maxNackDelay / time.Second)
	if doublings := max(receives-1, 0); doublings < bits.Len(uint(longest)) {
		longest = min(longest, 1<<doublings)
	}
	return time.Duration(longest-rand.IntN(longest/2+1)) * time.Second
}
