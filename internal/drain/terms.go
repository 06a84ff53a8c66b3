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
	// Patient: nothing is forced, whatever the deadline: no pod is deleted, and none gets less than
	// its grace. The drain ends at the deadline all the same.
	Patient bool
	// Grace replaces the grace period of the pods, also that of [Drainer.Grace]; zero: it does not.
	// Requests are in whole seconds.
	Grace time.Duration
	// Reserve: somebody else gets the pods off the node. A pod is asked to leave only at its last moment, and
	// without a deadline never. It has no effect with IgnoreBudgets.
	Reserve bool
	// CordonedAt is when the node was last cordoned.
	CordonedAt time.Time
}

// A mode says when pods are forced, which is to delete them: nobody asks their budgets then.
type mode uint8

const (
	patient    mode = iota // never: there is no deadline, or the terms say so
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

// lastMoment returns when a pod must be asked, so that it has stopped at the deadline; zero: there is
// none.
func (p podState) lastMoment(terms Terms) time.Time {
	if terms.Deadline.IsZero() {
		return time.Time{}
	}
	return terms.Deadline.Add(-p.grace - margin)
}

// forceAt returns when a pod must be forced: at its last moment; zero: never.
func (p podState) forceAt(terms Terms) time.Time {
	if terms.mode() == patient {
		return time.Time{}
	}
	return p.lastMoment(terms)
}

// mustForce reports whether a pod must be forced now.
func (p podState) mustForce(terms Terms, now time.Time) bool {
	mode := terms.mode()
	return mode == immediate || mode == byDeadline && !now.Before(p.forceAt(terms))
}
