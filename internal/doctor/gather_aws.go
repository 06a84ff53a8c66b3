package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
)

// AWS are the calls that are made. They are functions, not clients: the linker
// then drops the clients' other methods.
type AWS struct {
	Credentials aws.CredentialsProvider

	GetCallerIdentity func(context.Context, *sts.GetCallerIdentityInput, ...func(*sts.Options)) (*sts.GetCallerIdentityOutput, error)

	GetQueueAttributes      func(context.Context, *sqs.GetQueueAttributesInput, ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
	ReceiveMessage          func(context.Context, *sqs.ReceiveMessageInput, ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessage           func(context.Context, *sqs.DeleteMessageInput, ...func(*sqs.Options)) (*sqs.DeleteMessageOutput, error)
	ChangeMessageVisibility func(context.Context, *sqs.ChangeMessageVisibilityInput, ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityOutput, error)

	DescribeKey  func(context.Context, *kms.DescribeKeyInput, ...func(*kms.Options)) (*kms.DescribeKeyOutput, error)
	GetKeyPolicy func(context.Context, *kms.GetKeyPolicyInput, ...func(*kms.Options)) (*kms.GetKeyPolicyOutput, error)

	ListRuleNamesByTarget func(context.Context, *eventbridge.ListRuleNamesByTargetInput, ...func(*eventbridge.Options)) (*eventbridge.ListRuleNamesByTargetOutput, error)
	DescribeRule          func(context.Context, *eventbridge.DescribeRuleInput, ...func(*eventbridge.Options)) (*eventbridge.DescribeRuleOutput, error)
	ListTargetsByRule     func(context.Context, *eventbridge.ListTargetsByRuleInput, ...func(*eventbridge.Options)) (*eventbridge.ListTargetsByRuleOutput, error)

	DescribeInstances func(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)

	DescribeAutoScalingGroups      func(context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	DescribeLifecycleHooks         func(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
	CompleteLifecycleAction        func(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
	RecordLifecycleActionHeartbeat func(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
}

// explain makes a *DeniedError or ErrAbsent of what AWS answered where it is one.
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
		case strings.HasSuffix(code, "NonExistentQueue"), code == "QueueDoesNotExist", code == "ResourceNotFoundException", code == "NotFoundException":
			return fmt.Errorf("%s: %w", permission, ErrAbsent)
		}
		return fmt.Errorf("%s: %s: %s", permission, code, api.ErrorMessage())
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", permission, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w", permission, err)
}

func (a *AWS) caller(ctx context.Context) Answer[Caller] {
	var c Caller
	given, err := a.Credentials.Retrieve(ctx)
	if err != nil {
		return Answer[Caller]{Err: fmt.Errorf("find credentials: %w", err)}
	}
	c.Source = sourceOf(given.Source)
	// The SDK looks for these in this order.
	c.Shadowed = c.Source == SourceIRSA && os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != ""
	out, err := a.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return Answer[Caller]{Value: c, Err: explain(ctx, "sts:GetCallerIdentity", err)}
	}
	c.ARN, c.Account = aws.ToString(out.Arn), aws.ToString(out.Account)
	return Answer[Caller]{Value: c}
}

// sourceOf puts the SDK's names of sources in words.
func sourceOf(provider string) Source {
	switch {
	case strings.HasPrefix(provider, "WebIdentityCredentials"):
		return SourceIRSA
	case strings.HasPrefix(provider, "CredentialsEndpointProvider"):
		return SourcePodIdentity
	case strings.HasPrefix(provider, "EC2RoleProvider"):
		return SourceInstance
	case strings.HasPrefix(provider, "EnvConfigCredentials"):
		return SourceStatic
	}
	return Source(provider)
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
		ARN:        get(sqstypes.QueueAttributeNameQueueArn),
		Delay:      seconds(sqstypes.QueueAttributeNameDelaySeconds),
		Retention:  seconds(sqstypes.QueueAttributeNameMessageRetentionPeriod),
		Visibility: seconds(sqstypes.QueueAttributeNameVisibilityTimeout),
		FIFO:       get(sqstypes.QueueAttributeNameFifoQueue) == "true",
		KeyID:      get(sqstypes.QueueAttributeNameKmsMasterKeyId),
		Policy:     get(sqstypes.QueueAttributeNamePolicy),
	}
	var redrive struct {
		MaxReceiveCount json.Number `json:"maxReceiveCount"` // some tools write it in quotes
	}
	if json.Unmarshal([]byte(get(sqstypes.QueueAttributeNameRedrivePolicy)), &redrive) == nil {
		n, _ := redrive.MaxReceiveCount.Int64()
		q.MaxReceives = int(n)
	}
	return Answer[Queue]{Value: q}
}

func (a *AWS) key(ctx context.Context, id string) Answer[Key] {
	out, err := a.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: aws.String(id)})
	if err != nil {
		return Answer[Key]{Err: explain(ctx, "kms:DescribeKey", err)}
	}
	m := out.KeyMetadata
	k := Key{ARN: aws.ToString(m.Arn), AWSManaged: m.KeyManager == "AWS", State: string(m.KeyState)}
	text, err := a.GetKeyPolicy(ctx, &kms.GetKeyPolicyInput{KeyId: m.KeyId})
	if err != nil {
		k.Policy.Err = explain(ctx, "kms:GetKeyPolicy", err)
	} else {
		k.Policy.Value = aws.ToString(text.Policy)
	}
	return Answer[Key]{Value: k}
}

