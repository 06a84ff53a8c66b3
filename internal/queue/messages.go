package queue

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// The messages of a server, from their receives to their settlements. What they count as:
//
//	reserved   a receive in progress may bring it
//	inFlight   SQS has delivered it, and it is neither deleted nor returned nor left
//	unsettled  … and its handler runs, or its settlement failed: it may still join a batch
//	open       … it waits in a batch for others to share its call
//	running    its goroutine has not ended: all of inFlight, and those that are being counted
//
// Receiving goes on while reserved and inFlight together leave room. Open batches are sent
// when unsettled is zero, because nobody can join them any more. [Server.Serve] returns when
// running and receivers are zero and the leases are no longer extended. [leases] and [batch] work on
// it under its lock.
type messages struct {
	max int // in flight and reserved

	mu      sync.Mutex // guards all that follows, and each inFlight
	changed *sync.Cond // signalled when a message or a receiver has ended, or there is more room

	inFlight map[string]*inFlight // by message id
	batcher  batcher
	running  int // goroutines of messages
	bodies   int // bytes of the bodies that handlers still use

	receivers   int       // goroutines that receive
	reserved    int       // messages that the receives in progress may bring
	receiveMost int       // messages to ask for in one receive, by the size of the last ones
	fullSince   time.Time // since when receiving waits for room; zero: it does not

	extending bool // the loop runs that extends leases
}

// inFlight is a message from its receive to its settlement. messages.mu guards all
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
	extension chan struct{} // closed when the extension in progress has ended; nil without one

	settling bool  // the handler has returned, or is not waited for
	err      error // of the last batch with this message
}

func (t *messages) begin(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.max = most
	t.changed = sync.NewCond(&t.mu)
	t.inFlight = make(map[string]*inFlight)
	t.batcher.open = make(map[Outcome]*batch)
	t.receiveMost = batchSize
	t.receivers = 1
}

// count is [Server.InFlight].
func (t *messages) count() (n int, oldest time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.inFlight {
		if oldest.IsZero() || f.since.Before(oldest) {
			oldest = f.since
		}
	}
	return len(t.inFlight), oldest
}

// countDown counts one less of what Serve waits for.
func (t *messages) countDown(count *int) { t.change(func() { *count-- }) }

// change signals a change, which it makes under the lock.
func (t *messages) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	t.changed.Broadcast()
}

// awaitIdle waits until nothing is received, handled or extended any more. It returns
// false if that takes longer than limit.
func (t *messages) awaitIdle(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.await(ctx, func() bool { return t.receivers == 0 && t.running == 0 && !t.extending })
}

// await waits until ready returns true, or returns false if ctx ends first. ready is
// called with mu held, each time t.changed is signalled.
func (t *messages) await(ctx context.Context, ready func() bool) bool {
	stop := context.AfterFunc(ctx, func() { t.change(func() {}) })
	defer stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for !ready() {
		if ctx.Err() != nil {
			return false
		}
		t.changed.Wait()
	}
	return true
}

// tryAddReceiver counts one more receiver, unless there are limit of them.
func (t *messages) tryAddReceiver(limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receivers >= limit {
		return false
	}
	t.receivers++
	return true
}

// reserve waits until it has reserved room for one receive, and returns for how many
// messages. It returns false if ctx ends first.
func (t *messages) reserve(ctx context.Context) (asked int, ok bool) {
	ok = t.await(ctx, func() (reserved bool) {
		asked, reserved = t.reserveRoom()
		switch full := !reserved && ctx.Err() == nil; {
		case !full:
			t.fullSince = time.Time{}
		case t.fullSince.IsZero():
			t.fullSince = time.Now()
		}
		return reserved
	})
	return asked, ok
}

// tryReserve is reserve without the wait.
func (t *messages) tryReserve() (asked int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reserveRoom()
}

// reserveRoom reserves room for all messages that a receive may bring, if there is any: as
// many as SQS gives, unless the last response was large. To receive fewer at the bound would
// cost a call for each message. The caller holds mu.
func (t *messages) reserveRoom() (asked int, ok bool) {
	asked = min(t.receiveMost, t.max)
	if len(t.inFlight)+t.reserved+asked > t.max || t.bodies >= maxBodies {
		return 0, false
	}
	t.reserved += asked
	return asked, true
}

// full returns since when receiving waits for room; zero: it does not.
func (t *messages) full() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fullSince
}

// begun is a message whose handler is to be called.
type begun struct {
	*inFlight
	message Message
}

// admit replaces the room that one receive had reserved by what it has brought. For a
// message that is in flight already it keeps the newest receipt, and the handler goes on.
// It returns the others, and whether the caller must run the loop that extends leases.
func (t *messages) admit(asked int, received []types.Message, visibility time.Duration) (fresh []begun, extend bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved -= asked
	bytes := 0
	for _, r := range received {
		m := messageOf(r)
		bytes += len(m.Body)
		f, joins := t.inFlight[m.ID]
		if !joins {
			f = &inFlight{id: m.ID, since: now, body: len(m.Body)}
			m.release = func() { t.releaseBody(f) }
			t.inFlight[m.ID] = f
			t.bodies += f.body
			t.batcher.unsettled++
			t.running++
			fresh = append(fresh, begun{f, m})
		}
		f.receipt, f.receives = aws.ToString(r.ReceiptHandle), m.ReceiveCount
		f.expired = false
		f.lease = visibility
		f.renewAt = now.Add(renewAfter(f.lease, visibility))
	}
	if len(received) > 0 {
		t.adaptReceiveSize(len(received), bytes)
	}
	extend = len(t.inFlight) > 0 && !t.extending
	t.extending = t.extending || extend
	t.changed.Broadcast() // the receive may have brought fewer messages than reserved
	return fresh, extend
}

// adaptReceiveSize goes by a response that had n messages with so many bytes of bodies.
// After a large one, the next receive asks for as many messages as fit into a response
// that is not large; after others, for twice as many each time. The caller holds mu.
func (t *messages) adaptReceiveSize(n, bytes int) {
	if bytes > largeAnswer {
		t.receiveMost = max(1, n*largeAnswer/bytes)
	} else {
		t.receiveMost = min(2*t.receiveMost, batchSize)
	}
}

// releaseBody counts the bytes of a message's body out. It may be called more than once.
func (t *messages) releaseBody(f *inFlight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bodies -= f.body
	f.body = 0
	if !t.fullSince.IsZero() {
		t.changed.Broadcast()
	}
}

// claim gives the caller the right to finish a message. It returns true once for each
// message, which is not extended any more from then on.
func (t *messages) claim(f *inFlight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.settling {
		return false
	}
	f.settling = true
	return true
}

// claimAll claims all messages that nobody has claimed, and returns them.
func (t *messages) claimAll() (claimed []*inFlight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.inFlight {
		if !f.settling {
			f.settling = true
			claimed = append(claimed, f)
		}
	}
	return claimed
}

// awaitExtension waits until no extension of a claimed message is in progress. One that
// reached SQS after the message was returned to the queue would hide it again.
func (t *messages) awaitExtension(f *inFlight) {
	t.mu.Lock()
	extension := f.extension
	t.mu.Unlock()
	if extension != nil {
		<-extension
	}
}

// forget drops a message that needs no call to SQS any more.
func (t *messages) forget(f *inFlight) {
	t.change(func() {
		delete(t.inFlight, f.id)
		t.batcher.countOut()
	})
}
