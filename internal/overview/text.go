package overview

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// What is shown at most of one name, and of what says what is wrong, in characters: both come from the cluster in part.
const (
	nameLimit = 200
	textLimit = 1000
)

// Clean returns a name that does nothing to a terminal: what cannot be printed, such as escape sequences and marks
// that turn the direction of text, is shown as \uNNNN. One that is very long is cut.
func Clean(name string) string { return clean(name, nameLimit) }

// CleanText is Clean for what says what is wrong, and may end with what to do.
func CleanText(text string) string { return clean(text, textLimit) }

func clean(text string, most int) string {
	var b strings.Builder
	for at, r := range []rune(text) {
		switch {
		case at == most:
			return b.String() + "…"
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// Length returns how many seconds, minutes, hours or days a time is long: the two largest units.
func Length(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign = "-"
	}
	units := []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second}
	rest := d.Abs()
	for k, unit := range units {
		if rest < unit {
			continue
		}
		text := fmt.Sprintf("%s%d%c", sign, rest/unit, "dhms"[k])
		if k++; k < len(units) && rest%unit >= units[k] {
			text += fmt.Sprintf("%d%c", rest%unit/units[k], "dhms"[k])
		}
		return text
	}
	return "0s"
}

// clock returns a moment in UTC: without its date where that is also the date of now.
func clock(t, now time.Time) string {
	if t, now = t.UTC(), now.UTC(); t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format("2006-01-02 15:04Z")
	}
	return t.Format("15:04:05Z")
}

// Count returns a number with its noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// first describes the first of some things, at most so many, and says how many more there are.
func first[T any](all []T, most int, describe func(T) string) (texts []string) {
	for _, one := range all[:min(len(all), most)] {
		texts = append(texts, describe(one))
	}
	if more := len(all) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return texts
}

// orNone returns cleaned text, or a dash for none, so that each line of a table has as many words.
func orNone(text string) string { return cmp.Or(Clean(text), "-") }

// width returns how many columns a text takes.
func width(text string) int { return utf8.RuneCountInString(text) }
