package page

import (
	"cmp"
	"hash/fnv"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	// mostLanes bounds the page: a storm of more nodes is not read lane by lane.
	mostLanes = 500
	// mostWaits are shown of one node. The table of what blocks counts all that the leader told.
	mostWaits = 2
	// line is where in a lane the deadline is, in percent of its width; where there is none, it is now. To its
	// right is what is late.
	line = 90
	// near is the time before a deadline at which a lane calls for attention, because pods are forced soon: they
	// get their grace period, which is half a minute by default.
	near = 30 * time.Second
)

// A band is a part of the lanes: those that are stuck, or those whose deadlines are about as far away, so that one axis
// of time does for them. The axes are of the time before the deadline: the lines of the deadlines are under one
// another, and the slack of each node is the gap before the line.
type band struct {
	ID, Title string
	Axis      template.HTML
	Lanes     []lane

	within time.Duration // until the deadline; 0: there is none, or it does not count
	most   time.Duration // that the axis shows
	span   time.Duration // that the axis shows
}

type lane struct {
	ID, Name, Instance, Rule string
	Kind                     *kind
	Class                    string // ok, near, late or none: how much time is left; late if it is stuck
	Told                     string // the lane in words
	Drawing                  template.HTML
	Left, Until              string
	Stage, Pods              string
	Waits                    []wait
	More                     int // waits that are not shown
}

type wait struct {
	Cause, Name, Why, Keeps, Until string
}

func bands() []band {
	const day = 24 * time.Hour
	return []band{
		{ID: "stuck", Title: "Stuck: somebody should look", most: 5 * time.Minute},
		{ID: "minutes", Title: "Deadline within five minutes", within: 5 * time.Minute, most: 10 * time.Minute},
		{ID: "hour", Title: "Deadline within an hour", within: time.Hour, most: 2 * time.Hour},
		{ID: "later", Title: "Deadline later than in an hour", within: math.MaxInt64, most: 14 * day},
		{ID: "none", Title: "Without a deadline", most: 6 * time.Hour},
	}
}

// stuckFirst returns the nodes in their order, but for those that somebody should look at, which come first.
func stuckFirst(nodes []overview.Node, now time.Time) []overview.Node {
	var first, others []overview.Node
	for i := range nodes {
		if nodes[i].Stuck(now) {
			first = append(first, nodes[i])
		} else {
			others = append(others, nodes[i])
		}
	}
	return append(first, others...)
}

// lanesOf sorts nodes into bands, in their order. It returns those bands that have a node, and how many nodes
// have found no place.
func lanesOf(o overview.Overview) (used []band, more int) {
	nodes := o.Nodes
	if len(nodes) > mostLanes {
		nodes, more = nodes[:mostLanes], len(nodes)-mostLanes
	}
	all := bands()
	of := make([][]*overview.Node, len(all))
	for i := range nodes {
		n := &nodes[i]
		b := bandOf(n, all, o.At)
		of[b] = append(of[b], n)
		if !n.Since.IsZero() {
			all[b].span = max(all[b].span, cmp.Or(n.Deadline, o.At).Sub(n.Since))
		}
	}
	for i := range all {
		b := &all[i]
		if len(of[i]) == 0 {
			continue
		}
		b.span = min(max(b.span, time.Minute), b.most)
		b.Axis = b.axis()
		for _, n := range of[i] {
			b.Lanes = append(b.Lanes, b.lane(n, o.At))
		}
		used = append(used, *b)
	}
	return used, more
}

// bandOf is the index of a node's band: those that are stuck have the first.
func bandOf(n *overview.Node, all []band, now time.Time) int {
	if n.Stuck(now) {
		return 0
	}
	return 1 + slices.IndexFunc(all[1:], func(b band) bool {
		if n.Deadline.IsZero() {
			return b.within == 0
		}
		return n.Deadline.Sub(now) <= b.within
	})
}

// steps are what axes are divided by.
var steps = []time.Duration{
	10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
	10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 48 * time.Hour, 7 * 24 * time.Hour,
}

// axis draws the scale above the lanes. Four steps leave room for their names on a phone.
func (b *band) axis() template.HTML {
	step := steps[len(steps)-1]
	for _, s := range steps {
		if b.span/s <= 4 {
			step = s
			break
		}
	}
	var d drawing
	for at := step; at <= b.span; at += step {
		x := line * (1 - float64(at)/float64(b.span))
		d.add(`<line class="tick" x1="`).percent(x).add(`" x2="`).percent(x).add(`" y1="15" y2="20"/>`)
		anchor := "middle"
		if x < 6 {
			anchor = "start"
		}
		d.add(`<text class="axis" text-anchor="` + anchor + `" x="`).percent(x)
		d.add(`" y="11">` + overview.Length(-at) + `</text>`)
	}
	name, class := "deadline", "end"
	switch b.ID {
	case "none":
		name, class = "now", "tick"
	case "stuck":
		name = "deadline or now"
	}
	d.add(`<line class="` + class + `" x1="90%" x2="90%" y1="14" y2="20"/>`)
	d.add(`<text class="axis" text-anchor="middle" x="90%" y="11">` + name + `</text>`)
	return d.html()
}

func (b *band) lane(n *overview.Node, now time.Time) lane {
	l := lane{
		ID: anchor(n.Name), Name: shown(n.Name), Instance: shown(n.Instance), Rule: shown(n.Rule),
		Kind: kindNamed(n.Kind), Pods: pods(n.Pods), More: n.MoreWaits, Told: told(n, now),
		Stage: cmp.Or(stages[n.Stage], shown(string(n.Stage))),
	}
	l.Left, l.Class = left(n, now)
	if n.Stuck(now) {
		l.Stage, l.Class = "stuck, "+l.Stage, "late"
	}
	if !n.Deadline.IsZero() {
		l.Until = clock(n.Deadline, now)
	}
	l.Drawing = b.draw(n, now, l.Kind.Class)
	for _, w := range n.WaitsFor[:min(len(n.WaitsFor), mostWaits)] {
		l.Waits = append(l.Waits, waitOf(w, now))
	}
	l.More += len(n.WaitsFor) - len(l.Waits)
	return l
}

