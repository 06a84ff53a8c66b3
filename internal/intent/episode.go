package intent

import (
	"cmp"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// With adds a notice and, where it has one, its hook. One that the intent does not
// cover begins a new episode where the work was finished.
//
// The deadline of an entry only ever tightens, with two exceptions: the newest
// event about a scheduled change says when it takes place, and the deadline of a
// hook that was assumed gives way to one that is known. A notice may be recorded late: a deadline that passed more than
// StaleAfter ago is left out.
func (i Intent) With(e Entry, hook *Hook, now time.Time) Intent {
	if i.hadBefore(e) || i.Finished() && i.Covers(e) {
		return i
	}
	if i = i.Current(now); i.Finished() {
		i = i.reopened(now)
	}
	e.Deadline = InForce(e.Deadline, now)
	i.Version = Version
	if i.CordonedAt.IsZero() {
		i.CordonedAt = now
	}
	at := i.find(e)
	if i.HeldBack && e.Rule != "" && e.NotBefore.IsZero() { // the wait of its limit counts from now
		e.NotBefore = now
		if at >= 0 && i.Entries[at].Rule == e.Rule && !i.Entries[at].NotBefore.After(now) { // its time has come before
			e.NotBefore = i.Entries[at].NotBefore
		}
	}
	if at >= 0 {
		i.Entries[at] = i.Entries[at].with(e)
	} else {
		i.Entries = append(i.Entries, e)
	}
	for len(i.Entries) > MaxEntries {
		i.Entries = slices.Delete(i.Entries, i.latest(), i.latest()+1)
	}
	if hook != nil {
		h := *hook
		h.Deadline = InForce(h.Deadline, now)
		i = i.withHook(h)
	}
	return i
}

// Noting adds a notice to finished work, which it does not open again: what it tells of
// outlives what the node was drained for. Other work stays as it is.
func (i Intent) Noting(e Entry) Intent {
	if !i.Finished() || i.Covers(e) {
		return i
	}
	i.Entries = slices.Clone(i.Entries)
	if at := i.find(e); at >= 0 {
		i.Entries[at] = i.Entries[at].with(e)
	} else if len(i.Entries) < MaxEntries {
		i.Entries = append(i.Entries, e)
	}
	return i
}

// reopened begins a new episode. Of the one before remain the ids, what may have to
// be undone, and what is still in force.
func (i Intent) reopened(now time.Time) Intent {
	pending := i.Pending(now)
	i = i.Forget(func(e Entry) bool { return !Intent{Entries: pending}.Asks(e) })
	i.Entries = pending
	i.Queue, i.AlsoQueues, i.Hooks, i.HeldBack, i.Uncordoned, i.BootID = "", nil, nil, false, 0, ""
	i.CordonedAt, i.DrainedAt, i.FinishedAt, i.Outcome, i.Pods = time.Time{}, time.Time{}, time.Time{}, "", nil
	i.FirstCordonedAt, i.Replacement = time.Time{}, Replacement{}
	return i
}

// Pending are the notices that somebody has to know of who comes to the machine
// now: all of unfinished work; of finished work those whose deadline is ahead, the one of
// a hook that is completed without it.
func (i Intent) Pending(now time.Time) []Entry {
	if !i.Finished() {
		return i.Current(now).Entries
	}
	var entries []Entry
	for _, e := range i.Entries {
		if !e.Deadline.After(now) {
			continue
		}
		if e.Kind == notice.ASGTerminate {
			e.Deadline = time.Time{}
		}
		entries = append(entries, e)
	}
	return entries
}

// HasPending reports whether a notice of the entry's kind, about the same change, is pending.
func (i Intent) HasPending(e Entry, now time.Time) bool {
	return slices.ContainsFunc(i.Pending(now), func(p Entry) bool { return p.Kind == e.Kind && p.Change == e.Change })
}

// Gone says that the machine has gone by now: no deadline is ahead any more.
func (i Intent) Gone(now time.Time) Intent {
	i.Entries = slices.Clone(i.Entries)
	for k := range i.Entries {
		if e := &i.Entries[k]; e.Deadline.After(now) {
			e.Announced, e.Deadline = e.Deadline, now
		}
	}
	return i
}

// AsAnnounced is the intent with the deadlines that were announced, also where the machine went before them.
func (i Intent) AsAnnounced() Intent {
	i.Entries = slices.Clone(i.Entries)
	for k := range i.Entries {
		e := &i.Entries[k]
		e.Deadline = cmp.Or(e.Announced, e.Deadline)
	}
	return i
}

// Forget makes those of the entries past for which over returns true.
func (i Intent) Forget(over func(Entry) bool) Intent {
	var stay []Entry
	for _, e := range i.Entries {
		if over(e) {
			i = i.past(Past{Kind: e.Kind, Change: e.Change, IDs: e.IDs, Due: e.due()})
		} else {
			stay = append(stay, e)
		}
	}
	i.Entries = stay
	return i
}

// SinceLaunch forgets the notices of before the instance was started last: they are
// about an earlier life. While a termination hook is open its notice is not, nor is one
// that holds whatever the instance does.
func (i Intent) SinceLaunch(launched time.Time) Intent {
	return i.Forget(func(e Entry) bool {
		return e.Before(launched) && (e.Kind != notice.ASGTerminate || len(i.Hooks) == 0) && !e.Kind.SurvivesRestart()
	})
}

// SinceBoot is the intent of a node that is ready with a boot id. If that is another one than at
// the cordon, the machine was restarted since, and what was to happen by then has happened: a
// reboot whose time has come, and a termination from which the machine returns. Of a restart
// without another launch nothing else is over: a machine that is about to be interrupted or to
// be retired may reboot. Only without the permission to ask EC2 for the launch, notices whose deadline has
// come count as over, except scheduled changes. While a termination hook is open its notice is not over.
func (i Intent) SinceBoot(bootID string, launchKnown bool, now time.Time) Intent {
	if i.BootID == "" || bootID == "" || i.BootID == bootID {
		return i
	}
	i.BootID = bootID
	for _, e := range slices.Clone(i.Entries) {
		if e.Kind == notice.ScheduledChange && e.Returns && !e.Deadline.After(now) {
			i = i.Without(e.Kind, e.Change, now)
		}
	}
	open := slices.ContainsFunc(i.Hooks, func(h Hook) bool {
		return h.Assumed || h.Deadline.IsZero() || h.Deadline.After(now)
	})
	return i.Forget(func(e Entry) bool {
		if e.Kind == notice.ScheduledChange {
			return false
		}
		past := !launchKnown && e.Kind != notice.RebalanceRecommendation && !e.Deadline.After(now)
		return (e.Returns || past) && (e.Kind != notice.ASGTerminate || !open) && !e.Kind.SurvivesRestart()
	})
}

// past adds to what is past; the oldest beyond MaxEntries is forgotten.
func (i Intent) past(p Past) Intent {
	i.Past = slices.Clone(i.Past)
	same := func(have Past) bool { return have.Kind == p.Kind && have.Change == p.Change }
	if at := slices.IndexFunc(i.Past, same); at >= 0 {
		p.IDs = merged(i.Past[at].IDs, p.IDs)
		if p.CalledOff.Before(i.Past[at].CalledOff) {
			p.CalledOff = i.Past[at].CalledOff
		}
		if p.Due.IsZero() {
			p.Due = i.Past[at].Due
		}
		i.Past = slices.Delete(i.Past, at, at+1)
	}
	i.Past = append(i.Past, p)
	i.Past = i.Past[max(0, len(i.Past)-MaxEntries):]
	return i
}

// Released lets a node that was held back go the way of the others.
func (i Intent) Released(now time.Time) Intent {
	if i.HeldBack {
		i.HeldBack, i.CordonedAt = false, now
	}
	return i
}

// PutOff has a node wait for what it carries, as if that had just come.
func (i Intent) PutOff(now time.Time) Intent {
	i.HeldBack, i.CordonedAt, i.Uncordoned = true, now, 0
	i.DrainedAt, i.FinishedAt, i.Outcome, i.Pods = time.Time{}, time.Time{}, "", nil
	i.FirstCordonedAt, i.Replacement = time.Time{}, Replacement{}
	return i
}

// Without takes back a notice that can end, and was over at the time: a scheduled change, or an
// impairment, which has no name.
func (i Intent) Without(kind notice.Kind, change string, at time.Time) Intent {
	i = i.Forget(func(e Entry) bool { return e.Kind == kind && e.Change == change })
	return i.past(Past{Kind: kind, Change: change, CalledOff: at})
}

// EndedBy is Without for a notice that tells of the end. SQS may deliver it again after a newer announcement, which
// stays. Only times of AWS's clock are compared: what a poll or the metadata have told has the time of another.
func (i Intent) EndedBy(kind notice.Kind, change string, at time.Time) Intent {
	isNewer := func(e Entry) bool {
		return e.Kind == kind && e.Change == change && e.Time.After(at) && !slices.ContainsFunc(e.IDs, notice.IsPolled)
	}
	if kind == notice.ScheduledChange && !notice.IsPolled(change) && slices.ContainsFunc(i.Entries, isNewer) {
		return i
	}
	return i.Without(kind, change, at)
}

// CalledOff takes back the notices of these entries, because somebody wants the node as it was.
func (i Intent) CalledOff(entries []Entry, at time.Time) Intent {
	for _, e := range entries {
		if i.find(e) < 0 {
			continue
		}
		if e.Kind.CanEnd() {
			i = i.Without(e.Kind, e.Change, at)
		}
		i = i.Forget(func(have Entry) bool { return have.Kind == e.Kind && have.Change == e.Change })
	}
	return i
}

// Dismiss takes out the entries for which nobody asks any more. They are not past: if they come again,
// somebody decides about them again.
func (i Intent) Dismiss(nobodyAsks func(Entry) bool) Intent {
	i.Entries = slices.DeleteFunc(slices.Clone(i.Entries), nobodyAsks)
	return i
}
