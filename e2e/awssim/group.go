package awssim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// maxGlobalTimeout and heartbeatsPerGlobal bound how long heartbeats can hold an
// action: 48 hours or 100 times the heartbeat timeout, whichever is less.
const (
	maxGlobalTimeout    = 48 * time.Hour
	heartbeatsPerGlobal = 100
)

// Group is an Auto Scaling group. By itself it launches an instance only in the place of one whose health
// somebody has set to Unhealthy.
type Group struct {
	Name string `json:"name"`
	// Desired is shown, and lowered by terminations that ask for it.
	Desired int `json:"desired,omitempty"`
	// Min and Max bound Desired. A Max of zero is 1000.
	Min  int               `json:"min,omitempty"`
	Max  int               `json:"max,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`
	// Maintenance is the instance maintenance policy.
	Maintenance Maintenance `json:"maintenance,omitzero"`
	// CapacityRebalance is shown, and has no effect.
	CapacityRebalance bool `json:"capacityRebalance,omitempty"`
	// Suspended are the processes of the group that do nothing.
	Suspended []string `json:"suspended,omitempty"`
	// LaunchError is the code with which EC2 refuses to launch, such as InsufficientInstanceCapacity. Empty:
	// it launches.
	LaunchError string `json:"launchError,omitempty"`
	// Retains keeps an instance whose termination hook ends with ABANDON, in the state
	// Terminating:Retained: the retention trigger of the instance lifecycle policy.
	Retains bool `json:"retains,omitempty"`
	// Instances are the ids of its instances, which have to exist. Those that
	// are pending start in the lifecycle state Pending, others InService.
	Instances []string `json:"instances,omitempty"`
}

// Maintenance is an instance maintenance policy, in percent of the desired capacity; zero: there is none.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstanceMaintenancePolicy.html
type Maintenance struct {
	MinHealthy int `json:"minHealthy,omitempty"`
	MaxHealthy int `json:"maxHealthy,omitempty"`
}

// launchesFirst reports whether an instance is terminated only when another one is in its place.
func (m Maintenance) launchesFirst() bool { return m.MinHealthy == 100 && m.MaxHealthy > 100 }

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
		g.Group = config.clone()
		g.Instances = nil
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
			config := g.clone()
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

func (g Group) clone() Group {
	g.Tags, g.Suspended, g.Instances = maps.Clone(g.Tags), slices.Clone(g.Suspended), slices.Clone(g.Instances)
	return g
}

// group is a Group at work; the instances know which one is theirs.
type group struct {
	Group   // without its Instances
	created time.Time
	hooks   []Hook
}

func (g *group) max() int {
	if g.Max == 0 {
		return 1000
	}
	return g.Max
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

func (s *Server) leaveGroup(i *instance, at time.Time) {
	s.dropActions(i, at)
	i.group, i.lifecycleState, i.pool, i.replacing, i.unhealthy = nil, "", "", false, false
}
