// Package whatif says what a notice would do to a node: who would be evicted
// when, which budgets would block, whose time would be cut short, and what would
// be left. It asks the API server, and changes nothing; the plan is drain's.
package whatif

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
)

// A Question is a notice for a node, and the options that bear on its drain.
type Question struct {
	Node   *corev1.Node
	Terms  drain.Terms
	Start  time.Time
	End    time.Time // of the rehearsal, where Terms has no deadline
	Filter drain.Filter
	Grace  time.Duration // negative: the pods' own
	Self   types.NamespacedName
}

// An Answer is what would happen.
type Answer struct {
	Question
	Fates []drain.Fate
	// Allowed are the disruptions that the budgets of these pods allow now, by namespace/name.
	Allowed map[string]int
	// BudgetsUnread is why budgets were not looked at; nil: they were.
	BudgetsUnread error
}

// A Client lists pods and budgets; a clientset is one.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
	PolicyV1() typedpolicyv1.PolicyV1Interface
}

// Ask lists the node's pods and their budgets, and plays the drain through.
func Ask(ctx context.Context, client Client, q Question) (*Answer, error) {
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", q.Node.Name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", q.Node.Name, err)
	}
	a := &Answer{Question: q, Allowed: map[string]int{}}
	var pods []*corev1.Pod
	var namespaces []string
	for k := range list.Items {
		pod := &list.Items[k]
		pods = append(pods, pod)
		if !slices.Contains(namespaces, pod.Namespace) {
			namespaces = append(namespaces, pod.Namespace)
		}
	}
	budgets := map[string][]policyv1.PodDisruptionBudget{}
	for _, namespace := range namespaces {
		list, err := client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
		switch {
		case apierrors.IsForbidden(err):
			a.BudgetsUnread = errors.New("permission list poddisruptionbudgets.policy is missing")
		case err != nil:
			return nil, fmt.Errorf("list the budgets of namespace %s: %w", namespace, err)
		default:
			budgets[namespace] = list.Items
		}
	}
	a.Fates = drain.Rehearsal{
		Pods: pods, Grace: q.Grace, Self: q.Self, Terms: q.Terms, Start: q.Start, End: q.End, Allowed: a.Allowed,
		Filter: q.Filter,
		// The rehearsal asks when it comes to a pod; Allowed has been filled by then.
		Budgets: a.budgetsOf(budgets, pods),
	}.Run()
	return a, nil
}

// budgetsOf finds the budgets of each pod, and notes what these allow.
func (a *Answer) budgetsOf(budgets map[string][]policyv1.PodDisruptionBudget, pods []*corev1.Pod) func(*corev1.Pod) []string {
	of := map[types.NamespacedName][]string{}
	for _, pod := range pods {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		for k := range budgets[pod.Namespace] {
			b := &budgets[pod.Namespace][k]
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil || !selector.Matches(labels.Set(pod.Labels)) || lenient(b, pod) {
				continue
			}
			name := b.Namespace + "/" + b.Name
			of[key] = append(of[key], name)
			a.Allowed[name] = int(b.Status.DisruptionsAllowed)
		}
	}
	return func(pod *corev1.Pod) []string {
		return of[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]
	}
}

