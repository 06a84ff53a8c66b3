package intent

import (
	"cmp"
	"slices"
	"time"
)

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
// neither patience nor a budget's share from what has one.
func (i Intent) Terms() Terms {
	all := joined(i.Entries)
	undated := func(e Entry) bool { return e.Deadline.IsZero() }
	dated := slices.DeleteFunc(slices.Clone(i.Entries), undated)
	if len(dated) > 0 {
		all.Patient = joined(dated).Patient
	}
	cordonsOnly := func(e Entry) bool { return e.CordonOnly }
	if draining := slices.DeleteFunc(dated, cordonsOnly); len(draining) > 0 {
		all.BudgetPercent = joined(draining).BudgetPercent
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
