package queue

import (
	"context"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// longPoll is the longest wait that SQS allows.
	longPoll = 20 * time.Second
	// shortPoll is the shortest wait that can be asked for. The SDK does not send
	// a zero, and SQS would then use the queue's own ReceiveMessageWaitTimeSeconds,
	// which may be 20 s. With a wait, SQS also asks all of its servers, not a sample.
	shortPoll = time.Second
	// pollGrace is how much longer than its wait a receive may take. An endpoint that
	// has not answered then is taken for dead.
	pollGrace = 10 * time.Second

	// receiveEnds is how long a receive may still take when the process stops. Messages
	// of a response that nobody reads stay hidden until their visibility has run out. If
	// there are any, the response comes within milliseconds.
	receiveEnds = 300 * time.Millisecond
)

// receiveBackoff is the pause after a failed receive. It is short at first, because a
// spot warning leaves two minutes, and longer then, because SQS may be throttling. With
// its jitter it is bounded by Max as well.
var receiveBackoff = retry.Backoff{First: 500 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.5}

// receive is the receiver that always runs: one long poll after another until ctx
// ends. While many messages come in, it starts a further receiver with each receive.
// In a storm all receivers run within a fraction of a second, and a handful of messages
// costs no additional call.
//
// On probation it also ends when the role may not receive, with the error in refused.
func (s *Server) receive(ctx, settling context.Context, refused chan<- error) {
	defer s.countDown(&s.receivers)
	begin := time.Now()
	failing := outage("receiving")
	for {
		asked, ok := s.reserve(ctx)
		if !ok {
			return
		}
		n, err := s.poll(ctx, settling, asked, longPoll)
		if ctx.Err() != nil {
			return
		}
		if awserr.Denied(err) && s.LastReceive().IsZero() && time.Since(begin) < s.Probation {
			refused <- err
			return
		}
		if err != nil {
			s.noteFailure(err)
			failing.Failed(s.Log, err)
			if retry.Sleep(ctx, min(receiveBackoff.Pause(failing.Failures), receiveBackoff.Max)) != nil {
				return
			}
			continue
		}
		failing.Ended(s.Log)
		if plenty(n, asked) && s.tryAddReceiver() {
			go s.receiveMore(ctx, settling)
		}
	}
}

// receiveMore is a further receiver. It ends when the queue runs dry, when there is no
// room, with ctx, and with the first error, which the first receiver then meets too.
func (s *Server) receiveMore(ctx, settling context.Context) {
	defer s.countDown(&s.receivers)
	for {
		s.mu.Lock()
		asked, ok := s.tryReserve()
		s.mu.Unlock()
		if !ok {
			return
		}
		if n, err := s.poll(ctx, settling, asked, shortPoll); err != nil || !plenty(n, asked) || ctx.Err() != nil {
			return
		}
	}
}

// plenty reports whether there are probably more messages after a receive of n. SQS often
// returns fewer than were asked for and has more, hence the half.
func plenty(n, asked int) bool { return n > 0 && n >= asked/2 }

// tryAddReceiver counts one more receiver, unless there are as many as allowed.
func (s *Server) tryAddReceiver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.Receivers
	if limit <= 0 {
		limit = defaultReceivers
	}
	if s.receivers >= limit {
		return false
	}
	s.receivers++
	return true
}

// receiveSize is how many messages a receive asks for: as many as SQS gives, unless the
// last response was large. The caller holds mu.
func (s *Server) receiveSize() int { return min(s.receiveMost, s.maxInFlight()) }

// adaptReceiveSize goes by a response that had n messages with so many bytes of bodies.
// After a large one, the next receive asks for as many messages as fit into a response
// that is not large; after others, for twice as many each time. The caller holds mu.
func (s *Server) adaptReceiveSize(n, bytes int) {
	if bytes > largeAnswer {
		s.receiveMost = max(1, n*largeAnswer/bytes)
	} else {
		s.receiveMost = min(2*s.receiveMost, batchSize)
	}
}

func (s *Server) maxInFlight() int {
	if s.MaxInFlight <= 0 {
		return defaultMaxInFlight
	}
	return s.MaxInFlight
}

