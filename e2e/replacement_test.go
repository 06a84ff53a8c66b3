package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

const aReplacementFirst = "- {name: replaced, kinds: [rebalance, scheduled-change], do: drain, first: replacement, wait: 1m}"

// replaceable is a scenario with a node in a group, and a Deployment on the node. The permissions for
// replacements are not in the policy that all handlers have.
func replaceable(t *testing.T, group awssim.Group) (*scenario, node) {
	t.Helper()
	s := newScenario(t)
	otherRights.Store(s.name, true)
	n := s.nodes(1)[0]
	s.deployment("web", 1)
	group.Name, group.Desired, group.Tags, group.Instances = "workers", 1, managed, []string{n.instance}
	s.must(s.aws.Apply(awssim.State{
		Groups: []awssim.Group{group},
		Rules:  []awssim.Rule{{Name: "lifecycle", DetailType: "EC2 Instance-* Lifecycle Action", Queue: queueName}},
	}))
	return s, n
}

// launchedFor is the instance that was launched in the place of the node's.
func (s *scenario) launchedFor(n node) (id string) {
	s.Helper()
	s.eventually("another instance is launched", func() bool {
		for _, i := range s.aws.Instances() {
			if i.ID != n.instance {
				id = i.ID
			}
		}
		return id != ""
	})
	return id
}

// replaced checks that the node was drained after its replacement was ready, that the pod runs there, and that
// the group has the other instance alone.
func (s *scenario) replaced(n node, other string) {
	s.Helper()
	s.throughout(3*time.Second, "the node waits for its replacement", func() bool {
		return !s.cordoned(n.name) && s.state(n) == cluster.StateWaiting
	})
	next := node{s.name + "-z", other}
	s.must(s.register(s.ctx, next))
	s.eventually("the node is drained", func() bool { return s.state(n) == cluster.StateDrained })
	s.eventually("the pod runs on the replacement", func() bool { return len(s.podsOn(next.name)) == 1 })
	s.eventually("the instance is terminated, and no other one", func() bool {
		alive := slices.DeleteFunc(s.aws.Instances(), func(i awssim.Instance) bool { return i.State != "running" })
		return len(alive) == 1 && alive[0].ID == other
	})
	if desired := s.aws.Groups()[0].Desired; desired != 1 {
		s.Errorf("the desired capacity is %d", desired)
	}
}

func TestARebalancedNodeGetsAReplacementFirst(t *testing.T) {
	s, n := replaceable(t, awssim.Group{})
	file := s.policy("nodes:", aReplacementFirst)
	h := s.leader("--policy-file="+file.path, "--emit-kubernetes-events=true")
	s.send(s.body("rebalance-recommendation", n.instance))
	other := s.launchedFor(n)
	h.kill() // the next leader goes on, and launches no other one
	s.leader("--policy-file="+file.path, "--emit-kubernetes-events=true")
	s.replaced(n, other)
	s.awaitEvent(n, "The node's replacement: node "+s.name+"-z is ready")
}

func TestAGroupWithAMaintenancePolicyReplacesTheInstanceOfANode(t *testing.T) {
	tier.Full(t, "30 s; internal/controller plays it in virtual time")
	s, n := replaceable(t, awssim.Group{Maintenance: awssim.Maintenance{MinHealthy: 100, MaxHealthy: 110}})
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Minute}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: time.Minute}))
	file := s.policy("nodes:", aReplacementFirst)
	s.leader("--policy-file=" + file.path)
	s.send(s.body("health-reboot-scheduled", n.instance, "Fri, 27 Nov 2026 06:00:00 GMT", startIn(10*time.Hour)))
	s.replaced(n, s.launchedFor(n))
	if s.calls("autoscaling", "SetInstanceHealth") != 1 || s.calls("autoscaling", "LaunchInstances")+s.calls("autoscaling", "TerminateInstanceInAutoScalingGroup") > 0 {
		t.Error("the group was not left to do it alone")
	}
}

func TestWithoutCapacityForAReplacementTheNodeIsDrained(t *testing.T) {
	tier.Full(t, "internal/controller plays it in virtual time")
	s, n := replaceable(t, awssim.Group{LaunchError: "InsufficientInstanceCapacity"})
	file := s.policy("nodes:", aReplacementFirst)
	h := s.leader("--policy-file="+file.path, "--emit-kubernetes-events=true")
	s.send(s.body("rebalance-recommendation", n.instance))
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	s.awaitEvent(n, "InsufficientInstanceCapacity")
	if log := h.log.String(); !strings.Contains(log, "replacement-no-capacity") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	if got := h.metric(`node_termination_handler_replacements_total{result="no-capacity"}`); got != 1 {
		t.Errorf("%v replacements without capacity", got)
	}
	if len(s.aws.Instances()) != 1 || s.aws.Groups()[0].Desired != 1 {
		t.Errorf("instances %+v, desired %d", s.aws.Instances(), s.aws.Groups()[0].Desired)
	}
}
