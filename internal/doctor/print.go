package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// marks stand at the beginning of a line.
var marks = [...]string{Unknown: "?", OK: "√", Warning: "‼", Failed: "×"}

// colours are the SGR sequences of ECMA-48 for the marks.
var colours = [...]string{Unknown: "\x1b[35m", OK: "\x1b[32m", Warning: "\x1b[33m", Failed: "\x1b[31m"}

// A Style is how findings are printed for people.
type Style struct {
	Verbose bool // a line for each check, also for those that one cause keeps from being asked
	Colour  bool
}

// Print writes the findings for people: a heading for each group, a line for each check, and what
// to do about it. Findings that are unknown for one cause share a line. If a check failed and
// others were not asked because of it, all checks that passed share a line too.
func Print(w io.Writer, findings []Finding, style Style) error {
	p := newPrinter(findings, style)
	var well []string
	heading := ""
	for _, f := range findings {
		switch {
		case p.short && f.Status == OK:
			well = append(well, f.ID)
			continue
		case p.toldElsewhere(f):
			continue
		}
		if !p.short && f.Group != heading {
			if heading != "" {
				p.print("\n")
			}
			heading = f.Group
			p.print("%s\n%s\n", heading, strings.Repeat("-", len(heading)))
		}
		p.finding(f)
	}
	if len(well) > 0 {
		p.print("%s %s well: %s\n", p.mark(OK), number(len(well)), strings.Join(well, ", "))
	}
	if !p.short {
		p.print("\n")
	}
	p.total(findings)
	_, err := io.WriteString(w, p.String())
	return err
}

type printer struct {
	strings.Builder
	Style
	checks map[string]Status    // by the ids of the findings
	causes map[string][]Finding // what is unknown, by its cause
	brief  map[string]bool      // the causes whose findings are one line
	short  bool                 // a failed check is such a cause: what passed is one line too
}

func newPrinter(findings []Finding, style Style) *printer {
	p := &printer{Style: style, checks: map[string]Status{}, causes: map[string][]Finding{}, brief: map[string]bool{}}
	for _, f := range findings {
		p.checks[f.ID] = f.Status
		if f.Status == Unknown && f.Because != "" {
			p.causes[f.Because] = append(p.causes[f.Because], f)
		}
	}
	for cause, members := range p.causes {
		_, isCheck := p.checks[cause]
		p.brief[cause] = !style.Verbose && (isCheck || len(members) > 1)
		p.short = p.short || p.brief[cause] && p.checks[cause] == Failed
	}
	return p
}

// toldElsewhere reports whether another line stands for the finding: that of the check that is its
// cause, or of the first finding with the same cause.
func (p *printer) toldElsewhere(f Finding) bool {
	_, isCheck := p.checks[f.Because]
	return p.brief[f.Because] && (isCheck || p.causes[f.Because][0].ID != f.ID)
}

// total prints how many checks ended how.
func (p *printer) total(findings []Finding) {
	var counts [len(marks)]int
	accepted := 0
	for _, f := range findings {
		if f.Accepted {
			accepted++
		} else {
			counts[f.Status]++
		}
	}
	worst := Worst(findings)
	p.print("%s %d of %d checks passed", p.mark(worst), counts[OK], len(findings))
	for _, s := range []Status{Failed, Warning, Unknown} {
		if counts[s] > 0 {
			p.print(", %d %s", counts[s], map[Status]string{Failed: "failed", Warning: "with a warning", Unknown: "unknown"}[s])
		}
	}
	if accepted > 0 {
		p.print(", %d accepted", accepted)
	}
	if worst == Unknown {
		p.print(": it is unknown whether nodes are drained in time")
	}
	p.print("\n")
}

func (p *printer) print(format string, args ...any) { fmt.Fprintf(p, format, args...) }

func (p *printer) mark(s Status) string {
	if p.Colour {
		return colours[s] + marks[s] + "\x1b[0m"
	}
	return marks[s]
}

// finding prints the lines of a check, or the line of all findings with one cause.
func (p *printer) finding(f Finding) {
	same := p.causes[f.Because]
	switch {
	case p.brief[f.Because]:
		p.print("%s %s: %s unknown: %s\n", p.mark(Unknown), clean(f.Because), number(len(same)), idsOf(same))
	case f.Accepted:
		p.print("%s %s, accepted: %s\n", p.mark(f.Status), f.ID, clean(f.What))
		return
	default:
		p.print("%s %s: %s\n", p.mark(f.Status), f.ID, clean(f.What))
	}
	if f.Hint != "" {
		p.print("    %s\n", clean(f.Hint))
	}
	for _, command := range f.Commands {
		p.print("    %s\n", clean(command))
	}
	if f.Link != "" {
		p.print("    see %s\n", f.Link)
	}
	if blocked := p.causes[f.ID]; p.brief[f.ID] {
		p.print("%s %s not asked because of this: %s\n", p.mark(Unknown), number(len(blocked)), idsOf(blocked))
	}
}

func number(n int) string {
	if n == 1 {
		return "1 check is"
	}
	return fmt.Sprintf("%d checks are", n)
}

// idsOf joins the ids of findings, those of needed checks first, and cuts them if there are many.
func idsOf(findings []Finding) string {
	const most = 5
	var ids, others []string
	for _, f := range findings {
		if f.Needed {
			ids = append(ids, f.ID)
		} else {
			others = append(others, f.ID)
		}
	}
	if ids = append(ids, others...); len(ids) > most {
		return fmt.Sprintf("%s and %d more (--verbose has them all)", strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return strings.Join(ids, ", ")
}

// clean replaces the characters that could control a terminal: names and messages come from
// others.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return ' '
	}, text)
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
