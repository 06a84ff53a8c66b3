package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/karpenter"
)

// A karpenterScenario has a cluster of its own, because Karpenter makes nodes for the pods of all scenarios,
// and a release of the chart.
type karpenterScenario struct {
	*chartScenario
	karpenter *sandbox.Component
}

// newKarpenterScenario has Karpenter with a NodePool, and a release that leaves its nodes to it.
func newKarpenterScenario(t *testing.T) *karpenterScenario {
	t.Helper()
	t.Parallel()
	path, err := sandbox.BuildKarpenter(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	own, err := sandbox.Start(t.Context(), sandbox.Options{
		APIServerFlags: []string{"--enable-admission-plugins=PodNodeSelector"},
		// Karpenter takes its taint karpenter.sh/unregistered off, and the scheduler binds the pods. Where this
		// controller hears of the pods first, it deletes them.
		ControllerManagerFlags: []string{"--controllers=-taint-eviction-controller"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			own.DumpLogs(t.Output(), 60)
		}
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	added, err := own.AddKarpenter(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	c := newChartScenarioIn(t, own)
	c.must(own.AddNodePool(c.ctx, "pool", map[string]string{"scenario": c.name}))
	c.home(nil)
	c.user = "system:serviceaccount:" + c.namespace + ":" + c.account()
	c.helm("--set=drainByKarpenter=true,queueURL="+c.aws.QueueURL(queueName), "--set=awsRegion="+region)
	return &karpenterScenario{c, added}
}

// cpu edits a pod template: how many thousandths of a CPU it asks for, of 4 that a node has. Its pods are
// not spread, for which Karpenter would make further nodes.
func cpu(milli int64) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.TopologySpreadConstraints = nil
		t.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI)}
	}
}

// nodeOf is the node of a Deployment's only pods, and the instance behind it.
func (k *karpenterScenario) nodeOf(deployment string) node {
	k.Helper()
	pods, err := k.kube.CoreV1().Pods(k.name).List(k.ctx, metav1.ListOptions{LabelSelector: "app=" + deployment})
	k.must(err)
	n := node{name: pods.Items[0].Spec.NodeName}
	if n.name == "" {
		k.Fatalf("the pod of the ready deployment %s has no node: %+v", deployment, pods.Items[0].Status)
	}
	k.eventually("Karpenter knows its node", func() bool {
		found := k.getNode(n.name)
		n.instance = cluster.InstanceID(found)
		_, claimed := k.claims()[n.name] // Karpenter writes the status of the NodeClaim a moment later
		return claimed && found.Labels["karpenter.sh/initialized"] == "true"
	})
	k.must(k.aws.PutInstance(instanceOf(n)))
	return n
}

// claims are the NodeClaims, by the names of their nodes; of those without one, by their own.
func (k *karpenterScenario) claims() map[string]metav1.ObjectMeta {
	k.Helper()
	text, err := k.kube.Discovery().RESTClient().Get().AbsPath("/apis/karpenter.sh/v1/nodeclaims").DoRaw(k.ctx)
	k.must(err)
	var list struct {
		Items []struct {
			Metadata metav1.ObjectMeta
			Status   struct{ NodeName string }
		}
	}
	k.must(json.Unmarshal(text, &list))
	claims := map[string]metav1.ObjectMeta{}
	for _, item := range list.Items {
		name := item.Status.NodeName
		if name == "" {
			name = item.Metadata.Name
		}
		claims[name] = item.Metadata
	}
	return claims
}

func (k *karpenterScenario) exists(n node) bool {
	_, err := k.kube.CoreV1().Nodes().Get(k.ctx, n.name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		k.Fatal(err)
	}
	return err == nil
}

// ofClaims are the writes of the handler to NodeClaims that succeeded, as verb and time.
func (k *karpenterScenario) ofClaims() []sandbox.AuditEvent {
	k.Helper()
	return k.audit(func(e sandbox.AuditEvent) bool { return e.Resource == "nodeclaims" && e.Verb != "get" && e.Code < 300 })
}

// deletionsByKarpenter are its accepted deletions of a pod.
func (k *karpenterScenario) deletionsByKarpenter(pod string) []sandbox.AuditEvent {
	k.Helper()
	events, err := k.cluster.Audit(func(e sandbox.AuditEvent) bool {
		return e.User == sandbox.Admin && e.Verb == "delete" && e.Resource == "pods" && e.Namespace == k.name && e.Name == pod && e.Code < 300
	})
	k.must(err)
	return events
}

// until is when Karpenter is to be done with a drain that has the deadline.
func until(deadline time.Time) time.Time { return deadline.Add(-7 * time.Second) }

