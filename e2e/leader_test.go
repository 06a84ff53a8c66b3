package e2e

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// stopsWithin is the grace that the chart gives a pod. The process needs half of it on a machine that does nothing else.
const stopsWithin = 20 * time.Second

func TestTheOtherReplicaFinishesWhatAKilledLeaderBegan(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
	s.pod("slow", nodes[0].name, stopping(time.Minute, 10*time.Second))
	s.pod("kept", nodes[0].name, app("kept"))
	s.pod("kept-too", nodes[1].name, app("kept"), stopping(5*time.Second, 0))
	s.budget("kept", "kept", 2)
	first := s.leader()
	taken := *s.lease().Spec.LeaseTransitions
	second := s.start()
	pulse := s.feel()
	action, scaleIn := s.transition(nodes[0], awssim.Terminating)
	warning := s.reserve(nodes[1])
	s.eventually("both drains are under way", func() bool {
		return len(s.requests("slow")) > 0 && len(s.requests("kept")) > 0 && len(s.requests("kept-too")) > 0
	})
	if by := s.receivers(); !slices.Equal(by, []string{first.key}) {
		say := pulse.judge
		if *s.lease().Spec.LeaseTransitions == taken { // the leader has kept its lease
			say = t.Errorf
		}
		say("replicas that receive: %v, want the leader alone, %s", by, first.key)
	}
	deadlines := []time.Time{s.intent(nodes[0]).Deadline(), s.intent(nodes[1]).Deadline()}

	first.kill()
	killed := time.Now()
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.eventually("the other replica finishes both drains", func() bool {
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

// The API server takes half a second for each answer, to both replicas. Nobody loses the lease by that alone.
func TestAKilledLeaderIsFollowedThoughTheAPIServerIsSlow(t *testing.T) {
	tier.Full(t, "45 s; internal/lease plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	slow := func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
			if c.Service != proxy.Kubernetes {
				return proxy.Fault{}
			}
			return proxy.Fault{Latency: 500 * time.Millisecond}
		}}
	}
	first := s.launchBehind(slow)
	first.awaitReady()
	first.awaitLead()
	second := s.launchBehind(slow)
	second.awaitReady()
	pulse, began, kept := s.feel(), time.Now(), true
	for kept && time.Since(began) < 20*time.Second {
		s.pause(100 * time.Millisecond)
		kept = first.leads()
	}
	if !kept {
		pulse.judge("the first replica has lost the lease")
		s.eventually("one of both leads", func() bool { // what follows holds for either
			if second.leads() {
				first = second
			}
			return first.leads()
		})
	}
	lasts := time.Duration(*s.lease().Spec.LeaseDurationSeconds) * time.Second
	pulse = s.feel()
	first.kill()
	killed := time.Now()
	message, _ := s.warn(nodes[0], 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	took := s.lease().Spec.AcquireTime.Sub(killed)
	report(t, "the lease was taken %s after the kill, with an API server that answers after 500 ms", took.Round(time.Millisecond))
	// Package lease has the arithmetic; a busy machine answers later.
	pulse.atMost(took, lasts+20*time.Second, "the takeover of the lease")
}

func TestALeaderThatIsStoppedInTheMiddleOf50DrainsLeavesThemToTheOtherWithoutAGap(t *testing.T) {
	tier.Full(t, "a minute and 50 nodes; TestTheOtherReplicaFinishes has two")
	s := newScenario(t)
	nodes := s.crowd(50, func(n node) []*corev1.Pod {
		return []*corev1.Pod{
			s.newPod("slow-"+n.name, n.name, stopping(time.Minute, 20*time.Second)),
			s.newPod("kept-"+n.name, n.name, app("kept"), stopping(5*time.Second, 0)),
		}
	})
	s.budget("kept", "kept", len(nodes))
	first := s.leader()
	received := make(chan time.Time, 1)
	s.launchBehind(firstReceive(received)).awaitReady()
	var messages []string
	for _, n := range nodes {
		message, _ := s.warn(n, 2*time.Minute)
		messages = append(messages, message)
	}
	s.eventually("all drains are under way", func() bool { return len(s.askedSince(time.Time{})) == 2*len(nodes) })
	pulse, stopped := s.feel(), time.Now()
	if status := first.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
	exited := time.Now()
	pulse.atMost(exited.Sub(stopped), stopsWithin, "the stop")
	s.eventually("the other replica goes on with all drains", func() bool { return len(s.askedSince(stopped)) >= len(nodes) })
	pulse.atMost(time.Since(exited), stopsWithin, "the takeover of all drains")
	t.Logf("stopped in %s, the other received after %s", exited.Sub(stopped).Round(time.Millisecond), (<-received).Sub(stopped).Round(time.Millisecond))
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.awaitDeleted(soon, messages...)
	for k, n := range nodes {
		s.drainedBefore(messages[k], n)
		s.askedOnce("slow-"+n.name, "kept-"+n.name)
	}
}

func TestBothReplicasMayBeAwayForAMinute(t *testing.T) {
	tier.Full(t, "two minutes; TestARestartGoesOn has a short one")
	s := newScenario(t)
	nodes := s.nodes(3)
	s.hook(awssim.Terminating, 3*time.Minute, nodes[0])
	s.pod("slow", nodes[0].name, stopping(time.Minute, 20*time.Second))
	s.pod("kept", nodes[1].name, app("kept"), stopping(30*time.Second, time.Second))
	s.pod("plain", nodes[2].name)
	s.budget("kept", "kept", 1)
	const args = "--heartbeat-interval=60"
	replicas := []*handler{s.leader(args), s.start(args)}
	pulse := s.feel()
	action, scaleIn := s.transition(nodes[0], awssim.Terminating)
	early, deadline := s.warn(nodes[1], 2*time.Minute)
	s.eventually("both drains are under way", func() bool { return len(s.requests("slow")) > 0 && len(s.requests("kept")) > 0 })
	before := []time.Time{s.intent(nodes[0]).Deadline(), s.intent(nodes[1]).Deadline()}
	for _, h := range replicas {
		h.kill()
	}
	late, _ := s.warn(nodes[2], 2*time.Minute)
	s.throughout(time.Minute, "nobody acts", func() bool { return !s.cordoned(nodes[2].name) && s.podExists("kept") })

	s.start(args)
	s.start(args)
	s.awaitDeleted(soon, scaleIn, early, late)
	for message, pod := range map[string]string{scaleIn: "slow", early: "kept", late: "plain"} {
		if gone, deleted := s.gone(pod), s.deleted(message); gone.After(deleted) {
			t.Errorf("pod %s was gone at %s, after its message was deleted at %s", pod, gone, deleted)
		}
	}
	s.acceptedOnce(action)
	for k, was := range before {
		if now := s.intent(nodes[k]).Deadline(); !now.Equal(was) {
			t.Errorf("the deadline of node %s was %s and is %s", nodes[k].name, was, now)
		}
	}
	s.askedOnce("slow", "kept", "plain")
	pulse.before(s.gone("kept"), deadline, "gone")
}

func TestALeaderThatIsCutOffFromTheAPIServerStopsBeforeItsLeaseCanBeTaken(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
	s.pod("slow", nodes[0].name, stopping(time.Minute, 25*time.Second))
	s.pod("kept", nodes[1].name, app("kept"), stopping(5*time.Second, 0))
	s.budget("kept", "kept", 1)
	const args = "--heartbeat-interval=30"
	late := make(chan string, 1000) // writes that reach the API server after the lease was taken
	var taken atomic.Bool
	first := s.launchBehind(func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
			// It may stand for election, and tell what it did before.
			harmless := c.Action == "get" || c.Action == "list" || c.Action == "watch" || c.Resource == "leases" || c.Resource == "events"
			if taken.Load() && c.Service == proxy.Kubernetes && !harmless {
				late <- c.String()
			}
			return proxy.Fault{}
		}}
	}, args)
	first.awaitReady()
	first.awaitLead()
	second := s.start(args)
	action, scaleIn := s.transition(nodes[0], awssim.Terminating)
	warning, _ := s.warn(nodes[1], 2*time.Minute)
	s.eventually("both drains are under way", func() bool { return len(s.requests("slow")) > 0 && len(s.requests("kept")) > 0 })

	first.api.Sever()
	s.eventually("the other replica leads", second.leads)
	taken.Store(true)
	lease := s.lease()
	first.api.Mend()
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.awaitDeleted(soon, scaleIn, warning)
	s.eventually("the first replica stands by", func() bool { return strings.Contains(first.body(first.probes, "/readyz"), "standing by") })
	s.drainedBefore(scaleIn, nodes[0])
	s.drainedBefore(warning, nodes[1])
	s.acceptedOnce(action)
	s.askedOnce("slow", "kept")
	for _, c := range s.aws.Calls() {
		if c.AccessKeyID == first.key && c.Start.After(lease.Spec.AcquireTime.Time) {
			t.Errorf("%s %s by the first replica %s after the other has taken the lease", c.Service, c.Action, c.Start.Sub(lease.Spec.AcquireTime.Time))
		}
	}
	close(late)
	for call := range late {
		t.Errorf("%s by the first replica after the other has taken the lease", call)
	}
}

