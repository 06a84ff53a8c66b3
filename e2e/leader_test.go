package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// failover is how long a follower may take for all that a killed leader leaves: the lease runs 15 s.
const failover = 30 * time.Second

func TestTheOtherReplicaFinishesWhatAKilledLeaderBegan(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
	s.pod("slow", nodes[0].name, stopping(time.Minute, 10*time.Second))
	s.pod("kept", nodes[0].name, app("kept"))
	s.pod("kept-too", nodes[1].name, app("kept"), stopping(5*time.Second, 0))
	s.budget("kept", "kept", 2)
	first := s.leader()
	second := s.start()
	action, scaleIn := s.transition(nodes[0], awssim.Terminating)
	warning, _ := s.warn(nodes[1], 2*time.Minute)
	s.eventually("both drains are under way", func() bool {
		return len(s.requests("slow")) > 0 && len(s.requests("kept")) > 0 && len(s.requests("kept-too")) > 0
	})
	if by := s.receivers(); !slices.Equal(by, []string{first.key}) {
		t.Errorf("replicas that receive: %v, want the leader alone, %s", by, first.key)
	}
	deadlines := []time.Time{s.intent(nodes[0]).Deadline(), s.intent(nodes[1]).Deadline()}

	first.kill()
	killed := time.Now()
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.within(failover, "the other replica finishes both drains", func() bool {
		return s.state(nodes[0]) == cluster.StateDrained && s.state(nodes[1]) == cluster.StateDrained
	})
	t.Logf("finished %s after the kill", time.Since(killed).Round(time.Millisecond))
	s.awaitDeleted(soon, scaleIn, warning)
	for k, n := range nodes {
		s.drainedBefore(scaleIn, n)
		if now := s.intent(n).Deadline(); !now.Equal(deadlines[k]) {
			t.Errorf("the deadline of node %s was %s and is %s", n.name, deadlines[k], now)
		}
	}
	s.completedOnce(action)
	s.askedOnce("slow", "kept", "kept-too")
	if by := s.receivers(); !slices.Equal(by, sorted(first.key, second.key)) {
		t.Errorf("replicas that have received: %v, want both", by)
	}
}

func TestALeaderThatIsStoppedLeavesItsDrainsToTheOtherWithoutAGap(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	for _, n := range nodes {
		s.pod("slow-"+n.name, n.name, stopping(time.Minute, 20*time.Second))
		s.pod("kept-"+n.name, n.name, app("kept"), stopping(5*time.Second, 0))
	}
	s.budget("kept", "kept", 3)
	first := s.leader()
	s.start()
	var messages []string
	for _, n := range nodes {
		message, _ := s.warn(n, 2*time.Minute)
		messages = append(messages, message)
	}
	s.eventually("all drains are under way", func() bool {
		return !slices.ContainsFunc(nodes, func(n node) bool {
			return len(s.requests("slow-"+n.name)) == 0 || len(s.requests("kept-"+n.name)) == 0
		})
	})
	stopped := time.Now()
	if status := first.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
	if took := time.Since(stopped); took > 10*time.Second {
		t.Errorf("it took %s to stop, want 10 s at most", took)
	}
	exited := time.Now()
	s.within(10*time.Second, "the other replica goes on with all drains", func() bool {
		return !slices.ContainsFunc(nodes, func(n node) bool {
			requests := s.requests("kept-" + n.name)
			return !requests[len(requests)-1].at.After(exited)
		})
	})
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.awaitDeleted(soon, messages...)
	for k, n := range nodes {
		s.drainedBefore(messages[k], n)
		s.askedOnce("slow-"+n.name, "kept-"+n.name)
	}
}

func TestASingleReplicaNeedsNoLease(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("plain", n.name)
	h := s.leader("--leader-elect=false")
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	leases, err := s.kube.CoordinationV1().Leases(s.name).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	if len(leases.Items) > 0 {
		t.Errorf("%d leases, want none", len(leases.Items))
	}
	if status := h.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
}

