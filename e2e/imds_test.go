package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// daemonSetHome ends the name of the namespace of a DaemonSet.
const daemonSetHome = "-daemonset"

// An imdsScenario has a node, the metadata of its instance, and what the chart makes for the DaemonSet:
// its ServiceAccount and exactly its rights.
type imdsScenario struct {
	*scenario
	node       node
	other      node // which is none of its business
	metadata   *awssim.Metadata
	url        string // of the metadata
	home       string // namespace of the release
	kubeconfig string // of the handler's pod on node
}

func newIMDSScenario(t *testing.T) *imdsScenario {
	t.Helper()
	s := &imdsScenario{scenario: newScenario(t)}
	both := s.nodes(2)
	s.node, s.other = both[0], both[1]
	home := s.name + daemonSetHome
	_, err := s.kube.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}}, metav1.CreateOptions{})
	s.must(err)
	s.apply(filepath.Join("helm", "testdata", "golden", "imds-spot-daemonset.yaml"), home, "DaemonSet", "Service")
	s.home = home
	s.user = "system:serviceaccount:" + home + ":nth-" + release.Name
	s.metadata, s.url = s.metadataOf(s.node)
	s.kubeconfig = s.podKubeconfig(s.node)
	return s
}

// metadataOf serves the metadata of a node's instance.
func (s *imdsScenario) metadataOf(n node) (m *awssim.Metadata, url string) {
	s.Helper()
	m = awssim.NewMetadata(awssim.MetadataOptions{Instance: n.instance, Started: time.Now().Add(-time.Hour)})
	url, err := m.Listen(s.ctx, "127.0.0.1:0")
	s.must(err)
	return m, url
}

// podKubeconfig is the kubeconfig of a pod of a DaemonSet on the node, with the ServiceAccount of the release.
func (s *imdsScenario) podKubeconfig(n node) string {
	s.Helper()
	app := "handler-" + n.name
	labels := map[string]string{"app": app}
	_, err := s.kube.AppsV1().DaemonSets(s.home).Create(s.ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: "nth-" + release.Name,
					NodeSelector:       map[string]string{corev1.LabelHostname: n.name},
					Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers:         []corev1.Container{{Name: "c", Image: "none"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	var pod *corev1.Pod
	s.eventually("the handler's pod runs", func() bool {
		pods, err := s.kube.CoreV1().Pods(s.home).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app, FieldSelector: "status.phase=Running"})
		s.must(err)
		if len(pods.Items) == 1 {
			pod = &pods.Items[0]
		}
		return pod != nil
	})
	kubeconfig, err := s.cluster.PodKubeconfig(s.ctx, pod)
	s.must(err)
	return kubeconfig
}

// start runs the binary as the DaemonSet would on the node, and waits until it is ready.
func (s *imdsScenario) start(env ...string) *handler {
	s.Helper()
	return s.startProgram(program, env...)
}

// startOn is start on another node, whose metadata it returns.
func (s *imdsScenario) startOn(n node, env ...string) *awssim.Metadata {
	s.Helper()
	m, url := s.metadataOf(n)
	env = append([]string{"KUBECONFIG=" + s.podKubeconfig(n), "NODE_NAME=" + n.name, "INSTANCE_METADATA_URL=" + url}, env...)
	s.start(env...)
	return m
}

func (s *imdsScenario) startProgram(program string, env ...string) *handler {
	s.Helper()
	h := s.process()
	h.program = program
	h.cmd = exec.CommandContext(context.WithoutCancel(s.ctx), program)
	h.cmd.Env = slices.Concat([]string{
		"ENABLE_SQS_TERMINATION_DRAINING=false", "KUBECONFIG=" + s.kubeconfig, "NODE_NAME=" + s.node.name, "INSTANCE_METADATA_URL=" + s.url,
		"NAMESPACE=" + s.home, "LEADER_ELECT_RESOURCE_NAME=nth-" + release.Name,
		"PROBES_SERVER_PORT=" + strconv.Itoa(h.probes), "PROMETHEUS_SERVER_PORT=" + strconv.Itoa(h.metrics), "EMIT_KUBERNETES_EVENTS=true",
	}, env)
	h.begin()
	h.awaitReady()
	h.awaitLead()
	return h
}

func (s *imdsScenario) imdsState() string { return s.getNode(s.node.name).Labels[cluster.StateLabel] }

func TestOnTheNodeASpotActionDrainsIt(t *testing.T) {
	s := newIMDSScenario(t)
	s.deployment("web", 4)
	h := s.start("TAINT_NODE=true")
	s.throughout(3*time.Second, "nothing is announced", func() bool { return !s.cordoned(s.node.name) })
	s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
	began := time.Now()
	s.eventually("the node is cordoned", func() bool { return s.cordoned(s.node.name) })
	t.Logf("cordoned after %s", time.Since(began).Round(10*time.Millisecond))
	s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && len(s.podsOn(s.node.name)) == 0 })
	t.Logf("drained after %s", time.Since(began).Round(10*time.Millisecond))
	if s.cordoned(s.other.name) {
		t.Error("another node is cordoned too")
	}
	if taints := s.getNode(s.node.name).Spec.Taints; !tainted(taints, "aws-node-termination-handler/spot-itn") {
		t.Errorf("taints of the node: %v", taints)
	}
	var told []corev1.Event
	s.eventually("its Events are on the node", func() bool {
		told = s.told("default", "Node", s.node.name)
		return slices.Contains(reasons(told), "CordonAndDrain")
	})
	for _, e := range told {
		if e.Annotations["account-id"] != "123456789012" || e.Annotations["region"] != "us-east-1" || e.Annotations["instance-id"] != s.node.instance {
			t.Errorf("Event %s has the annotations %v", e.Reason, e.Annotations)
		}
	}
	if got := h.metric(`node_termination_handler_drains_total{kind="SpotInterruption",outcome="in-time"}`); got != 1 {
		t.Errorf("%v drains in time", got)
	}
	if h.stop() != 0 {
		t.Error("SIGTERM is an error")
	}
}

