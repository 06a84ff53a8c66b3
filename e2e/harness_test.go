// Package e2e holds the scenarios: the built binary, with the RBAC of deploy/,
// against a real control plane and a simulated AWS account. They assert on the
// state and the records of those two, never on the binary's own words.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// What all scenarios share.
var (
	shared  *sandbox.Cluster
	program string // path of the built binary
	number  atomic.Int64
	ports   atomic.Int64
)

// TestMain starts the control plane once, with the binary built as it stands.
func TestMain(m *testing.M) {
	if err := prepare(m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // the end of a test program
	}
}

func prepare(m *testing.M) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // as in main
	defer stop()
	dir, err := os.MkdirTemp("", "nth-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, release.Name)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, "../cmd/"+release.Name)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the binary: %w", err)
	}
	// With this plugin the namespace of a release can keep its pods on their own nodes.
	flags := []string{"--enable-admission-plugins=PodNodeSelector"}
	if shared, err = sandbox.Start(ctx, sandbox.Options{Out: os.Stderr, APIServerFlags: flags}); err != nil {
		return err
	}
	failed := m.Run() != 0 // the test program exits with that
	if times := unjudged.Load(); times > 0 {
		fmt.Fprintf(os.Stderr, "%d times were not judged, because the machine stalled\n", times)
	}
	err = checkRefusals(shared)
	if unused := checkPrivileges(shared, wholeSuite()); failed && unused != nil {
		fmt.Fprintln(os.Stderr, unused) // perhaps of what has failed, which may be played again
	} else {
		err = errors.Join(err, unused)
	}
	if err = errors.Join(err, shared.Stop()); err != nil {
		return errors.New(suite.Outside + err.Error())
	}
	return nil
}

// A scenario has a namespace, nodes, an AWS account and a queue of its own, so
// that any number of them run side by side in one cluster.
type scenario struct {
	*testing.T
	ctx      context.Context
	number   int64  // of this scenario; no other has it
	name     string // of its namespace, its queue, and the label of its nodes
	aws      *awssim.Server
	endpoint string
	cluster  *sandbox.Cluster
	kube     kubernetes.Interface
	env      []string // of its handlers, besides what every one gets
	user     string   // of its handlers that are none of the manifests: those in IMDS mode, or of a chart; empty: there is none
	placed   sync.Map // the names of the pods that newPod has made, and of their nodes
}

// A node of a scenario, and the instance behind it.
type node struct{ name, instance string }

var (
	manifests  = filepath.Join("..", "deploy", "manifests", "node-termination-handler.yaml")
	flowSchema = filepath.Join("..", "deploy", "manifests", "flowschema.yaml")
)

const (
	queueName = "nth"
	account   = "123456789012"
	region    = release.Region
	// soon is how long a test waits for what has to happen: a guard against waiting for ever, no bound. What is about
	// seconds is played in virtual time.
	soon = 5 * time.Minute
)

// managed is the tag that NTH users put on their instances.
var managed = map[string]string{"aws-node-termination-handler/managed": "true"}

func newScenario(t *testing.T) *scenario {
	t.Helper()
	t.Parallel()
	return newScenarioIn(t, shared)
}

// newScenarioIn makes a scenario in another cluster than the one that most share.
func newScenarioIn(t *testing.T, cluster *sandbox.Cluster) *scenario {
	t.Helper()
	s := &scenario{T: t, ctx: t.Context(), number: number.Add(1), cluster: cluster, kube: cluster.Client()}
	s.name = fmt.Sprintf("s%d", s.number)
	s.openAccount(awssim.Options{Seed: uint64(s.number)}) // what accounts launch becomes nodes of one cluster
	s.apply(manifests, s.name, "Deployment")
	// The scenario's own pods, in the same namespace, are none of Pod Security's business.
	_, err := s.kube.CoreV1().Namespaces().Patch(s.ctx, s.name, types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})
	s.must(err)
	return s
}

// endpoints are those of all accounts so far.
var endpoints sync.Map