// anchor is the id of a node's lane: the same after each refresh, and fit for an address.
func anchor(node string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // it has no error
	return "n" + strconv.FormatUint(h.Sum64(), 36)
}

func waitOf(w overview.Wait, now time.Time) wait {
	told := wait{Cause: causeNamed(w.Cause), Why: shown(w.Why), Keeps: shown(w.Pod)}
	if !strings.Contains(w.Why, w.Name) {
		told.Name = shown(w.Name)
	}
	if w.Pods > 0 {
		told.Keeps = strings.TrimSuffix(overview.Count(w.Pods, "pod")+", "+told.Keeps, ", ")
	}
	if until := clock(w.Until, now); !w.Until.IsZero() && !strings.Contains(w.Why, until) {
		told.Until = until
	}
	return told
}

// stages are those of a drain in words.
var stages = map[overview.Stage]string{
	overview.HeldBack: "held back", overview.Draining: "draining", overview.Detaching: "pods have left",
	overview.Completing: "completing hooks",
}

func pods(p *overview.Pods) string {
	if p == nil {
		return ""
	}
	return joined(strconv.Itoa(p.Left)+" left", strconv.Itoa(p.Gone)+" gone", some(p.Forced, "forced"))
}

// left says how much time there is, and how good that is.
func left(n *overview.Node, now time.Time) (text, class string) {
	switch remains := n.Deadline.Sub(now); {
	case n.Deadline.IsZero():
		return "no deadline", "none"
	case !n.PodsGone.IsZero() && n.PodsGone.Before(n.Deadline):
		return "pods left with " + overview.Length(n.Deadline.Sub(n.PodsGone)) + " to spare", "ok"
	case !n.PodsGone.IsZero():
		return "pods left " + overview.Length(n.PodsGone.Sub(n.Deadline)) + " late", "late"
	case remains <= 0:
		return overview.Length(-remains) + " late", "late"
	case remains < near:
		return overview.Length(remains) + " left", "near"
	default:
		return overview.Length(remains) + " left", "ok"
	}
}

// told is a lane for those who do not see it.
func told(n *overview.Node, now time.Time) string {
	text := "Notice"
	add := func(what string, t time.Time) {
		if !t.IsZero() {
			text += what + clock(t, now)
		}
	}
	add(" ", n.Since)
	if n.CordonedAt.IsZero() {
		text += "; not cordoned"
	}
	add("; cordoned ", n.CordonedAt)
	add("; a pod last asked ", n.LastAsked)
	add("; pods gone ", n.PodsGone)
	add("; may begin ", n.NotBefore)
	add("; deadline ", n.Deadline)
	return text
}

// draw draws a lane. Its height is 28.
func (b *band) draw(n *overview.Node, now time.Time, class string) template.HTML {
	end := cmp.Or(n.Deadline, now) // what is at the line
	x := func(t time.Time) float64 {
		return min(max(line*(1-float64(end.Sub(t))/float64(b.span)), 0), 100)
	}
	var d drawing
	bar := func(class string, from, to time.Time, y, height string) {
		if to.After(from) {
			a, z := x(from), x(to)
			d.add(`<rect class="` + class + `" x="`).percent(a).add(`" width="`).percent(z - a)
			d.add(`" y="` + y + `" height="` + height + `"/>`)
		}
	}
	mark := func(id string, t time.Time) {
		if !t.IsZero() {
			d.add(`<use href="#` + id + `" x="`).percent(x(t)).add(`" y="14"/>`)
		}
	}
	// Who knows no beginning sees all that the axis has.
	began := cmp.Or(n.Since, end.Add(-b.span))
	over := cmp.Or(n.PodsGone, now) // what pods do ends here
	if n.CordonedAt.IsZero() {
		bar("held", began, now, "12", "4")
	} else {
		bar("held", began, n.CordonedAt, "12", "4")
		bar("work "+class, n.CordonedAt, over, "8", "12")
		bar("rest", over, now, "12", "4")
	}
	if !n.Deadline.IsZero() {
		_, how := left(n, now)
		bar("slack "+how, over, n.Deadline, "8", "12")
		if n.PodsGone.IsZero() {
			bar("over", n.Deadline, now, "5", "18")
		}
	}
	if !n.Deadline.IsZero() {
		d.add(`<line class="end" x1="90%" x2="90%" y1="1" y2="27"/>`)
	}
	mark("m-notice", n.Since)
	mark("m-cordon", n.CordonedAt)
	mark("m-begin", n.NotBefore)
	mark("m-asked", n.LastAsked)
	mark("m-gone", n.PodsGone)
	mark("m-now", now)
	return d.html()
}

// A drawing is a piece of SVG. All that gets into it is numbers, and words of this package.
type drawing struct{ text []byte }

func (d *drawing) add(text string) *drawing {
	d.text = append(d.text, text...)
	return d
}

func (d *drawing) number(n float64) *drawing {
	d.text = strconv.AppendFloat(d.text, n, 'f', 1, 64)
	return d
}

func (d *drawing) percent(n float64) *drawing { return d.number(n).add("%") }

//nolint:gosec // nothing in it comes from outside
func (d *drawing) html() template.HTML { return template.HTML(d.text) }
