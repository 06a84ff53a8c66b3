package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// large is what the API server lets an object have, nearly.
const large = 1_400_000

func largeEnv(p *corev1.Pod) {
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", large)}}
}

// How many objects of that size there are, and how many nodes that have none.
const largeOnNode, largeUnscheduled, largeBindings, nodesBeside = 200, 100, 50, 5

// Somebody fills one node, the scheduler's queue and the load balancers with objects that are as large as possible. A
// replica has the memory of the chart. The drains of the other nodes are not disturbed.
func TestLargeObjectsOfOneTenantStopNoDrain(t *testing.T) {
	s, nodes := amongLargeObjects(t, time.Second)
	first, second := s.leader(), s.start()
	pulse, sent := s.feel(), s.warnAll(nodes)
	pulse.drainedSoon(nodes[1:], sent)
	s.eventually("the drain of the large pods has ended", func() bool {
		state := s.state(nodes[0])
		return state == "drained" || state == "missed"
	})
	ever, asked := map[string]bool{}, map[string]bool{}
	var last time.Time
	for _, r := range s.requests("") {
		if r.code >= http.StatusMultipleChoices {
			continue
		}
		ever[r.uid] = true
		if r.at.Before(sent.Add(2 * time.Minute)) {
			asked[r.uid], last = true, r.at
		}
	}
	report(t, "the last of the large pods was asked to go %s after the notice", last.Sub(sent).Round(time.Millisecond))
	if want := largeOnNode + nodesBeside; len(ever) != want { // on any machine
		t.Errorf("%d pods were asked to go, want %d", len(ever), want)
	} else if len(asked) != want {
		pulse.judge("%d pods were asked to go before the deadline, want %d", len(asked), want)
	}
	s.eventually("the pods without a node are counted", func() bool { return first.metric("node_termination_handler_pods_unscheduled") > 0 })
	first.isWithinItsMemory("the leader")
	second.isWithinItsMemory("the standby")
}

// The next leader goes on with all nodes at once: the one with the large pods takes none of the others down.
func TestLargeObjectsOfOneTenantStopNoDrainThatIsResumed(t *testing.T) {
	s, nodes := amongLargeObjects(t, 10*time.Second)
	const json = "--json-logging" // for logged
	first, second := s.leader(json), s.start(json)
	pulse, sent := s.feel(), s.warnAll(nodes)
	s.eventually("all nodes are cordoned", func() bool {
		return !slices.ContainsFunc(nodes, func(n node) bool { return !s.cordoned(n.name) })
	})
	first.kill()
	s.eventually("the next leader goes on with all of them", func() bool {
		return len(second.logged("going on with the drain that the node carries")) == len(nodes)
	})
	pulse.drainedSoon(nodes[1:], sent)
	second.isWithinItsMemory("the next leader")
}

// amongLargeObjects returns a scenario with several nodes, of which the first has the large pods, and each other one a
// pod that stops in that time.
func amongLargeObjects(t *testing.T, stops time.Duration) (*scenario, []node) {
	t.Helper()
	if !*everyCall {
		t.Skip("only with -chaos: half a gigabyte in a control plane of its own")
	}
	own, err := sandbox.Start(t.Context(), sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Stop() })
	s := newScenarioIn(t, own)
	s.env = append(s.env, fmt.Sprintf("GOMEMLIMIT=%d", 256<<20*8/10)) // as the program sets it for 256Mi
	nodes := s.nodes(1 + nodesBeside)
	s.deployment("plain", int32(nodesBeside), grace(20, stops))
	s.defineBindings()
	var all errgroup.Group
	all.SetLimit(4)
	create := func(p *corev1.Pod) {
		all.Go(func() error {
			_, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, p, metav1.CreateOptions{})
			return err
		})
	}
	// Each gets the condition DisruptionTarget before it is deleted, and the answer has the whole pod.
	job := metav1.NewControllerRef(s.idleJob(), batchv1.SchemeGroupVersion.WithKind("Job"))
	ofJob := func(p *corev1.Pod) {
		p.Labels, p.OwnerReferences = map[string]string{"app": "large"}, []metav1.OwnerReference{*job}
	}
	for k := range largeOnNode {
		create(s.newPod(fmt.Sprintf("large-%d", k), nodes[0].name, largeEnv, ofJob, stopping(20*time.Second, time.Second)))
	}
	for k := range largeUnscheduled {
		create(s.newPod(fmt.Sprintf("waiting-%d", k), "", largeEnv, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"no": "node"}
		}))
	}
	for k := range largeBindings {
		all.Go(func() error {
			s.addBinding(fmt.Sprintf("large-%d", k), fmt.Sprintf(`{"matchLabels": {"large": %q}}`, strings.Repeat("x", large)))
			return nil
		})
	}
	s.must(all.Wait())
	s.budget("large", "large", largeOnNode)
	s.eventually("the pods run", func() bool {
		waiting, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{
			FieldSelector: "status.phase!=Running,spec.nodeName!=", Limit: 1,
		})
		s.must(err)
		return len(waiting.Items) == 0
	})
	return s, nodes
}

// warnAll warns of the end of all nodes in two minutes.
func (s *scenario) warnAll(nodes []node) (sent time.Time) {
	s.Helper()
	sent = time.Now()
	for _, n := range nodes {
		s.warn(n, 2*time.Minute)
	}
	return sent
}

// drainedSoon waits until nodes are drained, and judges whether that was 90 s after they were warned of at most.
func (p *pulse) drainedSoon(nodes []node, sent time.Time) {
	s := p.s
	s.Helper()
	s.eventually("the other nodes are drained", func() bool {
		return !slices.ContainsFunc(nodes, func(n node) bool { return s.state(n) != "drained" })
	})
	took := time.Since(sent)
	report(s.T, "the other nodes were drained %s after their notices", took.Round(time.Millisecond))
	p.atMost(took, 90*time.Second, "the drains of the other nodes")
	for _, n := range nodes {
		if pods := s.podsOn(n.name); len(pods) > 0 {
			s.Errorf("%d pods are still on %s", len(pods), n.name)
		}
	}
}

// isWithinItsMemory is called at the end.
func (h *handler) isWithinItsMemory(name string) {
	h.s.Helper()
	if h.isExited() {
		h.s.Errorf("%s has exited", name)
		return
	}
	peak := h.memory("VmHWM")
	report(h.s.T, "%s had %d MiB at most", name, peak>>10)
	if peak > 200<<10 {
		h.s.Errorf("%s had %d MiB", name, peak>>10)
	}
}

// idleJob makes a Job that no controller acts on.
func (s *scenario) idleJob() *batchv1.Job {
	s.Helper()
	job, err := s.kube.BatchV1().Jobs(s.name).Create(s.ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "large"},
		Spec: batchv1.JobSpec{
			ManagedBy: new("example.com/nobody"),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "none"}},
			}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return job
}

// memory is a field of the process's status, in kB.
func (h *handler) memory(field string) (kB int) {
	h.s.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	h.s.must(err)
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, field+": %d kB", &kB) // other lines are other figures
	}
	return kB
}
