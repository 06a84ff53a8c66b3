package policyfile

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mostProblems is how many problems of one file are kept: more than anybody reads at once.
const mostProblems = 100

// A reader collects what is wrong with a file.
type reader struct {
	wrong Problems
}

// refuse says what is wrong with the key at path.
func (r *reader) refuse(n *yaml.Node, path, format string, args ...any) {
	if len(r.wrong) < mostProblems {
		r.wrong = append(r.wrong, problem(n, path, format, args...))
	}
}

func problem(n *yaml.Node, path, format string, args ...any) Problem {
	return Problem{Line: max(1, n.Line), Column: n.Column, Key: path, Text: fmt.Sprintf(format, args...)}
}

// A value is what a key takes: what it looks like in JSON Schema, and the way from its YAML to where
// it is kept.
type value struct {
	schema schema
	read   func(r *reader, n *yaml.Node, path string)
	fields []field // of an object
}

// A schema is a JSON Schema.
type schema map[string]any

// A field is a key of an object. What may be written in a file and what its schema says are both
// made of fields.
type field struct {
	key      string
	words    string // what it means, in sentences
	required bool
	value    value
}

func required(key string, takes value, words string) field { return field{key, words, true, takes} }

func optional(key string, takes value, words string) field { return field{key, words, false, takes} }

// A place is where an object stands, and each of its keys.
type place struct {
	node *yaml.Node
	path string
	keys map[string]*yaml.Node // the values
}

func (p place) has(key string) bool { return p.keys[key] != nil }

// of is where the key stands; the object if it does not have the key.
func (p place) of(key string) (*yaml.Node, string) {
	if n := p.keys[key]; n != nil {
		return n, join(p.path, key)
	}
	return p.node, p.path
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// object takes the keys of fields, and no others.
func object(where *place, words string, fields []field) value {
	properties, needed := schema{}, []string{}
	for _, f := range fields {
		of := schema{"description": f.words}
		maps.Copy(of, f.value.schema)
		properties[f.key] = of
		if f.required {
			needed = append(needed, f.key)
		}
	}
	looks := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if words != "" {
		looks["description"] = words
	}
	if len(needed) > 0 {
		looks["required"] = needed
	}
	return value{schema: looks, fields: fields, read: func(r *reader, n *yaml.Node, path string) {
		*where = place{n, path, map[string]*yaml.Node{}}
		ok := r.pairs(n, path, func(key, v *yaml.Node) {
			where.keys[key.Value] = v
			at := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
			if at < 0 {
				r.refuse(key, join(path, plain(key.Value)), "there is no such key%s", known(key.Value, fields))
				return
			}
			fields[at].value.read(r, v, join(path, key.Value))
		})
		for _, f := range fields {
			if ok && f.required && !where.has(f.key) {
				sentence, _, _ := strings.Cut(strings.TrimSuffix(f.words, "."), ". ")
				r.refuse(n, join(path, f.key), "is missing: %s", strings.ToLower(sentence[:1])+sentence[1:])
			}
		}
	}}
}

// known names the keys that there are.
func known(given string, fields []field) string {
	all := make([]string, len(fields))
	for k, f := range fields {
		all[k] = f.key
	}
	return "; allowed: " + strings.Join(all, ", ") + didYouMean(given, all)
}

// pairs calls each for the pairs of a map, and reports whether n is one. A key that comes again is left
// out.
func (r *reader) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		r.refuse(n, path, "is %s, and has to be a map of keys and values", kindOf(n))
		return false
	}
	seen := map[string]int{}
	for k := 0; k+1 < len(n.Content); k += 2 {
		key, v := n.Content[k], n.Content[k+1]
		if key.Kind != yaml.ScalarNode {
			r.refuse(key, path, "has %s as a key, and keys are texts", kindOf(key))
			continue
		}
		if first, again := seen[key.Value]; again {
			r.refuse(key, join(path, plain(key.Value)), "is given twice, the first time in line %d", first)
			continue
		}
		seen[key.Value] = key.Line
		each(key, v)
	}
	return true
}

// objects takes a list of at most so many, each with the fields of form. Nothing is an empty list.
func objects[T any](p *[]*T, most int, form func(*T) value) value {
	looks := schema{"type": []string{"array", "null"}, "items": form(new(T)).schema, "maxItems": most}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		if isNull(n) {
			return
		}
		if n.Kind != yaml.SequenceNode {
			r.refuse(n, path, "is %s, and has to be a list", kindOf(n))
			return
		}
		for k, item := range n.Content {
			if k == most {
				r.refuse(item, path, "has %d entries, and %d are allowed", len(n.Content), most)
				return
			}
			t := new(T)
			form(t).read(r, item, fmt.Sprintf("%s[%d]", path, k))
			*p = append(*p, t)
		}
	}}
}

