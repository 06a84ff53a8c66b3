package awssim_test

import (
	"context"
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestARoleMayCallWhatItsPolicySaysAndOthersEverything(t *testing.T) {
	server := awssim.New(awssim.Options{})
	defer server.Close()
	if err := errors.Join(server.CreateQueue(awssim.Queue{Name: "q"}), server.CreateQueue(awssim.Queue{Name: "other"}),
		server.PutGroup(awssim.Group{Name: "workers"}),
		server.PutGroup(awssim.Group{Name: "tagged", Tags: map[string]string{"kubernetes.io/cluster/Prod": "owned"}}),
		server.PutRole(awssim.Role{Name: "handler", AccessKeyID: "AKIDHANDLER", Policy: `{"Statement": [
			{"Effect": "Allow", "Action": "sqs:GetQueueAttributes", "Resource": "` + server.QueueARN("q") + `"},
			{"Effect": "Allow", "Action": "autoscaling:CompleteLifecycleAction", "Resource": "arn:*:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/others"},
			{"Effect": "Allow", "Action": "autoscaling:CompleteLifecycleAction", "Resource": "*", "Condition": {"Null": {"aws:ResourceTag/kubernetes.io/cluster/Prod": "false"}}},
			{"Effect": "Allow", "Action": "autoscaling:Describe*", "Resource": "*", "Condition": {"StringEquals": {"aws:RequestedRegion": "us-east-1"}}}]}`})); err != nil {
		t.Fatal(err)
	}
	cfg := server.Config()
	cfg.RetryMaxAttempts = 1
	ctx := t.Context()
	attributes := func(cfg aws.Config, queue string) error {
		_, err := sqs.NewFromConfig(cfg).GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: aws.String(server.QueueURL(queue))})
		return err
	}
	if err := attributes(cfg, "other"); err != nil {
		t.Errorf("whoever has no role: %v", err)
	}
	cfg.Credentials = credentials.NewStaticCredentialsProvider("AKIDHANDLER", "s", "")
	complete := func(group string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := autoscaling.NewFromConfig(cfg).CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
				AutoScalingGroupName: aws.String(group), LifecycleHookName: aws.String("x"), LifecycleActionResult: aws.String("CONTINUE"),
			})
			return err
		}
	}
	for _, tt := range []struct {
		name string
		call func(context.Context) error
		code string
	}{
		{"its queue", func(context.Context) error { return attributes(cfg, "q") }, ""},
		{"another queue", func(context.Context) error { return attributes(cfg, "other") }, "AccessDenied"},
		{"instances", func(ctx context.Context) error {
			_, err := ec2.NewFromConfig(cfg).DescribeInstances(ctx, &ec2.DescribeInstancesInput{})
			return err
		}, "UnauthorizedOperation"},
		{"the statuses of instances", func(ctx context.Context) error {
			_, err := ec2.NewFromConfig(cfg).DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{})
			return err
		}, "UnauthorizedOperation"},
		{"rules", func(ctx context.Context) error {
			_, err := eventbridge.NewFromConfig(cfg).DescribeRule(ctx, &eventbridge.DescribeRuleInput{Name: aws.String("x")})
			return err
		}, "AccessDeniedException"},
		{"hooks", func(ctx context.Context) error {
			_, err := autoscaling.NewFromConfig(cfg).DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String("workers")})
			return err
		}, ""},
		{"a hook of a group that is not named", complete("workers"), "AccessDenied"},
		{"a hook of a group with the tag, which has no such action", complete("tagged"), "ValidationError"},
	} {
		code := ""
		if api, ok := errors.AsType[smithy.APIError](tt.call(ctx)); ok {
			code = api.ErrorCode()
		}
		if code != tt.code {
			t.Errorf("%s: %q, want %q", tt.name, code, tt.code)
		}
	}
	who, err := sts.NewFromConfig(cfg).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil || *who.Arn != "arn:aws:sts::123456789012:assumed-role/handler/session" {
		t.Errorf("the caller is %+v, error %v", who, err)
	}
}
