package nodedrain

import (
	"cmp"
	"fmt"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Load returns which drains are in progress. It may be called at any time.
func (r *Registry) Load() report.Load {
	var l report.Load
	for _, nd := range r.drains.all() {
		carried := nd.carried()
		if carried.Finished() || len(carried.Entries) == 0 { // its first patch is in flight
			continue
		}
		switch {
		case carried.HeldBack && !r.Cluster.Exists(nd.ref): // the next Node of its machine waits
			continue
		case carried.HeldBack:
			l.HeldBack++
			if nd.waitsForRoom() {
				l.HeldByLimit++
			}
		default:
			l.Drains++
			l.Oldest = intent.Earlier(l.Oldest, cmp.Or(carried.CordonedAt, nd.since))
		}
		if nd.hasPods() {
			l.Deadline = intent.Earlier(l.Deadline, carried.Deadline())
		}
		l.Hooks += len(carried.Hooks)
		l.HookDeadline = intent.Earlier(l.HookDeadline, carried.HookDeadline())
	}
	return l
}

// HeldBack returns how many drains wait because too many nodes are out of use, for their time, or for a replacement,
// and a sentence about it for people.
func (r *Registry) HeldBack() (drains int, why string) {
	drains, why = r.line.HeldBack()
	if byRules := r.Load().HeldBack - drains; byRules > 0 {
		drains += byRules
		if why != "" {
			why += "; "
		}
		why += fmt.Sprintf("drains that wait as their rules say: %d", byRules)
	}
	return drains, why
}
