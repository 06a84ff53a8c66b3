package timeline

import (
	"fmt"
	"slices"
	"time"
)

// Unmoved returns how many pods have not come up elsewhere, though they are expected to.
func (t *Timeline) Unmoved() int {
	n := 0
	for _, s := range t.stories {
		n += max(0, s.Moves-len(s.replaced))
	}
	return n
}

// Tally counts what became of all notices.
type Tally struct {
	Notices int `json:"notices"`
	Drained int `json:"drained"` // nodes
	Moved   int `json:"moved"`   // pods that came up elsewhere
	Moves   int `json:"moves"`   // pods of which that was expected; 0: not known
	Missed  int `json:"missed"`  // pods that were still there at the deadline, or still are
}

// Missing says what has not happened yet; nil if all notices have come to their end.
func (t *Timeline) Missing() []string {
	var missing []string
	for _, s := range t.stories {
		missing = append(missing, s.missing(t.Alone)...)
	}
	return missing
}

// Waits returns a row for each notice that has not come to its end: what it waits for.
func (t *Timeline) Waits(at time.Time) (rows []Row) {
	for _, s := range t.stories {
		missing := s.missing(t.Alone)
		if len(missing) == 0 {
			continue
		}
		more := ""
		if len(missing) > 1 {
			more = fmt.Sprintf("and %d more", len(missing)-1)
		}
		rows = append(rows, s.row(Waiting, at, missing[0], more))
	}
	return rows
}

// missing says what has not happened yet. alone: see [Timeline.Alone].
func (s *story) missing(alone bool) (missing []string) {
	note := func(is bool, format string, args ...any) {
		if is {
			missing = append(missing, fmt.Sprintf(format, args...))
		}
	}
	note(s.cordoned.IsZero(), "%s is not cordoned", s.Node)
	for _, pod := range s.left() {
		note(true, "pod %s is still on %s", pod, s.Node)
	}
	lack := len(s.gone) - len(s.replaced)
	note(alone && lack > 0, "of the pods of %s %d did not get ready elsewhere", s.Node, lack)
	note(s.Hook != "" && s.completed.IsZero(), "hook %s is not completed", s.Hook)
	note(s.Message != "" && s.deleted.IsZero(), "message %s is not deleted", s.Message)
	note(s.Message == "" && s.finished.IsZero(), "the work on %s is not finished", s.Node)
	return missing
}

// blur is how late a watch may be, compared with a record made on the spot. Of two events that are
// closer to each other, either may have been first.
const blur = 250 * time.Millisecond

// Troubles says what should not have happened, or not in this order.
func (t *Timeline) Troubles() []string {
	troubles := slices.Clone(t.troubles)
	note := func(is bool, format string, args ...any) {
		if is {
			troubles = append(troubles, fmt.Sprintf(format, args...))
		}
	}
	tooEarly := func(end, need time.Time, slack time.Duration) bool { return !end.IsZero() && need.Sub(end) > slack }
	for _, s := range t.stories {
		note(tooEarly(s.completed, s.empty, blur), "hook %s was completed before %s was empty", s.Hook, s.Node)
		note(tooEarly(s.deleted, s.empty, blur), "message %s was deleted before %s was empty", s.Message, s.Node)
		note(tooEarly(s.deleted, s.completed, 0), "message %s was deleted before hook %s was completed", s.Message, s.Hook)
		if s.Deadline.IsZero() {
			continue
		}
		note(tooEarly(s.Deadline, s.deleted, 0), "message %s was deleted after the deadline", s.Message)
		note(s.Message == "" && tooEarly(s.Deadline, s.empty, blur), "%s was empty after the deadline", s.Node)
	}
	return troubles
}

// Tally counts.
func (t *Timeline) Tally() Tally {
	all := Tally{Notices: len(t.stories)}
	for _, s := range t.stories {
		if !s.empty.IsZero() {
			all.Drained++
		}
		all.Moved += len(s.replaced)
		all.Moves += s.Moves
		for _, when := range s.gone {
			if when.IsZero() || !s.Deadline.IsZero() && when.After(s.Deadline) {
				all.Missed++
			}
		}
	}
	return all
}

// Summary is the whole story in a line. A pod is missed if it was still there at the deadline of
// its notice, or is there now.
func (t *Timeline) Summary() string {
	left := ""
	for _, s := range t.stories {
		end := s.deleted
		if s.Message == "" {
			end = s.finished
		}
		if !end.IsZero() && !s.Deadline.IsZero() {
			left += fmt.Sprintf(", %.0f of %.0f s", s.Deadline.Sub(end).Seconds(), s.Deadline.Sub(s.Sent).Seconds())
		}
	}
	all := t.Tally()
	moved := count(all.Moved, "pod")
	if all.Moves > 0 {
		moved = fmt.Sprintf("%d of %s", all.Moved, count(all.Moves, "pod"))
	}
	line := fmt.Sprintf("%s, %s drained, %s moved, %d missed",
		count(all.Notices, "notice"), count(all.Drained, "node"), moved, all.Missed)
	if left != "" {
		line += "; left: " + left[len(", "):]
	}
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
