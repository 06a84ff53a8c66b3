package awssim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Transition is what a lifecycle hook interrupts.
type Transition string

// The two transitions, as Auto Scaling names them.
const (
	Launching   Transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
	Terminating Transition = "autoscaling:EC2_INSTANCE_TERMINATING"
)

// Results of a lifecycle action.
const (
	Continue = "CONTINUE"
	Abandon  = "ABANDON"
)

// maxGlobalTimeout and heartbeatsPerGlobal bound how long heartbeats can hold an
// action: 48 hours or 100 times the heartbeat timeout, whichever is less.
const (
	maxGlobalTimeout    = 48 * time.Hour
	heartbeatsPerGlobal = 100
)

// Group is an Auto Scaling group. It does not launch instances by itself.
type Group struct {
	Name string `json:"name"`
	// Desired is shown, and lowered by terminations that ask for it.
	Desired int               `json:"desired,omitempty"`
	Tags    map[string]string `json:"tags,omitempty"`
	// Instances are the ids of its instances, which have to exist. Those that
	// are pending start in the lifecycle state Pending, others InService.
	Instances []string `json:"instances,omitempty"`
}

// Hook is a lifecycle hook.
type Hook struct {
	Group      string     `json:"group"`
	Name       string     `json:"name"`
	Transition Transition `json:"transition"`
	// HeartbeatTimeout is how long an action waits for a completion or a
	// heartbeat. Default one hour. Auto Scaling takes 30 s at least; here any
	// positive time will do.
	HeartbeatTimeout time.Duration `json:"-"`
	// DefaultResult is that of an action that times out. Default ABANDON.
	DefaultResult string `json:"defaultResult,omitempty"`
	// TargetARN is a queue of this account that gets notifications straight
	// from Auto Scaling, or a topic that hands them to the queues subscribed to
	// it. Events go to the queues of rules in any case.
	TargetARN string `json:"targetARN,omitempty"`
	// Metadata stands in the events of the hook.
	Metadata string `json:"metadata,omitempty"`
}

func (h Hook) globalTimeout() time.Duration {
	return min(heartbeatsPerGlobal*h.HeartbeatTimeout, maxGlobalTimeout)
}

// Outcome says how a lifecycle action ended.
type Outcome string

// The outcomes. The zero value is that of an action which has not ended.
const (
	Active    Outcome = ""
	Completed Outcome = "completed"
	TimedOut  Outcome = "timed out"
	// Dropped is an action that lost its point: another one abandoned the
	// transition, or the instance is gone.
	Dropped Outcome = "dropped"
)

// LifecycleAction is one instance waiting for one hook.
type LifecycleAction struct {
	Token      string     `json:"token"`
	Group      string     `json:"group"`
	Hook       string     `json:"hook"`
	InstanceID string     `json:"instanceID"`
	Transition Transition `json:"transition"`
	Started    time.Time  `json:"started"`
	// Deadline is when the action times out unless a heartbeat comes.
	Deadline time.Time `json:"deadline"`
	// GlobalDeadline is when it times out in spite of heartbeats.
	GlobalDeadline time.Time `json:"globalDeadline"`
	Heartbeats     int       `json:"heartbeats"`
	Outcome        Outcome   `json:"outcome,omitempty"`
	// Result is CONTINUE or ABANDON once the action ended.
	Result string    `json:"result,omitempty"`
	Ended  time.Time `json:"ended,omitzero"`
}

// PutGroup adds a group, or replaces it and keeps its hooks. It fails if an
// instance does not exist.
func (s *Server) PutGroup(config Group) (err error) {
	if config.Name == "" {
		return errors.New("put group: no name")
	}
	s.locked(func(now time.Time) {
		for _, id := range config.Instances {
			if _, ok := s.instances[id]; !ok {
				err = fmt.Errorf("put group %s: no instance %q", config.Name, id)
				return
			}
		}
		g, ok := s.groups[config.Name]
		if !ok {
			g = &group{created: now}
			s.groups[config.Name] = g
		}
		g.Name, g.Desired, g.Tags = config.Name, config.Desired, maps.Clone(config.Tags)
		for _, i := range s.instances {
			member := slices.Contains(config.Instances, i.ID)
			switch {
			case member && i.group != g:
				i.group, i.lifecycleState = g, "InService"
				if i.State == "pending" {
					i.lifecycleState = "Pending"
				}
			case !member && i.group == g:
				s.leaveGroup(i, now)
			}
		}
	})
	return err
}

