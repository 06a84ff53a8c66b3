package replacement

import (
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var now = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// plain is a group that can be given another instance, and does nothing by itself.
var plain = Group{Name: "workers", Desired: 3, Max: 5, LaunchTemplate: true}

func changed(change func(*Group)) Group {
	g := plain
	change(&g)
	return g
}

func TestTheWayDependsOnTheGroup(t *testing.T) {
	var (
		rebalance = []notice.Kind{notice.RebalanceRecommendation}
		scheduled = []notice.Kind{notice.ScheduledChange}
		both      = slices.Concat(scheduled, rebalance)
		policy    = changed(func(g *Group) { g.LaunchesFirst = true })
		suspended = func(process string) Group {
			return changed(func(g *Group) { g.LaunchesFirst, g.Suspended = true, []string{process} })
		}
	)
	for name, tt := range map[string]struct {
		kinds  []notice.Kind
		group  Group
		hooked bool
		want   Way
	}{
		"a recommendation":                              {rebalance, plain, false, ByLaunch},
		"a recommendation, a hook":                      {rebalance, plain, true, ByLaunch},
		"a recommendation, a policy":                    {rebalance, policy, true, ByLaunch},
		"a recommendation, at the largest size":         {rebalance, changed(func(g *Group) { g.Max = 3 }), true, NoWay},
		"a recommendation, at the largest size, policy": {rebalance, changed(func(g *Group) { g.Max, g.LaunchesFirst = 3, true }), true, ByGroup},
		"Capacity Rebalancing, a hook":                  {rebalance, changed(func(g *Group) { g.Rebalances = true }), true, ByItself},
		"Capacity Rebalancing, no hook":                 {rebalance, changed(func(g *Group) { g.Rebalances = true }), false, NoWay},
		"a change, Capacity Rebalancing":                {scheduled, changed(func(g *Group) { g.Rebalances = true }), true, ByLaunch},
		"a change":                                      {scheduled, plain, true, ByLaunch},
		"a change, a policy":                            {scheduled, policy, true, ByGroup},
		"a change, a policy, no hook":                   {scheduled, policy, false, ByLaunch},
		"a change and a recommendation, a policy":       {both, policy, true, ByLaunch},
		"a launch configuration":                        {scheduled, changed(func(g *Group) { g.LaunchTemplate = false }), true, NoWay},
		"a launch configuration, a policy":              {rebalance, changed(func(g *Group) { g.LaunchTemplate, g.LaunchesFirst = false, true }), true, ByGroup},
		"both markets":                                  {rebalance, changed(func(g *Group) { g.MixedMarkets = true }), true, NoWay},
		"Launch is suspended":                           {scheduled, suspended("Launch"), true, NoWay},
		"Terminate is suspended":                        {scheduled, suspended("Terminate"), true, NoWay},
		"ReplaceUnhealthy is suspended":                 {scheduled, suspended("ReplaceUnhealthy"), true, ByLaunch},
		"HealthCheck is suspended":                      {scheduled, suspended("HealthCheck"), true, ByLaunch},
		"AZRebalance is suspended":                      {scheduled, suspended("AZRebalance"), true, ByGroup},
	} {
		if way, why := Choose(tt.kinds, tt.group, tt.hooked); way != tt.want || (why == "") != (way != NoWay) {
			t.Errorf("%s: way %d, %q; want %d", name, way, why, tt.want)
		}
	}
}

func TestTheNextStepDependsOnWhatIsWrittenDown(t *testing.T) {
	at := func(s intent.ReplacementStep) intent.Replacement {
		return intent.Replacement{Step: s, Since: now.Add(-time.Minute), Until: now.Add(time.Minute)}
	}
	for name, tt := range map[string]struct {
		r     intent.Replacement
		ready bool
		late  bool
		want  Step
	}{
		"nothing":            {want: Look},
		"refused":            {r: intent.Replacement{Step: intent.Over, Why: "no"}, want: Begin},
		"marking":            {r: at(intent.Marking), want: Mark},
		"marking, late":      {r: at(intent.Marking), late: true, want: GiveUp},
		"marked":             {r: at(intent.Marked), want: Wait},
		"marked, late":       {r: at(intent.Marked), late: true, want: GiveUp},
		"launching":          {r: at(intent.Launching), want: Launch},
		"launching, late":    {r: at(intent.Launching), late: true, want: Begin},
		"launched":           {r: at(intent.Launched), want: Wait},
		"launched and ready": {r: at(intent.Launched), ready: true, want: Begin},
		"launched, late":     {r: at(intent.Launched), late: true, want: Begin},
		"ending":             {r: at(intent.Ending), want: Begin},
		"returning":          {r: at(intent.Returning), want: Wait},
		"returning, late":    {r: at(intent.Returning), late: true, want: Begin},
	} {
		when := now
		if tt.late {
			when = tt.r.Until
		}
		if got := Next(tt.r, tt.ready, when); got != tt.want {
			t.Errorf("%s: step %d, want %d", name, got, tt.want)
		}
	}
}

func TestTheStepAfterTheDrainDependsOnWhoIsThere(t *testing.T) {
	there, goes := &Member{Group: "workers"}, &Member{Group: "workers", Goes: true}
	for name, tt := range map[string]struct {
		step       intent.ReplacementStep
		since      time.Duration
		own, other *Member
		want       Step
	}{
		"nothing":                     {want: Begin},
		"marked":                      {step: intent.Marked, own: there, want: Begin},
		"over":                        {step: intent.Over, own: there, want: Begin},
		"launching":                   {step: intent.Launching, own: there, want: Launch},
		"launching, long ago":         {step: intent.Launching, since: 2 * time.Hour, own: there, want: Forget},
		"launched":                    {step: intent.Launched, own: there, want: End},
		"launched, own goes":          {step: intent.Launched, own: goes, want: Settle},
		"launched, own has gone":      {step: intent.Launched, want: Settle},
		"the call was lost":           {step: intent.Ending, own: there, want: End},
		"the answer was lost":         {step: intent.Ending, own: goes, want: Settle},
		"to be returned":              {step: intent.Returning, own: there, other: there, want: Return},
		"returned":                    {step: intent.Returning, own: there, other: goes, want: Settle},
		"returned, and it is no more": {step: intent.Returning, own: there, want: Settle},
	} {
		if got := AtEnd(intent.Replacement{Step: tt.step, Since: now.Add(-tt.since)}, tt.own, tt.other, now); got != tt.want {
			t.Errorf("%s: step %d, want %d", name, got, tt.want)
		}
	}
}

// Auto Scaling takes such tokens.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LaunchInstances.html
var tokens = regexp.MustCompile(`^[A-Za-z0-9\-_/]{1,64}$`)

func TestATokenIsThatOfOneReplacement(t *testing.T) {
	notices := []intent.Entry{
		{Kind: notice.RebalanceRecommendation, Time: now},
		{Kind: notice.RebalanceRecommendation, Time: now.Add(time.Hour)},
		{Kind: notice.ScheduledChange, Change: "a", Time: now},
		{Kind: notice.ScheduledChange, Change: "b", Time: now},
	}
	seen := map[string]bool{}
	for _, id := range []string{"i-1", "i-2"} {
		for _, e := range notices {
			token := Token(id, For(intent.Intent{Entries: []intent.Entry{e}}))
			again := e
			again.IDs = []string{"a redelivery"}
			if !tokens.MatchString(token) || seen[token] || token != Token(id, For(intent.Intent{Entries: []intent.Entry{again}})) {
				t.Errorf("%s, %+v: token %s", id, e, token)
			}
			seen[token] = true
		}
	}
}
