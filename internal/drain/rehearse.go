package drain

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A Rehearsal is a drain that does not take place: the plan of a Drainer, played
// through at once. It is the worst case: each pod takes all of its grace to stop,
// and a budget that allows no disruption now never does.
type Rehearsal struct {
	Pods []*corev1.Pod
	// Filter, Grace and Self are those of the Drainer.
	Filter Filter
	Grace  time.Duration
	Self   types.NamespacedName
	Terms  Terms
	// Start is when the node is cordoned, End when the rehearsal ends if nothing
	// else does: mostly the deadline.
	Start, End time.Time
	// Budgets are the names of the budgets that have a say about a pod, and
	// Allowed the disruptions that each allows now.
	Budgets func(*corev1.Pod) []string
	Allowed map[string]int
}

// A Fate is what becomes of a pod in a rehearsal.
type Fate struct {
	Pod *corev1.Pod
	// Stays is true for a pod that does not have to leave; Why says what keeps it,
	// nothing for those that nobody expects to leave.
	Stays bool
	Why   string
	Self  bool // our own pod: it leaves last, by itself
	Last  bool // it waits for the workloads, as system-critical pods do

	Asked  time.Time // when its deletion begins; zero: never
	Forced bool      // by deletion, not by eviction
	// Grace is what it gets, Own what it would get if there were time.
	Grace, Own time.Duration
	// Blocked are the budgets that refuse its eviction.
	Blocked []string
	Gone    time.Time // zero: it is there at the end
}

// Cut reports whether the pod gets less than its grace.
func (f Fate) Cut() bool { return !f.Asked.IsZero() && f.Grace < f.Own }

// Run plays the drain through. Fates are in the order in which the pods are
// asked to leave, those that never are at the end.
func (r Rehearsal) Run() []Fate {
	allowed := map[string]int{}
	for name, n := range r.Allowed {
		allowed[name] = n
	}
	var fates []Fate
	states := map[int]*state{} // by index of fates: the pods that have to leave
	for _, pod := range r.Pods {
		p := stateOf(pod, r.Grace, r.Self)
		f := Fate{Pod: pod, Own: p.grace, Self: p.tier == self, Last: p.tier == critical}
		if !f.Self {
			leaves, why := r.Filter.leaves(pod)
			f.Stays, f.Why = !leaves, why
		}
		if !p.deletion.IsZero() { // somebody has asked before us
			f.Asked, f.Grace = r.Start, max(0, p.deletion.Sub(r.Start))
			p.asked = true
		}
		if !f.Stays {
			states[len(fates)] = p
		}
		fates = append(fates, f)
	}
	for now := r.Start; ; {
		front := self
		for k, p := range states {
			if !p.deletion.IsZero() && !p.deletion.After(now) {
				fates[k].Gone = p.deletion
				delete(states, k)
				continue
			}
			front = min(front, p.tier)
		}
		if front == self || !now.Before(r.End) {
			break
		}
		wake, acted := r.End, false
		for k := range fates {
			p := states[k]
			if p == nil {
				continue
			}
			m := next(*p, front, r.Terms, now)
			if m.verb == wait {
				wake = earlier(earlier(wake, m.until), p.deletion)
				continue
			}
			acted = true
			r.answer(p, &fates[k], m, allowed, now)
		}
		if !acted {
			now = wake
		}
	}
	slices.SortStableFunc(fates, func(a, b Fate) int {
		switch {
		case a.Asked.IsZero() != b.Asked.IsZero():
			if b.Asked.IsZero() {
				return -1
			}
			return 1
		case !a.Asked.Equal(b.Asked):
			return a.Asked.Compare(b.Asked)
		}
		return strings.Compare(a.Pod.Namespace+"/"+a.Pod.Name, b.Pod.Namespace+"/"+b.Pod.Name)
	})
	return fates
}

// answer is what the API server would say to a move.
func (r Rehearsal) answer(p *state, f *Fate, m move, allowed map[string]int, now time.Time) {
	budgets := r.Budgets(f.Pod)
	if m.verb == evict && !disruptable(f.Pod) {
		switch {
		case len(budgets) == 1 && allowed[budgets[0]] > 0:
			allowed[budgets[0]]--
		case len(budgets) > 0:
			f.Blocked = budgets
			p.refused++
			p.retry = now.Add(pauseAfter(p.refused))
			if len(budgets) > 1 { // the eviction API does not support that
				p.retry = now.Add(hopelessRetry)
			}
			return
		}
	}
	grace := m.grace
	if grace == 0 {
		grace = p.grace
	}
	if f.Pod.Status.Phase == corev1.PodSucceeded || f.Pod.Status.Phase == corev1.PodFailed {
		grace, f.Own = 0, 0 // nothing runs: the kubelet has nothing to wait for
	}
	if p.deletion.IsZero() {
		f.Asked, f.Forced, f.Grace = now, m.verb == remove, grace
	} else { // told to hurry
		p.cut = true
		f.Grace = now.Add(grace).Sub(f.Asked)
	}
	p.asked, p.deletion = true, now.Add(grace)
}

// disruptable reports whether the eviction API asks no budget for the pod.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func disruptable(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	default:
		return pod.DeletionTimestamp != nil
	}
}
