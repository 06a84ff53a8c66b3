package policyfile

import (
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// shadows finds rules that never match, because an earlier one matches all that they would. It may miss
// some: it compares patterns and selectors, not what they match, and of a file with a great many of them
// only as many as left says. The zero value compares nothing.
type shadows struct {
	left int
}

// mostComparisons take some tenths of a second. A file with 500 rules of a few selectors and codes needs fewer.
const mostComparisons = 2_000_000

// hides reports whether a, which comes first, matches all that b matches.
func (s *shadows) hides(a, b *decision.NodeRule) bool {
	return covers(s, a.Kinds, b.Kinds, func(x, y notice.Kind) bool { return x == y }) &&
		covers(s, a.Codes, b.Codes, widerPattern) && covers(s, a.Nodes, b.Nodes, s.widerSelector)
}

// hidesPods is hides for rules about pods.
func (s *shadows) hidesPods(a, b *decision.PodRule) bool {
	return a.DaemonSets == b.DaemonSets && covers(s, a.Namespaces, b.Namespaces, widerPattern) &&
		covers(s, a.Pods, b.Pods, s.widerSelector) && covers(s, a.Annotations, b.Annotations, s.widerSelector)
}

// covers reports whether for each of b there is one of a that is at least as wide. None of them are
// all that there is.
func covers[T any](s *shadows, a, b []T, wider func(a, b T) bool) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == 0
	}
	return !slices.ContainsFunc(b, func(y T) bool {
		return !slices.ContainsFunc(a, func(x T) bool { return s.affords(1) && wider(x, y) })
	})
}

// affords reports whether so many comparisons are left, and counts them.
func (s *shadows) affords(comparisons int) bool {
	s.left = max(-1, s.left-comparisons)
	return s.left >= 0
}

func (s *shadows) widerSelector(a, b decision.Selector) bool {
	comparisons := 0
	for _, x := range a {
		for _, y := range b {
			comparisons += 1 + len(x.Values)*len(y.Values)
		}
	}
	return s.affords(comparisons) && implies(b, a)
}

// widerPattern reports whether all that matches b matches a. Both have no other wildcard than *, and
// none in b is taken for a letter of a.
func widerPattern(a, b string) bool { return decision.MatchesPattern(a, b) }
