package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/release"
)

// What the handler itself does passes the admission policies: all scenarios run with them, and checkPrivileges
// tells what was refused. Here somebody has a token of its ServiceAccount.

// holder is a client with the token in a kubeconfig.
func (s *scenario) holder(kubeconfig string) kubernetes.Interface {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	s.must(err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	return client
}

// awaitPolicies waits until the API server heeds the policies of the release, which takes a second or two. The last
// of them is that of the Leases or, in IMDS mode, of the Events.
func (s *scenario) awaitPolicies(holder kubernetes.Interface, n node) {
	s.Helper()
	s.eventually("the first policy counts", func() bool {
		_, err := holder.CoreV1().Nodes().Patch(s.ctx, n.name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"awaits":"policies"}}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return isRefusal(err)
	})
	s.eventually("the last policy counts", func() bool {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "awaits-policies"}}
		_, err := holder.CoordinationV1().Leases(s.name).Create(s.ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return isRefusal(err) || apierrors.IsForbidden(err) && isRefusal(s.writeEvent(holder, corev1.Event{}))
	})
}

// allowOutOfService changes the policy of the manifests as the option enable-out-of-service-taint needs it, and waits
// until the API server heeds it.
func (s *scenario) allowOutOfService(holder kubernetes.Interface, n node) {
	s.Helper()
	otherRights.Store(s.name, true) // it is refused until then
	policies := s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	s.must(retry.RetryOnConflict(retry.DefaultRetry, func() error { // the API server may be writing its status
		policy, err := policies.Get(s.ctx, s.name+".nodes", metav1.GetOptions{})
		s.must(err)
		for k, v := range policy.Spec.Variables {
			if v.Name == "outOfService" {
				policy.Spec.Variables[k].Expression = "true"
			}
		}
		_, err = policies.Update(s.ctx, policy, metav1.UpdateOptions{})
		return err
	}))
	s.eventually("the taint is allowed", func() bool {
		ours := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: release.Name, Effect: corev1.TaintEffectNoExecute}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": append(s.getNode(n.name).Spec.Taints, ours)}})
		s.must(err)
		_, err = holder.CoreV1().Nodes().Patch(s.ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	})
}

const ourOutOfService = `{"key":"node.kubernetes.io/out-of-service","value":"node-termination-handler","effect":"NoExecute"}`

// isRefusal reports whether an error is the refusal of an admission policy.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

