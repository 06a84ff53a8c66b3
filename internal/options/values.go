package options

import (
	"errors"
	"fmt"
	"math"
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

// A kind is what a text stands for: a flag of kindBool needs no value, and the chart takes numbers as texts too.
type kind uint8

const (
	kindText kind = iota
	kindBool
	kindInteger
	kindNumber
)

// storing returns a value's set that stores what parse makes of a text.
func storing[T any](p *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		v, err := parse(text)
		if err == nil {
			*p = v
		}
		return err
	}
}

// anyBoolean is what boolean takes, in words.
const anyBoolean = "true or false"

func boolean(p *bool) value {
	return value{kind: kindBool, allowed: anyBoolean, schema: schema{"type": "boolean"}, set: storing(p, parseBool)}
}

func parseBool(text string) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("is neither true nor false")
	}
	return b, nil
}

// not takes what boolean takes, and stores the opposite.
func not(p *bool) value {
	v := boolean(p)
	v.set = storing(p, func(text string) (bool, error) {
		b, err := parseBool(text)
		return !b, err
	})
	return v
}

// booleanOr takes what boolean takes, and a word besides.
func booleanOr[T any](p *T, word string, forWord, forTrue, forFalse T) value {
	looks := schema{"anyOf": []schema{{"type": "boolean"}, {"const": word}}}
	allowed := word + ", " + anyBoolean
	return value{kind: kindBool, allowed: allowed, schema: looks, set: storing(p, func(text string) (T, error) {
		b, err := parseBool(text)
		switch {
		case strings.EqualFold(text, word):
			return forWord, nil
		case err != nil:
			return forWord, fmt.Errorf("is neither true nor false nor %s", word)
		case b:
			return forTrue, nil
		}
		return forFalse, nil
	})}
}

// parseInteger parses a whole number, low to high.
func parseInteger(text string, low, high int) (int, error) {
	n, err := strconv.Atoi(text)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (n < low || n > high):
		return 0, errors.New("is out of range")
	case err != nil:
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

// integer takes low to high.
func integer(p *int, low, high int) value { return whole(p, low, high, itself) }

// seconds takes a whole number of seconds, low to high.
func seconds(p *time.Duration, low, high int) value { return whole(p, low, high, ofSeconds) }

// secondsOr takes what seconds takes, and any negative number, for which it
// stores negative.
func secondsOr(p *time.Duration, negative time.Duration, low, high int) value {
	return wholeOr(p, negative, low, high, ofSeconds)
}

// burst takes a number above zero; any negative number stands for no limit.
func burst(p *int) value { return wholeOr(p, -1, 1, 100_000, itself) }

func itself(n int) int { return n }

func ofSeconds(n int) time.Duration { return time.Duration(n) * time.Second }

func whole[T any](p *T, low, high int, of func(int) T) value {
	looks := schema{"type": "integer", "minimum": low, "maximum": high}
	allowed := fmt.Sprintf("%d to %d", low, high)
	return value{kind: kindInteger, allowed: allowed, schema: looks, set: storing(p, func(text string) (T, error) {
		n, err := parseInteger(text, low, high)
		return of(n), err
	})}
}

func wholeOr[T any](p *T, negative T, low, high int, of func(int) T) value {
	looks := schema{"type": "integer", "maximum": high, "anyOf": []schema{{"minimum": low}, {"exclusiveMaximum": 0}}}
	allowed := fmt.Sprintf("%d to %d, or negative", low, high)
	return value{kind: kindInteger, allowed: allowed, schema: looks, set: storing(p, func(text string) (T, error) {
		if _, err := parseInteger(text, math.MinInt, -1); err == nil {
			return negative, nil
		}
		n, err := parseInteger(text, low, high)
		return of(n), err
	})}
}

// rate takes a number above zero; any negative number stands for no limit, and
// is stored as -1.
func rate(p *float32) value {
	looks := schema{"type": "number", "maximum": 100000, "not": schema{"const": 0}}
	allowed := "above 0 to 100000, or negative"
	return value{kind: kindNumber, allowed: allowed, schema: looks, set: storing(p, func(text string) (float32, error) {
		n, err := strconv.ParseFloat(text, 32)
		switch {
		case err != nil || math.IsNaN(n):
			return 0, errors.New("is not a number")
		case n < 0:
			return -1, nil
		case n == 0 || n > 100000:
			return 0, errors.New("is out of range")
		}
		return float32(n), nil
	})}
}

// oneOf takes one of the words, in either case.
func oneOf[T ~string](p *T, words ...T) value {
	var cases []string
	for _, word := range words {
		w := string(word)
		cases = append(cases, w, strings.ToLower(w), strings.ToUpper(w), strings.ToUpper(w[:1])+w[1:])
	}
	slices.Sort(cases)
	looks := schema{"enum": slices.Compact(cases)}
	return value{allowed: joined(words, ", "), schema: looks, set: storing(p, wordOf(words))}
}

// wordOf parses one of the words, in either case.
func wordOf[T ~string](words []T) func(string) (T, error) {
	return func(text string) (T, error) {
		i := slices.IndexFunc(words, func(w T) bool { return strings.EqualFold(string(w), text) })
		if i < 0 {
			return "", errors.New("is none of them")
		}
		return words[i], nil
	}
}

func joined[T ~string](words []T, between string) string {
	var texts []string
	for _, w := range words {
		texts = append(texts, string(w))
	}
	return strings.Join(texts, between)
}

// parsed takes what parse takes. The empty text stores the zero value of T.
func parsed[T any](p *T, allowed string, parse func(string) (T, error)) value {
	return value{allowed: allowed, set: storing(p, func(text string) (v T, err error) {
		if text == "" {
			return v, nil
		}
		return parse(text)
	})}
}

// text takes any text that passes check (nil: any text).
func text(p *string, allowed string, check func(string) error) value {
	return parsed(p, allowed, checked(check))
}

// checked parses a text that passes check (nil: any text) as itself.
func checked(check func(string) error) func(string) (string, error) {
	return func(text string) (string, error) {
		if check == nil {
			return text, nil
		}
		return text, check(text)
	}
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

// list takes texts that parse takes, separated by commas, and leaves out what is repeated. One that is
// wrong "is not an IP address", and several "are not IP addresses", but without the verb.
func list[T comparable](p *[]T, allowed, one, several string, parse func(string) (T, error)) value {
	return parsed(p, allowed, func(text string) ([]T, error) {
		var all []T
		var wrong []string
		for word := range strings.SplitSeq(text, ",") {
			word = strings.TrimSpace(word)
			v, err := parse(word)
			switch {
			case err != nil:
				wrong = append(wrong, strconv.Quote(word))
			case !slices.Contains(all, v):
				all = append(all, v)
			}
		}
		switch len(wrong) {
		case 0:
			return all, nil
		case 1:
			return nil, fmt.Errorf("has %s, which is %s", wrong[0], one)
		}
		return nil, fmt.Errorf("has %s, which are %s", strings.Join(wrong, ", "), several)
	})
}
