package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An option is one row of the table that gives the flags, the environment
// variables, the words of --help and docs/options.md.
type option struct {
	names
	older []names // former names, used where only they are set
	group group
	value value
	def   string // as one would write it
	// defWords says what the default means or amounts to, where def does not.
	defWords string
	words    string // for the reader of --help, the unit included; a sentence
	// noEffect says why the option is accepted and changes nothing, in words
	// that follow "has no effect: ". Its value is then not looked at.
	noEffect string
	required bool
	secret   bool // never printed, neither in errors nor in logs
}

// names are the ways to give one option; each may be empty.
type names struct {
	flag string // without dashes
	env  string
	helm string // paths of the values in the chart, separated by ", "
}

// A group is a heading in --help and docs/options.md.
type group string

const (
	groupQueue     group = "Queue and AWS"
	groupInstances group = "Which instances"
	groupNode      group = "What happens to a node"
	groupPods      group = "Pods"
	groupHooks     group = "Lifecycle hooks"
	groupKube      group = "Kubernetes"
	groupLogs      group = "Logs and probes"
	groupEvents    group = "Kubernetes events and webhooks"
	groupNoEffect  group = "Accepted, without effect"
)

var groups = []group{
	groupQueue, groupInstances, groupNode, groupPods, groupHooks, groupKube, groupLogs, groupEvents, groupNoEffect,
}

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

// A mistake is one thing that is wrong with the command line or the
// environment, in words that help to put it right.
type mistake struct {
	name  string // the option's name, or what was given in its place
	words string
}

func (m mistake) Error() string { return m.name + ": " + m.words }

// mistakes are all that were found: nobody should have to start a program five
// times to learn about five of them.
type mistakes []mistake

func (ms mistakes) Error() string {
	var b strings.Builder
	if len(ms) == 1 {
		b.WriteString("1 mistake in the options:")
	} else {
		fmt.Fprintf(&b, "%d mistakes in the options:", len(ms))
	}
	for _, m := range ms {
		b.WriteString("\n  " + m.Error())
	}
	return b.String()
}

// err returns ms as an error, nil if there are none.
func (ms mistakes) err() error {
	if len(ms) == 0 {
		return nil
	}
	return ms
}

// A given is the text that an option has got, and from where.
type given struct {
	text   string
	source string // "--workers", "WORKERS", or "default"
}

const sourceDefault = "default"

// refuse returns the mistake of having given g to o.
func (o *option) refuse(g given, why error) mistake {
	words := fmt.Sprintf("%s (from %s) %v", o.show(g.text), g.source, why)
	if o.value.allowed != "" {
		words += "; allowed: " + o.value.allowed
	}
	return mistake{name: o.flag, words: words}
}

// userInfo is a user name and password in a URL, well-formed or not.
var userInfo = regexp.MustCompile(`//[^/?#]*@`)

// show returns text as it may be printed: quoted, cut, and not at all where it
// is a secret, which a URL can hold by mistake.
func (o *option) show(text string) string {
	const most = 200 // a line of a log, and enough to recognise what was given
	if o.secret {
		return fmt.Sprintf("(secret, %d characters)", len(text))
	}
	text = userInfo.ReplaceAllLiteralString(text, "//(secret)@")
	if len(text) > most {
		return fmt.Sprintf("%q and %d characters more", text[:most], len(text)-most)
	}
	return strconv.Quote(text)
}

// noValue is the value of an option without effect.
func noValue(k kind) value {
	return value{kind: k, schema: schema{}, set: func(string) error { return nil }}
}

func boolean(p *bool) value {
	return value{kind: kindBool, allowed: "true or false", schema: schema{"type": "boolean"}, set: func(text string) error {
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("is neither true nor false")
		}
		*p = b
		return nil
	}}
}

// integer takes low to high.
func integer(p *int, low, high int) value {
	looks := schema{"type": "integer", "minimum": low, "maximum": high}
	return value{kind: kindInteger, allowed: fmt.Sprintf("%d to %d", low, high), schema: looks, set: func(text string) error {
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
		cases = append(cases, w, strings.ToLower(w), strings.ToUpper(w))
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

// environment is os.Environ as a map, without the white space around values:
// secrets made from files end in a newline. Variables that are empty are left
// out: manifests set a variable to nothing to leave it unset.
func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, entry := range slices.Backward(environ) { // the first one counts, as for os.Getenv
		if k, v, ok := strings.Cut(entry, "="); ok {
			env[k] = strings.TrimSpace(v)
		}
	}
	maps.DeleteFunc(env, func(_, v string) bool { return v == "" })
	return env
}
