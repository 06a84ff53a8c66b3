package page

import (
	"cmp"
	"html/template"
	"slices"
	"strconv"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

const (
	// mostBlocks bounds the table of what blocks whom.
	mostBlocks = 100
	// firstNodes are named for each of its rows.
	firstNodes = 5
	// mostUnscheduled bounds the table of pods that find no other node.
	mostUnscheduled = 20
)

// A view is what the template reads.
type view struct {
	frame

	At        string
	AtExact   string // RFC 3339
	Leader    string
	Missing   string // why the leader was not asked
	HeldBack  string
	LeftAlone string
	Deaf      string // why no notice arrives
	Unseen    []string
	Tiles     []fact
	Kinds     []kind // all of them, for the symbols
	Seen      []kind // those on this page, for the legends

	Bands  []band
	More   string // how many nodes have no lane; empty: none
	Blocks []*block

	Unscheduled     []overview.Unscheduled
	MoreUnscheduled string // nodes that are not in Unscheduled; empty: none

	Plot     template.HTML
	PlotTold string
	NoNode   string // what is said where no node is being drained
	Stories  []story
	Tallies  []tally
	Since    string // the leader's knowledge begins
	Facts    []fact
}

// A fact is about the handler itself, or a number that is read from afar.
type fact struct{ Name, Value, Note, Class string }

// A block is something that nodes wait for.
type block struct {
	Cause, Name, Why string
	Nodes, Pods      int
	First            []link
	More             int // nodes that are not in First
	Until            string

	until time.Time
	of    *overview.Node // the last one that it was met at
}

// A link is a node's name, and where its lane is; an empty ID: it has none.
type link struct{ ID, Name string }

func newView(o overview.Overview, h overview.History, opts Options) *view {
	now := o.At
	o.Nodes = stuckFirst(o.Nodes, now)
	if h.At.IsZero() {
		h.At = now
	}
	v := &view{
		At: now.UTC().Format("15:04:05"), AtExact: now.UTC().Format(time.RFC3339),
		Leader: shown(o.Leader), HeldBack: shown(o.HeldBack), Kinds: kinds[:], Facts: facts(o), Deaf: shown(o.Deaf()),
		Blocks: blocks(o), NoNode: o.NoNode(), frame: newFrame(title(o), summary(o), opts),
	}
	if o.Source == overview.Nodes {
		v.Missing = cmp.Or(shown(o.Missing), "it was not asked")
	}
	v.LeftAlone = shown(o.LeftAloneNames())
	var more int
	if v.Bands, more = lanesOf(o); more > 0 {
		v.More = overview.Count(more, "node")
	}
	for _, what := range o.Unseen {
		v.Unseen = append(v.Unseen, shown(what))
	}
	for _, u := range o.Unscheduled[:min(len(o.Unscheduled), mostUnscheduled)] {
		u.Node, u.Why = shown(u.Node), shown(u.Why)
		v.Unscheduled = append(v.Unscheduled, u)
	}
	if more := len(o.Unscheduled) - mostUnscheduled; more > 0 {
		v.MoreUnscheduled = overview.Count(more, "node")
	}
	episodes := recent(h)
	v.Plot, v.Tallies, v.Stories = plot(episodes, h.At), tallies(episodes), stories(episodes, h.At)
	known := !h.Since.IsZero() && h.At.Sub(h.Since) >= past
	if !h.Since.IsZero() && !known {
		v.Since = clock(h.Since, h.At)
	}
	all := total(v.Tallies)
	v.Seen, v.PlotTold, v.Tiles = seen(o, episodes), plotTold(all, known), tiles(o, all, known)
	return v
}

func title(o overview.Overview) string {
	if len(o.Nodes) == 0 {
		return "No drain · node-termination-handler"
	}
	return overview.Count(len(o.Nodes), "drain") + " · node-termination-handler"
}

// count is what the page says of all nodes.
type count struct {
	heldBack, late, left, forced int
	podsKnown                    bool
	next                         time.Time // the first deadline that is to come, of nodes with pods
}

func countOf(o overview.Overview) (c count) {
	for i := range o.Nodes {
		n := &o.Nodes[i]
		if n.Stage == overview.HeldBack {
			c.heldBack++
		}
		if p := n.Pods; p != nil {
			c.podsKnown = true
			c.left += p.Left
			c.forced += p.Forced
		}
		if n.Deadline.IsZero() || !n.PodsGone.IsZero() {
			continue
		}
		if !n.Deadline.After(o.At) {
			c.late++
		} else if c.next.IsZero() || n.Deadline.Before(c.next) {
			c.next = n.Deadline
		}
	}
	return c
}

// summary changes when something of note does, not each second: it is read aloud.
func summary(o overview.Overview) string {
	c := countOf(o)
	if len(o.Nodes) == 0 {
		return o.NoNode()
	}
	return joined(overview.Count(len(o.Nodes), "drain")+" in progress", some(o.Stuck(), "stuck"),
		some(c.heldBack, "held back"), some(c.late, "past the deadline")) + "."
}

// tiles are the numbers of the page. day is about all drains that have ended; known: all of them are known.
func tiles(o overview.Overview, day tally, known bool) []fact {
	c := countOf(o)
	stuck := fact{Name: "stuck: somebody should look", Value: strconv.Itoa(o.Stuck())}
	switch {
	case o.Stuck() > 0:
		stuck.Class = "late"
	case o.Source == overview.Nodes, o.Resuming: // what blocks is not known
		stuck.Value = "–"
	}
	inProgress := fact{Name: "drains in progress", Value: strconv.Itoa(len(o.Nodes)), Note: some(c.heldBack, "held back")}
	next := fact{Name: "until the next deadline", Value: "–"}
	if !c.next.IsZero() {
		next.Value = overview.Length(c.next.Sub(o.At))
		if c.next.Sub(o.At) < near {
			next.Class = "near"
		}
	}
	if c.late > 0 {
		next.Note, next.Class = strconv.Itoa(c.late)+" past the deadline", "late"
	}
	pods := fact{Name: "pods that still have to leave", Value: "–", Note: some(c.forced, "forced")}
	if c.podsKnown || len(o.Nodes) == 0 {
		pods.Value = strconv.Itoa(c.left)
	}
	ended := fact{Name: "drains ended in 24 h", Value: strconv.Itoa(day.Episodes)}
	switch {
	case day.Bad > 0:
		ended.Note, ended.Class = strconv.Itoa(day.Bad)+" missed or lost", "late"
	case day.Unknown > 0:
		ended.Note = "of " + strconv.Itoa(day.Unknown) + " it is not known"
	case day.Cut > 0:
		ended.Note = "pods cut short in " + strconv.Itoa(day.Cut)
	case day.Episodes > 0 && known:
		ended.Note = "none missed or lost"
	case day.Episodes > 0:
		ended.Note = "none known to be missed or lost"
	}
	if day.Cut > 0 && ended.Class == "" {
		ended.Class = "near"
	}
	return []fact{stuck, inProgress, next, pods, ended}
}

func seen(o overview.Overview, episodes []overview.Episode) (all []kind) {
	found := map[*kind]bool{}
	for i := range o.Nodes {
		found[kindNamed(o.Nodes[i].Kind)] = true
	}
	for i := range episodes {
		found[kindNamed(episodes[i].Kind)] = true
	}
	for i := range kinds {
		if found[&kinds[i]] {
			all = append(all, kinds[i])
		}
	}
	return all
}

// blocks gathers the waits of all nodes by cause and name. What keeps most nodes comes first.
func blocks(o overview.Overview) (all []*block) {
	type key struct {
		cause overview.Cause
		name  string
	}
	found := map[key]*block{}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		for _, w := range n.WaitsFor {
			k := key{w.Cause, w.Name}
			b := found[k]
			if b == nil {
				b = &block{Cause: causeNamed(w.Cause), Name: shown(w.Name), Why: shown(w.Why)}
				found[k] = b
				all = append(all, b)
			}
			b.Pods += w.Pods
			if w.Until.After(b.until) {
				b.until, b.Until = w.Until, clock(w.Until, o.At)
			}
			if b.of == n {
				continue
			}
			b.of = n
			b.Nodes++
			if len(b.First) == firstNodes {
				b.More++
				continue
			}
			l := link{Name: shown(n.Name)}
			if i < mostLanes {
				l.ID = anchor(n.Name)
			}
			b.First = append(b.First, l)
		}
	}
	slices.SortStableFunc(all, func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(b.Pods, a.Pods))
	})
	return all[:min(len(all), mostBlocks)]
}

