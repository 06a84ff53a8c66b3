// Package rehearsal says what a notice would do to a node: which pods would be evicted when,
// which PodDisruptionBudgets would block, whose grace would be cut short, and which pods would
// still be there at the end. It reads pods and budgets and changes nothing. The steps are those
// of the drain itself, because package drain plans both.
package rehearsal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

// A Request is the drain to rehearse: a node, what its notice demands, and the options of the drain.
type Request struct {
	Node   *corev1.Node
	Terms  evacuation.Terms
	Start  time.Time
	End    time.Time // of the rehearsal, where Terms has no deadline
	Filter drain.Filter
	Rules  decision.Rules       // that say when each pod leaves
	Grace  time.Duration        // of every pod; negative: the pods' own
	Surge  bool                 // rollouts bring replacements, as Drainer.Surge does
	Self   types.NamespacedName // the handler's own pod, which leaves last
	// Volumes are waited for after the last pod, as Drainer.Volumes does.
	Volumes bool
}

// A Snapshot is the state of the cluster that rehearsals start from. One serves many of them.
type Snapshot struct {
	pods       map[string][]*corev1.Pod // by node
	size       map[workload]int         // number of pods
	budgets    map[string][]policyv1.PodDisruptionBudget
	budgetsErr error // why the budgets could not be read; nil if they were
}

// Read lists the pods of one node, and the budgets and pods of their namespaces.
func Read(ctx context.Context, client kube.Client, node string) (*Snapshot, error) {
	own, err := listPods(ctx, client, metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", node).String())
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	namespaces := map[string]bool{}
	for _, pod := range own {
		namespaces[pod.Namespace] = true
	}
	return read(ctx, client, slices.Sorted(maps.Keys(namespaces))...)
}

// ReadAll lists all pods and budgets of the cluster, for rehearsals of any of its nodes.
func ReadAll(ctx context.Context, client kube.Client) (*Snapshot, error) {
	return read(ctx, client, metav1.NamespaceAll)
}

// read lists the pods and budgets of namespaces.
func read(ctx context.Context, client kube.Client, namespaces ...string) (*Snapshot, error) {
	v := &Snapshot{
		pods: map[string][]*corev1.Pod{}, size: map[workload]int{}, budgets: map[string][]policyv1.PodDisruptionBudget{},
	}
	for _, namespace := range namespaces {
		all, err := listPods(ctx, client, namespace, "")
		if err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", cmp.Or(namespace, "all namespaces"), err)
		}
		for _, pod := range all {
			v.pods[pod.Spec.NodeName] = append(v.pods[pod.Spec.NodeName], pod)
			if w, ok := workloadOf(pod); ok && pod.DeletionTimestamp == nil {
				v.size[w]++
			}
		}
		if err := v.readBudgets(ctx, client, namespace); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// On returns the pods of a node.
func (v *Snapshot) On(node string) []*corev1.Pod { return v.pods[node] }

func (v *Snapshot) readBudgets(ctx context.Context, client kube.Client, namespace string) error {
	list, err := client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		v.budgetsErr = errors.New("permission list poddisruptionbudgets.policy is missing")
		return nil
	case err != nil:
		return fmt.Errorf("list the PodDisruptionBudgets: %w", err)
	}
	for _, b := range list.Items {
		v.budgets[b.Namespace] = append(v.budgets[b.Namespace], b)
	}
	return nil
}

// listPods lists a page at a time.
func listPods(ctx context.Context, client kube.Client, namespace, selector string) ([]*corev1.Pod, error) {
	var all []*corev1.Pod
	opts := metav1.ListOptions{FieldSelector: selector, Limit: 500}
	for {
		list, err := client.CoreV1().Pods(namespace).List(ctx, opts)
		if err != nil {
			return nil, err
		}
		for k := range list.Items {
			all = append(all, &list.Items[k])
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return all, nil
		}
	}
}

// A workload owns pods, and has the name that people gave it.
type workload struct{ namespace, kind, name string }

// workloadOf returns the workload of a pod. It reports false if no other pod would take the
// place of this one.
func workloadOf(pod *corev1.Pod) (workload, bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return workload{}, false
	}
	switch owner.Kind {
	case "DaemonSet", "Job", "Node": // there is one for each node, or it ends some day
		return workload{}, false
	}
	name := owner.Name
	if hash := pod.Labels["pod-template-hash"]; hash != "" { // a Deployment's ReplicaSet is named after both
		name = strings.TrimSuffix(name, "-"+hash)
	}
	return workload{pod.Namespace, owner.Kind, name}, true
}

// Run rehearses a drain. It makes no request.
func (v *Snapshot) Run(r Request) *Report {
	report := &Report{Request: r, Allowed: map[string]int{}, BudgetsUnread: v.budgetsErr}
	on := v.pods[r.Node.Name]
	budgets := report.budgetsOf(v.budgets, on) // fills Allowed
	report.Fates = drain.Simulation{
		Pods: on, Grace: r.Grace, Self: r.Self, Terms: r.Terms, Rules: r.Rules, Start: r.Start, End: r.End, Filter: r.Filter,
		Budgets: budgets, Allowed: report.Allowed,
	}.Run()
	report.Down = v.down(report.Fates)
	return report
}

// down are the workloads all of whose pods leave, where no budget makes some of them wait for the others: one that
// allows none to leave makes them all leave at once, when they are forced.
func (v *Snapshot) down(fates []drain.PodOutcome) (all []Down) {
	leaving, blocked := map[workload]int{}, map[workload]int{}
	for _, f := range fates {
		w, ok := workloadOf(f.Pod)
		if ok && !f.Stays && !f.Asked.IsZero() && f.Pod.DeletionTimestamp == nil {
			leaving[w]++
			if len(f.Blocked) > 0 {
				blocked[w]++
			}
		}
	}
	for w, n := range leaving {
		if n == v.size[w] && (blocked[w] == 0 || blocked[w] == n) {
			all = append(all, Down{w.namespace + "/" + w.name, n})
		}
	}
	slices.SortFunc(all, func(a, b Down) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// budgetsOf returns a function that names the budgets of a pod. It records in Allowed what they allow.
func (r *Report) budgetsOf(
	budgets map[string][]policyv1.PodDisruptionBudget, pods []*corev1.Pod,
) func(*corev1.Pod) []string {
	of := map[*corev1.Pod][]string{}
	for _, pod := range pods {
		var covering []*policyv1.PodDisruptionBudget
		for k := range budgets[pod.Namespace] {
			b := &budgets[pod.Namespace][k]
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err == nil && selector.Matches(labels.Set(pod.Labels)) {
				covering = append(covering, b)
			}
		}
		if len(covering) == 1 && allowsUnready(covering[0], pod) { // two are refused before anybody looks at the pod
			continue
		}
		for _, b := range covering {
			name := b.Namespace + "/" + b.Name
			of[pod] = append(of[pod], name)
			r.Allowed[name] = int(b.Status.DisruptionsAllowed)
		}
	}
	return func(pod *corev1.Pod) []string { return of[pod] }
}

// allowsUnready reports whether the budget does not protect the pod because it is not ready.
// https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
func allowsUnready(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if evacuation.Ready(pod) {
		return false
	}
	if b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}
