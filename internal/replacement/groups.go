// Package replacement gets another instance of an Auto Scaling group ready before a node of the group is
// drained. [Choose], [Next] and [AtEnd] say what to do; [Groups] makes the calls.
package replacement

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/node-termination-handler/node-termination-handler/internal/flight"
)

// API is the part of EC2 Auto Scaling that Groups uses.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Operations.html
type API interface {
	DescribeAutoScalingGroups(
		context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options),
	) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	DescribeAutoScalingInstances(
		context.Context, *autoscaling.DescribeAutoScalingInstancesInput, ...func(*autoscaling.Options),
	) (*autoscaling.DescribeAutoScalingInstancesOutput, error)
	SetInstanceHealth(
		context.Context, *autoscaling.SetInstanceHealthInput, ...func(*autoscaling.Options),
	) (*autoscaling.SetInstanceHealthOutput, error)
	LaunchInstances(
		context.Context, *autoscaling.LaunchInstancesInput, ...func(*autoscaling.Options),
	) (*autoscaling.LaunchInstancesOutput, error)
	TerminateInstanceInAutoScalingGroup(
		context.Context, *autoscaling.TerminateInstanceInAutoScalingGroupInput, ...func(*autoscaling.Options),
	) (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error)
}

// Permissions are all that Groups needs beside those of package asg. AWS asks for those of EC2 from who
// calls LaunchInstances.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/launching-instances-synchronous-provisioning.html
var Permissions = []string{
	"autoscaling:DescribeAutoScalingInstances",
	"autoscaling:SetInstanceHealth",
	"autoscaling:LaunchInstances",
	"autoscaling:TerminateInstanceInAutoScalingGroup",
	"ec2:CreateFleet",
	"ec2:DescribeLaunchTemplateVersions",
}

const (
	// Enough for the three tries of the SDK with an API that answers within a second.
	callTimeout = 10 * time.Second
	// launchTimeout is that of LaunchInstances, which waits for EC2.
	launchTimeout = 30 * time.Second
	// groupKept is how long what a group says of itself is kept: the nodes of one group that get a notice at
	// the same time share one answer.
	groupKept = 5 * time.Second
	// groupsKept bounds the groups that are kept.
	groupsKept = 256
)

// A Refusal is an error after which another try makes no sense.
type Refusal struct {
	Reason Reason
	Text   string // for people
}

func (r *Refusal) Error() string { return r.Text }

// Reason is why a replacement is refused. It is a metric label: a closed set.
type Reason string

// The reasons.
const (
	NoCapacity Reason = "no-capacity" // EC2 has none in the zone
	Denied     Reason = "denied"      // a permission is missing
	Refused    Reason = "refused"     // Auto Scaling finds the request wrong: the largest size, a suspended process
	Impossible Reason = "impossible"  // there is no way; see Choose
)

// Groups makes the calls to Auto Scaling. Set the fields before the first use. The methods may be called
// concurrently. An error that wraps a *Refusal is final; after others the call may have had its effect.
type Groups struct {
	Client API
	// Share makes one call within the rate limit that all calls to Auto Scaling share, and gives up after
	// the timeout. Nil: there is no limit.
	Share func(ctx context.Context, timeout time.Duration, call func(context.Context) error) error
	// Hooks returns the names of the group's termination hooks.
	Hooks func(ctx context.Context, group string) ([]string, error)

	looks flight.Group[string, Group]
	mu    sync.Mutex
	known map[string]lookedAt
}

type lookedAt struct {
	group Group
	at    time.Time
}

func (g *Groups) call(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	if g.Share != nil {
		return g.Share(ctx, timeout, call)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return call(ctx)
}

// Members returns what Auto Scaling says of instances now. One that is in no group is left out.
func (g *Groups) Members(ctx context.Context, ids ...string) (map[string]Member, error) {
	var out *autoscaling.DescribeAutoScalingInstancesOutput
	err := g.call(ctx, callTimeout, func(ctx context.Context) (err error) {
		out, err = g.Client.DescribeAutoScalingInstances(ctx,
			&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: ids})
		return err
	})
	if err != nil {
		return nil, explain("autoscaling:DescribeAutoScalingInstances", err)
	}
	members := map[string]Member{}
	for _, i := range out.AutoScalingInstances {
		members[aws.ToString(i.InstanceId)] = Member{
			Group: aws.ToString(i.AutoScalingGroupName), Zone: aws.ToString(i.AvailabilityZone),
			Goes: strings.HasPrefix(aws.ToString(i.LifecycleState), "Terminat"),
		}
	}
	return members, nil
}

