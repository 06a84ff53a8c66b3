package asg

import (
	"slices"
	"testing"

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
		want   Way
	}{
		"a recommendation":                       {rebalance, policy, true, ByGroup},
		"a change":                               {scheduled, policy, true, ByGroup},
		"a change and a recommendation":          {both, policy, true, ByGroup},
		"no maintenance policy":                  {scheduled, plain, true, NoWay},
		"no hook":                                {scheduled, policy, false, NoWay},
		"a recommendation, Capacity Rebalancing": {rebalance, rebalances, true, ByItself},
		"Capacity Rebalancing, no hook":          {rebalance, rebalances, false, NoWay},
		"both, Capacity Rebalancing":             {both, rebalances, true, ByItself},
		"a change, Capacity Rebalancing":         {scheduled, rebalances, true, ByGroup},
		"Launch is suspended":                    {scheduled, suspended("Launch"), true, NoWay},
		"Terminate is suspended":                 {scheduled, suspended("Terminate"), true, NoWay},
		"ReplaceUnhealthy is suspended":          {scheduled, suspended("ReplaceUnhealthy"), true, NoWay},
		"HealthCheck is suspended":               {scheduled, suspended("HealthCheck"), true, NoWay},
		"AZRebalance is suspended":               {scheduled, suspended("AZRebalance"), true, ByGroup},
	} {
		if way, why := Choose(tt.kinds, tt.group, tt.hooked); way != tt.want || (why == "") != (way != NoWay) {
			t.Errorf("%s: way %d, %q; want %d", name, way, why, tt.want)
		}
	}
}
