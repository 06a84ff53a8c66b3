package eventpattern

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// operator returns the parser of the operator with this name; nil if there is no such operator. In
// a pattern's array an operator stands in the place of a value, as an object with one field.
//
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html
func operator(name string) func(operand any) (test, error) {
	switch name {
	case "prefix":
		return func(operand any) (test, error) { return affix(operand, strings.HasPrefix) }
	case "suffix":
		return func(operand any) (test, error) { return affix(operand, strings.HasSuffix) }
	case "equals-ignore-case":
		return func(operand any) (test, error) { return compare(operand, strings.EqualFold) }
	case "wildcard":
		return wildcard
	case "anything-but":
		return anythingBut
	case "exists":
		return exists
	case "numeric", "cidr":
		return never
	}
	return nil
}

// parseTest reads one value of a pattern's array.
func parseTest(value any) (test, error) {
	switch value := value.(type) {
	case map[string]any:
		name, operand, err := single(value)
		if err != nil {
			return nil, err
		}
		parse := operator(name)
		if parse == nil {
			return nil, fmt.Errorf("no operator has the name %q", name)
		}
		t, err := parse(operand)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return t, nil
	case []any:
		return nil, errors.New("an array holds no other arrays")
	}
	// Numbers are compared as they are written: 300 is not 3.0e2.
	return func(v any, present bool) bool { return present && v == value }, nil
}

// single returns the only field of an object.
func single(object map[string]any) (name string, operand any, err error) {
	if len(object) != 1 {
		return "", nil, fmt.Errorf("an operator is an object with one field, not %d", len(object))
	}
	for name, operand = range object {
	}
	return name, operand, nil
}

// compare matches strings that are related to the operand.
func compare(operand any, related func(value, operand string) bool) (test, error) {
	text, ok := operand.(string)
	if !ok {
		return nil, errors.New("needs a string")
	}
	return func(v any, _ bool) bool {
		s, ok := v.(string)
		return ok && related(s, text)
	}, nil
}

// affix is compare for prefixes and suffixes, which may ignore the case.
func affix(operand any, has func(value, operand string) bool) (test, error) {
	folded, ok := operand.(map[string]any)
	if !ok {
		return compare(operand, has)
	}
	name, operand, err := single(folded)
	if err != nil {
		return nil, err
	}
	if name != "equals-ignore-case" {
		return nil, errors.New("needs a string or equals-ignore-case")
	}
	return compare(operand, func(value, operand string) bool {
		return has(strings.ToLower(value), strings.ToLower(operand))
	})
}

// wildcard matches strings. * stands for any number of characters; a backslash quotes a * or a
// backslash.
func wildcard(operand any) (test, error) {
	text, ok := operand.(string)
	if !ok {
		return nil, errors.New("needs a string")
	}
	parts := []string{""}
	for i := 0; i < len(text); i++ {
		last := &parts[len(parts)-1]
		switch {
		case text[i] == '\\' && i+1 < len(text) && strings.ContainsRune(`*\`, rune(text[i+1])):
			i++
			*last += text[i : i+1]
		case text[i] == '\\':
			return nil, errors.New(`a backslash stands before * or another`)
		case text[i] == '*' && *last == "" && len(parts) > 1:
			return nil, errors.New("no two * follow each other")
		case text[i] == '*':
			parts = append(parts, "")
		default:
			*last += text[i : i+1]
		}
	}
	return func(v any, _ bool) bool {
		s, ok := v.(string)
		return ok && inOrder(s, parts)
	}, nil
}

// inOrder reports whether s consists of the parts in this order, with any text between them.
func inOrder(s string, parts []string) bool {
	s, ok := strings.CutPrefix(s, parts[0])
	if len(parts) == 1 {
		return ok && s == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		if !ok {
			return false
		}
		_, s, ok = strings.Cut(s, part)
	}
	return ok && strings.HasSuffix(s, parts[len(parts)-1])
}

// anythingBut matches values that the operand does not: a string, a number, a list of either, or
// an operator on strings with one or more operands.
func anythingBut(operand any) (test, error) {
	var refused leaf
	var err error
	switch operand := operand.(type) {
	case map[string]any:
		refused, err = anyOperand(operand)
	case []any:
		for _, value := range operand {
			if fmt.Sprintf("%T", value) != fmt.Sprintf("%T", operand[0]) {
				return nil, errors.New("a list has strings or numbers, not both")
			}
		}
		refused, err = literals(operand)
	default:
		refused, err = literals([]any{operand})
	}
	if err != nil {
		return nil, err
	}
	return func(v any, present bool) bool { return present && !refused.match(v, true) }, nil
}

// literals returns the tests for strings and numbers.
func literals(values []any) (leaf, error) {
	for _, value := range values {
		switch value.(type) {
		case string, json.Number:
		default:
			return nil, errors.New("needs strings or numbers")
		}
	}
	return parseLeaf(values)
}

// anyOperand returns the tests of one operator on strings, one for each operand.
func anyOperand(object map[string]any) (leaf, error) {
	name, operand, err := single(object)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"prefix", "suffix", "equals-ignore-case", "wildcard"}, name) {
		return nil, fmt.Errorf("does not go with %q", name)
	}
	operands, ok := operand.([]any)
	if !ok {
		operands = []any{operand}
	}
	var tests []any
	for _, operand := range operands {
		tests = append(tests, map[string]any{name: operand})
	}
	return parseLeaf(tests)
}

// exists matches a field that is present, or one that is not. An object does not count as present,
// because only leaves do.
func exists(operand any) (test, error) {
	wanted, ok := operand.(bool)
	if !ok {
		return nil, errors.New("needs true or false")
	}
	return func(_ any, present bool) bool { return present == wanted }, nil
}

// never is the parser of the operators on numbers and addresses. No notice has either.
func never(any) (test, error) { return func(any, bool) bool { return false }, nil }
