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
	groups map[nodeGroup]*unreadyLimit
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
	return &ruleLimits{unavailableAmong: unavailableAmong, groups: map[nodeGroup]*unreadyLimit{}}
}

// of returns the limit of a rule for a node with these labels; nil: it has none.
func (l *ruleLimits) of(rule *decision.NodeRule, labels map[string]string) *unreadyLimit {
	if rule.Limit.Nodes == "" {
		return nil
	}
	group := nodeGroup{rule.Name, rule.Limit.Nodes, rule.Limit.Per, labels[rule.Limit.Per]}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.groups[group]
	if r == nil {
		selector := *rule
		r = newUnreadyLimit(intstr.Parse(group.nodes), func() (map[types.UID]bool, int) {
			return l.unavailableAmong(func(of map[string]string) bool {
				return of[group.per] == group.value && selector.Selects(of)
			})
		})
		l.groups[group] = r
	}
	return r
}

// release says that the drain of a node has ended.
func (l *ruleLimits) release(node types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.groups {
		r.release(node)
	}
	maps.DeleteFunc(l.groups, func(_ nodeGroup, r *unreadyLimit) bool { return r.isIdle() })
}
