package intent

import (
	"slices"
	"time"
)

// StaleAfter is how long after its deadline a machine that is still there is taken
// to go any moment. After that it has been started again, or its notice lay in the
// queue: nothing is known of its end any more, and nothing is forced.
const StaleAfter = 15 * time.Minute

// Current is the intent without deadlines that passed more than StaleAfter ago.
func (i Intent) Current(now time.Time) Intent {
	i.Entries, i.Hooks = slices.Clone(i.Entries), slices.Clone(i.Hooks)
	for k := range i.Entries {
		i.Entries[k].Deadline = InForce(i.Entries[k].Deadline, now)
	}
	for k := range i.Hooks {
		i.Hooks[k].Deadline = InForce(i.Hooks[k].Deadline, now)
	}
	return i
}

// InForce is the deadline, or zero where it passed more than StaleAfter ago.
func InForce(deadline, now time.Time) time.Time {
	if now.Sub(deadline) > StaleAfter {
		return time.Time{}
	}
	return deadline
}

// Deadline is the earliest deadline of all notices; zero when none has one.
func (i Intent) Deadline() time.Time {
	var d time.Time
	for _, e := range i.Entries {
		d = Earlier(d, e.Deadline)
	}
	return d
}

// Cause is the notice that binds the most: the one with the nearest deadline, the
// first where none has one.
func (i Intent) Cause() Entry {
	var cause Entry
	for k, e := range i.Entries {
		if k == 0 || !Earlier(cause.Deadline, e.Deadline).Equal(cause.Deadline) {
			cause = e
		}
	}
	return cause
}

// Earlier is the earlier of two deadlines, of which a zero one means none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// latest is the index of the entry whose deadline binds the least.
func (i Intent) latest() int {
	at := 0
	for k, e := range i.Entries {
		if Earlier(i.Entries[at].Deadline, e.Deadline).Equal(i.Entries[at].Deadline) {
			at = k
		}
	}
	return at
}
