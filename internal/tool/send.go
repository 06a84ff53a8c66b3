package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

// checkRules returns an error if no rule of EventBridge sends the simulated notice to the queue.
func (t *target) checkRules(ctx context.Context) error {
	rules, err := t.gatherer.RulesTaking(ctx, t.noticeAt(time.Now()).Body())
	switch {
	case doctor.IsDenied(err):
		return nil // only the simulation itself can show it then
	case err != nil:
		return fmt.Errorf("read the rules: %w", err)
	case len(rules) == 0 && t.notice.Account != t.Queue.Account:
		return nil // the rules are in the queue's account and cannot be read
	case len(rules) == 0:
		return fmt.Errorf("no rule with the queue as its target matches the source %s: "+
			"add it to the pattern, or send without --via eventbridge", notice.SimulatedSource)
	}
	return nil
}

// send sends the notice and returns the id of the event.
func (t *target) send(ctx context.Context, via string, n sample.Notice) (string, error) {
	ctx, cancel := withAWSTimeout(ctx)
	defer cancel()
	if via == ViaEventBridge {
		return putOnBus(ctx, eventbridge.NewFromConfig(t.aws), n.Body())
	}
	in := &sqs.SendMessageInput{QueueUrl: aws.String(t.Queue.Text), MessageBody: aws.String(n.Body())}
	if strings.HasSuffix(t.Queue.Name, ".fifo") {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(n.Instance), aws.String(n.ID)
	}
	_, err := app.SQSClient(t.aws, t.Options).SendMessage(ctx, in)
	switch {
	case strings.HasPrefix(awserr.Code(err), "AccessDenied"): // because of a policy
		return "", fmt.Errorf("send the notice to %s: %w\n%s", t.Queue.Text, err, senderHint)
	case err != nil:
		return "", fmt.Errorf("send the notice to %s: %w", t.Queue.Text, err)
	}
	return n.ID, nil
}

// senderHint is for who may not send: IAM, or the Deny in the queue's policy of our templates.
const senderHint = "You need sqs:SendMessage on the queue. The templates also deny it to everybody but AWS services: " +
	"give the ARN of your role or user as SenderArn (sender_arn with Terraform). Or send with --via eventbridge."

// putOnBus puts an event on the default bus and returns its id. body is the event as a queue
// would get it.
func putOnBus(ctx context.Context, bus *eventbridge.Client, body string) (string, error) {
	var event struct {
		Source     string
		DetailType string `json:"detail-type"`
		Detail     json.RawMessage
		Resources  []string
		Time       time.Time
	}
	if err := json.Unmarshal([]byte(body), &event); err != nil {
		return "", fmt.Errorf("write the event: %w", err)
	}
	out, err := bus.PutEvents(ctx, &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{{
		Source: &event.Source, DetailType: &event.DetailType, Detail: aws.String(string(event.Detail)),
		Resources: event.Resources, Time: &event.Time,
	}}})
	if err != nil {
		return "", fmt.Errorf("put the notice on the bus: %w", err)
	}
	if e := out.Entries[0]; e.ErrorCode != nil {
		return "", fmt.Errorf("put the notice on the bus: %s: %s", *e.ErrorCode, aws.ToString(e.ErrorMessage))
	}
	return aws.ToString(out.Entries[0].EventId), nil
}

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