func TestALeaderThatIsCutOffFromSQSFinishesItsDrainsAndTheOtherTheirMessages(t *testing.T) {
	tier.Full(t, "45 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(3)
	s.hook(awssim.Terminating, 10*time.Minute, nodes[0])
	s.pod("slow", nodes[0].name, stopping(time.Minute, 8*time.Second))
	s.pod("quick", nodes[1].name, stopping(time.Minute, 5*time.Second))
	s.pod("plain", nodes[2].name)
	var cut atomic.Bool
	first := s.launchBehind(func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
			return proxy.Fault{Hang: cut.Load() && c.Service == "sqs"}
		}}
	})
	first.awaitReady()
	first.awaitLead()
	second := s.start()
	pulse := s.feel()
	action, scaleIn := s.transition(nodes[0], awssim.Terminating)
	warning, _ := s.warn(nodes[1], 2*time.Minute)
	s.eventually("both drains are under way", func() bool { return len(s.requests("slow")) > 0 && len(s.requests("quick")) > 0 })
	cut.Store(true)
	late, _ := s.warn(nodes[2], 2*time.Minute)
	s.eventually("both drains are finished", func() bool {
		return s.state(nodes[0]) == cluster.StateDrained && s.state(nodes[1]) == cluster.StateDrained
	})
	if s.isDeleted(scaleIn) || s.isDeleted(warning) {
		t.Error("the first replica is not cut off")
	}
	if second.leads() {
		pulse.judge("the first replica has given up the lease")
	}

	pulse = s.feel()
	stopped := time.Now() // by the kubelet, 90 s after the last receive
	if status := first.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
	pulse.atMost(time.Since(stopped), stopsWithin, "the stop")
	s.awaitDeleted(soon, scaleIn, warning, late)
	for k, message := range []string{scaleIn, warning, late} {
		s.drainedBefore(message, nodes[k])
		if by := s.deleter(message); by != second.key {
			t.Errorf("message %d was deleted by %s, want the other replica, %s", k, by, second.key)
		}
	}
	s.acceptedOnce(action)
	s.askedOnce("slow", "quick", "plain")
}

