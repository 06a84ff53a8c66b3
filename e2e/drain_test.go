package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// margin is how long before the last moment a pod is forced; see package drain.
const margin = 5 * time.Second

func TestABudgetThatAllowsNothingKeepsAPodUntilItsGraceHasToBegin(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	const grace = 10 * time.Second
	s.pod("kept", n.name, app("kept"), stopping(grace, 3*time.Second))
	s.budget("kept", "kept", 1)
	s.alone()
	pulse := s.feel()
	message, deadline := s.warn(n, 35*time.Second)
	s.awaitDeleted(soon, message)

	forced := pulse.forced("kept", http.StatusTooManyRequests, 1, 20)
	if forced.grace != seconds(grace) {
		pulse.judge("the deletion is %v, want a grace of %s", forced, grace)
	}
	if earliest := deadline.Add(-grace - margin); forced.at.Before(earliest) {
		t.Errorf("forced %s too early", earliest.Sub(forced.at))
	}
	gone := s.gone("kept")
	pulse.before(gone, deadline, "gone")
	if gone.Before(deadline) && !s.deleted(message).After(gone) {
		t.Error("the message was deleted before the pod was gone")
	}
}

func TestAGraceLongerThanTheNoticeIsCutToWhatIsLeftOfIt(t *testing.T) {
	tier.Full(t, "the deadline is judged by seconds; internal/drain has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("free", n.name, stopping(10*time.Minute, 4*time.Second))
	s.pod("kept", n.name, app("kept"), stopping(10*time.Minute, 4*time.Second))
	s.budget("kept", "kept", 1)
	s.alone()
	pulse := s.feel()
	message, deadline := s.warn(n, 30*time.Second)
	s.awaitDeleted(soon, message)

	free := s.requests("free")
	if len(free) != 1 || !free[0].evicts || !free[0].accepted() {
		t.Fatalf("requests for the free pod: %v, want one accepted eviction", free)
	}
	pulse.cut(free[0], deadline)
	// Half of the notice is the budget's.
	forced := pulse.forced("kept", http.StatusTooManyRequests, 2, 20)
	if earliest := deadline.Add(-18 * time.Second); forced.at.Before(earliest) {
		t.Errorf("forced %s too early", earliest.Sub(forced.at))
	}
	pulse.cut(forced, deadline)
	for _, pod := range []string{"free", "kept"} {
		pulse.before(s.gone(pod), deadline, "%s was gone", pod)
	}
}

func TestTwoBudgetsOnOnePodAreNotHammeredAndTheDeadlineHolds(t *testing.T) {
	tier.Full(t, "40 s; internal/drain plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	const grace = 10 * time.Second
	s.pod("kept", n.name, app("kept"), stopping(grace, 3*time.Second))
	s.budget("one", "kept", 0)
	s.budget("two", "kept", 0)
	s.alone()
	pulse := s.feel()
	message, deadline := s.warn(n, 35*time.Second)
	s.awaitDeleted(soon, message)

	forced := pulse.forced("kept", http.StatusInternalServerError, 1, 3)
	if forced.grace != seconds(grace) {
		pulse.judge("the deletion is %v, want a grace of %s", forced, grace)
	}
	if earliest := deadline.Add(-grace - margin); forced.at.Before(earliest) {
		t.Errorf("forced %s too early", earliest.Sub(forced.at))
	}
	pulse.before(s.gone("kept"), deadline, "gone")
}

func TestATighterDeadlineShortensAGraceThatIsUnderWay(t *testing.T) {
	tier.Full(t, "the deadline is judged by seconds; internal/drain has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("slow", n.name, stopping(10*time.Minute, 9*time.Minute))
	s.alone()
	rebalance := s.send(s.body("rebalance-recommendation", n.instance))
	s.eventually("the pod is evicted", func() bool { return len(s.evictions()) == 1 })
	pulse := s.feel()
	warning, deadline := s.warn(n, 20*time.Second)
	s.awaitDeleted(soon, rebalance, warning)

	requests := s.requests("slow")
	if len(requests) != 2 || !requests[0].evicts || requests[0].grace != ownGrace || requests[1].evicts || !requests[1].accepted() {
		t.Fatalf("requests: %v, want an eviction with the pod's own grace and a deletion", requests)
	}
	pulse.cut(requests[1], deadline)
	// It has its SIGTERM, and uses the time: all that is left is the SIGKILL.
	if earliest := deadline.Add(-margin); requests[1].at.Before(earliest) {
		t.Errorf("cut %s too early", earliest.Sub(requests[1].at))
	}
	pulse.before(s.gone("slow"), deadline, "gone")
}

func TestARebalanceRecommendationForcesNothing(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("kept", n.name, app("kept"), stopping(5*time.Second, 0))
	s.budget("kept", "kept", 1)
	s.alone("--node-termination-grace-period=10")
	sent := time.Now()
	message := s.send(s.body("rebalance-recommendation", n.instance))
	s.awaitDeleted(soon, message)
	if after := s.deleted(message).Sub(sent); after < 10*time.Second {
		t.Errorf("the message was deleted after %s, within the grace period of the node", after)
	}
	s.throughout(5*time.Second, "the node stays cordoned and the pod on it", func() bool {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "kept", metav1.GetOptions{})
		return err == nil && p.DeletionTimestamp == nil && s.cordoned(n.name) && s.state(n) == cluster.StateDraining
	})

	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	s.eventually("the node is drained", func() bool { return s.state(n) == cluster.StateDrained })
	requests := s.requests("kept")
	if slices.ContainsFunc(requests, func(r request) bool { return !r.evicts }) || !requests[len(requests)-1].accepted() {
		t.Errorf("requests: %v, want evictions, the last accepted", requests)
	}
	if s.podExists("kept") {
		t.Error("the pod is still there")
	}
}

func TestAStoppingInstanceWaitsForNoBudget(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("kept", n.name, app("kept"), stopping(7*time.Second, 2*time.Second))
	s.budget("kept", "kept", 1)
	s.alone()
	message := s.send(s.body("state-change-stopping", n.instance))
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	requests := s.requests("kept")
	if len(requests) != 1 || requests[0].evicts || !requests[0].accepted() || requests[0].grace != 7 {
		t.Errorf("requests: %v, want one deletion with the pod's own grace of 7 s", requests)
	}
}

func TestPodsOfDaemonSetsAndMirrorPodsStayAndAreNotWaitedFor(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	agent := s.daemonSet("agent")[0]
	s.mirrorPod("static", n)
	s.pod("unmanaged", n.name)
	s.pod("scratch", n.name, emptyDir)
	s.alone()
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	if got, want := s.namesOn(n), []string{agent, "static"}; !slices.Equal(got, want) {
		t.Errorf("pods on the node: %v, want %v", got, want)
	}
	for _, pod := range []string{agent, "static"} {
		if requests := s.requests(pod); len(requests) > 0 {
			t.Errorf("requests for pod %s: %v, want none", pod, requests)
		}
	}
}

func TestPodsWithAnEmptyDirStayWhereLocalDataIsNotToBeDeleted(t *testing.T) {
	tier.Full(t, "internal/drain has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("scratch", n.name, emptyDir)
	s.pod("plain", n.name)
	s.alone("--delete-local-data=false")
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	if got, want := s.namesOn(n), []string{"scratch"}; !slices.Equal(got, want) {
		t.Errorf("pods on the node: %v, want %v", got, want)
	}
	if requests := s.requests("scratch"); len(requests) > 0 {
		t.Errorf("requests for the pod that stays: %v, want none", requests)
	}
}

func TestPodsOfDaemonSetsThatAreNotIgnoredKeepNoOtherPodOnTheNode(t *testing.T) {
	tier.Full(t, "internal/drain has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	agent := s.daemonSet("agent")[0]
	s.pod("plain", n.name)
	s.alone("--ignore-daemon-sets=false")
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	if got, want := s.namesOn(n), []string{agent}; !slices.Equal(got, want) {
		t.Errorf("pods on the node: %v, want %v", got, want)
	}
}

func TestTheOptionReplacesThePodsOwnGrace(t *testing.T) {
	tier.Full(t, "internal/drain has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("plain", n.name, stopping(time.Minute, time.Minute))
	s.alone("--pod-termination-grace-period=4")
	pulse := s.feel()
	message, deadline := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	if requests := s.requests("plain"); len(requests) != 1 || !requests[0].evicts || requests[0].grace != 4 {
		t.Errorf("requests: %v, want one eviction with a grace of 4 s", requests)
	}
	pulse.before(s.gone("plain"), deadline, "gone")
}

func TestSystemCriticalPodsGoLast(t *testing.T) {
	tier.Full(t, "internal/drain plays the turns in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("critical", n.name, func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" })
	s.pod("quick", n.name)
	s.pod("slow", n.name, stopping(20*time.Second, 5*time.Second))
	s.alone()
	message, _ := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	critical := s.requests("critical")
	if len(critical) != 1 {
		t.Fatalf("requests for the critical pod: %v, want one", critical)
	}
	for _, pod := range []string{"quick", "slow"} {
		if gone := s.gone(pod); !critical[0].at.After(gone) {
			t.Errorf("the critical pod was evicted %s before pod %s was gone", gone.Sub(critical[0].at), pod)
		}
	}
}

func TestAPodThatWasBoundBehindTheCordonIsEvictedToo(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.alone()
	pulse := s.feel()
	message, _ := s.warn(n, 2*time.Minute)
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	// The node is empty: only the second look, 5 s after the cordon, keeps it from being finished.
	s.pause(time.Second)
	_, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec:       corev1.PodSpec{NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.awaitDeleted(soon, message)
	requests := s.requests("late")
	if len(requests) == 0 {
		pulse.judge("the late pod was not asked to leave")
		return
	}
	s.drainedBefore(message, n)
	// An eviction while the pod begins to run is a conflict, and is tried again.
	counted := slices.DeleteFunc(slices.Clone(requests), func(r request) bool { return r.code == http.StatusConflict })
	if len(counted) != 1 || !counted[0].accepted() {
		t.Errorf("requests for the late pod: %v, want one accepted", requests)
	}
}

func TestAnAttachedVolumeHoldsBackTheEnd(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	s.claim("data")
	s.pod("db", n.name, claiming("data"))
	s.attach("data", n)
	s.alone()
	action, message := s.transition(n, awssim.Terminating)
	s.gone("db")
	s.throughout(8*time.Second, "the end waits for the volume", func() bool {
		return !s.isDeleted(message) && s.action(action).Outcome == awssim.Active && s.state(n) == cluster.StateDraining
	})
	detached := time.Now()
	s.detach("data")
	s.awaitDeleted(soon, message)
	s.completedOnce(action)
	if s.action(action).Ended.Before(detached) || s.deleted(message).Before(detached) {
		t.Error("finished before the volume was detached")
	}
}

func TestAnAttachedVolumeIsWaitedForUntilTheDeadlineAtMost(t *testing.T) {
	tier.Full(t, "20 s; internal/drain plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.claim("data")
	s.pod("db", n.name, claiming("data"))
	s.attach("data", n)
	s.alone()
	message, deadline := s.warn(n, 15*time.Second)
	s.awaitDeleted(soon, message)
	if s.deleted(message).Before(deadline) {
		t.Error("the message was deleted before the deadline")
	}
}

func TestTheVolumeOfAPodThatStaysIsNotWaitedFor(t *testing.T) {
	tier.Full(t, "internal/drain plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.claim("log")
	s.daemonSet("agent", func(t *corev1.PodTemplateSpec) {
		t.Spec.Volumes = volumeOf("log")
	})
	s.attach("log", n)
	s.pod("writer", n.name, claiming("log"))
	s.alone()
	message, deadline := s.warn(n, 2*time.Minute)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	if !s.deleted(message).Before(deadline) {
		t.Error("the volume was waited for")
	}
}

func TestAVolumeThatNoPodOfTheDrainUsedIsNotWaitedFor(t *testing.T) {
	tier.Full(t, "20 s; internal/drain plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	s.claim("data")
	s.claim("other")
	s.pod("plain", n.name)
	s.pod("db", n.name, claiming("data"))
	s.attach("data", n)
	s.attach("other", n)
	h := s.alone("--json-logging")
	action, message := s.transition(n, awssim.Terminating)
	s.gone("plain")
	s.gone("db")
	pulse, detached := s.feel(), time.Now()
	s.detach("data")
	s.awaitDeleted(soon, message)
	s.completedOnce(action)
	completed := s.action(action).Ended
	if completed.Before(detached) {
		t.Error("the hook was completed before the volume of its pod was detached")
	}
	pulse.atMost(completed.Sub(detached), pulse.endsWithin(detached, completed), "from the detachment to the completion it")
	s.endedWell(h, n, map[string]float64{"evicted": 2})
	reads := s.audit(func(e sandbox.AuditEvent) bool {
		return e.Resource == "persistentvolumeclaims" && e.Namespace == s.name && e.Verb == "get"
	})
	reads = slices.DeleteFunc(reads, func(e sandbox.AuditEvent) bool { return !strings.Contains(e.User, "node-termination-handler") })
	if len(reads) != 1 || reads[0].Name != "data" {
		t.Errorf("it has read the claims %v, want data once", reads)
	}
}

func TestAPodThatHasEndedIsNotWaitedForThoughAFinalizerKeepsIt(t *testing.T) {
	tier.Full(t, "35 s; internal/drain plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	kept := func(p *corev1.Pod) { p.Finalizers = []string{"workflows.argoproj.io/status"} }
	s.pod("done", n.name, kept)
	s.end("done", corev1.PodSucceeded)
	s.pod("stops", n.name, kept) // once it is evicted
	s.pod("plain", n.name)
	s.pod("critical", n.name, func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" })
	h := s.alone("--json-logging")
	action, message := s.transition(n, awssim.Terminating)
	s.eventually("the pod is evicted", func() bool {
		p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "stops", metav1.GetOptions{})
		s.must(err)
		return p.DeletionTimestamp != nil
	})
	s.throughout(8*time.Second, "a pod that runs is waited for, though a finalizer keeps it", func() bool {
		return s.podExists("critical") && !s.isDeleted(message)
	})
	pulse := s.feel()
	s.end("stops", corev1.PodFailed)
	ended := s.gone("critical")
	s.awaitDeleted(soon, message)
	s.completedOnce(action)
	completed := s.action(action).Ended
	if completed.Before(ended) {
		t.Error("the hook was completed before the last pod was gone")
	}
	pulse.atMost(completed.Sub(ended), pulse.endsWithin(ended, completed), "from the end of the last pod to the completion it")
	if requests := s.requests("done"); len(requests) > 0 {
		t.Errorf("requests for a pod that had ended: %v", requests)
	}
	if requests := s.requests("stops"); len(requests) != 1 || !requests[0].evicts {
		t.Errorf("requests for the pod that a finalizer keeps: %v, want one eviction", requests)
	}
	well := map[string]float64{"evicted": 3, "ended": 1}
	s.endedWell(h, n, well)
	// What is there when the machine goes is not lost.
	s.must(s.aws.SetInstanceState(n.instance, "terminated"))
	s.awaitDeleted(soon, s.send(s.body("state-change-terminated", n.instance)))
	s.endedWell(h, n, well)
}

// endedWell checks that a node whose hook has waited is drained, with so many pods of each bucket, and nothing left.
func (s *scenario) endedWell(h *handler, n node, pods map[string]float64) {
	s.Helper()
	if state := s.state(n); state != "drained" {
		s.Errorf("the state of the node is %q", state)
	}
	for _, how := range []string{"evicted", "forced", "ended", "missed", "lost", "unconfirmed"} {
		sum := 0.0
		for _, kind := range []string{"ASGTerminate", "StateChange"} {
			sum += h.metric(fmt.Sprintf("node_termination_handler_pods_total{how=%q,kind=%q}", how, kind))
		}
		if sum != pods[how] {
			s.Errorf("%v pods are counted as %s, want %v", sum, how, pods[how])
		}
	}
	if left := h.metric("node_termination_handler_volumes_missed_total"); left > 0 {
		s.Errorf("%v volumes are counted as missed", left)
	}
	for _, line := range h.logged("", "node", n.name) {
		if line["level"] != "info" && line["level"] != "debug" {
			s.Errorf("the log has %v", line)
		}
	}
}

func TestTheOutOfServiceTaintComesWithTheEndAndGoesWhenTheNodeIsBack(t *testing.T) {
	tier.Full(t, "20 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "node-termination-handler", Effect: corev1.TaintEffectNoExecute}
	tainted := func() bool {
		return slices.ContainsFunc(s.getNode(n.name).Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value })
	}
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	s.allowOutOfService(s.holder(kubeconfig), n)
	s.alone("--enable-out-of-service-taint")
	stopping := s.send(s.body("state-change-stopping", n.instance))
	s.awaitDeleted(soon, stopping)
	if tainted() {
		t.Error("tainted while it is stopping")
	}
	s.must(s.aws.SetInstanceState(n.instance, "stopped"))
	stopped := s.send(s.body("state-change-stopped", n.instance))
	s.awaitDeleted(soon, stopped)
	if !tainted() {
		t.Errorf("not tainted once it has stopped: %v", s.getNode(n.name).Spec.Taints)
	}
	// A kubelet falls silent some time after its machine: until then the node
	// seems ready, also when the nodes are looked at because another one comes.
	s.node(s.name+"-b", s.id(1))
	s.throughout(3*time.Second, "the taint stays while the node seems ready", tainted)
	s.must(shared.SetReady(s.ctx, n.name, false))
	s.throughout(3*time.Second, "the taint stays while the node is away", tainted)
	s.must(shared.SetReady(s.ctx, n.name, true))
	s.throughout(3*time.Second, "the taint stays while EC2 says that the instance is stopped", tainted)
	s.must(s.aws.SetInstanceState(n.instance, "running"))
	s.eventually("the taint is taken back", func() bool { return !tainted() })
}

func TestWorkersBoundWhatIsNotUrgent(t *testing.T) {
	tier.Full(t, "25 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(3)
	for _, n := range nodes {
		s.pod("on-"+n.name, n.name, stopping(time.Minute, 10*time.Second))
	}
	s.alone("--workers=1")
	pulse := s.feel()
	first := s.send(s.body("rebalance-recommendation", nodes[0].instance))
	s.eventually("the first drain is under way", func() bool { return len(s.requests("on-"+nodes[0].name)) > 0 })
	second := s.send(s.body("rebalance-recommendation", nodes[1].instance))
	s.eventually("the second node is cordoned", func() bool { return s.cordoned(nodes[1].name) })
	urgent, _ := s.warn(nodes[2], 2*time.Minute)
	s.awaitDeleted(soon, first, second, urgent)

	firstGone := s.gone("on-" + nodes[0].name)
	if at := s.requests("on-" + nodes[1].name)[0].at; at.Before(firstGone) {
		t.Errorf("the second drain began %s before the first had ended", firstGone.Sub(at))
	}
	if at := s.requests("on-" + nodes[2].name)[0].at; at.After(firstGone.Add(time.Minute)) {
		t.Errorf("the spot warning waited %s for a worker", at.Sub(firstGone)) // on any machine
	} else if at.After(firstGone) {
		pulse.judge("the spot warning waited %s for a worker", at.Sub(firstGone))
	}
}

func TestADrainThatABudgetBlocksDoesNotKeepItsWorkerForEver(t *testing.T) {
	tier.Full(t, "internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("kept", nodes[0].name, app("kept"))
	s.pod("free", nodes[1].name)
	s.budget("kept", "kept", 1)
	s.alone("--workers=1", "--node-termination-grace-period=6")
	blocked := s.send(s.body("rebalance-recommendation", nodes[0].instance))
	s.eventually("the first drain is under way", func() bool { return len(s.requests("kept")) > 0 })
	next := s.send(s.body("rebalance-recommendation", nodes[1].instance))
	s.awaitDeleted(soon, blocked, next)
	s.eventually("the second node is drained", func() bool { return s.state(nodes[1]) == cluster.StateDrained })
	if s.state(nodes[0]) != cluster.StateDraining || !s.podExists("kept") {
		t.Error("the first node is not as the budget wants it")
	}
}

// A request is one answered request of a handler that a pod leave.
type request struct {
	at     time.Time // when the API server had it
	evicts bool      // by the eviction API; else it is a deletion
	code   int       // HTTP status
	grace  int64     // seconds, or ownGrace
	uid    string    // of the pod that is meant
}

// ownGrace stands for a request that names no grace period.
const ownGrace = -1

func (r request) accepted() bool { return r.code < http.StatusMultipleChoices }

func (r request) String() string {
	verb := "delete"
	if r.evicts {
		verb = "evict"
	}
	return fmt.Sprintf("{%s %s grace %d: %d}", r.at.Format(time.TimeOnly), verb, r.grace, r.code)
}

// requests are those of all handlers about a pod, oldest first; about all pods without a name.
func (s *scenario) requests(pod string) []request {
	s.Helper()
	var requests []request
	for _, e := range s.audit(func(e sandbox.AuditEvent) bool {
		leaves := e.Verb == "create" && e.Subresource == "eviction" || e.Verb == "delete" && e.Subresource == ""
		return e.Resource == "pods" && leaves && (pod == "" || e.Name == pod)
	}) {
		if len(e.Request) == 0 { // whoever sent it was killed before its end
			continue
		}
		r := request{at: e.Received, evicts: e.Verb == "create", code: e.Code, grace: ownGrace}
		options := &metav1.DeleteOptions{}
		var err error
		if r.evicts {
			body := struct{ DeleteOptions *metav1.DeleteOptions }{options}
			err = json.Unmarshal(e.Request, &body)
		} else {
			err = json.Unmarshal(e.Request, options)
		}
		s.must(err)
		if options.GracePeriodSeconds != nil {
			r.grace = *options.GracePeriodSeconds
		}
		if options.Preconditions != nil && options.Preconditions.UID != nil {
			r.uid = string(*options.Preconditions.UID)
		}
		requests = append(requests, r)
	}
	slices.SortFunc(requests, func(a, b request) int { return a.at.Compare(b.at) })
	return requests
}

// cut judges that a request leaves a pod what is left of the time but two seconds. One that leaves nothing, or more than
// the longest notice of such a scenario, is an error on any machine.
func (p *pulse) cut(r request, deadline time.Time) {
	p.s.Helper()
	const longest = 30
	// A second more than what is left: the request was made a moment before the API server had it.
	if left := deadline.Sub(r.at); r.grace < 1 || r.grace > longest {
		p.s.Errorf("request %v with %s left, want a grace between 1 s and %d s", r, left, longest)
	} else if r.grace > seconds(left)-1 {
		p.judge("request %v with %s left, want a grace that is two seconds less than that", r, left)
	}
}

// forced checks that the evictions of a pod were refused, as often as that, and returns the deletion that came then. A
// machine that stalls cuts requests off, and asks once more.
func (p *pulse) forced(pod string, code, least, most int) request {
	p.s.Helper()
	requests := p.s.requests(pod)
	accepted := slices.IndexFunc(requests, request.accepted)
	if accepted < 0 || requests[accepted].evicts {
		p.s.Fatalf("requests %v, want a deletion that is accepted", requests)
	}
	refused, later := requests[:accepted], requests[accepted+1:]
	isCut := func(r request) bool {
		return r.code >= http.StatusInternalServerError && (!r.evicts || code != 0 && r.code != code)
	}
	isWrong := func(r request) bool { return !isCut(r) && (!r.evicts || code != 0 && r.code != code) }
	if slices.ContainsFunc(refused, isWrong) {
		p.s.Errorf("before the deletion: %v, want evictions that are refused", refused)
	} else if slices.ContainsFunc(refused, isCut) {
		p.judge("before the deletion: %v, want evictions that are refused", refused)
	}
	if len(later) > 3 || slices.ContainsFunc(later, func(r request) bool { return r.evicts }) {
		p.s.Errorf("after the deletion: %v, want nothing", later)
	} else if len(later) > 0 {
		p.judge("after the deletion: %v, want nothing", later)
	}
	if len(refused) > 10*most {
		p.s.Errorf("%d evictions, want %d at most", len(refused), most) // on any machine
	} else if len(refused) < least || len(refused) > most {
		p.judge("%d evictions, want %d to %d", len(refused), least, most)
	}
	return requests[accepted]
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// gone is when the kubelet took the last pod of that name away: when it asked to,
// since the API server tells others of it before it has answered.
func (s *scenario) gone(pod string) (at time.Time) {
	s.Helper()
	s.eventually("pod "+pod+" is gone", func() bool {
		events, err := s.cluster.Audit(func(e sandbox.AuditEvent) bool {
			return e.User == kubelets && e.Verb == "delete" && e.Resource == "pods" && e.Namespace == s.name && e.Name == pod && e.Code < 300
		})
		s.must(err)
		for _, e := range events {
			if e.Received.After(at) {
				at = e.Received
			}
		}
		return len(events) > 0
	})
	return at
}

// warn sends a spot warning with so much time left, up to a second less.
func (s *scenario) warn(n node, left time.Duration) (message string, deadline time.Time) {
	s.Helper()
	const notice = 2 * time.Minute
	when := time.Now().Add(left - notice).Truncate(time.Second) // as precise as an event says it
	return s.send(s.bodyAt(when, "spot-interruption", n.instance)), when.Add(notice)
}

// reserve sends the warning that the reservation of a node's machine ends, far ahead: where a deadline is no subject, a
// machine that stalls does not miss it. That of a spot warning is two minutes away at most.
func (s *scenario) reserve(n node) (message string) {
	s.Helper()
	return s.send(s.body("capacity-reservation-interruption", n.instance, termination, in(10*time.Minute)))
}

// state is how far the node says that its drain is.
func (s *scenario) state(n node) string { return s.getNode(n.name).Labels[cluster.StateLabel] }

// namesOn are the names of the pods on a node, sorted.
func (s *scenario) namesOn(n node) []string {
	s.Helper()
	var names []string
	for _, p := range s.podsOn(n.name) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// app labels a pod for a budget.
func app(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": name} }
}

// stopping gives a pod a grace period, and the time that it really takes to stop.
func stopping(grace, after time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(seconds(grace))
		p.Annotations[sandbox.StopAfter] = stopAfter(after)
	}
}

func emptyDir(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
}

// mirrorPod creates what a kubelet shows of a static pod.
func (s *scenario) mirrorPod(name string, n node) {
	s.Helper()
	s.pod(name, n.name, s.mirrors(n))
}

// mirrors makes a pod one that stands for a static pod of a node.
func (s *scenario) mirrors(n node) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[corev1.MirrorPodAnnotationKey] = "0123456789abcdef"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: s.getNode(n.name).UID, Controller: new(true)}}
	}
}

// daemonSet runs a pod on each of the scenario's nodes and returns the names when all run.
func (s *scenario) daemonSet(name string, edit ...func(*corev1.PodTemplateSpec)) (pods []string) {
	s.Helper()
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"scenario": s.name},
			Containers:   []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	for _, e := range edit {
		e(&template)
	}
	_, err := s.kube.AppsV1().DaemonSets(s.name).Create(s.ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the daemon set "+name+" is ready", func() bool {
		d, err := s.kube.AppsV1().DaemonSets(s.name).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return d.Status.DesiredNumberScheduled > 0 && d.Status.NumberReady == d.Status.DesiredNumberScheduled
	})
	list, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	s.must(err)
	for _, p := range list.Items {
		pods = append(pods, p.Name)
	}
	return pods
}

// volume is the cluster-wide name of a PersistentVolume, and of its attachment.
func (s *scenario) volume(name string) string { return s.name + "-" + name }

// volumeOf are the volumes of a pod with one claim.
func volumeOf(claim string) []corev1.Volume {
	return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
}

// claiming gives a pod the volume of a claim.
func claiming(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Volumes = volumeOf(claim) }
}

// claim makes a volume and the claim that it is bound to.
func (s *scenario) claim(name string) {
	s.Helper()
	room := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	_, err := s.kube.CoreV1().PersistentVolumes().Create(s.ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.volume(name)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: room, AccessModes: modes,
			ClaimRef:               &corev1.ObjectReference{Namespace: s.name, Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "none", VolumeHandle: s.volume(name)}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.CoreV1().PersistentVolumeClaims(s.name).Create(s.ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: s.volume(name), StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: room},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the claim "+name+" is bound", func() bool {
		c, err := s.kube.CoreV1().PersistentVolumeClaims(s.name).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return c.Status.Phase == corev1.ClaimBound
	})
}

// attach says that a volume is attached to a node, as the attach-detach
// controller would, which the sandbox leaves out.
func (s *scenario) attach(name string, n node) {
	s.Helper()
	_, err := s.kube.StorageV1().VolumeAttachments().Create(s.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: s.volume(name)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "none", NodeName: n.name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(s.volume(name))},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

func (s *scenario) detach(name string) {
	s.Helper()
	s.must(s.kube.StorageV1().VolumeAttachments().Delete(s.ctx, s.volume(name), metav1.DeleteOptions{}))
}
