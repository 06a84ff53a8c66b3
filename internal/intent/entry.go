package intent

import (
	"cmp"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// An Entry is what notices of one kind, or of one scheduled change, ask for.
type Entry struct {
	Kind   notice.Kind `json:"kind"`
	Change string      `json:"change,omitempty"`
	// Code is that of a scheduled change, or the status checks that fail: rules ask for it.
	Code string `json:"code,omitempty"`
	// IDs are the ids of the events, the latest few.
	IDs []string `json:"ids,omitempty"`
	// Time is that of the first event; of a scheduled change that of the newest.
	Time time.Time `json:"time"`
	// Newest is the time of the newest event, if that is another one.
	Newest time.Time `json:"newest,omitzero"`
	// Deadline is when the machine goes away; zero: not known, nothing is forced.
	Deadline time.Time `json:"deadline,omitzero"`
	// Returns: the machine comes back by itself, with another boot id. The termination hook holds a
	// replacement of its root volume, or the scheduled change is a reboot.
	Returns bool `json:"returns,omitempty"`
	Terms
}

func (e Entry) with(more Entry) Entry {
	switch {
	case more.Kind != notice.ScheduledChange || more.Time.Equal(e.Time):
		e.Deadline, e.Terms = Earlier(e.Deadline, more.Deadline), e.join(more.Terms)
	case more.Time.After(e.Time):
		if !more.Deadline.Equal(e.Deadline) {
			e.IDs = nil // it may be moved back, and the news of that have an id from before
		}
		e.Deadline, e.Time, e.Terms = more.Deadline, more.Time, more.Terms
	}
	if more.Time.After(e.newest()) {
		e.Newest = more.Time
	}
	e.Returns = e.Returns && more.Returns
	e.Code = cmp.Or(more.Code, e.Code)
	e.IDs = merged(e.IDs, more.IDs)
	return e
}

func (e Entry) newest() time.Time {
	if e.Newest.After(e.Time) {
		return e.Newest
	}
	return e.Time
}

// Before reports whether all events of the entry are older than a moment.
func (e Entry) Before(t time.Time) bool { return e.newest().Before(t) }

func hasID(ids []string, e Entry) bool { return len(e.IDs) > 0 && slices.Contains(ids, e.IDs[0]) }

// sameNews reports whether one of the entries is from the instance metadata, the other from a
// queue, and both tell the same. AWS gives them ids of their own.
func (e Entry) sameNews(other Entry) bool {
	const apart = time.Minute // the times that both ways give differ by seconds
	near := func(a, b time.Time) bool { return a.IsZero() == b.IsZero() && a.Sub(b).Abs() < apart }
	mine := slices.ContainsFunc(e.IDs, notice.OfMetadata)
	if mine == slices.ContainsFunc(other.IDs, notice.OfMetadata) || len(e.IDs) == 0 || len(other.IDs) == 0 {
		return false
	}
	switch e.Kind { //nolint:exhaustive // the metadata tells of no other kind, or of no hook
	case notice.SpotInterruption, notice.ScheduledChange:
		return near(e.Deadline, other.Deadline)
	case notice.RebalanceRecommendation:
		return near(e.newest(), other.newest())
	}
	return false
}

// merged are the latest of the ids of both, each once.
func merged(ids, more []string) []string {
	ids = slices.Clone(ids)
	for _, id := range more {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids[max(0, len(ids)-maxIDs):]
}

// Past is what remains of an Entry for which nothing is left to do.
type Past struct {
	Kind   notice.Kind `json:"kind"`
	Change string      `json:"change,omitempty"`
	IDs    []string    `json:"ids,omitempty"`
	// CalledOff is when what can end was over: an announcement that is no newer is void.
	CalledOff time.Time `json:"calledOff,omitzero"`
	// Due is when a scheduled change takes place, if that was ahead when it was last heard of, when a spot
	// instance is interrupted, or when a rebalance was recommended.
	Due time.Time `json:"due,omitzero"`
}

// due is the time by which a message and the metadata, or a poll, can be seen to tell of the same; zero: there is none.
func (e Entry) due() time.Time {
	switch e.Kind { //nolint:exhaustive // of the others there is one source
	case notice.ScheduledChange, notice.SpotInterruption:
		return e.Deadline
	case notice.RebalanceRecommendation:
		return e.newest()
	}
	return time.Time{}
}

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
