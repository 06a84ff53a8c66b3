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

	At       string
	AtExact  string // RFC 3339
	Leader   string
	Missing  string // why the leader was not asked
	HeldBack string
	Deaf     string // why no notice arrives
	Unseen   []string
	Tiles    []tile
	Kinds    []kind // all of them, for the symbols
	Seen     []kind // those on this page, for the legends

	Bands  []band
	More   string // how many nodes have no lane; empty: none
	Blocks []block

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

// A tile is a number that is read from afar.
type tile struct{ Name, Value, Note, Class string }

// A fact is about the handler itself.
type fact struct{ Name, Value, Class string }

// A block is something that nodes wait for.
type block struct {
	Cause, Name, Why string
	Nodes, Pods      int
	First            []link
	More             int // nodes that are not in First
	Until            string

	until time.Time
}

// A link is a node's name, and where its lane is; an empty ID: it has none.
type link struct{ ID, Name string }

func newView(o overview.Overview, h overview.History, opts Options) *view {
	now := o.At
	if h.At.IsZero() {
		h.At = now
	}
	v := &view{
		At: now.UTC().Format("15:04:05"), AtExact: now.UTC().Format(time.RFC3339),
		Leader: shown(o.Leader), HeldBack: shown(o.HeldBack), Kinds: kinds[:], Facts: facts(o),
	}
	v.Deaf = shown(o.Deaf())
	if o.Source == overview.Nodes {
		v.Missing = cmp.Or(shown(o.Missing), "it was not asked")
	}
	var more int
	if v.Bands, more = lanesOf(o); more > 0 {
		v.More = overview.Count(more, "node")
	}
	v.Blocks = blocks(o)
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
	v.PlotTold, v.NoNode = plotTold(v.Tallies, known), o.NoNode()
	if !h.Since.IsZero() && !known {
		v.Since = clock(h.Since, h.At)
	}
	v.Seen = seen(o, episodes)
	v.Tiles = tiles(o, episodes, known)
	v.frame = newFrame(title(o), summary(o), opts)
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

func countOf(o overview.Overview) count {
	var c count
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
	text := overview.Count(len(o.Nodes), "drain") + " in progress"
	if c.heldBack > 0 {
		text += ", " + strconv.Itoa(c.heldBack) + " held back"
	}
	if c.late > 0 {
		text += ", " + strconv.Itoa(c.late) + " past the deadline"
	}
	return text + "."
}

// tiles are the numbers of the page; known: all drains of the day are known.
func tiles(o overview.Overview, episodes []overview.Episode, known bool) []tile {
	c := countOf(o)
	inProgress := tile{Name: "drains in progress", Value: strconv.Itoa(len(o.Nodes))}
	if c.heldBack > 0 {
		inProgress.Note = strconv.Itoa(c.heldBack) + " held back"
	}
	next := tile{Name: "until the next deadline", Value: "–"}
	if !c.next.IsZero() {
		next.Value = took(c.next.Sub(o.At))
		if c.next.Sub(o.At) < near {
			next.Class = "near"
		}
	}
	if c.late > 0 {
		next.Note, next.Class = strconv.Itoa(c.late)+" past the deadline", "late"
	}
	pods := tile{Name: "pods that still have to leave", Value: "–"}
	if c.podsKnown || len(o.Nodes) == 0 {
		pods.Value = strconv.Itoa(c.left)
	}
	if c.forced > 0 {
		pods.Note = strconv.Itoa(c.forced) + " forced"
	}
	bad, unknown := 0, 0
	for i := range episodes {
		switch {
		case episodes[i].Failed():
			bad++
		case episodes[i].Outcome == "":
			unknown++
		}
	}
	day := tile{Name: "drains ended in 24 h", Value: strconv.Itoa(len(episodes)), Note: "none missed or lost"}
	if !known {
		day.Note = "none known to be missed or lost"
	}
	switch {
	case bad > 0:
		day.Note, day.Class = strconv.Itoa(bad)+" missed or lost", "late"
	case unknown > 0:
		day.Note = "of " + strconv.Itoa(unknown) + " it is not known"
	case len(episodes) == 0:
		day.Note = ""
	}
	return []tile{inProgress, next, pods, day}
}

func seen(o overview.Overview, episodes []overview.Episode) []kind {
	found := map[*kind]bool{}
	for i := range o.Nodes {
		found[kindNamed(o.Nodes[i].Kind)] = true
	}
	for i := range episodes {
		found[kindNamed(episodes[i].Kind)] = true
	}
	var all []kind
	for i := range kinds {
		if found[&kinds[i]] {
			all = append(all, kinds[i])
		}
	}
	return all
}

// blocks gathers the waits of all nodes by cause and name. What keeps most nodes comes first.
func blocks(o overview.Overview) []block {
	type key struct {
		cause overview.Cause
		name  string
	}
	found := map[key]*block{}
	var order []*block
	for i := range o.Nodes {
		n := &o.Nodes[i]
		met := map[key]bool{}
		for _, w := range n.WaitsFor {
			k := key{w.Cause, w.Name}
			b := found[k]
			if b == nil {
				b = &block{Cause: shown(string(w.Cause)), Name: shown(w.Name), Why: shown(w.Why)}
				found[k] = b
				order = append(order, b)
			}
			b.Pods += w.Pods
			if w.Until.After(b.until) {
				b.until, b.Until = w.Until, clock(w.Until, o.At)
			}
			if met[k] {
				continue
			}
			met[k] = true
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
	slices.SortStableFunc(order, func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(b.Pods, a.Pods))
	})
	all := make([]block, 0, min(len(order), mostBlocks))
	for _, b := range order[:min(len(order), mostBlocks)] {
		all = append(all, *b)
	}
	return all
}

// plotTold says how the drains of the day ended; known: all of them are known.
func plotTold(all []tally, known bool) string {
	episodes, bad, unknown := 0, 0, 0
	for _, t := range all {
		episodes += t.Episodes
		bad += t.Bad
		unknown += t.Unknown
	}
	switch {
	case episodes == 0 && known:
		return "No drain has ended in the last 24 hours."
	case episodes == 0:
		return "No drain is known that has ended in the last 24 hours."
	}
	text := overview.Count(episodes, "drain") + " ended in the last 24 hours"
	switch {
	case bad > 0:
		text += ", " + strconv.Itoa(bad) + " missed the deadline or lost pods"
	case unknown == 0 && known:
		text += ", none missed its deadline"
	case unknown == 0:
		text += ", none of those that are known missed its deadline"
	}
	if unknown > 0 {
		text += "; how " + strconv.Itoa(unknown) + " of them ended is not known"
	}
	return text + "."
}

// facts are about the leader, its queue and its policy. What is not known is said to be so.
func facts(o overview.Overview) []fact {
	leader := fact{Name: "Leader", Value: shown(o.Leader)}
	switch {
	case o.Leader == "" && o.Missing != "" && !o.Leaderless:
		leader.Value = "not known"
	case o.Leader == "":
		leader.Value, leader.Class = "nobody leads", "late"
	}
	all := []fact{leader}
	if q := o.Queue; q != nil {
		all = append(all, fact{Name: "Messages in flight", Value: strconv.Itoa(q.InFlight)})
		oldest := fact{Name: "Oldest message", Value: "none"}
		if !q.Oldest.IsZero() {
			oldest.Value = "received " + took(o.At.Sub(q.Oldest)) + " ago"
		}
		last := fact{Name: "Last answer of SQS", Value: "none since this leader began"}
		if !q.FailingSince.IsZero() {
			last.Class = "late"
		}
		if !q.LastReceive.IsZero() {
			last.Value = took(o.At.Sub(q.LastReceive)) + " ago"
			if o.At.Sub(q.LastReceive) > 90*time.Second { // then /healthz fails
				last.Class = "late"
			}
		}
		all = append(all, oldest, last)
	} else {
		all = append(all, fact{Name: "Queue", Value: "none, or not known here"})
	}
	if still := o.StillCordoned(); still != "" {
		all = append(all, fact{Name: "Still cordoned", Value: shown(still)})
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