// Whose intents another process carries out is told by the node alone.
func TestOnTheNodeAnUnfinishedDrainOfAnotherNodeIsLeftAlone(t *testing.T) {
	tier.Full(t, "internal/app plays it in virtual time")
	s := newIMDSScenario(t)
	s.pod("pod", s.other.name)
	const text = `{"v":1,"queue":"imds","notices":[{"kind":"RebalanceRecommendation","ids":["r"],"time":"2026-01-01T00:00:00Z"}],"cordonedAt":"2026-01-01T00:00:00Z"}`
	node := s.getNode(s.other.name)
	node.Labels[cluster.StateLabel], node.Annotations[cluster.IntentAnnotation] = cluster.StateDraining, text
	node.Spec.Unschedulable = true
	_, err := s.kube.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
	s.must(err)
	s.start()
	s.throughout(5*time.Second, "the pod of the other node stays", func() bool { return s.podExists("pod") })
}

func TestOnTheNodeARecommendationCordonsAndAWarningDrains(t *testing.T) {
	s := newIMDSScenario(t)
	s.pod("pod", s.node.name)
	s.start("ENABLE_REBALANCE_MONITORING=true", "TAINT_NODE=true")
	s.metadata.Recommend(time.Now())
	s.eventually("the node is cordoned", func() bool { return s.cordoned(s.node.name) && s.imdsState() == "cordoned" })
	if taints := s.getNode(s.node.name).Spec.Taints; !tainted(taints, "aws-node-termination-handler/rebalance-recommendation") {
		t.Errorf("taints of the node: %v", taints)
	}
	s.throughout(3*time.Second, "the pod stays", func() bool { return s.podExists("pod") })
	s.metadata.InterruptSpot("stop", time.Now().Add(2*time.Minute))
	s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && !s.podExists("pod") })
}