// openAccount gives the scenario an AWS account with a queue. A port that was another scenario's would make its queue
// that one's too, and the drains of nodes which that one has left.
func (s *scenario) openAccount(o awssim.Options) {
	s.Helper()
	for used := true; used; {
		account := awssim.New(o)
		s.Cleanup(account.Close)
		endpoint, err := account.Listen(s.ctx, "127.0.0.1:0")
		s.must(err)
		s.aws, s.endpoint = account, endpoint
		_, used = endpoints.LoadOrStore(endpoint, true)
	}
	account := s.aws
	s.Cleanup(func() { countCalls(s.name, account) })
	s.must(s.aws.CreateQueue(awssim.Queue{Name: queueName, Attributes: map[string]string{"VisibilityTimeout": "20"}}))
}

// apply is release.Apply, until the end of the scenario for what each request of the cluster is compared with.
func (s *scenario) apply(path, namespace string, skip ...string) {
	s.Helper()
	s.must(release.Apply(s.ctx, s.cluster, path, namespace, skip...))
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), soon)
		defer cancel()
		_ = release.RemovePolicies(ctx, s.cluster, namespace) // the API server may be what the scenario has ended
	})
}

func (s *scenario) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// id makes up the n-th instance id of the scenario.
func (s *scenario) id(n int) string {
	return fmt.Sprintf("i-%08x%09x", s.number, n+1)
}

// nodes adds ready nodes with an instance each, tagged as managed.
func (s *scenario) nodes(n int) []node {
	s.Helper()
	var nodes []node
	for k := range n {
		nodes = append(nodes, s.node(fmt.Sprintf("%s-%c", s.name, 'a'+k), s.id(k)))
	}
	return nodes
}

func (s *scenario) node(name, instance string) node {
	s.Helper()
	n := node{name, instance}
	s.must(s.add(s.ctx, n))
	return n
}

// add adds the instance of a node and its ready Node.
func (s *scenario) add(ctx context.Context, n node) error {
	if err := s.aws.PutInstance(instanceOf(n)); err != nil {
		return err
	}
	return s.register(ctx, n)
}

// instanceOf is the instance of a node, which has run for an hour.
func instanceOf(n node) awssim.Instance {
	return awssim.Instance{ID: n.instance, Tags: managed, Lifecycle: "spot", LaunchTime: time.Now().Add(-time.Hour)}
}

// join adds a ready Node for an instance.
func (s *scenario) join(name, instance string) {
	s.Helper()
	s.must(s.register(s.ctx, node{name, instance}))
}

func (s *scenario) register(ctx context.Context, n node) error {
	_, err := s.cluster.AddNode(ctx, sandbox.NodeSpec{
		Name: n.name, ProviderID: "aws:///us-east-1a/" + n.instance, Labels: map[string]string{"scenario": s.name},
	})
	return err
}

// crowd adds many ready nodes, each with the pods that it is given, and waits until all run.
func (s *scenario) crowd(size int, pods func(node) []*corev1.Pod) []node {
	s.Helper()
	group, ctx := errgroup.WithContext(s.ctx)
	group.SetLimit(16)
	nodes := make([]node, size)
	for k := range nodes {
		n := node{fmt.Sprintf("%s-%03d", s.name, k), s.id(k)}
		nodes[k] = n
		group.Go(func() error {
			err := s.add(ctx, n)
			for _, p := range pods(n) {
				if err == nil {
					_, err = s.kube.CoreV1().Pods(s.name).Create(ctx, p, metav1.CreateOptions{})
				}
			}
			return err
		})
	}
	s.must(group.Wait())
	s.eventually("all pods run", func() bool {
		waiting, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1})
		s.must(err)
		return len(waiting.Items) == 0
	})
	return nodes
}

// deployment runs replicas on the scenario's nodes, spread over them, and waits until they are ready.
func (s *scenario) deployment(name string, replicas int32, edit ...func(*corev1.PodTemplateSpec)) {
	s.Helper()
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"scenario": s.name},
			Containers:   []corev1.Container{{Name: "c", Image: "none"}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
				LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
			}},
		},
	}
	for _, e := range edit {
		e(&template)
	}
	_, err := s.kube.AppsV1().Deployments(s.name).Create(s.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template,
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the deployment "+name+" is ready", func() bool { return s.readyReplicas(name) == replicas })
}

