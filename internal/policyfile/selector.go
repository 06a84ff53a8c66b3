package policyfile

import (
	"errors"
	"fmt"
	"slices"
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
