package decision

import (
	"time"
)

// A Window is a time of the day, on some days of the week, in the local time of a place.
type Window struct {
	Name string
	// Days are those on which it opens, Sunday first.
	Days [7]bool
	// From and To are minutes since midnight, by the clock on the wall. If To is not later than From
	// the window closes on the next day.
	From, To int
	Zone     *time.Location
}

// opening returns when the window opens and closes on the day of its place that is so many days
// after the one of at. opens is false if it does not open on that day.
func (w Window) opening(at time.Time, days int) (from, to time.Time, opens bool) {
	year, month, day := at.In(w.Zone).Date()
	// Noon is there on each day, also where the clock skips midnight.
	noon := time.Date(year, month, day+days, 12, 0, 0, 0, w.Zone)
	if !w.Days[noon.Weekday()] {
		return from, to, false
	}
	closes := w.To
	if w.To <= w.From {
		closes += 24 * 60
	}
	year, month, day = noon.Date()
	onWall := func(minutes int) time.Time { return time.Date(year, month, day, 0, minutes, 0, 0, w.Zone) }
	from, to = onWall(w.From), onWall(closes)
	return from, to, from.Before(to) // the clock may skip all of it
}

// Next returns the first moment from at on at which the window is open; zero: it never opens. The
// clock of its place may skip the moment at which it opens, or show it twice: see [time.Date].
func (w Window) Next(at time.Time) time.Time {
	const week = 7
	for days := -1; days <= 2*week; days++ { // one that the clock skips opens a week later
		from, to, opens := w.opening(at, days)
		switch {
		case !opens || !at.Before(to):
		case at.Before(from):
			return from
		default:
			return at
		}
	}
	return time.Time{}
}

// Last returns the last moment from at on, and not after due, at which the window opens, or at
// if it is open then and does not open again by due. Zero: it is never open in that time.
func (w Window) Last(at, due time.Time) time.Time {
	const week = 7
	for days := 1; days >= -2*week-1; days-- { // one that the clock skips opened a week before
		from, to, opens := w.opening(due, days)
		switch {
		case !opens || from.After(due):
		case !from.Before(at):
			return from
		case at.Before(to):
			return at
		default: // those before have closed earlier
			return time.Time{}
		}
	}
	return time.Time{}
}
