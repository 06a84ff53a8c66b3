package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A person has rights of its own, and the program as a plugin of kubectl.
type person struct {
	s               *scenario
	account, plugin string
	runs            int
}

// person is a ServiceAccount without rights.
func (s *scenario) person(name string) *person {
	s.Helper()
	_, err := s.kube.CoreV1().ServiceAccounts(s.name).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
	plugin := filepath.Join(s.TempDir(), "kubectl-nth")
	s.must(os.Symlink(program, plugin))
	return &person{s: s, account: name, plugin: plugin}
}

// grant gives the person the rights that docs/status.md names.
func (p *person) grant(kinds ...string) { p.grantOf("status.md", kinds...) }

// grantOf is grant with the rights of another page.
func (p *person) grantOf(page string, kinds ...string) {
	p.s.Helper()
	content, err := os.ReadFile(filepath.Join("..", "docs", page))
	p.s.must(err)
	_, text, _ := strings.Cut(string(content), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.s.name, Name: p.account}}
	name := p.s.name + "-" + p.account + "-" + strings.TrimSuffix(page, ".md")
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), len(text)); ; {
		var role rbacv1.ClusterRole // a Role has the same rules
		if decoder.Decode(&role) != nil {
			return
		}
		if !slices.Contains(kinds, role.Kind) {
			continue
		}
		of := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: name}
		about := metav1.ObjectMeta{Name: name}
		rights := p.s.kube.RbacV1()
		if role.Kind == "Role" {
			_, err = rights.Roles(p.s.name).Create(p.s.ctx, &rbacv1.Role{ObjectMeta: about, Rules: role.Rules}, metav1.CreateOptions{})
			p.s.must(err)
			_, err = rights.RoleBindings(p.s.name).Create(p.s.ctx, &rbacv1.RoleBinding{ObjectMeta: about, RoleRef: of, Subjects: subject}, metav1.CreateOptions{})
		} else {
			_, err = rights.ClusterRoles().Create(p.s.ctx, &rbacv1.ClusterRole{ObjectMeta: about, Rules: role.Rules}, metav1.CreateOptions{})
			p.s.must(err)
			_, err = rights.ClusterRoleBindings().Create(p.s.ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: about, RoleRef: of, Subjects: subject}, metav1.CreateOptions{})
		}
		p.s.must(err)
	}
}

