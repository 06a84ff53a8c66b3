package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// Nodes of other scenarios count too: they can only hold the drain back as well.
func TestADrainThatCanWaitIsHeldBackWhileANodeIsOutOfUseAndASpotInterruptionIsNot(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	out, held, warned := nodes[0], nodes[1], nodes[2]
	s.pod("kept", held.name)
	s.pod("app", warned.name)
	s.patchNode(out.name, map[string]any{"spec": map[string]any{"unschedulable": true}})
	h := s.alone("--max-unready-nodes=1", "--node-termination-grace-period=5")
	s.awaitDeleted(soon, s.send(s.body("rebalance-recommendation", held.instance)))
	h.awaitWait(held, overview.MaxUnready, "max-unready-nodes is 1")
	urgent := s.send(s.body("spot-interruption", warned.instance))
	s.awaitDeleted(soon, urgent)
	s.drainedBefore(urgent, warned)
	if s.state(held) != cluster.StateWaiting || s.cordoned(held.name) || len(s.requests("kept")) > 0 {
		t.Errorf("node %s is in the state %q, cordoned: %t; the pod was asked to leave %d times",
			held.name, s.state(held), s.cordoned(held.name), len(s.requests("kept")))
	}
}

// In a cluster of its own: all its nodes count.
func TestDrainsThatCanWaitAreHeldBackWhileTooManyNodesAreOutOfUse(t *testing.T) {
	tier.Full(t, "70 s and a control plane of its own; the one above is short, and internal/controller plays it in virtual time")
	t.Parallel()
	own, err := sandbox.Start(t.Context(), sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := newScenarioIn(t, own)
	nodes := s.nodes(5)
	s.deployment("web", 5)
	h := s.alone("--max-unready-nodes=2", "--node-termination-grace-period=5")
	const gauge = "node_termination_handler_drains_held_back"
	recommend := func(n node) string { return s.send(s.body("rebalance-recommendation", n.instance)) }
	s.awaitDeleted(soon, recommend(nodes[0]), recommend(nodes[1]))
	for _, n := range nodes[:2] { // their messages were not held to the end
		s.eventually("a node is drained", func() bool { return s.state(n) == cluster.StateDrained })
		s.finished(n.name)
	}

	// Two are out of use: the third keeps its pods, and its message is not needed.
	pods := s.placement()
	held := nodes[2]
	s.awaitDeleted(soon, recommend(held))
	s.eventually("the drain is held back", func() bool {
		return s.state(held) == cluster.StateWaiting && h.metric(gauge) == 1 &&
			strings.Contains(h.body(h.probes, "/readyz"), "drains held back: 1, because 2 of 5 nodes are not ready, cordoned or about to be; max-unready-nodes is 2")
	})
	h.awaitWait(held, overview.MaxUnready, "2 of 5 nodes are not ready")
	s.eventually("an Event tells of it", func() bool {
		return slices.Contains(reasons(s.told("default", "Node", held.name)), "DrainHeldBack")
	})
	if told := reasons(s.told("default", "Node", held.name)); slices.Contains(told, "Cordon") {
		t.Errorf("Events %v, and the node is not cordoned", told)
	}

	// What is urgent goes by.
	urgent := s.send(s.body("spot-interruption", nodes[3].instance))
	s.awaitDeleted(soon, urgent)
	s.drainedBefore(urgent, nodes[3])
	s.throughout(3*time.Second, "nothing happens to the node", func() bool { return !s.cordoned(held.name) })
	for uid, p := range pods {
		if p.Spec.NodeName == held.name && !s.lives(uid, p) {
			t.Errorf("pod %s was stopped", p.Name)
		}
	}

	// Machines that were drained go away: now it is the turn of the third.
	for _, n := range nodes[:2] {
		s.must(s.kube.CoreV1().Nodes().Delete(s.ctx, n.name, metav1.DeleteOptions{}))
	}
	s.eventually("the node is drained", func() bool { return s.state(held) == cluster.StateDrained })
	if !s.cordoned(held.name) {
		t.Error("the node is not cordoned")
	}
	if on := s.podsOn(held.name); len(on) > 0 {
		t.Errorf("%d pods are on it", len(on))
	}
	s.eventually("nothing is held back any more", func() bool {
		return h.metric(gauge) == 0 && h.body(h.probes, "/readyz") == "ok: leading\n"
	})

	// A kubelet that is away confirms the end of no pod.
	s.pod("dead", nodes[4].name, stopping(time.Second, time.Second))
	s.must(own.KWOK.Pause())
	s.warn(nodes[4], 2*time.Minute)
	h.awaitWait(nodes[4], overview.Kubelet, "its kubelet has not confirmed it")
}
