// Package eventpattern says whether an EventBridge rule takes an event: it
// matches events against event patterns by the service's documented rules.
//
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-event-patterns.html
package eventpattern

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Pattern is an event pattern that the service would accept.
type Pattern struct{ root object }

// Parse reads an event pattern, and says what the service would refuse in it.
func Parse(pattern string) (Pattern, error) {
	tree, err := decode(pattern)
	if err != nil {
		return Pattern{}, err
	}
	root, err := parseObject(tree)
	return Pattern{root}, err
}

// Match reports whether the pattern takes the event. An error means that the
// event is not a JSON object.
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
	markNull(tree)
	return tree, nil
}

// null is the value of a field that is there and null.
type null struct{}

// markNull tells null from a field that is missing, in place.
func markNull(tree any) any {
	switch tree := tree.(type) {
	case nil:
		return null{}
	case map[string]any:
		for name, value := range tree {
			tree[name] = markNull(value)
		}
	case []any:
		for i, value := range tree {
			tree[i] = markNull(value)
		}
	}
	return tree
}

// object takes an object of which each named field is taken, and of each group
// of alternatives at least one. Fields that it does not name do not count.
type object struct {
	objects map[string]object
	leaves  map[string]leaf
	groups  [][]object
}

// leaf takes a field if one of its tests takes one of the field's values.
type leaf []test

// test takes or refuses a value that is neither an object nor an array, or the
// absence of any.
type test func(value any, present bool) bool

func parseObject(tree map[string]any) (object, error) {
	o := object{objects: map[string]object{}, leaves: map[string]leaf{}}
	if len(tree) == 0 {
		return o, errors.New("an empty object matches nothing")
	}
	for name, value := range tree {
		var err error
		switch value := value.(type) {
		case map[string]any:
			o.objects[name], err = parseObject(value)
		case []any:
			if alternatives, ok := alternatives(name, value); ok {
				var group []object
				group, err = parseGroup(alternatives)
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

// alternatives are the objects of an "$or". With fewer than two, or with other
// things in it, it is a field like any other.
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

func parseGroup(alternatives []map[string]any) ([]object, error) {
	var group []object
	for _, fields := range alternatives {
		o, err := parseObject(fields)
		if err != nil {
			return nil, err
		}
		group = append(group, o)
	}
	return group, nil
}

func parseLeaf(values []any) (leaf, error) {
	if len(values) == 0 {
		return nil, errors.New("an empty array matches nothing")
	}
	var l leaf
	for _, value := range values {
		t, err := parseTest(value)
		if err != nil {
			return nil, err
		}
		l = append(l, t)
	}
	return l, nil
}

func (o object) match(fields map[string]any) bool {
	for name, inner := range o.objects {
		if !inner.matchAny(fields[name]) {
			return false
		}
	}
	for name, l := range o.leaves {
		if !l.match(fields[name]) {
			return false
		}
	}
	for _, group := range o.groups {
		taken := false
		for _, alternative := range group {
			taken = taken || alternative.match(fields)
		}
		if !taken {
			return false
		}
	}
	return true
}

// matchAny takes an object, or an array with an object that is taken. What is
// neither has no fields.
func (o object) matchAny(value any) bool {
	if elements, ok := value.([]any); ok && len(elements) > 0 {
		for _, element := range elements {
			if o.matchAny(element) {
				return true
			}
		}
		return false
	}
	fields, _ := value.(map[string]any)
	return o.match(fields)
}

// match takes an event's array if it and the pattern's array have something in
// common.
func (l leaf) match(value any) bool {
	found := values(value)
	for _, t := range l {
		if len(found) == 0 && t(nil, false) {
			return true
		}
		for _, v := range found {
			if t(v, true) {
				return true
			}
		}
	}
	return false
}

// values are those of a field that tests can look at. An object is none: the
// service compares leaves alone.
func values(value any) []any {
	switch value := value.(type) {
	case nil, map[string]any:
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