// run runs a command of the plugin.
func (p *person) run(args ...string) (status int, out, errOut string) {
	p.s.Helper()
	p.runs++
	kubeconfig, err := p.s.cluster.ServiceAccountKubeconfig(p.s.ctx, p.s.name, p.account)
	p.s.must(err)
	ctx, cancel := context.WithTimeout(p.s.ctx, soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.plugin, append(args, "-n", p.s.name)...)
	cmd.Env = []string{"KUBECONFIG=" + kubeconfig, "HOME=" + p.s.TempDir()}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		p.s.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// status is what the person sees.
func (p *person) status() (o overview.Overview, status int) {
	p.s.Helper()
	status, out, errOut := p.run("status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		p.s.Fatalf("%v: status %d, %s%s", err, status, out, errOut)
	}
	return o, status
}

// requests are those that the person has made, as far as they are logged.
func (p *person) requests() (all []string) {
	user := "system:serviceaccount:" + p.s.name + ":" + p.account
	events, err := p.s.cluster.Audit(func(e sandbox.AuditEvent) bool { return e.User == user })
	p.s.must(err)
	answered := map[string]bool{} // a request of the proxy is logged when its answer begins and when it ends
	for _, e := range events {
		key := e.URI + e.Received.String()
		if answered[key] {
			continue
		}
		answered[key] = true
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s/%s", e.Verb, e.Resource, e.Subresource), "/"))
	}
	return all
}

// newReachableScenario has a control plane of its own, whose API server reaches the pods that there are routes to.
func newReachableScenario(t *testing.T) (*scenario, *sandbox.Egress) {
	t.Helper()
	egress, err := sandbox.NewEgress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(egress.Close)
	own, err := sandbox.Start(t.Context(), sandbox.Options{APIServerFlags: []string{egress.Flag()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	return newScenarioIn(t, own), egress
}

// leaderIn runs a replica that stands for a pod on the node, and waits until it leads.
func (s *scenario) leaderIn(pod string, on node, args ...string) *handler {
	s.Helper()
	s.pod(pod, on.name)
	return s.leader(append(slices.Clone(args), "--pod-name="+pod)...)
}

// route lets the API server reach the metrics of a replica at the address of its pod, until close is called.
func (s *scenario) route(egress *sandbox.Egress, pod string, h *handler) (close func()) {
	s.Helper()
	p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, pod, metav1.GetOptions{})
	s.must(err)
	return egress.Route(s.ctx, fmt.Sprintf("%s:%d", p.Status.PodIP, h.metrics), fmt.Sprintf("127.0.0.1:%d", h.metrics))
}

// TestPeopleSeeWhatIsInProgressThroughTheAPIServer plays the whole way: the person's rights, the Lease, the proxy of
// the API server, the address of the pod, the port that the Lease names, and the leader.
func TestPeopleSeeWhatIsInProgressThroughTheAPIServer(t *testing.T) {
	tier.Full(t, "45 s and a control plane of its own")
	t.Parallel()
	s, egress := newReachableScenario(t)
	nodes := s.nodes(3)
	home, n := nodes[0], nodes[1]
	h := s.leaderIn("leader", home, "--node-termination-grace-period=600") // which the message is held for
	closePort := s.route(egress, "leader", h)

	s.pod("kept", n.name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "kept"} })
	s.budget("strict", "kept", 1)
	message := s.reserve(n)
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	deadline := s.intent(n).Deadline()

	anna, ben, carl := s.person("anna"), s.person("ben"), s.person("carl")
	anna.grant("Role", "ClusterRole")
	ben.grant("ClusterRole")

	// Anna has all rights that the docs name.
	var seen overview.Overview
	s.eventually("status names the budget", func() bool {
		var code int
		if seen, code = anna.status(); code != 0 && code != 3 {
			t.Fatalf("status %d, and %+v", code, seen)
		}
		return len(seen.Nodes) == 1 && len(seen.Nodes[0].WaitsFor) > 0 && seen.Nodes[0].WaitsFor[0].Cause == overview.Budget
	})
	if w := seen.Nodes[0].WaitsFor[0]; w.Name != s.name+"/strict" || w.Pods != 1 || seen.Nodes[0].Name != n.name || seen.Leader != "leader" ||
		seen.Source != overview.Leader || seen.Nodes[0].Deadline.Sub(deadline).Abs() > time.Second || seen.Queue.InFlight != 1 {
		t.Errorf("%+v", seen)
	}
	code, out, _ := anna.run("status")
	if !strings.Contains(out, "PodDisruptionBudget "+s.name+"/strict") || !strings.Contains(out, "Leader:      leader") || strings.Contains(out, "\x1b") || code != 0 {
		t.Errorf("status %d, and the table is\n%s", code, out)
	}
	s.eventually("the requests are logged", func() bool { return len(anna.requests()) >= 2*anna.runs })
	if got, want := anna.requests(), slices.Repeat([]string{"get leases", "get pods/proxy"}, anna.runs); !slices.Equal(got, want) {
		t.Errorf("the requests are %q", got)
	}

	// Who lacks rights sees what is left, and is told why.
	if o, code := ben.status(); code != 4 || !strings.Contains(o.Missing, "you lack the permission to get the Lease") || len(o.Nodes) != 1 || o.Nodes[0].Name != n.name {
		t.Errorf("status %d, and ben sees %+v", code, o)
	}
	if code, out, errOut := carl.run("status"); code != 1 || out != "" || !strings.Contains(errOut, "kubectl nth: list the nodes") {
		t.Errorf("status %d, and carl sees %s%s", code, out, errOut)
	}

	// The port is closed, as by a NetworkPolicy.
	closePort()
	if o, code := anna.status(); code != 4 || !strings.Contains(o.Missing, "the API server cannot reach pod "+s.name+"/leader") || len(o.Nodes) != 1 {
		t.Errorf("status %d, and %+v", code, o)
	}
	s.route(egress, "leader", h)

	// The budget gives way, and the drain is told of.
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "strict", metav1.DeleteOptions{}))
	s.awaitDeleted(soon, message)
	code, out, errOut := anna.run("report", "--node", n.name)
	for _, part := range []string{"# Drains of node `" + n.name + "`", "1 drain: 1 drained.", "0 forced, **0 lost**", "- 1 pod: PodDisruptionBudget " + s.name + "/strict"} {
		if !strings.Contains(out, part) || code != 0 {
			t.Errorf("status %d, and the report lacks %q:\n%s%s", code, part, out, errOut)
		}
	}
	if code, out, errOut := anna.run("report", "--since", "1h", "-o", "json"); code != 0 || // nobody has led before
		!strings.Contains(out, `"everything"`) {
		t.Errorf("status %d, and the report is %s%s", code, out, errOut)
	}

	// The role may not receive any more: that is the first thing to know.
	s.must(s.aws.SetFault(awssim.Fault{ID: "deaf", Service: "sqs", Action: "ReceiveMessage", Status: http.StatusForbidden, Code: "AccessDenied"}))
	s.eventually("status says first that no notice arrives", func() bool {
		code, out, _ := anna.run("status")
		return code == 5 && strings.HasPrefix(out, "Notices:     no notice arrives since ") && strings.Contains(out, "sqs:ReceiveMessage")
	})
	s.aws.RemoveFault("deaf")
	s.eventually("they arrive again", func() bool {
		code, out, _ := anna.run("status")
		return code == 0 && !strings.Contains(out, "Notices:")
	})

	// Nobody leads. The Lease is released, and the pod stays.
	if code := h.stop(); code != 0 {
		t.Errorf("the handler ends with status %d", code)
	}
	if o, code := anna.status(); code != 4 || o.Leaderless || !strings.Contains(o.Missing, "nobody holds the Lease "+s.name+"/"+release.Name) || len(o.Nodes) != 0 {
		t.Errorf("status %d, and %+v", code, o)
	}
	code, out, errOut = anna.run("report", "--node", n.name)
	if code != 4 || !strings.Contains(out, "1 drain: 1 drained.") || !strings.Contains(out, "list the Events of nodes") {
		t.Errorf("status %d, and the report is\n%s%s", code, out, errOut)
	}

	// The next replica waits at its start: its pod says for what.
	s.must(s.aws.SetFault(awssim.Fault{ID: "away", Service: "sqs", Status: 503}))
	next := s.launch("--pod-name=next")
	s.pod("next", home.name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": release.Name}
		p.Annotations = map[string]string{sandbox.NotReady: ""}
		ready := &corev1.HTTPGetAction{Path: "/readyz", Port: intstr.FromString("liveness-probe")} // as the chart has it
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: ready}}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "liveness-probe", ContainerPort: int32(next.probes)}}
	})
	p, err := s.kube.CoreV1().Pods(s.name).Get(s.ctx, "next", metav1.GetOptions{})
	s.must(err)
	egress.Route(s.ctx, fmt.Sprintf("%s:%d", p.Status.PodIP, next.probes), fmt.Sprintf("127.0.0.1:%d", next.probes))
	s.eventually("status says why nobody leads", func() bool {
		o, _ := anna.status()
		return strings.Contains(o.Missing, ". Pod next is not ready: ") && strings.Contains(o.Missing, "queue: sqs GetQueueAttributes")
	})
}

