package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// soon is how close the deadline is, or the moment at which a pod is forced, when nobody can wait any longer.
	soon = 30 * time.Second
	// longBlocked is how long a blocked drain may come no further before somebody should look.
	longBlocked = 15 * time.Minute
)

// Refuses reports whether evictions are refused because of the cause, so that the pod is deleted in the end.
func (c Cause) Refuses() bool {
	switch c { //nolint:exhaustive // the others refuse nothing
	case Budget, TwoBudgets, Namespace, Webhook, AdmissionPolicy, Refused:
		return true
	}
	return false
}

// blocks reports whether the cause does not end by itself, or nobody knows its end.
func (c Cause) blocks() bool {
	return c.Refuses() || slices.Contains([]Cause{Kubelet, Volume, Target, FailingHook}, c)
}

// disables reports whether the handler itself cannot do its work, as where it has not the rights for it.
func (c Cause) disables() bool { return c == FailingWrite || c == FailingList }

// ByWeight orders waits: what keeps the handler from its work comes first, then what refuses to let pods go, then what
// else does not end by itself; of these, what keeps most pods.
func ByWeight(a, b Wait) int {
	return cmp.Or(a.Cause.rank()-b.Cause.rank(), b.Pods-a.Pods, cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Name, b.Name))
}

func (c Cause) rank() int {
	switch {
	case c.disables():
		return 0
	case c.Refuses():
		return 1
	case c.blocks():
		return 2
	}
	return 3
}

// Refusal is what refuses to let the drain go on; nil: nothing does.
func (n *Node) Refusal() *Wait {
	at := slices.IndexFunc(n.WaitsFor, func(w Wait) bool { return w.Cause.disables() || w.Cause.Refuses() })
	if at < 0 {
		return nil
	}
	return &n.WaitsFor[at]
}

// Blocked reports whether the node waits for something that somebody has to clear away.
func (n *Node) Blocked() bool {
	return slices.ContainsFunc(n.WaitsFor, func(w Wait) bool { return w.Cause.blocks() })
}

// emptied reports whether nothing is known to be left on the node that has to leave.
func (n *Node) emptied() bool {
	return (n.Pods == nil || n.Pods.Left == 0) && (!n.PodsGone.IsZero() || n.Stage == Completing)
}

// forcesSoon reports whether a pod is about to be forced, because its eviction is refused.
func (n *Node) forcesSoon(now time.Time) bool {
	return slices.ContainsFunc(n.WaitsFor, func(w Wait) bool {
		return w.Cause.Refuses() && !w.Until.IsZero() && w.Until.Sub(now) <= soon
	})
}

// disabled reports whether the handler cannot do its work on the node.
func (n *Node) disabled() bool {
	return slices.ContainsFunc(n.WaitsFor, func(w Wait) bool { return w.Cause.disables() })
}

// Stuck reports whether somebody should look at the node: the handler cannot write it, or list its pods; or its
// deadline has passed and pods are left; or it is blocked, and no pod has left for 15 minutes, or a pod is forced in
// 30 s or less, or the deadline is 30 s away or less.
func (n *Node) Stuck(now time.Time) bool {
	since := slices.MaxFunc([]time.Time{n.Since, n.CordonedAt, n.LastLeft, n.PodsGone}, time.Time.Compare)
	switch {
	case !n.Deadline.IsZero() && !now.Before(n.Deadline) && !n.emptied():
		return true
	case n.disabled(), n.forcesSoon(now), n.Blocked() && !since.IsZero() && now.Sub(since) >= longBlocked:
		return true
	}
	return n.Blocked() && !n.Deadline.IsZero() && n.Deadline.Sub(now) <= soon
}

// Stuck returns how many nodes somebody should look at; see [Node.Stuck].
func (o *Overview) Stuck() int { return stuck(o.Nodes, o.At) }

func stuck(nodes []Node, now time.Time) (n int) {
	for k := range nodes {
		if nodes[k].Stuck(now) {
			n++
		}
	}
	return n
}

// A Cordoned is a node that is still cordoned by the handler after its drain: its machine was to go, and is there.
type Cordoned struct {
	Node   string    `json:"node"`
	Since  time.Time `json:"since"`            // when its machine was to go, or its drain had ended
	Missed bool      `json:"missed,omitempty"` // pods were left on it
}

// LeftPods reports whether the drain of a node whose machine is still there has left pods on it.
func (o *Overview) LeftPods() bool {
	return slices.ContainsFunc(o.Cordoned, func(c Cordoned) bool { return c.Missed })
}

// WorstFirst compares by whether pods were left on them, and by how long they have been.
func WorstFirst(a, b Cordoned) int {
	if a.Missed != b.Missed {
		if a.Missed {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
}

// mostNamed is how many nodes or instances a line of the heading names.
const mostNamed = 3

// StillCordoned says in a line which nodes are still cordoned since drains that have ended; empty: none is.
func (o *Overview) StillCordoned() string {
	if len(o.Cordoned) == 0 {
		return ""
	}
	nodes := first(o.Cordoned, mostNamed, func(c Cordoned) string {
		text := Length(o.At.Sub(c.Since))
		if c.Missed {
			text += ", pods were left on it"
		}
		return fmt.Sprintf("%s (%s)", Clean(c.Node), text)
	})
	return Count(len(o.Cordoned), "node") + " since drains that have ended: " + strings.Join(nodes, ", ") +
		"; kubectl uncordon NAME has it take pods again"
}
