package controller

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// Decisions are all that a controller with these options can make: each of its
// kind, action and reason is among them, once. Nothing else in them is set.
func (c *Controller) Decisions() []telemetry.Decision {
	var all []telemetry.Decision
	seen := map[choice]bool{}
	add := func(kind notice.Kind, action string, why Why) {
		key := choice{kind, action, why}
		if !seen[key] {
			seen[key] = true
			all = append(all, telemetry.Decision{Notice: notice.Notice{Kind: kind}, Action: action, Why: string(why)})
		}
	}
	for _, reason := range notice.Reasons {
		add(notice.Ignored, drop.String(), Why(reason))
	}
	add(notice.Ignored, actionReject, WhyUndecodable)
	now := time.Now()
	for _, kind := range notice.Kinds {
		notices := []notice.Notice{{Kind: kind}}
		switch kind {
		case notice.StateChange:
			notices = append(notices, notice.Notice{Kind: kind, Gone: true})
		case notice.ScheduledChange:
			notices = append(notices, notice.Notice{Kind: kind, Ended: true})
		case notice.ASGTerminate, notice.ASGLaunch:
			ours := "any"
			if len(c.HookNames) > 0 {
				ours = c.HookNames[0]
				notices = append(notices, notice.Notice{Kind: kind, Hook: notice.Hook{Name: ours + " of others"}})
			}
			notices[0].Hook.Name = ours
		case notice.Ignored, notice.SpotInterruption, notice.RebalanceRecommendation:
		}
		for _, n := range notices {
			for w := foreign; w <= ours; w++ {
				for _, calledOff := range []bool{false, kind == notice.ScheduledChange && !n.Ended} {
					d := decide(n, facts{whose: w, calledOff: calledOff, now: now}, c.Policy)
					add(kind, d.action.String(), d.why)
					if d.action == hold {
						add(kind, c.afterPatience(n).String(), d.why)
					}
				}
			}
		}
	}
	return all
}

// A choice is what tells one decision from another, whatever it is about.
type choice struct {
	kind   notice.Kind
	action string
	why    Why
}
