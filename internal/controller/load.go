package controller

import (
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Load returns what is in progress. It may be called at any time.
func (c *Controller) Load() report.Load {
	c.mu.Lock()
	defer c.mu.Unlock()
	var l report.Load
	for _, nd := range c.drains {
		carried, _ := nd.current()
		if carried.Finished() || len(carried.Entries) == 0 { // its first patch is in flight
			continue
		}
		if carried.HeldBack {
			l.HeldBack++
		} else {
			l.Drains++
			l.Oldest = intent.Earlier(l.Oldest, nd.since)
		}
		if !isClosed(nd.podsGone.done) {
			l.Deadline = intent.Earlier(l.Deadline, carried.Deadline())
		}
		l.Hooks += len(carried.Hooks)
		l.HookDeadline = intent.Earlier(l.HookDeadline, carried.HookDeadline())
	}
	l.Hooks += len(c.awaited)
	for deadline := range c.awaited {
		l.HookDeadline = intent.Earlier(l.HookDeadline, *deadline)
	}
	return l
}
