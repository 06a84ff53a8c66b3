package policyfile

import (
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// hides reports whether a, which comes first, matches all that b matches. It may say false where it
// does: it compares patterns and selectors, not what they match.
func hides(a, b *decision.NodeRule) bool {
	return covers(a.Kinds, b.Kinds, func(x, y notice.Kind) bool { return x == y }) &&
		covers(a.Codes, b.Codes, widerPattern) && covers(a.Nodes, b.Nodes, widerSelector)
}

// hidesPods is hides for rules about pods.
func hidesPods(a, b *decision.PodRule) bool {
	return a.DaemonSets == b.DaemonSets && covers(a.Namespaces, b.Namespaces, widerPattern) &&
		covers(a.Pods, b.Pods, widerSelector) && covers(a.Annotations, b.Annotations, widerSelector)
}

// covers reports whether for each of b there is one of a that is at least as wide. None of them are
// all that there is.
func covers[T any](a, b []T, wider func(a, b T) bool) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == 0
	}
	return !slices.ContainsFunc(b, func(y T) bool {
		return !slices.ContainsFunc(a, func(x T) bool { return wider(x, y) })
	})
}

func widerSelector(a, b decision.Selector) bool { return implies(b, a) }

// widerPattern reports whether all that matches b matches a. Both have no other wildcard than *, and
// none in b is taken for a letter of a.
func widerPattern(a, b string) bool { return decision.MatchesPattern(a, b) }
