// Package queue serves the messages of an SQS queue as net/http serves requests: a
// [Server] receives, calls its [Handler] in a goroutine for each message, and does
// with the message what the handler returns.
//
// A message is in flight while its handler runs, for seconds or for hours: the server
// extends its visibility well before it ends, always with the newest receipt handle.
//
// The handler's return alone deletes a message: nil, or [Reject] where the queue has no
// redrive policy that would park it. A message that was never finished comes back, here
// or at the next leader.
//
// SQS delivers at least once and in any order
// (https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html).
// A message that SQS delivers again while its handler runs joins that handler. One that
// SQS delivers again after it was deleted is handled again. Handlers must be idempotent:
// the server forgets a message once it has deleted or returned it.
package queue

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Message is an SQS message as a handler sees it.
type Message struct {
	ID   string // the same at every delivery
	Body string
	// Sent is when SQS got the message; zero if SQS did not say.
	Sent time.Time
	// ReceiveCount is how often SQS has delivered the message, including this
	// time; zero if SQS did not say.
	ReceiveCount int

	release func() // nil in tests of handlers
}

// Release says that the handler no longer needs Body, and keeps nothing that shares its
// memory. Until then, or until the handler returns, the bytes of Body count against what
// the server has in memory at once: a handler that runs for long should call it when it
// has read the body. It may be called more than once, and concurrently.
func (m Message) Release() {
	if m.release != nil {
		m.release()
	}
}

// Handler does what a message asks for, and returns when it has finished.
//
// If it returns nil, the message is deleted. If it returns an error, the message is
// returned to the queue, which delivers it again after 1 to 30 seconds. [Leave] and
// [Reject] are errors that say otherwise.
//
// Handle is called in its own goroutine for each message. Any number of calls run at
// once, but never two for the same message id. A call may take as long as it needs. It
// may come again for a message that was finished before.
//
// ctx ends when the server stops, with a cause that wraps [ErrStopping]. The handler
// then has five seconds to return. After that its message is returned to the queue, and
// the handler's return is ignored.
//
// A panic counts as an error and is logged with its stack.
type Handler interface {
	Handle(ctx context.Context, m Message) error
}

// ErrStopping is wrapped by the cause of a handler's context when the server stops.
var ErrStopping = errors.New("the queue server stops")

// Leave is what a handler returns for a message that is not for it: the instance
// belongs to another cluster, or this is a dry run. The server makes no call to SQS, and
// other receivers see the message when its visibility has run out.
func Leave(why error) error { return &verdict{Left, why} }

// Reject is what a handler returns for a message that nobody can ever handle. If the
// queue has a redrive policy, the message is left, and SQS moves it to the dead-letter
// queue after some more deliveries. If it has none, SQS would deliver the message until
// its retention ends, so it is deleted. If the server does not know, the message is left.
func Reject(why error) error { return &verdict{Rejected, why} }

// verdict is an error that asks for an outcome other than GivenBack.
type verdict struct {
	outcome Outcome
	why     error
}

func (v *verdict) Error() string {
	if v.why == nil {
		return v.outcome.String()
	}
	return v.why.Error()
}

func (v *verdict) Unwrap() error { return v.why }

// outcomeOf is the outcome that a handler's return asks for. If an error wraps several
// verdicts, the outermost, first one counts.
func outcomeOf(err error) Outcome {
	if err == nil {
		return Deleted
	}
	if v, ok := errors.AsType[*verdict](err); ok {
		return v.outcome
	}
	return GivenBack
}

// Outcome is what became of a message.
type Outcome int

const (
	// Unsettled is a message that SQS did not delete, or did not make visible again. It
	// comes back when its visibility has run out.
	Unsettled Outcome = iota
	// Deleted is a message whose handler returned nil.
	Deleted
	// GivenBack is a message that was returned to the queue, because its handler
	// returned an error, or had not returned when the server stopped.
	GivenBack
	// Left is a message whose handler returned [Leave].
	Left
	// Rejected is a message whose handler returned [Reject].
	Rejected
)

// String returns the outcome as a metric label.
func (o Outcome) String() string {
	return [...]string{"unsettled", "deleted", "given-back", "left", "rejected"}[o]
}

// API is the part of SQS that the server uses; *[sqs.Client] implements it. It is called
// concurrently, each time with a context that has a deadline.
type API interface {
	ReceiveMessage(
		context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options),
	) (*sqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(
		context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options),
	) (*sqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(
		context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options),
	) (*sqs.ChangeMessageVisibilityBatchOutput, error)
	GetQueueAttributes(
		context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options),
	) (*sqs.GetQueueAttributesOutput, error)
}

// Metrics counts what the server does. Its methods are called concurrently and must not
// block.
type Metrics interface {
	// Received counts deliveries, redeliveries included.
	Received(messages int)
	// ReceiveFailed counts one receive that returned an error.
	ReceiveFailed()
	// Settled counts one message by its outcome. why is what the handler returned, or
	// for Unsettled what SQS answered.
	Settled(o Outcome, why error)
	// Extended counts messages whose visibility was extended.
	Extended(messages int)
	// ExtendRefused counts messages whose visibility SQS does not extend any more: their
	// retention or their twelve hours are over, or somebody has deleted them.
	ExtendRefused(messages int)
	// Denied counts one call that failed because the role lacks an IAM action.
	Denied(Action)
}

// Action is an IAM action that the server needs.
type Action string

// The actions of the single calls also allow the batch calls.
const (
	ReceiveMessage          Action = "sqs:ReceiveMessage"
	DeleteMessage           Action = "sqs:DeleteMessage"
	ChangeMessageVisibility Action = "sqs:ChangeMessageVisibility"
	GetQueueAttributes      Action = "sqs:GetQueueAttributes"
)

// Actions are all of them, for metrics that start at zero.
var Actions = []Action{ReceiveMessage, DeleteMessage, ChangeMessageVisibility, GetQueueAttributes}

// Discard is a [Metrics] that counts nothing.
var Discard Metrics = discard{}

type discard struct{}

func (discard) Received(int)           {}
func (discard) ReceiveFailed()         {}
func (discard) Settled(Outcome, error) {}
func (discard) Extended(int)           {}
func (discard) ExtendRefused(int)      {}
func (discard) Denied(Action)          {}