// rules are those of the default bus that have the queue as a target.
func (a *AWS) rules(ctx context.Context, arn string) Answer[[]Rule] {
	var rules []Rule
	in := &eventbridge.ListRuleNamesByTargetInput{TargetArn: aws.String(arn)}
	for {
		out, err := a.ListRuleNamesByTarget(ctx, in)
		if err != nil {
			return Answer[[]Rule]{Err: explain(ctx, "events:ListRuleNamesByTarget", err)}
		}
		for _, name := range out.RuleNames {
			r, err := a.rule(ctx, name, arn)
			if err != nil {
				return Answer[[]Rule]{Err: err}
			}
			rules = append(rules, r)
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return Answer[[]Rule]{Value: rules}
		}
	}
}

func (a *AWS) rule(ctx context.Context, name, queue string) (Rule, error) {
	out, err := a.DescribeRule(ctx, &eventbridge.DescribeRuleInput{Name: aws.String(name)})
	if err != nil {
		return Rule{}, explain(ctx, "events:DescribeRule", err)
	}
	r := Rule{Name: name, ARN: aws.ToString(out.Arn), Pattern: aws.ToString(out.EventPattern), Enabled: out.State != types.RuleStateDisabled}
	in := &eventbridge.ListTargetsByRuleInput{Rule: aws.String(name)}
	for {
		page, err := a.ListTargetsByRule(ctx, in)
		if err != nil {
			return Rule{}, explain(ctx, "events:ListTargetsByRule", err)
		}
		for _, t := range page.Targets {
			if aws.ToString(t.Arn) != queue {
				continue
			}
			target := Target{ID: aws.ToString(t.Id), Changed: t.Input != nil || t.InputPath != nil || t.InputTransformer != nil}
			if t.SqsParameters != nil {
				target.MessageGroup = aws.ToString(t.SqsParameters.MessageGroupId)
			}
			if t.DeadLetterConfig != nil {
				target.DeadLetters = aws.ToString(t.DeadLetterConfig.Arn)
			}
			r.Targets = append(r.Targets, target)
		}
		if in.NextToken = page.NextToken; in.NextToken == nil {
			return r, nil
		}
	}
}

// instances are those behind the nodes: by the id of the provider id, else by
// the name. EC2 takes 200 values in a filter.
func (a *AWS) instances(ctx context.Context, nodes Answer[[]Node]) Answer[[]Instance] {
	if nodes.Err != nil {
		return Answer[[]Instance]{Err: nodes.Err}
	}
	var ids, names []string
	for _, n := range nodes.Value {
		switch {
		case n.InstanceID != "":
			ids = append(ids, n.InstanceID)
		case n.ProviderID == "":
			names = append(names, n.Name)
		}
	}
	var found []Instance
	for _, filter := range []struct {
		name   string
		values []string
	}{{"instance-id", ids}, {"private-dns-name", names}} {
		for values := range slices.Chunk(filter.values, 200) {
			some, err := a.describeInstances(ctx, filter.name, values)
			if err != nil {
				return Answer[[]Instance]{Err: explain(ctx, "ec2:DescribeInstances", err)}
			}
			found = append(found, some...)
		}
	}
	return Answer[[]Instance]{Value: found}
}

