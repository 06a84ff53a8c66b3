package asg

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
)

// groupsAPI answers the calls of Waiting and TerminationHooks.
type groupsAPI struct {
	groups []types.AutoScalingGroup // a page each
	hooks  []types.LifecycleHook
	err    error
	asked  []autoscaling.DescribeAutoScalingGroupsInput
}

func (g *groupsAPI) client() API {
	return API{DescribeAutoScalingGroups: g.DescribeAutoScalingGroups, DescribeLifecycleHooks: g.DescribeLifecycleHooks}
}

func (g *groupsAPI) DescribeAutoScalingGroups(_ context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, _ ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	g.asked = append(g.asked, *in)
	if g.err != nil {
		return nil, g.err
	}
	page := 0
	if in.NextToken != nil {
		if _, err := fmt.Sscan(*in.NextToken, &page); err != nil {
			return nil, err
		}
	}
	out := &autoscaling.DescribeAutoScalingGroupsOutput{AutoScalingGroups: g.groups[page : page+1]}
	if page+1 < len(g.groups) {
		out.NextToken = aws.String(fmt.Sprint(page + 1))
	}
	return out, nil
}

func (g *groupsAPI) DescribeLifecycleHooks(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	return &autoscaling.DescribeLifecycleHooksOutput{LifecycleHooks: g.hooks}, g.err
}

func group(name string, states ...types.LifecycleState) types.AutoScalingGroup {
	g := types.AutoScalingGroup{AutoScalingGroupName: &name}
	for k, state := range states {
		g.Instances = append(g.Instances, types.Instance{InstanceId: aws.String(fmt.Sprintf("%s-%d", name, k)), LifecycleState: state})
	}
	return g
}

func TestWaitingGoesThroughAllPagesOfGroups(t *testing.T) {
	api := &groupsAPI{groups: []types.AutoScalingGroup{
		group("a", types.LifecycleStateInService, types.LifecycleStateTerminatingWait, types.LifecycleStateTerminatingProceed),
		group("b"),
		group("c", types.LifecycleStateReplacingRootVolumeWait, types.LifecycleStateTerminatingRetained, types.LifecycleStateWarmedTerminatingWait,
			types.LifecycleStatePendingWait),
	}}
	api.groups[0].Tags = []types.TagDescription{{Key: aws.String("eks:nodegroup-name"), Value: aws.String("blue")}}
	var found []Waiting
	if err := (&Hooks{Client: api.client()}).Waiting(t.Context(), func(w Waiting) { found = append(found, w) }); err != nil {
		t.Fatal(err)
	}
	want := []Waiting{{Instance: "a-1", Group: "a", EKS: true}, {Instance: "c-0", Group: "c", ReplacesRoot: true}, {Instance: "c-1", Group: "c", Retained: true}}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	if len(api.asked) != 3 || aws.ToInt32(api.asked[0].MaxRecords) != 100 {
		t.Errorf("%d calls, with %d groups at most; want 3 with 100", len(api.asked), aws.ToInt32(api.asked[0].MaxRecords))
	}
}

func TestTheTerminationHooksOfAGroup(t *testing.T) {
	api := &groupsAPI{hooks: []types.LifecycleHook{
		{LifecycleHookName: aws.String("drain"), LifecycleTransition: aws.String("autoscaling:EC2_INSTANCE_TERMINATING")},
		{
			LifecycleHookName: aws.String("others"), LifecycleTransition: aws.String("autoscaling:EC2_INSTANCE_TERMINATING"),
			NotificationTargetARN: aws.String("arn:aws:sns:::t"),
		},
		{LifecycleHookName: aws.String("join"), LifecycleTransition: aws.String("autoscaling:EC2_INSTANCE_LAUNCHING")},
	}}
	hooks, err := (&Hooks{Client: api.client()}).TerminationHooks(t.Context(), "a")
	if diff := cmp.Diff([]TerminationHook{{Name: "drain"}, {Name: "others", Target: "arn:aws:sns:::t"}}, hooks); diff != "" || err != nil {
		t.Errorf("hooks (-want +got), %v:\n%s", err, diff)
	}
	api.hooks, api.err = nil, &smithy.GenericAPIError{Code: "ValidationError", Message: "AutoScalingGroup name not found - null"}
	if hooks, err := (&Hooks{Client: api.client()}).TerminationHooks(t.Context(), "a"); len(hooks) > 0 || err != nil {
		t.Errorf("without the group: %v, %v", hooks, err)
	}
}

func TestWhoMayNotAskWhatWaitsIsTold(t *testing.T) {
	api := &groupsAPI{err: &smithy.GenericAPIError{Code: "AccessDenied", Message: "no"}}
	h := &Hooks{Client: api.client()}
	err := h.Waiting(t.Context(), func(Waiting) { t.Error("it was told of something") })
	if denied, ok := errors.AsType[*PermissionError](err); !ok || denied.Action != "autoscaling:DescribeAutoScalingGroups" {
		t.Errorf("Waiting says %v", err)
	}
	_, err = h.TerminationHooks(t.Context(), "a")
	if denied, ok := errors.AsType[*PermissionError](err); !ok || denied.Action != "autoscaling:DescribeLifecycleHooks" {
		t.Errorf("TerminationHooks says %v", err)
	}
	api.err = errors.New("lost")
	if err := h.Waiting(t.Context(), func(Waiting) {}); !errors.Is(err, api.err) {
		t.Errorf("Waiting says %v", err)
	}
}
