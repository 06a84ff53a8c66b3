package queue

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"time"
)

const (
	// linger is how long a settlement waits for others to share its call. It
	// costs nothing, since the message is held meanwhile, and while handlers end
	// at ten a second or more it fills the batches. Where no other settlement
	// can come there is no wait at all.
	linger = time.Second

	// A settlement that failed is tried again for about four seconds; then the
	// message comes back by itself and its handler will find little to do.
	settleTries      = 5
	firstSettlePause = 250 * time.Millisecond

	// stopGiveBack is how long the messages of a server that stops stay away. One
	// that is visible at once can still go to the long poll that was cancelled
	// just before, of which SQS need not know yet, and the next leader would not
	// see it until its visibility has run out.
	stopGiveBack = time.Second

	// maxGiveBack is the longest that a message is given back for: a spot
	// warning must get several more tries in its two minutes.
	maxGiveBack = 30 * time.Second
)

// errDeliveredAgain is a settlement that used a receipt which is no longer the
// newest. SQS says yes to such a one and may do nothing.
var errDeliveredAgain = errors.New("delivered again while being settled")

// batch collects up to ten messages for one call. Its first message leads: that
// goroutine waits until the batch is sealed and makes the call, and the others
// wait for it. Server.mu guards held until then.
type batch struct {
	held   []*held
	sealed chan struct{} // closed when no more can join
	done   chan struct{} // closed when each held.err is set
}

// settle has SQS delete a message or take it back, as how says, in a call that
// it shares with others, and forgets it in the same moment. A failed call is
// tried again a few times, until settling ends; then the message is forgotten
// and the error returned.
func (s *Server) settle(ctx, settling context.Context, h *held, how Outcome) error {
	wait := firstSettlePause
	for try := 1; ; try++ {
		err := s.join(ctx, settling, h, how)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errDeliveredAgain):
			continue
		case how == GivenBack && (gone(err) || denied(err)):
			// Nothing is there to give back; or it comes back later than it should,
			// which the one warning about the missing permission has told.
			s.forget(h)
			return nil
		case try >= settleTries, gone(err), denied(err), settling.Err() != nil:
			s.forget(h)
			return err
		}
		pause(settling, wait)
		wait *= 2
	}
}

// join adds a message to the open batch and waits for the result.
func (s *Server) join(ctx, settling context.Context, h *held, how Outcome) error {
	s.mu.Lock()
	b := s.open[how]
	leads := b == nil
	if leads {
		b = &batch{sealed: make(chan struct{}), done: make(chan struct{})}
		s.open[how] = b
	}
	b.held = append(b.held, h)
	if len(b.held) == batchSize {
		s.seal(how)
	}
	s.idle()
	s.mu.Unlock()
	if !leads {
		<-b.done
		return h.err
	}

	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-b.sealed:
	case <-timer.C:
		s.mu.Lock()
		if s.open[how] == b {
			s.seal(how)
		}
		s.mu.Unlock()
	}
	s.flush(ctx, settling, b, how)
	return h.err
}

// idle notes that a message has asked for its settlement or never will. When no
// other might still ask, the open batches have nothing to wait for. The caller
// holds mu.
func (s *Server) idle() {
	s.busy--
	if s.busy > 0 {
		return
	}
	for how := range s.open {
		s.seal(how)
	}
}

// seal closes the open batch to others. The caller holds mu.
func (s *Server) seal(how Outcome) {
	close(s.open[how].sealed)
	delete(s.open, how)
}

// flush makes the call for a sealed batch. What succeeded is forgotten, in the
// same moment in which it is seen that nothing has joined it meanwhile.
func (s *Server) flush(ctx, settling context.Context, b *batch, how Outcome) {
	receipts := make([]string, len(b.held))
	backoff := make([]time.Duration, len(b.held))
	s.mu.Lock()
	for i, h := range b.held {
		receipts[i] = h.receipt
		backoff[i] = giveBack(h.receives)
		if ctx.Err() != nil { // the server stops
			backoff[i] = stopGiveBack
		}
	}
	s.mu.Unlock()

	var errs []error
	if how == Deleted {
		errs = s.deleteMessages(settling, receipts)
	} else {
		errs = s.changeVisibility(settling, receipts, backoff)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for i, h := range b.held {
		h.err = errs[i]
		if h.receipt != receipts[i] {
			h.err = errDeliveredAgain
		}
		if h.err == nil {
			delete(s.held, h.id)
		} else {
			s.busy++
		}
	}
	s.changed.Broadcast()
	close(b.done)
}

// giveBack is how long a message stays away that was received so many times: 1,
// 2, 4 s and so on, less up to a half at random, so that what failed together
// does not come back together. The first is short because most failures are:
// the API server restarts, a call is throttled. SQS counts in whole seconds.
func giveBack(receives int) time.Duration {
	longest := int(maxGiveBack / time.Second)
	if doublings := max(receives-1, 0); doublings < bits.Len(uint(longest)) {
		longest = min(longest, 1<<doublings)
	}
	return time.Duration(longest-rand.IntN(longest/2+1)) * time.Second
}
