package doctor

import (
	"context"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	astypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
)

// instances returns the instances behind the nodes, found by the id in the provider id, else by
// the name. EC2 accepts 200 values in a filter.
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
		chunks := slices.Collect(slices.Chunk(filter.values, 200))
		some, errs := make([][]Instance, len(chunks)), make([]error, len(chunks))
		each(len(chunks), func(k int) { some[k], errs[k] = a.describeInstances(ctx, where(filter.name, chunks[k]...)) })
		for _, err := range errs {
			if err != nil {
				return Answer[[]Instance]{Err: explain(ctx, "ec2:DescribeInstances", err)}
			}
		}
		found = slices.Concat(found, slices.Concat(some...))
	}
	return Answer[[]Instance]{Value: found}
}

// where is a filter of EC2.
func where(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: aws.String(name), Values: values}
}

func (a *AWS) describeInstances(ctx context.Context, filters ...ec2types.Filter) ([]Instance, error) {
	in := &ec2.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(1000)}
	var found []Instance
	for {
		out, err := a.DescribeInstances(ctx, in)
		if err != nil {
			return nil, err
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
	described, err := a.describeGroups(ctx, names)
	groups := make([]Group, len(names))
	each(len(names), func(k int) {
		ours, others := sortHooks(a.allHooks(ctx, names[k]), hookNames)
		_, ofEKS := described.tags[names[k]]["eks:nodegroup-name"]
		if ofEKS = ofEKS && len(hookNames) == 0; ofEKS { // the sweep leaves these to EKS, which drains the nodes
			ours.Value, others = nil, nil
		}
		groups[k] = Group{
			Name: names[k], Tags: Answer[map[string]string]{Value: described.propagated[names[k]], Err: err}, Hooks: ours,
			OtherHooks: others, LeftToEKS: ofEKS, AllTags: described.tags[names[k]],
			Replacing: described.replacing[names[k]],
		}
	})
	return Answer[[]Group]{Value: groups}
}

// describedGroups are what groups say of themselves, by their names.
type describedGroups struct {
	propagated map[string]map[string]string // the tags that new instances get
	tags       map[string]map[string]string // all tags
	replacing  map[string]replacement.Group
}

func (a *AWS) describeGroups(ctx context.Context, names []string) (describedGroups, error) {
	d := describedGroups{
		propagated: map[string]map[string]string{}, tags: map[string]map[string]string{},
		replacing: map[string]replacement.Group{},
	}
	for some := range slices.Chunk(names, 50) {
		out, err := a.DescribeAutoScalingGroups(ctx,
			&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: some, MaxRecords: aws.Int32(100)})
		if err != nil {
			return d, explain(ctx, "autoscaling:DescribeAutoScalingGroups", err)
		}
		for _, g := range out.AutoScalingGroups {
			name := aws.ToString(g.AutoScalingGroupName)
			d.propagated[name], d.tags[name] = map[string]string{}, map[string]string{}
			d.replacing[name] = replacement.FromAWS(g)
			for _, t := range g.Tags {
				d.tags[name][aws.ToString(t.Key)] = aws.ToString(t.Value)
				if aws.ToBool(t.PropagateAtLaunch) {
					d.propagated[name][aws.ToString(t.Key)] = aws.ToString(t.Value)
				}
			}
		}
	}
	return d, nil
}

const terminating = "autoscaling:EC2_INSTANCE_TERMINATING"

// hooks returns the hooks of the group that have one of the names; all hooks if names is empty.
func (a *AWS) hooks(ctx context.Context, group string, names []string) Answer[[]Hook] {
	ours, _ := sortHooks(a.allHooks(ctx, group), names)
	return ours
}

func (a *AWS) allHooks(ctx context.Context, group string) Answer[[]Hook] {
	out, err := a.DescribeLifecycleHooks(ctx,
		&autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String(group)})
	if err != nil {
		return Answer[[]Hook]{Err: explain(ctx, "autoscaling:DescribeLifecycleHooks", err)}
	}
	var hooks []Hook
	for _, h := range out.LifecycleHooks {
		hooks = append(hooks, hookOf(h))
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
		Timeout: seconds(h.HeartbeatTimeout, time.Hour), Global: seconds(h.GlobalTimeout, 48*time.Hour),
		TargetARN: aws.ToString(h.NotificationTargetARN),
		Abandons:  aws.ToString(h.DefaultResult) == "ABANDON",
	}
}

// sortHooks separates the hooks with one of the names from the others. Of the others it returns
// the names of termination hooks.
func sortHooks(all Answer[[]Hook], names []string) (ours Answer[[]Hook], others []string) {
	ours.Err = all.Err
	for _, h := range all.Value {
		switch {
		case len(names) == 0 || slices.Contains(names, h.Name):
			ours.Value = append(ours.Value, h)
		case h.Terminating:
			others = append(others, h.Name)
		}
	}
	return ours, others
}
