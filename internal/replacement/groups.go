// Package replacement gets another instance of an Auto Scaling group ready before a node of the group is
// drained. [Choose] says how; [Groups] makes the calls.
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
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/node-termination-handler/node-termination-handler/internal/awserr"
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
}

// Permissions are all that Groups needs beside those of package asg.
var Permissions = []string{"autoscaling:DescribeAutoScalingInstances", "autoscaling:SetInstanceHealth"}

const (
	// Enough for the three tries of the SDK with an API that answers within a second.
	callTimeout = 10 * time.Second
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
	Denied     Reason = "denied"     // a permission is missing
	Refused    Reason = "refused"    // Auto Scaling finds the request wrong
	Impossible Reason = "impossible" // there is no way; see Choose
)

// Groups makes the calls to Auto Scaling. Set the fields before the first use. The methods may be called
// concurrently. An error that wraps a *Refusal is final; after others the call may have had its effect.
type Groups struct {
	Client API
	// Share makes one call within the rate limit that all calls to Auto Scaling share, and gives up after
	// the timeout.
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

// Member returns what Auto Scaling says of an instance now. ok: it is in a group.
func (g *Groups) Member(ctx context.Context, id string) (m Member, ok bool, err error) {
	var out *autoscaling.DescribeAutoScalingInstancesOutput
	err = g.Share(ctx, callTimeout, func(ctx context.Context) (err error) {
		out, err = g.Client.DescribeAutoScalingInstances(ctx,
			&autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{id}})
		return err
	})
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

func (g *Groups) look(ctx context.Context, name string) (Group, error) {
	var out *autoscaling.DescribeAutoScalingGroupsOutput
	err := g.Share(ctx, callTimeout, func(ctx context.Context) (err error) {
		out, err = g.Client.DescribeAutoScalingGroups(ctx,
			&autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{name}})
		return err
	})
	switch {
	case err != nil:
		return Group{}, explain("autoscaling:DescribeAutoScalingGroups", err)
	case len(out.AutoScalingGroups) == 0:
		return Group{}, &Refusal{Refused, "Auto Scaling knows no group " + name}
	}
	hooks, err := g.Hooks(ctx, name)
	if err != nil {
		return Group{}, explain("autoscaling:DescribeLifecycleHooks", err)
	}
	group := FromAWS(out.AutoScalingGroups[0])
	group.TerminationHooks = hooks
	return group, nil
}

// FromAWS is what matters of a group as Auto Scaling describes it, but for its hooks.
func FromAWS(g types.AutoScalingGroup) Group {
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
func (g *Groups) MarkUnhealthy(ctx context.Context, id string) error {
	return explain("autoscaling:SetInstanceHealth", g.Share(ctx, callTimeout, func(ctx context.Context) error {
		_, err := g.Client.SetInstanceHealth(ctx, &autoscaling.SetInstanceHealthInput{
			InstanceId: aws.String(id), HealthStatus: aws.String("Unhealthy"), ShouldRespectGracePeriod: aws.Bool(false),
		})
		return err
	}))
}

// passing are the codes of client errors that another try may not meet.
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
	case !ok, code == "", awserr.NoCredentials(err), slices.Contains(passing, code):
		return err
	case answer.HTTPStatusCode() < http.StatusBadRequest, answer.HTTPStatusCode() >= http.StatusInternalServerError:
		return err
	case awserr.Denied(err):
		return &Refusal{Denied, "permission " + permission + " is missing: " + awserr.Message(err)}
	}
	what := strings.TrimPrefix(permission, "autoscaling:")
	return &Refusal{Refused, fmt.Sprintf("%s: %s: %s", what, code, awserr.Message(err))}
}
