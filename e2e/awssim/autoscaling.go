package awssim

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
)

var autoscalingOperations = map[string]operation{
	"CompleteLifecycleAction":             completeLifecycleAction,
	"DescribeAutoScalingGroups":           describeAutoScalingGroups,
	"DescribeAutoScalingInstances":        describeAutoScalingInstances,
	"DescribeLifecycleHooks":              describeLifecycleHooks,
	"PutLifecycleHook":                    putLifecycleHook,
	"RecordLifecycleActionHeartbeat":      recordLifecycleActionHeartbeat,
	"SetInstanceHealth":                   setInstanceHealth,
	"TerminateInstanceInAutoScalingGroup": terminateInstanceInAutoScalingGroup,
}

// validation returns the one error that Auto Scaling has for whatever is wrong with a call.
func validation(format string, args ...any) *apiError {
	return badRequest("ValidationError", format, args...)
}

// onGroup runs f with the group that a call names.
func (s *Server) onGroup(req *request, f func(g *group, now time.Time) *apiError) (problem *apiError) {
	name := req.form.Get("AutoScalingGroupName")
	req.show("group", name)
	s.locked(func(now time.Time) {
		g, ok := s.groups[name]
		if !ok {
			problem = validation("AutoScalingGroup name not found - AutoScalingGroup %s not found", name)
			return
		}
		problem = f(g, now)
	})
	return problem
}

// onAction runs f with the active action that a call names by token or instance.
func (s *Server) onAction(req *request, f func(action *lifecycleAction, now time.Time) *apiError) (any, *apiError) {
	hook, token, instanceID := req.form.Get("LifecycleHookName"), req.form.Get("LifecycleActionToken"),
		req.form.Get("InstanceId")
	req.show("hook", hook)
	if token != "" {
		req.show("token", token)
	}
	if instanceID != "" {
		req.show("instance", instanceID)
	}
	problem := s.onGroup(req, func(g *group, now time.Time) *apiError {
		i := slices.IndexFunc(s.actions, func(a *lifecycleAction) bool {
			return a.Group == g.Name && a.Hook == hook &&
				(token != "" && a.Token == token || token == "" && a.InstanceID == instanceID)
		})
		switch {
		case i >= 0:
			return f(s.actions[i], now)
		case token != "":
			return validation("No active Lifecycle Action found with token %s", token)
		default:
			return validation("No active Lifecycle Action found with instance ID %s", instanceID)
		}
	})
	return nil, problem
}

func completeLifecycleAction(_ context.Context, s *Server, req *request) (any, *apiError) {
	result := req.form.Get("LifecycleActionResult")
	req.show("result", result)
	if result != Continue && result != Abandon {
		return nil, validation("Lifecycle Action Result must be either CONTINUE or ABANDON, but was %s", result)
	}
	return s.onAction(req, func(action *lifecycleAction, now time.Time) *apiError {
		s.endAction(action, now, Completed, result)
		return nil
	})
}

func recordLifecycleActionHeartbeat(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.onAction(req, func(action *lifecycleAction, now time.Time) *apiError {
		s.heartbeat(action, now)
		return nil
	})
}

type describeLifecycleHooksOutput struct {
	Hooks []xmlHook `xml:"LifecycleHooks>member"`
}

type xmlHook struct {
	LifecycleHookName     string
	AutoScalingGroupName  string
	LifecycleTransition   string
	HeartbeatTimeout      int
	GlobalTimeout         int
	DefaultResult         string
	NotificationTargetARN string `xml:",omitempty"`
	NotificationMetadata  string `xml:",omitempty"`
}

func describeLifecycleHooks(_ context.Context, s *Server, req *request) (any, *apiError) {
	names := req.list("LifecycleHookNames.member.")
	req.note("hook", names...)
	var output describeLifecycleHooksOutput
	problem := s.onGroup(req, func(g *group, _ time.Time) *apiError {
		for _, hook := range g.hooks {
			if len(names) > 0 && !slices.Contains(names, hook.Name) {
				continue
			}
			output.Hooks = append(output.Hooks, xmlHook{
				LifecycleHookName:     hook.Name,
				AutoScalingGroupName:  g.Name,
				LifecycleTransition:   string(hook.Transition),
				HeartbeatTimeout:      int(hook.HeartbeatTimeout / time.Second),
				GlobalTimeout:         int(hook.globalTimeout() / time.Second),
				DefaultResult:         hook.DefaultResult,
				NotificationTargetARN: hook.TargetARN,
				NotificationMetadata:  hook.Metadata,
			})
		}
		return nil
	})
	req.entries = len(output.Hooks)
	return output, problem
}