func TestKarpenterDrainsItsOwnNodeAndBringsTheReplacementFirst(t *testing.T) {
	tier.Full(t, "Karpenter, two minutes and a control plane of its own")
	k := newKarpenterScenario(t)
	h := k.runPod()
	h.awaitLead()
	k.deployment("web", 2, grace(40, 30*time.Second), cpu(1200))
	n := k.nodeOf("web")
	k.deployment("kept", 1, grace(12, 2*time.Second), cpu(1200))
	k.budget("kept", "kept", 1) // which allows no eviction
	kept := k.podOf("kept", n)
	if kept == nil || len(k.podsOn(n.name)) != 3 {
		t.Fatalf("pods %v on %s, want all three", k.namesOn(n), n.name)
	}
	before := k.claims()
	pulse, sent := k.feel(), time.Now()
	message, deadline := k.warn(n, 75*time.Second)

	var replacement metav1.ObjectMeta
	k.eventually("a replacement is asked for", func() bool {
		for name, claim := range k.claims() {
			if _, old := before[name]; !old && replacement.Name == "" {
				replacement = claim
			}
		}
		return replacement.Name != ""
	})
	appeared := time.Now()
	if on := k.podsOn(n.name); len(on) != 3 {
		pulse.judge("%d pods are on the node when the replacement comes, want all three", len(on))
	}
	if got, want := k.claims()[n.name].Annotations[karpenter.DeadlineAnnotation], until(deadline).UTC().Format(time.RFC3339); got != want {
		t.Errorf("the NodeClaim has the deadline %q, want %q", got, want)
	}
	k.eventually("the handler's writes to the NodeClaim are in the audit log", func() bool { return len(k.ofClaims()) >= 2 })
	writes := k.ofClaims()
	if len(writes) != 2 || writes[0].Verb != "patch" || writes[1].Verb != "delete" {
		t.Fatalf("writes to NodeClaims: %+v", writes)
	}
	took := writes[1].Answered.Sub(sent)
	t.Logf("the NodeClaim was deleted %s after the notice, the replacement there after %s", took, appeared.Sub(sent))
	pulse.atMost(took, 10*time.Second, "the deletion of the NodeClaim") // a second on a machine that does nothing else

	k.awaitDeleted(2*soon, message)
	k.eventually("the node is gone", func() bool { return !k.exists(n) })
	k.eventually("all pods are ready elsewhere", func() bool { return k.readyReplicas("web") == 2 && k.readyReplicas("kept") == 1 })
	deletions := k.deletionsByKarpenter(kept.Name)
	switch last := until(deadline).Add(-12 * time.Second); {
	case len(deletions) == 0: // where it comes too late, the handler does it
		pulse.judge("Karpenter has not deleted the pod that its budget keeps, want it at %s", last)
	case deletions[0].Received.Before(last.Add(-time.Second)):
		t.Errorf("Karpenter has deleted the pod that its budget keeps at %+v, want %s", deletions, last)
	default:
		t.Logf("Karpenter has deleted the pod that its budget keeps %s after its time", deletions[0].Received.Sub(last))
	}
	inTime := k.beganInTime(n, writes[1].Received)
	if asked := k.evictions(); inTime && len(asked) > 0 {
		pulse.judge("the handler has asked pods to leave: %+v", asked)
	}
	told := reasons(k.told("default", "Node", n.name))
	if !slices.Contains(told, "DrainByKarpenter") {
		t.Errorf("Events %v", told)
	}
	if inTime && slices.Contains(told, "DrainByHandler") || !slices.Contains(told, "CordonAndDrain") {
		pulse.judge("Events %v", told)
	}
}

