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
	// Announced is the deadline that was announced, if the machine went before it; else zero. Deadline is when it went.
	Announced time.Time `json:"announced,omitzero"`
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
		e.Deadline, e.Announced, e.Time, e.Terms = more.Deadline, time.Time{}, more.Time, more.Terms
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

// was reports whether what is past is what a poll has found.
func (p Past) was(found Entry) bool {
	switch {
	case p.Kind != found.Kind:
		return false
	case found.Change == "": // nothing but its id tells one warning from the next, but for what came by the other way
		twoWays := slices.ContainsFunc(p.IDs, notice.OfMetadata) != slices.ContainsFunc(found.IDs, notice.OfMetadata)
		return twoWays && !p.Due.IsZero() && sameMinute(p.Due, found.due())
	case p.Change == found.Change && slices.ContainsFunc(found.IDs, notice.OfMetadata):
		return p.Due.IsZero() || sameMinute(p.Due, found.Deadline) // else it was moved
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

// Terms are what the rule of a policy that decided about a notice says of the drain. The zero value
// is what is done without a rule.
//
// Those of several notices join: the node gets the strongest action, the earliest begin and the
// shortest grace period.
//
//	              joined
//	CordonOnly    only if all are
//	NotBefore     the earliest; one that begins at once wins
//	Patient       only if all are that have a deadline; see [Intent.Terms]
//	GraceSeconds  the shortest; one that sets none does not count; so with MostGraceSeconds
//	BudgetPercent the least; see [Intent.Terms]
//	ReplaceFirst  only if all ask for it; a notice that cannot wait never does
//	By            the handler if one says so; see [Intent.DelegatedAt]
type Terms struct {
	// Rule is the name of the rule; empty: none of a policy, the options decide.
	Rule string `json:"rule,omitempty"`
	// CordonOnly: the node is cordoned, and that is all.
	CordonOnly bool `json:"cordonOnly,omitempty"`
	// NotBefore is when the drain begins; zero: at once. Until then the node is held back.
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Patient: no pod is forced because of the notice.
	Patient bool `json:"patient,omitempty"`
	// GraceSeconds replaces the termination grace period of the pods; zero: it does not.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`
	// MostGraceSeconds is the longest grace period of a pod, whoever sets it; zero: there is none.
	MostGraceSeconds int64 `json:"mostGraceSeconds,omitempty"`
	// BudgetPercent is how much of the notice belongs to PodDisruptionBudgets where a grace period does not fit into the
	// notice; nil: half of it. See BudgetShare.
	BudgetPercent *int `json:"budgetPercent,omitempty"`
	// ReplaceFirst: another instance stands ready before the node is drained.
	ReplaceFirst bool `json:"replaceFirst,omitempty"`
	// By is who gets the pods off a node of Karpenter's; empty: the option says.
	By By `json:"by,omitempty"`
}

// By is who gets the pods off a node.
type By string

// Those who do.
const (
	ByHandler   By = "handler"
	ByKarpenter By = "karpenter"
)

// Grace is what GraceSeconds says.
func (t Terms) Grace() time.Duration { return time.Duration(t.GraceSeconds) * time.Second }

// MostGrace is what MostGraceSeconds says.
func (t Terms) MostGrace() time.Duration { return time.Duration(t.MostGraceSeconds) * time.Second }

// BudgetShare is what BudgetPercent says, from 0 to 1. A kubelet can write another number.
func (t Terms) BudgetShare() float64 {
	const usual = 50
	if t.BudgetPercent == nil {
		return usual / 100.
	}
	return float64(min(max(0, *t.BudgetPercent), 100)) / 100
}

// leastBudget returns the lower one of two values of BudgetPercent.
func leastBudget(a, b Terms) *int {
	if x, y := a.BudgetShare(), b.BudgetShare(); x < y || x == y && a.BudgetPercent == nil {
		return a.BudgetPercent
	}
	return b.BudgetPercent
}

// join returns what both terms ask for. Rule is that of the one that begins earlier, of
// t where both do.
func (t Terms) join(more Terms) Terms {
	earlier := t
	if !t.NotBefore.IsZero() && (more.NotBefore.IsZero() || more.NotBefore.Before(t.NotBefore)) {
		earlier = more
	}
	earlier.CordonOnly = t.CordonOnly && more.CordonOnly
	earlier.Patient = t.Patient && more.Patient
	earlier.ReplaceFirst = t.ReplaceFirst && more.ReplaceFirst
	shortest := func(a, b int64) int64 { return cmp.Or(min(a, b), a, b) }
	earlier.GraceSeconds = shortest(t.GraceSeconds, more.GraceSeconds)
	earlier.MostGraceSeconds = shortest(t.MostGraceSeconds, more.MostGraceSeconds)
	earlier.BudgetPercent = leastBudget(t, more)
	earlier.By = cmp.Or(t.By, more.By)
	if t.By == ByHandler || more.By == ByHandler {
		earlier.By = ByHandler
	}
	return earlier
}

// Terms are those of all notices of the episode. What has no deadline forces nothing by itself, so it takes
// neither patience nor a budget's share from what has one. Nor does what only cordons.
func (i Intent) Terms() Terms {
	all := joined(i.Entries)
	draining := slices.DeleteFunc(slices.Clone(i.Entries), func(e Entry) bool { return e.CordonOnly })
	if len(draining) == 0 {
		draining = slices.Clone(i.Entries)
	}
	all.Patient = joined(draining).Patient
	if dated := slices.DeleteFunc(draining, func(e Entry) bool { return e.Deadline.IsZero() }); len(dated) > 0 {
		all.Patient, all.BudgetPercent = joined(dated).Patient, joined(dated).BudgetPercent
	}
	return all
}

// joined returns what the terms of all entries ask for.
func joined(entries []Entry) (all Terms) {
	for k, e := range entries {
		if k == 0 {
			all = e.Terms
		} else {
			all = all.join(e.Terms)
		}
	}
	return all
}
