package awssim

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"
)

// Instance is an EC2 instance.
type Instance struct {
	ID string `json:"id"`
	// State is a name of EC2: pending, running (the default), shutting-down,
	// terminated, stopping, stopped.
	State string `json:"state,omitempty"`
	// PrivateDNSName is, by default, made from the id.
	PrivateDNSName string            `json:"privateDNSName,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	// LaunchTime is, by default, when the instance is put.
	LaunchTime time.Time `json:"launchTime,omitzero"`
	// Zone is, by default, the zone a of the region.
	Zone string `json:"zone,omitempty"`
	// Type is, by default, m5.large.
	Type string `json:"type,omitempty"`
	// Lifecycle is spot, scheduled, capacity-block, interruptible-capacity-reservation or,
	// for an on-demand instance, empty.
	Lifecycle string `json:"lifecycle,omitempty"`
	// Reservation is the id of the Capacity Reservation that the instance runs in.
	Reservation string `json:"reservation,omitempty"`
	// Host is the id of the Dedicated Host that the instance runs on.
	Host string `json:"host,omitempty"`
	// Events are the scheduled events of the instance.
	Events []ScheduledEvent `json:"events,omitempty"`
	// InstanceStatus and SystemStatus are what its status checks say.
	InstanceStatus StatusCheck `json:"instanceStatus,omitzero"`
	SystemStatus   StatusCheck `json:"systemStatus,omitzero"`
}

// ec2States are the states with their codes, as EC2 numbers them.
var ec2States = map[string]int{
	"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80,
}

// instanceID is the form of an instance id; others are malformed to EC2.
var instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// eventID is the form of the id of a scheduled event, as EC2 and the metadata give it.
var eventID = regexp.MustCompile(`^instance-event-[0-9a-f]{17}$`)

func checkIDs(events []ScheduledEvent) error {
	for _, e := range events {
		if e.ID != "" && !eventID.MatchString(e.ID) { // an answer may leave it out
			return fmt.Errorf("malformed id %q of an event", e.ID)
		}
	}
	return nil
}

// PutInstance adds an instance, or replaces what was known of it, as if it had
// always been so: no event tells of it. An instance that is put in the state
// shutting-down or stopping moves on after Options.ShutdownTime.
func (s *Server) PutInstance(config Instance) error {
	if !instanceID.MatchString(config.ID) {
		return fmt.Errorf("put instance: malformed id %q", config.ID)
	}
	if err := checkIDs(config.Events); err != nil {
		return fmt.Errorf("put instance %s: %w", config.ID, err)
	}
	setDefault(&config.State, "running")
	if _, ok := ec2States[config.State]; !ok {
		return fmt.Errorf("put instance %s: unknown state %q", config.ID, config.State)
	}
	setDefault(&config.PrivateDNSName, config.ID+".ec2.internal")
	setDefault(&config.Zone, s.opts.Region+"a")
	setDefault(&config.Type, "m5.large")
	config = config.clone()
	s.locked(func(now time.Time) {
		setDefault(&config.LaunchTime, now)
		added := &instance{Instance: config}
		if before, ok := s.instances[config.ID]; ok {
			added.group, added.lifecycleState, added.pool = before.group, before.lifecycleState, before.pool
			added.replacing, added.unhealthy, added.replaces = before.replacing, before.unhealthy, before.replaces
		}
		s.instances[config.ID] = added
		s.schedule(added, now)
	})
	return nil
}

// SetInstanceStatus changes the scheduled events of an instance, and what its status checks say.
// No event of EventBridge tells of it.
func (s *Server) SetInstanceStatus(id string, events []ScheduledEvent, instance, system StatusCheck) error {
	if err := checkIDs(events); err != nil {
		return fmt.Errorf("set status of %s: %w", id, err)
	}
	err := fmt.Errorf("set status of %s: no such instance", id)
	s.locked(func(time.Time) {
		if i, ok := s.instances[id]; ok {
			i.Events, i.InstanceStatus, i.SystemStatus = slices.Clone(events), instance, system
			err = nil
		}
	})
	return err
}

func (i Instance) clone() Instance {
	i.Tags, i.Events = maps.Clone(i.Tags), slices.Clone(i.Events)
	return i
}

// RemoveInstance makes EC2 forget an instance. It reports whether there was one.
func (s *Server) RemoveInstance(id string) bool {
	var found bool
	s.locked(func(now time.Time) {
		var removed *instance
		if removed, found = s.instances[id]; found {
			s.forget(removed, now)
		}
	})
	return found
}

// SetInstanceState changes the state of an instance and tells of it by an event,
// as EC2 does. An instance that was stopped is launched anew: its LaunchTime is
// that of the start.
func (s *Server) SetInstanceState(id, state string) error {
	if _, ok := ec2States[state]; !ok {
		return fmt.Errorf("set state of %s: unknown state %q", id, state)
	}
	err := fmt.Errorf("set state of %s: no such instance", id)
	s.locked(func(now time.Time) {
		if i, ok := s.instances[id]; ok {
			s.setState(i, state, now)
			err = nil
		}
	})
	return err
}

// Instances returns the instances, ordered by id, with what time has done to them.
func (s *Server) Instances() []Instance {
	instances := []Instance{}
	s.locked(func(time.Time) {
		for _, i := range s.sortedInstances() {
			instances = append(instances, i.clone())
		}
	})
	return instances
}

// instance is an Instance at work.
type instance struct {
	Instance
	changes time.Time // when it moves on, if it is among Server.moving

	group          *group // that it belongs to, if any
	lifecycleState string // within the group
	replacing      bool   // its root volume
	unhealthy      bool   // somebody has set its health to that
	replaces       string // the id of the instance that is terminated once this one is in service
	pool           string // of the group's warm pool: the state that it has there, or is on its way to
}

func (s *Server) sortedInstances() []*instance {
	return slices.SortedFunc(maps.Values(s.instances), func(a, b *instance) int { return cmp.Compare(a.ID, b.ID) })
}

// setState changes the state and sends the event that tells of it.
func (s *Server) setState(i *instance, state string, at time.Time) {
	if i.State == state {
		return
	}
	if i.State == "stopped" && (state == "pending" || state == "running") {
		i.LaunchTime = at
	}
	i.State = state
	s.effects.add(Effect{Time: at, Kind: InstanceState, InstanceID: i.ID, Result: state})
	s.schedule(i, at)
	s.emit(s.stateChange(i), at)
}

// schedule notes when the instance will move on by itself.
func (s *Server) schedule(i *instance, at time.Time) {
	delete(s.moving, i.ID)
	switch i.State {
	case "shutting-down", "stopping":
		i.changes = at.Add(s.opts.ShutdownTime)
	case "terminated":
		i.changes = at.Add(s.opts.TerminatedFor)
	default:
		return
	}
	s.moving[i.ID] = i
	s.wake()
}

func (s *Server) moveOn(i *instance, at time.Time) {
	switch i.State {
	case "shutting-down":
		s.setState(i, "terminated", at)
		s.leaveGroup(i, at)
	case "stopping":
		s.setState(i, "stopped", at)
	default:
		s.forget(i, at)
	}
}

func (s *Server) forget(i *instance, at time.Time) {
	s.leaveGroup(i, at)
	delete(s.moving, i.ID)
	delete(s.instances, i.ID)
}
