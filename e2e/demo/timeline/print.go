package timeline

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Printer writes rows in aligned columns for people. It cuts nothing, because names are there to
// be copied: a line with a long name is longer.
type Printer struct {
	Out    io.Writer
	Colour bool // with the escape sequences of ECMA-48
}

// words are the text of each kind, and its colour: an SGR parameter of ECMA-48, empty for none.
var words = map[Kind]struct{ text, colour string }{
	NoticeSent:     {"notice sent", yellow},
	NodeCordoned:   {"node cordoned", cyan},
	PodEvicted:     {"pod evicted", ""},
	PodDeleted:     {"pod deleted", red},
	PodReady:       {"pod running", green},
	NodeEmpty:      {"node empty", cyan},
	HookCompleted:  {"hook completed", cyan},
	HookTimedOut:   {"hook timed out", red},
	MessageDeleted: {"message deleted", yellow},
	LeaderKilled:   {"leader killed", red},
	LeaderElected:  {"leader elected", green},
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// eventWidth is the minimum width of the column of events.
const eventWidth = 15

// Legend explains the columns.
func (p Printer) Legend() {
	fmt.Fprintln(p.Out, "  since    seconds since the notice was sent\n"+
		"  left     seconds to its deadline, when the instance goes away, ready or not")
}

// Heading introduces the rows of a notice.
func (p Printer) Heading(text string) {
	fmt.Fprintf(p.Out, "\n%s\n", p.paint(bold, text))
	p.columns("", cells{since: "since", left: "left", event: "event"})
}

// Row writes one row.
func (p Printer) Row(r Row) {
	w := words[r.Kind]
	p.columns(w.colour, cells{seconds(r.Since), seconds(r.Left), w.text, r.What, r.Where})
}

// End writes the last line of a story that ended well.
func (p Printer) End(text string) {
	fmt.Fprintf(p.Out, "\n%s\n", p.paint(green, text))
}

// cells are those of a row.
type cells struct{ since, left, event, what, where string }

func (p Printer) columns(colour string, c cells) {
	// Padding comes before paint: escape sequences have a length and no width. A message id has 36 characters.
	event := p.paint(colour, fmt.Sprintf("%-*s", eventWidth, c.event))
	line := fmt.Sprintf("%8s  %8s  %s  %-36s  %s", c.since, c.left, event, c.what, c.where)
	fmt.Fprintln(p.Out, strings.TrimRight(line, " "))
}

func (p Printer) paint(colour, text string) string {
	if !p.Colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// seconds has tenths only where there is room: hooks can last 48 hours, and columns have a width.
func seconds(d time.Duration) string {
	if d.Abs() >= 1000*time.Second {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
