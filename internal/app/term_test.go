package app

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/controller"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
)

// hangingQueue answers nothing, and tells when it is asked for messages.
type hangingQueue struct {
	queue.API
	begin    time.Time
	received chan time.Duration
}

// GetQueueAttributes and the other implement queue.API.
func (h hangingQueue) GetQueueAttributes(ctx context.Context, _ *sqs.GetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// ReceiveMessage is the other.
func (h hangingQueue) ReceiveMessage(ctx context.Context, _ *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	h.received <- time.Since(h.begin)
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// The check of a term hangs, and a message waits.
func TestTheFirstReceiveOfATermWaitsForNoCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := time.Now()
		hangs := hangingQueue{received: make(chan time.Duration, 100), begin: begin}
		ended := make(chan error, 1)
		go func() {
			ctrl := controller.New(controller.Config{Config: nodedrain.Config{DryRun: true}})
			server := &queue.Server{Client: hangs, URL: "queue", Handler: ctrl, Visibility: 20 * time.Second}
			ended <- lead(ctx, logr.Discard(), ctrl, serving(server.Serve, checking(logr.Discard(), server)))
		}()
		if after := <-hangs.received; after > 0 {
			t.Errorf("the first receive is made after %s", after)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("lead = %v", err)
		}
	})
}