func putLifecycleHook(_ context.Context, s *Server, req *request) (any, *apiError) {
	hook := Hook{
		Group:         req.form.Get("AutoScalingGroupName"),
		Name:          req.form.Get("LifecycleHookName"),
		Transition:    Transition(req.form.Get("LifecycleTransition")),
		DefaultResult: req.form.Get("DefaultResult"),
		TargetARN:     req.form.Get("NotificationTargetARN"),
		Metadata:      req.form.Get("NotificationMetadata"),
	}
	req.show("hook", hook.Name)
	if text := req.form.Get("HeartbeatTimeout"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 {
			return nil, validation("Heartbeat timeout must be a positive number of seconds, but was %s", text)
		}
		hook.HeartbeatTimeout = time.Duration(seconds) * time.Second
	}
	return nil, s.onGroup(req, func(g *group, _ time.Time) *apiError {
		if err := g.put(hook); err != nil {
			return validation("%s", err.Error())
		}
		return nil
	})
}

type describeGroupsOutput struct {
	Groups    []xmlGroup `xml:"AutoScalingGroups>member"`
	NextToken string     `xml:",omitempty"`
}

type xmlGroup struct {
	AutoScalingGroupName string
	AutoScalingGroupARN  string
	MinSize              int
	MaxSize              int
	DesiredCapacity      int
	DefaultCooldown      int
	HealthCheckType      string
	CreatedTime          string
	AvailabilityZones    []string           `xml:"AvailabilityZones>member"`
	Instances            []xmlGroupInstance `xml:"Instances>member"`
	Tags                 []xmlGroupTag      `xml:"Tags>member"`

	CapacityRebalance    bool
	LaunchTemplate       string         `xml:"LaunchTemplate>LaunchTemplateName,omitempty"`
	MinHealthyPercentage int            `xml:"InstanceMaintenancePolicy>MinHealthyPercentage,omitempty"`
	MaxHealthyPercentage int            `xml:"InstanceMaintenancePolicy>MaxHealthyPercentage,omitempty"`
	Suspended            []xmlSuspended `xml:"SuspendedProcesses>member"`

	OnHookAbandon string `xml:"InstanceLifecyclePolicy>RetentionTriggers>TerminateHookAbandon,omitempty"`
}

type xmlSuspended struct{ ProcessName string }

// xmlGroupInstance is an instance as both describe calls return it; the one
// about instances names the group too.
type xmlGroupInstance struct {
	InstanceID           string `xml:"InstanceId"`
	AutoScalingGroupName string `xml:",omitempty"`
	AvailabilityZone     string
	LifecycleState       string
	HealthStatus         string
	InstanceType         string
	ProtectedFromScaleIn bool
}

type xmlGroupTag struct {
	Key               string
	Value             string
	ResourceID        string `xml:"ResourceId"`
	ResourceType      string
	PropagateAtLaunch bool
}

func (i *instance) inGroup() xmlGroupInstance {
	health := "Healthy"
	if i.unhealthy {
		health = "Unhealthy"
	}
	return xmlGroupInstance{
		InstanceID:       i.ID,
		AvailabilityZone: i.Zone,
		LifecycleState:   i.lifecycleState,
		HealthStatus:     health,
		InstanceType:     i.Type,
	}
}

// groupsAPage is how many groups one answer may have.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html
func groupsAPage(req *request) (int, *apiError) {
	text := req.form.Get("MaxRecords")
	if text == "" {
		return 50, nil
	}
	most, err := strconv.Atoi(text)
	if err != nil || most < 1 || most > 100 {
		return 0, validation("MaxRecords %s is not between 1 and 100", text)
	}
	return most, nil
}

