package e2e

import (
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// mayReadTheLease gives the DaemonSet the right to read the Lease of the scenario's handler, as the
// chart does where both are of one release.
func (s *imdsScenario) mayReadTheLease() {
	s.Helper()
	const name = "reads-the-lease"
	_, err := s.kube.RbacV1().Roles(s.name).Create(s.ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{release.Name}, Verbs: []string{"get"},
		}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.RbacV1().RoleBindings(s.name).Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "nth-" + release.Name, Namespace: s.home}},
	}, metav1.CreateOptions{})
	s.must(err)
}

const drains = `node_termination_handler_drains_total{kind="SpotInterruption",outcome="in-time"}`

// Whoever sees the notice first, each pod is asked to leave once, one drain is counted, and the hook of a scale-in that
// comes meanwhile is completed once, at its end.
func TestWhereBothModesServeANodeItIsDrainedOnce(t *testing.T) {
	t.Parallel()
	const metadata, queue = 0, 1
	for name, ways := range map[string][]int{
		"the metadata tells first": {metadata, queue}, "the queue tells first": {queue, metadata},
		"EventBridge is silent": {metadata}, "the metadata is silent": {queue},
	} {
		t.Run(name, func(t *testing.T) {
			if len(ways) > 1 {
				tier.Full(t, "the other two have each way")
			}
			s := newIMDSScenario(t)
			s.mayReadTheLease()
			s.pod("quick", s.node.name)
			s.pod("slow", s.node.name, stopping(30*time.Second, 12*time.Second))
			before := s.placement()
			leader, pod := s.leader(), s.start("NAMESPACE="+s.name, "LEADER_ELECT_RESOURCE_NAME="+release.Name)
			for _, way := range ways {
				if way == metadata {
					s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
				} else {
					s.warn(s.node, 2*time.Minute)
				}
				s.eventually("the pods are asked to leave", func() bool { return len(s.asked()) == 2 })
			}
			var action string
			if slices.Contains(ways, queue) { // EventBridge tells of the hook, too
				s.hook(awssim.Terminating, 10*time.Minute, s.node)
				action, _ = s.transition(s.node, awssim.Terminating)
			}
			s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && len(s.podsOn(s.node.name)) == 0 })
			s.eventually("the message is deleted", func() bool { return len(s.aws.Messages(queueName)) == 0 })
			s.drainedExactly(before, s.node)
			if action != "" {
				s.completedOnce(action)
				if ended := s.action(action).Ended; ended.Before(s.gone("slow")) {
					t.Errorf("the hook was completed at %s, before the last pod was gone at %s", ended, s.gone("slow"))
				}
			}
			if l, d := leader.metric(drains), pod.metric(drains); l != 1 || d != 0 {
				t.Errorf("the handler with the queue has counted %v drains, the one on the node %v", l, d)
			}
			const leading = "node_termination_handler_leading"
			if l, d := leader.metric(leading), pod.metric(leading); l != 1 || d != 0 {
				t.Errorf("leading is %v for the leader, and %v for the pod on the node, which reports", l, d)
			}
		})
	}
}

// The node that is terminated uses up the limit: the other one waits, with the leader that has held it back and with the
// next, until the machine is gone. The hook is completed once, when the pods have left.
func TestBothModesKeepLimitAndHookThroughAKilledLeader(t *testing.T) {
	tier.Full(t, "60 s; the random histories of internal/controller play each of it")
	s := newIMDSScenario(t)
	s.mayReadTheLease()
	file := s.policy("nodes:", "- {name: one-at-a-time, kinds: [rebalance, asg-terminate], nodes: scenario="+s.name+", do: drain, limit: {nodes: 1}}")
	s.hook(awssim.Terminating, 10*time.Minute, s.node)
	s.pod("kept", s.node.name, app("kept"))
	s.budget("kept", "kept", 1)
	s.pod("waits", s.other.name)
	args := []string{"--policy-file=" + file.path}
	leader, standby := s.leader(args...), s.scenario.start(args...)
	where := []string{"NAMESPACE=" + s.name, "LEADER_ELECT_RESOURCE_NAME=" + release.Name, "ENABLE_REBALANCE_DRAINING=true"}
	s.start(where...)
	metadata := s.startOn(s.other, where...)
	action, message := s.transition(s.node, awssim.Terminating)
	s.metadata.SetLifecycleState("Terminated")
	s.eventually("the pod is asked to leave", func() bool { return len(s.requests("kept")) > 0 })
	metadata.Recommend(time.Now())
	waits := func(h *handler) func() bool {
		return func() bool { return h.metric("node_termination_handler_drains_held_back_by_limit") == 1 }
	}
	s.eventually("the other node waits", waits(leader))
	leader.kill()
	s.eventually("the standby leads", standby.leads)
	s.eventually("the other node waits still", waits(standby))
	s.throughout(3*time.Second, "it waits, and the hook too", func() bool {
		return len(s.requests("waits")) == 0 && s.action(action).Outcome == awssim.Active
	})
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.awaitDeleted(soon, message)
	s.completedOnce(action)
	if ended := s.action(action).Ended; ended.Before(s.gone("kept")) {
		t.Errorf("the hook was completed at %s, before the pod was gone at %s", ended, s.gone("kept"))
	}
	s.must(s.kube.CoreV1().Nodes().Delete(s.ctx, s.node.name, metav1.DeleteOptions{}))
	s.eventually("the other node is drained", func() bool { return s.state(s.other) == "drained" && !s.podExists("waits") })
}