func TestOnTheNodeTheEndOfAScheduledChangeUncordonsIt(t *testing.T) {
	tier.Full(t, "internal/app plays it in virtual time")
	s := newIMDSScenario(t)
	s.pod("pod", s.node.name)
	h := s.start()
	e := awssim.MaintenanceEvent{ID: "instance-event-00000000000000001", Code: "instance-stop", State: "active", NotBefore: time.Now().Add(time.Hour)}
	s.metadata.Schedule(e)
	s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && !s.podExists("pod") })
	h.kill()
	e.State = "completed"
	s.metadata.Schedule(e)
	s.start()
	s.eventually("the node is uncordoned", func() bool { return !s.cordoned(s.node.name) })
}

func TestOnTheNodeARestartGoesOn(t *testing.T) {
	s := newIMDSScenario(t)
	labels := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }
	s.pod("pod", s.node.name, labels)
	s.must(s.blockAll("web"))
	h := s.start()
	s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
	s.eventually("the node is cordoned", func() bool { return s.cordoned(s.node.name) })
	h.kill()
	if !s.podExists("pod") {
		t.Fatal("the budget has let the pod go")
	}
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "block", metav1.DeleteOptions{}))
	s.start()
	s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && !s.podExists("pod") })
}

func TestOnTheNodeMetadataThatFailsForAWhileLosesNothing(t *testing.T) {
	tier.Full(t, "20 s; internal/app plays each way to fail in virtual time")
	t.Parallel()
	for name, fault := range map[string]awssim.MetadataFault{
		"401": {Status: http.StatusUnauthorized}, "slow": {Delay: 3 * time.Second}, "gone": {Reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newIMDSScenario(t)
			s.pod("pod", s.node.name)
			h := s.start()
			s.metadata.SetFault(fault)
			s.metadata.RevokeTokens()
			s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
			s.eventually("the failure is counted", func() bool {
				return h.metric(`node_termination_handler_metadata_polls_total{result="error"}`) >= 2
			})
			if s.cordoned(s.node.name) {
				t.Error("it has read what fails")
			}
			s.metadata.SetFault(awssim.MetadataFault{})
			s.eventually("the node is drained", func() bool { return s.imdsState() == "drained" && !s.podExists("pod") })
		})
	}
}

// blockAll makes a budget that lets no pod of an application go.
func (s *scenario) blockAll(app string) error {
	_, err := s.kube.PolicyV1().PodDisruptionBudgets(s.name).Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "block"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}, metav1.CreateOptions{})
	return err
}

// One pod asks the API server for nothing at rest, so a thousand do not either, whether it would drain its node or
// reports to a leader. How many pages of the binary are mapped at a moment is for the kernel to say, which takes them
// back when it needs them: only what is so half of the time is judged, and no other test plays beside this one.
func TestOnTheNodeAtRestItTakesLittle(t *testing.T) {
	tier.Full(t, "a minute, and it compiles the released program")
	// As hack/release builds it; make e2e-all has compiled it before.
	released := filepath.Join(t.TempDir(), release.Name)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", released, "../cmd/"+release.Name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("it would drain its node", func(t *testing.T) {
		s := newIMDSScenario(t)
		s.deployment("web", 4)
		h := s.startProgram(released)
		s.eventually("it no longer waits for a leader", func() bool { return strings.Contains(h.log.String(), "this pod drains its node") })
		s.restsOnLittle(h)
	})
	t.Run("it reports to a leader", func(t *testing.T) {
		s := newIMDSScenario(t)
		s.mayReadTheLease()
		s.deployment("web", 4)
		s.leader("--queue-url=none")
		h := s.startProgram(released, "NAMESPACE="+s.name, "LEADER_ELECT_RESOURCE_NAME="+release.Name)
		s.restsOnLittle(h)
		s.metadata.InterruptSpot("terminate", time.Now().Add(2*time.Minute))
		s.eventually("the leader has drained the node", func() bool { return s.imdsState() == "drained" })
		if n := h.metric(drains); n != 0 {
			t.Errorf("the pod on the node has counted %v drains", n)
		}
		s.onlyReports()
	})
}

