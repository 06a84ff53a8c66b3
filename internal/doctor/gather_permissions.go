package doctor

import (
	"cmp"
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
type try func(context.Context) Permission

// tryOf is the try of a permission by a call.
func tryOf[In, Out, Options any](
	p Permission, call func(context.Context, *In, ...func(*Options)) (*Out, error), in *In,
) try {
	return func(ctx context.Context) Permission {
		_, err := call(ctx, in)
		p.Err = tried(ctx, p.Action, err)
		return p
	}
}

// permissions tries out what the handler's role may do. What else was asked for tells of the other permissions.
func (a *AWS) permissions(ctx context.Context, f *Facts) []Permission {
	if err := f.noAWS(); err != nil {
		return []Permission{{Err: err}}
	}
	if f.Beside != nil {
		return nil
	}
	hooked := slices.DeleteFunc(slices.Clone(f.Groups.Value), func(g Group) bool { return len(g.Hooks.Value) == 0 })
	tries := a.tries(f, hooked)
	found, _ := forAll(tries, func(t try) (Permission, error) { return t(ctx), nil })
	last := len(tries) - len(hooked)
	found, completions := found[:last:last], found[last:]

	found = append(found, Permission{Action: "sqs:GetQueueAttributes", Err: blocked("queue", f.Queue.Err)})
	if f.Nodes.Err == nil {
		found = append(found, Permission{
			Action: "ec2:DescribeInstances", Needed: f.Options.CheckTag, Err: onlyDenial(f.Instances.Err),
		})
	}
	groups := Permission{Action: "autoscaling:DescribeAutoScalingGroups"}
	hooks := Permission{Action: "autoscaling:DescribeLifecycleHooks"}
	for _, g := range f.Groups.Value {
		groups.Err = cmp.Or(groups.Err, onlyDenial(g.Tags.Err))
		hooks.Err = cmp.Or(hooks.Err, onlyDenial(g.Hooks.Err))
	}
	if groups.Err != nil {
		found = append(found, groups)
	}
	switch {
	case hooks.Err != nil:
		return append(found, hooks)
	case len(hooked) == 0:
		return found
	}
	return append(found, hooks, onGroups(completions))
}

// tries are all of them. The last ones are the completions of hooks, one for each of the groups with hooks: a role can
// have that permission for some groups. What is only useful is tried on the first group.
func (a *AWS) tries(f *Facts, hooked []Group) (all []try) {
	queue, scaling := a.sqs(), autoscaling.NewFromConfig(a.Config)
	url, nothing := aws.String(f.Options.QueueURL), aws.String("doctor")
	if f.Queue.Err == nil || denied(f.Queue.Err) { // else it would say nothing of permissions
		all = append(all,
			tryOf(Permission{Action: "sqs:ReceiveMessage", Needed: true}, queue.ReceiveMessage,
				&sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: -1}),
			tryOf(Permission{Action: "sqs:DeleteMessage", Needed: true}, queue.DeleteMessage,
				&sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: nothing}),
			tryOf(Permission{Action: "sqs:ChangeMessageVisibility"}, queue.ChangeMessageVisibility,
				&sqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: nothing}))
	}
	if f.Options.Poll {
		all = append(all, tryOf(Permission{Action: "ec2:DescribeInstanceStatus"},
			ec2.NewFromConfig(a.Config).DescribeInstanceStatus, &ec2.DescribeInstanceStatusInput{DryRun: aws.Bool(true)}))
	}
	if f.Options.Excludes && len(f.TargetGroups.Value) > 0 {
		all = append(all, tryOf(Permission{Action: "elasticloadbalancing:DescribeTargetHealth"},
			elb.NewFromConfig(a.Config).DescribeTargetHealth,
			&elb.DescribeTargetHealthInput{TargetGroupArn: &f.TargetGroups.Value[0]}))
	}
	if f.Policy.Value.Rules.ReplaceFirst() && len(f.Groups.Value) > 0 {
		const nobody = "i-00000000000000000"
		all = append(all,
			tryOf(Permission{Action: "autoscaling:DescribeAutoScalingInstances"}, scaling.DescribeAutoScalingInstances,
				&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{nobody}}),
			tryOf(Permission{Action: "autoscaling:SetInstanceHealth"}, scaling.SetInstanceHealth,
				&autoscaling.SetInstanceHealthInput{InstanceId: aws.String(nobody), HealthStatus: aws.String("Healthy")}))
	}
	noToken := aws.String("00000000-0000-0000-0000-000000000000") // that of no lifecycle action
	// A heartbeat tells the sweep whether a hook waits.
	if (f.Options.HeartbeatInterval > 0 || f.Options.Sweep) && len(hooked) > 0 {
		all = append(all, tryOf(Permission{Action: "autoscaling:RecordLifecycleActionHeartbeat"},
			scaling.RecordLifecycleActionHeartbeat, &autoscaling.RecordLifecycleActionHeartbeatInput{
				AutoScalingGroupName: &hooked[0].Name, LifecycleHookName: &hooked[0].Hooks.Value[0].Name,
				LifecycleActionToken: noToken,
			}))
	}
	for _, g := range hooked {
		p := Permission{Action: "autoscaling:CompleteLifecycleAction", Needed: true, Groups: []string{g.Name}}
		all = append(all, tryOf(p, scaling.CompleteLifecycleAction, &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: &g.Name, LifecycleHookName: &g.Hooks.Value[0].Name,
			LifecycleActionResult: aws.String("CONTINUE"), LifecycleActionToken: noToken,
		}))
	}
	return all
}

// onGroups is a permission that was tried on several groups: denied, with the names of the groups on which it is, or
// else not known if it is not for one of them.
func onGroups(all []Permission) Permission {
	of := Permission{Action: all[0].Action, Needed: all[0].Needed}
	for _, p := range all {
		if denied(p.Err) {
			of.Groups = append(of.Groups, p.Groups...)
		}
		if of.Err == nil || denied(p.Err) {
			of.Err = p.Err
		}
	}
	if len(of.Groups) == len(all) {
		of.Groups = nil
	}
	return of
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
