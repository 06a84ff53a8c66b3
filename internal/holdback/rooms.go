package holdback

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// An answer is what [decision.Begin] has said, by these rooms.
type answer struct {
	at      time.Time
	rules   <-chan struct{} // of these rules
	looked  time.Time       // when the nodes were looked at
	permits map[string]decision.Permit
	rooms   map[decision.Group]*decision.Room
	users   map[decision.Group]map[string]string // the names by UID of the nodes that use up a limit
}

// full is the permit of a drain that nobody has asked about, where a group of it has room for none.
func (a *answer) full(h decision.Held) (p decision.Permit, full bool) {
	if h.Joins {
		return p, false
	}
	for _, g := range h.Limits {
		if r := a.rooms[g]; r != nil && r.Full() && !r.Out[h.Node] && !r.Begun[h.Node] {
			return decision.Permit{Why: g.Why(), Group: g}, true
		}
	}
	return p, false
}

// byOption is how many drains the limit of the options holds back, and a sentence about it.
func (a *answer) byOption(bound intstr.IntOrString) (drains int, why string) {
	for _, p := range a.permits {
		if !p.Begins && p.Why == decision.WhyMaxUnready {
			drains++
		}
	}
	r := a.rooms[decision.Group{}]
	if drains == 0 || r == nil {
		return 0, ""
	}
	return drains, fmt.Sprintf(
		"%d, because %d of %d nodes are not ready, cordoned or about to be; max-unready-nodes is %s",
		drains, r.Used(), r.All, bound.String())
}

// lookAtRooms looks at the groups whose limits held drains have to keep. begun are the nodes whose drains have begun.
// The caller holds mu.
func (l *Line) lookAtRooms(held []*waiter, begun []cluster.Ref, now time.Time) *answer {
	a := &answer{
		at: now, looked: now, rules: l.RulesChanged(),
		rooms: map[decision.Group]*decision.Room{}, users: map[decision.Group]map[string]string{},
	}
	before := l.answer
	if before != nil && now.Sub(before.looked) < lookAgain && before.rules == a.rules {
		a.looked = before.looked
	} else {
		before = &answer{}
	}
	for _, w := range held {
		for _, g := range w.Limits {
			if a.rooms[g] == nil {
				a.rooms[g] = l.lookAtRoom(g, before.rooms[g], begun)
			}
		}
	}
	return a
}

// lookAtRoom looks at one group. seen is what it was a moment ago; nil: that is not known.
func (l *Line) lookAtRoom(g decision.Group, seen *decision.Room, begun []cluster.Ref) *decision.Room {
	room, isOf := &decision.Room{Begun: map[string]bool{}}, l.selectorOf(g)
	if seen != nil {
		room.Out, room.All = seen.Out, seen.All
	} else {
		room.Out, room.All = l.Cluster.Unavailable(isOf)
	}
	bound := l.MaxUnready
	if g != (decision.Group{}) {
		bound = intstr.Parse(g.Nodes)
	}
	room.Most = most(bound, room.All)
	for _, ref := range begun {
		node, there := l.Cluster.Look(ref)
		if uid := string(ref.UID); there && !room.Out[uid] && isOf(node.Labels) {
			room.Begun[uid] = true
		}
	}
	return room
}

// groupOf is the group of a rule's limit that nodes with these labels are of.
func groupOf(rule *decision.NodeRule, labels map[string]string) decision.Group {
	return decision.Group{Rule: rule.Name, Nodes: rule.Limit.Nodes, Per: rule.Limit.Per, Value: labels[rule.Limit.Per]}
}

// groupsOf are the groups of an answer that a node with these labels is of.
func (l *Line) groupsOf(a *answer, labels map[string]string) (groups []decision.Group) {
	for g := range a.rooms {
		if l.selectorOf(g)(labels) {
			groups = append(groups, g)
		}
	}
	return groups
}

// selectorOf reports for the labels of a node whether it is of a group.
func (l *Line) selectorOf(g decision.Group) func(labels map[string]string) bool {
	return isOf(l.CurrentPolicy().Rules.Named(g.Rule), g)
}

// isOf reports for the labels of a node whether it is of a group of a rule. Each node is of the group of the options.
func isOf(rule *decision.NodeRule, g decision.Group) func(labels map[string]string) bool {
	return func(labels map[string]string) bool {
		return g == (decision.Group{}) || rule != nil && rule.Selects(labels) && labels[g.Per] == g.Value
	}
}

// A Use is how far a limit is used up.
type Use struct {
	Rule  string   `json:"rule,omitempty"` // whose limit it is; empty: that of the options
	Per   string   `json:"per,omitempty"`  // whose nodes: "zone=a"; empty: all that the limit is about
	Most  int      `json:"most"`           // how many nodes may be out of use
	Nodes []string `json:"nodes"`          // those that are, sorted, but for the node that is asked about
}

// Uses are the uses of the limits that the drain of one of some nodes has to keep: the one of a rule, and the bound
// max-unready-nodes of the options. rule is nil, and bound is zero, where there is none.
func Uses(rule *decision.NodeRule, bound intstr.IntOrString, node *corev1.Node, nodes []corev1.Node) (uses []Use) {
	if rule != nil && rule.Limit.Nodes != "" {
		g := groupOf(rule, node.Labels)
		u := useOf(isOf(rule, g), intstr.Parse(g.Nodes), node, nodes)
		if u.Rule = rule.Name; g.Per != "" {
			u.Per = g.Per + "=" + g.Value
		}
		uses = append(uses, u)
	}
	if bound != (intstr.IntOrString{}) {
		uses = append(uses, useOf(isOf(nil, decision.Group{}), bound, node, nodes))
	}
	return uses
}

func useOf(isOf func(map[string]string) bool, bound intstr.IntOrString, node *corev1.Node, nodes []corev1.Node) Use {
	u, all := Use{Nodes: []string{}}, 0
	for k := range nodes {
		other := &nodes[k]
		if !isOf(other.Labels) {
			continue
		}
		if all++; other.UID != node.UID && (other.Spec.Unschedulable || !cluster.Ready(other)) {
			u.Nodes = append(u.Nodes, other.Name)
		}
	}
	slices.Sort(u.Nodes)
	u.Most = most(bound, all)
	return u
}

// most is how many of some nodes may be not ready or cordoned. A percentage is rounded down, but one node may always
// be.
func most(bound intstr.IntOrString, nodes int) int {
	number, err := intstr.GetScaledValueFromIntOrPercent(&bound, nodes, false)
	if err != nil { // neither a number nor a percentage: the configuration has no such value
		return nodes
	}
	return max(1, number)
}