func (s *scenario) readyReplicas(deployment string) int32 {
	d, err := s.kube.AppsV1().Deployments(s.name).Get(s.ctx, deployment, metav1.GetOptions{})
	s.must(err)
	return d.Status.ReadyReplicas
}

// grace edits a pod template: its termination grace period, and how long it really takes to stop.
func grace(seconds int64, stop time.Duration) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.TerminationGracePeriodSeconds = &seconds
		t.Annotations = map[string]string{sandbox.StopAfter: stopAfter(stop)}
	}
}

// stopAfter is a duration as the annotation has it, in one unit.
func stopAfter(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }

// budget makes a PodDisruptionBudget for the pods of a deployment and waits until it counts.
func (s *scenario) budget(name, app string, minAvailable int) {
	s.Helper()
	_, err := s.kube.PolicyV1().PodDisruptionBudgets(s.name).Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the budget "+name+" counts", func() bool {
		b, err := s.kube.PolicyV1().PodDisruptionBudgets(s.name).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return b.Status.ObservedGeneration > 0 && b.Status.ExpectedPods > 0
	})
}

// pod creates one pod on a node, past the scheduler, and waits until it runs.
func (s *scenario) pod(name, on string, edit ...func(*corev1.Pod)) *corev1.Pod {
	s.Helper()
	p, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, s.newPod(name, on, edit...), metav1.CreateOptions{})
	s.must(err)
	s.eventually("pod "+name+" runs", func() bool {
		now, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		return now.Status.Phase == corev1.PodRunning
	})
	return p
}

// newPod is a pod for a node, past the scheduler, that is to be created.
func (s *scenario) newPod(name, on string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, e := range edit {
		e(p)
	}
	s.placed.Store(name, on)
	return p
}

// podsOn are the pods of the scenario's namespace on a node, those included that are stopping.
func (s *scenario) podsOn(node string) []corev1.Pod {
	s.Helper()
	list, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	s.must(err)
	return list.Items
}

func (s *scenario) podExists(name string) bool {
	_, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	return err == nil
}

func (s *scenario) getNode(name string) *corev1.Node {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return n
}

func (s *scenario) cordoned(node string) bool { return s.getNode(node).Spec.Unschedulable }

// eventually waits until ok, which has to happen soon.
func (s *scenario) eventually(what string, ok func() bool) {
	s.Helper()
	s.within(soon, what, ok)
}

