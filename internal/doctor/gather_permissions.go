package doctor

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
)

// The calls to try permissions cannot succeed: the receipt handle, the token and the number of
// messages are invalid. AWS says so only to a caller that has the permission.
const nothing = "doctor"

func (a *AWS) queuePermissions(ctx context.Context, url string) []Permission {
	_, receive := a.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(url), MaxNumberOfMessages: -1})
	_, remove := a.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl:      aws.String(url),
		ReceiptHandle: aws.String(nothing),
	})
	_, change := a.ChangeMessageVisibility(ctx,
		&sqs.ChangeMessageVisibilityInput{
			QueueUrl: aws.String(url), ReceiptHandle: aws.String(nothing),
			VisibilityTimeout: 0,
		})
	return []Permission{
		tried(ctx, "sqs:ReceiveMessage", true, receive),
		tried(ctx, "sqs:DeleteMessage", true, remove),
		tried(ctx, "sqs:ChangeMessageVisibility", false, change),
	}
}

// pollPermissions is empty if EC2 is not polled.
func (a *AWS) pollPermissions(ctx context.Context, o Options) []Permission {
	if !o.Poll {
		return nil
	}
	_, err := a.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: aws.Bool(true)})
	return []Permission{tried(ctx, pollAction, false, err)}
}

// targetPermissions is empty if there are no target groups to wait for.
func (a *AWS) targetPermissions(ctx context.Context, groups []string) []Permission {
	if len(groups) == 0 || a.DescribeTargetHealth == nil {
		return nil
	}
	_, err := a.DescribeTargetHealth(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &groups[0]})
	return []Permission{tried(ctx, targetAction, false, err)}
}

func (a *AWS) hookPermissions(ctx context.Context, groups Answer[[]Group], o Options) []Permission {
	for _, g := range groups.Value {
		if denied(g.Hooks.Err) {
			return []Permission{{Action: "autoscaling:DescribeLifecycleHooks", Err: g.Hooks.Err}}
		}
		for _, h := range g.Hooks.Value {
			_, complete := a.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
				AutoScalingGroupName: aws.String(g.Name), LifecycleHookName: aws.String(h.Name),
				LifecycleActionResult: aws.String("CONTINUE"),
				LifecycleActionToken:  aws.String("00000000-0000-0000-0000-000000000000"),
			})
			tries := []Permission{
				{Action: "autoscaling:DescribeLifecycleHooks"},
				tried(ctx, "autoscaling:CompleteLifecycleAction", true, complete),
			}
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

// tried turns the answer to such a call into a Permission. An error about the invalid argument
// means that the permission is there.
func tried(ctx context.Context, action string, needed bool, err error) Permission {
	p := Permission{Action: action, Needed: needed, Err: explain(ctx, action, err)}
	var api smithy.APIError
	if errors.As(err, &api) && !denied(p.Err) && !errors.Is(p.Err, ErrAbsent) && api.ErrorFault() != smithy.FaultServer {
		p.Err = nil
	}
	return p
}

// A simulatedSet is a set of actions that IAM is asked about at once.
type simulatedSet struct {
	resource string
	actions  []simulatedAction
}

type simulatedAction struct {
	name   string
	needed bool
}

// handlerActions are all that the handler needs. If no group is known, they are about any.
func handlerActions(groups []Group, o Options) []simulatedSet {
	group := "*"
	if len(groups) > 0 {
		group = groups[0].Name
	}
	hooks := slices.ContainsFunc(groups, func(g Group) bool { return len(g.Hooks.Value) > 0 })
	describes := []simulatedAction{{"ec2:DescribeInstances", o.CheckTag}, {"autoscaling:DescribeLifecycleHooks", false}}
	if o.Poll {
		describes = append(describes, simulatedAction{pollAction, false})
	}
	if o.Excludes {
		describes = append(describes, simulatedAction{targetAction, false})
	}
	if hooks && o.Sweep {
		describes = append(describes, simulatedAction{"autoscaling:DescribeAutoScalingGroups", false})
	}
	return []simulatedSet{
		{o.queueARN(), []simulatedAction{
			{"sqs:ReceiveMessage", true},
			{"sqs:DeleteMessage", true},
			{"sqs:ChangeMessageVisibility", false},
			{"sqs:GetQueueAttributes", false},
		}},
		{"*", describes},
		{
			"arn:" + o.Partition + ":autoscaling:" + o.Region + ":" + o.Account +
				":autoScalingGroup:00000000-0000-0000-0000-000000000000:autoScalingGroupName/" + group,
			[]simulatedAction{
				{"autoscaling:CompleteLifecycleAction", hooks}, {"autoscaling:RecordLifecycleActionHeartbeat", false},
			},
		},
	}
}

// simulated returns the permissions of a role as IAM says, for all that the handler needs.
func (a *AWS) simulated(ctx context.Context, role string, groups []Group, o Options) ([]Permission, error) {
	request := []iamtypes.ContextEntry{
		contextEntry("aws:RequestedRegion", iamtypes.ContextKeyTypeEnumString, o.Region),
		contextEntry("aws:SecureTransport", iamtypes.ContextKeyTypeEnumBoolean, "true"),
	}
	if len(groups) > 0 {
		for key, value := range groups[0].AllTags { // IAM does not look at the resource
			request = append(request, contextEntry("aws:ResourceTag/"+key, iamtypes.ContextKeyTypeEnumString, value))
		}
	}
	var permissions []Permission
	for _, set := range handlerActions(groups, o) {
		in := &iam.SimulatePrincipalPolicyInput{
			PolicySourceArn: aws.String(role), ResourceArns: []string{set.resource}, ContextEntries: request,
		}
		for _, act := range set.actions {
			in.ActionNames = append(in.ActionNames, act.name)
		}
		out, err := a.SimulatePrincipalPolicy(ctx, in)
		if err != nil {
			return nil, explain(ctx, "iam:SimulatePrincipalPolicy", err)
		}
		for _, act := range set.actions {
			p := Permission{Action: act.name, Needed: act.needed}
			if !slices.ContainsFunc(out.EvaluationResults, func(r iamtypes.EvaluationResult) bool {
				return aws.ToString(r.EvalActionName) == act.name && r.EvalDecision == iamtypes.PolicyEvaluationDecisionTypeAllowed
			}) {
				p.Err = &DeniedError{Permission: act.name}
			}
			permissions = append(permissions, p)
		}
	}
	return permissions, nil
}

func contextEntry(key string, kind iamtypes.ContextKeyTypeEnum, value string) iamtypes.ContextEntry {
	return iamtypes.ContextEntry{ContextKeyName: aws.String(key), ContextKeyType: kind, ContextKeyValues: []string{value}}
}
