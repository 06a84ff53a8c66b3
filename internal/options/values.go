package options

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A value is what an option takes, and the way from its text to its field of
// the configuration.
type value struct {
	kind    kind
	allowed string // in words: "30 to 3600, or negative"
	// schema is what the chart's value looks like, in JSON Schema; nil: a text.
	schema schema
	// set parses text and stores the result. Its error is a reason that follows
	// the quoted text ("is not a whole number") and does not repeat it.
	set func(text string) error
}

// A schema is a JSON Schema.
type schema map[string]any

// A kind says in one word what to write after the option's name.
type kind string

const (
	kindText    kind = "TEXT"
	kindBool    kind = "BOOL"
	kindInteger kind = "INTEGER"
	kindNumber  kind = "NUMBER"
	kindSeconds kind = "SECONDS"
	kindURL     kind = "URL"
)

// noValue is the value of an option without effect.
func noValue(k kind) value {
	return value{kind: k, schema: schema{}, set: func(string) error { return nil }}
}

// anyBoolean is what boolean takes, in words.
const anyBoolean = "true or false"

func boolean(p *bool) value {
	looks := schema{"type": "boolean"}
	return value{kind: kindBool, allowed: anyBoolean, schema: looks, set: func(text string) error {
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("is neither true nor false")
		}
		*p = b
		return nil
	}}
}

// booleanOr takes what boolean takes, and a word besides.
func booleanOr[T any](p *T, word string, forWord, forTrue, forFalse T) value {
	var b bool
	v := boolean(&b)
	set := v.set
	v.allowed = word + ", " + v.allowed
	v.schema = schema{"anyOf": []schema{v.schema, {"const": word}}}
	v.set = func(text string) error {
		if strings.EqualFold(text, word) {
			*p = forWord
			return nil
		}
		if set(text) != nil {
			return fmt.Errorf("is neither true nor false nor %s", word)
		}
		*p = forFalse
		if b {
			*p = forTrue
		}
		return nil
	}
	return v
}

// not takes what boolean takes, and stores the opposite.
func not(p *bool) value {
	var b bool
	v := boolean(&b)
	set := v.set
	v.set = func(text string) error {
		err := set(text)
		if err == nil {
			*p = !b
		}
		return err
	}
	return v
}

// integer takes low to high.
func integer(p *int, low, high int) value {
	looks := schema{"type": "integer", "minimum": low, "maximum": high}
	allowed := fmt.Sprintf("%d to %d", low, high)
	return value{kind: kindInteger, allowed: allowed, schema: looks, set: func(text string) error {
		n, err := parseInteger(text)
		if err != nil {
			return err
		}
		if n < low || n > high {
			return errors.New("is out of range")
		}
		*p = n
		return nil
	}}
}

// rate takes a number above zero; any negative number stands for no limit, and
// is stored as -1.
func rate(p *float32) value {
	looks := schema{"type": "number", "maximum": 100000, "not": schema{"const": 0}}
	return value{kind: kindNumber, allowed: "above 0 to 100000, or negative", schema: looks, set: func(text string) error {
		n, err := strconv.ParseFloat(text, 32)
		switch {
		case err != nil || math.IsNaN(n):
			return errors.New("is not a number")
		case n < 0:
			*p = -1
		case n == 0 || n > 100000:
			return errors.New("is out of range")
		default:
			*p = float32(n)
		}
		return nil
	}}
}

// seconds takes a whole number of seconds, low to high.
func seconds(p *time.Duration, low, high int) value {
	var n int
	v := integer(&n, low, high)
	set := v.set
	v.kind = kindSeconds
	v.set = func(text string) error {
		if err := set(text); err != nil {
			return err
		}
		*p = time.Duration(n) * time.Second
		return nil
	}
	return v
}

// secondsOr takes what seconds takes, and any negative number, for which it
// stores negative.
func secondsOr(p *time.Duration, negative time.Duration, low, high int) value {
	v := seconds(p, low, high)
	set := v.set
	v.allowed += ", or negative"
	v.schema = schema{"type": "integer", "maximum": high, "anyOf": []schema{{"minimum": low}, {"exclusiveMaximum": 0}}}
	v.set = func(text string) error {
		if n, err := parseInteger(text); err == nil && n < 0 {
			*p = negative
			return nil
		}
		return set(text)
	}
	return v
}