func (a *AWS) describeInstances(ctx context.Context, filter string, values []string) ([]Instance, error) {
	in := &ec2.DescribeInstancesInput{Filters: []ec2types.Filter{{Name: aws.String(filter), Values: values}}, MaxResults: aws.Int32(1000)}
	var found []Instance
	for {
		out, err := a.DescribeInstances(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, r := range out.Reservations {
			for _, i := range r.Instances {
				instance := Instance{ID: aws.ToString(i.InstanceId), PrivateDNSName: aws.ToString(i.PrivateDnsName), Tags: map[string]string{}}
				for _, t := range i.Tags {
					instance.Tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
				}
				found = append(found, instance)
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return found, nil
		}
	}
}

// groups are the Auto Scaling groups that the instances say they are of.
func (a *AWS) groups(ctx context.Context, instances Answer[[]Instance], hookNames []string) Answer[[]Group] {
	if instances.Err != nil {
		return Answer[[]Group]{Err: instances.Err}
	}
	var names []string
	for _, i := range instances.Value {
		if name := i.Tags[GroupTag]; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	tags, err := a.groupTags(ctx, names)
	var groups []Group
	for _, name := range names {
		groups = append(groups, Group{Name: name, Tags: Answer[map[string]string]{Value: tags[name], Err: err}, Hooks: a.hooks(ctx, name, hookNames)})
	}
	return Answer[[]Group]{Value: groups}
}

func (a *AWS) groupTags(ctx context.Context, names []string) (map[string]map[string]string, error) {
	all := map[string]map[string]string{}
	for some := range slices.Chunk(names, 50) {
		out, err := a.DescribeAutoScalingGroups(ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: some, MaxRecords: aws.Int32(100)})
		if err != nil {
			return nil, explain(ctx, "autoscaling:DescribeAutoScalingGroups", err)
		}
		for _, g := range out.AutoScalingGroups {
			tags := map[string]string{}
			for _, t := range g.Tags {
				if aws.ToBool(t.PropagateAtLaunch) {
					tags[aws.ToString(t.Key)] = aws.ToString(t.Value)
				}
			}
			all[aws.ToString(g.AutoScalingGroupName)] = tags
		}
	}
	return all, nil
}

const terminating = "autoscaling:EC2_INSTANCE_TERMINATING"

// hooks are those of the group that have one of the names; all if there are none.
func (a *AWS) hooks(ctx context.Context, group string, names []string) Answer[[]Hook] {
	out, err := a.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String(group)})
	if err != nil {
		return Answer[[]Hook]{Err: explain(ctx, "autoscaling:DescribeLifecycleHooks", err)}
	}
	var hooks []Hook
	for _, h := range out.LifecycleHooks {
		if len(names) == 0 || slices.Contains(names, aws.ToString(h.LifecycleHookName)) {
			hooks = append(hooks, hookOf(h))
		}
	}
	return Answer[[]Hook]{Value: hooks}
}

func hookOf(h astypes.LifecycleHook) Hook {
	seconds := func(n *int32, otherwise time.Duration) time.Duration {
		if n == nil || *n <= 0 {
			return otherwise
		}
		return time.Duration(*n) * time.Second
	}
	return Hook{
		Name: aws.ToString(h.LifecycleHookName), Terminating: aws.ToString(h.LifecycleTransition) == terminating,
		Timeout: seconds(h.HeartbeatTimeout, time.Hour), Global: seconds(h.GlobalTimeout, 48*time.Hour), TargetARN: aws.ToString(h.NotificationTargetARN),
	}
}

// What is tried out cannot work: the receipt handle, the token and the number of
// messages are none. AWS says so only to those who would be allowed.
const nothing = "doctor"

func (a *AWS) queuePermissions(ctx context.Context, url string) []Permission {
	_, receive := a.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(url), MaxNumberOfMessages: -1})
	_, remove := a.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: aws.String(url), ReceiptHandle: aws.String(nothing)})
	_, change := a.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: aws.String(url), ReceiptHandle: aws.String(nothing), VisibilityTimeout: 0})
	return []Permission{
		tried(ctx, "sqs:ReceiveMessage", true, receive),
		tried(ctx, "sqs:DeleteMessage", true, remove),
		tried(ctx, "sqs:ChangeMessageVisibility", false, change),
	}
}

func (a *AWS) hookPermissions(ctx context.Context, groups Answer[[]Group], o Options) []Permission {
	for _, g := range groups.Value {
		if denied(g.Hooks.Err) {
			return []Permission{{Action: "autoscaling:DescribeLifecycleHooks", Err: g.Hooks.Err}}
		}
		for _, h := range g.Hooks.Value {
			_, complete := a.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
				AutoScalingGroupName: aws.String(g.Name), LifecycleHookName: aws.String(h.Name), LifecycleActionResult: aws.String("CONTINUE"),
				LifecycleActionToken: aws.String("00000000-0000-0000-0000-000000000000"),
			})
			tries := []Permission{{Action: "autoscaling:DescribeLifecycleHooks"}, tried(ctx, "autoscaling:CompleteLifecycleAction", true, complete)}
			if o.HeartbeatInterval > 0 {
				_, heartbeat := a.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
					AutoScalingGroupName: aws.String(g.Name), LifecycleHookName: aws.String(h.Name),
					LifecycleActionToken: aws.String("00000000-0000-0000-0000-000000000000"),
				})
				tries = append(tries, tried(ctx, "autoscaling:RecordLifecycleActionHeartbeat", false, heartbeat))
			}
			return tries
		}
	}
	return nil
}

// tried is what the answer to a try says. That the try makes no sense is the
// answer to those who are allowed it.
func tried(ctx context.Context, action string, needed bool, err error) Permission {
	p := Permission{Action: action, Needed: needed, Err: explain(ctx, action, err)}
	var api smithy.APIError
	if errors.As(err, &api) && !denied(p.Err) && !errors.Is(p.Err, ErrAbsent) && api.ErrorFault() != smithy.FaultServer {
		p.Err = nil
	}
	return p
}
