// Package queue serves the messages of an SQS queue the way net/http serves
// requests: a [Server] receives, calls its [Handler] in a goroutine for each
// message, and turns what the handler returns into the fate of the message.
//
// A message is held while its handler runs, for seconds or for hours: its
// visibility is extended well before it ends, always with the newest receipt
// handle. Nothing but a handler's return can delete a message, so one that was
// never finished comes back, here or at the next leader.
//
// SQS delivers at least once and in any order
// (https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/standard-queues-at-least-once-delivery.html).
// A message that SQS delivers again while its handler runs joins that handler;
// one that it delivers again after it was deleted is handled again. Handlers
// are idempotent, and the server remembers nothing of what it has settled.
package queue

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// Message is what a handler gets to see of an SQS message.
type Message struct {
	ID   string // the same at every delivery
	Body string
	// Sent is when SQS took the message in; zero if SQS did not say.
	Sent time.Time
	// ReceiveCount is how often SQS has delivered the message, this time
	// included; zero if SQS did not say.
	ReceiveCount int
}

// Handler does what a message asks for, and returns when it is done with it.
//
// A nil error deletes the message; an error gives it back to the queue, which
// delivers it again after a few seconds. [Leave] and [Reject] say otherwise.
//
// Handle is called in a goroutine of its own for each message, so any number of
// calls run at once, but never two for the same message id. It may take as long
// as it needs. It may be called again for a message that it has finished.
//
// ctx ends when the server stops, with a cause that wraps [ErrStopping]. A
// handler then has five seconds to return; after that its message is given back
// and what it returns is ignored.
//
// A panic counts as an error and is logged with its stack.
type Handler interface {
	Handle(ctx context.Context, m Message) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, m Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m Message) error { return f(ctx, m) }

// ErrStopping is wrapped by the cause of a handler's context when the server stops.
var ErrStopping = errors.New("the queue server stops")

// Leave is returned by a handler for a message that is not for it, because the
// instance belongs to another cluster or because this is a dry run. The message
// stays as it is, without any call to SQS, and others see it again when its
// visibility has run out.
func Leave(why error) error { return &verdict{Left, why} }

// Reject is returned by a handler for a message that nobody can ever handle. A
// queue with a redrive policy parks it after some more deliveries, so there it
// is left. A queue without one would deliver it until its retention ends, so
// there it is deleted. Where the server does not know which, it is left.
func Reject(why error) error { return &verdict{Rejected, why} }

// verdict is an error that asks for an outcome other than giving back.
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

// outcomeOf is the outcome that a handler's return asks for. Of several
// verdicts in one error the outermost, first one counts.
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
	// Unsettled is a message that SQS would not delete or take back. It comes
	// back when its visibility has run out.
	Unsettled Outcome = iota
	// Deleted is a message whose handler returned nil.
	Deleted
	// GivenBack is a message whose handler returned an error, or had not
	// returned when the server stopped.
	GivenBack
	// Left is a message whose handler returned [Leave].
	Left
	// Rejected is a message whose handler returned [Reject].
	Rejected
)

// Outcomes are all of them, for metrics that start at zero.
var Outcomes = []Outcome{Unsettled, Deleted, GivenBack, Left, Rejected}

// String returns the outcome as a metric label.
func (o Outcome) String() string {
	switch o {
	case Unsettled:
		return "unsettled"
	case Deleted:
		return "deleted"
	case GivenBack:
		return "given-back"
	case Left:
		return "left"
	case Rejected:
		return "rejected"
	}
	return "unknown"
}

// API is what the server needs of SQS; *[sqs.Client] implements it. Calls come
// from several goroutines at once, each with a context that has a deadline.
type API interface {
	ReceiveMessage(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error)
	GetQueueAttributes(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

// Metrics counts what the server does. Its methods are called from several
// goroutines at once and must not block.
type Metrics interface {
	// Received counts deliveries, redeliveries included.
	Received(messages int)
	// ReceiveFailed counts one receive that returned an error.
	ReceiveFailed()
	// Settled counts one message by what became of it. why is what the handler
	// returned, or for Unsettled what SQS answered.
	Settled(o Outcome, why error)
	// Extended counts messages whose visibility was extended.
	Extended(messages int)
	// ExtendRefused counts messages that SQS no longer lets us hold: their
	// retention or their twelve hours are over, or someone deleted them.
	ExtendRefused(messages int)
	// Denied counts one call that failed because the role lacks an IAM action.
	Denied(Action)
}

// Action is an IAM action that the server needs.
type Action string

// All actions; the batch calls are covered by the actions of the single ones.
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
