package overview

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// A Cordoned is a node that is still cordoned by the handler long after its drain: its machine was to go, and is there.
type Cordoned struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"` // when its machine was to go, or its drain had ended
}

// LongestFirst compares by how long they have been.
func LongestFirst(a, b Cordoned) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
}

// mostCordoned is how many of them are named.
const mostCordoned = 3

// StillCordoned says in a line which nodes are still cordoned since drains that have ended; empty: none is.
func (o *Overview) StillCordoned() string {
	if len(o.Cordoned) == 0 {
		return ""
	}
	nodes := first(o.Cordoned, mostCordoned, func(c Cordoned) string {
		return fmt.Sprintf("%s (%s)", Clean(c.Node), Length(o.At.Sub(c.Since)))
	})
	return Count(len(o.Cordoned), "node") + " since drains that have ended: " + strings.Join(nodes, ", ") +
		"; kubectl uncordon NAME has it take pods again"
}