func TestANewVersionRollsOutUnderLoad(t *testing.T) {
	tier.Full(t, "a minute and 16 nodes under load")
	s := newScenario(t)
	const each = 4
	nodes := s.crowd(4*each, func(n node) []*corev1.Pod {
		return []*corev1.Pod{s.newPod("slow-"+n.name, n.name, stopping(time.Minute, 5*time.Second))}
	})
	var messages []string
	sent := map[string]time.Time{}
	more := func() {
		for _, n := range nodes[len(messages):][:each] {
			message, _ := s.warn(n, 2*time.Minute)
			messages, sent[n.name] = append(messages, message), time.Now()
		}
	}
	old, pulse := []*handler{s.leader(), s.start()}, s.feel()
	more()
	for _, replaced := range old { // as a Deployment does that surges: a new one is ready before an old one is stopped
		s.start()
		more()
		if status := replaced.stop(); status != 0 {
			t.Errorf("exit status %d, want 0", status)
		}
	}
	more()
	s.awaitDeleted(soon, messages...)
	var slowest time.Duration
	stopped := s.stopped()
	for k, n := range nodes {
		if pod := "slow-" + n.name; stopped[pod].IsZero() || stopped[pod].After(s.deleted(messages[k])) {
			t.Errorf("pod %s stopped at %s, its node's message was deleted at %s", pod, stopped[pod], s.deleted(messages[k]))
		}
		s.askedOnce("slow-" + n.name)
		cordoned := s.audit(func(e sandbox.AuditEvent) bool {
			return e.Resource == "nodes" && e.Name == n.name && e.Verb == "patch" && e.Code < 300
		})
		slowest = max(slowest, cordoned[0].Received.Sub(sent[n.name]))
	}
	t.Logf("the last node was cordoned %s after its notice", slowest.Round(time.Millisecond))
	// A second on a machine that has nothing else to do; 20 is the visibility of what is lost on the way.
	pulse.atMost(slowest, 15*time.Second, "the cordon of a node")
}

