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

// forceAt returns when a pod must be forced: at its last moment; zero: never.
func (p podState) forceAt(terms evacuation.Terms) time.Time {
	if modeOf(terms) == patient {
		return time.Time{}
	}
	return p.lastMoment(terms)
}

// mustForce reports whether a pod must be forced now.
func (p podState) mustForce(terms evacuation.Terms, now time.Time) bool {
	mode := modeOf(terms)
	return mode == immediate || mode == byDeadline && !now.Before(p.forceAt(terms))
}
