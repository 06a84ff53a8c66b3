package decision

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

const rebootCode = "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"

var (
	team   = func(name string) Selector { return Selector{{Key: "team", Operator: In, Values: []string{name}}} }
	nights = &Window{Name: "nights", Days: [7]bool{false, true, true, true, true, true, false}, From: 22 * 60, To: 5 * 60, Zone: time.UTC}
)

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	rules := Rules{Nodes: []NodeRule{
		{Name: "batch", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Nodes: []Selector{team("batch"), team("ci")}, Do: Ignoring, Before: -1},
		{Name: "gpu", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Nodes: []Selector{{{Key: "gpu", Operator: Exists}}}, Do: Cordoning, Before: -1},
		{Name: "tell", Kinds: []notice.Kind{notice.ASGTerminate, notice.StateChange}, Nodes: []Selector{team("pets")}, Do: Notifying, Before: -1},
		{Name: "reboots", Codes: []string{"*_REBOOT_*", "*_POWER_*"}, Do: Draining, Before: 30 * time.Minute},
		{Name: "all-rebalances", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: Draining, Before: -1},
	}}
	change := notice.Notice{Kind: notice.ScheduledChange, Detail: rebootCode, Time: now, Deadline: now.Add(time.Hour)}
	for name, tt := range map[string]struct {
		n      notice.Notice
		labels map[string]string
		policy Policy
		want   Decision
	}{
		"the first of two": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation}, labels: map[string]string{"team": "ci", "gpu": ""},
			want: Decision{Action: Drop, Why: WhyIgnoredByRule, Rule: "batch"},
		},
		"the second, for its label": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation}, labels: map[string]string{"team": "web", "gpu": ""},
			want: Decision{Action: Cordon, Why: WhyRebalance, Rule: "gpu", HoldUntil: at(120), Terms: intent.Terms{Rule: "gpu", CordonOnly: true}},
		},
		"the last": {
			n:    notice.Notice{Kind: notice.RebalanceRecommendation},
			want: Decision{Action: Drain, Why: WhyRebalance, Rule: "all-rebalances", HoldUntil: at(120), Terms: intent.Terms{Rule: "all-rebalances"}},
		},
		"one for a code, which waits": {
			n:    change,
			want: Decision{Action: Drain, Why: WhyScheduledReboot, Rule: "reboots", Deadline: at(3600), HoldUntil: at(120), Terms: intent.Terms{Rule: "reboots", NotBefore: at(1800)}},
		},
		"none of the file": {
			n: notice.Notice{Kind: notice.SpotInterruption, Deadline: at(100)}, labels: map[string]string{"team": "ci"},
			want: Decision{Action: Drain, Why: WhySpotInterruption, Rule: RuleDrain, Deadline: at(100)},
		},
		"none, with an option": {
			n: notice.Notice{Kind: notice.SpotInterruption, Deadline: at(100)}, policy: Policy{CordonOnly: true},
			want: Decision{Action: Cordon, Why: WhySpotInterruption, Rule: RuleCordonOnly, Deadline: at(100)},
		},
		"the option for recommendations comes after the file": {
			n: notice.Notice{Kind: notice.RebalanceRecommendation}, policy: Policy{CordonRebalance: true},
			want: Decision{Action: Drain, Why: WhyRebalance, Rule: "all-rebalances", HoldUntil: at(120), Terms: intent.Terms{Rule: "all-rebalances"}},
		},
		"nobody waits for the hook of a notice that only tells": {
			n:      notice.Notice{Kind: notice.ASGTerminate, Time: now, Hook: notice.Hook{Name: "drain", Group: "workers"}},
			labels: map[string]string{"team": "pets"},
			want:   Decision{Action: Complete, Why: WhyNotifiedByRule, Rule: "tell", Deadline: at(120)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := tt.policy
			p.Rules, p.NodeGracePeriod = rules, 2*time.Minute
			got := Decide(tt.n, Facts{Ownership: Ours, Labels: tt.labels, Now: now}, p)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhenADrainBegins(t *testing.T) {
	// 2026-11-20 is a Friday.
	day := func(day, hour, minute int) time.Time { return time.Date(2026, 11, day, hour, minute, 0, 0, time.UTC) }
	friday := day(20, 10, 15)
	for name, tt := range map[string]struct {
		rule               NodeRule
		start, latest, now time.Time
		want               time.Time
	}{
		"at once":                      {NodeRule{Before: -1}, day(25, 12, 0), day(25, 11, 58), friday, time.Time{}},
		"half an hour before":          {NodeRule{Before: 30 * time.Minute}, day(25, 12, 0), day(25, 11, 58), friday, day(25, 11, 30)},
		"that has passed":              {NodeRule{Before: 30 * time.Minute}, day(20, 10, 30), day(20, 10, 28), friday, time.Time{}},
		"not later than it has to":     {NodeRule{Before: 0}, day(25, 12, 0), day(25, 11, 58), friday, day(25, 11, 58)},
		"at once without a start":      {NodeRule{Before: 30 * time.Minute}, time.Time{}, time.Time{}, friday, time.Time{}},
		"the next night":               {NodeRule{Before: -1, Within: nights}, time.Time{}, time.Time{}, friday, day(20, 22, 0)},
		"the night goes on":            {NodeRule{Before: -1, Within: nights}, time.Time{}, time.Time{}, day(21, 4, 59), time.Time{}},
		"no night on Saturday":         {NodeRule{Before: -1, Within: nights}, time.Time{}, time.Time{}, day(21, 5, 0), day(23, 22, 0)},
		"before the night":             {NodeRule{Before: -1, Within: nights}, day(20, 20, 0), day(20, 19, 58), friday, day(20, 19, 58)},
		"the last night before":        {NodeRule{Before: time.Hour, Within: nights}, day(26, 12, 0), day(26, 11, 58), friday, day(25, 22, 0)},
		"the night that goes on":       {NodeRule{Before: time.Hour, Within: nights}, day(20, 22, 30), day(20, 22, 28), day(20, 3, 0), time.Time{}},
		"no night before":              {NodeRule{Before: time.Hour, Within: nights}, day(20, 15, 0), day(20, 14, 58), friday, day(20, 14, 0)},
		"the last one opened long ago": {NodeRule{Before: time.Hour, Within: nights}, day(22, 15, 0), day(22, 14, 58), day(21, 10, 0), day(22, 14, 0)},
	} {
		if got := tt.rule.Terms(tt.start, tt.latest, tt.now).NotBefore; !got.Equal(tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestARuleHandsItsShareOfTheBudgetsOn(t *testing.T) {
	for _, want := range []*int{nil, new(0), new(30)} {
		got := (&NodeRule{BudgetPercent: want}).Terms(time.Time{}, time.Time{}, now).BudgetPercent
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the share in percent (-want +got):\n%s", diff)
		}
	}
}

func TestAWindowGoesByTheClockOnTheWall(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	every := [7]bool{true, true, true, true, true, true, true}
	local := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2026, month, day, hour, minute, 0, 0, berlin)
	}
	night := Window{Days: every, From: 22 * 60, To: 5 * 60, Zone: berlin}
	short := Window{Days: every, From: 2*60 + 15, To: 2*60 + 45, Zone: berlin}
	for name, tt := range map[string]struct {
		w        Window
		at, want time.Time
	}{
		"in summer it opens at 20:00 UTC": {night, local(7, 1, 12, 0), time.Date(2026, 7, 1, 20, 0, 0, 0, time.UTC)},
		"in winter at 21:00 UTC":          {night, local(1, 1, 12, 0), time.Date(2026, 1, 1, 21, 0, 0, 0, time.UTC)},
		// In the night to March 29 the clock goes from 02:00 to 03:00, on October 25 from 03:00 to 02:00.
		"a night of one hour less": {night, local(3, 29, 4, 59), local(3, 29, 4, 59)},
		"which has ended at five":  {night, local(3, 29, 5, 0), local(3, 29, 22, 0)},
		"a night of one hour more": {night, time.Date(2026, 10, 25, 3, 59, 0, 0, time.UTC), time.Date(2026, 10, 25, 3, 59, 0, 0, time.UTC)},
		"the whole day of 25 hours": {
			Window{Days: every, From: 0, To: 24 * 60, Zone: berlin}, local(10, 25, 23, 59), local(10, 25, 23, 59),
		},
		"a window in the skipped hour is there all the same": {short, local(3, 29, 1, 0), time.Date(2026, 3, 29, 1, 15, 0, 0, time.UTC)},
	} {
		if got := tt.w.Next(tt.at); !got.Equal(tt.want) {
			t.Errorf("%s: %s, want %s", name, got.In(berlin), tt.want.In(berlin))
		}
	}
	if got := (Window{Zone: time.UTC}).Next(now); !got.IsZero() {
		t.Errorf("a window without days opens at %s", got)
	}
	// From each minute of a year the next opening is not before it, and not more than a day after.
	for at := local(1, 1, 0, 0); at.Year() < 2027; at = at.Add(7 * time.Minute) {
		got := night.Next(at)
		if hour := got.In(berlin).Hour(); got.Before(at) || got.Sub(at) > 24*time.Hour || hour >= 5 && hour < 22 {
			t.Fatalf("at %s: %s", at, got.In(berlin))
		}
		if last := night.Last(at, at.Add(48*time.Hour)); last.Before(at.Add(23*time.Hour)) || last.After(at.Add(48*time.Hour)) {
			t.Fatalf("the last opening of two days from %s: %s", at, last.In(berlin))
		}
	}
}

// AWS Health, EC2 and the metadata name one change by codes of their own.
func TestARuleIsAboutAChangeWhoeverTellsOfIt(t *testing.T) {
	for _, tt := range []struct {
		pattern, code string
		want          bool
	}{
		{"*_REBOOT_*", "instance-reboot", true},
		{"*_REBOOT_*", "system-reboot", true},
		{"*_RETIREMENT_*", "instance-stop", true},
		{"*_RETIREMENT_*", "instance-retirement", true},
		{"*-reboot", "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", true},
		{"instance-stop", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", true},
		{"*_REBOOT_*", "instance-stop", false},
		{"*_NETWORK_*", "system-maintenance", false}, // it may be the power
		{"*_REBOOT_*", "", false},
	} {
		r := &NodeRule{Name: "r", Codes: []string{tt.pattern}}
		if got := r.Mismatch(notice.ScheduledChange, tt.code, nil) == MatchesRule; got != tt.want {
			t.Errorf("%s and %s: %t", tt.pattern, tt.code, got)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true},
		{"", "a", false},
		{"a", "a", true},
		{"a", "ab", false},
		{"*", "", true},
		{"*", "abc", true},
		{"a*", "abc", true},
		{"a*", "ba", false},
		{"*c", "abc", true},
		{"*c", "abcd", false},
		{"*b*", "abc", true},
		{"*_REBOOT_*", rebootCode, true},
		{"*_POWER_*", rebootCode, false},
		{"a*b*c", "a-b-b-c", true},
		{"a*bc*c", "abc", false},
		{"ab*ab", "ab", false},
		{"ab*ab", "abab", true},
		{"**", "x", true},
	} {
		if got := MatchesPattern(tt.pattern, tt.text); got != tt.want {
			t.Errorf("%q and %q: %t", tt.pattern, tt.text, got)
		}
	}
}

func TestSelectorsMatchAsThoseOfKubernetes(t *testing.T) {
	labels := map[string]string{"team": "web", "zone": "a", "cores": "8"}
	for _, tt := range []struct {
		r    Requirement
		want bool
	}{
		{Requirement{"team", In, []string{"ci", "web"}}, true},
		{Requirement{"team", In, []string{"ci"}}, false},
		{Requirement{"other", In, []string{""}}, false},
		{Requirement{"team", NotIn, []string{"ci"}}, true},
		{Requirement{"team", NotIn, []string{"web"}}, false},
		{Requirement{"other", NotIn, []string{"web"}}, true},
		{Requirement{"team", Exists, nil}, true},
		{Requirement{"other", Exists, nil}, false},
		{Requirement{"other", DoesNotExist, nil}, true},
		{Requirement{"team", DoesNotExist, nil}, false},
		{Requirement{"cores", Greater, []string{"7"}}, true},
		{Requirement{"cores", Greater, []string{"8"}}, false},
		{Requirement{"cores", Less, []string{"9"}}, true},
		{Requirement{"team", Less, []string{"9"}}, false},
		{Requirement{"other", Greater, []string{"0"}}, false},
	} {
		if got := (Selector{tt.r}).Matches(labels); got != tt.want {
			t.Errorf("%v: %t", tt.r, got)
		}
	}
	if !(Selector{}).Matches(nil) {
		t.Error("the empty selector does not match")
	}
}

// drawRule is some rule.
func drawRule(r *rand.Rand, name string) NodeRule {
	rule := NodeRule{
		Name: name, Do: Effort(r.IntN(4)), Before: time.Duration(r.IntN(90)-1) * time.Minute, Patient: r.IntN(3) == 0,
		Grace: time.Duration(r.IntN(3)) * 20 * time.Second,
	}
	for range r.IntN(3) {
		rule.Kinds = append(rule.Kinds, notice.Kinds[r.IntN(len(notice.Kinds))])
	}
	if r.IntN(2) == 0 {
		rule.Nodes = []Selector{team([]string{"web", "ci"}[r.IntN(2)])}
	}
	if r.IntN(3) == 0 {
		rule.Within = nights
	}
	if r.IntN(4) == 0 {
		rule.Codes = []string{"*_REBOOT_*"}
	}
	return rule
}

func TestNoRuleLoosensADeadline(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := Policy{NodeGracePeriod: 2 * time.Minute}
		for k := range r.IntN(6) {
			p.Rules.Nodes = append(p.Rules.Nodes, drawRule(r, fmt.Sprintf("r%d", k)))
		}
		n := notice.Notice{
			Kind: notice.Kinds[r.IntN(len(notice.Kinds))], Time: now, Detail: []string{"", rebootCode}[r.IntN(2)],
			Deadline: now.Add(time.Duration(r.IntN(5000)) * time.Second),
		}
		f := Facts{Ownership: Ours, Labels: map[string]string{"team": []string{"web", "ci"}[r.IntN(2)]}, Now: now}
		with, without := Decide(n, f, p), Decide(n, f, Policy{NodeGracePeriod: p.NodeGracePeriod})
		want := without.Deadline
		if n.Kind == notice.InstanceImpaired && with.Action == Cordon { // that machine may stay
			want = time.Time{}
		}
		if !with.Deadline.Equal(want) {
			t.Fatalf("seed %d: deadline %s with rules, %s without", seed, with.Deadline, want)
		}
		if begin := with.Terms.NotBefore; !begin.IsZero() && !with.Deadline.IsZero() && begin.After(with.Deadline.Add(-p.NodeGracePeriod)) {
			t.Fatalf("seed %d: the drain begins at %s, the deadline is %s", seed, begin, with.Deadline)
		}
		if n.Kind.Urgent() && !with.Terms.NotBefore.IsZero() {
			t.Fatalf("seed %d: %s waits until %s", seed, n.Kind, with.Terms.NotBefore)
		}
		// The first rule that matches, and no other.
		for _, rule := range p.Rules.Nodes {
			if rule.Mismatch(n.Kind, n.Detail, f.Labels) == MatchesRule {
				if with.Rule != rule.Name && n.Kind != notice.ASGLaunch {
					t.Fatalf("seed %d: rule %s decides, %s comes first", seed, with.Rule, rule.Name)
				}
				break
			}
		}
	}
}

func manyRules(count int) Policy {
	p := Policy{NodeGracePeriod: 2 * time.Minute}
	for k := range count {
		p.Rules.Nodes = append(p.Rules.Nodes, NodeRule{
			Name: fmt.Sprintf("r%d", k), Kinds: []notice.Kind{notice.ScheduledChange}, Codes: []string{"*_REBOOT_*"},
			Nodes: []Selector{{{"team", In, []string{fmt.Sprintf("t%d", k)}}, {"gpu", DoesNotExist, nil}}}, Do: Draining, Before: time.Hour,
		})
	}
	return p
}

func TestRulesAllocateNothing(t *testing.T) {
	n := notice.Notice{Kind: notice.ScheduledChange, Detail: rebootCode, Time: now, Deadline: now.Add(time.Hour)}
	f := Facts{Ownership: Ours, Labels: map[string]string{"team": "none"}, Now: now}
	few, many := manyRules(2), manyRules(200)
	a := testing.AllocsPerRun(100, func() { Decide(n, f, few) })
	b := testing.AllocsPerRun(100, func() { Decide(n, f, many) })
	if b > a {
		t.Errorf("%v allocations with 200 rules, %v with 2", b, a)
	}
}

// The last rule decides: those before are for other codes.
func BenchmarkDecideBy200Codes(b *testing.B) {
	p := manyRules(200)
	for k := range p.Rules.Nodes {
		p.Rules.Nodes[k].Nodes, p.Rules.Nodes[k].Codes = nil, []string{"*_POWER_*", "*_NETWORK_*"}
	}
	n := notice.Notice{Kind: notice.ScheduledChange, Detail: rebootCode, Time: now, Deadline: now.Add(time.Hour)}
	b.ReportAllocs()
	for b.Loop() {
		Decide(n, Facts{Ownership: Ours, Now: now}, p)
	}
}

func BenchmarkDecideBy200Rules(b *testing.B) {
	p := manyRules(200)
	n := notice.Notice{Kind: notice.ScheduledChange, Detail: rebootCode, Time: now, Deadline: now.Add(time.Hour)}
	var nodes []Facts
	for k := range 5000 {
		nodes = append(nodes, Facts{Ownership: Ours, Labels: map[string]string{"team": fmt.Sprintf("t%d", k%400)}, Now: now})
	}
	b.ReportAllocs()
	for k := 0; b.Loop(); k++ {
		Decide(n, nodes[k%len(nodes)], p)
	}
}

func TestTheLastOpeningIsFoundBehindOneThatTheClockSkips(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	sundays := Window{Name: "sundays", From: 2*60 + 10, To: 3 * 60, Zone: berlin}
	sundays.Days[time.Sunday] = true
	at := time.Date(2026, 3, 16, 12, 0, 0, 0, berlin)
	due := time.Date(2026, 4, 4, 12, 0, 0, 0, berlin) // on the Sunday before, the hour from two to three is skipped
	if got, want := sundays.Last(at, due), time.Date(2026, 3, 22, 2, 10, 0, 0, berlin); !got.Equal(want) {
		t.Errorf("it opens for the last time at %s, want %s", got, want)
	}
}

// The label comes before each rule of the file, and a termination by Auto Scaling before the label.
func TestANodeIsLeftAloneByItsLabel(t *testing.T) {
	p := Policy{Rules: Rules{Nodes: []NodeRule{{Name: "all", Do: Draining, Before: -1}}}}
	labels := map[string]string{LeaveAloneLabel: ""}
	for _, kind := range notice.Kinds {
		want := RuleLeaveAlone
		if kind == notice.ASGTerminate || kind == notice.ASGLaunch {
			want = "all"
		}
		if rule := p.RuleFor(notice.Notice{Kind: kind}, labels); rule.Name != want {
			t.Errorf("%s: rule %s, want %s", kind, rule.Name, want)
		}
		all := p.Explain(notice.Notice{Kind: kind}, labels)
		if last := all[len(all)-1]; last.Rule.Name != want || last.Why != MatchesRule {
			t.Errorf("%s: explained by %+v", kind, all)
		}
		if rule := p.RuleFor(notice.Notice{Kind: kind}, nil); rule.Name != "all" {
			t.Errorf("%s without the label: rule %s", kind, rule.Name)
		}
	}
}
