package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
)

// errTakenBack ends a simulation whose notice nobody has seen.
var errTakenBack = errors.New("it was removed from the queue, so nothing will happen")

// takeBack offers to delete the notice that no handler has received: a handler that comes
// later would act on it. The error says what became of it.
func (t *target) takeBack(ctx context.Context, sim Simulation, event string, term Terminal, why error) error {
	stays := func(because string) error {
		return fmt.Errorf("%w; it stays in the queue%s: a handler may still act on it, "+
			"until the queue's retention ends", why, because)
	}
	if !sim.Yes {
		yes, err := term.ask(ctx, why.Error()+"; remove it from the queue?")
		if err != nil || !yes {
			return stays("")
		}
	}
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	found, err := deleteEvent(ctx, app.SQSClient(t.aws, t.Options), t.Queue.Text, event)
	switch {
	case err != nil:
		return stays(fmt.Sprintf(", because it cannot be removed (%v)", err))
	case !found:
		return stays(", or another reader has it")
	}
	return fmt.Errorf("%w; %w", why, errTakenBack)
}

// deleteEvent deletes the message about an event, and returns the others to the queue.
func deleteEvent(ctx context.Context, queue *sqs.Client, url, event string) (found bool, err error) {
	const (
		most    = 20 // receives of ten messages; a longer queue has other problems
		visible = 10 // seconds, in case the others cannot be returned
	)
	for range most {
		out, err := queue.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, VisibilityTimeout: visible,
		})
		if err != nil {
			return false, fmt.Errorf("sqs:ReceiveMessage: %w", err)
		}
		if len(out.Messages) == 0 {
			return false, nil
		}
		for _, m := range out.Messages {
			if !strings.Contains(aws.ToString(m.Body), `"`+event+`"`) {
				defer func() { // at the end, or it would be received again
					_, _ = queue.ChangeMessageVisibility(context.WithoutCancel(ctx),
						&sqs.ChangeMessageVisibilityInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle})
				}()
				continue
			}
			in := &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}
			if _, err := queue.DeleteMessage(ctx, in); err != nil {
				return true, fmt.Errorf("sqs:DeleteMessage: %w", err)
			}
			found = true
		}
		if found {
			return true, nil
		}
	}
	return false, nil
}
