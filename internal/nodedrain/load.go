package nodedrain

import (
	"fmt"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Load returns which drains are in progress. It may be called at any time.
func (r *Registry) Load() report.Load {
	l := r.load()
	if l.HeldBack > 0 {
		byOption, _, byRules := r.line.HeldBack()
		l.HeldByLimit = byOption + byRules
	}
	return l
}

// load is Load without what the line has to be asked about.
func (r *Registry) load() report.Load {
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

// HeldBack returns how many drains wait because too many nodes are out of use, for their time, or for a replacement,
// and a sentence about it for people.
func (r *Registry) HeldBack() (drains int, why string) {
	drains, why, _ = r.line.HeldBack()
	if byRules := r.load().HeldBack - drains; byRules > 0 {
		drains += byRules
		if why != "" {
			why += "; "
		}
		why += fmt.Sprintf("drains that wait as their rules say: %d", byRules)
	}
	return drains, why
}
