package decision

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// Labels tell one sort of decision from another in metrics.
type Labels struct {
	Kind   notice.Kind
	Action Action
	Why    Why
}

// Possible returns all labels that decisions can have with this policy, each once, so that
// their metric series start at zero. It asks Decide about every kind of notice and fact.
func (p Policy) Possible() []Labels {
	var all []Labels
	add := func(kind notice.Kind, action Action, why Why) {
		if l := (Labels{kind, action, why}); !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	for _, reason := range notice.Reasons {
		add(notice.Ignored, Drop, Why(reason))
	}
	add(notice.Ignored, Reject, WhyUndecodable)
	add(notice.Ignored, Leave, WhyNoInstanceID)
	now := time.Now()
	for _, kind := range notice.Kinds {
		for _, n := range p.examples(kind) {
			n.Time = now.Add(-2 * LateAfter)
			for o := Foreign; o <= Ours; o++ {
				for _, f := range []Facts{
					{},
					{CalledOff: kind == notice.ScheduledChange && !n.Ended},
					{Launched: now},
					{State: Running},
					{State: Gone},
					{Drained: CanFollow(n)},
				} {
					f.Ownership, f.Now = o, now
					d := Decide(n, f, p)
					add(kind, d.Action, d.Why)
					if d.Action == Hold {
						add(kind, p.WithoutNode(n, false), d.Why)
						add(kind, p.WithoutNode(n, true), d.Why)
					}
				}
			}
		}
	}
	return all
}

// examples are notices of a kind that Decide may tell apart.
func (p Policy) examples(kind notice.Kind) []notice.Notice {
	n := notice.Notice{Kind: kind}
	switch kind {
	case notice.StateChange:
		return []notice.Notice{n, {Kind: kind, Gone: true}}
	case notice.ScheduledChange:
		return []notice.Notice{
			n,
			{Kind: kind, Detail: "instance-stop"},
			{Kind: kind, Detail: "instance-reboot"},
			{Kind: kind, Detail: "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED"},
			{Kind: kind, Ended: true},
		}
	case notice.InstanceImpaired:
		return []notice.Notice{n, {Kind: kind, Ended: true}}
	case notice.ASGTerminate, notice.ASGLaunch:
		if len(p.HookNames) == 0 {
			n.Hook.Name = "any"
			return []notice.Notice{n}
		}
		n.Hook.Name = p.HookNames[0]
		return []notice.Notice{n, {Kind: kind, Hook: notice.Hook{Name: n.Hook.Name + " of others"}}}
	case notice.Ignored, notice.SpotInterruption, notice.RebalanceRecommendation,
		notice.CapacityReservationInterruption, notice.CapacityBlockExpiration:
	}
	return []notice.Notice{n}
}