// Group returns what a group says of itself; it may be some seconds old.
func (g *Groups) Group(ctx context.Context, name string) (Group, error) {
	g.mu.Lock()
	have, ok := g.known[name]
	g.mu.Unlock()
	if ok && time.Since(have.at) < groupKept {
		return have.group, nil
	}
	return g.looks.Do(ctx, name, func(ctx context.Context, _ func(error)) (Group, error) {
		at := time.Now()
		group, err := g.look(ctx, name)
		if err != nil {
			return group, err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.known == nil || len(g.known) >= groupsKept {
			g.known = map[string]lookedAt{}
		}
		g.known[name] = lookedAt{group, at}
		return group, nil
	})
}

// Desired is the desired capacity of a group now.
func (g *Groups) Desired(ctx context.Context, name string) (int, error) {
	group, err := g.describe(ctx, name)
	return int(aws.ToInt32(group.DesiredCapacity)), err
}

func (g *Groups) look(ctx context.Context, name string) (Group, error) {
	described, err := g.describe(ctx, name)
	if err != nil {
		return Group{}, err
	}
	hooks, err := g.Hooks(ctx, name)
	if err != nil {
		return Group{}, explain("autoscaling:DescribeLifecycleHooks", err)
	}
	group := FromAWS(described)
	group.TerminationHooks = hooks
	return group, nil
}

func (g *Groups) describe(ctx context.Context, name string) (types.AutoScalingGroup, error) {
	var out *autoscaling.DescribeAutoScalingGroupsOutput
	err := g.call(ctx, callTimeout, func(ctx context.Context) (err error) {
		out, err = g.Client.DescribeAutoScalingGroups(ctx,
			&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
		return err
	})
	switch {
	case err != nil:
		return types.AutoScalingGroup{}, explain("autoscaling:DescribeAutoScalingGroups", err)
	case len(out.AutoScalingGroups) == 0:
		return types.AutoScalingGroup{}, &Refusal{Refused, "Auto Scaling knows no group " + name}
	}
	return out.AutoScalingGroups[0], nil
}

// FromAWS is what matters of a group as Auto Scaling describes it, but for its hooks.
func FromAWS(g types.AutoScalingGroup) Group {
	out := Group{
		Name: aws.ToString(g.AutoScalingGroupName), Desired: int(aws.ToInt32(g.DesiredCapacity)),
		Max: int(aws.ToInt32(g.MaxSize)), Rebalances: aws.ToBool(g.CapacityRebalance),
		LaunchTemplate: aws.ToString(g.LaunchConfigurationName) == "",
	}
	if p := g.InstanceMaintenancePolicy; p != nil {
		out.LaunchesFirst = aws.ToInt32(p.MinHealthyPercentage) == 100 && aws.ToInt32(p.MaxHealthyPercentage) > 100
	}
	if p := g.MixedInstancesPolicy; p != nil {
		// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstancesDistribution.html: what is left out is 0
		// and 100.
		base, share := int32(0), int32(100)
		if d := p.InstancesDistribution; d != nil {
			base = aws.ToInt32(d.OnDemandBaseCapacity)
			if d.OnDemandPercentageAboveBaseCapacity != nil {
				share = *d.OnDemandPercentageAboveBaseCapacity
			}
		}
		out.MixedMarkets = share > 0 && share < 100 || share == 0 && base > 0
	}
	for _, p := range g.SuspendedProcesses {
		out.Suspended = append(out.Suspended, aws.ToString(p.ProcessName))
	}
	return out
}

// MarkUnhealthy has the group of an instance replace it. It may be called again.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceHealth.html
func (g *Groups) MarkUnhealthy(ctx context.Context, id string) error {
	return explain("autoscaling:SetInstanceHealth", g.call(ctx, callTimeout, func(ctx context.Context) error {
		_, err := g.Client.SetInstanceHealth(ctx, &autoscaling.SetInstanceHealthInput{
			InstanceId: aws.String(id), HealthStatus: aws.String("Unhealthy"), ShouldRespectGracePeriod: aws.Bool(false),
		})
		return err
	}))
}

// Launch launches one instance in a zone, and returns its id. With the same token it launches nothing
// again, and returns the same.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LaunchInstances.html
func (g *Groups) Launch(ctx context.Context, group, zone, token string) (id string, err error) {
	var out *autoscaling.LaunchInstancesOutput
	err = g.call(ctx, launchTimeout, func(ctx context.Context) (err error) {
		in := &autoscaling.LaunchInstancesInput{
			AutoScalingGroupName: aws.String(group), ClientToken: aws.String(token), RequestedCapacity: aws.Int32(1),
			RetryStrategy: types.RetryStrategyNone,
		}
		if zone != "" {
			in.AvailabilityZones = []string{zone}
		}
		out, err = g.Client.LaunchInstances(ctx, in)
		return err
	})
	if err != nil {
		return "", explain("autoscaling:LaunchInstances", err)
	}
	for _, some := range out.Instances {
		for _, id := range some.InstanceIds {
			return id, nil
		}
	}
	refusal := &Refusal{Refused, "LaunchInstances has launched nothing"}
	for _, e := range out.Errors {
		refusal.Text = aws.ToString(e.ErrorCode) + ": " + aws.ToString(e.ErrorMessage)
		refusal.Reason = reasonOf(aws.ToString(e.ErrorCode))
	}
	return "", refusal
}

// Terminate has Auto Scaling terminate an instance, through its termination hooks, and lowers the desired
// capacity of the group if decrement is set, but not below the group's smallest size. It makes one try,
// because a second one could lower it again.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_TerminateInstanceInAutoScalingGroup.html
func (g *Groups) Terminate(ctx context.Context, id string, decrement bool) error {
	once := func(decrement bool) error {
		return g.call(ctx, callTimeout, func(ctx context.Context) error {
			_, err := g.Client.TerminateInstanceInAutoScalingGroup(ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
				InstanceId: aws.String(id), ShouldDecrementDesiredCapacity: aws.Bool(decrement),
			}, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
			return err
		})
	}
	err := once(decrement)
	if api, ok := errors.AsType[smithy.APIError](err); ok && decrement && strings.Contains(api.ErrorMessage(), "minSize") {
		err = once(false) // somebody has made the group smaller since
	}
	return explain("autoscaling:TerminateInstanceInAutoScalingGroup", err)
}

// passing are the codes of client errors that another try may not meet.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/CommonErrors.html
var passing = []string{
	"Throttling", "ThrottlingException", "RequestLimitExceeded", "ResourceContention", "ScalingActivityInProgress",
	"IdempotentCallInProgress", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId",
}

// explain makes a *Refusal of an error after which another try makes no sense.
func explain(permission string, err error) error {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return err
	}
	code := api.ErrorCode()
	answer, ok := errors.AsType[*smithyhttp.ResponseError](err)
	switch {
	case !ok, slices.Contains(passing, code):
		return err
	case answer.HTTPStatusCode() < http.StatusBadRequest, answer.HTTPStatusCode() >= http.StatusInternalServerError:
		return err
	case reasonOf(code) == Denied:
		return &Refusal{Denied, "permission " + permission + " is missing: " + api.ErrorMessage()}
	}
	what := strings.TrimPrefix(permission, "autoscaling:")
	return &Refusal{reasonOf(code), fmt.Sprintf("%s: %s: %s", what, code, api.ErrorMessage())}
}

func reasonOf(code string) Reason {
	switch {
	case strings.HasPrefix(code, "AccessDenied"), code == "UnauthorizedOperation":
		return Denied
	case strings.Contains(code, "Capacity"):
		return NoCapacity
	}
	return Refused
}
