package page

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// longest is how many characters of a name or a sentence are shown: those of Kubernetes have up to 253, and one
// that has more than these is cut in its middle, because names differ at their ends.
const longest = 120

// shown makes a name or a sentence of somebody else fit to be shown. What does not print, such as a control
// character or one that turns the direction of what follows, becomes U+FFFD. HTML is escaped by the template.
func shown(text string) string {
	text = text[:min(len(text), 4*1024)] // more is not even looked at
	if utf8.RuneCountInString(text) > longest {
		runes := []rune(text)
		text = string(runes[:longest/2]) + "…" + string(runes[len(runes)-longest/2:])
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// causeNamed is a cause in words: those that are no word of the trade have another name for people.
func causeNamed(c overview.Cause) string {
	switch c { //nolint:exhaustive // the others are words
	case overview.Limit, overview.MaxUnready:
		return "limit of nodes"
	case overview.Turn:
		return "order of pods"
	case overview.FailingWrite, overview.FailingList:
		return "rights or API server"
	case overview.Gate, overview.Answer:
		return "API server"
	}
	return strings.ReplaceAll(shown(string(c)), "-", " ")
}

// some is a number of something; empty: there is none.
func some(n int, what string) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n) + " " + what
}

// joined are those texts that are not empty, with commas between them.
func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), ", ")
}

// clock is the time of day, with the date if that is another than that of now.
func clock(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("Jan 2 15:04:05")
	}
	return t.Format("15:04:05")
}
