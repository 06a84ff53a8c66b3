package overview

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// nameLimit bounds what is shown of one name or sentence, in characters: names come from the cluster.
const nameLimit = 200

// Clean returns text that does nothing to a terminal: what cannot be printed, such as escape sequences and marks
// that turn the direction of text, is shown as \uNNNN. Text that is very long is cut.
func Clean(text string) string {
	var b strings.Builder
	for at, r := range []rune(text) {
		switch {
		case at == nameLimit:
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
	const day = 24 * time.Hour
	sign := ""
	if d < 0 {
		sign, d = "-", d.Abs()
	}
	pair := func(large time.Duration, largeName string, small time.Duration, smallName string) string {
		text := fmt.Sprintf("%s%d%s", sign, d/large, largeName)
		if rest := d % large / small; rest > 0 {
			text += fmt.Sprintf("%d%s", rest, smallName)
		}
		return text
	}
	switch d = d.Truncate(time.Second); {
	case d == 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", sign, d/time.Second)
	case d < time.Hour:
		return pair(time.Minute, "m", time.Second, "s")
	case d < day:
		return pair(time.Hour, "h", time.Minute, "m")
	}
	return pair(day, "d", time.Hour, "h")
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

// orNone returns cleaned text, or a dash for none, so that each line of a table has as many words.
func orNone(text string) string { return cmp.Or(Clean(text), "-") }

// width returns how many columns a text takes.
func width(text string) int { return utf8.RuneCountInString(text) }
