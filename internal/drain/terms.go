package drain

import "time"

// Terms are what a drain has to observe. They can change while it runs. Each value of them is
// safe: without a deadline nothing is forced.
type Terms struct {
	// Deadline is when the machine goes away. Zero: not known, and nothing is forced.
	Deadline time.Time
	// IgnoreBudgets has pods deleted instead of evicted: the machine is going away already, and a
	// budget cannot keep a pod on it. It has no effect without a Deadline.
	IgnoreBudgets bool
	// Patient: nothing is forced, whatever the deadline. The drain ends at the deadline all the same.
	Patient bool
	// Grace replaces the grace period of the pods; zero: it does not.
	Grace time.Duration
	// CordonedAt is when the node was last cordoned.
	CordonedAt time.Time
}

// A mode says when pods are forced, which is to delete them: nobody asks their budgets then.
type mode uint8

const (
	patient    mode = iota // never: there is no deadline
	byDeadline             // when they would otherwise outlive the deadline
	immediate              // at once
)

// mode returns the mode of the terms. Nothing else reads IgnoreBudgets.
func (t Terms) mode() mode {
	switch {
	case t.Deadline.IsZero(), t.Patient:
		return patient
	case t.IgnoreBudgets:
		return immediate
	}
	return byDeadline
}

// forceAt returns when a pod must be forced, so that it has stopped at the deadline; zero: never.
func (p podState) forceAt(terms Terms) time.Time {
	if terms.mode() == patient {
		return time.Time{}
	}
	return terms.Deadline.Add(-p.grace - margin)
}

// mustForce reports whether a pod must be forced now.
func (p podState) mustForce(terms Terms, now time.Time) bool {
	mode := terms.mode()
	return mode == immediate || mode == byDeadline && !now.Before(p.forceAt(terms))
}