// lenient reports whether the budget lets the pod go for not being ready.
// https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
func lenient(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	if b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// A Sum is an Answer in numbers.
type Sum struct {
	Pods         int // that would have to leave
	Uncontrolled int // of these, those that nothing makes anew
	Longest      time.Duration
	Blocked      int // by budgets
	Forced, Cut  int
	Left         []string // there at the end
}

// Sum counts.
func (a *Answer) Sum() Sum {
	var s Sum
	for _, f := range a.Fates {
		if f.Stays || f.Self {
			continue
		}
		s.Pods++
		if metav1.GetControllerOf(f.Pod) == nil {
			s.Uncontrolled++
		}
		s.Longest = max(s.Longest, f.Own)
		if len(f.Blocked) > 0 {
			s.Blocked++
		}
		if f.Forced {
			s.Forced++
		}
		if f.Cut() {
			s.Cut++
		}
		if f.Gone.IsZero() {
			s.Left = append(s.Left, nameOf(f.Pod))
		}
	}
	return s
}

// Brief is the answer in a line, such as "12 pods, 2 without a controller, longest grace 60 s".
func (a *Answer) Brief() string {
	s := a.Sum()
	line := count(s.Pods, "pod")
	if s.Uncontrolled > 0 {
		line += fmt.Sprintf(", %d without a controller", s.Uncontrolled)
	}
	if s.Pods > 0 {
		line += ", longest grace " + seconds(s.Longest)
	}
	return line
}

// Print writes the answer for people.
func (a *Answer) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "  %8s  %-15s  %s\n", "after", "event", "pod")
	for _, f := range a.Fates {
		what, after := "evicted", seconds(f.Asked.Sub(a.Start))
		switch {
		case f.Stays:
			what, after = "stays", ""
		case f.Self:
			what, after = "leaves last", ""
		case f.Asked.IsZero():
			what, after = "not asked", ""
		case f.Pod.DeletionTimestamp != nil:
			what = "stopping"
		case f.Forced:
			what = "deleted"
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("  %8s  %-15s  %-40s  %s", after, what, nameOf(f.Pod), a.remarks(f)), " "))
	}
	s := a.Sum()
	fmt.Fprintf(&b, "\n%s would have to leave", count(s.Pods, "pod"))
	for _, part := range []struct {
		n    int
		text string
	}{{s.Uncontrolled, "without a controller: nothing makes it anew"}, {s.Blocked, "blocked by a budget"}, {s.Forced, "deleted, not evicted"}, {s.Cut, "with less than its grace"}} {
		if part.n > 0 {
			fmt.Fprintf(&b, "; %d %s", part.n, part.text)
		}
	}
	b.WriteString("\n")
	switch {
	case len(s.Left) > 0:
		fmt.Fprintf(&b, "left after %s: %s\n", seconds(a.End.Sub(a.Start)), strings.Join(s.Left, ", "))
	case a.Terms.Deadline.IsZero():
		fmt.Fprintf(&b, "nothing is left after %s\n", seconds(a.End.Sub(a.Start)))
	default:
		fmt.Fprintf(&b, "nothing is left at the deadline, after %s\n", seconds(a.Terms.Deadline.Sub(a.Start)))
	}
	if a.BudgetsUnread != nil {
		fmt.Fprintf(&b, "budgets were not looked at: %v\n", a.BudgetsUnread)
	}
	b.WriteString("This is the worst case: every pod takes all of its grace, and no budget frees up.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// remarks are what is special about a pod's fate.
func (a *Answer) remarks(f drain.Fate) string {
	var parts []string
	switch {
	case f.Stays && f.Why == "":
		parts = append(parts, "of a DaemonSet, or static")
	case f.Stays:
		parts = append(parts, f.Why)
	case f.Cut():
		parts = append(parts, fmt.Sprintf("gets %s of its %s", seconds(f.Grace), seconds(f.Own)))
	case !f.Asked.IsZero():
		parts = append(parts, "grace "+seconds(f.Grace))
	}
	for _, budget := range f.Blocked {
		parts = append(parts, fmt.Sprintf("budget %s allows %d", budget, a.Allowed[budget]))
	}
	if len(f.Blocked) > 1 {
		parts = append(parts, "two budgets on one pod never clear")
	}
	if f.Last && !f.Stays {
		parts = append(parts, "after the workloads")
	}
	if !f.Stays && !f.Self && metav1.GetControllerOf(f.Pod) == nil {
		parts = append(parts, "no controller")
	}
	return strings.Join(parts, "; ")
}

// nameOf leaves the namespace out where kubectl would need none.
func nameOf(p *corev1.Pod) string {
	if p.Namespace == metav1.NamespaceDefault {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