// It has the machine for itself, which 500 nodes need, and so is not for each run.
func TestTheNextLeaderResumes500NodesInUnderFiveSeconds(t *testing.T) {
	if !*everyCall {
		t.Skip("only with -chaos")
	}
	s := newScenarioIn(t, shared)
	nodes := s.crowd(500, func(n node) []*corev1.Pod {
		return []*corev1.Pod{s.newPod("kept-"+n.name, n.name, app("kept"))}
	})
	s.budget("kept", "kept", len(nodes))
	first := s.leader()
	received := make(chan time.Time, 1)
	s.launchBehind(firstReceive(received)).awaitReady()
	for _, n := range nodes {
		s.warn(n, 2*time.Minute)
	}
	s.eventually("all drains are under way", func() bool { return len(s.askedSince(time.Time{})) == len(nodes) })
	asked := time.Now()
	shown := first.overview()
	report(t, "the status of %d nodes, %d of which wait for a budget, came after %s",
		len(shown.Nodes), waitFor(shown, overview.Budget), time.Since(asked).Round(time.Millisecond))
	if len(shown.Nodes) != len(nodes) || waitFor(shown, overview.Budget) < len(nodes)*9/10 { // the others try again just now
		t.Errorf("%d nodes, %d wait for a budget", len(shown.Nodes), waitFor(shown, overview.Budget))
	}
	asked = time.Now()
	status, html := first.fetch(first.metrics, "/")
	lanes := strings.Count(html, `<svg class="lane"`)
	report(t, "the page of %d nodes has %d bytes and came after %s", lanes, len(html), time.Since(asked).Round(time.Millisecond))
	if status != http.StatusOK || lanes != len(nodes) || len(html) > 1<<20 {
		t.Errorf("the page: status %d, %d lanes, %d bytes", status, lanes, len(html))
	}
	before := s.deadlines()
	pulse, killed := s.feel(), time.Now()
	first.kill()
	s.eventually("the other replica goes on with all drains", func() bool { return len(s.askedSince(killed)) == len(nodes) })
	lease := s.lease()
	var slowest time.Duration
	for _, at := range s.askedSince(killed) {
		slowest = max(slowest, at.Sub(lease.Spec.AcquireTime.Time))
	}
	report(t, "the lease was taken %s after the kill, all %d drains went on %s later",
		lease.Spec.AcquireTime.Sub(killed).Round(time.Millisecond), len(nodes), slowest.Round(time.Millisecond))
	pulse.atMost(slowest, 5*time.Second, "from the lease to the last drain it")
	if diff := cmp.Diff(before, s.deadlines()); diff != "" {
		t.Errorf("deadlines (-before +after):\n%s", diff)
	}
}

