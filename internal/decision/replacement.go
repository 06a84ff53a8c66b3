package decision

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// DefaultPatience is how long a replacement is awaited if its rule does not say it. It is as long as a new
// instance is expected to join, twice over: one to three minutes to boot, more with a large image.
const DefaultPatience = Young

// Replaceable reports whether a node that gets a notice of the kind may get a replacement first. The machine
// stays for long enough, and nobody else ends it: an Auto Scaling group that terminates an instance has
// its replacement, or wants none.
func Replaceable(kind notice.Kind) bool {
	return kind == notice.RebalanceRecommendation || kind == notice.ScheduledChange
}

// ReplacementUntil is how long the replacement of a node with this intent is awaited: the shortest time that
// a rule of its notices gives, and no longer than the drain can wait.
func (p Policy) ReplacementUntil(i intent.Intent, now time.Time) time.Time {
	wait := time.Duration(0)
	for _, e := range i.Entries {
		patience := DefaultPatience
		if r := p.Rules.Named(e.Rule); r != nil && r.Limit.Wait > 0 {
			patience = r.Limit.Wait
		}
		if wait == 0 || patience < wait {
			wait = patience
		}
	}
	until := now.Add(wait)
	if d := i.Deadline(); !d.IsZero() {
		until = intent.Earlier(until, d.Add(-p.NodeGracePeriod))
	}
	return until.UTC()
}

// replaces reports whether a rule is about a kind that can be replaced.
func (r *NodeRule) replaces() bool {
	return r.ReplaceFirst && (len(r.Kinds) == 0 || slices.ContainsFunc(r.Kinds, Replaceable))
}

// ReplaceFirst reports whether a rule for nodes asks for a replacement first.
func (r Rules) ReplaceFirst() bool {
	return slices.ContainsFunc(r.Nodes, func(n NodeRule) bool { return n.replaces() })
}
