package decision

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var zoneA = Group{Rule: "zonal", Nodes: "1", Per: "zone", Value: "a"}

func room(most int, out ...string) *Room {
	r := &Room{Most: most, All: 10, Out: map[string]bool{}, Begun: map[string]bool{}}
	for _, node := range out {
		r.Out[node] = true
	}
	return r
}

func TestBegin(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	all := []Group{{}}
	held := func(node string, edit ...func(*Held)) Held {
		h := Held{Node: node, Since: now.Add(-time.Hour), Limits: all, Of: all}
		for _, e := range edit {
			e(&h)
		}
		return h
	}
	due := func(d time.Duration) func(*Held) { return func(h *Held) { h.Deadline = now.Add(d) } }
	zonal := func(h *Held) { h.Limits, h.Of = []Group{zoneA, {}}, []Group{zoneA, {}} }
	for name, tt := range map[string]struct {
		held  []Held
		rooms map[Group]*Room
		want  string // of those in held, in their order
	}{
		"without a limit": {[]Held{held("a"), held("b")}, nil, "a begins: time-of-rule, b begins: time-of-rule"},
		"room for one: that with the nearest deadline":   {[]Held{held("a"), held("b", due(2*time.Hour)), held("c", due(time.Hour))}, map[Group]*Room{{}: room(1)}, "a waits: max-unready-nodes, b waits: max-unready-nodes, c begins: enough-nodes-ready"},
		"room for one: that which waits longest":         {[]Held{held("a"), held("b", func(h *Held) { h.Since = now.Add(-2 * time.Hour) })}, map[Group]*Room{{}: room(1)}, "a waits: max-unready-nodes, b begins: enough-nodes-ready"},
		"one that is out of use already takes no place":  {[]Held{held("a", due(time.Hour)), held("b")}, map[Group]*Room{{}: room(2, "a")}, "a begins: enough-nodes-ready, b begins: enough-nodes-ready"},
		"no room, and one is out of use already":         {[]Held{held("a"), held("b")}, map[Group]*Room{{}: room(1, "a")}, "a begins: enough-nodes-ready, b waits: max-unready-nodes"},
		"what hurries begins, and takes a place":         {[]Held{held("a", due(time.Minute)), held("b", func(h *Held) { h.Hurries = true })}, map[Group]*Room{{}: room(1)}, "a waits: max-unready-nodes, b begins: deadline-near"},
		"what waits for its time keeps no place":         {[]Held{held("a", due(time.Hour), func(h *Held) { h.Opens = now.Add(time.Minute) }), held("b")}, map[Group]*Room{{}: room(1)}, "a waits: time-of-rule, b begins: enough-nodes-ready"},
		"what waits for another instance keeps no place": {[]Held{held("a", due(time.Hour), func(h *Held) { h.Replaces = true }), held("b")}, map[Group]*Room{{}: room(1)}, "a begins: enough-nodes-ready, b begins: enough-nodes-ready"},
		"what its rule refuses keeps no place":           {[]Held{held("a", due(time.Hour), zonal), held("b")}, map[Group]*Room{{}: room(2, "x"), zoneA: room(1, "x")}, "a waits: limit-of-rule, b begins: enough-nodes-ready"},
		"what the option refuses keeps no place":         {[]Held{held("a", due(time.Hour), zonal), held("b", zonal)}, map[Group]*Room{{}: room(0), zoneA: room(1)}, "a waits: max-unready-nodes, b waits: max-unready-nodes"},
		"one of two of a zone":                           {[]Held{held("a", zonal), held("b", zonal)}, map[Group]*Room{{}: room(5), zoneA: room(1)}, "a begins: enough-nodes-ready, b waits: limit-of-rule"},
		"one of a zone that its own rule does not limit": {[]Held{
			held("a", due(time.Hour), func(h *Held) { h.Of = []Group{zoneA, {}} }), held("b", zonal),
		}, map[Group]*Room{{}: room(5), zoneA: room(1)}, "a begins: enough-nodes-ready, b waits: limit-of-rule"},
		"another Node of its machine goes on": {[]Held{held("a", func(h *Held) { h.Joins = true })}, map[Group]*Room{{}: room(1, "x")}, "a begins: enough-nodes-ready"},
	} {
		t.Run(name, func(t *testing.T) {
			permits := Begin(tt.held, tt.rooms, now)
			var got []string
			for _, h := range tt.held {
				p, verb := permits[h.Node], "waits"
				if p.Begins {
					verb = "begins"
				}
				got = append(got, fmt.Sprintf("%s %s: %s", h.Node, verb, p.Why))
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("%s\nwant %s", text, tt.want)
			}
		})
	}
}

