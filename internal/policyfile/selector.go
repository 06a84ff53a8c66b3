package policyfile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

var operators = map[selection.Operator]decision.Operator{
	selection.In:           decision.In,
	selection.Equals:       decision.In,
	selection.DoubleEquals: decision.In,
	selection.NotIn:        decision.NotIn,
	selection.NotEquals:    decision.NotIn,
	selection.Exists:       decision.Exists,
	selection.DoesNotExist: decision.DoesNotExist,
	selection.GreaterThan:  decision.Greater,
	selection.LessThan:     decision.Less,
}

// labelSelector takes a label selector, as kubectl does.
func labelSelector(p *decision.Selector) value {
	const allowed = "a label selector, such as team=batch,!gpu"
	return text(p, schema{"minLength": 1}, allowed, func(text string) (decision.Selector, error) {
		requirements, err := kubelabels.ParseToRequirements(text)
		if err != nil {
			return nil, fmt.Errorf("is not a label selector (%s)", why(err))
		}
		if len(requirements) == 0 {
			return nil, errors.New("selects everything: leave the key out")
		}
		var s decision.Selector
		for k := range requirements {
			r := &requirements[k]
			values := slices.Sorted(slices.Values(r.ValuesUnsorted()))
			s = append(s, decision.Requirement{Key: r.Key(), Operator: operators[r.Operator()], Values: values})
		}
		return s, nil
	})
}

// why is the error of a selector without what it has for others: the path, and the regular expression.
func why(err error) string {
	text, _, _ := strings.Cut(err.Error(), " (e.g. ")
	if _, value, ok := strings.Cut(text, "Invalid value: "); ok {
		return value
	}
	return strings.TrimPrefix(text, "unable to parse requirement: ")
}

// implies reports whether all that matches a also matches b, as far as that is seen from each requirement
// by itself.
func implies(a, b decision.Selector) bool {
	return !slices.ContainsFunc(b, func(wanted decision.Requirement) bool {
		return !slices.ContainsFunc(a, func(given decision.Requirement) bool { return requires(given, wanted) })
	})
}

// requires reports whether all that meets a also meets b.
func requires(a, b decision.Requirement) bool {
	if a.Key != b.Key {
		return false
	}
	in := func(v string) bool { return slices.Contains(b.Values, v) }
	notIn := func(v string) bool { return !slices.Contains(b.Values, v) }
	switch a.Operator {
	case decision.In:
		switch b.Operator {
		case decision.In:
			return !slices.ContainsFunc(a.Values, notIn)
		case decision.NotIn:
			return !slices.ContainsFunc(a.Values, in)
		case decision.Exists:
			return true
		case decision.DoesNotExist, decision.Greater, decision.Less:
		}
	case decision.NotIn:
		missing := func(v string) bool { return !slices.Contains(a.Values, v) }
		return b.Operator == decision.NotIn && !slices.ContainsFunc(b.Values, missing)
	case decision.Exists:
		return b.Operator == decision.Exists
	case decision.DoesNotExist:
		return b.Operator == decision.DoesNotExist || b.Operator == decision.NotIn
	case decision.Greater:
		return b.Operator == decision.Exists || b.Operator == decision.Greater && atLeast(a, b)
	case decision.Less:
		return b.Operator == decision.Exists || b.Operator == decision.Less && atLeast(b, a)
	}
	return false
}

// atLeast reports whether the integer of a is not less than that of b.
func atLeast(a, b decision.Requirement) bool {
	if len(a.Values) != 1 || len(b.Values) != 1 {
		return false
	}
	x, errX := strconv.ParseInt(a.Values[0], 10, 64)
	y, errY := strconv.ParseInt(b.Values[0], 10, 64)
	return errX == nil && errY == nil && x >= y
}