func tryPatch(s *scenario, holder kubernetes.Interface, node, patch string) error {
	_, err := holder.CoreV1().Nodes().Patch(s.ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// refused checks that an error is a refusal that says what was wrong.
func refused(t *testing.T, what string, err error, says string) {
	t.Helper()
	if !isRefusal(err) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want a refusal by a policy with %q", what, err, says)
	}
}

func TestATokenOfTheHandlerChangesOnlyWhatTheHandlerDoes(t *testing.T) {
	s := newScenario(t)
	otherRights.Store(s.name, true)
	n := s.nodes(1)[0]
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.ctx, s.name, release.Name)
	s.must(err)
	holder := s.holder(kubeconfig)
	s.patchNode(n.name, map[string]any{
		"metadata": map[string]any{
			"annotations": map[string]any{"example.com/note": "mine", "node-termination-handler/left": "over"},
			"labels":      map[string]any{corev1.LabelNodeExcludeBalancers: "somebody"},
		},
		"spec": map[string]any{"taints": []any{map[string]any{"key": "example.com/taint", "effect": "NoSchedule"}}},
	})
	s.awaitPolicies(holder, n)

	const (
		others = `{"key":"example.com/taint","effect":"NoSchedule"}`
		ours   = `{"key":"aws-node-termination-handler/spot-itn","value":"e","effect":"NoSchedule"}`
	)
	for _, tt := range []struct{ what, patch, says string }{
		{"another annotation", `{"metadata":{"annotations":{"example.com/new":"1"}}}`, "annotations of a node that are not its own: example.com/new"},
		{"a changed annotation", `{"metadata":{"annotations":{"example.com/note":"1"}}}`, "not its own: example.com/note"},
		{"a removed annotation", `{"metadata":{"annotations":{"example.com/note":null}}}`, "not its own: example.com/note"},
		{"all annotations", `{"metadata":{"annotations":null}}`, "example.com/note"},
		{"another label", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, "labels of a node that are not its own: node-role.kubernetes.io/control-plane"},
		{"a changed label", `{"metadata":{"labels":{"kubernetes.io/os":"windows"}}}`, "not its own: kubernetes.io/os"},
		{"a removed label", `{"metadata":{"labels":{"scenario":null}}}`, "not its own: scenario"},
		{"somebody's exclusion from load balancers", `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":null}}}`, "node.kubernetes.io/exclude-from-external-load-balancers"},
		{"the same, taken over", `{"metadata":{"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":"aws-node-termination-handler"}}}`, "node.kubernetes.io/exclude-from-external-load-balancers"},
		{"the addresses of pods", `{"spec":{"podCIDR":"10.9.9.0/24","podCIDRs":["10.9.9.0/24"]}}`, "spec.podCIDRs"},
		{"a finalizer", `{"metadata":{"finalizers":["example.com/never"]}}`, "fields of a node: metadata.finalizers"},
		{"an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"y"}]}}`, "fields of a node: metadata.ownerReferences"},
		{"another taint", `{"spec":{"taints":[` + others + `,{"key":"example.com/new","effect":"NoExecute"}]}}`, "taints of a node that are not its own: example.com/new"},
		{"a removed taint", `{"spec":{"taints":[]}}`, "not its own: example.com/taint"},
		{"a changed taint", `{"spec":{"taints":[{"key":"example.com/taint","effect":"NoExecute"}]}}`, "not its own: example.com/taint"},
		{"an administrator's out-of-service taint", `{"spec":{"taints":[` + others + `,{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`, "not its own: node.kubernetes.io/out-of-service"},
		{"the out-of-service taint without its option", `{"spec":{"taints":[` + others + `,` + ourOutOfService + `]}}`, "not its own: node.kubernetes.io/out-of-service"},
	} {
		refused(t, tt.what, tryPatch(s, holder, n.name, tt.patch), tt.says)
	}
	s.allowOutOfService(holder, n)
	write := `{"metadata":{"annotations":{"node-termination-handler/left":"1"},"labels":{"node-termination-handler/state":"draining"}},
		"spec":{"unschedulable":true,"taints":[` + others + `,` + ours + `,` + ourOutOfService + `]}}`
	if err := tryPatch(s, holder, n.name, write); err != nil {
		t.Errorf("what the handler does is refused: %v", err)
	}
	// Taints of Kubernetes itself may have been added meanwhile.
	s.eventually("it is undone", func() bool {
		now := s.getNode(n.name)
		undo := map[string]any{
			"metadata": map[string]any{
				"resourceVersion": now.ResourceVersion,
				"annotations":     map[string]any{"node-termination-handler/left": nil}, "labels": map[string]any{"node-termination-handler/state": nil},
			},
			"spec": map[string]any{"unschedulable": false, "taints": slices.DeleteFunc(now.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == "aws-node-termination-handler/spot-itn" || t.Key == corev1.TaintNodeOutOfService
			})},
		}
		body, err := json.Marshal(undo)
		s.must(err)
		err = tryPatch(s, holder, n.name, string(body))
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatalf("the undo is refused: %v", err)
		}
		return err == nil
	})

	pod := s.pod("pod", n.name)
	const zero = "with a grace period of zero"
	refused(t, "a deletion without grace", holder.CoreV1().Pods(s.name).Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}), zero)
	refused(t, "an eviction without grace", s.evict(holder, pod, &metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}), zero)
	for _, e := range []corev1.Event{
		{Source: corev1.EventSource{Component: "kubelet"}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: n.name}},
		{Source: corev1.EventSource{Component: "aws-node-termination-handler"}, InvolvedObject: corev1.ObjectReference{Kind: "Secret", Namespace: s.name, Name: "x"}},
	} {
		refused(t, "an Event of another", s.writeEvent(holder, e), "only its own Events, about Nodes and pods")
	}
	const disrupted = `{"type":"DisruptionTarget","status":"True","reason":"TerminationByNodeTerminationHandler"}`
	for _, tt := range []struct{ what, patch, says string }{
		{"a pod out of its Services", `{"status":{"conditions":[` + disrupted + `,{"type":"Ready","status":"False"}]}}`, "conditions of a pod that are not its own: Ready"},
		{"a phase of a pod", `{"status":{"phase":"Failed","conditions":[` + disrupted + `]}}`, "fields of a pod: status.phase"},
		{"a label of a pod", `{"metadata":{"labels":{"app":"other"}},"status":{"conditions":[` + disrupted + `]}}`, "fields of a pod: metadata.labels"},
		{"a disruption by somebody else", `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"PreemptionByScheduler"}]}}`, "only that it is disrupted"},
	} {
		refused(t, tt.what, s.patchStatus(holder, pod, tt.patch), tt.says)
	}
	s.must(s.patchStatus(holder, pod, `{"status":{"conditions":[`+disrupted+`]}}`))
	_, err = holder.CoordinationV1().Leases(s.name).Create(s.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kube-scheduler"}}, metav1.CreateOptions{})
	refused(t, "the Lease of another", err, "only the Lease of its leader election")
	s.must(holder.CoreV1().Pods(s.name).Delete(s.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}))
}