// Whatever waits: those that can wait keep the limits, and nobody is held back while there is room.
func TestBeginKeepsEachLimitAndWastesNoRoom(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		groups := []Group{{}, {Rule: "a", Value: "1"}, {Rule: "a", Value: "2"}, {Rule: "b"}}
		rooms := map[Group]*Room{}
		member := map[Group]map[string]bool{}
		var nodes []string
		for k := range 1 + random.IntN(12) {
			nodes = append(nodes, fmt.Sprint("n", k))
		}
		for _, g := range groups {
			member[g] = map[string]bool{}
			r := room(random.IntN(5))
			for _, node := range nodes {
				if member[g][node] = g == (Group{}) || random.IntN(2) == 0; member[g][node] && random.IntN(4) == 0 {
					r.Out[node] = true
				} else if member[g][node] && random.IntN(6) == 0 {
					r.Begun[node] = true
				}
			}
			if random.IntN(4) > 0 {
				rooms[g] = r
			}
		}
		var held []Held
		for _, node := range nodes {
			h := Held{Node: node, Hurries: random.IntN(6) == 0, Since: now.Add(-time.Duration(random.IntN(3)) * time.Hour)}
			if random.IntN(2) == 0 {
				h.Deadline = now.Add(time.Duration(random.IntN(3)) * time.Hour)
			}
			if random.IntN(4) == 0 {
				h.Opens = now.Add(time.Hour)
			}
			for _, g := range groups {
				if member[g][node] {
					h.Of = append(h.Of, g)
					if random.IntN(2) == 0 {
						h.Limits = append(h.Limits, g)
					}
				}
			}
			held = append(held, h)
		}
		permits := Begin(slices.Clone(held), rooms, now)
		out := func(g Group) (n int) {
			for _, node := range nodes {
				r := rooms[g]
				if member[g][node] && (r.has(node) || permits[node].Begins) {
					n++
				}
			}
			return n
		}
		for _, h := range held {
			p := permits[h.Node]
			for _, g := range h.Limits {
				// Others of the group may begin in any case, or by rules without this limit.
				freed := slices.ContainsFunc(held, func(o Held) bool {
					return permits[o.Node].Begins && slices.Contains(o.Of, g) && (o.Hurries || !slices.Contains(o.Limits, g))
				})
				if r := rooms[g]; r != nil && p.Begins && !freed && !r.has(h.Node) && out(g) > r.Most {
					t.Fatalf("seed %d: %s begins, and %d are out of use in %v, of %d", seed, h.Node, out(g), g, r.Most)
				}
			}
			if p.Begins || h.Opens.After(now) {
				continue
			}
			r := rooms[p.Group]
			if used := out(p.Group); r == nil || !r.has(h.Node) && used < r.Most {
				t.Fatalf("seed %d: %s waits for %v, where %d of %d are out of use", seed, h.Node, p.Group, used, r.Most)
			}
		}
	}
}

