package queue

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const (
	// longPoll is the longest wait that SQS allows.
	longPoll = 20 * time.Second
	// shortPoll is the shortest wait that can be asked for. The SDK does not send
	// a zero, and then the queue's own ReceiveMessageWaitTimeSeconds counts,
	// which may be 20 s. It also asks all of SQS's servers, not a sample.
	shortPoll = time.Second
	// pollGrace is what a receive may take beyond its wait. An endpoint that is
	// still silent then is taken for dead.
	pollGrace = 10 * time.Second

	// receiveEnds is what a receive has to end by itself when the process stops.
	// Messages of an answer that nobody reads stay invisible until their visibility
	// has run out; where there are some, it is a matter of milliseconds.
	receiveEnds = 300 * time.Millisecond

	// A failed receive is tried again soon, since a spot warning leaves two
	// minutes, and not often, since it may be throttling that made it fail.
	firstReceivePause = 500 * time.Millisecond
	maxReceivePause   = 10 * time.Second
)

// receive is the receiver that is always there: a long poll at a time until ctx
// ends. While messages come in numbers it starts further ones, one with each
// receive, so that a storm has all of them in a fraction of a second and a
// handful of messages costs no call too many.
//
// It also ends when it may not receive on probation, with the error in refused.
func (s *Server) receive(ctx, settling context.Context, refused chan<- error) {
	defer s.ends(&s.receivers)
	begin := time.Now()
	failing := outage{name: "receiving"}
	retry := firstReceivePause
	for {
		if !s.awaitRoom(ctx) {
			return
		}
		n, err := s.poll(ctx, settling, longPoll)
		if ctx.Err() != nil {
			return
		}
		if denied(err) && s.LastReceive().IsZero() && time.Since(begin) < s.Probation {
			refused <- err
			return
		}
		if err != nil {
			failing.failed(s.Log, err)
			pause(ctx, min(retry+rand.N(retry/2), maxReceivePause))
			retry = min(2*retry, maxReceivePause)
			continue
		}
		failing.ended(s.Log)
		retry = firstReceivePause
		if plenty(n) && s.receiverStarts() {
			go s.receiveMore(ctx, settling)
		}
	}
}

// receiveMore is a further receiver. It ends with the first receive that shows
// that the queue runs dry, with the first error, which the first receiver then
// meets too, and when there is no room.
func (s *Server) receiveMore(ctx, settling context.Context) {
	defer s.ends(&s.receivers)
	for s.reserve() {
		if n, err := s.poll(ctx, settling, shortPoll); err != nil || !plenty(n) {
			return
		}
	}
}

// plenty reports whether a receive of n messages tells of more to come. Often
// SQS returns fewer than were asked for and has more, hence the half.
func plenty(n int) bool { return n >= batchSize/2 }

func (s *Server) receiverStarts() bool {
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

// batch is how many messages a receive asks for.
func (s *Server) batch() int { return min(batchSize, s.maxHeld()) }

func (s *Server) maxHeld() int {
	if s.MaxHeld <= 0 {
		return defaultMaxHeld
	}
	return s.MaxHeld
}

// room reports whether all that a receive may bring can be held: at the bound,
// receiving single messages would cost a call for each. The caller holds mu.
func (s *Server) room() bool { return len(s.held)+s.reserved+s.batch() <= s.maxHeld() }

// reserve keeps room for one receive, if there is any.
func (s *Server) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.room() {
		return false
	}
	s.reserved += s.batch()
	return true
}

// awaitRoom keeps room for one receive, and reports false if ctx ended first.
func (s *Server) awaitRoom(ctx context.Context) bool {
	return s.await(ctx, func() bool {
		room := s.room()
		s.full = !room && ctx.Err() == nil
		if !room || ctx.Err() != nil {
			return false
		}
		s.reserved += s.batch()
		return true
	})
}

// poll receives once, into room that was reserved, starts what came in and
// returns how many messages that was.
func (s *Server) poll(ctx, settling context.Context, wait time.Duration) (int, error) {
	lingering, stop := pace.Linger(ctx, receiveEnds)
	defer stop()
	polling, cancel := context.WithTimeout(lingering, wait+pollGrace)
	defer cancel()
	out, err := s.Client.ReceiveMessage(polling, &sqs.ReceiveMessageInput{
		QueueUrl:            aws.String(s.URL),
		MaxNumberOfMessages: int32(s.batch()),
		VisibilityTimeout:   seconds(s.visibility()),
		WaitTimeSeconds:     seconds(wait),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameApproximateReceiveCount,
		},
	})
	if err != nil {
		s.admit(ctx, settling, nil)
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		s.metrics().ReceiveFailed()
		return 0, s.explain("ReceiveMessage", ReceiveMessage, err)
	}
	s.compareClocks(out.ResultMetadata)
	s.mu.Lock()
	s.received = time.Now()
	s.mu.Unlock()
	if len(out.Messages) > 0 {
		s.metrics().Received(len(out.Messages))
	}
	s.admit(ctx, settling, out.Messages)
	return len(out.Messages), nil
}

// admit takes what one receive brought in place of the room it had reserved. A
// message that is held already joins: the newest receipt is kept, and the
// handler that runs goes on. A goroutine starts for each other one.
func (s *Server) admit(ctx, settling context.Context, received []types.Message) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= s.batch()
	for _, r := range received {
		m := messageOf(r)
		h, joins := s.held[m.ID]
		if !joins {
			h = &held{id: m.ID, since: now}
			s.held[m.ID] = h
			s.busy++
			s.live++
			go s.serveMessage(ctx, settling, h, m)
		}
		h.receipt, h.receives = aws.ToString(r.ReceiptHandle), m.ReceiveCount
		h.gone = false
		h.lease = s.visibility()
		h.renewAt = now.Add(h.lease / 2)
	}
	if len(s.held) > 0 && !s.extending {
		s.extending = true
		go s.hold(ctx)
	}
	s.changed.Broadcast() // not all of the room may have been needed
}

func messageOf(r types.Message) Message {
	m := Message{ID: aws.ToString(r.MessageId), Body: aws.ToString(r.Body)}
	if ms, err := strconv.ParseInt(r.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
		m.Sent = time.UnixMilli(ms)
	}
	if n, err := strconv.Atoi(r.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]); err == nil {
		m.ReceiveCount = n
	}
	return m
}
