package controller

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// Load is what is under way at the moment. It may be called at any time.
func (c *Controller) Load() telemetry.Load {
	c.mu.Lock()
	defer c.mu.Unlock()
	var l telemetry.Load
	for _, w := range c.works {
		intent, empty := w.progress()
		if intent.Finished() || len(intent.Entries) == 0 { // its first patch is under way
			continue
		}
		if !intent.HeldBack {
			l.Drains++
			l.Oldest = cluster.Earlier(l.Oldest, w.since)
		}
		if !empty {
			l.Deadline = cluster.Earlier(l.Deadline, intent.Deadline())
		}
		l.Hooks += len(intent.Hooks)
		l.HookDeadline = cluster.Earlier(l.HookDeadline, intent.HookDeadline())
	}
	l.HeldBack, _ = c.HeldBack()
	l.Hooks += len(c.awaited)
	for deadline := range c.awaited {
		l.HookDeadline = cluster.Earlier(l.HookDeadline, *deadline)
	}
	return l
}

// count makes the hook of a notice part of the load, until done is called.
func (c *Controller) count(n notice.Notice, deadline time.Time) (done func()) {
	if !c.owns(n.Hook) {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited[&deadline] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.awaited, &deadline)
	}
}

// emptied notes that the node's pods are not waited for any more.
func (w *work) emptied() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.empty = true
}

func (w *work) progress() (i cluster.Intent, empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intent, w.empty
}
