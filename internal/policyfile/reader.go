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

// A reader collects what is wrong with a file, and knows where its values stand.
type reader struct {
	wrong Problems
	at    map[string]*yaml.Node // by their paths, such as nodes[0].do; of a window it is the name
}

// refuse says what is wrong with the key at path.
func (r *reader) refuse(n *yaml.Node, path, format string, args ...any) {
	if len(r.wrong) < mostProblems {
		p := Problem{Line: max(1, n.Line), Column: n.Column, Key: path, Text: fmt.Sprintf(format, args...)}
		r.wrong = append(r.wrong, p)
	}
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

// object takes the keys of fields, and no others.
func object(words string, fields ...field) value {
	properties, keys, needed := schema{}, []string{}, []string{}
	for _, f := range fields {
		of := schema{"description": f.words}
		maps.Copy(of, f.value.schema)
		properties[f.key] = of
		keys = append(keys, f.key)
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
		ok := r.pairs(n, path, func(key, v *yaml.Node, at string) {
			k := slices.Index(keys, key.Value)
			if k < 0 {
				r.refuse(key, at, "there is no such key%s", choice(key.Value, keys))
				return
			}
			fields[k].value.read(r, v, at)
		})
		for _, f := range fields {
			if at := join(path, f.key); ok && f.required && r.at[at] == nil {
				sentence, _, _ := strings.Cut(strings.TrimSuffix(f.words, "."), ". ")
				r.refuse(n, at, "is missing: %s", strings.ToLower(sentence[:1])+sentence[1:])
			}
		}
	}}
}

func join(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }

// pairs calls each for the pairs of a map, with the path of the value, and reports whether n is one. A key
// that comes again is left out.
func (r *reader) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node, path string)) bool {
	if n.Kind != yaml.MappingNode {
		r.refuse(n, path, "is %s, and has to be a map of keys and values", kindOf(n))
		return false
	}
	seen := map[string]int{}
	for pair := range slices.Chunk(n.Content, 2) {
		key, at := pair[0], join(path, plain(pair[0].Value))
		first, again := seen[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			r.refuse(key, path, "has %s as a key, and keys are texts", kindOf(key))
		case again:
			r.refuse(key, at, "is given twice, the first time in line %d", first)
		default:
			seen[key.Value], r.at[at] = key.Line, pair[1]
			each(key, pair[1], at)
		}
	}
	return true
}

// items calls each for the entries of a list, with their paths, but for those after most.
func (r *reader) items(n *yaml.Node, path string, most int, each func(item *yaml.Node, path string)) {
	for k, item := range n.Content {
		if k == most {
			r.refuse(item, path, "has %d entries, and %d are allowed", len(n.Content), most)
			return
		}
		at := fmt.Sprintf("%s[%d]", path, k)
		r.at[at] = item
		each(item, at)
	}
}

// objects takes a list of at most so many, each with the fields of form. Nothing is an empty list.
func objects[T any](p *[]T, most int, form func(*T) value) value {
	looks := schema{"type": []string{"array", "null"}, "items": form(new(T)).schema, "maxItems": most}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		if n.Kind != yaml.SequenceNode && !isNull(n) {
			r.refuse(n, path, "is %s, and has to be a list", kindOf(n))
			return
		}
		r.items(n, path, most, readInto(r, p, form))
	}}
}

// texts takes a text or a list of some, each as one takes it.
func texts[T any](p *[]T, one func(*T) value) value {
	looks := one(new(T)).schema
	list := schema{"anyOf": []schema{looks, {"type": "array", "items": looks, "minItems": 1, "maxItems": maxTexts}}}
	return value{schema: list, read: func(r *reader, n *yaml.Node, path string) {
		switch {
		case n.Kind != yaml.SequenceNode:
			readInto(r, p, one)(n, path)
		case len(n.Content) == 0:
			r.refuse(n, path, "is empty: leave the key out, or give at least one")
		default:
			r.items(n, path, maxTexts, readInto(r, p, one))
		}
	}}
}

// readInto returns what appends an entry to a list, as form takes it.
func readInto[T any](r *reader, p *[]T, form func(*T) value) func(item *yaml.Node, path string) {
	return func(item *yaml.Node, path string) {
		var t T
		form(&t).read(r, item, path)
		*p = append(*p, t)
	}
}

// text takes what parse takes. The error is a reason that follows the quoted text.
func text[T any](p *T, looks schema, allowed string, parse func(string) (T, error)) value {
	looks["type"] = "string"
	words, _ := looks["enum"].([]string)
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		t, err := parse(n.Value)
		switch {
		case isText(n) && err == nil:
			*p = t
		case isText(n):
			r.refuse(n, path, "%s %v; allowed: %s%s", quoted(n.Value), err, allowed, didYouMean(n.Value, words))
		case n.Kind == yaml.ScalarNode && !isNull(n) && err == nil:
			r.refuse(n, path, "is %s, and has to be a text: write %s; allowed: %s", kindOf(n), quoted(n.Value), allowed)
		default:
			r.refuse(n, path, "is %s, and has to be a text; allowed: %s", kindOf(n), allowed)
		}
	}}
}

// onlyIf returns t, and unless that is ok the reason why it is not.
func onlyIf[T any](ok bool, t T, reason string) (T, error) {
	if !ok {
		return t, errors.New(reason)
	}
	return t, nil
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

// anyText takes any text but the empty one.
func anyText(p *string, allowed string) value {
	return text(p, schema{"minLength": 1}, allowed, func(text string) (string, error) {
		return onlyIf(text != "", text, "is empty")
	})
}

// oneOf takes the word of one of the values.
func oneOf[T any](p *T, values ...T) value {
	all := words(values)
	return text(p, schema{"enum": all}, strings.Join(all, ", "), func(word string) (T, error) {
		if at := slices.Index(all, word); at >= 0 {
			return values[at], nil
		}
		var none T
		return none, errors.New("is none of them")
	})
}

// words are the values as a file has them.
func words[T any](values []T) (all []string) {
	for _, v := range values {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

// scalar takes what parse takes, which gets the tag of YAML, too.
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

// integer takes 1 to most.
func integer(p *int, most int, allowed string) value {
	looks := schema{"type": "integer", "minimum": 1, "maximum": most}
	return scalar(p, looks, allowed, func(tag, text string) (value int, ok bool) {
		i, err := strconv.Atoi(text)
		return i, err == nil && tag == "!!int" && 1 <= i && i <= most
	})
}

// labels takes a map of texts.
func labels(p *map[string]string) value {
	looks := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, path string) {
		*p = map[string]string{}
		r.pairs(n, path, func(key, v *yaml.Node, at string) {
			var s string
			text(&s, schema{}, "any text", anything).read(r, v, at)
			(*p)[key.Value] = s
		})
	}}
}

func anything(text string) (string, error) { return text, nil }

func isText(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!str" || n.ShortTag() == "!!timestamp")
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf says what stands there.
func kindOf(n *yaml.Node) string {
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case tag == "!!null":
		return "empty"
	case tag == "!!bool", tag == "!!int", tag == "!!float":
		return plain(n.Value)
	}
	return quoted(n.Value)
}
