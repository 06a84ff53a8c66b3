package overview

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	// mostUnscheduled bounds the lines about pods that find no other node.
	mostUnscheduled = 3
	// mostHooks bounds the lifecycle hooks of a node: the widest cell makes all lines wide.
	mostHooks = 16
)

// A Style says how an overview is printed.
type Style struct {
	Wide   bool // more columns, and all that a node waits for
	Colour bool // with the escape sequences of ECMA-48
	// Columns and Lines are what a screen has; 0: as many as it takes. Where the table does not fit, the lines of nodes
	// are cut, those that are stuck come first, and the last ones become one line, which says what they wait for.
	Columns, Lines int
}

// Table returns the overview for people: who leads, the queue, what is held back, and a line for each node. What
// names in it hold does nothing to a terminal.
func (o *Overview) Table(style Style) string {
	var b strings.Builder
	heading := o.heading(style)
	for _, line := range heading {
		b.WriteString(line + "\n")
	}
	if len(o.Nodes) == 0 {
		b.WriteString(o.NoNode() + "\n")
		return b.String()
	}
	b.WriteByte('\n')
	nodes, lines := o.Nodes, o.rows(o.Nodes, style)
	fits := style.Lines <= 0 || style.takes(heading)+style.takes(lines)+besides <= style.Lines
	var others []Node
	if !fits {
		nodes = slices.Clone(nodes)
		slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(rank(&a, o.At), rank(&b, o.At)) })
		if room := max(1, style.Lines-style.takes(heading)-besides-1); room < len(nodes) { // below the columns
			room = max(1, room-1)
			nodes, others = nodes[:room], nodes[room:]
		}
		lines = o.rows(nodes, style)
	}
	for k, line := range lines {
		if !fits {
			line = style.cut(line)
		}
		colour := bold // of the names of the columns
		if k > 0 {
			colour = []string{red, "", yellow}[rank(&nodes[k-1], o.At)]
		}
		b.WriteString(style.paint(colour, line) + "\n")
	}
	if len(others) > 0 {
		b.WriteString(style.cut(o.sum(others)) + "\n")
	}
	return b.String()
}

// besides are lines of a screen that are no heading and no row: an empty one, and the one of the cursor.
const besides = 2

// rank puts those first that somebody should look at, and those last that nothing happens to.
func rank(n *Node, now time.Time) int {
	switch {
	case n.Stuck(now):
		return 0
	case n.Stage == HeldBack:
		return 2
	}
	return 1
}

// rows are the names of the columns, and a line for each node.
func (o *Overview) rows(nodes []Node, style Style) []string {
	columns := []string{"NODE", "KIND", "RULE", "SINCE", "DEADLINE", "LEFT", "PODS"}
	if style.Wide {
		columns = append(columns, "STAGE", "INSTANCE", "HOOKS")
	}
	rows := [][]string{append(columns, "WAITS-FOR")}
	for k := range nodes {
		rows = append(rows, nodes[k].row(o.At, style))
	}
	return aligned(rows)
}

