package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
)

// A call is an operation of a client of the AWS SDK.
type call[Input, Output, Options any] func(context.Context, *Input, ...func(*Options)) (*Output, error)

// AWS are the calls that doctor makes. They are functions, not clients, so that the linker can
// drop all other methods of the clients.
type AWS struct {
	Credentials aws.CredentialsProvider

	GetCallerIdentity call[sts.GetCallerIdentityInput, sts.GetCallerIdentityOutput, sts.Options]

	GetQueueAttributes      call[sqs.GetQueueAttributesInput, sqs.GetQueueAttributesOutput, sqs.Options]
	ReceiveMessage          call[sqs.ReceiveMessageInput, sqs.ReceiveMessageOutput, sqs.Options]
	DeleteMessage           call[sqs.DeleteMessageInput, sqs.DeleteMessageOutput, sqs.Options]
	ChangeMessageVisibility call[sqs.ChangeMessageVisibilityInput, sqs.ChangeMessageVisibilityOutput, sqs.Options]

	DescribeKey  call[kms.DescribeKeyInput, kms.DescribeKeyOutput, kms.Options]
	GetKeyPolicy call[kms.GetKeyPolicyInput, kms.GetKeyPolicyOutput, kms.Options]
	Decrypt      call[kms.DecryptInput, kms.DecryptOutput, kms.Options]

	ListRuleNamesByTarget call[
		eventbridge.ListRuleNamesByTargetInput, eventbridge.ListRuleNamesByTargetOutput, eventbridge.Options,
	]
	DescribeRule      call[eventbridge.DescribeRuleInput, eventbridge.DescribeRuleOutput, eventbridge.Options]
	ListTargetsByRule call[
		eventbridge.ListTargetsByRuleInput, eventbridge.ListTargetsByRuleOutput, eventbridge.Options,
	]

	GetTopicAttributes       call[sns.GetTopicAttributesInput, sns.GetTopicAttributesOutput, sns.Options]
	ListSubscriptionsByTopic call[
		sns.ListSubscriptionsByTopicInput, sns.ListSubscriptionsByTopicOutput, sns.Options,
	]
	GetSubscriptionAttributes call[
		sns.GetSubscriptionAttributesInput, sns.GetSubscriptionAttributesOutput, sns.Options,
	]

	SimulatePrincipalPolicy call[iam.SimulatePrincipalPolicyInput, iam.SimulatePrincipalPolicyOutput, iam.Options]

	DescribeInstances      call[ec2.DescribeInstancesInput, ec2.DescribeInstancesOutput, ec2.Options]
	DescribeInstanceStatus call[ec2.DescribeInstanceStatusInput, ec2.DescribeInstanceStatusOutput, ec2.Options]

	DescribeTargetHealth call[elb.DescribeTargetHealthInput, elb.DescribeTargetHealthOutput, elb.Options]

	DescribeAutoScalingGroups call[
		autoscaling.DescribeAutoScalingGroupsInput, autoscaling.DescribeAutoScalingGroupsOutput, autoscaling.Options,
	]
	DescribeLifecycleHooks call[
		autoscaling.DescribeLifecycleHooksInput, autoscaling.DescribeLifecycleHooksOutput, autoscaling.Options,
	]
	CompleteLifecycleAction call[
		autoscaling.CompleteLifecycleActionInput, autoscaling.CompleteLifecycleActionOutput, autoscaling.Options,
	]
	RecordLifecycleActionHeartbeat call[
		autoscaling.RecordLifecycleActionHeartbeatInput, autoscaling.RecordLifecycleActionHeartbeatOutput,
		autoscaling.Options,
	]
}

// explain turns an error of AWS into a *DeniedError or ErrAbsent if it is one of these.
func explain(ctx context.Context, permission string, err error) error {
	if err == nil {
		return nil
	}
	var api smithy.APIError
	switch code := ""; {
	case errors.As(err, &api):
		code = api.ErrorCode()
		switch {
		case strings.HasPrefix(code, "AccessDenied"), code == "UnauthorizedOperation", code == "AuthorizationError":
			return &DeniedError{Permission: permission, Err: err}
		case strings.HasSuffix(code, "NonExistentQueue"), code == "QueueDoesNotExist", code == "ResourceNotFoundException",
			code == "NotFoundException", code == "NotFound":
			return fmt.Errorf("%s: %w", permission, ErrAbsent)
		}
	}
	return fmt.Errorf("%s: %w", permission, plain(ctx, err))
}

// plain removes what the SDK wraps around an error: it returns the answer of AWS as an *APIError,
// else the innermost error. Credential providers name everything that they tried; an error of a
// dial is kept whole, because it has the address.
func plain(ctx context.Context, err error) error {
	var api smithy.APIError
	switch {
	case errors.As(err, &api):
		return &APIError{Code: api.ErrorCode(), Message: api.ErrorMessage()}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok {
		return dial
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func (a *AWS) queue(ctx context.Context, url string) Answer[Queue] {
	out, err := a.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(url), AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll},
	})
	if err != nil {
		return Answer[Queue]{Err: explain(ctx, "sqs:GetQueueAttributes", err)}
	}
	get := func(name sqstypes.QueueAttributeName) string { return out.Attributes[string(name)] }
	seconds := func(name sqstypes.QueueAttributeName) time.Duration {
		n, _ := strconv.Atoi(get(name)) // what SQS does not say is zero
		return time.Duration(n) * time.Second
	}
	q := Queue{
		ARN:       get(sqstypes.QueueAttributeNameQueueArn),
		Delay:     seconds(sqstypes.QueueAttributeNameDelaySeconds),
		Retention: seconds(sqstypes.QueueAttributeNameMessageRetentionPeriod),
		FIFO:      get(sqstypes.QueueAttributeNameFifoQueue) == "true",
		KeyID:     get(sqstypes.QueueAttributeNameKmsMasterKeyId),
		Policy:    get(sqstypes.QueueAttributeNamePolicy),
	}
	q.MaxSize, _ = strconv.Atoi(get(sqstypes.QueueAttributeNameMaximumMessageSize)) // what SQS does not say is zero
	var redrive struct {
		Target          string      `json:"deadLetterTargetArn"`
		MaxReceiveCount json.Number `json:"maxReceiveCount"` // some tools write it in quotes
	}
	if json.Unmarshal([]byte(get(sqstypes.QueueAttributeNameRedrivePolicy)), &redrive) == nil {
		n, _ := redrive.MaxReceiveCount.Int64()
		q.MaxReceives, q.DeadLetters = int(n), redrive.Target
	}
	return Answer[Queue]{Value: q}
}

