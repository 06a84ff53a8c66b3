package rehearsal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Report says what would happen.
type Report struct {
	Request
	Fates []drain.PodOutcome
	// Allowed is how many disruptions the budgets of these pods allow now, by namespace/name.
	Allowed map[string]int
	// BudgetsUnread is why the budgets could not be read; nil if they were.
	BudgetsUnread error
	// Down are the workloads all of whose pods have to leave: they are down until the next one is ready. By
	// name, sorted.
	Down []Down
}

// A Down is a workload that is down during a drain.
type Down struct {
	Name     string // namespace/name
	Replicas int    // all of them are on the node
}

// A Summary counts the pods of a report that would have to leave.
type Summary struct {
	Pods         int
	Names        []string
	Ended        int           // of which nothing runs any more: they are not among the others
	Uncontrolled []string      // without a controller: nothing creates them again
	Longest      time.Duration // the longest grace that a pod asks for
	Blocked      int           // by budgets
	Forced       int           // deleted, not evicted
	Cut          []string      // killed before the end of their grace periods
	Left         []string      // still there at the end
	Lost         []string      // of the Left, if the instance goes away then
	// Stayed do not have to leave, as an option, a rule or their owners say, and go with the instance. They are not among
	// the others.
	Stayed []string
}

// Summary counts.
func (r *Report) Summary() Summary {
	var s Summary
	for _, f := range r.Fates {
		if f.Stays && f.Why != "" && !ofDaemonSet(f.Pod) && !r.Terms.Deadline.IsZero() {
			s.Stayed = append(s.Stayed, evacuation.NameOf(f.Pod))
		}
		if f.Stays {
			continue
		}
		if f.Ended {
			s.Ended++
			continue
		}
		s.Pods++
		s.Names = append(s.Names, evacuation.NameOf(f.Pod))
		if metav1.GetControllerOf(f.Pod) == nil {
			s.Uncontrolled = append(s.Uncontrolled, evacuation.NameOf(f.Pod))
		}
		s.Longest = max(s.Longest, f.Own)
		if len(f.Blocked) > 0 {
			s.Blocked++
		}
		if f.Forced {
			s.Forced++
		}
		if f.Cut() {
			s.Cut = append(s.Cut, evacuation.NameOf(f.Pod))
		}
		leaves := f.Self || !f.Gone.IsZero() // this program ends before its grace
		if !leaves {
			s.Left = append(s.Left, evacuation.NameOf(f.Pod))
		}
	}
	if !r.Terms.Deadline.IsZero() {
		s.Lost = s.Left
	}
	return s
}

func ofDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// String is the summary in a line, such as "12 pods, 2 without a controller, longest grace 60 s".
func (s Summary) String() string {
	line := overview.Count(s.Pods, "pod")
	if n := len(s.Uncontrolled); n > 0 {
		line += fmt.Sprintf(", %d without a controller", n)
	}
	if s.Pods > 0 {
		line += ", longest grace " + Seconds(s.Longest)
	}
	return line
}

// event says in a word what happens to a pod, and when. It is unknown if a budget that could
// not be read may block the eviction.
func (r *Report) event(f drain.PodOutcome) (what string, at time.Time) {
	switch {
	case f.Stays:
		return "stays", time.Time{}
	case f.Asked.IsZero() && f.Ended:
		return "has ended", time.Time{}
	case f.Asked.IsZero():
		return "not asked", time.Time{}
	case f.Pod.DeletionTimestamp != nil:
		return "stopping", f.Asked
	case f.Forced:
		return "deleted", f.Asked
	case r.maybeBlocked(f):
		return unknown, f.Asked
	}
	return "evicted", f.Asked
}

const unknown = "?"

