package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
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

func TestAGroupReplacesTheInstanceOfANodeBeforeItsDrain(t *testing.T) {
	tier.Full(t, "a minute; internal/controller plays it in virtual time")
	s, n := replaceable(t, awssim.Group{Maintenance: awssim.Maintenance{MinHealthy: 100, MaxHealthy: 110}})
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Minute}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: time.Minute}))
	file := s.policy("nodes:", aReplacementFirst)
	h := s.leader("--policy-file=" + file.path)
	s.send(s.body("rebalance-recommendation", n.instance))
	var other string
	s.eventually("another instance is launched", func() bool {
		for _, i := range s.aws.Instances() {
			if i.ID != n.instance {
				other = i.ID
			}
		}
		return other != ""
	})
	// Before that is written down, the next leader asks the group again.
	s.eventually("it is written down that the group was asked", func() bool { return s.intent(n).Replacement.Step == intent.Marked })
	h.kill() // the next leader goes on
	s.leader("--policy-file=" + file.path)
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
	if marked := s.calls("autoscaling", "SetInstanceHealth"); marked != 1 {
		t.Errorf("the instance was marked %d times", marked)
	}
}

func TestWithoutAReplacementTheNodeIsDrained(t *testing.T) {
	tier.Full(t, "internal/controller plays it in virtual time")
	s, n := replaceable(t, awssim.Group{})
	file := s.policy("nodes:", aReplacementFirst)
	h := s.alone("--policy-file="+file.path, "--emit-kubernetes-events=true")
	s.send(s.body("rebalance-recommendation", n.instance))
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	s.awaitEvent(n, "does not launch before it terminates")
	if log := h.log.String(); !strings.Contains(log, "replacement-impossible") {
		t.Errorf("the log does not say why:\n%s", log)
	}
	if got := h.metric(`node_termination_handler_replacements_total{result="impossible"}`); got != 1 {
		t.Errorf("%v replacements that are impossible", got)
	}
	if len(s.aws.Instances()) != 1 {
		t.Errorf("instances %+v", s.aws.Instances())
	}
}