func TestWhenANoticeOpens(t *testing.T) {
	night := &Window{Name: "nights", From: 22 * 60, To: 5 * 60, Zone: time.UTC, Days: [7]bool{true, true, true, true, true, true, true}}
	at := func(hour int) time.Time { return time.Date(2026, 11, 26, hour, 0, 0, 0, time.UTC) }
	rule := func(name string, limit string, wait time.Duration, within *Window) NodeRule {
		return NodeRule{Name: name, Do: Draining, Before: -1, Within: within, Limit: Limit{Nodes: limit, Wait: wait}}
	}
	p := Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: []NodeRule{
		rule("nights", "", 0, night), rule("one", "1", 0, nil), rule("patient", "1", 2*time.Hour, nil), rule("replaced", "", 0, nil),
	}}}
	replaced := intent.Entry{Kind: notice.RebalanceRecommendation, Terms: intent.Terms{Rule: "replaced", ReplaceFirst: true}}
	termination := intent.Entry{Kind: notice.ASGTerminate, Terms: intent.Terms{Rule: "one"}}
	entry := func(by string, notBefore time.Time) intent.Entry {
		return intent.Entry{Kind: notice.RebalanceRecommendation, Terms: intent.Terms{Rule: by, NotBefore: notBefore}}
	}
	for name, tt := range map[string]struct {
		entries []intent.Entry
		now     time.Time
		opens   time.Time
		limit   string
	}{
		"in its window":                         {[]intent.Entry{entry("nights", at(22))}, at(23), time.Time{}, ""},
		"after its window has closed":           {[]intent.Entry{entry("nights", at(4))}, at(6), at(22), ""},
		"before its time":                       {[]intent.Entry{entry("one", at(22))}, at(6), at(22), ""},
		"with a limit":                          {[]intent.Entry{entry("one", time.Time{})}, at(6), time.Time{}, "one"},
		"with a limit that it has waited for":   {[]intent.Entry{entry("patient", time.Time{})}, at(9), time.Time{}, ""},
		"with a limit that it waits for":        {[]intent.Entry{entry("patient", time.Time{})}, at(7), time.Time{}, "patient"},
		"replaced first":                        {[]intent.Entry{replaced}, at(6), time.Time{}, ""},
		"replaced, and terminated for it":       {[]intent.Entry{replaced, termination}, at(6), time.Time{}, "one"},
		"one of two has no limit":               {[]intent.Entry{entry("one", time.Time{}), entry("", time.Time{})}, at(6), time.Time{}, ""},
		"the one without a limit waits for its": {[]intent.Entry{entry("one", time.Time{}), entry("nights", at(22))}, at(6), time.Time{}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			i := intent.Intent{Version: intent.Version, HeldBack: true, CordonedAt: at(6), Entries: tt.entries}
			opens, limit := p.Opens(i, tt.now)
			got := ""
			if limit != nil {
				got = limit.Name
			}
			if opens.After(tt.now) != tt.opens.After(tt.now) || opens.After(tt.now) && !opens.Equal(tt.opens) || got != tt.limit {
				t.Errorf("opens %s with the limit %q, want %s with %q", opens, got, tt.opens, tt.limit)
			}
		})
	}
}

// A group replaces few instances at a time: those that have waited for it in vain must not drain all at once.
func TestTheWaitForALimitBeginsAfterTheWaitForAReplacement(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	p := Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: []NodeRule{
		{Name: "r", Do: Draining, Before: -1, ReplaceFirst: true, Limit: Limit{Nodes: "1", Wait: 10 * time.Minute}},
	}}}
	i := intent.Intent{
		Version: intent.Version, HeldBack: true, CordonedAt: now.Add(-11 * time.Minute),
		Entries:     []intent.Entry{{Kind: notice.RebalanceRecommendation, Terms: intent.Terms{Rule: "r", ReplaceFirst: true}}},
		Replacement: intent.Replacement{Until: now},
	}
	for after, want := range map[time.Duration]bool{0: true, 9 * time.Minute: true, 10 * time.Minute: false} {
		if _, limit := p.Opens(i, now.Add(after)); (limit != nil) != want {
			t.Errorf("%s after the wait for a replacement the limit holds: %t", after, limit != nil)
		}
	}
}

