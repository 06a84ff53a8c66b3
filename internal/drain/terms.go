package drain

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// A mode says when pods are forced, which is to delete them: nobody asks their budgets then.
type mode uint8

const (
	patient    mode = iota // never: there is no deadline, or the terms say so
	byDeadline             // when they would otherwise outlive the deadline
	immediate              // at once
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
	return terms.Deadline.Add(-p.grace - margin)
}

// forceAt returns when a pod must be forced; zero: never. A grace period that fits into the notice is kept whole: that
// is the last moment. One that does not is an upper bound and no need, so the pod's budget gets its share of
// the notice first, unless it never allows the eviction.
func (p podState) forceAt(terms evacuation.Terms) time.Time {
	if modeOf(terms) == patient {
		return time.Time{}
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
	if modeOf(terms) != patient {
		grace = min(grace, terms.Deadline.Sub(now).Truncate(time.Second))
	}
	return max(time.Second, grace)
}

// mustForce reports whether a pod must be forced now.
func (p podState) mustForce(terms evacuation.Terms, now time.Time) bool {
	mode := modeOf(terms)
	return mode == immediate || mode == byDeadline && !now.Before(p.forceAt(terms))
}
