package awssim

import (
	"fmt"
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

// TerminatingRetained is the lifecycle state of an instance that its group keeps for good.
const TerminatingRetained = "Terminating:Retained"

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
			err, i.pool, i.replacing = nil, "", false
			for _, action := range s.startTransition(i, transition, now) {
				started = append(started, action.LifecycleAction)
			}
		}
	})
	return started, err
}

// The states of instances in a warm pool.
const (
	WarmedStopped = "Warmed:Stopped"
	WarmedRunning = "Warmed:Running"
)

// ReturnToWarmPool begins to take an instance out of service and back into the
// warm pool of its group, as a scale-in does where instances are used again: the
// termination hooks wait, and their events have the destination WarmPool. Then it
// is stopped or goes on running, as state says, and stays in its group. Abandoned,
// it is terminated.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-warm-pools.html
func (s *Server) ReturnToWarmPool(instanceID, state string) (started []LifecycleAction, err error) {
	if state != WarmedStopped && state != WarmedRunning {
		return nil, fmt.Errorf("return %s to the warm pool: unknown state %q", instanceID, state)
	}
	err = fmt.Errorf("return %s to the warm pool: no such instance in service", instanceID)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[instanceID]; ok && i.group != nil && i.lifecycleState == "InService" {
			err = nil
			i.pool = state
			for _, action := range s.startTransition(i, Terminating, now) {
				started = append(started, action.LifecycleAction)
			}
		}
	})
	return started, err
}

// LaunchFromWarmPool begins to put an instance of the warm pool into service. If
// it is stopped it starts, and is pending until somebody says that it runs; the
// launch hooks wait, and their events have the origin WarmPool.
func (s *Server) LaunchFromWarmPool(instanceID string) (started []LifecycleAction, err error) {
	err = fmt.Errorf("launch %s from the warm pool: no such instance there", instanceID)
	s.locked(func(now time.Time) {
		i, ok := s.instances[instanceID]
		if !ok || i.group == nil || i.lifecycleState != i.pool || i.pool == WarmedStopped && i.State != "stopped" {
			return
		}
		err = nil
		if i.State == "stopped" {
			s.setState(i, "pending", now)
		}
		for _, action := range s.startTransition(i, Launching, now) {
			started = append(started, action.LifecycleAction)
		}
	})
	return started, err
}

// The lifecycle states of an instance that gets another root volume.
const (
	replacingRootVolume = "ReplacingRootVolume"
	// ReplacingRootVolumeProceed is that of an instance whose hooks wait no more, and which reboots.
	ReplacingRootVolumeProceed = replacingRootVolume + ":Proceed"
)

// ReplaceRootVolume begins to give an instance another root volume, as an instance refresh with
// this strategy does: the termination hooks wait. Abandoned, it stays as it was.
// RootVolumeReplaced is to be called when its machine has rebooted.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/replace-root-volume.html
func (s *Server) ReplaceRootVolume(instanceID string) (started []LifecycleAction, err error) {
	err = fmt.Errorf("replace the root volume of %s: no such instance in service", instanceID)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[instanceID]; ok && i.group != nil && i.lifecycleState == "InService" {
			err, i.replacing = nil, true
			for _, action := range s.startTransition(i, Terminating, now) {
				started = append(started, action.LifecycleAction)
			}
		}
	})
	return started, err
}

// RootVolumeReplaced puts an instance with another root volume back into service: the launch hooks
// wait.
func (s *Server) RootVolumeReplaced(instanceID string) (started []LifecycleAction, err error) {
	err = fmt.Errorf("put %s back into service: it is not about to get another root volume", instanceID)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[instanceID]; ok && i.lifecycleState == ReplacingRootVolumeProceed {
			err = nil
			for _, action := range s.startTransition(i, Launching, now) {
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

// lifecycleAction is an active LifecycleAction.
type lifecycleAction struct {
	LifecycleAction
	timeout       time.Duration
	defaultResult string
	warm          bool // the instance goes to the warm pool, or comes from there
	replacing     bool // it gets another root volume
}

// outside is where the instance comes from, or goes to, by the name in events.
func (a *lifecycleAction) outside() string {
	switch {
	case a.warm:
		return "WarmPool"
	case a.replacing:
		return "AutoScalingGroup"
	}
	return "EC2"
}

// action is what is done to the instance, by the name in events; empty for most.
func (a *lifecycleAction) action() string {
	if a.replacing {
		return "ReplaceRootVolume"
	}
	return ""
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
	switch {
	case transition == Terminating && i.replacing:
		i.lifecycleState = replacingRootVolume
	case transition == Terminating:
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
			warm:          i.pool != "",
			replacing:     i.replacing,
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
// termination only ends the waiting, unless the group retains the instance then.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html
func (s *Server) proceed(i *instance, transition Transition, result string, at time.Time) {
	pool := i.pool
	i.pool = ""
	switch {
	case transition == Terminating && i.replacing && result == Continue:
		i.lifecycleState = ReplacingRootVolumeProceed
		return
	case transition == Terminating && i.replacing:
		i.lifecycleState, i.replacing = "InService", false
		return
	case transition == Launching && result == Continue:
		i.replacing = false
		i.lifecycleState = "InService"
		if i.State == "pending" { // no hook brings back what has stopped
			s.setState(i, "running", at)
		}
		s.endReplaced(i, at)
		return
	case transition == Terminating && result == Continue && pool != "":
		i.pool, i.lifecycleState = pool, pool
		// A spot interruption may have stopped it.
		if pool == WarmedStopped && (i.State == "running" || i.State == "pending") {
			s.setState(i, "stopping", at)
		}
		return
	case transition == Terminating && result == Abandon && i.group.Retains && i.State != "terminated":
		i.lifecycleState = TerminatingRetained
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

func (a *lifecycleAction) effect(at time.Time, kind EffectKind, result string) Effect {
	return Effect{
		Time: at, Kind: kind, InstanceID: a.InstanceID, Group: a.Group, Hook: a.Hook, Token: a.Token,
		Result: result,
	}
}