// A machine whose status checks fail may go at any moment.
func TestAnImpairedInstanceWaitsForNoRule(t *testing.T) {
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	night := &Window{Name: "nights", From: 22 * 60, To: 5 * 60, Zone: time.UTC, Days: [7]bool{true, true, true, true, true, true, true}}
	p := Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: []NodeRule{
		{Name: "cordoned", Do: Cordoning, Before: -1, Within: night, Limit: Limit{Nodes: "1"}},
	}}}
	d := Decide(notice.Notice{Kind: notice.InstanceImpaired, ID: "x", Time: noon, Instances: []string{"i-0123456789abcdef0"}}, Facts{Ownership: Ours, State: Running, Now: noon}, p)
	e := intent.Entry{Kind: notice.InstanceImpaired, Time: noon, Terms: d.Terms}
	opens, limit := p.Opens(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{e}}, noon)
	if d.Action != Cordon || d.Terms.Rule != "cordoned" || opens.After(noon) || limit != nil {
		t.Errorf("%+v; opens %s with %v", d, opens, limit)
	}
}

// Nobody knows how much time is left of a change that has started, nor of a termination that only hooks of others hold.
func TestNoWindowIsAwaitedWithoutADeadline(t *testing.T) {
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	night := &Window{Name: "nights", From: 22 * 60, To: 5 * 60, Zone: time.UTC, Days: [7]bool{true, true, true, true, true, true, true}}
	for kind, want := range map[notice.Kind]time.Duration{
		notice.ScheduledChange: 0, notice.ASGTerminate: 0, notice.RebalanceRecommendation: 10 * time.Hour,
	} {
		p := Policy{
			NodeGracePeriod: 2 * time.Minute,
			Rules:           Rules{Nodes: []NodeRule{{Name: "nights", Do: Draining, Before: -1, Within: night}}},
		}
		n := notice.Notice{Kind: kind, ID: "x", Time: noon, Instances: []string{"i-0123456789abcdef0"}, Deadline: noon.Add(-time.Minute)}
		d := Decide(n, Facts{Ownership: Ours, State: Running, Now: noon}, p)
		opens, _ := p.Opens(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{{Kind: kind, Time: noon, Terms: d.Terms}}}, noon)
		if begins := max(0, opens.Sub(noon)); begins != want {
			t.Errorf("%s: the drain begins after %s, want %s", kind, begins, want)
		}
	}
}

// Its hook is completed, and that is all: a rule that ignores it by now lets no pods leave.
func TestATerminationThatIsIgnoredByNowIsNotDrained(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, do := range []Effort{Ignoring, Notifying} {
		p := Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: []NodeRule{{Name: "t", Do: do, Before: -1}}}}
		e := intent.Entry{Kind: notice.ASGTerminate, Deadline: now.Add(time.Hour), Terms: intent.Terms{Rule: "t", NotBefore: now.Add(time.Minute)}}
		i := p.DecideAgain(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{e}}, nil, now)
		if len(i.Entries) != 1 || !CordonsOnly(i, p) || !i.Entries[0].NotBefore.IsZero() || p.IsOutdated(i, nil, now) {
			t.Errorf("%v: %+v", do, i.Entries)
		}
	}
}

// What is decided about a notice when it comes, when the rules have changed, and when its window is asked again, is the
// same: only what AWS announces has a start.
func TestTheTimeoutOfAHookIsNoStart(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for kind, want := range map[notice.Kind]time.Duration{notice.ScheduledChange: 4 * time.Hour, notice.ASGTerminate: 0} {
		p := Policy{
			NodeGracePeriod: 2 * time.Minute,
			Rules:           Rules{Nodes: []NodeRule{{Name: "hour-before", Do: Draining, Before: time.Hour}}},
		}
		e := intent.Entry{Kind: kind, Deadline: now.Add(5 * time.Hour), Terms: intent.Terms{Rule: "hour-before"}}
		i := p.DecideAgain(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{e}}, nil, now)
		begins := time.Duration(0)
		if at := i.Entries[0].NotBefore; !at.IsZero() {
			begins = at.Sub(now)
		}
		if begins != want {
			t.Errorf("%s: the drain begins after %s, want %s", kind, begins, want)
		}
	}
}