// PutHook adds a hook to its group, which has to exist, or replaces it. Actions
// that wait already keep the times of the old one.
func (s *Server) PutHook(hook Hook) (err error) {
	s.locked(func(time.Time) {
		g, ok := s.groups[hook.Group]
		if !ok {
			err = fmt.Errorf("put hook %s: no group %q", hook.Name, hook.Group)
			return
		}
		err = g.put(hook)
	})
	return err
}

// Groups returns the groups, ordered by name, with their present instances.
func (s *Server) Groups() []Group {
	groups := []Group{}
	s.locked(func(time.Time) {
		for _, g := range s.sortedGroups() {
			config := Group{Name: g.Name, Desired: g.Desired, Tags: maps.Clone(g.Tags)}
			for _, i := range s.sortedInstances() {
				if i.group == g {
					config.Instances = append(config.Instances, i.ID)
				}
			}
			groups = append(groups, config)
		}
	})
	return groups
}

// Hooks returns the hooks, ordered by group.
func (s *Server) Hooks() []Hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	hooks := []Hook{}
	for _, g := range s.sortedGroups() {
		hooks = append(hooks, g.hooks...)
	}
	return hooks
}

// StartTransition begins to launch or terminate an instance of a group, as
// Auto Scaling does: all hooks of the transition wait at once, each with an
// action of its own, which are returned. Without a hook the instance goes on.
// What an unfinished transition of the instance was waiting for is dropped.
func (s *Server) StartTransition(instanceID string, transition Transition) (started []LifecycleAction, err error) {
	if transition != Launching && transition != Terminating {
		return nil, fmt.Errorf("start transition of %s: unknown transition %q", instanceID, transition)
	}
	err = fmt.Errorf("start transition of %s: no such instance in a group", instanceID)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[instanceID]; ok && i.group != nil {
			err = nil
			for _, action := range s.startTransition(i, transition, now) {
				started = append(started, action.LifecycleAction)
			}
		}
	})
	return started, err
}

// LifecycleActions returns the last 10,000 actions that ended, then the active ones.
func (s *Server) LifecycleActions() []LifecycleAction {
	actions := []LifecycleAction{}
	s.locked(func(time.Time) {
		actions = append(actions, s.ended.all()...)
		for _, action := range s.actions {
			actions = append(actions, action.LifecycleAction)
		}
	})
	return actions
}

// LifecycleState returns the lifecycle state of an instance, such as InService
// or Terminating:Wait; it is empty for one that is in no group.
func (s *Server) LifecycleState(instanceID string) (state string) {
	s.locked(func(time.Time) {
		if i, ok := s.instances[instanceID]; ok {
			state = i.lifecycleState
		}
	})
	return state
}

// group is a Group at work; the instances know which one is theirs.
type group struct {
	Name    string
	Desired int
	Tags    map[string]string
	created time.Time
	hooks   []Hook
}

func (g *group) xmlTags() []xmlGroupTag {
	var tags []xmlGroupTag
	for _, key := range slices.Sorted(maps.Keys(g.Tags)) {
		tags = append(tags, xmlGroupTag{
			Key: key, Value: g.Tags[key], ResourceID: g.Name, ResourceType: "auto-scaling-group", PropagateAtLaunch: true,
		})
	}
	return tags
}

// put adds or replaces a hook. What a replacement leaves out stays as it was.
func (g *group) put(hook Hook) error {
	at := slices.IndexFunc(g.hooks, func(h Hook) bool { return h.Name == hook.Name })
	if at >= 0 {
		setDefault(&hook.Transition, g.hooks[at].Transition)
		setDefault(&hook.HeartbeatTimeout, g.hooks[at].HeartbeatTimeout)
		setDefault(&hook.DefaultResult, g.hooks[at].DefaultResult)
	}
	setDefault(&hook.HeartbeatTimeout, time.Hour)
	setDefault(&hook.DefaultResult, Abandon)
	switch {
	case hook.Name == "":
		return errors.New("put hook: no name")
	case hook.Transition != Launching && hook.Transition != Terminating:
		return fmt.Errorf("put hook %s: unknown transition %q", hook.Name, hook.Transition)
	case hook.HeartbeatTimeout <= 0:
		return fmt.Errorf("put hook %s: heartbeat timeout %s is not positive", hook.Name, hook.HeartbeatTimeout)
	case hook.DefaultResult != Continue && hook.DefaultResult != Abandon:
		return fmt.Errorf("put hook %s: unknown default result %q", hook.Name, hook.DefaultResult)
	}
	if at >= 0 {
		g.hooks[at] = hook
	} else {
		g.hooks = append(g.hooks, hook)
	}
	return nil
}

func (s *Server) sortedGroups() []*group {
	return slices.SortedFunc(maps.Values(s.groups), func(a, b *group) int { return cmp.Compare(a.Name, b.Name) })
}

