package drain

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// margin is how long before the last moment a pod is forced: the request, the kubelet's notice
	// of it and the kill take their time.
	margin = 5 * time.Second
	// killTime is what of the margin a kubelet has to kill a pod and to confirm it: a pod that is killed at the deadline
	// itself is still there then.
	killTime = 2 * time.Second
	// lateTries is how often a pod that must be forced is evicted if the API server is overloaded or fails. Each
	// takes a second, mostly. Then it is deleted, as something in between may turn evictions away each time.
	lateTries = 3
	// watchLag is how long the watch may take to show what the API server has accepted: mostly
	// milliseconds, in a storm some seconds. What does not show after that was not done: something
	// between the API server and us has answered.
	watchLag = 30 * time.Second
)

// A stepKind is what is done with a pod.
type stepKind uint8

const (
	stepWait   stepKind = iota // nothing for now
	stepEvict                  // by the eviction API, which respects budgets
	stepDelete                 // by deletion, which does not
)

// A step is what is done next with a pod.
type step struct {
	kind  stepKind
	grace time.Duration // of a request; zero: the pod's own
	until time.Time     // of a wait: when to look again; zero: when the pod changes
	// version is the resourceVersion that the pod must have for the request to be accepted;
	// empty: any. startRequest sets it.
	version string
}

// nextStep decides what is done next with a pod. front is the lowest tier with pods that are
// waited for. With deadline D, grace g, margin m, and F as forceAt says, which is D - g - m if the notice is longer.
// For our own pod, F is D - 2 m, and D - g - m is D - g - 2 m:
//
//	has ended, but finalizers keep its object | wait
//	stopping:                               |
//	  nothing is forced, or asked to hurry, |
//	  or it is our own pod                  | wait
//	  ends by D - 2 s, and is not late      | wait
//	  D - m is ahead                        | wait
//	  otherwise                             | delete with the shortest grace
//	a deletion is in flight, under 10 s     | wait
//	accepted less than 30 s ago             | wait for the watch to show it
//	F reached, or budgets ignored (but for  |
//	our own pod), and terms not patient:    |
//	  a deletion has failed, or an eviction |
//	  was not heard since F, too recently   | wait
//	  an eviction is in flight, under 2 s   | wait
//	  an eviction is in flight              | delete beside it, with what is left, at most g
//	  refused, or accepted in vain, or a    |
//	  deletion has no answer, or            |
//	  not heard three times since F         | delete with what is left, at most g
//	  budgets ignored                       | delete with what is left, at most g
//	  otherwise                             | evict with what is left, at most g
//	a request is in flight                  | wait
//	the watch is behind                     | wait
//	D - g - m is ahead, or there is no D:   |
//	  a lower tier is still there           | wait
//	  it leaves last, or we are in reserve  | wait
//	refused, or not heard, too recently     | wait
//	otherwise                               | evict: patient terms with g, others with what is left, at most g
//
// Nothing is forced without a deadline, nor under patient terms, and no grace is zero but a pod's own.
func nextStep(p podState, front tier, terms evacuation.Terms, now time.Time) step {
	shown, deleted := p.acceptedAt.Add(watchLag), p.deletingSince.Add(requestTimeout)
	switch {
	case p.end.keptBy != "": // a deletion could do no more
		return step{}
	case p.stopping():
		return cutShort(p, terms, now)
	case !p.deletingSince.IsZero() && now.Before(deleted):
		return step{until: deleted}
	case !p.acceptedAt.IsZero() && now.Before(shown):
		return step{until: shown}
	case p.mustForce(terms, now):
		return force(p, terms, now)
	default:
		return evict(p, front, terms, now)
	}
}

// cutShort is for a stopping pod: one that would outlive the deadline is killed just before it.
func cutShort(p podState, terms evacuation.Terms, now time.Time) step {
	if modeOf(terms) == patient || p.shortened || p.tier == own {
		return step{}
	}
	// The API server cuts times to seconds, so one second is no difference. After the deadline
	// no request can be faster than what ends in a second.
	inTime := later(terms.Deadline.Add(time.Second-killTime), now.Add(2*time.Second))
	// A pod that is still there well after its end has got that end from a clock behind ours.
	if late := p.deletion.Add(margin); !p.deletion.After(inTime) && now.Before(late) {
		return step{until: late}
	}
	// The pod has got its SIGTERM; a shorter grace is its SIGKILL. The API server counts that
	// grace from the first deletion, and the kubelet from when it hears of it, so that only the
	// shortest one means the same to both.
	at := terms.Deadline.Add(-margin)
	if p.failed > 0 {
		at = later(at, p.retryAt)
	}
	if now.Before(at) {
		return step{until: at}
	}
	return step{kind: stepDelete, grace: time.Second}
}

