package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	kmstypes "github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"golang.org/x/sync/errgroup"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
)

// AWS is how doctor asks AWS. It makes clients where it asks, and keeps none: the linker keeps all methods of a client
// in a field of what becomes an interface.
type AWS struct {
	aws.Config
	SQSEndpoint string // of SQS alone; empty: that of Config
}

func (a *AWS) sqs() *sqs.Client {
	return sqs.NewFromConfig(a.Config, func(o *sqs.Options) {
		if a.SQSEndpoint != "" {
			o.BaseEndpoint = &a.SQSEndpoint
		}
	})
}

// near is the Config for the region of an ARN; the same if that has none.
func (a *AWS) near(text string) aws.Config {
	config := a.Copy()
	if parsed, err := arn.Parse(text); err == nil {
		config.Region = cmp.Or(parsed.Region, config.Region)
	}
	return config
}

// explain turns an error of AWS into a *DeniedError or ErrAbsent if it is one of these.
func explain(ctx context.Context, permission string, err error) error {
	switch code := awserr.Code(err); {
	case err == nil:
		return nil
	case strings.HasPrefix(code, "AccessDenied"), code == "UnauthorizedOperation", code == "AuthorizationError":
		return &DeniedError{Permission: permission, Err: err}
	case strings.HasSuffix(code, "NonExistentQueue"), code == "QueueDoesNotExist", code == "ResourceNotFoundException",
		code == "NotFoundException", code == "NotFound":
		return fmt.Errorf("%s: %w", permission, ErrAbsent)
	}
	return fmt.Errorf("%s: %w", permission, plain(ctx, err))
}

// plain removes what the SDK wraps around an error: it returns the answer of AWS as an *APIError,
// else the innermost error. Credential providers name everything that they tried; an error of a
// dial is kept whole, because it has the address.
func plain(ctx context.Context, err error) error {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return &APIError{Code: api.ErrorCode(), Message: api.ErrorMessage()}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok {
		return dial
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

func (g *Gatherer) queue(ctx context.Context) (Queue, error) {
	out, err := g.AWS.sqs().GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &g.Options.QueueURL, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll},
	})
	if err != nil {
		return Queue{}, explain(ctx, "sqs:GetQueueAttributes", err)
	}
	get := func(name sqstypes.QueueAttributeName) string { return out.Attributes[string(name)] }
	number := func(name sqstypes.QueueAttributeName) int {
		n, _ := strconv.Atoi(get(name)) // what SQS does not say is zero
		return n
	}
	q := Queue{
		ARN:       get(sqstypes.QueueAttributeNameQueueArn),
		Delay:     time.Duration(number(sqstypes.QueueAttributeNameDelaySeconds)) * time.Second,
		Retention: time.Duration(number(sqstypes.QueueAttributeNameMessageRetentionPeriod)) * time.Second,
		MaxSize:   number(sqstypes.QueueAttributeNameMaximumMessageSize),
		FIFO:      get(sqstypes.QueueAttributeNameFifoQueue) == "true",
		KeyID:     get(sqstypes.QueueAttributeNameKmsMasterKeyId),
		Policy:    get(sqstypes.QueueAttributeNamePolicy),
	}
	var redrive struct {
		Target          string      `json:"deadLetterTargetArn"`
		MaxReceiveCount json.Number `json:"maxReceiveCount"` // some tools write it in quotes
	}
	if json.Unmarshal([]byte(get(sqstypes.QueueAttributeNameRedrivePolicy)), &redrive) == nil {
		n, _ := redrive.MaxReceiveCount.Int64()
		q.MaxReceives, q.DeadLetters = int(n), redrive.Target
	}
	return q, nil
}

// key returns a key of KMS: its id, alias or ARN is that which the resource of another service names, with the ARN of.
func (a *AWS) key(ctx context.Context, id, of string) (Key, error) {
	id = keyARN(id, of)
	keys := kms.NewFromConfig(a.near(id))
	out, err := keys.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: aws.String(id)})
	if err != nil {
		return Key{}, explain(ctx, "kms:DescribeKey", err)
	}
	m := out.KeyMetadata
	k := Key{ARN: aws.ToString(m.Arn), AWSManaged: m.KeyManager == "AWS", State: string(m.KeyState)}
	text, err := keys.GetKeyPolicy(ctx, &kms.GetKeyPolicyInput{KeyId: m.Arn})
	if k.Policy.Err = explain(ctx, "kms:GetKeyPolicy", err); err == nil {
		k.Policy.Value = aws.ToString(text.Policy)
	}
	return k, nil
}