func (s *scenario) within(limit time.Duration, what string, ok func() bool) {
	s.Helper()
	deadline := time.After(limit)
	for {
		if ok() {
			return
		}
		select {
		case <-deadline:
			s.Fatalf("not within %s: %s", limit, what)
		case <-s.ctx.Done():
			s.Fatalf("%s: %v", what, s.ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// throughout checks that ok holds all the time for a while.
func (s *scenario) throughout(while time.Duration, what string, ok func() bool) {
	s.Helper()
	end := time.After(while)
	for {
		if !ok() {
			s.Fatalf("not all the time: %s", what)
		}
		select {
		case <-end:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A handler is one replica of the built binary.
type handler struct {
	s          *scenario
	cmd        *exec.Cmd
	program    string   // path of the binary
	key        string   // AWS access key id, by which the simulator's record tells replicas apart
	kubeconfig string   // path
	endpoint   string   // of AWS
	queue      string   // name
	env, args  []string // beside those that all have
	probes     int      // port
	metrics    int      // port
	log        *release.Log
	exited     chan struct{}

	// What stands between the replica and the API server, and AWS; nil unless it was launched behind proxies.
	api, cloud *proxy.Proxy
}

// start runs a replica with the default options, the scenario's queue, and args;
// it waits until the replica is ready. It is killed at the end of the test.
func (s *scenario) start(args ...string) *handler {
	s.Helper()
	h := s.launch(args...)
	h.awaitReady()
	return h
}

// leader runs a replica and waits until it leads.
func (s *scenario) leader(args ...string) *handler {
	s.Helper()
	h := s.start(args...)
	h.awaitLead()
	return h
}

// alone runs the only replica of a scenario, and waits until it leads: it does so without a Lease, which it can neither lose
// nor be paused by.
func (s *scenario) alone(args ...string) *handler {
	s.Helper()
	return s.leader(append([]string{"--leader-elect=false"}, args...)...)
}

// logged returns the entries of the log with this message, unless it is empty, and these values. The handler has to
// have the option json-logging.
func (h *handler) logged(message string, keysAndValues ...string) []map[string]any {
	var found []map[string]any
	for line := range strings.Lines(h.log.String()) {
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) != nil || message != "" && entry["msg"] != message {
			continue
		}
		has := true
		for k := 0; k+1 < len(keysAndValues); k += 2 {
			has = has && entry[keysAndValues[k]] == keysAndValues[k+1]
		}
		if has {
			found = append(found, entry)
		}
	}
	return found
}

func (h *handler) awaitReady() {
	h.s.Helper()
	h.s.eventually("the handler is ready", func() bool { return h.isExited() || h.get(h.probes, "/readyz") == http.StatusOK })
	if h.isExited() {
		h.s.Fatalf("the handler has exited: %s", h.log.String())
	}
}

func (h *handler) awaitLead() {
	h.s.Helper()
	h.s.eventually("the handler leads", h.leads)
}

func (h *handler) leads() bool { return strings.Contains(h.body(h.probes, "/readyz"), "leading") }

// launch runs a replica and does not wait.
func (s *scenario) launch(args ...string) *handler {
	s.Helper()
	h := s.replica()
	h.run(args...)
	return h
}

// launchBehind runs a replica behind proxies of its own, and does not wait. hooks
// get to know the replica before its first call.
func (s *scenario) launchBehind(hooks func(*handler) proxy.Hooks, args ...string) *handler {
	s.Helper()
	h := s.replica()
	var err error
	h.cloud, err = proxy.AWS(s.ctx, h.endpoint, hooks(h))
	s.must(err)
	s.Cleanup(h.cloud.Close)
	h.endpoint = h.cloud.URL()
	h.api, h.kubeconfig, err = proxy.APIServer(s.ctx, h.kubeconfig, s.TempDir(), hooks(h))
	s.must(err)
	s.Cleanup(h.api.Close)
	h.run(args...)
	return h
}

// replica is one that does not run so far.
func (s *scenario) replica() *handler {
	s.Helper()
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	h := s.process()
	h.key, h.kubeconfig, h.endpoint, h.queue = fmt.Sprintf("AKID%d", number.Add(1)), kubeconfig, s.endpoint, queueName
	return h
}

// process is a handler with ports of its own, which does not run so far.
func (s *scenario) process() *handler {
	s.Helper()
	return &handler{
		s: s, program: program, probes: freePort(s), metrics: freePort(s), log: &release.Log{}, exited: make(chan struct{}),
	}
}

// run starts the program with args.
func (h *handler) run(args ...string) {
	h.s.Helper()
	h.cmd = release.Replica{
		Program: h.program, Kubeconfig: h.kubeconfig, Namespace: h.s.name, QueueURL: h.s.aws.QueueURL(h.queue), Endpoint: h.endpoint,
		AccessKeyID: h.key, ProbesPort: h.probes, MetricsPort: h.metrics, Args: slices.Concat(h.args, args), Env: slices.Concat(h.s.env, h.env),
	}.Command(context.WithoutCancel(h.s.ctx))
	h.begin()
}

// begin starts the process. It is killed at the end of the test.
func (h *handler) begin() {
	h.s.Helper()
	h.cmd.Stdout, h.cmd.Stderr = h.log, h.log
	h.s.must(h.cmd.Start())
	go func() {
		defer close(h.exited)
		_ = h.cmd.Wait() // its state is read from cmd
	}()
	h.s.Cleanup(func() {
		h.kill()
		if h.s.Failed() {
			h.s.Logf("the handler's log:\n%s", h.log.String())
		}
	})
}

// kill ends the replica with SIGKILL.
func (h *handler) kill() {
	_ = h.cmd.Process.Kill() // it may have exited
	<-h.exited
}

// stop ends the replica with SIGTERM and returns its exit status.
func (h *handler) stop() int {
	h.s.must(h.cmd.Process.Signal(syscall.SIGTERM))
	<-h.exited
	return h.cmd.ProcessState.ExitCode()
}

// stopWith is the kubelet of the replica: it stops it when its pod has to stop.
func (h *handler) stopWith(pod string) {
	go func() {
		for !h.isExited() && h.s.ctx.Err() == nil {
			p, err := h.s.kube.CoreV1().Pods(h.s.name).Get(h.s.ctx, pod, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil {
				_ = h.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-h.exited:
			}
		}
	}()
}

func (h *handler) isExited() bool {
	select {
	case <-h.exited:
		return true
	default:
		return false
	}
}

func (h *handler) get(port int, path string) int {
	status, _ := h.fetch(port, path)
	return status
}

func (h *handler) body(port int, path string) string {
	_, body := h.fetch(port, path)
	return body
}

func (h *handler) fetch(port int, path string) (int, string) {
	request, err := http.NewRequestWithContext(h.s.ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	h.s.must(err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(body)
}

// metric is the value of one series, such as name{label="value"}; 0 if there is none.
func (h *handler) metric(series string) (value float64) {
	for line := range strings.Lines(h.body(h.metrics, "/metrics")) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			if _, err := fmt.Sscan(rest, &value); err != nil {
				h.s.Fatalf("metric %s is %q", series, rest)
			}
		}
	}
	return value
}

// sum is that of all series of a metric.
func (h *handler) sum(metric string) (sum float64) {
	for line := range strings.Lines(h.body(h.metrics, "/metrics")) {
		if !strings.HasPrefix(line, metric+"{") {
			continue
		}
		var value float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &value); err != nil {
			h.s.Fatalf("metric %s: %v", metric, err)
		}
		sum += value
	}
	return sum
}

// body is an example of testdata/events about an instance, of this moment.
// edits are pairs of an old and a new text.
func (s *scenario) body(name, instance string, edits ...string) string {
	s.Helper()
	return s.bodyAt(time.Now(), name, instance, edits...)
}

func (s *scenario) bodyAt(when time.Time, name, instance string, edits ...string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "events", name+".json"))
	s.must(err)
	replace := append([]string{
		"i-0123456789abcdef0", instance,
		"2026-11-20T10:15:30.000Z", when.UTC().Format("2006-01-02T15:04:05.000Z"),
		"2026-11-20T10:15:30Z", when.UTC().Format(time.RFC3339),
		"7d5a1d4c-7f2b-4f3e-9d1a-000000000001", fmt.Sprintf("7d5a1d4c-7f2b-4f3e-9d1a-%012d", number.Add(1)),
	}, edits...)
	return strings.NewReplacer(replace...).Replace(string(text))
}

// send puts a message into the queue and returns its id.
func (s *scenario) send(body string) string {
	s.Helper()
	id, err := s.aws.SendMessage(queueName, body)
	s.must(err)
	return id
}

// deleted is when a message was deleted; zero if it was not.
func (s *scenario) deleted(message string) time.Time {
	for _, e := range s.aws.Effects() {
		if e.Kind == awssim.MessageDeleted && e.MessageID == message {
			return e.Time
		}
	}
	return time.Time{}
}

func (s *scenario) isDeleted(message string) bool { return !s.deleted(message).IsZero() }

// awaitDeleted waits until all messages are deleted.
func (s *scenario) awaitDeleted(limit time.Duration, messages ...string) {
	s.Helper()
	for _, m := range messages {
		s.within(limit, "message "+m+" is deleted", func() bool { return s.isDeleted(m) })
	}
}

// audit are the requests of the scenario's handlers so far.
func (s *scenario) audit(keep func(sandbox.AuditEvent) bool) []sandbox.AuditEvent {
	s.Helper()
	users := []string{"system:serviceaccount:" + s.name + ":node-termination-handler"}
	if s.user != "" {
		users = append(users, s.user)
	}
	events, err := s.cluster.Audit(func(e sandbox.AuditEvent) bool { return slices.Contains(users, e.User) && (keep == nil || keep(e)) })
	s.must(err)
	return events
}

// evictions are the accepted requests that made a pod stop.
func (s *scenario) evictions() []sandbox.AuditEvent {
	s.Helper()
	return s.audit(func(e sandbox.AuditEvent) bool {
		return e.Code < 300 && (e.Verb == "create" && e.Subresource == "eviction" || e.Verb == "delete" && e.Resource == "pods")
	})
}

// writes are the requests that change anything but the Lease, Kubernetes Events and conditions of nodes.
// A question about rights is a creation that changes nothing.
func (s *scenario) writes() []sandbox.AuditEvent {
	s.Helper()
	unwatched := []string{"leases", "events", "selfsubjectaccessreviews"}
	return s.audit(func(e sandbox.AuditEvent) bool {
		return e.Verb != "get" && e.Verb != "list" && e.Verb != "watch" && !slices.Contains(unwatched, e.Resource) &&
			(e.Resource != "nodes" || e.Subresource != "status")
	})
}

// drainedBefore checks that the message was deleted after the nodes' pods had gone.
// A pod that a workload has made counts, wherever it was.
func (s *scenario) drainedBefore(message string, nodes ...node) {
	s.Helper()
	for _, n := range nodes {
		if !s.cordoned(n.name) {
			s.Errorf("node %s is not cordoned", n.name)
		}
		for _, p := range s.podsOn(n.name) {
			if p.OwnerReferences == nil || p.OwnerReferences[0].Kind != "DaemonSet" {
				s.Errorf("pod %s is still on %s", p.Name, n.name)
			}
		}
	}
	for _, e := range s.evictions() {
		on, known := s.placed.Load(e.Name)
		if known && !slices.ContainsFunc(nodes, func(n node) bool { return n.name == on }) {
			continue
		}
		if gone := s.deleted(message); !gone.IsZero() && e.Answered.After(gone) {
			s.Errorf("%s of pod %s at %s, after the message was deleted at %s", e.Verb, e.Name, e.Answered, gone)
		}
	}
}

// untouched checks that nothing happened to a node and its pods. That a change is over
// may be remembered on it.
func (s *scenario) untouched(n node, pods int) {
	s.Helper()
	got := s.getNode(n.name)
	i, _, err := cluster.ReadIntent(got)
	s.must(err)
	if got.Spec.Unschedulable || len(got.Spec.Taints) > 0 || len(i.Entries) > 0 {
		s.Errorf("node %s was touched: %+v", n.name, got.Spec)
	}
	if on := s.podsOn(n.name); len(on) < pods {
		s.Errorf("node %s has %d pods, want at least %d", n.name, len(on), pods)
	}
}

// counts are the AWS calls of an action, whatever their result.
func (s *scenario) calls(service, action string) int {
	total := 0
	for key, n := range s.aws.Counts() {
		if key.Service == service && key.Action == action {
			total += n
		}
	}
	return total
}

// patchNode changes a Node as somebody else would.
func (s *scenario) patchNode(name string, patch any) {
	s.Helper()
	body, err := json.Marshal(patch)
	s.must(err)
	_, err = s.kube.CoreV1().Nodes().Patch(s.ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	s.must(err)
}

// freePort is a port of loopback that nothing uses. No two calls get the same
// one, nor does the system hand it out meanwhile: it is below those that Linux
// takes for outgoing connections.
func freePort(s *scenario) int {
	s.Helper()
	const lowest, count = 10_000, 20_000
	for {
		port := lowest + (os.Getpid()*100+int(ports.Add(1)))%count // several test processes may run
		l, err := new(net.ListenConfig).Listen(s.ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			s.must(l.Close())
			return port
		}
		s.must(s.ctx.Err())
	}
}
