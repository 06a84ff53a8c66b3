package decision

import (
	"slices"
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
	// Singletons: it is about pods whose workload has no other one.
	Singletons bool

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
)

// String is the name in a policy file and in the annotation of a pod.
func (l Departure) String() string {
	return [...]string{"now", "first", "after", "end", "last", "surged"}[l]
}

// DepartureOf is the inverse of String.
func DepartureOf(name string) (l Departure, ok bool) {
	for l = LeaveNow; l <= LeaveSurged; l++ {
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
	// Singleton is called by rules about singletons alone; nil: it is none.
	Singleton func() bool
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
		(len(r.Namespaces) == 0 || matchesAnyPattern(r.Namespaces, pod.Namespace)) &&
		matchesAny(r.Pods, pod.Labels) && matchesAny(r.Annotations, pod.Annotations) &&
		(!r.Singletons || pod.Singleton != nil && pod.Singleton())
}