// plotTold says how all drains of the day ended; known: all of them are known.
func plotTold(day tally, known bool) string {
	switch {
	case day.Episodes == 0 && known:
		return "No drain has ended in the last 24 hours."
	case day.Episodes == 0:
		return "No drain is known that has ended in the last 24 hours."
	}
	text := overview.Count(day.Episodes, "drain") + " ended in the last 24 hours"
	switch {
	case day.Bad > 0:
		text += ", " + strconv.Itoa(day.Bad) + " missed the deadline or lost pods"
	case day.Unknown == 0 && known:
		text += ", none missed its deadline"
	case day.Unknown == 0:
		text += ", none of those that are known missed its deadline"
	}
	if day.Unknown > 0 {
		text += "; how " + strconv.Itoa(day.Unknown) + " of them ended is not known"
	}
	return text + "."
}

// facts are about the leader, its queue and its policy. What is not known is said to be so.
func facts(o overview.Overview) []fact {
	leader := fact{Name: "Leader", Value: joined(shown(o.Leader), o.Leads())}
	switch {
	case o.Leader == "" && o.Missing != "" && !o.Leaderless:
		leader.Value = "not known"
	case o.Leader == "":
		leader.Value, leader.Class = "nobody leads", "late"
	}
	all := []fact{leader, {Name: "Queue", Value: "none, or not known here"}}
	if q := o.Queue; q != nil {
		oldest := fact{Name: "Oldest message", Value: "none"}
		if !q.Oldest.IsZero() {
			oldest.Value = "received " + overview.Length(o.At.Sub(q.Oldest)) + " ago"
		}
		last := fact{Name: "Last answer of SQS", Value: "none since this leader began"}
		silent := time.Duration(0)
		if !q.LastReceive.IsZero() {
			silent = o.At.Sub(q.LastReceive)
			last.Value = overview.Length(silent) + " ago"
		}
		if !q.FailingSince.IsZero() || silent > 90*time.Second { // then /healthz fails
			last.Class = "late"
		}
		all = []fact{leader, {Name: "Messages held by this leader", Value: strconv.Itoa(q.InFlight)}, oldest, last}
	}
	if still := o.StillCordoned(); still != "" {
		cordoned := fact{Name: "Still cordoned", Value: shown(still)}
		if o.LeftPods() {
			cordoned.Class = "late"
		}
		all = append(all, cordoned)
	}
	if nodeless := o.Nodeless(); nodeless != "" {
		all = append(all, fact{Name: "Held", Value: nodeless})
	}
	policy := fact{Name: "Policy", Value: "no policy file, or not known here"}
	if p := o.Policy; p != nil {
		policy.Value = overview.Count(p.Rules, "rule")
		if p.Problem != "" {
			policy.Value += ". The file of now does not count: " + shown(p.Problem)
			policy.Class = "late"
		}
	}
	return append(all, policy)
}
