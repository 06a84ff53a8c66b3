package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
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
	maps.DeleteFunc(r.acquired, func(_ types.UID, left time.Time) bool {
		return !left.IsZero() && now.Sub(left) > watchLag
	})
	used := len(r.out)
	for node := range r.acquired {
		if !r.out[node] {
			used++
		}
	}
	return r.most(r.all) - used
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

// HeldBack returns how many drains wait because too many nodes are out of use,
// and a sentence about it for people.
func (c *Controller) HeldBack() (drains int, why string) {
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

// mustHoldBack reports whether a node has to wait when it gets the notice: the drain can
// wait, and too many nodes are out of use. Otherwise the node counts as out of use from now
// on. A drain that is not held back goes on, and so does the next Node of a machine.
func (c *Controller) mustHoldBack(nd *nodeDrain, entry intent.Entry, now time.Time) bool {
	if c.unready == nil {
		return false
	}
	carried, _ := nd.current()
	if node, there := c.Cluster.Look(nd.ref); there && carried.Version == 0 {
		carried, _, _ = cluster.ReadIntent(node) // what cannot be read is replaced
	}
	next := carried.With(entry, nil, now)
	switch {
	case carried.Over(entry) || inWork(carried) || next.Finished():
		return false
	case !decision.CanWait(next, now, c.Policy) || c.isDraining(nd.ref):
		c.unready.acquire(nd.ref.UID)
		return false
	}
	return !c.unready.tryAcquire(nd.ref.UID, next.Deadline())
}

// inWork reports whether the node is being drained, and is not held back.
func inWork(i intent.Intent) bool { return i.Version > 0 && !i.Finished() && !i.HeldBack }

// awaitCapacity waits while the node is held back, and cordons it then.
func (c *Controller) awaitCapacity(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	if !nd.heldBack() {
		return nil
	}
	_, why := c.HeldBack()
	log.Info("the drain is held back", "why", why)
	c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.HoldBack, Why: decision.WhyMaxUnready})
	for {
		carried, changed := nd.current()
		if !carried.HeldBack { // an urgent notice has come
			c.unready.acquire(nd.ref.UID) // while it was being written, the node may have got in line again
			return nil
		}
		if !c.Cluster.Exists(nd.ref) {
			return nil
		}
		now := time.Now().UTC()
		near := !decision.CanWait(carried, now, c.Policy)
		if near || c.unready.tryAcquire(nd.ref.UID, carried.Deadline()) {
			why := decision.WhyEnoughReady
			if near {
				why = decision.WhyDeadlineNear
				c.unready.acquire(nd.ref.UID)
			}
			if err := c.forgetWhatPassed(ctx, log, nd); err != nil {
				return err
			}
			if err := c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent { return i.Released(now) }); err != nil {
				return err
			}
			log.Info("the drain is no longer held back", "why", why)
			log.Info("cordoned", "why", why)
			c.Observer.Stepped(report.Step{Node: nd.ref, Kind: report.Cordon, Why: why})
			return nil
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-nd.instanceGone.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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
