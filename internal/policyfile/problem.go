package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Problem is one thing that is wrong with a policy file, or that can hardly be meant.
type Problem struct {
	// Line and Column say where it stands, from 1 on. Column is 0 where it is not known.
	Line   int `json:"line"`
	Column int `json:"column,omitempty"`
	// Key is the path to the key, such as nodes[0].do; empty: it is about the file.
	Key string `json:"key,omitempty"`
	// Text says what is wrong with it, and what is allowed.
	Text string `json:"text"`
}

func (p Problem) String() string {
	where := fmt.Sprintf("line %d", p.Line)
	if p.Column > 0 {
		where += fmt.Sprintf(", column %d", p.Column)
	}
	if p.Key == "" {
		return where + ": the file " + p.Text
	}
	return where + ": " + p.Key + ": " + p.Text
}

// Problems are all that were found in a file, in the order of its lines. Of a file with more than
// a hundred they are the first.
type Problems []Problem

func (ps Problems) Error() string {
	all := make([]string, len(ps))
	for k, p := range ps {
		all[k] = p.String()
	}
	return strings.Join(all, "\n")
}

// ProblemsOf are those of an error of [Parse], also of one that was wrapped; nil if it has none.
func ProblemsOf(err error) Problems {
	all, _ := errors.AsType[Problems](err)
	return all
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
}

// quoted is text between quotes, as much of it as is needed to find it again.
func quoted(text string) string {
	const most = 60
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "…"
}

// plain is text without quotes, as it may be printed.
func plain(text string) string { return strings.ReplaceAll(quoted(text), `"`, "") }

// choice returns "; allowed: a, b", with the first of many words, and what didYouMean does.
func choice(given string, words []string) string {
	const most = 20
	near := didYouMean(given, words)
	if more := len(words) - most; more > 0 {
		return fmt.Sprintf("; allowed: %s and %d more%s", strings.Join(words[:most], ", "), more, near)
	}
	return "; allowed: " + strings.Join(words, ", ") + near
}

// didYouMean returns "; did you mean a?" with the word that is nearest to the given one; empty if
// none is near.
func didYouMean(given string, words []string) string {
	const longest = 64 // the comparison takes quadratic time
	if len(given) > longest {
		return ""
	}
	nearest, least := "", len(given)/3+1 // one typing error in three letters
	for _, w := range words {
		if d := distance(strings.ToLower(given), strings.ToLower(w)); d <= least && d < len(w) {
			nearest, least = w, d-1
		}
	}
	if nearest == "" {
		return ""
	}
	return "; did you mean " + nearest + "?"
}

// distance is how many letters have to be added, left out or changed to make b of a.
// https://en.wikipedia.org/wiki/Levenshtein_distance
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for k := range row {
		row[k] = k
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for k := range len(b) {
			change := before
			if a[i] != b[k] {
				change++
			}
			before = row[k+1]
			row[k+1] = min(change, before+1, row[k]+1)
		}
	}
	return row[len(b)]
}
