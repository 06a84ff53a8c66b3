package doctor

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
)

// A try is a call that cannot succeed: the receipt handle, the token or the number of messages is
// invalid. AWS says so only to a caller that has the permission.
type try struct {
	action string
	needed bool
	call   func() error
}

// permissions tries out what the handler's role may do. What else was asked for tells of the other permissions.
func (a *AWS) permissions(ctx context.Context, f *Facts) []Permission {
	if err := f.noAWS(); err != nil {
		return []Permission{{Err: err}}
	}
	if f.Beside != nil {
		return nil
	}
	found := []Permission{{Action: "sqs:GetQueueAttributes", Err: blocked("queue", f.Queue.Err)}}
	if f.Nodes.Err == nil {
		found = append(found, Permission{
			Action: "ec2:DescribeInstances", Needed: f.Options.CheckTag, Err: onlyDenial(f.Instances.Err),
		})
	}
	hooked := slices.DeleteFunc(slices.Clone(f.Groups.Value), func(g Group) bool { return len(g.Hooks.Value) == 0 })
	tries := a.tries(ctx, f, hooked)
	// A role can have the permission to complete for some groups.
	errs := make([]error, len(tries)+len(hooked))
	each(len(errs), func(k int) {
		if k < len(tries) {
			errs[k] = tried(ctx, tries[k].action, tries[k].call())
		} else {
			errs[k] = a.tryToComplete(ctx, hooked[k-len(tries)])
		}
	})
	for k, t := range tries {
		found = append(found, Permission{Action: t.action, Needed: t.needed, Err: errs[k]})
	}
	for _, g := range f.Groups.Value {
		if denied(g.Tags.Err) {
			found = append(found, Permission{Action: "autoscaling:DescribeAutoScalingGroups", Err: g.Tags.Err})
			break
		}
	}
	for _, g := range f.Groups.Value {
		if denied(g.Hooks.Err) {
			return append(found, Permission{Action: "autoscaling:DescribeLifecycleHooks", Err: g.Hooks.Err})
		}
	}
	if len(hooked) == 0 {
		return found
	}
	return append(found, Permission{Action: "autoscaling:DescribeLifecycleHooks"}, onGroups(hooked, errs[len(tries):]))
}

// tries are all that are not for each of the groups with hooks; those that are only useful, for the first one.
func (a *AWS) tries(ctx context.Context, f *Facts, hooked []Group) []try {
	url, nothing := aws.String(f.Options.QueueURL), aws.String("doctor")
	all := []try{
		{"sqs:ReceiveMessage", true, func() error {
			return errOf(a.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: -1}))
		}},
		{"sqs:DeleteMessage", true, func() error {
			return errOf(a.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: nothing}))
		}},
		{"sqs:ChangeMessageVisibility", false, func() error {
			return errOf(a.ChangeMessageVisibility(ctx,
				&sqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: nothing}))
		}},
	}
	if f.Queue.Err != nil && !denied(f.Queue.Err) { // it would say nothing of permissions
		all = nil
	}
	if f.Options.Poll {
		all = append(all, try{"ec2:DescribeInstanceStatus", false, func() error {
			return errOf(a.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: aws.Bool(true)}))
		}})
	}
	if f.Options.Excludes && len(f.TargetGroups.Value) > 0 {
		all = append(all, try{"elasticloadbalancing:DescribeTargetHealth", false, func() error {
			in := &elb.DescribeTargetHealthInput{TargetGroupArn: &f.TargetGroups.Value[0]}
			return errOf(a.DescribeTargetHealth(ctx, in))
		}})
	}
	// A heartbeat tells the sweep whether a hook waits.
	if (f.Options.HeartbeatInterval > 0 || f.Options.Sweep) && len(hooked) > 0 {
		all = append(all, try{"autoscaling:RecordLifecycleActionHeartbeat", false, func() error {
			return errOf(a.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
				AutoScalingGroupName: &hooked[0].Name, LifecycleHookName: &hooked[0].Hooks.Value[0].Name,
				LifecycleActionToken: aws.String(noToken),
			}))
		}})
	}
	if f.Policy.Value.Rules.ReplaceFirst() && len(f.Groups.Value) > 0 {
		const nobody = "i-00000000000000000"
		all = append(all, try{"autoscaling:DescribeAutoScalingInstances", false, func() error {
			return errOf(a.DescribeAutoScalingInstances(ctx, &autoscaling.DescribeAutoScalingInstancesInput{
				InstanceIds: []string{nobody},
			}))
		}}, try{"autoscaling:SetInstanceHealth", false, func() error {
			return errOf(a.SetInstanceHealth(ctx, &autoscaling.SetInstanceHealthInput{
				InstanceId: aws.String(nobody), HealthStatus: aws.String("Healthy"),
			}))
		}})
	}
	return all
}

// noToken is that of no lifecycle action.
const noToken = "00000000-0000-0000-0000-000000000000"

const completeAction = "autoscaling:CompleteLifecycleAction"

func (a *AWS) tryToComplete(ctx context.Context, g Group) error {
	_, err := a.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &g.Name, LifecycleHookName: &g.Hooks.Value[0].Name,
		LifecycleActionResult: aws.String("CONTINUE"), LifecycleActionToken: aws.String(noToken),
	})
	return tried(ctx, completeAction, err)
}

// onGroups is the permission to complete: denied, with the names of the groups on which it is, or else not known if it
// is not for one of them.
func onGroups(groups []Group, errs []error) Permission {
	p := Permission{Action: completeAction, Needed: true}
	for k, err := range errs {
		if denied(err) {
			p.Groups = append(p.Groups, groups[k].Name)
		}
		if p.Err == nil || denied(err) {
			p.Err = err
		}
	}
	if len(p.Groups) == len(groups) {
		p.Groups = nil
	}
	return p
}

// tried says what the answer to a try means. An error about the invalid argument means that the permission is there.
func tried(ctx context.Context, action string, err error) error {
	explained := explain(ctx, action, err)
	api, answered := errors.AsType[smithy.APIError](err)
	if answered && !denied(explained) && !errors.Is(explained, ErrAbsent) && api.ErrorFault() != smithy.FaultServer {
		return nil
	}
	return explained
}

// onlyDenial returns an error about a missing permission; other errors are reported by the checks
// that they belong to.
func onlyDenial(err error) error {
	if denied(err) {
		return err
	}
	return nil
}

// errOf leaves out the answer.
func errOf[T any](_ T, err error) error { return err }
