package decision

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// A Selector selects objects by their labels or annotations, as a label selector of Kubernetes
// does. The empty one selects everything.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
type Selector []Requirement

// A Requirement is about the value of one key.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string // of In and NotIn some, of Greater and Less one integer, else none
}

// Operator says how a Requirement compares.
type Operator uint8

// The operators.
const (
	In           Operator = iota
	NotIn                 // also where the key is missing
	Exists                //
	DoesNotExist          //
	Greater               // than an integer
	Less
)

// Matches reports whether all requirements hold.
func (s Selector) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s, func(r Requirement) bool { return !r.holds(labels) })
}

func (r Requirement) holds(labels map[string]string) bool {
	value, there := labels[r.Key]
	switch r.Operator {
	case In:
		return there && slices.Contains(r.Values, value)
	case NotIn:
		return !there || !slices.Contains(r.Values, value)
	case Exists:
		return there
	case DoesNotExist:
		return !there
	case Greater:
		return there && len(r.Values) == 1 && compareIntegers(value, r.Values[0]) > 0
	case Less:
		return there && len(r.Values) == 1 && compareIntegers(value, r.Values[0]) < 0
	}
	return false
}

// compareIntegers returns 0 where one of the two is not an integer.
func compareIntegers(a, b string) int {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX != nil || errY != nil {
		return 0
	}
	return cmp.Compare(x, y)
}

// matchesAny reports whether one of the selectors matches. Without selectors everything does.
func matchesAny(selectors []Selector, labels map[string]string) bool {
	return len(selectors) == 0 || slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// MatchesPattern reports whether a text is as the pattern says, in which * stands for any characters,
// also none.
func MatchesPattern(pattern, text string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	for ok {
		part, next, more := strings.Cut(rest, "*")
		if !more { // the last part ends the text
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part) // the first place leaves the most to the rest
		rest = next
	}
	return false
}

// matchesAnyPattern reports whether one of the patterns matches. Without patterns everything does.
func matchesAnyPattern(patterns []string, text string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return MatchesPattern(p, text) })
}
