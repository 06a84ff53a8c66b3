package queue

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// BenchmarkExtendLoop is one round of leases.extend: mostly nothing is due, and
// once in a while all is.
func BenchmarkExtendLoop(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		s := &Server{Client: &endless{}}
		s.begin()
		l := &leases{messages: &s.messages, calls: &s.calls, visibility: s.visibility()}
		now := time.Now()
		for i := range n {
			id := strconv.Itoa(i)
			s.messages.inFlight[id] = &inFlight{id: id, receipt: "receipt-" + id, lease: s.visibility(), renewAt: now.Add(time.Hour)}
		}
		b.Run(fmt.Sprintf("inflight=%d/due=none", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if due, _ := l.due(now); len(due) != 0 {
					b.Fatal("some are due")
				}
			}
		})
		b.Run(fmt.Sprintf("inflight=%d/due=all", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				due, _ := l.due(now.Add(24 * time.Hour))
				if err := l.extendDue(b.Context(), due); err != nil || len(due) != n/batchSize {
					b.Fatal(err, len(due))
				}
			}
		})
	}
}

// BenchmarkMessage is what a message costs from its receive to its delete, with
// an SQS that answers at once.
func BenchmarkMessage(b *testing.B) {
	for name, result := range map[string]error{"deleted": nil, "left": Leave(nil)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			q := &endless{left: b.N, body: aws.String("body")}
			var handled sync.WaitGroup
			handled.Add(b.N)
			s := &Server{Client: q, Handler: handlerFunc(func(context.Context, Message) error {
				handled.Done()
				return result
			})}
			go func() {
				handled.Wait()
				cancel()
			}()
			if err := s.Serve(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// endless is an API that answers at once and says yes to everything, with a
// number of messages to receive.
type endless struct {
	API
	mu   sync.Mutex
	left int
	body *string
}

func (q *endless) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	q.mu.Lock()
	first := q.left
	n := min(first, int(in.MaxNumberOfMessages))
	q.left -= n
	q.mu.Unlock()
	if n == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := &sqs.ReceiveMessageOutput{Messages: make([]types.Message, n)}
	for i := range out.Messages {
		id := strconv.Itoa(first - i)
		out.Messages[i] = types.Message{MessageId: &id, ReceiptHandle: &id, Body: q.body}
	}
	return out, nil
}

func (q *endless) DeleteMessageBatch(context.Context, *sqs.DeleteMessageBatchInput, ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	return &sqs.DeleteMessageBatchOutput{}, nil
}

func (q *endless) ChangeMessageVisibilityBatch(context.Context, *sqs.ChangeMessageVisibilityBatchInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	return &sqs.ChangeMessageVisibilityBatchOutput{}, nil
}
