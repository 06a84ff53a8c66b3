package drain

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// A Simulation plays the plan of a Drainer through at once, without a cluster. It is the worst
// case: each pod takes all of its grace to stop, and a budget that allows no disruption now never
// does.
type Simulation struct {
	Pods []*corev1.Pod
	// Filter, Grace and Self are those of the Drainer.
	Filter Filter
	Grace  time.Duration
	Self   types.NamespacedName
	// Terms and Rules are those of the Request.
	Terms evacuation.Terms
	Rules decision.Rules
	// Start is when the node is cordoned. End is when the simulation ends at the latest: mostly at
	// the deadline.
	Start, End time.Time
	// Budgets returns the names of the budgets that cover a pod. Allowed are the disruptions that
	// each budget allows now.
	Budgets func(*corev1.Pod) []string
	Allowed map[string]int
}

// A PodOutcome is what becomes of a pod in a simulation.
type PodOutcome struct {
	Pod *corev1.Pod
	// Stays is true for a pod that does not have to leave. Why says which option keeps it; it is
	// empty for pods that nobody expects to leave.
	Stays bool
	Why   string
	Self  bool // our own pod: it leaves last, and another leader goes on
	// Ended is true for a pod of which nothing runs any more. If finalizers keep its object, it is not asked.
	Ended bool
	// Critical is true for a pod that leaves after the workloads because it is critical to the system.
	Critical bool
	// Turn says when the pod leaves, compared with the others.
	Turn decision.Turn

	Asked  time.Time // when its deletion begins; zero: never
	Forced bool      // deleted, not evicted
	// Grace is what the pod gets, Own is what it would get if there were time.
	Grace, Own time.Duration
	// Blocked are the budgets that refuse its eviction.
	Blocked []string
	Gone    time.Time // zero: it is still there at the end
}

// AwaitedClaims are the claims whose volumes a drain waits for after its last pod, as namespace/name, sorted: those of
// pods that have left, and of none that stays. It waits for none if our own pod leaves last, or a pod does not leave in
// time.
func AwaitedClaims(outcomes []PodOutcome) []string {
	awaited := map[string]bool{}
	for _, o := range outcomes {
		if o.Self || !o.Stays && o.Gone.IsZero() {
			return nil
		}
		for c := range claimsOf(o.Pod) {
			name := c.namespace + "/" + c.name
			before, known := awaited[name]
			awaited[name] = !o.Stays && (before || !known)
		}
	}
	maps.DeleteFunc(awaited, func(_ string, awaits bool) bool { return !awaits })
	return slices.Sorted(maps.Keys(awaited))
}

// Cut reports whether the pod gets less than its grace.
func (o PodOutcome) Cut() bool { return !o.Asked.IsZero() && o.Grace < o.Own }

// Run returns the outcome of each pod, in the order in which the pods are asked to leave. Those
// that are never asked come last.
func (s Simulation) Run() []PodOutcome {
	outcomes, states := s.begin()
	allowed := maps.Clone(s.Allowed)
	for now := s.Start; ; {
		front := own + 1
		for k, p := range states {
			if p.stopping() && !p.deletion.After(now) {
				outcomes[k].Gone = p.deletion
				delete(states, k)
				continue
			}
			p.reconsider(s.Pods[k], s.Rules, s.Terms, now)
			outcomes[k].Turn, outcomes[k].Critical = p.turn, p.tier == critical
			front = min(front, p.countsAs(now))
		}
		if front > own || !now.Before(s.End) {
			break
		}
		wake, acted := s.End, false
		for k := range outcomes {
			p := states[k]
			if p == nil {
				continue
			}
			next := nextStep(*p, front, s.Terms, now)
			if next.kind == stepWait {
				wake = earlier(earlier(wake, next.until), earlier(p.deletion, p.changesAt(now)))
				continue
			}
			acted = true
			s.answer(p, &outcomes[k], next, allowed, now)
		}
		if !acted {
			now = wake
		}
	}
	slices.SortStableFunc(outcomes, byAsked)
	return outcomes
}

// begin returns the pods at the start. The states are those of the pods that have to leave, by their
// index in outcomes.
func (s Simulation) begin() (outcomes []PodOutcome, states map[int]*podState) {
	states = map[int]*podState{}
	all, candidates := make([]*podState, len(s.Pods)), make([]candidate, len(s.Pods))
	for k, pod := range s.Pods {
		all[k] = newPodState(pod, s.Grace, s.Self, s.Start)
		all[k].reconsider(pod, s.Rules, s.Terms, s.Start)
		all[k].end.note(pod, s.Start)
		candidates[k] = candidate{pod, all[k].turn}
	}
	answers, _ := s.Filter.mustLeave(candidates)
	for k, pod := range s.Pods {
		p := all[k]
		o := PodOutcome{Pod: pod, Own: p.grace, Self: p.tier == own, Turn: p.turn, Ended: p.end.hasCome()}
		if !o.Self {
			o.Stays, o.Why = !answers[k].leaves, answers[k].why
		}
		switch {
		case p.end.keptBy != "":
			o.Gone = s.Start
		case p.stopping(): // somebody else has deleted it
			o.Asked, o.Grace = s.Start, max(0, p.deletion.Sub(s.Start))
			o.Own = o.Grace // the drain takes nothing of it
		}
		isStuck := p.stopping() && s.Start.Sub(p.deletion) > margin
		if !o.Stays && p.end.keptBy == "" && !isStuck {
			states[k] = p
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, states
}

// answer does what the API server would do with a request.
func (s Simulation) answer(p *podState, o *PodOutcome, next step, allowed map[string]int, now time.Time) {
	p.requested = true
	budgets := s.Budgets(o.Pod)
	if next.kind == stepEvict && !evacuation.Unprotected(o.Pod) {
		switch {
		case len(budgets) == 1 && allowed[budgets[0]] > 0:
			allowed[budgets[0]]--
		case len(budgets) > 0:
			o.Blocked = budgets
			p.refused++
			p.retryAt = now.Add(pauseAfter(p.refused))
			if len(budgets) > 1 { // the eviction API does not support that
				p.retryAt, p.hopeless = now.Add(longestRetry), true
			}
			return
		}
	}
	grace := next.grace
	if grace == 0 {
		grace = p.grace
	}
	if o.Ended {
		grace, o.Own = 0, 0 // nothing runs any more: the kubelet does not wait
	}
	if !p.stopping() {
		o.Asked, o.Forced, o.Grace = now, next.kind == stepDelete, grace
	} else { // it is to stop sooner
		p.shortened = true
		o.Grace = now.Add(grace).Sub(o.Asked)
	}
	p.deletion = now.Add(grace)
}

// byAsked orders outcomes by when the pods are asked to leave, then by their names.
func byAsked(a, b PodOutcome) int {
	switch {
	case a.Asked.Equal(b.Asked):
		return strings.Compare(nameOf(a.Pod), nameOf(b.Pod))
	case a.Asked.IsZero():
		return 1
	case b.Asked.IsZero():
		return -1
	}
	return a.Asked.Compare(b.Asked)
}
