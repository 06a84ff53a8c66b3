package decision

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A PodRule says when pods leave a node that is drained, compared with the others.
type PodRule struct {
	Name string

	// Pods and Annotations select pods: of each, one has to match; empty: all pods.
	Pods, Annotations []Selector
	// Namespaces are patterns, in which * stands for any characters; empty: all.
	Namespaces []string
	// DaemonSets: it is about pods of DaemonSets, and about no others. Only such a rule makes them leave.
	DaemonSets bool

	Leave Departure
	// Order is the place among those that leave After, from 1 on.
	Order int
}

// Departure is when a pod leaves.
type Departure uint8

// The times at which pods leave.
const (
	LeaveNow    Departure = iota // with most others
	LeaveFirst                   // before the others
	LeaveAfter                   // after the others, by its Order
	LeaveEnd                     // after all others, also those of the system
	LeaveLast                    // at the last moment that its grace period allows
	LeaveSurged                  // when its workload has rolled out a replacement, or at the last moment
	LeaveNever                   // it stays, and is lost with the machine
)

// String is the name in a policy file and in the annotation of a pod.
func (l Departure) String() string {
	return [...]string{"now", "first", "after", "end", "last", "surged", "never"}[l]
}

// DepartureOf is the inverse of String.
func DepartureOf(name string) (l Departure, ok bool) {
	for l = LeaveNow; l <= LeaveNever; l++ {
		if l.String() == name {
			return l, true
		}
	}
	return LeaveNow, false
}

// A Pod is what a rule has to know of one.
type Pod struct {
	Namespace           string
	Labels, Annotations map[string]string
	DaemonSet           bool
	// Started is when a kubelet has taken the pod on; zero: none has so far.
	Started time.Time
}

// Annotations, and a label, by which the owner of a pod says when it leaves. LeaveAnnotation has the name of a
// Departure; see ownersDepartures. The others are known from what else takes nodes away.
// https://karpenter.sh/preview/reference/annotations/
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md
// https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations
const (
	LeaveAnnotation        = "node-termination-handler/leave"
	DoNotDisruptAnnotation = "karpenter.sh/do-not-disrupt"
	SafeToEvictAnnotation  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	DrainLabel             = "cluster.x-k8s.io/drain"
)

// ownersDepartures are the values of LeaveAnnotation. An owner knows no order among the pods of
// others, so After is none of them.
var ownersDepartures = []Departure{LeaveNow, LeaveFirst, LeaveLast, LeaveEnd, LeaveSurged, LeaveNever}

// A Turn says when a pod leaves, and who wants it so.
type Turn struct {
	Leave Departure
	// Order is the place among those that leave After, from 1 on.
	Order int
	// Stays: the pod is one of a DaemonSet, and nothing has it leave, or it leaves LeaveNever.
	Stays bool
	// Why is the name of the rule that decides, or the key of the annotation; empty: none does.
	Why string
	// Until is when the time of the annotation is over, and the turn is another; zero: the turn does
	// not change by itself.
	Until time.Time
	// Surges: the pod leaves LeaveSurged, and its own annotation says so. Only then may a rollout of its
	// workload be begun: a rule speaks for the platform, and the workload is its owner's.
	Surges bool
	// Mistake says why the pod's LeaveAnnotation is ignored; empty: it is not, or there is none.
	Mistake string
}

// String says it in words, such as "leaves last (jobs)", with what Why names.
func (t Turn) String() string {
	words := "leaves " + t.Leave.String()
	switch t.Leave {
	case LeaveAfter:
		words = fmt.Sprintf("leaves after the others, by order %d", t.Order)
	case LeaveEnd:
		words = "leaves at the end"
	case LeaveSurged: // what has no replacement leaves last
		words = "leaves last"
	case LeaveNow, LeaveFirst, LeaveLast, LeaveNever:
	}
	if t.Stays {
		words = "stays"
	}
	if t.Why != "" {
		words += " (" + t.Why + ")"
	}
	return words
}

