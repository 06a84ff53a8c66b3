package decision

import (
	"cmp"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A Group are nodes of which only so many may be out of use: not ready, or cordoned by anybody. The zero Group are all
// nodes, and its limit is that of the options. The others are the limits of rules: the nodes that the rule selects and
// that have the same value of a label.
type Group struct {
	Rule  string
	Nodes string // how many may be out of use, as the rule has it
	Per   string // the label; empty: the group are all nodes that the rule selects
	Value string
}

// A Room is what a group has room for.
type Room struct {
	Most int
	All  int
	// Out are the nodes that are out of use by the watch, and Begun those of the others whose drains have begun, or have
	// just ended.
	Out, Begun map[string]bool

	taken int // by those that begin now
}

// Used is how many nodes of the group are out of use.
func (r *Room) Used() int { return len(r.Out) + len(r.Begun) + r.taken }

func (r *Room) has(node string) bool { return r.Out[node] || r.Begun[node] }

// Full reports whether no other node may go out of use.
func (r *Room) Full() bool { return r.Used() >= r.Most }

// A Held is a drain that has not begun.
type Held struct {
	Node     string    // the UID of the Node
	Since    time.Time // when it began to wait
	Deadline time.Time // zero: none
	Hurries  bool      // it cannot wait: see CanWait
	Joins    bool      // another Node of its machine is being drained, which waits for the pods of this one in the end
	Opens    time.Time // its time comes then; zero, or past: it has come
	Limits   []Group   // it has to keep these, in this order
	Of       []Group   // it counts for these when it is out of use
	Replaces bool      // it waits for another instance after that: it takes no place meanwhile
}

// A Permit says whether a drain begins now.
type Permit struct {
	Begins bool
	Why    Why
	Group  Group // where a limit holds it back: the first that does
}

// Begin says which of the drains that are held back begin now, and why the others wait. It is pure: it is asked again
// whenever something changes, and nothing is remembered between two questions but what stands in its arguments. So no
// place can leak, and no place is kept for a drain that waits for something else.
//
// A drain that cannot wait begins. Another begins when its time has come and there is room in all of its groups, the
// one with the nearest deadline first, then the one that waits longest. Who begins takes its places from those after
// it. rooms has the groups that have a limit; it is changed.
func Begin(held []Held, rooms map[Group]*Room, now time.Time) map[string]Permit {
	held = slices.Clone(held)
	waits := func(h Held) int { // 0: it begins in any case
		if h.Hurries || h.Joins {
			return 0
		}
		return 1
	}
	slices.SortFunc(held, func(a, b Held) int {
		return cmp.Or(cmp.Compare(waits(a), waits(b)), compareDeadlines(a.Deadline, b.Deadline), a.Since.Compare(b.Since),
			cmp.Compare(a.Node, b.Node))
	})
	permits := make(map[string]Permit, len(held))
	for _, h := range held {
		p := h.permit(rooms, now)
		permits[h.Node] = p
		if !p.Begins || h.Replaces {
			continue
		}
		for _, g := range h.Of {
			if r := rooms[g]; r != nil && !r.has(h.Node) {
				r.taken++
			}
		}
	}
	return permits
}

func (h Held) permit(rooms map[Group]*Room, now time.Time) Permit {
	switch {
	case h.Hurries:
		return Permit{Begins: true, Why: WhyDeadlineNear}
	case h.Opens.After(now):
		return Permit{Why: WhyRuleTime}
	case h.Joins:
		return Permit{Begins: true, Why: WhyEnoughReady}
	}
	limited := false
	for _, g := range h.Limits {
		r := rooms[g]
		if r == nil {
			continue
		}
		limited = true
		used := r.Used()
		if r.has(h.Node) {
			used--
		}
		if used >= r.Most {
			return Permit{Why: g.Why(), Group: g}
		}
	}
	if !limited {
		return Permit{Begins: true, Why: WhyRuleTime}
	}
	return Permit{Begins: true, Why: WhyEnoughReady}
}

// Why is the reason of a drain that the limit of the group holds back.
func (g Group) Why() Why {
	if g == (Group{}) {
		return WhyMaxUnready
	}
	return WhyRuleLimit
}

// compareDeadlines puts those without a deadline last.
func compareDeadlines(a, b time.Time) int {
	switch {
	case a.Equal(b):
		return 0
	case intent.Earlier(a, b).Equal(a):
		return -1
	}
	return 1
}

// Opens is when the time of an intent's notices comes, by the rules of now: that of the first which lets the drain
// begin; zero, or past: it has come. A window is asked at this moment, because a drain that a limit has held back
// until its window has closed waits for the next one. limit is the rule whose limit the drain has to keep; nil: one of
// the notices whose time has come asks for none, or has waited as long as its rule says. A notice that asks for a
// replacement first has no say where another one does not, and may begin: many replaced nodes would pass by the limit
// of that.
func (p Policy) Opens(i intent.Intent, now time.Time) (opens time.Time, limit *NodeRule) {
	free, guessed := false, isGuessed(i)
	others := slices.ContainsFunc(i.Entries, func(e intent.Entry) bool {
		return !e.ReplaceFirst && !p.opensAt(e, p.Rules.Named(e.Rule), guessed, now).After(now)
	})
	for k, e := range i.Entries {
		rule := p.Rules.Named(e.Rule)
		at := p.opensAt(e, rule, guessed, now)
		if k == 0 || at.Before(opens) {
			opens = at
		}
		if at.After(now) || e.ReplaceFirst && others {
			continue
		}
		since := i.CordonedAt
		for _, later := range []time.Time{e.NotBefore, i.Replacement.Until} { // the wait for a replacement is another
			if later.After(since) {
				since = later
			}
		}
		switch {
		case rule == nil || rule.Limit.Nodes == "" || e.Kind == notice.InstanceImpaired,
			rule.Limit.Wait > 0 && i.HeldBack && now.Sub(since) >= rule.Limit.Wait:
			free = true
		case limit == nil:
			limit = rule
		}
	}
	if free {
		limit = nil
	}
	return opens, limit
}

// opensAt is when the time of one notice comes.
func (p Policy) opensAt(e intent.Entry, rule *NodeRule, assumed bool, now time.Time) time.Time {
	if e.NotBefore.After(now) || rule == nil || rule.Within == nil {
		return e.NotBefore
	}
	return p.terms(rule, e, assumed, now).NotBefore
}

// DefaultPatience is how long a replacement is awaited if its rule does not say it. It is as long as a new
// instance is expected to join, twice over: one to three minutes to boot, more with a large image.
const DefaultPatience = Young

// Replaceable reports whether a node that gets a notice of the kind may get a replacement first. The machine
// stays for long enough, and nobody else ends it: an Auto Scaling group that terminates an instance has
// its replacement, or wants none.
func Replaceable(kind notice.Kind) bool {
	return kind == notice.RebalanceRecommendation || kind == notice.ScheduledChange
}

// ReplacementUntil is how long the replacement of a node with this intent is awaited: the shortest time that
// a rule of its notices gives, and no longer than the drain can wait.
func (p Policy) ReplacementUntil(i intent.Intent, now time.Time) time.Time {
	wait := time.Duration(0)
	for _, e := range i.Entries {
		patience := DefaultPatience
		if r := p.Rules.Named(e.Rule); r != nil && r.Limit.Wait > 0 {
			patience = r.Limit.Wait
		}
		if wait == 0 || patience < wait {
			wait = patience
		}
	}
	until := now.Add(wait)
	if d := i.Deadline(); !d.IsZero() {
		until = intent.Earlier(until, d.Add(-p.NodeGracePeriod))
	}
	return until.UTC()
}

// ReplaceFirst reports whether a rule for nodes asks for a replacement first, for a kind that can have one.
func (r Rules) ReplaceFirst() bool {
	return slices.ContainsFunc(r.Nodes, func(n NodeRule) bool {
		return n.ReplaceFirst && (len(n.Kinds) == 0 || slices.ContainsFunc(n.Kinds, Replaceable))
	})
}
