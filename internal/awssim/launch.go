package awssim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// launch is a call of LaunchInstances, by which a repetition with the same token is answered.
type launch struct {
	parameters string
	output     launchOutput
}

type launchOutput struct {
	AutoScalingGroupName string
	ClientToken          string
	Instances            []xmlLaunched    `xml:"Instances>member"`
	Errors               []xmlLaunchError `xml:"Errors>member"`
}

type xmlLaunched struct {
	InstanceType     string
	MarketType       string
	AvailabilityZone string
	InstanceIDs      []string `xml:"InstanceIds>member"`
}

type xmlLaunchError struct {
	InstanceType     string
	AvailabilityZone string
	ErrorCode        string
	ErrorMessage     string
}

// launchInstances launches instances at once. A repetition with the same token launches nothing.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LaunchInstances.html
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/launch-instances-synchronously.html
func launchInstances(_ context.Context, s *Server, req *request) (any, *apiError) {
	token, zones := req.form.Get("ClientToken"), req.list("AvailabilityZones.member.")
	req.show("token", token)
	number, err := strconv.Atoi(req.form.Get("RequestedCapacity"))
	if err != nil || number < 1 {
		return nil, validation("RequestedCapacity must be at least 1")
	}
	if token == "" || len(token) > 64 {
		return nil, validation("ClientToken must have 1 to 64 characters")
	}
	var output launchOutput
	problem := s.onGroup(req, func(g *group, now time.Time) *apiError {
		parameters := fmt.Sprint(g.Name, number, zones, req.form.Get("RetryStrategy"))
		if before, again := s.launches[token]; again {
			if before.parameters != parameters {
				return badRequest("IdempotentParameterMismatch", "the token %s was used with other parameters", token)
			}
			output = before.output
			return nil
		}
		switch {
		case g.LaunchConfiguration:
			return validation("AutoScalingGroup %s does not use a launch template", g.Name)
		case slices.Contains(g.Suspended, "Launch"):
			return validation("The process Launch of AutoScalingGroup %s is suspended", g.Name)
		case g.Desired+number > g.max():
			return validation("New SetDesiredCapacity value %d is above max value %d for the AutoScalingGroup.",
				g.Desired+number, g.max())
		}
		output = launchOutput{AutoScalingGroupName: g.Name, ClientToken: token}
		zone := s.opts.Region + "a"
		if len(zones) > 0 {
			zone = zones[0]
		}
		if g.LaunchError != "" {
			output.Errors = []xmlLaunchError{{
				InstanceType: "m5.large", AvailabilityZone: zone, ErrorCode: g.LaunchError,
				ErrorMessage: "We currently do not have sufficient capacity in the Availability Zone you requested.",
			}}
		} else {
			launched := xmlLaunched{InstanceType: "m5.large", MarketType: "OnDemand", AvailabilityZone: zone}
			for range number {
				launched.InstanceIDs = append(launched.InstanceIDs, s.launchInto(g, zone, "", now).ID)
			}
			output.Instances = []xmlLaunched{launched}
			if !g.LaunchesBeside {
				g.Desired += number
			}
		}
		s.launches[token] = launch{parameters, output}
		return nil
	})
	return output, problem
}

// launchInto launches an instance into a group. Its launch hooks wait.
func (s *Server) launchInto(g *group, zone, replaces string, now time.Time) *instance {
	config := Instance{
		ID: fmt.Sprintf("i-0%016x", s.random.Uint64()), Zone: zone, Type: "m5.large", LaunchTime: now,
		Tags: map[string]string{},
	}
	config.PrivateDNSName = config.ID + ".ec2.internal"
	maps.Copy(config.Tags, g.Tags)
	config.Tags["aws:autoscaling:groupName"] = g.Name
	i := &instance{Instance: config, group: g, replaces: replaces}
	s.instances[i.ID] = i
	s.setState(i, "pending", now)
	s.startTransition(i, Launching, now)
	return i
}

// setInstanceHealth makes a group replace an instance that is said to be unhealthy: with a maintenance policy
// that keeps all instances healthy, it is terminated when another one is in service; otherwise at once.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceHealth.html
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-maintenance-policy-overview-and-considerations.html
func setInstanceHealth(_ context.Context, s *Server, req *request) (any, *apiError) {
	id, health := req.form.Get("InstanceId"), req.form.Get("HealthStatus")
	req.show("instance", id)
	req.show("health", health)
	var problem *apiError
	s.locked(func(now time.Time) {
		i, ok := s.instances[id]
		switch {
		case health != "Healthy" && health != "Unhealthy":
			problem = validation("HealthStatus must be either Healthy or Unhealthy, but was %s", health)
			return
		case !ok || i.group == nil:
			problem = validation("Instance Id not found - No managed instance found for instance ID: %s", id)
			return
		}
		req.show("group", i.group.Name)
		before := i.unhealthy
		i.unhealthy = health == "Unhealthy"
		if before || !i.unhealthy || i.lifecycleState != "InService" ||
			slices.Contains(i.group.Suspended, "ReplaceUnhealthy") {
			return
		}
		if i.group.Maintenance.launchesFirst() {
			if i.group.LaunchError == "" {
				s.launchInto(i.group, i.Zone, i.ID, now)
			}
			return
		}
		g := i.group
		s.startTransition(i, Terminating, now)
		s.launchInto(g, i.Zone, "", now)
	})
	return nil, problem
}

// endReplaced begins to terminate the instance that one which is in service by now replaces.
func (s *Server) endReplaced(i *instance, at time.Time) {
	old, ok := s.instances[i.replaces]
	if i.replaces = ""; ok && old.unhealthy && old.group == i.group && !strings.HasPrefix(old.lifecycleState, "Terminat") {
		s.startTransition(old, Terminating, at)
	}
}

func (g *group) launchConfiguration() string {
	if g.LaunchConfiguration {
		return g.Name
	}
	return ""
}

func (g *group) launchTemplate() string {
	if g.LaunchConfiguration {
		return ""
	}
	return g.Name
}

func (g *group) xmlSuspended() []xmlSuspended {
	var all []xmlSuspended
	for _, name := range g.Suspended {
		all = append(all, xmlSuspended{name})
	}
	return all
}
