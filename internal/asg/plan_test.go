package asg

import (
	"slices"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestTheWayDependsOnTheGroup(t *testing.T) {
	var (
		rebalance  = []notice.Kind{notice.RebalanceRecommendation}
		scheduled  = []notice.Kind{notice.ScheduledChange}
		both       = slices.Concat(scheduled, rebalance)
		plain      = Group{Name: "workers"}
		policy     = Group{Name: "workers", LaunchesFirst: true}
		rebalances = Group{Name: "workers", LaunchesFirst: true, Rebalances: true}
		suspended  = func(process string) Group {
			return Group{Name: "workers", LaunchesFirst: true, Suspended: []string{process}}
		}
	)
	for name, tt := range map[string]struct {
		kinds  []notice.Kind
		group  Group
		hooked bool
		want   intent.ReplacementStep
	}{
		"a recommendation":                       {rebalance, policy, true, intent.Marking},
		"a change":                               {scheduled, policy, true, intent.Marking},
		"a change and a recommendation":          {both, policy, true, intent.Marking},
		"no maintenance policy":                  {scheduled, plain, true, intent.NotReplacing},
		"no hook":                                {scheduled, policy, false, intent.NotReplacing},
		"a recommendation, Capacity Rebalancing": {rebalance, rebalances, true, intent.Marked},
		"Capacity Rebalancing, no hook":          {rebalance, rebalances, false, intent.NotReplacing},
		"both, Capacity Rebalancing":             {both, rebalances, true, intent.Marked},
		"a change, Capacity Rebalancing":         {scheduled, rebalances, true, intent.Marking},
		"Launch is suspended":                    {scheduled, suspended("Launch"), true, intent.NotReplacing},
		"Terminate is suspended":                 {scheduled, suspended("Terminate"), true, intent.NotReplacing},
		"ReplaceUnhealthy is suspended":          {scheduled, suspended("ReplaceUnhealthy"), true, intent.NotReplacing},
		"HealthCheck is suspended":               {scheduled, suspended("HealthCheck"), true, intent.NotReplacing},
		"AZRebalance is suspended":               {scheduled, suspended("AZRebalance"), true, intent.Marking},
	} {
		if way, why := Choose(tt.kinds, tt.group, tt.hooked); way != tt.want || (why == "") != (way != intent.NotReplacing) {
			t.Errorf("%s: way %q, %q; want %q", name, way, why, tt.want)
		}
	}
}