func TestARestartGoesOnWithWhatTheNodesCarryWithoutTheirMessages(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("kept", n.name, app("kept"))
	s.budget("kept", "kept", 1)
	first := s.leader("--leader-elect=false", "--node-termination-grace-period=5")
	message := s.send(s.body("rebalance-recommendation", n.instance))
	s.awaitDeleted(soon, message)
	first.kill()
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))

	s.leader("--leader-elect=false", "--node-termination-grace-period=5")
	s.eventually("the node is drained", func() bool { return s.state(n) == cluster.StateDrained })
	s.askedOnce("kept")
	if s.podExists("kept") {
		t.Error("the pod is still there")
	}
}

func TestTheLeadersOwnPodGoesLastAndTheOtherReplicaFinishesItsNode(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	critical := func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }
	s.pod("nth-a", nodes[0].name, critical)
	s.pod("nth-b", nodes[1].name, critical)
	s.pod("quick", nodes[0].name)
	s.pod("slow", nodes[0].name, stopping(time.Minute, 8*time.Second))
	s.pod("dns", nodes[0].name, critical)
	first := s.leader("--pod-name=nth-a")
	second := s.start("--pod-name=nth-b")
	message, _ := s.warn(nodes[0], 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	s.untouched(nodes[1], 1)

	own := s.requests("nth-a")
	if len(own) == 0 {
		t.Fatal("nobody has evicted the leader's own pod")
	}
	for _, pod := range []string{"quick", "slow", "dns"} {
		if gone := s.gone(pod); !own[0].at.After(gone) {
			t.Errorf("the leader's own pod was evicted %s before pod %s was gone", gone.Sub(own[0].at), pod)
		}
	}
	s.askedOnce("quick", "slow", "dns", "nth-a")
	if by := s.deleter(message); by != second.key {
		t.Errorf("the message was deleted by %s, want the other replica, %s", by, second.key)
	}
	if status := first.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
}

func TestALeaderWhoseNodeABudgetKeepsFromBeingEmptyGivesWayInTime(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("nth-a", nodes[0].name, stopping(5*time.Second, 0))
	s.pod("nth-b", nodes[1].name)
	s.pod("kept", nodes[0].name, app("kept"), stopping(3*time.Second, time.Second))
	s.budget("kept", "kept", 1)
	s.leader("--pod-name=nth-a")
	second := s.start("--pod-name=nth-b")
	message, deadline := s.warn(nodes[0], 35*time.Second)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	s.askedOnce("nth-a", "kept")
	own, kept := s.requests("nth-a"), s.requests("kept")
	forced := kept[len(kept)-1]
	if own[len(own)-1].at.After(forced.at) || forced.evicts || forced.grace != 3 {
		t.Errorf("the leader's own pod: %v, the other: %v; want the own one evicted, then the other deleted with its full grace", own, kept)
	}
	if gone := s.gone("kept"); !gone.Before(deadline) {
		t.Errorf("gone %s after the deadline", gone.Sub(deadline))
	}
	if by := s.deleter(message); by != second.key {
		t.Errorf("the message was deleted by %s, want the other replica, %s", by, second.key)
	}
}

// intent is what the node carries.
func (s *scenario) intent(n node) cluster.Intent {
	s.Helper()
	i, _, err := cluster.ReadIntent(s.getNode(n.name))
	s.must(err)
	return i
}

// askedOnce checks that each pod was made to stop by one request.
func (s *scenario) askedOnce(pods ...string) {
	s.Helper()
	for _, pod := range pods {
		accepted := slices.DeleteFunc(s.requests(pod), func(r request) bool { return !r.accepted() })
		if len(accepted) != 1 {
			s.Errorf("accepted requests for pod %s: %v, want one", pod, accepted)
		}
	}
}

// receivers are the access keys of the replicas that have received from the queue.
func (s *scenario) receivers() []string {
	keys := map[string]bool{}
	for _, c := range s.aws.Calls() {
		if c.Action == "ReceiveMessage" {
			keys[c.AccessKeyID] = true
		}
	}
	return slices.Sorted(maps.Keys(keys))
}

// deleter is the access key of the replica that deleted a message.
func (s *scenario) deleter(message string) string {
	for _, c := range s.aws.Calls() {
		if c.Action == "DeleteMessageBatch" && slices.Contains(c.Params["message"], message) {
			return c.AccessKeyID
		}
	}
	return ""
}

func sorted(keys ...string) []string { return slices.Sorted(slices.Values(keys)) }
