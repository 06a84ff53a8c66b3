package onnode

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/lease"
)

// The stories of package controller have both modes. This is the whole decision.
func TestWhyThePodDrainsItsNode(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	recent, old := ago(takenWithin-time.Second), ago(takenWithin)
	for name, test := range map[string]struct {
		t      task
		leader lease.State
		vacant time.Time
		want   string
	}{
		"no Lease":                             {task{since: old, waits: true}, lease.Absent, ago(vacantFor), absent},
		"no Lease yet":                         {task{since: old, waits: true}, lease.Absent, ago(vacantFor - time.Second), ""},
		"no Lease, and it is urgent":           {task{since: now}, lease.Absent, now, absent},
		"no Lease, and this pod has drained":   {task{since: now, waits: true, own: true}, lease.Absent, now, absent},
		"nobody leads, and it is urgent":       {task{since: now}, lease.Vacant, now, vacant},
		"no answer, and it is urgent":          {task{since: now}, lease.Unknown, ago(askAgain - time.Second), ""},
		"no answer for long":                   {task{since: now}, lease.Unknown, ago(askAgain), vacant},
		"nobody leads for a moment":            {task{since: old, waits: true}, lease.Vacant, ago(vacantFor - time.Second), ""},
		"nobody leads":                         {task{since: old, waits: true}, lease.Vacant, ago(vacantFor), vacant},
		"nobody leads, and it is held back":    {task{since: old, waits: true, heldBack: true}, lease.Vacant, ago(time.Hour), ""},
		"nobody leads, and it waits no longer": {task{since: old, heldBack: true}, lease.Vacant, now, vacant},
		"the leader has some time":             {task{since: recent}, lease.Held, time.Time{}, ""},
		"the leader does not take it":          {task{since: old}, lease.Held, time.Time{}, missed},
		"the leader does not, and it can wait": {task{since: ago(time.Hour), waits: true}, lease.Held, time.Time{}, ""},
		"the leader ignores it":                {task{since: now, waits: true, begun: true}, lease.Held, time.Time{}, begun},
		"the handler is paused":                {task{since: ago(time.Hour)}, lease.Stopped, time.Time{}, ""},
		"paused, and this pod has begun":       {task{since: ago(time.Hour), begun: true}, lease.Stopped, time.Time{}, ""},
		"the node may get its id still":        {task{since: ago(namedWithin - time.Second), waits: true, unnamed: true}, lease.Held, time.Time{}, ""},
		"the leader cannot know the node":      {task{since: ago(namedWithin), waits: true, unnamed: true}, lease.Held, time.Time{}, unnamed},
		"the leader knows the node by EC2":     {task{since: ago(time.Hour), waits: true, unnamed: true, taken: true}, lease.Held, time.Time{}, ""},
		"the leader has taken it":              {task{since: ago(time.Hour), taken: true}, lease.Held, time.Time{}, ""},
	} {
		if got := test.t.reason(test.leader, test.vacant, now); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
