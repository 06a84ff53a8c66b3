package doctor

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// topics returns the topics of SNS that the policy of a queue names as senders. SNS does not tell
// which subscriptions a queue has, so a topic that the policy does not name cannot be found.
func (a *AWS) topics(ctx context.Context, q Queue) topics {
	p, _ := iampolicy.Parse(q.Policy) // the check of the policy says what is wrong with it
	found := topics{}
	for _, arn := range p.Sources(snsService) {
		if parts := strings.Split(arn, ":"); len(parts) == 6 && parts[2] == "sns" && !strings.ContainsAny(arn, "*?") {
			found[arn] = answer(a.topic(ctx, arn, q.ARN))
		}
	}
	return found
}

func (a *AWS) topic(ctx context.Context, arn, queue string) (t Topic, err error) {
	client := sns.NewFromConfig(a.near(arn))
	out, err := client.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: aws.String(arn)})
	if err != nil {
		return t, explain(ctx, "sns:GetTopicAttributes", err)
	}
	t.Policy, t.KeyID = out.Attributes["Policy"], out.Attributes["KmsMasterKeyId"]
	if t.KeyID != "" {
		t.Key = answer(a.key(ctx, t.KeyID, arn))
	}
	in := &sns.ListSubscriptionsByTopicInput{TopicArn: aws.String(arn)}
	for {
		page, err := client.ListSubscriptionsByTopic(ctx, in)
		if err != nil {
			return Topic{}, explain(ctx, "sns:ListSubscriptionsByTopic", err)
		}
		for _, s := range page.Subscriptions {
			if aws.ToString(s.Protocol) != "sqs" || aws.ToString(s.Endpoint) != queue {
				continue
			}
			t.Subscription, err = subscription(ctx, client, aws.ToString(s.SubscriptionArn))
			return t, err
		}
		if in.NextToken = page.NextToken; in.NextToken == nil {
			return t, nil
		}
	}
}

// subscription returns nothing with an error: what a filter lets through that was not read is
// unknown.
func subscription(ctx context.Context, client *sns.Client, arn string) (*Subscription, error) {
	if !strings.HasPrefix(arn, "arn:") { // PendingConfirmation
		return &Subscription{Pending: true}, nil
	}
	in := &sns.GetSubscriptionAttributesInput{SubscriptionArn: aws.String(arn)}
	out, err := client.GetSubscriptionAttributes(ctx, in)
	if err != nil {
		return nil, explain(ctx, "sns:GetSubscriptionAttributes", err)
	}
	return &Subscription{
		ARN: arn, Pending: out.Attributes["PendingConfirmation"] == "true",
		Filter: out.Attributes["FilterPolicy"], FilterBody: out.Attributes["FilterPolicyScope"] == "MessageBody",
	}, nil
}
