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

// leases extends the visibility of the messages in flight.
type leases struct {
	messages   *messages
	calls      *calls
	visibility time.Duration // of a message that has just been received
}

// extend extends the visibility of all messages in flight, until none is left. The server
// calls it again with the next one.
//
// It looks eight times in a visibility timeout, and extends what is due, see renewAfter.
// Messages that came in one after another share a batch.
func (l *leases) extend(ctx context.Context) {
	failing := outage("extending visibility")
	step := l.visibility / 8
	err := retry.Renew(ctx, step, step, func(ctx context.Context) error {
		due, some := l.due(time.Now())
		if !some {
			return retry.ErrNothingToRenew
		}
		err := l.extendDue(ctx, due)
		if err != nil && ctx.Err() == nil {
			failing.Failed(l.calls.client.Log, err)
			return err
		}
		failing.Ended(l.calls.client.Log)
		return nil
	})
	if err != nil { // else due has cleared extending
		l.messages.change(func() { l.messages.extending = false })
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
func renewAfter(lease, first time.Duration) time.Duration {
	if lease <= first {
		return lease / 2
	}
	return lease - max(lease/4, 3*first/4)
}

// due returns the messages whose lease is to be extended, the most overdue first, and
// whether any message is in flight at all.
func (l *leases) due(now time.Time) (batches []extension, some bool) {
	l.messages.mu.Lock()
	defer l.messages.mu.Unlock()
	if len(l.messages.inFlight) == 0 {
		l.messages.extending = false
		l.messages.changed.Broadcast()
		return nil, false
	}
	var due []*inFlight
	for _, f := range l.messages.inFlight {
		if !f.settling && !f.expired && !now.Before(f.renewAt) {
			due = append(due, f)
		}
	}
	slices.SortFunc(due, func(a, b *inFlight) int { return a.renewAt.Compare(b.renewAt) })
	longest := max(maxLease, l.visibility)
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

// extendDue makes the calls for the batches. It returns an error if another try may help,
// which it does not for a message that is gone, nor without the permission.
func (l *leases) extendDue(ctx context.Context, batches []extension) error {
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for _, b := range batches {
		calls.Go(func() error {
			asked := time.Now()
			return l.record(b, asked, l.calls.changeVisibility(ctx, b.receipts, b.leases))
		})
	}
	return calls.Wait()
}

// record records the results of a batch, and returns an error as extendDue does.
func (l *leases) record(b extension, asked time.Time, errs []error) error {
	var failed error
	var done, refused int
	l.messages.mu.Lock()
	for i, f := range b.messages {
		f.extension = nil
		switch err := errs[i]; {
		case err == nil:
			done++
			if f.receipt == b.receipts[i] { // else it was delivered again meanwhile
				f.lease = b.leases[i]
				f.renewAt = asked.Add(renewAfter(f.lease, l.visibility))
			}
		case isGone(err):
			refused++
			f.expired = f.receipt == b.receipts[i]
		case !awserr.Denied(err):
			failed = err
		}
	}
	close(b.ended)
	l.messages.mu.Unlock()

	if done > 0 {
		l.calls.client.Metrics.Extended(done)
	}
	if refused > 0 {
		l.calls.client.Metrics.ExtendRefused(refused)
		l.calls.client.Log.V(1).Info("SQS refuses to extend the visibility of messages, their handlers go on",
			"messages", refused)
	}
	return failed
}
