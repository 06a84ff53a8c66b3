package controller

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// ruleLimits are the limits of the policy's rules, one for each group of nodes.
type ruleLimits struct {
	unavailableAmong func(among func(labels map[string]string) bool) (out map[types.UID]bool, all int)

	mu     sync.Mutex
	groups map[nodeGroup]*groupLimit
	// lines are the groups in whose lines nodes may wait: one for each node, whatever has become of its
	// labels and of the rules.
	lines map[types.UID]nodeGroup
}

// A groupLimit is the limit of a group, and the rule that says which nodes are of it.
type groupLimit struct {
	*unreadyLimit
	rule  *decision.NodeRule
	nodes int // in lines
}

// A nodeGroup are the nodes that a rule selects and that have the same value of the label that its
// limit names.
type nodeGroup struct {
	rule  string
	nodes string // how many of them may be out of use
	per   string
	value string
}

func newRuleLimits(
	unavailableAmong func(among func(labels map[string]string) bool) (out map[types.UID]bool, all int),
) *ruleLimits {
	return &ruleLimits{
		unavailableAmong: unavailableAmong, groups: map[nodeGroup]*groupLimit{}, lines: map[types.UID]nodeGroup{},
	}
}

// of returns the limit of a rule, which has one, for a node with these labels. The node leaves the line of
// another group.
func (l *ruleLimits) of(rule *decision.NodeRule, node types.UID, labels map[string]string) *unreadyLimit {
	group := nodeGroup{rule.Name, rule.Limit.Nodes, rule.Limit.Per, labels[rule.Limit.Per]}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.groups[group]
	if r == nil {
		r = &groupLimit{unreadyLimit: newUnreadyLimit(intstr.Parse(group.nodes), nil)}
		l.groups[group] = r
	}
	if l.lines[node] != group {
		l.leave(node)
		l.lines[node] = group
		r.nodes++
	}
	if r.rule != rule { // also where a file has another rule of that name
		r.rule = rule
		r.lookAt(func() (map[types.UID]bool, int) {
			return l.unavailableAmong(func(of map[string]string) bool {
				return of[group.per] == group.value && rule.Selects(of)
			})
		})
	}
	return r.unreadyLimit
}

// leaveLine says that no limit holds a node back any more.
func (l *ruleLimits) leaveLine(node types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(node)
}

// leave is leaveLine. The caller holds mu.
func (l *ruleLimits) leave(node types.UID) {
	group, ok := l.lines[node]
	if !ok {
		return
	}
	delete(l.lines, node)
	r := l.groups[group]
	r.nodes--
	r.leaveLine(node)
	if r.nodes == 0 && r.isIdle() {
		delete(l.groups, group)
	}
}

// release says that the drain of a node has ended.
func (l *ruleLimits) release(node types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(node)
	for _, r := range l.groups {
		r.release(node)
	}
	maps.DeleteFunc(l.groups, func(_ nodeGroup, r *groupLimit) bool { return r.nodes == 0 && r.isIdle() })
}