// mayDecrypt asks KMS whether the caller can decrypt with a key. A dry run that ignores the
// ciphertext needs none, and has no effect.
// https://docs.aws.amazon.com/kms/latest/developerguide/testing-permissions.html
func (a *AWS) mayDecrypt(ctx context.Context, key string) (bool, error) {
	_, err := kms.NewFromConfig(a.near(key)).Decrypt(ctx, &kms.DecryptInput{
		KeyId: aws.String(key), DryRun: aws.Bool(true),
		DryRunModifiers: []kmstypes.DryRunModifierType{kmstypes.DryRunModifierTypeIgnoreCiphertext},
	})
	if _, can := errors.AsType[*kmstypes.DryRunOperationException](err); can {
		return true, nil
	}
	if err = explain(ctx, "kms:Decrypt", err); denied(err) {
		return false, nil
	}
	return false, err
}

// keyARN is the ARN of a key that a queue or a topic names: an id or an alias is of the account and region of that.
func keyARN(id, of string) string {
	key, err := arn.Parse(of)
	if err != nil || strings.HasPrefix(id, "arn:") {
		return id
	}
	if !strings.HasPrefix(id, "alias/") {
		id = "key/" + id
	}
	key.Service, key.Resource = "kms", id
	return key.String()
}

// rules returns the rules of the default bus that have the queue as a target, or a topic that hands
// on to the queue. Of a topic that could not be read nobody knows that.
func (a *AWS) rules(ctx context.Context, queue string, through topics) ([]Rule, error) {
	all, err := a.rulesOf(ctx, queue)
	if err != nil {
		return nil, err
	}
	for _, topic := range slices.Sorted(maps.Keys(through)) {
		if s := through[topic].Value.Subscription; s == nil || s.Pending {
			continue
		}
		more, err := a.rulesOf(ctx, topic)
		if err != nil {
			return nil, err
		}
		for _, r := range more {
			r.Topic = topic
			all = append(all, r)
		}
	}
	return all, nil
}

// rulesOf returns the rules of the default bus that have a target, in the target's region.
func (a *AWS) rulesOf(ctx context.Context, arn string) (rules []Rule, _ error) {
	events := eventbridge.NewFromConfig(a.near(arn))
	in := &eventbridge.ListRuleNamesByTargetInput{TargetArn: aws.String(arn)}
	for {
		out, err := events.ListRuleNamesByTarget(ctx, in)
		if err != nil {
			return nil, explain(ctx, "events:ListRuleNamesByTarget", err)
		}
		some, err := forAll(out.RuleNames, func(name string) (Rule, error) { return ruleOf(ctx, events, name, arn) })
		if err != nil {
			return nil, err
		}
		rules = append(rules, some...)
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return rules, nil
		}
	}
}

// ruleOf returns a rule, with those of its targets that are this one.
func ruleOf(ctx context.Context, events *eventbridge.Client, name, arn string) (Rule, error) {
	out, err := events.DescribeRule(ctx, &eventbridge.DescribeRuleInput{Name: aws.String(name)})
	if err != nil {
		return Rule{}, explain(ctx, "events:DescribeRule", err)
	}
	r := Rule{
		Name: name, ARN: aws.ToString(out.Arn), Pattern: aws.ToString(out.EventPattern),
		Enabled: out.State != types.RuleStateDisabled,
	}
	// A rule has five at most: they fit on a page.
	targets, err := events.ListTargetsByRule(ctx, &eventbridge.ListTargetsByRuleInput{Rule: aws.String(name)})
	if err != nil {
		return Rule{}, explain(ctx, "events:ListTargetsByRule", err)
	}
	for _, t := range targets.Targets {
		if aws.ToString(t.Arn) == arn {
			r.Targets = append(r.Targets, Target{
				RoleARN: aws.ToString(t.RoleArn), Changed: t.Input != nil || t.InputPath != nil || t.InputTransformer != nil,
			})
		}
	}
	return r, nil
}

// forAll calls do with all of in, sixteen at the same time, and returns the results, and the first error: the SDK waits
// where an API accepts fewer, and a hundred groups take some seconds.
func forAll[In, Out any](in []In, do func(In) (Out, error)) ([]Out, error) {
	const atOnce = 16
	out, errs := make([]Out, len(in)), make([]error, len(in))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for k := range in {
		all.Go(func() error {
			out[k], errs[k] = do(in[k])
			return nil
		})
	}
	_ = all.Wait() // errs has the errors
	return out, cmp.Or(errs...)
}
