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
	var names []string
	for _, c := range o.Cordoned[:min(len(o.Cordoned), mostCordoned)] {
		names = append(names, fmt.Sprintf("%s (%s)", Clean(c.Node), Length(o.At.Sub(c.Since))))
	}
	if more := len(o.Cordoned) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return Count(len(o.Cordoned), "node") + " since drains that have ended: " + strings.Join(names, ", ") +
		"; kubectl uncordon NAME has it take pods again"
}