// hasRoom reports whether there is room for all messages that a receive may bring. To
// receive fewer at the bound would cost a call for each message. The caller holds mu.
func (s *Server) hasRoom() bool {
	return len(s.inFlight)+s.reserved+s.receiveSize() <= s.maxInFlight() && s.bodies < maxBodies
}

// tryReserve reserves room for one receive, if there is any, and returns for how many
// messages. The caller holds mu.
func (s *Server) tryReserve() (asked int, ok bool) {
	if !s.hasRoom() {
		return 0, false
	}
	asked = s.receiveSize()
	s.reserved += asked
	return asked, true
}

// reserve waits until it has reserved room for one receive, and returns for how many
// messages. It returns false if ctx ends first.
func (s *Server) reserve(ctx context.Context) (asked int, ok bool) {
	ok = s.await(ctx, func() (reserved bool) {
		asked, reserved = s.tryReserve()
		s.full = !reserved && ctx.Err() == nil
		return reserved
	})
	return asked, ok
}

// poll receives once, into room that is reserved for asked messages. It starts a handler
// for each new message, and returns how many messages came in.
func (s *Server) poll(ctx, settling context.Context, asked int, wait time.Duration) (int, error) {
	delayed, stop := retry.WithDelayedCancel(ctx, receiveEnds)
	defer stop()
	polling, cancel := context.WithTimeout(delayed, wait+pollGrace)
	defer cancel()
	answer := &answer{large: s.large}
	defer answer.release()
	out, err := s.Client.ReceiveMessage(polling, &sqs.ReceiveMessageInput{
		QueueUrl:            aws.String(s.URL),
		MaxNumberOfMessages: int32(asked), //nolint:gosec // at most ten
		VisibilityTimeout:   seconds(s.visibility()),
		WaitTimeSeconds:     seconds(wait),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameApproximateReceiveCount,
		},
	}, answer.bound)
	if err != nil {
		s.admit(ctx, settling, asked, nil)
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		s.metrics().ReceiveFailed()
		return 0, s.explain("ReceiveMessage", ReceiveMessage, err)
	}
	s.clock.compare(s.Log, out.ResultMetadata)
	s.mu.Lock()
	s.received, s.refused = time.Now(), refusal{}
	s.mu.Unlock()
	if len(out.Messages) > 0 {
		s.metrics().Received(len(out.Messages))
	}
	s.admit(ctx, settling, asked, out.Messages)
	return len(out.Messages), nil
}

// admit replaces the room that one receive had reserved by what it has brought. For a
// message that is in flight already it keeps the newest receipt, and the handler goes on.
// For each other message it starts a goroutine.
func (s *Server) admit(ctx, settling context.Context, asked int, received []types.Message) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= asked
	bytes := 0
	for _, r := range received {
		m := messageOf(r)
		bytes += len(m.Body)
		f, joins := s.inFlight[m.ID]
		if !joins {
			f = &inFlight{id: m.ID, since: now, body: len(m.Body)}
			m.release = func() { s.releaseBody(f) }
			s.inFlight[m.ID] = f
			s.bodies += f.body
			s.batcher.unsettled++
			s.running++
			go s.serveMessage(ctx, settling, f, m)
		}
		f.receipt, f.receives = aws.ToString(r.ReceiptHandle), m.ReceiveCount
		f.expired = false
		f.lease = s.visibility()
		f.renewAt = now.Add(s.renewAfter(f.lease))
	}
	if len(received) > 0 {
		s.adaptReceiveSize(len(received), bytes)
	}
	if len(s.inFlight) > 0 && !s.extending {
		s.extending = true
		go s.extendLeases(ctx)
	}
	s.changed.Broadcast() // the receive may have brought fewer messages than reserved
}

// releaseBody counts the bytes of a message's body out. It may be called more than once.
func (s *Server) releaseBody(f *inFlight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies -= f.body
	f.body = 0
	if s.full {
		s.changed.Broadcast()
	}
}

func messageOf(r types.Message) Message {
	m := Message{ID: aws.ToString(r.MessageId), Body: aws.ToString(r.Body)}
	sent := r.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)]
	if ms, err := strconv.ParseInt(sent, 10, 64); err == nil {
		m.Sent = time.UnixMilli(ms)
	}
	receives := r.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]
	if n, err := strconv.Atoi(receives); err == nil {
		m.ReceiveCount = n
	}
	return m
}