// key returns a key of KMS: its id, alias or ARN is that which the resource of another service names, with the ARN of.
func (a *AWS) key(ctx context.Context, id, of string) Answer[Key] {
	id = keyARN(id, of)
	there := func(o *kms.Options) { o.Region = regionOf(id, o.Region) }
	out, err := a.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: aws.String(id)}, there)
	if err != nil {
		return Answer[Key]{Err: explain(ctx, "kms:DescribeKey", err)}
	}
	m := out.KeyMetadata
	k := Key{ARN: aws.ToString(m.Arn), AWSManaged: m.KeyManager == "AWS", State: string(m.KeyState)}
	text, err := a.GetKeyPolicy(ctx, &kms.GetKeyPolicyInput{KeyId: m.Arn}, there)
	if err != nil {
		k.Policy.Err = explain(ctx, "kms:GetKeyPolicy", err)
	} else {
		k.Policy.Value = aws.ToString(text.Policy)
	}
	return Answer[Key]{Value: k}
}

// keyARN is the ARN of a key that a queue or a topic names: an id or an alias is of the account and region of that.
func keyARN(id, of string) string {
	parts := strings.Split(of, ":")
	if strings.HasPrefix(id, "arn:") || len(parts) < 5 {
		return id
	}
	if !strings.HasPrefix(id, "alias/") {
		id = "key/" + id
	}
	return strings.Join([]string{"arn", parts[1], "kms", parts[3], parts[4], id}, ":")
}

// rules returns the rules of the default bus that have the queue as a target, or a topic that hands
// on to the queue. Of a topic that could not be read nobody knows that.
func (a *AWS) rules(ctx context.Context, queue string, through topics) Answer[[]Rule] {
	all := a.rulesOf(ctx, queue)
	for _, topic := range slices.Sorted(maps.Keys(through)) {
		if s := through[topic].Value.Subscription; s == nil || s.Pending || all.Err != nil {
			continue
		}
		more := a.rulesOf(ctx, topic)
		if more.Err != nil {
			return more
		}
		for _, r := range more.Value {
			r.Topic = topic
			all.Value = append(all.Value, r)
		}
	}
	return all
}

// rulesOf returns the rules of the default bus that have a target, in the target's region.
func (a *AWS) rulesOf(ctx context.Context, arn string) Answer[[]Rule] {
	there := func(o *eventbridge.Options) { o.Region = regionOf(arn, o.Region) }
	var rules []Rule
	in := &eventbridge.ListRuleNamesByTargetInput{TargetArn: aws.String(arn)}
	for {
		out, err := a.ListRuleNamesByTarget(ctx, in, there)
		if err != nil {
			return Answer[[]Rule]{Err: explain(ctx, "events:ListRuleNamesByTarget", err)}
		}
		some, errs := make([]Rule, len(out.RuleNames)), make([]error, len(out.RuleNames))
		each(len(some), func(k int) { some[k], errs[k] = a.rule(ctx, out.RuleNames[k], arn, there) })
		for _, err := range errs {
			if err != nil {
				return Answer[[]Rule]{Err: err}
			}
		}
		rules = append(rules, some...)
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return Answer[[]Rule]{Value: rules}
		}
	}
}

func (a *AWS) rule(ctx context.Context, name, arn string, there func(*eventbridge.Options)) (Rule, error) {
	out, err := a.DescribeRule(ctx, &eventbridge.DescribeRuleInput{Name: aws.String(name)}, there)
	if err != nil {
		return Rule{}, explain(ctx, "events:DescribeRule", err)
	}
	r := Rule{
		Name: name, ARN: aws.ToString(out.Arn), Pattern: aws.ToString(out.EventPattern),
		Enabled: out.State != types.RuleStateDisabled,
	}
	in := &eventbridge.ListTargetsByRuleInput{Rule: aws.String(name)}
	for {
		page, err := a.ListTargetsByRule(ctx, in, there)
		if err != nil {
			return Rule{}, explain(ctx, "events:ListTargetsByRule", err)
		}
		for _, t := range page.Targets {
			if aws.ToString(t.Arn) != arn {
				continue
			}
			target := Target{
				ID: aws.ToString(t.Id), RoleARN: aws.ToString(t.RoleArn),
				Changed: t.Input != nil || t.InputPath != nil || t.InputTransformer != nil,
			}
			if t.SqsParameters != nil {
				target.MessageGroup = aws.ToString(t.SqsParameters.MessageGroupId)
			}
			r.Targets = append(r.Targets, target)
		}
		if in.NextToken = page.NextToken; in.NextToken == nil {
			return r, nil
		}
	}
}

// each calls do for 0 to n-1, sixteen at the same time: the SDK waits where an API accepts fewer, and a hundred groups
// take some seconds.
func each(n int, do func(k int)) {
	const atOnce = 16
	var all sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for k := range n {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			do(k)
		})
	}
	all.Wait()
}