// patchStatus patches the status of a pod.
func (s *scenario) patchStatus(by kubernetes.Interface, pod *corev1.Pod, patch string) error {
	_, err := by.CoreV1().Pods(pod.Namespace).Patch(s.ctx, pod.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

func TestATokenOfADaemonSetsPodChangesItsOwnNodeOnly(t *testing.T) {
	s := newIMDSScenario(t)
	otherRights.Store(s.name, true)
	own, others := s.pod("own", s.node.name), s.pod("others", s.other.name)
	holder := s.holder(s.kubeconfig)
	s.awaitPolicies(holder, s.node)
	const cordon = `{"spec":{"unschedulable":true}}`
	foreign := "the token is of a pod on node " + s.node.name + ": it may not "
	refused(t, "a cordon", tryPatch(s.scenario, holder, s.other.name, cordon), foreign+"change node "+s.other.name)
	refused(t, "the out-of-service taint", tryPatch(s.scenario, holder, s.node.name, `{"spec":{"taints":[`+ourOutOfService+`]}}`), "not its own: node.kubernetes.io/out-of-service")
	refused(t, "an annotation", tryPatch(s.scenario, holder, s.node.name, `{"metadata":{"annotations":{"example.com/new":"1"}}}`), "not its own: example.com/new")
	whose := fmt.Sprintf("pod %s/others, whose node is '%s'", s.name, s.other.name)
	refused(t, "a deletion", holder.CoreV1().Pods(s.name).Delete(s.ctx, others.Name, metav1.DeleteOptions{}), foreign+"delete "+whose)
	refused(t, "an eviction", s.evict(holder, others, nil), foreign+"evict "+whose)
	const disrupted = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"TerminationByNodeTerminationHandler"}]}}`
	refused(t, "a condition", s.patchStatus(holder, others, disrupted), foreign+"change "+whose)
	for _, e := range []corev1.Event{
		{Source: corev1.EventSource{Component: "aws-node-termination-handler", Host: s.node.name}, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: s.other.name}},
		{Source: corev1.EventSource{Component: "aws-node-termination-handler", Host: s.other.name}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: s.name, Name: "others"}},
	} {
		refused(t, "an Event", s.writeEvent(holder, e), strings.TrimSuffix(foreign, "not ")+"write Events only in the name of its node")
	}

	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(s.ctx, s.home, "nth-"+release.Name)
	s.must(err)
	ofNobody := s.holder(kubeconfig)
	const nowhere = "the token names no node: it may not "
	refused(t, "a cordon without a pod", tryPatch(s.scenario, ofNobody, s.node.name, cordon), nowhere+"change node "+s.node.name)
	refused(t, "a deletion without a pod", ofNobody.CoreV1().Pods(s.name).Delete(s.ctx, own.Name, metav1.DeleteOptions{}), nowhere+"delete")
	refused(t, "an eviction without a pod", s.evict(ofNobody, own, nil), nowhere+"evict")

	s.must(tryPatch(s.scenario, holder, s.node.name, cordon))
	s.must(s.patchStatus(holder, own, disrupted))
	s.must(s.evict(holder, own, nil))
	s.must(s.evict(s.kube, others, nil)) // the policies are about one ServiceAccount
}

// Each policy is compiled by the API server and checked by the controller manager against the types of its resources.
func TestTheAdmissionPoliciesHaveNoMistakesInTheirTypes(t *testing.T) {
	s := newIMDSScenario(t)
	for namespace, kinds := range map[string]int{s.name: 6, s.home: 6} {
		s.eventually("the policies are checked", func() bool {
			list, err := s.kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(s.ctx, metav1.ListOptions{})
			s.must(err)
			checked := 0
			for _, p := range list.Items {
				if !strings.HasPrefix(p.Name, namespace+".") || p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
					continue
				}
				checked++
				for _, w := range p.Status.TypeChecking.ExpressionWarnings {
					t.Fatalf("policy %s: %s: %s", p.Name, w.FieldRef, w.Warning)
				}
			}
			return checked == kinds
		})
	}
}

// evict is an eviction of a pod by somebody.
func (s *scenario) evict(by kubernetes.Interface, pod *corev1.Pod, options *metav1.DeleteOptions) error {
	return by.PolicyV1().Evictions(pod.Namespace).Evict(s.ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: options,
	})
}

func (s *scenario) writeEvent(by kubernetes.Interface, e corev1.Event) error {
	namespace := e.InvolvedObject.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	e.ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("%s.%d", s.name, number.Add(1)), Namespace: namespace}
	e.FirstTimestamp, e.LastTimestamp = metav1.Now(), metav1.Now()
	_, err := by.CoreV1().Events(namespace).Create(s.ctx, &e, metav1.CreateOptions{})
	return err
}