func parseInteger(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if errors.Is(err, strconv.ErrRange) {
		return 0, errors.New("is out of range")
	} else if err != nil {
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

// A choice is one of the words that an option takes.
type choice[T any] struct {
	word  string
	value T
}

// oneOf takes the word of one of choices, in either case.
func oneOf[T any](p *T, choices ...choice[T]) value {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.word
	}
	var cases []string
	for _, w := range words {
		cases = append(cases, w, strings.ToLower(w), strings.ToUpper(w), strings.ToUpper(w[:1])+w[1:])
	}
	slices.Sort(cases)
	looks := schema{"enum": slices.Compact(cases)}
	return value{kind: kindText, allowed: strings.Join(words, ", "), schema: looks, set: func(text string) error {
		i := slices.IndexFunc(choices, func(c choice[T]) bool { return strings.EqualFold(c.word, text) })
		if i < 0 {
			return errors.New("is none of them")
		}
		*p = choices[i].value
		return nil
	}}
}

// listOf takes some of choices, separated by commas.
func listOf[T ~string](p *[]T, choices ...T) value {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = string(c)
	}
	return value{kind: kindText, allowed: "some of " + strings.Join(words, ","), set: func(text string) error {
		var list []T
		for word := range strings.SplitSeq(text, ",") {
			i := slices.Index(words, strings.ToLower(strings.TrimSpace(word)))
			if i < 0 {
				return fmt.Errorf("has %q, which is none of them", word)
			}
			list = append(list, choices[i])
		}
		*p = list
		return nil
	}}
}

// text takes any text that passes check (nil: any text).
func text(p *string, allowed string, check func(string) error) value {
	return value{kind: kindText, allowed: allowed, set: func(text string) error {
		if check != nil && text != "" {
			if err := check(text); err != nil {
				return err
			}
		}
		*p = text
		return nil
	}}
}

// notEmpty is v without the empty text, which a flag can be.
func notEmpty(v value) value {
	set := v.set
	v.set = func(text string) error {
		if text == "" {
			return errors.New("is empty")
		}
		return set(text)
	}
	return v
}

// address takes the URL of an HTTP server, or nothing.
func address(p *string) value {
	v := text(p, "an http or https URL", func(text string) error {
		_, err := parseHTTPURL(text)
		return err
	})
	v.kind = kindURL
	return v
}

// pairs takes k=v,k=v. check looks at each key and value.
func pairs(p *map[string]string, allowed string, check func(k, v string) error) value {
	return value{kind: kindText, allowed: allowed, set: func(text string) error {
		if text == "" {
			*p = nil
			return nil
		}
		m := make(map[string]string)
		for pair := range strings.SplitSeq(text, ",") {
			k, v, ok := strings.Cut(pair, "=")
			if !ok {
				return fmt.Errorf("has %q, which is not key=value", pair)
			}
			k = strings.TrimSpace(k)
			if err := check(k, v); err != nil {
				return err
			}
			m[k] = v
		}
		*p = m
		return nil
	}}
}

// parsed takes what parse takes. The empty text stores the zero value of T.
func parsed[T any](p *T, k kind, allowed string, parse func(string) (T, error)) value {
	return value{kind: k, allowed: allowed, set: func(text string) error {
		var v T
		if text != "" {
			var err error
			if v, err = parse(text); err != nil {
				return err
			}
		}
		*p = v
		return nil
	}}
}

// parseProxy parses the address of a proxy. NTH documents tcp:// for what
// net/http calls an http proxy.
func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("is not a URL")
	}
	if u.Scheme == "tcp" {
		u.Scheme = "http"
	}
	switch {
	case !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme):
		return nil, errors.New("has no scheme that a proxy can have")
	case u.Hostname() == "":
		return nil, errors.New("names no host")
	}
	return u, nil
}
