package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// marks are what stands before a line.
var marks = [...]string{Unknown: "?", OK: "√", Warning: "‼", Failed: "×"}

// Print writes the findings for people: a heading for each group, a line for
// each check, and what to do about it.
func Print(w io.Writer, findings []Finding) error {
	var b strings.Builder
	group := ""
	var counts [len(marks)]int
	for _, f := range findings {
		if f.Group != group {
			if group != "" {
				b.WriteString("\n")
			}
			group = f.Group
			fmt.Fprintf(&b, "%s\n%s\n", group, strings.Repeat("-", len(group)))
		}
		counts[f.Status]++
		fmt.Fprintf(&b, "%s %s\n", marks[f.Status], f.What)
		if f.Hint != "" {
			fmt.Fprintf(&b, "    %s\n", f.Hint)
		}
		if f.Link != "" {
			fmt.Fprintf(&b, "    see %s\n", f.Link)
		}
	}
	fmt.Fprintf(&b, "\n%s %d of %d checks are well", marks[Worst(findings)], counts[OK], len(findings))
	for _, s := range []Status{Failed, Warning, Unknown} {
		if counts[s] > 0 {
			fmt.Fprintf(&b, ", %d %s", counts[s], map[Status]string{Failed: "failed", Warning: "with a warning", Unknown: "unknown"}[s])
		}
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// PrintJSON writes the findings for programs.
func PrintJSON(w io.Writer, findings []Finding) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Status Status    `json:"status"` // the worst of all
		Checks []Finding `json:"checks"`
	}{Worst(findings), findings})
}
