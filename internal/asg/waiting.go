package asg

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
)

const (
	groupsPermission = "autoscaling:DescribeAutoScalingGroups"
	// groupsAPage is the most that Auto Scaling returns in one answer. An answer has the
	// instances of each group: asking by group takes a call for a hundred groups, asking by
	// instance takes one for fifty instances.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html
	groupsAPage = 100

	terminating = "autoscaling:EC2_INSTANCE_TERMINATING"
)

// A Waiting is an instance that a termination hook may hold, or that its group retains.
type Waiting struct {
	Instance, Group string
	// EKS: the group is one of an EKS managed node group, whose hooks EKS completes.
	EKS bool
	// ReplacesRoot: the instance does not go. It gets another root volume, and comes back.
	ReplacesRoot bool
	// Retained: the termination was abandoned, and the group keeps the instance until a
	// person ends it.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html
	Retained bool
}

// waits are the lifecycle states of an instance that a termination hook holds. The second
// one is that of an instance refresh that replaces root volumes.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
var waits = []types.LifecycleState{types.LifecycleStateTerminatingWait, types.LifecycleStateReplacingRootVolumeWait}

// Waiting calls visit for each instance of the account's groups that waits for a termination
// hook, or is retained. It makes one call for a hundred groups. The error is a
// *PermissionError without autoscaling:DescribeAutoScalingGroups; visit may have been called
// before.
func (h *Hooks) Waiting(ctx context.Context, visit func(Waiting)) error {
	in := &autoscaling.DescribeAutoScalingGroupsInput{MaxRecords: aws.Int32(groupsAPage)}
	for {
		out, err := inTurn(ctx, h, h.Client.DescribeAutoScalingGroups, in)
		if err != nil {
			return denial(groupsPermission, "", err)
		}
		for _, group := range out.AutoScalingGroups {
			for _, i := range group.Instances {
				retained := i.LifecycleState == types.LifecycleStateTerminatingRetained
				if retained || slices.Contains(waits, i.LifecycleState) {
					visit(Waiting{
						Instance: aws.ToString(i.InstanceId), Group: aws.ToString(group.AutoScalingGroupName),
						EKS: slices.ContainsFunc(group.Tags, ofEKS), Retained: retained,
						ReplacesRoot: i.LifecycleState == types.LifecycleStateReplacingRootVolumeWait,
					})
				}
			}
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
}

// ofEKS reports whether a tag is the one that EKS gives to the groups of its managed node groups.
// https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html
func ofEKS(tag types.TagDescription) bool { return aws.ToString(tag.Key) == "eks:nodegroup-name" }

// A TerminationHook is a hook for the terminations of a group.
type TerminationHook struct {
	Name   string
	Target string // ARN of what Auto Scaling notifies; empty: only EventBridge gets the event
}

// TerminationHooks are the group's termination hooks; none if there is no such group. The
// error is a *PermissionError without autoscaling:DescribeLifecycleHooks.
func (h *Hooks) TerminationHooks(ctx context.Context, group string) (hooks []TerminationHook, err error) {
	all, err := h.describeHooks(ctx, group)
	if err != nil {
		return nil, denial(describePermission, "", err)
	}
	for _, hook := range all {
		if aws.ToString(hook.LifecycleTransition) == terminating {
			hooks = append(hooks, TerminationHook{
				Name: aws.ToString(hook.LifecycleHookName), Target: aws.ToString(hook.NotificationTargetARN),
			})
		}
	}
	return hooks, nil
}
