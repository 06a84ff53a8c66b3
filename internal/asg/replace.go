package asg

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// groupKept is how long what a group says of itself is kept: the nodes of one group that get a notice at
// the same time share one answer.
const groupKept = 5 * time.Second

// A Refusal is an error after which another try for a replacement makes no sense.
type Refusal struct {
	Why  decision.Why
	Text string // for people
}

func (r *Refusal) Error() string { return r.Text }

type describedGroup struct {
	group Group
	asked time.Time
}

// Member returns what Auto Scaling says of an instance now. ok: it is in a group. An error that wraps a *Refusal is
// final, as for the two methods below; after others the call may have had its effect.
func (h *Hooks) Member(ctx context.Context, id string) (m Member, ok bool, err error) {
	out, err := inTurn(ctx, h, h.Client.DescribeAutoScalingInstances,
		&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{id}})
	if err != nil {
		return m, false, explain("autoscaling:DescribeAutoScalingInstances", err)
	}
	for _, i := range out.AutoScalingInstances {
		if aws.ToString(i.InstanceId) == id {
			goes := strings.HasPrefix(aws.ToString(i.LifecycleState), "Terminat")
			return Member{Group: aws.ToString(i.AutoScalingGroupName), Goes: goes}, true, nil
		}
	}
	return m, false, nil
}

// Group returns what a group says of itself; it may be some seconds old.
func (h *Hooks) Group(ctx context.Context, name string) (Group, error) {
	if known, ok := h.bounded(&h.groups).Get(name); ok {
		if d := known.(describedGroup); time.Since(d.asked) < groupKept {
			return d.group, nil
		}
	}
	return h.looks.Do(ctx, name, func(ctx context.Context, _ func(error)) (Group, error) {
		asked := time.Now()
		group, err := h.describeGroup(ctx, name)
		if err == nil {
			h.bounded(&h.groups).Add(name, describedGroup{group, asked})
		}
		return group, err
	})
}

func (h *Hooks) describeGroup(ctx context.Context, name string) (Group, error) {
	out, err := inTurn(ctx, h, h.Client.DescribeAutoScalingGroups,
		&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
	switch {
	case err != nil:
		return Group{}, explain(groupsPermission, err)
	case len(out.AutoScalingGroups) == 0:
		return Group{}, &Refusal{decision.WhyReplacementFails, "Auto Scaling knows no group " + name}
	}
	hooks, err := h.TerminationHooks(ctx, name)
	if err != nil {
		return Group{}, explain(describePermission, err)
	}
	group := GroupOf(out.AutoScalingGroups[0])
	for _, hook := range hooks {
		group.TerminationHooks = append(group.TerminationHooks, hook.Name)
	}
	return group, nil
}

// GroupOf is what matters of a group as Auto Scaling describes it, but for its hooks.
func GroupOf(g types.AutoScalingGroup) Group {
	out := Group{Name: aws.ToString(g.AutoScalingGroupName), Rebalances: aws.ToBool(g.CapacityRebalance)}
	if p := g.InstanceMaintenancePolicy; p != nil {
		out.LaunchesFirst = aws.ToInt32(p.MinHealthyPercentage) == 100 && aws.ToInt32(p.MaxHealthyPercentage) > 100
	}
	for _, p := range g.SuspendedProcesses {
		out.Suspended = append(out.Suspended, aws.ToString(p.ProcessName))
	}
	return out
}

// MarkUnhealthy has the group of an instance replace it. It may be called again.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceHealth.html
func (h *Hooks) MarkUnhealthy(ctx context.Context, id string) error {
	_, err := inTurn(ctx, h, h.Client.SetInstanceHealth, &autoscaling.SetInstanceHealthInput{
		InstanceId: aws.String(id), HealthStatus: aws.String("Unhealthy"), ShouldRespectGracePeriod: aws.Bool(false),
	})
	return explain("autoscaling:SetInstanceHealth", err)
}

// passing are the codes of client errors after which another try may succeed.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
var passing = []string{
	"Throttling", "ThrottlingException", "RequestLimitExceeded", "ResourceContention", "ScalingActivityInProgress",
	"IdempotentCallInProgress", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId",
}

// explain makes a *Refusal of an error after which another try makes no sense.
func explain(permission string, err error) error {
	code := awserr.Code(err)
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	switch {
	case awserr.Unsupported(err):
		return &Refusal{decision.WhyReplacementRight, "the server does not have " + permission + ": " + awserr.Message(err)}
	case !ok, code == "", awserr.NoCredentials(err), slices.Contains(passing, code):
		return err
	case answer.HTTPStatusCode() < http.StatusBadRequest, answer.HTTPStatusCode() >= http.StatusInternalServerError:
		return err
	case awserr.Denied(err):
		return &Refusal{decision.WhyReplacementRight, "permission " + permission + " is missing: " + awserr.Message(err)}
	}
	what := strings.TrimPrefix(permission, "autoscaling:")
	return &Refusal{decision.WhyReplacementFails, fmt.Sprintf("%s: %s: %s", what, code, awserr.Message(err))}
}