// Nothing in AWS is asked: two replicas have their notices from the pods on the nodes, with limits over all nodes.
func TestWithoutAQueueTheLeaderDrainsWhatThePodsReport(t *testing.T) {
	s := newIMDSScenario(t)
	s.mayReadTheLease()
	file := s.policy("nodes:", "- {name: one-at-a-time, kinds: [rebalance], nodes: scenario="+s.name+", do: drain, limit: {nodes: 1}}")
	s.pod("kept", s.node.name, app("kept"))
	s.budget("kept", "kept", 1)
	s.pod("waits", s.other.name)
	args := []string{"--queue-url=none", "--enable-rebalance-draining", "--policy-file=" + file.path}
	leader, standby := s.leader(args...), s.scenario.start(args...)
	where := []string{"NAMESPACE=" + s.name, "LEADER_ELECT_RESOURCE_NAME=" + release.Name, "ENABLE_REBALANCE_DRAINING=true"}
	s.start(where...)
	metadata := s.startOn(s.other, where...)

	s.metadata.Recommend(time.Now())
	s.eventually("the first node's drain has begun", func() bool { return len(s.requests("kept")) > 0 })
	metadata.Recommend(time.Now())
	s.eventually("the second node waits for it", func() bool {
		return leader.metric("node_termination_handler_drains_held_back_by_limit") == 1
	})
	leader.kill()
	s.eventually("the standby leads", standby.leads)
	s.eventually("the second node waits for it still", func() bool {
		return standby.metric("node_termination_handler_drains_held_back_by_limit") == 1
	})
	if !s.podExists("waits") || len(s.requests("waits")) > 0 {
		t.Error("a node that waits has lost its pod")
	}
	metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
	s.eventually("what cannot wait is drained", func() bool { return s.state(s.other) == "drained" && !s.podExists("waits") })
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.eventually("the first node is drained", func() bool { return s.imdsState() == "drained" && !s.podExists("kept") })
	if n := standby.metric(drains); n != 1 {
		t.Errorf("%v spot interruptions were counted, want 1", n)
	}
	if asked := s.aws.Counts(); len(asked) > 0 {
		t.Errorf("AWS was asked: %v", asked)
	}
}

// The leader dies when it knows of the hook. The next one completes it, once, when the pods are gone.
func TestWithoutAQueueTheSweepFindsTheHookThatItsLeaderCompletes(t *testing.T) {
	tier.Full(t, "60 s; internal/controller plays it in virtual time, with one leader")
	s := newIMDSScenario(t)
	s.mayReadTheLease()
	s.hook(awssim.Terminating, 10*time.Minute, s.node)
	s.pod("kept", s.node.name, app("kept"))
	s.budget("kept", "kept", 1)
	args := []string{"--queue-url=none", "--sweep-interval=10"}
	leader, standby := s.leader(args...), s.scenario.start(args...)
	s.start("NAMESPACE="+s.name, "LEADER_ELECT_RESOURCE_NAME="+release.Name)
	action, _ := s.transition(s.node, awssim.Terminating)
	s.metadata.SetLifecycleState("Terminated")
	s.eventually("the pod is asked to leave", func() bool { return len(s.requests("kept")) > 0 })
	s.eventually("the hook is known", func() bool { return len(s.intent(s.node).Hooks) == 1 })
	leader.kill()
	s.eventually("the standby leads", standby.leads)
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.eventually("the hook is completed", func() bool { return s.action(action).Outcome == awssim.Completed })
	if ended := s.action(action).Ended; ended.Before(s.gone("kept")) {
		t.Errorf("the hook was completed at %s, before the pod was gone at %s", ended, s.gone("kept"))
	}
	if n := s.calls("autoscaling", "CompleteLifecycleAction"); n != 1 { // a sweep knows no token
		t.Errorf("%d completions, want one", n)
	}
	for key := range s.aws.Counts() {
		if key.Service != "autoscaling" {
			t.Errorf("AWS was asked for %s of %s", key.Action, key.Service)
		}
	}
}

func TestTheHandlerOnTheNodeGoesOnWithoutTheOneWithTheQueue(t *testing.T) {
	tier.Full(t, "50 s; internal/controller plays it in virtual time")
	s := newIMDSScenario(t)
	s.mayReadTheLease()
	s.pod("kept", s.node.name, app("kept"), stopping(10*time.Second, 3*time.Second))
	s.budget("kept", "kept", 1)
	leader, pod := s.leader(), s.start("NAMESPACE="+s.name, "LEADER_ELECT_RESOURCE_NAME="+release.Name)
	s.send(s.body("rebalance-recommendation", s.node.instance))
	s.eventually("the leader tries", func() bool { return len(s.requests("kept")) > 0 })
	leader.kill()
	pulse, deadline := s.feel(), time.Now().Add(45*time.Second)
	s.metadata.InterruptSpot("terminate", deadline)
	s.eventually("the pod is gone", func() bool { return !s.podExists("kept") })
	pulse.before(s.gone("kept"), deadline, "gone")
	s.eventually("one drain is counted", func() bool { return pod.metric(drains) == 1 })
	s.leader()
	s.eventually("the next leader ends it", func() bool { return s.imdsState() == "drained" && len(s.aws.Messages(queueName)) == 0 })
}
