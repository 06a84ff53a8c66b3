package nodedrain

import (
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Load returns which drains are in progress. It may be called at any time.
func (r *Registry) Load() report.Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l report.Load
	for _, nd := range r.drains {
		carried, _ := nd.current()
		if carried.Finished() || len(carried.Entries) == 0 { // its first patch is in flight
			continue
		}
		switch {
		case carried.HeldBack && !r.Cluster.Exists(nd.ref): // the next Node of its machine waits
			continue
		case carried.HeldBack:
			l.HeldBack++
		default:
			l.Drains++
			l.Oldest = intent.Earlier(l.Oldest, nd.since)
		}
		if !isClosed(nd.podsGone.done) {
			l.Deadline = intent.Earlier(l.Deadline, carried.Deadline())
		}
		l.Hooks += len(carried.Hooks)
		l.HookDeadline = intent.Earlier(l.HookDeadline, carried.HookDeadline())
	}
	return l
}