// TurnOf says when a pod leaves a node. The first of these that is there decides:
//
//	                                      the pod leaves             a pod of a DaemonSet
//	a rule of the file                    as it says                 as it says
//	node-termination-handler/leave        as it says                 as it says, if that is end or never
//	cluster.x-k8s.io/drain: skip, a label never                      stays
//	the same: wait-completed              last                       stays
//	karpenter.sh/do-not-disrupt           last, without a deadline   stays
//	.../safe-to-evict: "false"            last, without a deadline   stays
//	none                                  now                        stays
//
// An annotation or label with a value that has no meaning counts as none.
func (r Rules) TurnOf(pod Pod, hasDeadline bool, now time.Time) Turn {
	if rule := r.PodRuleFor(pod); rule != nil {
		return Turn{
			Leave: rule.Leave, Order: rule.Order, Stays: rule.Leave == LeaveNever, Why: rule.Name,
			Surges: rule.Leave == LeaveSurged && pod.Annotations[LeaveAnnotation] == LeaveSurged.String() && !pod.DaemonSet,
		}
	}
	var turn Turn
	if value, there := pod.Annotations[LeaveAnnotation]; there {
		leave, known := DepartureOf(value)
		switch {
		case !known || !slices.Contains(ownersDepartures, leave):
			turn.Mistake = mistaken(value, "it is none of "+strings.Join(ownersValues(), ", "))
		case pod.DaemonSet && leave != LeaveEnd && leave != LeaveNever:
			turn.Mistake = mistaken(value, "a pod of a DaemonSet can only leave at the end or never")
		default:
			return Turn{Leave: leave, Stays: leave == LeaveNever, Why: LeaveAnnotation, Surges: leave == LeaveSurged}
		}
	}
	if strings.EqualFold(pod.Labels[DrainLabel], "skip") {
		turn.Leave, turn.Stays, turn.Why = LeaveNever, true, DrainLabel
		return turn
	}
	if pod.DaemonSet {
		turn.Stays = true
		return turn
	}
	if strings.EqualFold(pod.Labels[DrainLabel], "wait-completed") {
		turn.Leave, turn.Why = LeaveLast, DrainLabel
		return turn
	}
	if until, protected := pod.protected(now); protected && !hasDeadline {
		turn.Leave, turn.Why, turn.Until = LeaveLast, DoNotDisruptAnnotation, until
	} else if pod.Annotations[SafeToEvictAnnotation] == "false" && !hasDeadline {
		turn.Leave, turn.Why = LeaveLast, SafeToEvictAnnotation
	}
	return turn
}

func mistaken(value, why string) string {
	const longest = 40
	if len(value) > longest {
		value = strings.ToValidUTF8(value[:longest], "") + "…"
	}
	return fmt.Sprintf("its annotation %s: %q is ignored: %s", LeaveAnnotation, value, why)
}

func ownersValues() []string {
	var names []string
	for _, leave := range ownersDepartures {
		names = append(names, leave.String())
	}
	return names
}

// protected reports whether DoNotDisruptAnnotation protects the pod now: true does so for good, and
// a duration for that long after its start. until is the end of that; zero: it is not known.
func (p Pod) protected(now time.Time) (until time.Time, protected bool) {
	value := p.Annotations[DoNotDisruptAnnotation]
	if value == "true" {
		return until, true
	}
	lasts, err := time.ParseDuration(value)
	if err != nil || lasts <= 0 {
		return until, false
	}
	if !p.Started.IsZero() {
		until = p.Started.Add(lasts)
	}
	return until, until.IsZero() || now.Before(until)
}

// PodKeys are the keys of the labels and of the annotations that TurnOf reads of pods, sorted.
func (r Rules) PodKeys() (labels, annotations []string) {
	of := map[string]bool{DrainLabel: true}
	with := map[string]bool{LeaveAnnotation: true, DoNotDisruptAnnotation: true, SafeToEvictAnnotation: true}
	for _, rule := range r.Pods {
		addKeys(of, rule.Pods)
		addKeys(with, rule.Annotations)
	}
	return slices.Sorted(maps.Keys(of)), slices.Sorted(maps.Keys(with))
}

func addKeys(keys map[string]bool, selectors []Selector) {
	for _, selector := range selectors {
		for _, requirement := range selector {
			keys[requirement.Key] = true
		}
	}
}

// PodRuleFor returns the first rule of the file that matches a pod; nil: none does.
func (r Rules) PodRuleFor(pod Pod) *PodRule {
	at := slices.IndexFunc(r.Pods, func(rule PodRule) bool { return rule.matches(pod) })
	if at < 0 {
		return nil
	}
	return &r.Pods[at]
}

func (r PodRule) matches(pod Pod) bool {
	return r.DaemonSets == pod.DaemonSet &&
		matchesAnyPattern(r.Namespaces, pod.Namespace) &&
		matchesAny(r.Pods, pod.Labels) && matchesAny(r.Annotations, pod.Annotations)
}