// groupARN has one made-up id for all groups; real ones have a uuid each.
func (s *Server) groupARN(name string) string {
	return s.arn("autoscaling", "autoScalingGroup:63f5b5c2-58b3-0574-b7d5-b3162d0268f0:autoScalingGroupName/"+name)
}

// lifecycleAction is an active LifecycleAction.
type lifecycleAction struct {
	LifecycleAction
	timeout       time.Duration
	defaultResult string
}

// due is when the action times out.
func (a *lifecycleAction) due() time.Time {
	if a.GlobalDeadline.Before(a.Deadline) {
		return a.GlobalDeadline
	}
	return a.Deadline
}

func (s *Server) startTransition(i *instance, transition Transition, now time.Time) []*lifecycleAction {
	state := strings.TrimSuffix(i.lifecycleState, ":Wait")
	i.lifecycleState = "Pending"
	if transition == Terminating {
		i.lifecycleState = "Terminating"
	}
	// A transition that starts anew, or turns a launch into a termination, ends
	// what the former one was waiting for.
	if state != "InService" {
		s.dropActions(i, now)
	}
	var started []*lifecycleAction
	for _, hook := range i.group.hooks {
		if hook.Transition != transition {
			continue
		}
		action := &lifecycleAction{
			LifecycleAction: LifecycleAction{
				Token: s.uuid(), Group: i.group.Name, Hook: hook.Name,
				InstanceID: i.ID, Transition: transition,
				Started: now, Deadline: now.Add(hook.HeartbeatTimeout), GlobalDeadline: now.Add(hook.globalTimeout()),
			},
			timeout:       hook.HeartbeatTimeout,
			defaultResult: hook.DefaultResult,
		}
		s.actions = append(s.actions, action)
		s.effects.add(action.effect(now, ActionStarted, ""))
		s.notify(action, hook, now)
		started = append(started, action)
	}
	s.wake()
	if len(started) == 0 {
		s.proceed(i, transition, Continue, now)
		return nil
	}
	i.lifecycleState += ":Wait"
	return started
}

func (s *Server) heartbeat(action *lifecycleAction, now time.Time) {
	action.Heartbeats++
	action.Deadline = now.Add(action.timeout)
	s.effects.add(action.effect(now, ActionHeartbeat, ""))
}

// endAction ends an action once and for all. The instance goes on when it was
// the last of its transition, and at once when it was abandoned.
func (s *Server) endAction(action *lifecycleAction, at time.Time, outcome Outcome, result string) {
	s.actions = slices.DeleteFunc(s.actions, func(a *lifecycleAction) bool { return a == action })
	action.Outcome, action.Result, action.Ended = outcome, result, at
	s.ended.add(action.LifecycleAction)
	kind := ActionCompleted
	if outcome == TimedOut {
		kind = ActionTimedOut
	}
	s.effects.add(action.effect(at, kind, result))

	i, ok := s.instances[action.InstanceID]
	if !ok || i.group == nil {
		return
	}
	if result == Abandon {
		s.dropActions(i, at)
	}
	waiting := slices.ContainsFunc(s.actions, func(a *lifecycleAction) bool { return a.InstanceID == i.ID })
	if !waiting {
		s.proceed(i, action.Transition, result, at)
	}
}

// proceed takes the instance through its transition. Abandoning a launch
// terminates the instance, without the hooks of a termination; abandoning a
// termination only ends the waiting.
func (s *Server) proceed(i *instance, transition Transition, result string, at time.Time) {
	if transition == Launching && result == Continue {
		i.lifecycleState = "InService"
		s.setState(i, "running", at)
		return
	}
	i.lifecycleState = "Terminating:Proceed"
	if i.State != "terminated" {
		s.setState(i, "shutting-down", at)
	}
}

// dropActions ends what an instance still waits for.
func (s *Server) dropActions(i *instance, at time.Time) {
	s.actions = slices.DeleteFunc(s.actions, func(a *lifecycleAction) bool {
		if a.InstanceID != i.ID {
			return false
		}
		a.Outcome, a.Ended = Dropped, at
		s.ended.add(a.LifecycleAction)
		return true
	})
}

func (s *Server) leaveGroup(i *instance, at time.Time) {
	s.dropActions(i, at)
	i.group, i.lifecycleState = nil, ""
}

func (a *lifecycleAction) effect(at time.Time, kind EffectKind, result string) Effect {
	return Effect{Time: at, Kind: kind, InstanceID: a.InstanceID, Group: a.Group, Hook: a.Hook, Token: a.Token, Result: result}
}