// texts takes a text or a list of some, each as one takes it.
func texts[T any](p *[]T, one func(*T) value) value {
	looks := one(new(T)).schema
	list := schema{"anyOf": []schema{looks, {"type": "array", "items": looks, "minItems": 1, "maxItems": maxTexts}}}
	return value{schema: list, read: func(r *reader, n *yaml.Node, path string) {
		items := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			items = n.Content
		}
		switch {
		case len(items) == 0:
			r.refuse(n, path, "is empty: leave the key out, or give at least one")
		case len(items) > maxTexts:
			r.refuse(items[maxTexts], path, "has %d entries, and %d are allowed", len(items), maxTexts)
			items = items[:maxTexts]
		}
		for k, item := range items {
			at := path
			if n.Kind == yaml.SequenceNode {
				at = fmt.Sprintf("%s[%d]", path, k)
			}
			var t T
			one(&t).read(r, item, at)
			*p = append(*p, t)
		}
	}}
}

// text takes what parse takes. The error is a reason that follows the quoted text.
func text[T any](p *T, looks schema, allowed string, parse func(string) (T, error)) value {
	looks["type"] = "string"
	words, _ := looks["enum"].([]string)
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		t, err := parse(n.Value)
		switch isScalar := n.Kind == yaml.ScalarNode; {
		case isScalar && (n.ShortTag() == "!!str" || n.ShortTag() == "!!timestamp"):
			if err != nil {
				r.refuse(n, path, "%s %v; allowed: %s%s", quoted(n.Value), err, allowed, didYouMean(n.Value, words))
				return
			}
			*p = t
		case isScalar && !isNull(n) && err == nil:
			r.refuse(n, path, "is %s, and has to be a text: write %s; allowed: %s", kindOf(n), quoted(n.Value), allowed)
		default:
			r.refuse(n, path, "is %s, and has to be a text; allowed: %s", kindOf(n), allowed)
		}
	}}
}

// like takes a text of that form. If it is none, the reason is not.
func like[T any](p *T, form *regexp.Regexp, allowed, not string, parse func(string) (T, error)) value {
	return text(p, schema{"pattern": form.String()}, allowed, func(text string) (t T, err error) {
		if !form.MatchString(text) {
			return t, errors.New(not)
		}
		return parse(text)
	})
}

// oneOf takes the word of one of the values.
func oneOf[T any](p *T, values ...T) value {
	all := words(values)
	return text(p, schema{"enum": all}, strings.Join(all, ", "), func(word string) (t T, err error) {
		at := slices.Index(all, word)
		if at < 0 {
			return t, errors.New("is none of them")
		}
		return values[at], nil
	})
}

// words are the values as a file has them.
func words[T any](values []T) []string {
	all := make([]string, len(values))
	for k, v := range values {
		all[k] = fmt.Sprint(v)
	}
	return all
}

// scalar takes what parse takes, which is told the tag that YAML gives the text.
func scalar[T any](p *T, looks schema, allowed string, parse func(tag, text string) (T, bool)) value {
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		t, ok := parse(n.ShortTag(), n.Value)
		if n.Kind != yaml.ScalarNode || !ok {
			r.refuse(n, path, "is %s; allowed: %s", kindOf(n), allowed)
			return
		}
		*p = t
	}}
}

// boolean takes true or false.
func boolean(p *bool) value {
	return scalar(p, schema{"type": "boolean"}, "true or false", func(tag, text string) (value, ok bool) {
		b, err := strconv.ParseBool(text)
		return b, err == nil && tag == "!!bool"
	})
}

// integer takes low to high.
func integer(p *int, low, high int) value {
	looks := schema{"type": "integer", "minimum": low, "maximum": high}
	allowed := strconv.Itoa(low)
	if high > low {
		allowed = fmt.Sprintf("%d to %d", low, high)
	}
	return scalar(p, looks, allowed, func(tag, text string) (value int, ok bool) {
		i, err := strconv.Atoi(text)
		return i, err == nil && tag == "!!int" && low <= i && i <= high
	})
}

// labels takes a map of texts.
func labels(p *map[string]string) value {
	looks := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		*p = map[string]string{}
		r.pairs(n, path, func(key, v *yaml.Node) {
			var s string
			text(&s, schema{}, "any text", anything).read(r, v, join(path, plain(key.Value)))
			(*p)[key.Value] = s
		})
	}}
}

func anything(text string) (string, error) { return text, nil }

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf says what stands there.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode, yaml.AliasNode, yaml.DocumentNode:
	}
	switch n.ShortTag() {
	case "!!null":
		return "empty"
	case "!!bool", "!!int", "!!float":
		return plain(n.Value)
	}
	return quoted(n.Value)
}
