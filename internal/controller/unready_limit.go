package controller

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

const (
	// lookAgain is how often drains that are held back ask whether they can go on.
	lookAgain = time.Second
	// watchLag is how long the watch can take to show what was written to a node.
	watchLag = 30 * time.Second
)

// An unreadyLimit holds drains back while too many nodes are not ready or cordoned, by
// whomever. Drains with near deadlines go first. A nil limit holds nothing back.
type unreadyLimit struct {
	most        func(nodes int) int
	unavailable func() (out map[types.UID]bool, all int)

	mu sync.Mutex
	// out and all are the last answer of unavailable, at looked.
	out    map[types.UID]bool
	all    int
	looked time.Time
	// acquired are the nodes whose drains have begun, which the watch may not show as
	// cordoned yet: zero during the drain, then its end.
	acquired map[types.UID]time.Time
	waiting  map[types.UID]time.Time // the deadlines of those that are held back; zero: none
}

// newUnreadyLimit returns a limit of so many nodes, or of a percentage of all. unavailable
// returns the nodes that are not ready or cordoned, and how many nodes there are in all.
func newUnreadyLimit(bound intstr.IntOrString, unavailable func() (out map[types.UID]bool, all int)) *unreadyLimit {
	return &unreadyLimit{
		most:        func(nodes int) int { return mostUnready(bound, nodes) },
		unavailable: unavailable,
		acquired:    map[types.UID]time.Time{},
		waiting:     map[types.UID]time.Time{},
	}
}

// tryAcquire reports whether a node with that deadline may go out of use, and counts it if
// so. A node that is refused waits in line until it is acquired or released.
func (r *unreadyLimit) tryAcquire(node types.UID, deadline time.Time) bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	free := r.available()
	if _, counted := r.acquired[node]; counted || r.out[node] {
		free++
	}
	for other, d := range r.waiting {
		if other != node && !deadline.Equal(d) && intent.Earlier(deadline, d).Equal(d) {
			free-- // it comes first
		}
	}
	if free < 1 {
		r.waiting[node] = deadline
		return false
	}
	r.add(node)
	return true
}

// available is how many more nodes may go out of use. The caller holds mu.
func (r *unreadyLimit) available() int {
	now := time.Now()
	if now.Sub(r.looked) >= lookAgain {
		r.out, r.all = r.unavailable()
		r.looked = now
	}
	r.forgetLeft(now)
	used := len(r.out)
	for node := range r.acquired {
		if !r.out[node] {
			used++
		}
	}
	return r.most(r.all) - used
}

// forgetLeft forgets those that the watch shows as they are. The caller holds mu.
func (r *unreadyLimit) forgetLeft(now time.Time) {
	maps.DeleteFunc(r.acquired, func(_ types.UID, left time.Time) bool {
		return !left.IsZero() && now.Sub(left) > watchLag
	})
}

func (r *unreadyLimit) add(node types.UID) {
	r.acquired[node] = time.Time{}
	delete(r.waiting, node)
}

// acquire counts the node as out of use, even beyond the limit.
func (r *unreadyLimit) acquire(node types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(node)
}

// forgo takes back what the last tryAcquire of a node has counted. The node gets in line.
func (r *unreadyLimit) forgo(node types.UID, deadline time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.acquired, node)
	r.waiting[node] = deadline
}

// leaveLine says that the limit is not what holds a node back: those behind it come forward.
func (r *unreadyLimit) leaveLine(node types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, node)
}

// lookAt has the limit count other nodes from now on.
func (r *unreadyLimit) lookAt(unavailable func() (out map[types.UID]bool, all int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unavailable, r.looked = unavailable, time.Time{}
}

// isIdle reports whether no node is counted or waits.
func (r *unreadyLimit) isIdle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetLeft(time.Now())
	return len(r.acquired)+len(r.waiting) == 0
}

// release says that the drain of a node has ended.
func (r *unreadyLimit) release(node types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, node)
	if _, ok := r.acquired[node]; ok {
		r.acquired[node] = time.Now()
	}
}

// HeldBack returns how many drains wait because too many nodes are out of use, or because a rule of
// the policy file says so, and a sentence about it for people.
func (c *Controller) HeldBack() (drains int, why string) {
	drains, why = c.heldBackByOption()
	if byRules := c.Load().HeldBack - drains; byRules > 0 {
		drains += byRules
		if why != "" {
			why += "; "
		}
		why += fmt.Sprintf("drains that wait as their rules say: %d", byRules)
	}
	return drains, why
}

func (c *Controller) heldBackByOption() (drains int, why string) {
	r := c.unready
	if r == nil {
		return 0, ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return 0, ""
	}
	free := r.available()
	return len(r.waiting), fmt.Sprintf(
		"drains held back: %d, because %d of %d nodes are not ready, cordoned or about to be; max-unready-nodes is %s",
		len(r.waiting), r.most(r.all)-free, r.all, c.MaxUnready.String())
}

// mostUnready is how many of the cluster's nodes may be not ready or cordoned. A
// percentage is rounded down, but one node may always be.
func mostUnready(bound intstr.IntOrString, nodes int) int {
	most, err := intstr.GetScaledValueFromIntOrPercent(&bound, nodes, false)
	if err != nil { // neither a number nor a percentage: the configuration has no such value
		return nodes
	}
	return max(1, most)
}
