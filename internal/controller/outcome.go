package controller

import (
	"errors"
	"log/slog"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// outcomeOf says how a drain ended, by what the drainer returned. It is empty if the drain
// has not ended: the next leader continues it. It is pure: the table of
// TestADrainHasOneOutcome is its specification.
//
//	called off: undone, uncordoned or restarted     | called off
//	another error, or our own pod is the last       | none so far
//	pods were there when the machine was gone       | gone
//	pods were there at the deadline                 | missed
//	pods should have ended, and no kubelet says so  | unconfirmed
//	otherwise                                       | drained
func outcomeOf(r drain.Result, err error) intent.Outcome {
	switch {
	case errors.Is(err, errUndone), errors.Is(err, errUncordoned), errors.Is(err, errRestarted):
		return intent.CalledOff
	case err != nil, r.Self:
		return ""
	case len(r.Lost) > 0:
		return intent.Gone
	case len(r.Missed) > 0:
		return intent.Missed
	case len(r.Unconfirmed) > 0:
		return intent.Unconfirmed
	}
	return intent.Drained
}

// logEnd logs the end of a drain. Only a drain that ended well is called drained, and is no
// warning.
func logEnd(log *slog.Logger, d report.Drain) {
	const most = 10 // names of each sort
	r := d.Result
	values := []any{"evicted", r.Evicted, "forced", r.Forced}
	if r.Ended > 0 {
		values = append(values, "ended", r.Ended)
	}
	values = append(values, "took", d.Took.Round(time.Millisecond).String())
	if waited := d.Targets.Waited.Round(time.Second); waited > 0 {
		values = append(values, "waitedForLoadBalancers", waited.String())
	}
	if !d.Deadline().IsZero() {
		values = append(values, "left", time.Until(d.Deadline()).Round(time.Second).String())
	}
	for _, named := range []struct {
		key  string
		pods []string
	}{
		{"surged", r.Surged},
		{"missed", r.Missed},
		{"lost", r.Lost},
		{"unconfirmed", r.Unconfirmed},
		{"returned", r.Returned},
	} {
		if len(named.pods) > 0 {
			values = append(values, named.key, drain.Names(named.pods, most))
		}
	}
	say, message := log.Info, "drained"
	switch d.Outcome {
	case intent.Missed:
		say, message = log.Error, "the drain has missed its deadline: pods are still on the node"
	case intent.Gone:
		say, message = log.Warn, "the instance or its Node went away with pods on it"
	case intent.Unconfirmed:
		say, message = log.Warn, "pods should have ended, and no kubelet is there to say so"
	case intent.Drained, intent.Cordoned, intent.CalledOff:
	}
	say(message, values...)
	if left := d.Targets.Left; len(left) > 0 {
		log.Warn("load balancers may still send connections to the machine: these are cut when it ends",
			"targetGroups", drain.Names(left, most), "waited", d.Targets.Waited.Round(time.Second).String())
	}
	if r.Volumes > 0 {
		log.Warn("volumes were still attached at the deadline: pods that need them on other nodes have to wait",
			"volumes", r.Volumes)
	}
}
