package drain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// margin is how long before the last moment a pod that must be forced is forced:
// the request, the kubelet's notice of it and the kill take their time.
const margin = 5 * time.Second

// Terms are what binds a drain. They can change while it goes on.
type Terms struct {
	// Deadline is when the machine goes away. Zero: not known; nothing is forced.
	Deadline time.Time
	// IgnoreBudgets deletes pods instead of evicting them: the machine is going
	// already, and a budget cannot keep a pod on it.
	IgnoreBudgets bool
}

// A tier of pods waits, as long as the deadline allows, until the tiers before it are gone.
type tier uint8

const (
	workload tier = iota
	critical      // system-cluster-critical and above: what others need to stop well
	self          // the pod that this program runs in; never evicted by itself
)

// tierOf is the tier of a pod that is not our own.
func tierOf(p *corev1.Pod) tier {
	// The lowest of the two built-in critical classes.
	// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
	const systemCritical = 2_000_000_000
	if p.Spec.Priority != nil && *p.Spec.Priority >= systemCritical {
		return critical
	}
	return workload
}

// state is what is known of a pod that has to leave, and what was tried with it.
type state struct {
	tier     tier
	grace    time.Duration // what it gets when there is time: its own, or the option's
	own      bool          // grace is the pod's own: the request need not name it
	deletion time.Time     // when it will be killed; zero: nobody has asked for its deletion

	asked   bool      // a request is under way, or was accepted and will show in the watch
	refused int       // evictions refused
	unsure  bool      // a request got no answer: it may have been accepted
	stale   string    // version in the watch that the API server has a newer one of; empty: none
	failed  int       // deletions failed
	retry   time.Time // no eviction again before; no deletion either, once one has failed
	cut     bool      // a stopping pod was told to hurry
	forced  bool      // its deletion was accepted
}

// stateOf is a pod before anything was tried with it. grace is the option's,
// negative for the pod's own; own is the pod that this program runs in.
func stateOf(pod *corev1.Pod, grace time.Duration, own types.NamespacedName) *state {
	p := &state{tier: tierOf(pod), grace: grace, own: grace < 0}
	if p.own {
		p.grace = 0
		if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
			p.grace = time.Duration(*s) * time.Second
		}
	}
	if own.Name != "" && pod.Name == own.Name && pod.Namespace == own.Namespace {
		p.tier = self
	}
	if pod.DeletionTimestamp != nil {
		p.deletion = pod.DeletionTimestamp.Time
	}
	return p
}

// verb is how a pod is asked to leave.
type verb uint8

const (
	wait   verb = iota // nothing to do for now
	evict              // by the eviction API, which asks the budgets
	remove             // by deletion, which does not
)

// move is the next request for a pod: what, with which grace (zero: the pod's
// own), and if it is wait, until when at the latest (zero: until the pod changes).
// The version is the caller's to fill in.
type move struct {
	verb    verb
	grace   time.Duration
	until   time.Time
	version string // that the pod has to have; empty: any
}

// next decides about one pod. front is the lowest tier that still has pods.
// With deadline D, grace g and margin m:
//
//	stopping, and its end is behind D,      |
//	or was a while ago:                     |
//	  D - m reached                         | delete with the shortest grace, once
//	  before                                | wait
//	stopping                                | wait
//	our own pod                             | wait; the caller gives way
//	D - g - m reached, or budgets ignored:  |
//	  never tried                           | evict with what is left, at most g
//	  refused once, or budgets ignored      | delete with what is left, at most g
//	a lower tier is still there             | wait
//	the watch is behind                     | wait
//	refused a moment ago                    | wait
//	otherwise                               | evict with g
func next(p state, front tier, terms Terms, now time.Time) move {
	hard := !terms.Deadline.IsZero()
	if !p.deletion.IsZero() {
		// The API server cuts times to seconds: one is no difference. Behind the
		// deadline nothing can be shorter than what ends in a second.
		enough := terms.Deadline.Add(time.Second)
		if shortest := now.Add(2 * time.Second); enough.Before(shortest) {
			enough = shortest
		}
		if !hard || p.cut {
			return move{}
		}
		// Still there well after its end, it has that from a clock that is behind ours.
		if late := p.deletion.Add(margin); !p.deletion.After(enough) && now.Before(late) {
			return move{until: late}
		}
		// The pod has its SIGTERM; a shorter grace is its SIGKILL. The API server
		// counts that grace from the first deletion and the kubelet from when it
		// hears of it, so only the shortest means the same to both.
		cutAt := terms.Deadline.Add(-margin)
		if p.failed > 0 && p.retry.After(cutAt) {
			cutAt = p.retry
		}
		if now.Before(cutAt) {
			return move{until: cutAt}
		}
		return move{verb: remove, grace: time.Second}
	}
	if p.asked || p.tier == self {
		return move{}
	}
	forceAt := terms.Deadline.Add(-p.grace - margin)
	if terms.IgnoreBudgets || hard && !now.Before(forceAt) {
		if p.failed > 0 && now.Before(p.retry) {
			return move{until: p.retry}
		}
		grace := max(time.Second, p.grace)
		if hard {
			grace = max(time.Second, min(p.grace, terms.Deadline.Sub(now).Truncate(time.Second)))
		}
		if terms.IgnoreBudgets || p.refused > 0 {
			return move{verb: remove, grace: grace}
		}
		if p.own && grace == p.grace {
			grace = 0
		}
		return move{verb: evict, grace: grace}
	}
	m := move{}
	if hard {
		m.until = forceAt
	}
	switch {
	case p.tier > front || p.stale != "":
		return m
	case now.Before(p.retry):
		if m.until.IsZero() || p.retry.Before(m.until) {
			m.until = p.retry
		}
		return m
	case p.own:
		return move{verb: evict}
	}
	return move{verb: evict, grace: max(time.Second, p.grace)}
}

// pauseAfter is how long to wait after the n-th refusal of an eviction.
func pauseAfter(n int) time.Duration {
	pause := firstRetry
	for range n - 1 {
		if pause = pause * 3 / 2; pause >= lastRetry {
			return lastRetry
		}
	}
	return pause
}
