package tool

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

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

// senderHint is for users to whom IAM, or the Deny in the queue's policy of our templates, denies the permission.
const senderHint = "You need sqs:SendMessage on the queue. The templates also deny it to everybody but AWS services: " +
	"give the ARN of your role or user as SenderArn (sender_arn with Terraform)."
