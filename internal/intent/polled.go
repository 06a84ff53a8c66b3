package intent

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Polled reports whether the leader has found out what the entry says by asking EC2. Then it is
// the leader that finds out when it is over.
func (e Entry) Polled() bool {
	return e.Kind == notice.InstanceImpaired ||
		e.Kind == notice.ScheduledChange && notice.IsPolled(e.Change)
}

// HasHeardOf reports whether a node needs no telling of what a poll or the metadata say at that time. It carries
// that already, or it has carried it before: somebody has called it off, or it was over. The
// deadline of found is when a scheduled change begins. AWS Health tells of the same changes by
// other names, so that only this time shows that two are one.
func (i Intent) HasHeardOf(found Entry, now time.Time) bool {
	switch {
	case i.Covers(found):
		return true
	case found.Kind == notice.InstanceImpaired:
		return i.Has(found.Kind) // one impairment joins the other
	case i.find(found) >= 0:
		return false // it was moved
	}
	return slices.ContainsFunc(i.Entries, func(e Entry) bool {
		if e.Deadline.IsZero() { // it has begun
			return e.Kind == found.Kind && !e.Polled() && !found.Deadline.After(now)
		}
		return e.Kind == found.Kind && !e.Polled() && sameMinute(e.Deadline, found.Deadline)
	}) || slices.ContainsFunc(i.Past, func(p Past) bool { return p.was(found) })
}

// ToldAs is the change of a message's entry that begins at that time; empty: there is none, or more than one.
func (i Intent) ToldAs(at time.Time) string {
	is := func(e Entry) bool {
		return e.Kind == notice.ScheduledChange && !e.Polled() && !e.Deadline.IsZero() && sameMinute(e.Deadline, at)
	}
	k := slices.IndexFunc(i.Entries, is)
	if k < 0 || slices.ContainsFunc(i.Entries[k+1:], is) {
		return ""
	}
	return i.Entries[k].Change
}

// was reports whether what is past is what a poll has found.
func (p Past) was(found Entry) bool {
	switch {
	case p.Kind != found.Kind:
		return false
	case found.Change == "": // nothing but its id tells one warning from the next, but for what came by the other way
		twoWays := slices.ContainsFunc(p.IDs, notice.OfMetadata) != slices.ContainsFunc(found.IDs, notice.OfMetadata)
		return twoWays && !p.Due.IsZero() && sameMinute(p.Due, found.due())
	case p.Change == found.Change:
		return true
	case notice.IsPolled(p.Change):
		return false
	case !p.Due.IsZero():
		return sameMinute(p.Due, found.Deadline)
	}
	return !p.CalledOff.IsZero() && !found.Deadline.After(p.CalledOff)
}

// sameMinute compares times of two services, which do not round alike.
func sameMinute(a, b time.Time) bool { return a.Sub(b).Abs() < time.Minute }
