package decision

import "strings"

// MatchesPattern reports whether a text is as the pattern says, in which * stands for any characters,
// also none.
func MatchesPattern(pattern, text string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, head)
	for ok {
		part, next, more := strings.Cut(rest, "*")
		if !more { // the last part ends the text
			return strings.HasSuffix(text, part)
		}
		_, text, ok = strings.Cut(text, part) // the first place leaves the most to the rest
		rest = next
	}
	return false
}

// matchesAnyPattern reports whether one of the patterns matches.
func matchesAnyPattern(patterns []string, text string) bool {
	for _, pattern := range patterns {
		if MatchesPattern(pattern, text) {
			return true
		}
	}
	return false
}
