package awssim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// launchInto launches an instance into a group. Its launch hooks wait.
func (s *Server) launchInto(g *group, zone, replaces string, now time.Time) {
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

func (g *group) xmlSuspended() []xmlSuspended {
	var all []xmlSuspended
	for _, name := range g.Suspended {
		all = append(all, xmlSuspended{name})
	}
	return all
}