// maybeBlocked reports whether a budget that could not be read may block the eviction of the pod.
func (r *Report) maybeBlocked(f drain.PodOutcome) bool {
	evicted := !f.Stays && !f.Forced && !f.Asked.IsZero()
	return r.BudgetsUnread != nil && evicted && !evacuation.Unprotected(f.Pod)
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "  %8s  %-15s  %s\n", "after", "event", "pod")
	for _, f := range r.Fates {
		b.WriteString(r.line(f) + "\n")
	}
	b.WriteString(r.conclusion())
	if slices.ContainsFunc(r.Fates, r.maybeBlocked) {
		fmt.Fprintf(&b, "PodDisruptionBudgets could not be read: %v. "+
			"A pod marked ? is evicted at once, unless one of them blocks it.\n", r.BudgetsUnread)
	}
	b.WriteString("This is the worst case of a drain that begins at once: every pod uses its whole grace period, " +
		"and no PodDisruptionBudget allows more evictions later. Admission webhooks and policies are not asked.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// line is a row of the table of pods.
func (r *Report) line(f drain.PodOutcome) string {
	what, at := r.event(f)
	after := ""
	if !at.IsZero() {
		after = Seconds(at.Sub(r.Start))
	}
	if what == unknown {
		after = unknown
	}
	row := fmt.Sprintf("  %8s  %-15s  %-40s  %s", after, what, evacuation.NameOf(f.Pod), r.remarks(f))
	return strings.TrimRight(row, " ")
}

// conclusion says in sentences how many pods would have to leave, and what would become of them.
func (r *Report) conclusion() string {
	var b strings.Builder
	s := r.Summary()
	fmt.Fprintf(&b, "\n%s would have to leave", overview.Count(s.Pods, "pod"))
	for _, part := range []struct {
		n    int
		text string
	}{
		{len(s.Uncontrolled), "without a controller"},
		{s.Blocked, "blocked by a PodDisruptionBudget"},
		{s.Forced, "deleted, not evicted"},
		{s.Ended, "ended before: not waited for"},
	} {
		if part.n > 0 {
			fmt.Fprintf(&b, "; %d %s", part.n, part.text)
		}
	}
	b.WriteString("\n")
	for _, d := range r.Down {
		has := "1 replica"
		if d.Replicas > 1 {
			has = fmt.Sprintf("all %d replicas on this node", d.Replicas)
		}
		fmt.Fprintf(&b, "%s has %s: down during the drain\n", d.Name, has)
	}
	if len(s.Lost) > 0 {
		fmt.Fprintf(&b, "would be lost: %s\n", strings.Join(s.Lost, ", "))
	}
	if len(s.Uncontrolled) > 0 {
		fmt.Fprintf(&b, "would not be created again: %s\n", strings.Join(s.Uncontrolled, ", "))
	}
	if len(s.Stayed) > 0 {
		fmt.Fprintf(&b, "would go with the instance, as an option, a rule or their owners say: %s\n",
			strings.Join(s.Stayed, ", "))
	}
	if len(s.Cut) > 0 {
		fmt.Fprintf(&b, "would be killed before the end of their grace periods: %s\n", strings.Join(s.Cut, ", "))
	}
	but := "" // the drain does not wait for an object of which nothing runs any more
	if slices.ContainsFunc(r.Fates, func(f drain.PodOutcome) bool { return len(keepers(f)) > 0 }) {
		but = ", but the objects that finalizers keep"
	}
	switch {
	case len(s.Left) > 0:
		fmt.Fprintf(&b, "left after %s: %s", Seconds(r.End.Sub(r.Start)), strings.Join(s.Left, ", "))
		if r.Terms.Deadline.IsZero() {
			b.WriteString("; without a deadline the drain waits until they leave")
		}
		b.WriteString("\n")
	case r.Terms.Deadline.IsZero():
		fmt.Fprintf(&b, "nothing is left after %s%s", Seconds(r.End.Sub(r.Start)), but)
		if slices.ContainsFunc(r.Fates, r.maybeBlocked) {
			b.WriteString(", unless a PodDisruptionBudget blocks it")
		}
		b.WriteString("\n")
	default:
		fmt.Fprintf(&b, "nothing is left at the deadline, after %s%s\n", Seconds(r.Terms.Deadline.Sub(r.Start)), but)
	}
	if claims := r.AwaitedClaims(); len(claims) > 0 {
		end := ""
		if !r.Terms.Deadline.IsZero() {
			end = ", but not past the deadline"
		}
		fmt.Fprintf(&b, "then the drain may wait until volumes are detached, for up to %.0f minutes%s: those of the "+
			"claims %s\n", drain.LongestDetach.Minutes(), end, strings.Join(evacuation.Names(claims, mostClaims), ", "))
	}
	return b.String()
}

// mostClaims is how many claims are named.
const mostClaims = 10

// AwaitedClaims are the claims whose volumes the drain may wait for. Which of them are attached is not known: whether
// any volume is, the Node tells.
func (r *Report) AwaitedClaims() []string {
	if !r.Volumes || len(r.Node.Status.VolumesAttached) == 0 {
		return nil
	}
	return drain.AwaitedClaims(r.Fates)
}

// remarks are what is special about what happens to a pod.
func (r *Report) remarks(f drain.PodOutcome) string {
	var parts []string
	if end := endOf(f); end != "" {
		parts = append(parts, end)
	}
	for _, budget := range f.Blocked {
		parts = append(parts, fmt.Sprintf("budget %s allows %d", budget, r.Allowed[budget]))
	}
	if len(f.Blocked) > 1 {
		parts = append(parts, "two budgets on one pod never clear")
	}
	switch {
	case f.Stays, f.Ended:
	case f.Self:
		parts = append(parts, "this is the leader: it leaves last")
	case f.Critical:
		parts = append(parts, "after the workloads")
	case f.Turn.Leave != decision.LeaveNow:
		parts = append(parts, f.Turn.String())
		if f.Turn.Surges && r.Surge {
			parts = append(parts, "sooner, if its Deployment can roll out a replacement first")
		}
	}
	if f.Turn.Mistake != "" {
		parts = append(parts, f.Turn.Mistake)
	}
	if !f.Stays && !f.Ended && metav1.GetControllerOf(f.Pod) == nil {
		parts = append(parts, "no controller")
	}
	for _, name := range keepers(f) {
		parts = append(parts, fmt.Sprintf("finalizer %s keeps the object until somebody removes it", name))
	}
	return strings.Join(parts, "; ")
}

// keepers are the finalizers that will keep the object of a pod when it has stopped, but those that the control plane
// removes by itself.
func keepers(f drain.PodOutcome) []string {
	if f.Stays || f.Ended {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(f.Pod.Finalizers), func(name string) bool {
		return name == batchv1.JobTrackingFinalizer || name == metav1.FinalizerDeleteDependents ||
			name == metav1.FinalizerOrphanDependents
	})
}

// endOf says why a pod stays, or how it ends; empty: nothing is known.
func endOf(f drain.PodOutcome) string {
	switch {
	case f.Stays && f.Why == "":
		return "of a DaemonSet, or static"
	case f.Stays:
		return f.Why
	case f.Ended && f.Asked.IsZero():
		return "kept by its finalizers"
	case f.Ended:
		return "it has ended"
	case f.Cut():
		return fmt.Sprintf("gets %s of its %s", Seconds(f.Grace), Seconds(f.Own))
	case !f.Asked.IsZero():
		return "grace " + Seconds(f.Grace)
	}
	return ""
}

// A PodReport says what happens to a pod, for programs.
type PodReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Event is evicted, deleted, stopping, has ended, not asked or stays; ? if it is not known.
	Event string `json:"event"`
	// After is when that happens, in seconds since the notice.
	After *float64 `json:"afterSeconds,omitempty"`
	// Grace is the time that the pod gets to stop, and OwnGrace the time that it asks for.
	Grace    float64  `json:"graceSeconds"`
	OwnGrace float64  `json:"ownGraceSeconds"`
	Budgets  []string `json:"blockedBy,omitempty"`
	Remarks  string   `json:"remarks,omitempty"`
}

// PodReports is the report for programs.
func (r *Report) PodReports() []PodReport {
	reports := []PodReport{}
	for _, f := range r.Fates {
		what, at := r.event(f)
		pod := PodReport{
			Namespace: f.Pod.Namespace, Name: f.Pod.Name, Event: what,
			Grace: f.Grace.Seconds(), OwnGrace: f.Own.Seconds(), Budgets: f.Blocked, Remarks: r.remarks(f),
		}
		if !at.IsZero() && what != unknown {
			pod.After = new(at.Sub(r.Start).Seconds())
		}
		reports = append(reports, pod)
	}
	return reports
}

// Seconds is a time span of a notice in seconds, and a longer one as people say it.
func Seconds(d time.Duration) string {
	const longer = 10 * time.Minute
	if d > longer {
		return overview.Length(d)
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