func TestASingleReplicaNeedsNoLease(t *testing.T) {
	tier.Full(t, "an option")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("plain", n.name)
	h := s.alone()
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
	first := s.alone("--node-termination-grace-period=5")
	message := s.send(s.body("rebalance-recommendation", n.instance))
	s.awaitDeleted(soon, message)
	first.kill()
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))

	s.alone("--node-termination-grace-period=5")
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
	first.stopWith("nth-a")
	second := s.start("--pod-name=nth-b")
	message, _ := s.warn(nodes[0], 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	s.untouched(nodes[1], 1)

	s.askedOnce("quick", "slow", "dns", "nth-a")
	own := s.requests("nth-a")
	if len(own) == 0 {
		t.Fatal("nobody has evicted the leader's own pod")
	}
	for _, pod := range []string{"quick", "slow", "dns"} {
		if gone := s.gone(pod); !own[0].at.After(gone) {
			t.Errorf("the leader's own pod was evicted %s before pod %s was gone", gone.Sub(own[0].at), pod)
		}
	}
	if by := s.deleter(message); by != second.key {
		t.Errorf("the message was deleted by %s, want the other replica, %s", by, second.key)
	}
	<-first.exited
	if status := first.cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
}

func TestALeaderWhoseNodeABudgetKeepsFromBeingEmptyGivesWayInTime(t *testing.T) {
	tier.Full(t, "45 s; internal/drain plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("nth-a", nodes[0].name, stopping(5*time.Second, 0))
	s.pod("nth-b", nodes[1].name)
	s.pod("kept", nodes[0].name, app("kept"), stopping(3*time.Second, time.Second))
	s.budget("kept", "kept", 1)
	s.leader("--pod-name=nth-a").stopWith("nth-a")
	second := s.start("--pod-name=nth-b")
	pulse := s.feel()
	message, deadline := s.warn(nodes[0], 35*time.Second)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	s.askedOnce("kept", "nth-a")
	own, kept := s.requests("nth-a"), s.requests("kept")
	if len(own) == 0 || len(kept) == 0 {
		t.Fatalf("requests for the leader's own pod: %v, for the other: %v; want some", own, kept)
	}
	forced := kept[len(kept)-1]
	if forced.evicts || !own[0].evicts {
		t.Errorf("the leader's own pod: %v, the other: %v; want the own one evicted, the other deleted", own, kept)
	}
	if own[0].at.After(forced.at) || forced.grace != 3 {
		pulse.judge("the leader's own pod: %v, the other: %v; want the own one evicted, then the other deleted with its full grace", own, kept)
	}
	pulse.before(s.gone("kept"), deadline, "gone")
	if by := s.deleter(message); by != second.key {
		t.Errorf("the message was deleted by %s, want the other replica, %s", by, second.key)
	}
}

// intent is what the node carries.
func (s *scenario) intent(n node) intent.Intent {
	s.Helper()
	i, _, err := cluster.ReadIntent(s.getNode(n.name))
	s.must(err)
	return i
}

// deadlines are those that the scenario's nodes carry, by name.
func (s *scenario) deadlines() map[string]time.Time {
	s.Helper()
	list, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: "scenario=" + s.name})
	s.must(err)
	deadlines := map[string]time.Time{}
	for k := range list.Items {
		i, _, err := cluster.ReadIntent(&list.Items[k])
		s.must(err)
		deadlines[list.Items[k].Name] = i.Deadline()
	}
	return deadlines
}

// askedSince are the pods that were asked to leave after a moment, whatever the
// answer, and when they were first.
func (s *scenario) askedSince(moment time.Time) map[string]time.Time {
	s.Helper()
	asked := map[string]time.Time{}
	for _, e := range s.audit(func(e sandbox.AuditEvent) bool {
		return e.Received.After(moment) && e.Resource == "pods" && (e.Subresource == "eviction" || e.Verb == "delete")
	}) {
		if at, ok := asked[e.Name]; !ok || e.Received.Before(at) {
			asked[e.Name] = e.Received
		}
	}
	return asked
}

// askedOnce checks that each pod was made to stop by one request. That of a handler that was stopped meanwhile may have
// been carried out, although it had no answer.
func (s *scenario) askedOnce(pods ...string) {
	s.Helper()
	for _, pod := range pods {
		all := s.requests(pod)
		accepted := slices.DeleteFunc(slices.Clone(all), func(r request) bool { return !r.accepted() })
		cutOff := slices.ContainsFunc(all, func(r request) bool { return r.code >= http.StatusInternalServerError })
		if len(accepted) > 1 || len(accepted) == 0 && !cutOff {
			s.Errorf("requests for pod %s: %v, want one that is accepted", pod, all)
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