// force is for a pod that must be on its way now. One that was not tried yet is evicted all the
// same, unless budgets are ignored: then the count of its budget stays right for other nodes.
func force(p podState, terms evacuation.Terms, now time.Time) step {
	if (p.failed > 0 || p.lateUnheard > 0 && p.lateUnheard < lateTries) && now.Before(p.retryAt) {
		return step{until: p.retryAt}
	}
	inFlight := !p.evictingSince.IsZero()
	if timeout := p.evictingSince.Add(answerTime); inFlight && now.Before(timeout) {
		return step{until: timeout}
	}
	grace := p.graceNow(terms, now)
	tried := p.refused > 0 || p.lateUnheard >= lateTries || inFlight || !p.deletingSince.IsZero() || !p.acceptedAt.IsZero()
	if tried || modeOf(terms) == immediate && p.tier != own {
		return step{kind: stepDelete, grace: grace}
	}
	return p.evictWith(grace)
}

// evict is for a pod that there is time for.
func evict(p podState, front tier, terms evacuation.Terms, now time.Time) step {
	forceAt, latest := p.forceAt(terms), p.lastMoment(terms)
	early := latest.IsZero() || now.Before(latest)
	switch {
	case !p.evictingSince.IsZero(), !p.deletingSince.IsZero(), p.staleVersion != "":
		return step{until: forceAt}
	case early && (p.tier > front || p.tier == last || terms.Reserve):
		return step{until: latest}
	case now.Before(p.retryAt):
		return step{until: earlier(forceAt, p.retryAt)}
	}
	return p.evictWith(p.graceNow(terms, now))
}

// evictWith is an eviction with a grace period; one that leaves the pod its own names none.
func (p podState) evictWith(grace time.Duration) step {
	if p.ownGrace && grace >= p.grace {
		return step{kind: stepEvict}
	}
	return step{kind: stepEvict, grace: grace}
}

// pauseAfter returns how long to wait after the n-th refusal of an eviction.
func pauseAfter(n int) time.Duration {
	return retry.Backoff{First: firstRetry, Max: lastRetry, Factor: 1.5}.Pause(n)
}

// A mode says when pods are forced, which is to delete them: nobody asks their budgets then.
type mode uint8

const (
	patient    mode = iota // never: there is no deadline, or the terms say so
	byDeadline             // when they would otherwise outlive the deadline
	immediate              // at once, but for our own
)

// modeOf returns the mode of the terms. Nothing else reads IgnoreBudgets.
func modeOf(t evacuation.Terms) mode {
	switch {
	case t.Deadline.IsZero(), t.Patient:
		return patient
	case t.IgnoreBudgets:
		return immediate
	}
	return byDeadline
}

// lastMoment returns when a pod must be asked, so that it has stopped at the deadline; zero: there is
// none.
func (p podState) lastMoment(terms evacuation.Terms) time.Time {
	if terms.Deadline.IsZero() {
		return time.Time{}
	}
	if p.tier == own { // the next leader has to force what is left
		return terms.Deadline.Add(-p.grace - 2*margin)
	}
	return terms.Deadline.Add(-p.grace - margin)
}

// forceAt returns when a pod must be forced; zero: never. A grace period that fits into the notice is kept whole: that
// is the last moment. One that does not is an upper bound and no need, so the pod's budget gets its share of
// the notice first, unless it never allows the eviction.
func (p podState) forceAt(terms evacuation.Terms) time.Time {
	if modeOf(terms) == patient {
		return time.Time{}
	}
	if p.tier == own { // its budget says whether there is another leader; this is its time to give the lease away
		return terms.Deadline.Add(-2 * margin)
	}
	if p.fits(terms) || p.hopeless {
		return p.lastMoment(terms)
	}
	noticed := p.noticedAt(terms)
	notice := max(0, terms.Deadline.Add(-margin).Sub(noticed))
	return noticed.Add(time.Duration(terms.BudgetShare * float64(notice)))
}

// fits reports whether the pod's grace period fits into the notice, from its first moment on.
func (p podState) fits(terms evacuation.Terms) bool {
	return p.noticedAt(terms).Before(p.lastMoment(terms))
}

// noticedAt is since when the pod could have been asked for the deadline.
func (p podState) noticedAt(terms evacuation.Terms) time.Time {
	if terms.NoticedAt.IsZero() {
		return time.Time{}
	}
	return later(terms.NoticedAt, p.created)
}

// hurries reports whether a pod that was not asked loses of its grace period while it waits.
func (p podState) hurries(terms evacuation.Terms, now time.Time) bool {
	return modeOf(terms) != patient && p.refused == 0 && !now.Before(p.lastMoment(terms))
}

// graceNow returns the grace period of a request that is made now: the pod's, or what is left of the notice. It is
// never zero.
func (p podState) graceNow(terms evacuation.Terms, now time.Time) time.Duration {
	grace := p.grace
	if modeOf(terms) != patient && p.tier != own {
		grace = min(grace, terms.Deadline.Add(-killTime).Sub(now).Truncate(time.Second))
	}
	return max(time.Second, grace)
}

// mustForce reports whether a pod must be forced now.
func (p podState) mustForce(terms evacuation.Terms, now time.Time) bool {
	mode := modeOf(terms)
	return mode == immediate && p.tier != own || mode != patient && !now.Before(p.forceAt(terms))
}
