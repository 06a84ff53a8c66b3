package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

func decode(detail json.RawMessage, into any) error {
	if len(detail) == 0 {
		return errors.New("detail is missing")
	}
	if err := json.Unmarshal(detail, into); err != nil {
		return fmt.Errorf("detail: %w", err)
	}
	return nil
}

// ErrInstanceID is wrapped by the error for an event that is one of AWS's in all but the form of its instance's id,
// which may be newer than this program.
var ErrInstanceID = errors.New("not an instance id")

func withInstance(n Notice, field, id string) (Notice, error) {
	if id == "" {
		return n, fmt.Errorf("%s is missing", field)
	}
	if !IsInstanceID(id) {
		return n, fmt.Errorf("%s is %q, %w", field, clip(id), ErrInstanceID)
	}
	n.Instances = []string{strings.Clone(id)}
	return n, nil
}

// IsInstanceID reports whether id is i- and 8 to 17 lower-case hex digits.
func IsInstanceID(id string) bool { return IsID(id, "i-") }

// IsID reports whether id is the prefix and 8 to 17 lower-case hex digits, as ids of EC2 are.
func IsID(id, prefix string) bool {
	digits, ok := strings.CutPrefix(id, prefix)
	return ok && len(digits) >= 8 && len(digits) <= 17 && strings.Trim(digits, "0123456789abcdef") == ""
}

// parseTime is zero for what none of the layouts reads: a notice without a time is
// still a notice. So is one near the ends of the years from 0 to 9999, which are all
// that JSON can hold: a zone or a deadline moves it beyond.
func parseTime(value string, layouts ...string) time.Time {
	for _, layout := range layouts {
		if t, err := time.Parse(layout, value); err == nil {
			if t = t.UTC(); t.Year() >= 1 && t.Year() <= 9998 {
				return t
			}
		}
	}
	return time.Time{}
}

// identifier keeps of s what AWS's ids, codes, ARNs, accounts and regions are made
// of, up to identifierLimit of it. So none of them needs quoting where it goes: into
// logs, Events, labels, and the webhook's templates, which may put it between quotes.
func identifier(s string) string {
	return clean(s, func(r rune) bool {
		switch {
		case '0' <= r && r <= '9', 'A' <= r && r <= 'Z', 'a' <= r && r <= 'z', strings.ContainsRune(":._/-", r):
			return true
		}
		return false
	})
}

// eventID is the id of an event of a message, which is none of the metadata's: see OfMetadata.
func eventID(s string) string {
	id := identifier(s)
	if OfMetadata(id) {
		return "message-" + id
	}
	return id
}

// clip makes s fit for an error: what people read in logs and Events must not steer
// their terminals.
func clip(s string) string { return clean(s, func(r rune) bool { return !isUnprintable(r) }) }

// clean cuts s to identifierLimit and keeps the runes that may stay. It returns
// memory of its own: a body must not stay for the sake of a few bytes of it.
func clean(s string, keep func(rune) bool) string {
	return strings.Clone(strings.Map(func(r rune) rune {
		if keep(r) {
			return r
		}
		return -1
	}, s[:min(len(s), identifierLimit)]))
}

func isUnprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