// TestAPauseStopsTheLeaderAndTheNext plays pause and resume as a person does, with the rights that docs/stop.md names.
func TestAPauseStopsTheLeaderAndTheNext(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("kept", nodes[0].name, app("kept"), stopping(time.Second, 0))
	s.pod("other", nodes[1].name, stopping(time.Second, 0))
	s.budget("kept", "kept", 1)
	first := s.leader()
	s.start()
	p := s.person("on-call")
	p.grant("Role", "ClusterRole")
	p.grantOf("stop.md", "Role")
	warning := s.reserve(nodes[0])
	s.eventually("the drain is blocked", func() bool { return len(s.requests("kept")) > 0 })

	status, out, errOut := p.run("pause", "--why", "the budget of kept is wrong")
	if status != 0 || !strings.Contains(out, ": the budget of kept is wrong): no node is drained") {
		t.Fatalf("pause: %d\n%s%s", status, out, errOut)
	}
	isOurs := func(n overview.Node) bool { return n.Name == nodes[0].name } // there are those of other scenarios
	if o, status := p.status(); status != 5 || o.Paused == nil || !slices.ContainsFunc(o.Nodes, isOurs) {
		t.Errorf("status: %d, %+v", status, o)
	}
	s.eventually("the leader has stopped", func() bool { return !first.leads() })
	if status, _, errOut := s.run("", "simulate", "spot", "--node", nodes[1].name, "--yes"); status != 1 || !strings.Contains(errOut, "the handler is paused (since 2") {
		t.Errorf("simulate: %d, %s", status, errOut)
	}
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "kept", metav1.DeleteOptions{}))
	other := s.reserve(nodes[1])
	asked := len(s.requests("kept"))
	nothing := func() bool {
		return len(s.requests("kept")) == asked && len(s.requests("other")) == 0 && s.state(nodes[1]) == ""
	}
	s.throughout(10*time.Second, "nothing is done", nothing)
	holder := s.leaseHolder()
	first.kill()
	s.eventually("the other replica takes the Lease", func() bool {
		now := s.leaseHolder()
		return now != holder && now != ""
	})
	s.throughout(5*time.Second, "the next one does nothing either", nothing)

	if status, out, errOut = p.run("resume"); status != 0 || !strings.Contains(out, "the budget of kept is wrong") {
		t.Fatalf("resume: %d\n%s%s", status, out, errOut)
	}
	resumed := time.Now()
	s.eventually("both nodes are drained", func() bool {
		return s.state(nodes[0]) == cluster.StateDrained && s.state(nodes[1]) == cluster.StateDrained
	})
	t.Logf("drained %s after resume", time.Since(resumed).Round(time.Millisecond))
	s.awaitDeleted(soon, warning, other)
}

// leaseHolder is who holds the Lease.
func (s *scenario) leaseHolder() string {
	s.Helper()
	l, err := s.kube.CoordinationV1().Leases(s.name).Get(s.ctx, release.Name, metav1.GetOptions{})
	s.must(err)
	return *l.Spec.HolderIdentity
}
