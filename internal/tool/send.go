package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

// send sends the notice to the queue.
func (t *target) send(ctx context.Context, n sample.Notice) error {
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	in := &sqs.SendMessageInput{QueueUrl: aws.String(t.Queue.Text), MessageBody: aws.String(n.Body())}
	if strings.HasSuffix(t.Queue.Name, ".fifo") {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(n.Instance), aws.String(n.ID)
	}
	_, err := app.SQSClient(t.aws, t.Options).SendMessage(ctx, in)
	switch {
	case strings.HasPrefix(awserr.Code(err), "AccessDenied"): // because of a policy
		return fmt.Errorf("send the notice to %s: %w\n%s", t.Queue.Text, err, senderHint)
	case err != nil:
		return fmt.Errorf("send the notice to %s: %w", t.Queue.Text, err)
	}
	return nil
}

// senderHint is for who may not send: IAM, or the Deny in the queue's policy of our templates.
const senderHint = "You need sqs:SendMessage on the queue. The templates also deny it to everybody but AWS services: " +
	"give the ARN of your role or user as SenderArn (sender_arn with Terraform)."

// errTakenBack ends a simulation whose notice nobody has seen.
var errTakenBack = errors.New("it was removed from the queue, so nothing will happen")

// takeBack offers to delete the notice that no handler has received: a handler that comes
// later would act on it. The error says what became of it.
func (t *target) takeBack(ctx context.Context, sim Simulation, term Terminal, why error) error {
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
	found, err := deleteEvent(ctx, app.SQSClient(t.aws, t.Options), t.Queue.Text, t.notice.ID)
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
