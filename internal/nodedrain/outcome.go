package nodedrain

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// outcomeOf says how a drain ended, by what the drainer returned. It is empty if the drain
// has not ended: the next leader continues it. It is pure: the table of
// TestADrainHasOneOutcome is its specification.
//
//	called off, see isCalledOff                     | called off
//	another error                                   | none so far
//	pods were there when the machine was gone       | gone
//	pods were there at the deadline, see isLate     | missed
//	pods should have ended, and no kubelet says so  | unconfirmed
//	otherwise                                       | drained
func outcomeOf(i intent.Intent, r evacuation.Result, err error) intent.Outcome {
	switch {
	case isCalledOff(err):
		return intent.CalledOff
	case err != nil:
		return ""
	case len(r.Lost) > 0:
		return intent.Gone
	case len(r.Missed) > 0, isLate(i, r):
		return intent.Missed
	case len(r.Unconfirmed) > 0:
		return intent.Unconfirmed
	}
	return intent.Drained
}

// isLate reports whether pods have left after the deadline, because their drain has begun too late. A notice that
// leaves no time at all, as that of a hibernation, has no deadline that could be kept.
func isLate(i intent.Intent, r evacuation.Result) bool {
	const blink = time.Second // in which the last look at the pods comes
	deadline := i.Deadline()
	return i.Cause().Time.Before(deadline) && r.Record.LastLeft.After(deadline.Add(blink))
}

// logEnd logs the end of a drain. Only a drain that ended well is called drained, and is no
// warning.
func logEnd(log logr.Logger, d report.Drain) {
	const (
		most    = 10  // names of each sort
		mostOut = 110 // of the pods that have left: a node has no more by default
	)
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
		most int
	}{
		{"surged", r.Surged, most},
		{"cutShort", r.Record.CutShort, most},
		{"missed", r.Missed, most},
		{"lost", r.Lost, most},
		{"unconfirmed", r.Unconfirmed, most},
		{"returned", r.Returned, most},
		{"evictedPods", r.Record.EvictedPods, mostOut},
		{"forcedPods", r.Record.ForcedPods, mostOut},
	} {
		if len(named.pods) > 0 {
			values = append(values, named.key, evacuation.Names(named.pods, named.most))
		}
	}
	switch d.Outcome {
	case intent.Missed:
		if len(r.Missed) == 0 {
			log.Error(nil, "the drain has missed its deadline: pods have left after it", values...)
			break
		}
		log.Error(nil, "the drain has missed its deadline: pods are still on the node", values...)
	case intent.Gone:
		logging.Warn(log, "the instance or its Node went away with pods on it", values...)
	case intent.Unconfirmed:
		logging.Warn(log, "pods should have ended, but no kubelet confirms it", values...)
	case intent.Drained, intent.Cordoned, intent.CalledOff:
		if len(r.Record.CutShort) > 0 {
			logging.Warn(log, "drained, and pods were killed before the end of their grace periods", values...)
			break
		}
		log.Info("drained", values...)
	}
	if left := d.Targets.Left; len(left) > 0 {
		logging.Warn(log, "load balancers may still send connections to the machine: these are cut when it ends",
			"targetGroups", evacuation.Names(left, most), "waitedForLoadBalancers", d.Targets.Waited.Round(time.Second).String())
	}
	if r.Volumes > 0 {
		logging.Warn(log, "volumes of its pods are still attached: pods that need them on other nodes have to wait",
			"volumes", r.Volumes)
	}
}

// mostLeftPods bounds the pods that are remembered: more than those of a hundred full nodes.
const mostLeftPods = 16_384

// leftPods are pods that were still there at the end of a drain, and when that was. What has missed the deadline of a
// hook is still there when the machine goes: the drain for that end does not count it again. It may be used
// concurrently.
type leftPods struct{ ended *lru.Cache } // by leftPod

type leftPod struct {
	node types.UID
	name string
}

// told are the pods left by a drain that an earlier one of the node has left too. A pod of a StatefulSet may come back
// under its name: after intent.StaleAfter it is another one.
func (l leftPods) told(node types.UID, r evacuation.Result, now time.Time) (names []string) {
	if r.Unlisted != nil {
		return nil
	}
	for _, name := range slices.Concat(r.Missed, r.Lost, r.Unconfirmed) {
		key := leftPod{node, name}
		ended, told := l.ended.Get(key)
		l.ended.Add(key, now)
		if told && now.Sub(ended.(time.Time)) <= intent.StaleAfter {
			names = append(names, name)
		}
	}
	return names
}

// A history is what is kept of a drain for its episode, beside the intent.
type history struct {
	heldBack string        // why it was held back last; empty: it was not
	drain    *report.Drain // the end of its evacuation; nil: there was none
	hooks    []intent.Hook // that were completed
	// uncompleted are the hooks that had ended, or that Auto Scaling refused to complete.
	uncompleted []intent.Hook
}

// pods are what became of the pods, as the node carries it; nil: there was no evacuation, or it is not known.
func (h history) pods() *intent.Pods {
	if h.drain == nil {
		return nil
	}
	return (*intent.Pods)(report.CountsOf(*h.drain))
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
	e.Known, e.HeldBack = overview.Everything, d.history.heldBack
	if d.partial {
		e.Known = overview.SinceTakeOver
	}
	if d.history.drain != nil {
		e = report.WithDrain(e, *d.history.drain)
	}
	if why := d.uncordonedFor.Load(); why != nil {
		e.Uncordoned = *why
	}
	if d.isUncordoned() {
		e.CordonedAt = time.Time{} // it never was
	}
	e.Hooks, e.UncompletedHooks = report.HooksOf(d.history.hooks), report.HooksOf(d.history.uncompleted)
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