// takes is how many lines of a screen the lines take: a terminal breaks those that are too long.
func (s Style) takes(lines []string) int {
	n := len(lines)
	if s.Columns > 0 {
		for _, line := range lines {
			n += max(0, width(escape.ReplaceAllString(line, ""))-1) / s.Columns
		}
	}
	return n
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// sum says of nodes what they wait for, the most frequent first.
func (o *Overview) sum(nodes []Node) string {
	waits := map[string]int{}
	for k := range nodes {
		if n := &nodes[k]; len(n.WaitsFor) > 0 {
			w := n.WaitsFor[0]
			waits[strings.TrimSpace(string(w.Cause)+" "+Clean(w.Name))]++
		}
	}
	text := "and " + Count(len(nodes), "more node")
	if stuck := stuck(nodes, o.At); stuck > 0 {
		text += fmt.Sprintf(", %d stuck", stuck)
	}
	causes := slices.SortedFunc(maps.Keys(waits), func(a, b string) int {
		return cmp.Or(cmp.Compare(waits[b], waits[a]), cmp.Compare(a, b))
	})
	for k, cause := range causes {
		causes[k] = fmt.Sprintf("%d wait for %s", waits[cause], cause)
	}
	return strings.TrimSuffix(text+": "+strings.Join(causes, ", "), ": ")
}

// cut is a line without escape sequences, shorter than the screen is wide: what erases the rest of a line erases its
// last column too.
func (s Style) cut(line string) string {
	if s.Columns <= 0 || width(line) < s.Columns {
		return line
	}
	const more = "…"
	return string([]rune(line)[:max(0, s.Columns-1-width(more))]) + more
}

// heading returns what is true of all nodes.
func (o *Overview) heading(style Style) (lines []string) {
	add := func(colour, name, text string) {
		lines = append(lines, style.paint(colour, fmt.Sprintf("%-13s%s", name+":", text)))
	}
	leader := "nobody leads"
	switch {
	case o.Leader != "":
		leader = Clean(o.Leader)
	case o.Missing != "" && !o.Leaderless:
		leader = "not known"
	}
	if deaf := o.Deaf(); deaf != "" {
		add(red, "Notices", deaf)
	}
	for _, what := range o.Unseen {
		add(yellow, "Not seen", CleanText(what))
	}
	if o.Missing != "" {
		add(yellow, "Incomplete", CleanText(o.Missing))
	}
	add("", "Leader", strings.TrimSuffix(leader+", at "+clock(o.At, o.At)+"; "+o.Leads(), "; "))
	if q := o.Queue; q != nil {
		add("", "Queue", q.describe(o.At))
	}
	if nodeless := o.Nodeless(); nodeless != "" {
		add("", "Held", nodeless)
	}
	if p := o.Policy; p != nil && p.Problem != "" {
		add(red, "Policy", Count(p.Rules, "rule")+"; the file of now does not count: "+CleanText(p.Problem))
	} else if p != nil {
		add("", "Policy", Count(p.Rules, "rule"))
	}
	if o.HeldBack != "" {
		add(yellow, "Held back", Clean(o.HeldBack))
	}
	for _, u := range o.Unscheduled[:min(len(o.Unscheduled), mostUnscheduled)] {
		add(yellow, "Unscheduled", fmt.Sprintf("%s of node %s: %s", Count(u.Pods, "pod"), Clean(u.Node), Clean(u.Why)))
	}
	if more := len(o.Unscheduled) - mostUnscheduled; more > 0 {
		add("", "Unscheduled", fmt.Sprintf("of %d more nodes", more))
	}
	if len(o.LeftAlone) > 0 {
		add(yellow, "Left alone",
			o.LeftAloneNames()+", by their label: no drain begins, but for a termination by Auto Scaling")
	}
	if still := o.StillCordoned(); still != "" {
		add(o.alarm(), "Cordoned", still)
	}
	if stuck := o.Stuck(); stuck > 0 {
		add(red, "Nodes", fmt.Sprintf("%s, %d stuck", Count(len(o.Nodes), "node"), stuck))
	} else if len(o.Nodes) > 0 {
		add("", "Nodes", Count(len(o.Nodes), "node"))
	}
	return lines
}

// LeftAloneNames are the names of some of the nodes that are left alone; empty: none is.
func (o *Overview) LeftAloneNames() string {
	return strings.Join(first(o.LeftAlone, mostNamed, Clean), ", ")
}

// alarm is the colour of the line about nodes that are still cordoned.
func (o *Overview) alarm() string {
	if o.LeftPods() {
		return red
	}
	return yellow
}

func (q *Queue) describe(now time.Time) string {
	text := Count(q.InFlight, "message") + " held by this leader"
	if !q.Oldest.IsZero() {
		text += ", the oldest since " + Length(now.Sub(q.Oldest))
	}
	switch {
	case q.LastReceive.IsZero() && !q.FailingSince.IsZero():
		return text + "; SQS has not answered a receive yet"
	case q.LastReceive.IsZero():
		return text + "; the first receive is in progress, which takes up to 20s if there is no message"
	}
	return text + "; last receive " + Length(now.Sub(q.LastReceive)) + " ago"
}

func (n *Node) row(now time.Time, style Style) []string {
	since, deadline, left := "-", "-", "-"
	if !n.Since.IsZero() {
		since = Length(now.Sub(n.Since))
	}
	if !n.Deadline.IsZero() {
		deadline, left = clock(n.Deadline, now), Length(n.Deadline.Sub(now))
	}
	cells := []string{orNone(n.Name), orNone(n.Kind), orNone(n.Rule), since, deadline, left, n.Pods.describe()}
	if style.Wide {
		hooks := first(n.Hooks, mostHooks, func(h Hook) string { return Clean(h.Group) + "/" + Clean(h.Name) })
		cells = append(cells, orNone(string(n.Stage)), orNone(n.Instance), cmp.Or(strings.Join(hooks, ","), "-"))
	}
	return append(cells, n.waits(now, style))
}

func (p *Pods) describe() string {
	switch {
	case p == nil:
		return "-"
	case p.Forced > 0:
		return fmt.Sprintf("%d, %d forced", p.Left, p.Forced)
	}
	return fmt.Sprint(p.Left)
}

// waits returns what the node waits for: what weighs most, or all of it.
func (n *Node) waits(now time.Time, style Style) string {
	most := len(n.WaitsFor)
	if !style.Wide {
		most = min(1, most)
	}
	var all []string
	for k := range n.WaitsFor[:most] {
		all = append(all, n.WaitsFor[k].describe(now))
	}
	if more := len(n.WaitsFor) - most + n.MoreWaits; more > 0 && len(all) > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(all, "; "), "-")
}

// describe is what the wait is for, and until when.
func (w *Wait) describe(now time.Time) string {
	text := cmp.Or(w.Why, string(w.Cause))
	var about []string
	if w.Name != "" && !strings.Contains(text, w.Name) {
		about = append(about, Clean(w.Name))
	}
	switch {
	case w.Pods > 1 && w.Pod != "":
		about = append(about, Count(w.Pods, "pod")+" such as "+Clean(w.Pod))
	case w.Pods > 0 && w.Pod != "":
		about = append(about, "1 pod "+Clean(w.Pod))
	case w.Pods > 0:
		about = append(about, Count(w.Pods, "pod"))
	case w.Pod != "":
		about = append(about, Clean(w.Pod))
	}
	if end := clock(w.Until, now); !w.Until.IsZero() && !strings.Contains(text, end) {
		ends := "until "
		if w.Cause.Refuses() {
			ends = "forced at "
		}
		about = append(about, ends+end)
	}
	if text = Clean(text); len(about) > 0 {
		text += " (" + strings.Join(about, ", ") + ")"
	}
	return text
}

// aligned returns the rows as lines with aligned columns. The last column is as wide as it likes.
func aligned(rows [][]string) []string {
	const gap = 3
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, gap, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder takes all
	return strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
}

const (
	bold   = "1"
	red    = "31"
	yellow = "33"
)

// paint returns text in a colour; empty: it has none.
func (s Style) paint(colour, text string) string {
	if !s.Colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// ColourWanted reports whether to colour the output, to a terminal or to something else. It
// follows TERM and https://no-color.org. getenv is os.Getenv, or a replacement for it.
func ColourWanted(terminal bool, getenv func(string) string) bool {
	return terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
