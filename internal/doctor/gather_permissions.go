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

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
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

// hookPermissions are tried on a hook of each group, because a role can have them for some groups; those that are only
// useful, of the first one.
func (a *AWS) hookPermissions(ctx context.Context, groups Answer[[]Group], o Options) []Permission {
	for _, g := range groups.Value {
		if denied(g.Hooks.Err) {
			return []Permission{{Action: "autoscaling:DescribeLifecycleHooks", Err: g.Hooks.Err}}
		}
	}
	hooked := withHooks(groups.Value)
	if len(hooked) == 0 {
		return nil
	}
	const token = "00000000-0000-0000-0000-000000000000"
	tries := make([][]Permission, len(hooked))
	each(len(hooked), func(k int) {
		_, err := a.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: &hooked[k].Name, LifecycleHookName: &hooked[k].Hooks.Value[0].Name,
			LifecycleActionResult: aws.String("CONTINUE"), LifecycleActionToken: aws.String(token),
		})
		tries[k] = []Permission{tried(ctx, completeAction, true, err)}
	})
	all := append([]Permission{{Action: "autoscaling:DescribeLifecycleHooks"}}, onGroups(hooked, tries)...)
	if o.HeartbeatInterval > 0 {
		_, err := a.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
			AutoScalingGroupName: &hooked[0].Name, LifecycleHookName: &hooked[0].Hooks.Value[0].Name,
			LifecycleActionToken: aws.String(token),
		})
		all = append(all, tried(ctx, heartbeatAction, false, err))
	}
	return all
}

const (
	completeAction  = "autoscaling:CompleteLifecycleAction"
	heartbeatAction = "autoscaling:RecordLifecycleActionHeartbeat"
)

func withHooks(groups []Group) []Group {
	return slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return len(g.Hooks.Value) == 0 })
}

// onGroups makes one permission of those for each group, all about the same actions: one that is denied, with the names
// of all groups on which it is, or else the first that is not known.
func onGroups(groups []Group, tries [][]Permission) []Permission {
	all := slices.Clone(tries[0])
	for k := range all {
		for g := range groups {
			p := tries[g][k]
			if denied(p.Err) {
				all[k].Groups = append(all[k].Groups, groups[g].Name)
			}
			if all[k].Err == nil || denied(p.Err) {
				all[k].Err = p.Err
			}
		}
		if len(all[k].Groups) == len(groups) {
			all[k].Groups = nil
		}
	}
	return all
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

// handlerActions are all that the handler needs, but for what it does with groups.
func handlerActions(groups []Group, o Options) []simulatedSet {
	describes := []simulatedAction{{"ec2:DescribeInstances", o.CheckTag}, {"autoscaling:DescribeLifecycleHooks", false}}
	if o.Poll {
		describes = append(describes, simulatedAction{pollAction, false})
	}
	if o.Excludes {
		describes = append(describes, simulatedAction{targetAction, false})
	}
	if len(withHooks(groups)) > 0 && o.Sweep {
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
	}
}

// simulated returns the permissions of a role as IAM says, for all that the handler needs. If no group has a hook,
// those on groups are about any.
func (a *AWS) simulated(ctx context.Context, role string, groups []Group, o Options) ([]Permission, error) {
	var permissions []Permission
	for _, set := range handlerActions(groups, o) {
		some, err := a.simulatedSet(ctx, role, set, nil, o)
		if err != nil {
			return nil, err
		}
		permissions = append(permissions, some...)
	}
	hooked := withHooks(groups)
	needed := len(hooked) > 0
	if !needed {
		hooked = []Group{{Name: "*"}}
	}
	tries, errs := make([][]Permission, len(hooked)), make([]error, len(hooked))
	each(len(hooked), func(k int) {
		// The groups are in the account of the role, the queue may be in another.
		tries[k], errs[k] = a.simulatedSet(ctx, role, simulatedSet{
			"arn:" + o.Partition + ":autoscaling:" + o.Region + ":" + iampolicy.AccountOf(role) +
				":autoScalingGroup:00000000-0000-0000-0000-000000000000:autoScalingGroupName/" + hooked[k].Name,
			[]simulatedAction{{completeAction, needed}, {heartbeatAction, false}},
		}, hooked[k].AllTags, o)
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return append(permissions, onGroups(hooked, tries)...), nil
}

// simulatedSet asks IAM about actions on a resource that has tags.
func (a *AWS) simulatedSet(
	ctx context.Context, role string, set simulatedSet, tags map[string]string, o Options,
) (permissions []Permission, err error) {
	request := []iamtypes.ContextEntry{
		contextEntry("aws:RequestedRegion", iamtypes.ContextKeyTypeEnumString, o.Region),
		contextEntry("aws:SecureTransport", iamtypes.ContextKeyTypeEnumBoolean, "true"),
	}
	for key, value := range tags { // IAM does not look at the resource
		request = append(request, contextEntry("aws:ResourceTag/"+key, iamtypes.ContextKeyTypeEnumString, value))
	}
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
	return permissions, nil
}

func contextEntry(key string, kind iamtypes.ContextKeyTypeEnum, value string) iamtypes.ContextEntry {
	return iamtypes.ContextEntry{ContextKeyName: aws.String(key), ContextKeyType: kind, ContextKeyValues: []string{value}}
}
