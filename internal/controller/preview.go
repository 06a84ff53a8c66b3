package controller

import (
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// An Outcome is what a notice would mean for a node.
type Outcome struct {
	Why   Why
	Terms pods.Terms
	// Patience is when the message is let go if the drain has not ended by then, and
	// goes on without it; zero: it is held to the end.
	Patience time.Time
}

// Preview decides as Handle does about a notice for a node of this cluster that
// carries an intent already, or the zero one. limits are those of the notice's
// hook; zero where it has none, or they are not known.
func Preview(n notice.Notice, limits asg.Limits, p Policy, carried cluster.Intent, now time.Time) Outcome {
	d := decide(n, facts{whose: ours, limits: limits, now: now}, p)
	return Outcome{Why: d.why, Terms: termsOf(carried.With(entryOf(n, d), nil, now)), Patience: d.patience}
}
