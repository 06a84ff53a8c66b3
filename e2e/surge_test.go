package e2e

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/surge"
)

// surging edits a pod template: its owner wants the replacement first, and its pod has 5 s to stop.
func surging(t *corev1.PodTemplateSpec) {
	t.Spec.TerminationGracePeriodSeconds = new(int64(5))
	t.Annotations = map[string]string{decision.LeaveAnnotation: decision.LeaveSurged.String()}
}

// newSurgeScenario has a release with the option on.
func newSurgeScenario(t *testing.T) *chartScenario {
	t.Helper()
	c := newChartScenario(t)
	c.home(nil)
	c.user = "system:serviceaccount:" + c.namespace + ":" + c.account()
	c.helm("--set=surgeSingletons=true,queueURL="+c.aws.QueueURL(queueName), "--set=awsRegion="+region)
	return c
}

// account is the ServiceAccount of the release.
func (c *chartScenario) account() string { return c.release + "-node-termination-handler" }

// podOf is the only pod of a Deployment that is not stopping and is on a node; nil: there is none.
func (s *scenario) podOf(deployment string, n node) *corev1.Pod {
	s.Helper()
	for _, p := range s.podsOn(n.name) {
		if p.Labels["app"] == deployment && p.DeletionTimestamp == nil {
			return &p
		}
	}
	return nil
}

// rollouts are the patches of a Deployment by the release.
func (c *chartScenario) rollouts(deployment string) int {
	c.Helper()
	return len(c.audit(func(e sandbox.AuditEvent) bool {
		return e.Verb == "patch" && e.Resource == "deployments" && e.Namespace == c.name && e.Name == deployment && e.Code < 300
	}))
}

func TestTheReplacementOfASingletonIsReadyBeforeItLeaves(t *testing.T) {
	tier.Full(t, "100 s with Helm; internal/surge plays it in virtual time")
	c := newSurgeScenario(t)
	first := c.runPod()
	first.awaitLead()
	n := c.nodes(1)[0]
	c.deployment("single", 1, surging)
	c.deployment("recreated", 1, surging)
	c.budget("single", "single", 1) // which allows no eviction
	recreate := `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`
	_, err := c.kube.AppsV1().Deployments(c.name).Patch(c.ctx, "recreated", types.MergePatchType, []byte(recreate), metav1.PatchOptions{})
	c.must(err)
	single, recreated := c.podOf("single", n), c.podOf("recreated", n)
	pulse := c.feel()
	message, deadline := c.warn(n, 75*time.Second)

	var replacement corev1.Pod
	c.eventually("the replacement waits for a node", func() bool {
		pods, err := c.kube.CoreV1().Pods(c.name).List(c.ctx, metav1.ListOptions{LabelSelector: "app=single", FieldSelector: "status.phase=Pending"})
		c.must(err)
		if len(pods.Items) == 1 {
			replacement = pods.Items[0]
		}
		return len(pods.Items) == 1
	})
	first.stop() // the next leader finds what was begun
	second := c.runPod("--json-logging")
	second.awaitLead()
	c.throughout(2*time.Second, "both pods run on", func() bool {
		return c.podOf("single", n) != nil && c.podOf("recreated", n) != nil
	})
	began := time.Now()
	c.node(c.name+"-z", c.id(25))
	c.eventually("the pod is gone", func() bool { return !c.podExists(single.Name) })
	took := time.Since(began)
	now, err := c.kube.CoreV1().Pods(c.name).Get(c.ctx, replacement.Name, metav1.GetOptions{})
	c.must(err)
	ready := now.Status.Phase == corev1.PodRunning && now.Spec.NodeName == c.name+"-z"
	deletions, err := c.cluster.Audit(func(e sandbox.AuditEvent) bool {
		return e.Verb == "delete" && e.Resource == "pods" && e.Namespace == c.name && e.Name == single.Name && e.User != kubelets
	})
	c.must(err)
	if !ready || len(deletions) != 1 || deletions[0].Received.Before(now.Status.StartTime.Time) || len(c.requests(single.Name)) > 0 {
		t.Errorf("the replacement is %s on %q since %v; deletions %+v; requests %v", now.Status.Phase, now.Spec.NodeName, now.Status.StartTime, deletions, c.requests(single.Name))
	}
	deployment, err := c.kube.AppsV1().Deployments(c.name).Get(c.ctx, "single", metav1.GetOptions{})
	c.must(err)
	if got := deployment.Spec.Template.Annotations[surge.Annotation]; got != string(single.UID) || *deployment.Spec.Replicas != 1 {
		t.Errorf("the Deployment was rolled out for %q with %d replicas, want pod %s and 1", got, *deployment.Spec.Replicas, single.UID)
	}

	c.awaitDeleted(2*soon, message)
	requests := c.requests(recreated.Name)
	if last := deadline.Add(-10 * time.Second); len(requests) == 0 || !requests[0].evicts || requests[0].at.Before(last.Add(-time.Second)) {
		t.Errorf("requests %v for the pod whose Deployment cannot surge, want an eviction at %s", requests, last)
	} else {
		pulse.before(requests[0].at, deadline, "the pod whose Deployment cannot surge was evicted")
	}
	if one, none := c.rollouts("single"), c.rollouts("recreated"); one != 1 || none != 0 {
		t.Errorf("%d rollouts, and %d where there can be none", one, none)
	}
	hasSurged := func(e map[string]any) bool { return reflect.DeepEqual(e["surged"], []any{c.name + "/" + single.Name}) }
	if !slices.ContainsFunc(second.logged(""), hasSurged) || !strings.Contains(second.log.String(), "Deployment recreated has the strategy Recreate") {
		t.Error("the log does not say which pod was surged, or why the other was not")
	}
	t.Logf("the pod was gone %s after its replacement had a node", took.Round(time.Millisecond))
}

