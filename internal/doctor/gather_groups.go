package doctor

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
)

// instances returns the instances behind the nodes, found by the id in the provider id, else by
// the name, as [lookup.NodeName] says. EC2 accepts 200 values in a filter.
func (a *AWS) instances(ctx context.Context, nodes []Node) ([]Instance, error) {
	var ids, names []string
	for _, n := range nodes {
		switch {
		case n.InstanceID != "":
			ids = append(ids, n.InstanceID)
		case !n.Fargate:
			names = append(names, n.Name)
		}
	}
	var filters []ec2types.Filter
	for some := range slices.Chunk(ids, 200) {
		filters = append(filters, ec2types.Filter{Name: aws.String("instance-id"), Values: some})
	}
	for some := range slices.Chunk(names, 200) {
		filters = append(filters, ec2types.Filter{Name: aws.String("private-dns-name"), Values: some})
	}
	found, err := forAll(filters, func(f ec2types.Filter) ([]Instance, error) { return a.describeInstances(ctx, f) })
	if err != nil {
		return nil, err
	}
	return slices.Concat(found...), nil
}

func (a *AWS) describeInstances(ctx context.Context, filter ec2types.Filter) (found []Instance, _ error) {
	client := ec2.NewFromConfig(a.Config)
	in := &ec2.DescribeInstancesInput{Filters: []ec2types.Filter{filter}, MaxResults: aws.Int32(1000)}
	for {
		out, err := client.DescribeInstances(ctx, in)
		if err != nil {
			return nil, explain(ctx, "ec2:DescribeInstances", err)
		}
		for _, r := range out.Reservations {
			for _, i := range r.Instances {
				instance := Instance{
					ID: aws.ToString(i.InstanceId), Account: aws.ToString(r.OwnerId),
					PrivateDNSName: aws.ToString(i.PrivateDnsName), Spot: i.InstanceLifecycle == ec2types.InstanceLifecycleTypeSpot,
					Reservation:   aws.ToString(i.CapacityReservationId),
					Interruptible: i.InstanceLifecycle == ec2types.InstanceLifecycleTypeInterruptibleCapacityReservation,
					Block:         i.InstanceLifecycle == ec2types.InstanceLifecycleTypeCapacityBlock,
					Tags:          map[string]string{},
				}
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

// groups returns the Auto Scaling groups in the tags of the instances.
func (a *AWS) groups(ctx context.Context, instances []Instance, hookNames []string) ([]Group, error) {
	var names []string
	for _, i := range instances {
		if name := i.Tags[GroupTag]; name != "" {
			names = append(names, name)
		}
	}
	names = slices.Compact(sorted(names))
	client := autoscaling.NewFromConfig(a.Config)
	described, err := describeGroups(ctx, client, names)
	return forAll(names, func(name string) (Group, error) {
		g := Group{Name: name, Tags: Answer[map[string]string]{Err: err}}
		if d, is := described[name]; is {
			g = d
		}
		ours := hookNames
		if g.ofEKS && len(ours) == 0 { // the sweep leaves these to EKS, which drains the nodes
			g.LeftToEKS, ours = true, []string{""} // none
		}
		g.Hooks, g.OtherHooks = hooks(ctx, client, name, ours)
		return g, nil
	})
}

// describeGroups returns what groups say of themselves, without their hooks.
func describeGroups(ctx context.Context, client *autoscaling.Client, names []string) (map[string]Group, error) {
	found := map[string]Group{}
	for some := range slices.Chunk(names, 50) {
		out, err := client.DescribeAutoScalingGroups(ctx,
			&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: some, MaxRecords: aws.Int32(100)})
		if err != nil {
			return found, explain(ctx, "autoscaling:DescribeAutoScalingGroups", err)
		}
		for _, described := range out.AutoScalingGroups {
			g := Group{Name: aws.ToString(described.AutoScalingGroupName), Replacing: asg.GroupOf(described)}
			g.Tags.Value = map[string]string{}
			for _, t := range described.Tags {
				key := aws.ToString(t.Key)
				g.ofEKS = g.ofEKS || key == "eks:nodegroup-name"
				if aws.ToBool(t.PropagateAtLaunch) {
					g.Tags.Value[key] = aws.ToString(t.Value)
				}
			}
			found[g.Name] = g
		}
	}
	return found, nil
}

// hooks returns the hooks of a group that have one of the names; all hooks if names is empty. others are the names of
// the termination hooks that are left out.
func hooks(
	ctx context.Context, client *autoscaling.Client, group string, names []string,
) (ours Answer[[]Hook], others []string) {
	out, err := client.DescribeLifecycleHooks(ctx,
		&autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String(group)})
	if err != nil {
		ours.Err = explain(ctx, "autoscaling:DescribeLifecycleHooks", err)
		return ours, nil
	}
	for _, described := range out.LifecycleHooks {
		switch h := hookOf(described); {
		case len(names) == 0 || slices.Contains(names, h.Name):
			ours.Value = append(ours.Value, h)
		case h.Terminating:
			others = append(others, h.Name)
		}
	}
	return ours, others
}

func hookOf(h astypes.LifecycleHook) Hook {
	limits := asg.LimitsOf(h)
	return Hook{
		Name:        aws.ToString(h.LifecycleHookName),
		Terminating: aws.ToString(h.LifecycleTransition) == "autoscaling:EC2_INSTANCE_TERMINATING",
		Timeout:     limits.Timeout, Global: limits.Global,
		TargetARN: aws.ToString(h.NotificationTargetARN),
		Abandons:  aws.ToString(h.DefaultResult) == "ABANDON",
	}
}