// A new leader, or a file that changes something else, makes nobody wait any less, nor anew.
func TestTheTimeOfARuleThatHasComeStays(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	p := Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: []NodeRule{{
		Name: "patient", Do: Draining, Before: 5 * time.Hour, Limit: Limit{Nodes: "1", Wait: 2 * time.Hour},
	}}}}
	for name, tt := range map[string]struct {
		by              string
		notBefore, want time.Time
	}{
		"of the same rule":         {"patient", now.Add(-time.Hour), now.Add(-time.Hour)},
		"of another":               {"other", now.Add(-time.Hour), now},
		"that has not come":        {"patient", now.Add(time.Hour), now}, // by the rules of then
		"that came at once":        {"patient", time.Time{}, time.Time{}},
		"of the same, by a second": {"patient", now, now},
	} {
		e := intent.Entry{
			Kind: notice.ScheduledChange, Deadline: now.Add(4 * time.Hour), Terms: intent.Terms{Rule: tt.by, NotBefore: tt.notBefore},
		}
		i := p.DecideAgain(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{e}}, nil, now)
		if got := i.Entries[0].NotBefore; !got.Equal(tt.want) {
			t.Errorf("the time %s: %s, want %s", name, got, tt.want)
		}
	}
}

// A rule that has other words under its name is another one.
func TestANodeIsOutdatedWhereTheRulesOfNowSayOtherwise(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	policy := func(rules ...NodeRule) Policy {
		return Policy{NodeGracePeriod: 2 * time.Minute, Rules: Rules{Nodes: rules}}
	}
	hourly := NodeRule{Name: "changes", Do: Draining, Before: time.Hour}
	early := NodeRule{Name: "changes", Do: Draining, Before: 4 * time.Hour}
	red := NodeRule{Name: "red", Do: Draining, Before: -1, Nodes: []Selector{{{Key: "pool", Operator: In, Values: []string{"red"}}}}}
	ignored := NodeRule{Name: "changes", Do: Ignoring, Before: -1}
	carried := func(p Policy) intent.Intent {
		e := intent.Entry{Kind: notice.ScheduledChange, Deadline: now.Add(5 * time.Hour)}
		return p.DecideAgain(intent.Intent{Version: 1, HeldBack: true, Entries: []intent.Entry{e}}, nil, now)
	}
	for name, tt := range map[string]struct {
		of, by Policy
		labels map[string]string
		after  time.Duration
		want   bool
	}{
		"the same rules":                      {of: policy(hourly), by: policy(hourly)},
		"the same, when its time has come":    {of: policy(hourly), by: policy(hourly), after: 4*time.Hour + time.Minute},
		"its hour is another":                 {of: policy(hourly), by: policy(early), want: true},
		"its hour is another, which has come": {of: policy(early), by: policy(hourly), after: 2 * time.Hour, want: true},
		"another rule for its labels":         {of: policy(red, hourly), by: policy(red, hourly), labels: map[string]string{"pool": "red"}, want: true},
		"the rule ignores it":                 {of: policy(hourly), by: policy(ignored), want: true},
		"there is no rule":                    {of: policy(hourly), by: policy(), want: true},
		"there was none":                      {of: policy(), by: policy(hourly), want: true},
		"there has never been one":            {of: policy(), by: policy()},
	} {
		if got := tt.by.IsOutdated(carried(tt.of), tt.labels, now.Add(tt.after)); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