func TestATokenOfTheHandlerBeginsRolloutsAlone(t *testing.T) {
	tier.Full(t, "30 s with Helm; an option")
	c := newSurgeScenario(t)
	otherRights.Store(c.name, true)
	otherRights.Store(c.namespace, true)
	kubeconfig, err := c.cluster.ServiceAccountKubeconfig(c.ctx, c.namespace, c.account())
	c.must(err)
	holder := c.holder(kubeconfig)
	c.nodes(1)
	c.deployment("single", 1, surging)
	c.deployment("others", 1)
	const (
		uid   = "6c2f0c7e-1111-4222-8333-944445555666"
		begin = `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/surged-for":"` + uid + `"}}}}}`
		undo  = `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/surged-for":null}}}}}`
	)
	const dryRun = true
	c.eventually("the policy counts", func() bool {
		return isRefusal(tryRollout(c, holder, "others", begin, dryRun))
	})
	for _, tt := range []struct{ what, deployment, patch, says string }{
		{"a Deployment that did not opt in", "others", begin, "has no annotation node-termination-handler/leave: surged"},
		{"one that opts in now", "others", `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/leave":"surged","node-termination-handler/surged-for":"` + uid + `"}}}}}`, "annotations of a pod template that are not its own: node-termination-handler/leave"},
		{"another program", "single", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"evil"}]}}}}`, "fields of a Deployment: spec.template.spec"},
		{"another program with a rollout", "single", `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/surged-for":"` + uid + `"}},"spec":{"serviceAccountName":"admin"}}}}`, "fields of a Deployment: spec.template.spec"},
		{"replicas", "single", `{"spec":{"replicas":0}}`, "fields of a Deployment: spec.replicas"},
		{"a strategy", "single", `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`, "fields of a Deployment: spec.strategy"},
		{"a pause", "single", `{"spec":{"paused":true}}`, "fields of a Deployment: spec.paused"},
		{"a label", "single", `{"metadata":{"labels":{"app":"x"}}}`, "fields of a Deployment: metadata.labels"},
		{"an annotation", "single", `{"metadata":{"annotations":{"node-termination-handler/x":"y"}}}`, "fields of a Deployment: metadata.annotations"},
		{"an owner", "single", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"y"}]}}`, "fields of a Deployment: metadata.ownerReferences"},
		{"a label of its pods", "single", `{"spec":{"template":{"metadata":{"labels":{"x":"y"}}}}}`, "fields of a Deployment: spec.template.metadata.labels"},
		{"an annotation of its pods", "single", `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`, "annotations of a pod template that are not its own: kubectl.kubernetes.io/restartedAt"},
		{"the consent", "single", `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/leave":null,"node-termination-handler/surged-for":"` + uid + `"}}}}}`, "not its own: node-termination-handler/leave"},
		{"all annotations", "single", `{"spec":{"template":{"metadata":{"annotations":null}}}}`, "not its own: node-termination-handler/leave"},
		{"a rollout for nobody", "single", `{"spec":{"template":{"metadata":{"annotations":{"node-termination-handler/surged-for":"` + uid + `x"}}}}}`, "only for the UID of a pod"},
	} {
		refused(t, tt.what, tryRollout(c, holder, tt.deployment, tt.patch, !dryRun), tt.says)
	}
	c.must(tryRollout(c, holder, "single", begin, !dryRun))
	refused(t, "to take it back", tryRollout(c, holder, "single", undo, !dryRun), "only for the UID of a pod")
	_, err = holder.AppsV1().Deployments(c.name).Create(c.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	if err == nil || isRefusal(err) {
		t.Errorf("to create one: %v, want that the roles do not allow it", err)
	}
	_, err = holder.AppsV1().Deployments(c.name).Patch(c.ctx, "single", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}, "scale")
	if err == nil || isRefusal(err) {
		t.Errorf("to scale one: %v, want that the roles do not allow it", err)
	}
	c.must(tryRollout(c, c.kube, "others", begin, !dryRun)) // the policy is about one ServiceAccount

	c.eventually("the policy is checked", func() bool {
		name := fmt.Sprintf("%s-node-termination-handler.%s.deployments", c.release, c.namespace)
		p, err := c.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(c.ctx, name, metav1.GetOptions{})
		c.must(err)
		if p.Status.TypeChecking == nil {
			return false
		}
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			t.Errorf("policy %s: %s: %s", p.Name, w.FieldRef, w.Warning)
		}
		return true
	})
}

func tryRollout(c *chartScenario, by kubernetes.Interface, deployment, patch string, dryRun bool) error {
	options := metav1.PatchOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err := by.AppsV1().Deployments(c.name).Patch(c.ctx, deployment, types.MergePatchType, []byte(patch), options)
	return err
}
