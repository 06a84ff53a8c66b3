package queue

import (
	"cmp"
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
// On probation it also ends when the role lacks the permission to receive, with the
// error in refused.
func (s *Server) receive(ctx, settling context.Context, refused chan<- error) {
	defer s.messages.countDown(&s.messages.receivers)
	begin := time.Now()
	failing := outage("receiving")
	for {
		asked, ok := s.messages.reserve(ctx)
		if !ok {
			return
		}
		asks := time.Now()
		n, err := s.poll(ctx, settling, asked, longPoll)
		if ctx.Err() != nil {
			return
		}
		if awserr.Denied(err) && s.health.lastReceive().IsZero() && time.Since(begin) < s.Probation {
			refused <- err
			return
		}
		if err != nil {
			s.health.noteFailure(err, asks)
			failing.Failed(s.Log, err)
			if retry.Sleep(ctx, min(receiveBackoff.Pause(failing.Failures), receiveBackoff.Max)) != nil {
				return
			}
			continue
		}
		failing.Ended(s.Log)
		if plenty(n, asked) && s.messages.tryAddReceiver(cmp.Or(s.Receivers, defaultReceivers)) {
			go s.receiveMore(ctx, settling)
		}
	}
}

// receiveMore is a further receiver. It ends when the queue runs dry, when there is no
// room, with ctx, and with the first error, which the first receiver then meets too.
func (s *Server) receiveMore(ctx, settling context.Context) {
	defer s.messages.countDown(&s.messages.receivers)
	for {
		asked, ok := s.messages.tryReserve()
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
		return 0, s.client().explain("ReceiveMessage", ReceiveMessage, err)
	}
	s.clock.compare(s.Log, out.ResultMetadata)
	s.health.noteReceive()
	if len(out.Messages) > 0 {
		s.metrics().Received(len(out.Messages))
	}
	s.admit(ctx, settling, asked, out.Messages)
	return len(out.Messages), nil
}

// admit replaces the room that one receive had reserved by what it has brought, and starts
// a goroutine for each message that was not in flight.
func (s *Server) admit(ctx, settling context.Context, asked int, received []types.Message) {
	fresh, extend := s.messages.admit(asked, received, s.visibility())
	for _, b := range fresh {
		go s.serveMessage(ctx, settling, b.inFlight, b.message)
	}
	if extend {
		l := leases{&s.messages, &s.calls, s.visibility()}
		go l.extend(ctx)
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
