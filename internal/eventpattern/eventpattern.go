// Package eventpattern matches events against EventBridge event patterns, by the rules that
// AWS documents, and rejects the patterns that the service would reject. Two operators it accepts
// unread, numeric and cidr: they match no notice.
//
// The library quamina (quamina.net/go/quamina/v2) has no suffix and $or, and no prefix without case. Its anything-but
// takes lists of strings only, and its exists no other value beside it.
//
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-patterns.html
package eventpattern

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Pattern is an event pattern that the service would accept.
type Pattern struct{ root object }

// Parse reads an event pattern. The error says what the service would reject in it.
func Parse(pattern string) (Pattern, error) {
	tree, err := decode(pattern)
	if err != nil {
		return Pattern{}, err
	}
	root, err := parseObject(tree)
	return Pattern{root}, err
}

// Match reports whether the pattern matches the event. The error says that the event is not a JSON
// object.
func (p Pattern) Match(event string) (bool, error) {
	fields, err := decode(event)
	if err != nil {
		return false, err
	}
	return p.root.match(fields), nil
}

// decode reads one JSON object and keeps numbers as they are written.
func decode(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the JSON object")
	}
	if tree == nil {
		return nil, errors.New("not a JSON object: null")
	}
	return tree, nil
}

// object matches an object if each named field matches, and at least one alternative of each
// group. Other fields do not matter.
type object struct {
	objects map[string]object
	leaves  map[string]leaf
	groups  [][]object
}

// leaf matches a field if one of its tests matches one of the values of the field.
type leaf []test

// test matches a value that is neither an object nor an array, or the absence of a value.
type test func(value any, present bool) bool

func parseObject(tree map[string]any) (object, error) {
	o := object{objects: map[string]object{}, leaves: map[string]leaf{}}
	if len(tree) == 0 {
		return o, errors.New("an empty object matches nothing")
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		var err error
		switch value := tree[name].(type) {
		case map[string]any:
			o.objects[name], err = parseObject(value)
		case []any:
			if alternatives, ok := alternatives(name, value); ok {
				var group []object
				group, err = parseEach(alternatives, parseObject)
				o.groups = append(o.groups, group)
			} else {
				o.leaves[name], err = parseLeaf(value)
			}
		default:
			err = errors.New("must be an object or an array")
		}
		if err != nil {
			return o, fmt.Errorf("%q: %w", name, err)
		}
	}
	return o, nil
}

// alternatives returns the objects of an "$or". With fewer than two of them, or with other values
// among them, "$or" is a field like any other.
func alternatives(name string, values []any) ([]map[string]any, bool) {
	if name != "$or" || len(values) < 2 {
		return nil, false
	}
	var all []map[string]any
	for _, value := range values {
		fields, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		for field := range fields {
			if operator(field) != nil {
				return nil, false
			}
		}
		all = append(all, fields)
	}
	return all, true
}

func parseLeaf(values []any) (leaf, error) {
	if len(values) == 0 {
		return nil, errors.New("an empty array matches nothing")
	}
	return parseEach(values, parseTest)
}

func parseEach[In, Out any](values []In, parse func(In) (Out, error)) (all []Out, err error) {
	for _, value := range values {
		parsed, err := parse(value)
		if err != nil {
			return nil, err
		}
		all = append(all, parsed)
	}
	return all, nil
}

func (o object) match(fields map[string]any) bool {
	for name, inner := range o.objects {
		if !inner.matchAny(fields[name]) {
			return false
		}
	}
	for name, l := range o.leaves {
		if value, there := fields[name]; !l.match(value, there) {
			return false
		}
	}
	for _, group := range o.groups {
		if !slices.ContainsFunc(group, func(alternative object) bool { return alternative.match(fields) }) {
			return false
		}
	}
	return true
}

// matchAny matches an object, or an array with an object that matches. Any other value is an
// object without fields.
func (o object) matchAny(value any) bool {
	if elements, ok := value.([]any); ok && len(elements) > 0 {
		return slices.ContainsFunc(elements, o.matchAny)
	}
	fields, _ := value.(map[string]any)
	return o.match(fields)
}

// match matches an event's array if it has an element that a test matches. there: the event has the field, whose value
// may be null.
func (l leaf) match(value any, there bool) bool {
	var found []any
	if there {
		found = values(value)
	}
	return slices.ContainsFunc(l, func(t test) bool {
		return len(found) == 0 && t(nil, false) || slices.ContainsFunc(found, func(v any) bool { return t(v, true) })
	})
}

// values returns the values of a field that tests can see. An object is none of them: the service
// compares leaves only.
func values(value any) []any {
	switch value := value.(type) {
	case map[string]any:
		return nil
	case []any:
		var all []any
		for _, element := range value {
			all = append(all, values(element)...)
		}
		return all
	default:
		return []any{value}
	}
}
