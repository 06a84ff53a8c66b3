package nodedrain

import (
	"cmp"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A record is what is kept of a drain for its episode, beside the intent.
type record struct {
	heldBack string        // why it was held back last; empty: it was not
	drain    *report.Drain // the end of its evacuation; nil: there was none
	hooks    []intent.Hook // that were completed
}

// recordEpisode tells of the episode of a drain that ends with err. It is silent if the next leader goes on with the
// drain.
func (d *Drain) recordEpisode(err error) {
	calledOff := isCalledOff(err)
	if d.r.Ended == nil || err != nil && !calledOff {
		return
	}
	carried := d.carried()
	e := report.EpisodeOf(d.ref, carried)
	e.Known, e.HeldBack = overview.Everything, d.record.heldBack
	if d.resumed {
		e.Known = overview.SinceTakeOver
	}
	if d.record.drain != nil {
		e = report.WithDrain(e, *d.record.drain)
	}
	e.Hooks = report.HooksOf(d.record.hooks)
	if e.Ended.IsZero() || calledOff { // else the node says when: a later leader knows the episode by that
		e.Ended = time.Now().UTC()
	}
	e.Outcome = cmp.Or(e.Outcome, string(d.outcome))
	if calledOff {
		e.Outcome, e.Why = string(intent.CalledOff), err.Error()
	}
	if e.Outcome == "" { // the Node went before its drain began, or another Node has the notices
		e.Outcome = string(intent.Gone)
	}
	d.r.Ended(e)
}