// restsOnLittle checks what a handler takes that has begun, has given the pages of the start back, twice, and has
// nothing to do.
func (s *imdsScenario) restsOnLittle(h *handler) {
	s.Helper()
	ready := func() bool { return h.get(h.probes, "/readyz") == http.StatusOK }
	s.throughout(30*time.Second, "it is ready after the start", ready)
	from := time.Now()
	var own, files, all []int64 // kB
	s.throughout(30*time.Second, "it is ready at rest", func() bool {
		anonymous, file := s.resident(h)
		own, files, all = append(own, anonymous), append(files, file), append(all, anonymous+file)
		return ready()
	})
	onOwn := "fieldSelector=" + url.QueryEscape("metadata.name="+s.node.name)
	for _, r := range s.audit(func(e sandbox.AuditEvent) bool { return e.User == s.user }) {
		switch {
		case r.Verb == "watch" && (r.Resource != "nodes" || !strings.Contains(r.URI, onOwn)):
			s.Errorf("it watches %s", r.URI)
		case r.Verb != "watch" && r.Received.After(from):
			s.Errorf("at rest: %s %s/%s", r.Verb, r.Resource, r.Name)
		}
	}
	most := slices.Max(own)
	slices.Sort(all)
	half := all[len(all)/2]
	s.Logf("resident: %.1f MiB at most, and %.1f to %.1f MiB of the binary; half of the time %.1f MiB in all",
		float64(most)/1024, float64(slices.Min(files))/1024, float64(slices.Max(files))/1024, float64(half)/1024)
	if most == 0 || most > 16<<10 {
		s.Errorf("%d kB are resident, and no pages of the binary, want 16 MiB at most", most)
	}
	if *everyCall && half > 25<<10 { // beside other work, the kernel maps more of the binary
		s.Errorf("half of the time more than %d kB are resident, want the 25 MiB of docs/performance.md at most", half)
	}
}

// onlyReports checks that the pod on the node has written one annotation of its Node, and nothing else.
func (s *imdsScenario) onlyReports() {
	s.Helper()
	reports := 0
	for _, w := range s.audit(func(e sandbox.AuditEvent) bool {
		return e.User == s.user && !slices.Contains([]string{"get", "list", "watch"}, e.Verb) && e.Resource != "selfsubjectaccessreviews"
	}) {
		var patch struct {
			Metadata struct {
				Annotations          map[string]any
				Labels               map[string]any
				UID, ResourceVersion string
			}
			Spec map[string]any
		}
		decoder := json.NewDecoder(bytes.NewReader(w.Request))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(&patch)
		names := slices.Collect(maps.Keys(patch.Metadata.Annotations))
		if w.Verb != "patch" || w.Resource != "nodes" || w.Subresource != "" || w.Name != s.node.name || err != nil ||
			!slices.Equal(names, []string{cluster.ReportAnnotation}) || len(patch.Metadata.Labels)+len(patch.Spec) > 0 {
			s.Errorf("it writes: %s %s/%s %s", w.Verb, w.Resource, w.Name, w.Request)
			continue
		}
		reports++
	}
	if reports == 0 {
		s.Error("it has reported nothing")
	}
}

// resident is how much memory a handler takes for itself, and how many pages of files it has mapped, in kB.
func (s *imdsScenario) resident(h *handler) (anonymous, file int64) {
	s.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	s.must(err)
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "RssAnon: %d kB", &anonymous) // other lines are other figures
		_, _ = fmt.Sscanf(line, "RssFile: %d kB", &file)
	}
	return anonymous, file
}