func TestTheHandlerDrainsTheNodeWhereKarpenterDoesNot(t *testing.T) {
	tier.Full(t, "Karpenter, three minutes and a control plane of its own")
	k := newKarpenterScenario(t)
	h := k.runPod()
	h.awaitLead()

	// It begins, and dies.
	k.deployment("web", 1, grace(20, 2*time.Second), cpu(3000))
	n := k.nodeOf("web")
	k.budget("web", "web", 1) // which allows no eviction
	pod := k.podOf("web", n)
	k.deployment("other", 1, grace(20, 2*time.Second), cpu(3000))
	m := k.nodeOf("other")
	other := k.podOf("other", m)
	pulse := k.feel()
	message, deadline := k.warn(n, 45*time.Second)
	k.eventually("Karpenter has begun", func() bool {
		return slices.ContainsFunc(k.getNode(n.name).Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" })
	})
	k.karpenter.Kill()
	k.eventually("the pod is asked to leave", func() bool { return !k.podExists(pod.Name) })
	requests := k.requests(pod.Name)
	if last := deadline.Add(-25 * time.Second); len(requests) == 0 { // Karpenter was killed too late
		pulse.judge("the handler has not asked the pod, want it at %s", last)
	} else if requests[0].at.Before(last.Add(-time.Second)) {
		t.Errorf("requests %v, want the first at %s", requests, last)
	} else {
		pulse.atMost(requests[0].at.Sub(last), 5*time.Second, "from the pod's last moment to the first request it")
	}
	k.awaitDeleted(2*soon, message)

	// It is away.
	sent := time.Now()
	message, _ = k.warn(m, 100*time.Second)
	k.eventually("the handler evicts the pod", func() bool { return len(k.requests(other.Name)) > 0 })
	took := k.requests(other.Name)[0].at.Sub(sent)
	t.Logf("the handler has taken over after %s", took)
	if took < 5*time.Second {
		t.Errorf("the handler has taken over after %s, want 5 s", took)
	}
	pulse.atMost(took, 20*time.Second, "the takeover")
	k.awaitDeleted(2*soon, message)
	if told := reasons(k.told("default", "Node", m.name)); !slices.Contains(told, "DrainByKarpenter") || !slices.Contains(told, "DrainByHandler") {
		t.Errorf("Events %v", told)
	}
	for series, want := range map[string]float64{`{by="karpenter",why="drained-by-karpenter"}`: 2, `{by="handler",why="karpenter-does-not-act"}`: 1} {
		if got := h.metric("node_termination_handler_karpenter_drains_total" + series); got != want {
			pulse.judge("%s is %v, want %v", series, got, want)
		}
	}
	k.must(k.karpenter.Start(k.ctx))
	k.eventually("Karpenter has finished what was begun", func() bool { return !k.exists(n) && !k.exists(m) })

	// The handler is killed between the deadline and the deletion.
	h.stop()
	k.deployment("third", 1, grace(20, 2*time.Second), cpu(3000))
	n = k.nodeOf("third")
	k.onlyTheDeadlineMayChange(k.claims()[n.name].Name)
	done := len(k.ofClaims())
	var victim *handler
	victim = k.runBehind(proxy.Hooks{Before: func(_ context.Context, c proxy.Call) proxy.Fault {
		if c.Action != "delete" || c.Resource != "nodeclaims" {
			return proxy.Fault{}
		}
		_ = victim.cmd.Process.Kill()
		return proxy.Fault{Hang: true}
	}})
	victim.awaitLead()
	message, _ = k.warn(n, 110*time.Second)
	k.eventually("the handler is killed", victim.isExited)
	if claim := k.claims()[n.name]; claim.DeletionTimestamp != nil || claim.Annotations[karpenter.DeadlineAnnotation] == "" {
		t.Errorf("the NodeClaim of the killed handler: %+v", claim)
	}
	next := k.runPod()
	next.awaitLead()
	k.awaitDeleted(2*soon, message)
	k.eventually("the node is gone", func() bool { return !k.exists(n) })
	if writes := k.ofClaims()[done:]; len(writes) != 2 || writes[0].Verb != "patch" || writes[1].Verb != "delete" {
		t.Errorf("writes to NodeClaims: %+v", writes)
	}
	if told := reasons(k.told("default", "Node", n.name)); !slices.Contains(told, "DrainByKarpenter") {
		t.Errorf("Events %v", told)
	} else if slices.Contains(told, "DrainByHandler") && k.beganInTime(n, k.ofClaims()[done+1].Received) {
		pulse.judge("Events %v", told)
	}
}

// onlyTheDeadlineMayChange tries what the rights of the handler would let it do to a NodeClaim, and the admission
// policy does not.
func (k *karpenterScenario) onlyTheDeadlineMayChange(claim string) {
	k.Helper()
	path, err := k.cluster.ServiceAccountKubeconfig(k.ctx, k.namespace, k.account())
	k.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	k.must(err)
	client, err := kubernetes.NewForConfig(config)
	k.must(err)
	for _, body := range []string{
		`{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":"true"}}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"finalizers":null}}`,
	} {
		err := client.Discovery().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/karpenter.sh/v1/nodeclaims", claim).
			Body([]byte(body)).Do(k.ctx).Error()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "but for its termination timestamp") {
			k.Errorf("%s: %v", body, err)
		}
	}
}

// beganInTime reports whether Karpenter has begun with a drain soon after it was asked, so that the handler had
// no reason to take over. On a machine that does much else it may not.
func (k *karpenterScenario) beganInTime(n node, asked time.Time) bool {
	k.Helper()
	begun, err := k.cluster.Audit(func(e sandbox.AuditEvent) bool {
		return e.User == sandbox.Admin && e.Verb == "patch" && e.Resource == "nodes" && e.Name == n.name && e.Received.After(asked)
	})
	k.must(err)
	if len(begun) == 0 || begun[0].Answered.Sub(asked) > 4*time.Second {
		k.Logf("Karpenter has begun too late, or not at all, to tell who drains the node: %+v", begun)
		return false
	}
	return true
}

// runBehind is runPod behind a proxy in front of the API server.
func (k *karpenterScenario) runBehind(hooks proxy.Hooks) *handler {
	k.Helper()
	arguments, env := k.pod()
	at := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
	api, path, err := proxy.APIServer(k.ctx, strings.TrimPrefix(env[at], "KUBECONFIG="), k.TempDir(), hooks)
	k.must(err)
	k.Cleanup(api.Close)
	env[at] = "KUBECONFIG=" + path
	h := k.process()
	h.cmd = exec.CommandContext(context.WithoutCancel(k.ctx), program, append(arguments,
		fmt.Sprintf("--probes-server-port=%d", h.probes), fmt.Sprintf("--prometheus-server-port=%d", h.metrics))...)
	h.cmd.Env = env
	h.begin()
	return h
}
