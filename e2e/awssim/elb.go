package awssim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// TargetGroup is a target group of Elastic Load Balancing whose targets are instances. Everything registered with
// it is used by a load balancer.
type TargetGroup struct {
	Name string `json:"name"`
	// DeregistrationDelay is how long a target drains that is deregistered. Default 5 min.
	DeregistrationDelay time.Duration `json:"-"`
	// RegistrationTime is how long a registered target is initial before it is healthy.
	RegistrationTime time.Duration `json:"-"`
	// Port is that of targets without one. Default 80.
	Port int `json:"port,omitempty"`
}

// Target is a target of a group.
type Target struct {
	ID   string `json:"id"`
	Port int    `json:"port"`
	// State is initial, healthy, draining or unused, and Reason the code that goes with it.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// targetGroupName is the form of a name.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_CreateTargetGroup.html
var targetGroupName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?$`)

// targetGroup is a TargetGroup at work.
type targetGroup struct {
	TargetGroup
	targets map[targetKey]*target
}

type targetKey struct {
	id   string
	port int
}

// A target is one that is registered, or drains.
type target struct {
	registered   time.Time
	deregistered time.Time // zero: it is not
}

// PutTargetGroup adds a target group, or replaces its settings and keeps its targets.
func (s *Server) PutTargetGroup(config TargetGroup) error {
	if !targetGroupName.MatchString(config.Name) {
		return fmt.Errorf("put target group: malformed name %q", config.Name)
	}
	setDefault(&config.DeregistrationDelay, 5*time.Minute)
	setDefault(&config.Port, 80)
	s.locked(func(time.Time) {
		if g := s.targetGroups[config.Name]; g != nil {
			g.TargetGroup = config
			return
		}
		s.targetGroups[config.Name] = &targetGroup{config, map[targetKey]*target{}}
	})
	return nil
}

// RemoveTargetGroup removes a group with its targets. It reports whether there was one.
func (s *Server) RemoveTargetGroup(name string) (found bool) {
	s.locked(func(time.Time) {
		_, found = s.targetGroups[name]
		delete(s.targetGroups, name)
	})
	return found
}

// TargetGroups returns the groups, ordered by name.
func (s *Server) TargetGroups() []TargetGroup {
	var groups []TargetGroup
	s.locked(func(time.Time) {
		for _, name := range slices.Sorted(maps.Keys(s.targetGroups)) {
			groups = append(groups, s.targetGroups[name].TargetGroup)
		}
	})
	return groups
}

// TargetGroupARN returns the ARN that a target group of this name has, or would have.
func (s *Server) TargetGroupARN(name string) string {
	return s.arn("elasticloadbalancing", "targetgroup/"+name+"/73e2d6bc24d8a067")
}

// RegisterTarget registers an instance with a group, which has to exist. Port 0 is that of the group. A target
// that drains is registered again.
func (s *Server) RegisterTarget(groupName, id string, port int) error {
	return s.onTargetGroup(groupName, func(g *targetGroup, now time.Time) {
		key := targetKey{id, cmp.Or(port, g.Port)}
		if t := g.targets[key]; t == nil || !t.deregistered.IsZero() {
			g.targets[key] = &target{registered: now}
		}
	})
}

// DeregisterTarget deregisters all targets of an instance from a group, which has to exist: they drain for the
// deregistration delay. One that is not registered is no mistake.
func (s *Server) DeregisterTarget(groupName, id string) error {
	return s.onTargetGroup(groupName, func(g *targetGroup, now time.Time) {
		for key, t := range g.targets {
			if key.id == id && t.deregistered.IsZero() {
				t.deregistered = now
			}
		}
	})
}

// Targets returns the targets of a group, ordered by id, as DescribeTargetHealth shows them.
func (s *Server) Targets(groupName string) (targets []Target) {
	_ = s.onTargetGroup(groupName, func(g *targetGroup, now time.Time) { // without the group there are none
		targets = s.shown(g, now)
	})
	return targets
}

func (s *Server) onTargetGroup(name string, f func(g *targetGroup, now time.Time)) error {
	err := fmt.Errorf("no target group %q", name)
	s.locked(func(now time.Time) {
		if g := s.targetGroups[name]; g != nil {
			f(g, now)
			err = nil
		}
	})
	return err
}

// shown returns the targets of a group. Those that have drained are forgotten. It needs the lock.
func (s *Server) shown(g *targetGroup, now time.Time) []Target {
	var all []Target
	maps.DeleteFunc(g.targets, func(_ targetKey, t *target) bool {
		return !t.deregistered.IsZero() && !now.Before(t.deregistered.Add(g.DeregistrationDelay))
	})
	for key, t := range g.targets {
		shown := Target{ID: key.id, Port: key.port, State: "healthy"}
		i := s.instances[key.id]
		switch {
		case !t.deregistered.IsZero():
			shown.State, shown.Reason = "draining", "Target.DeregistrationInProgress"
		case i != nil && (i.State == "stopped" || i.State == "terminated"):
			shown.State, shown.Reason = "unused", "Target.InvalidState"
		case now.Before(t.registered.Add(g.RegistrationTime)):
			shown.State, shown.Reason = "initial", "Elb.RegistrationInProgress"
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(a, b Target) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port)) })
	return all
}

var elbOperations = map[string]operation{
	"DescribeTargetHealth": describeTargetHealth,
	"RegisterTargets":      registerTargets,
	"DeregisterTargets":    deregisterTargets,
}

// xmlTarget is a TargetDescription.
type xmlTarget struct {
	ID   string `xml:"Id"`
	Port int
}

type xmlTargetHealth struct {
	HealthCheckPort string
	Target          xmlTarget
	State           string `xml:"TargetHealth>State"`
	Reason          string `xml:"TargetHealth>Reason,omitempty"`
}

type describeTargetHealthOutput struct {
	Descriptions []xmlTargetHealth `xml:"TargetHealthDescriptions>member"`
}

// targets returns the targets that a call names.
func (r *request) targets() []xmlTarget {
	var all []xmlTarget
	for k := 1; ; k++ {
		prefix := "Targets.member." + strconv.Itoa(k)
		id := r.form.Get(prefix + ".Id")
		if id == "" {
			return all
		}
		port, _ := strconv.Atoi(r.form.Get(prefix + ".Port")) // none is that of the group
		all = append(all, xmlTarget{id, port})
	}
}

// onGroupOfTargets runs f with the target group that a call names by its ARN.
func (s *Server) onGroupOfTargets(req *request, f func(g *targetGroup, now time.Time) *apiError) (problem *apiError) {
	arn := req.form.Get("TargetGroupArn")
	req.show("group", arn)
	if !targetGroupARN.MatchString(arn) {
		return badRequest("ValidationError", "'%s' is not a valid target group ARN", arn)
	}
	s.locked(func(now time.Time) {
		for _, g := range s.targetGroups {
			if s.TargetGroupARN(g.Name) == arn {
				problem = f(g, now)
				return
			}
		}
		problem = badRequest("TargetGroupNotFound", "Target groups '%s' not found", arn)
	})
	return problem
}

var targetGroupARN = regexp.MustCompile(
	`^arn:[a-z-]+:elasticloadbalancing:[a-z0-9-]+:[0-9]{12}:targetgroup/[A-Za-z0-9-]+/[0-9a-f]+$`)

// describeTargetHealth shows all targets, also those that drain. It shows targets that the call names as unused if
// they are not registered with that port.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_DescribeTargetHealth.html
func describeTargetHealth(_ context.Context, s *Server, req *request) (any, *apiError) {
	asked := req.targets()
	var output describeTargetHealthOutput
	problem := s.onGroupOfTargets(req, func(g *targetGroup, now time.Time) *apiError {
		all := s.shown(g, now)
		if len(asked) == 0 {
			for _, t := range all {
				output.Descriptions = append(output.Descriptions, t.xml())
			}
			return nil
		}
		for _, a := range asked {
			if i := s.instances[a.ID]; i == nil || i.State == "terminated" {
				return invalidTarget(a.ID)
			}
			a.Port = cmp.Or(a.Port, g.Port)
			shown := Target{ID: a.ID, Port: a.Port, State: "unused", Reason: "Target.NotRegistered"}
			if k := slices.IndexFunc(all, func(t Target) bool { return t.ID == a.ID && t.Port == a.Port }); k >= 0 {
				shown = all[k]
			}
			output.Descriptions = append(output.Descriptions, shown.xml())
		}
		return nil
	})
	req.entries = len(output.Descriptions)
	return output, problem
}

func invalidTarget(id string) *apiError {
	return badRequest("InvalidTarget",
		"The following targets are not in a running state and cannot be registered: '%s'", id)
}

func (t Target) xml() xmlTargetHealth {
	return xmlTargetHealth{
		HealthCheckPort: strconv.Itoa(t.Port), Target: xmlTarget{t.ID, t.Port}, State: t.State, Reason: t.Reason,
	}
}

func registerTargets(_ context.Context, s *Server, req *request) (any, *apiError) {
	return nil, s.onGroupOfTargets(req, func(g *targetGroup, now time.Time) *apiError {
		for _, a := range req.targets() {
			key := targetKey{a.ID, cmp.Or(a.Port, g.Port)}
			if i := s.instances[a.ID]; i == nil || i.State != "running" && i.State != "pending" {
				return invalidTarget(a.ID)
			}
			if t := g.targets[key]; t == nil || !t.deregistered.IsZero() {
				g.targets[key] = &target{registered: now}
			}
		}
		return nil
	})
}

func deregisterTargets(_ context.Context, s *Server, req *request) (any, *apiError) {
	return nil, s.onGroupOfTargets(req, func(g *targetGroup, now time.Time) *apiError {
		for _, a := range req.targets() {
			if t := g.targets[targetKey{a.ID, cmp.Or(a.Port, g.Port)}]; t != nil && t.deregistered.IsZero() {
				t.deregistered = now
			}
		}
		return nil
	})
}

type plainTargetGroup TargetGroup

type jsonTargetGroup struct {
	*plainTargetGroup
	DeregistrationDelay duration `json:"deregistrationDelay,omitempty"`
	RegistrationTime    duration `json:"registrationTime,omitempty"`
}

// MarshalJSON writes times as text, such as "30s".
func (g TargetGroup) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonTargetGroup{
		(*plainTargetGroup)(&g), duration(g.DeregistrationDelay), duration(g.RegistrationTime),
	})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (g *TargetGroup) UnmarshalJSON(text []byte) error {
	form := jsonTargetGroup{plainTargetGroup: (*plainTargetGroup)(g)}
	if err := strictJSON(bytes.NewReader(text), &form); err != nil {
		return err
	}
	g.DeregistrationDelay = time.Duration(form.DeregistrationDelay)
	g.RegistrationTime = time.Duration(form.RegistrationTime)
	return nil
}
