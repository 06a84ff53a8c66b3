package timeline

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Width is what no line of a Printer exceeds, in characters.
const Width = 100

// Printer writes rows as aligned columns for people.
type Printer struct {
	Out    io.Writer
	Colour bool // with the escape sequences of ECMA-48; see [ColourWanted]
}

// words are what a row says happened, and its colour: an SGR parameter of
// ECMA-48, empty for none.
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
	WorkFinished:   {"work finished", yellow},
	NodeHeldBack:   {"node held back", yellow},
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// Widths of the columns; a message id has 36 characters.
const (
	timeWidth  = 8
	eventWidth = 15
	whatWidth  = 36
	gap        = "  "
	whereWidth = Width - 2*timeWidth - eventWidth - whatWidth - 4*len(gap)
)

// Legend explains the columns.
func (p Printer) Legend() {
	fmt.Fprintln(p.Out, gap+"since    seconds since the notice was sent")
	fmt.Fprintln(p.Out, gap+"left     seconds to its deadline, when the instance goes away, ready or not")
}

// Heading introduces the rows of a notice.
func (p Printer) Heading(text string) {
	fmt.Fprintln(p.Out)
	fmt.Fprintln(p.Out, p.paint(bold, clip(text, Width)))
	p.columns("", "since", "left", "event", "", "")
}

// Row writes one row.
func (p Printer) Row(r Row) {
	w := words[r.Kind]
	p.columns(w.colour, seconds(r.Since), seconds(r.Left), w.text, r.What, r.Where)
}

// End writes the last line of a story that ended well.
func (p Printer) End(text string) {
	fmt.Fprintln(p.Out)
	fmt.Fprintln(p.Out, p.paint(green, clip(text, Width)))
}

func (p Printer) columns(colour, since, left, event, what, where string) {
	// Padding comes before paint: escape sequences have a length and no width.
	line := fmt.Sprintf("%*s%s%*s%s", timeWidth, since, gap, timeWidth, left, gap) +
		p.paint(colour, fmt.Sprintf("%-*s", eventWidth, event)) +
		fmt.Sprintf("%s%-*s%s%s", gap, whatWidth, clip(what, whatWidth), gap, clip(where, whereWidth))
	fmt.Fprintln(p.Out, strings.TrimRight(line, " "))
}

func (p Printer) paint(colour, text string) string {
	if !p.Colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// seconds has tenths where they matter: hooks can last 48 hours, and columns have an end.
func seconds(d time.Duration) string {
	if d == Never {
		return ""
	}
	if d.Abs() >= 1000*time.Second {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// clip shortens text to width characters.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// ColourWanted says whether to colour what is written to a terminal, or to
// something else. It goes by https://no-color.org and by TERM; getenv is
// os.Getenv, or stands in for it.
func ColourWanted(terminal bool, getenv func(string) string) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
