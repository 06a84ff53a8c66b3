// Package logtest keeps what is logged, so that a test can ask for an entry by its message and values. How the
// program writes an entry is of no concern to it. Only tests use it.
package logtest

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// To returns a logger of all levels that writes to out, such as a test's output.
func To(out io.Writer) logr.Logger {
	return funcr.NewJSON(func(entry string) { fmt.Fprintln(out, mustParse(entry)) }, funcr.Options{Verbosity: 1})
}

// A Log keeps its entries. The zero value is ready for use, and its methods may be called concurrently.
type Log struct {
	mu      sync.Mutex
	entries []Entry
}

// An Entry is what was logged.
type Entry struct {
	Level   string // debug, info, warn or error
	Logger  string
	Message string
	Keys    []string // of Values, in their order
	Values  map[string]any
}

// Logger writes to the log, at every level.
func (l *Log) Logger() logr.Logger {
	return funcr.NewJSON(l.add, funcr.Options{Verbosity: 1})
}

func (l *Log) add(text string) {
	e := mustParse(text)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// mustParse is parse of what the program logs. It panics where a key stands twice, which nobody could read.
func mustParse(text string) Entry {
	e, err := parse(text)
	if err != nil {
		panic(err.Error() + ": " + text) //nolint:forbidigo // tests alone use it
	}
	return e
}

// parse reads an entry of funcr.
func parse(text string) (Entry, error) {
	e := Entry{Level: "error", Values: map[string]any{}}
	decoder := json.NewDecoder(strings.NewReader(text))
	if _, err := decoder.Token(); err != nil { // the opening brace
		return e, err
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return e, err
		}
		var value any
		if err := decoder.Decode(&value); err != nil {
			return e, err
		}
		switch key {
		case "level":
			e.Level = map[any]string{0.0: "info", 1.0: "debug"}[value]
		case "warning":
			e.Level = "warn"
		case "logger":
			e.Logger = fmt.Sprint(value)
		case "msg":
			e.Message = fmt.Sprint(value)
		default:
			if _, twice := e.Values[fmt.Sprint(key)]; twice {
				return e, fmt.Errorf("the key %v stands twice", key)
			}
			e.Keys = append(e.Keys, fmt.Sprint(key))
			e.Values[fmt.Sprint(key)] = value
		}
	}
	return e, nil
}

// Entries returns the entries so far that have this message and these values, as fmt prints them; the key level
// stands for the level. An empty message stands for any.
func (l *Log) Entries(message string, keysAndValues ...any) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []Entry
	for _, e := range l.entries {
		if (message == "" || e.Message == message) && e.has(keysAndValues) {
			found = append(found, e)
		}
	}
	return found
}

// Said returns the values of the entries with this message, as key=value.
func (l *Log) Said(message string) []string {
	var said []string
	for _, e := range l.Entries(message) {
		said = append(said, e.values(e.Keys))
	}
	return said
}

// Has reports whether there is such an entry.
func (l *Log) Has(message string, keysAndValues ...any) bool {
	return len(l.Entries(message, keysAndValues...)) > 0
}

// Reset forgets the entries so far.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = nil
}

// String returns the entries so far, one a line.
func (l *Log) String() string {
	var text strings.Builder
	for _, e := range l.Entries("") {
		fmt.Fprintln(&text, e)
	}
	return text.String()
}

// String returns the level, the message and the values: info drained evicted=1.
func (e Entry) String() string { return e.With(e.Keys...) }

// With is String, with these values alone.
func (e Entry) With(keys ...string) string {
	return strings.TrimSpace(e.Level + " " + e.Message + " " + e.values(keys))
}

func (e Entry) values(keys []string) string {
	var text []string
	for _, key := range e.Keys {
		if !slices.Contains(keys, key) {
			continue
		}
		value := fmt.Sprint(e.Values[key])
		if strings.ContainsAny(value, " \"=") {
			value = strconv.Quote(value)
		}
		text = append(text, key+"="+value)
	}
	return strings.Join(text, " ")
}

func (e Entry) has(keysAndValues []any) bool {
	for k := 0; k+1 < len(keysAndValues); k += 2 {
		key := fmt.Sprint(keysAndValues[k])
		value, ok := e.Values[key]
		if key == "level" {
			value, ok = e.Level, true
		}
		if !ok || fmt.Sprint(value) != fmt.Sprint(keysAndValues[k+1]) {
			return false
		}
	}
	return true
}