func describeAutoScalingGroups(_ context.Context, s *Server, req *request) (any, *apiError) {
	names := req.list("AutoScalingGroupNames.member.")
	req.note("group", names...)
	most, problem := groupsAPage(req)
	if problem != nil {
		return nil, problem
	}
	after := req.form.Get("NextToken") // the name of the last group before
	var output describeGroupsOutput
	s.locked(func(time.Time) {
		members := map[string][]xmlGroupInstance{}
		for _, i := range s.sortedInstances() {
			if i.group != nil {
				members[i.group.Name] = append(members[i.group.Name], i.inGroup())
			}
		}
		for _, g := range s.sortedGroups() {
			if len(names) > 0 && !slices.Contains(names, g.Name) || g.Name <= after {
				continue
			}
			if len(output.Groups) == most {
				output.NextToken = output.Groups[most-1].AutoScalingGroupName
				break
			}
			output.Groups = append(output.Groups, xmlGroup{
				AutoScalingGroupName: g.Name,
				AutoScalingGroupARN:  s.groupARN(g.Name),
				MinSize:              g.Min,
				MaxSize:              g.max(),
				DesiredCapacity:      g.Desired,
				CapacityRebalance:    g.CapacityRebalance,
				LaunchTemplate:       g.Name,
				MinHealthyPercentage: g.Maintenance.MinHealthy,
				MaxHealthyPercentage: g.Maintenance.MaxHealthy,
				Suspended:            g.xmlSuspended(),
				DefaultCooldown:      300,
				HealthCheckType:      "EC2",
				CreatedTime:          g.created.UTC().Format("2006-01-02T15:04:05.000Z"),
				AvailabilityZones:    []string{s.opts.Region + "a"},
				Instances:            members[g.Name],
				Tags:                 g.xmlTags(),
				OnHookAbandon:        g.onHookAbandon(),
			})
		}
	})
	req.entries = len(output.Groups)
	return output, nil
}

// onHookAbandon is the retention trigger of the group; empty: it has none.
func (g *group) onHookAbandon() string {
	if g.Retains {
		return "retain"
	}
	return ""
}

type describeAutoScalingInstancesOutput struct {
	Instances []xmlGroupInstance `xml:"AutoScalingInstances>member"`
}

func describeAutoScalingInstances(_ context.Context, s *Server, req *request) (any, *apiError) {
	ids := req.list("InstanceIds.member.")
	req.note("instance", ids...)
	var output describeAutoScalingInstancesOutput
	s.locked(func(time.Time) {
		for _, i := range s.sortedInstances() {
			if i.group == nil || len(ids) > 0 && !slices.Contains(ids, i.ID) {
				continue
			}
			member := i.inGroup()
			member.AutoScalingGroupName = i.group.Name
			member.HealthStatus = strings.ToUpper(member.HealthStatus)
			output.Instances = append(output.Instances, member)
		}
	})
	req.entries = len(output.Instances)
	return output, nil
}

type terminateOutput struct {
	Activity xmlActivity
}

type xmlActivity struct {
	ActivityID           string `xml:"ActivityId"`
	AutoScalingGroupName string
	Cause                string
	StartTime            string
	StatusCode           string
}

func terminateInstanceInAutoScalingGroup(_ context.Context, s *Server, req *request) (any, *apiError) {
	id := req.form.Get("InstanceId")
	req.show("instance", id)
	var output terminateOutput
	var problem *apiError
	s.locked(func(now time.Time) {
		i, ok := s.instances[id]
		if !ok || i.group == nil {
			problem = validation("Instance Id not found - No managed instance found for instance ID: %s", id)
			return
		}
		req.show("group", i.group.Name)
		decrement := req.form.Get("ShouldDecrementDesiredCapacity") == "true"
		if decrement && i.group.Desired <= i.group.Min {
			problem = validation("Currently, desiredSize equals minSize (%d). Terminating instance without replacement "+
				"will violate group's min size constraint.", i.group.Min)
			return
		}
		output.Activity = xmlActivity{
			ActivityID:           s.uuid(),
			AutoScalingGroupName: i.group.Name,
			Cause:                "an instance was taken out of service in response to a user request.",
			StartTime:            now.UTC().Format("2006-01-02T15:04:05.000Z"),
			StatusCode:           "InProgress",
		}
		req.show("decrement", strconv.FormatBool(decrement))
		if decrement {
			i.group.Desired--
		}
		if !strings.HasPrefix(i.lifecycleState, "Terminat") {
			i.pool = ""
			s.startTransition(i, Terminating, now)
		}
	})
	return output, problem
}

type callerIdentity struct {
	Account string
	ARN     string `xml:"Arn"`
	UserID  string `xml:"UserId"`
}

func getCallerIdentity(_ context.Context, s *Server, req *request) (any, *apiError) {
	return callerIdentity{Account: s.opts.Account, ARN: s.callerARN(req.accessKeyID), UserID: req.accessKeyID}, nil
}
