package controller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

const (
	// lookAgain is how often those that are held back look whether they can go on.
	lookAgain = time.Second
	// watchLag is how long the watch may take to show what was written to a node.
	watchLag = 30 * time.Second
)

// A restraint holds nodes back while too many others are out of use: not ready,
// or cordoned by whomever. Those with near deadlines go on first. nil holds
// nobody back.
type restraint struct {
	most     func(nodes int) int
	outOfUse func() (out map[types.UID]bool, all int)

	mu sync.Mutex
	// out and all are what outOfUse said last, at looked.
	out    map[types.UID]bool
	all    int
	looked time.Time
	// taken are the nodes that were let go, which the watch may not show as
	// cordoned yet: zero while they are worked on, then since when they are not.
	taken   map[types.UID]time.Time
	waiting map[types.UID]time.Time // the deadlines of those that are held back; zero: none
}

// admits reports whether a node with that deadline may go out of use, and takes
// it into account if so. One that is refused waits for its turn, until it is
// admitted, taken or given up.
func (r *restraint) admits(node types.UID, deadline time.Time) bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	free := r.free()
	if _, counted := r.taken[node]; counted || r.out[node] {
		free++
	}
	for other, d := range r.waiting {
		if other != node && !deadline.Equal(d) && cluster.Earlier(deadline, d).Equal(d) {
			free-- // its turn comes before
		}
	}
	if free < 1 {
		r.waiting[node] = deadline
		return false
	}
	r.take(node)
	return true
}

// free is how many more nodes may go out of use. The caller holds mu.
func (r *restraint) free() int {
	now := time.Now()
	if now.Sub(r.looked) >= lookAgain {
		r.out, r.all = r.outOfUse()
		r.looked = now
	}
	maps.DeleteFunc(r.taken, func(_ types.UID, left time.Time) bool { return !left.IsZero() && now.Sub(left) > watchLag })
	used := len(r.out)
	for node := range r.taken {
		if !r.out[node] {
			used++
		}
	}
	return r.most(r.all) - used
}

func (r *restraint) take(node types.UID) {
	r.taken[node] = time.Time{}
	delete(r.waiting, node)
}

// takes takes into account that a node goes out of use, come what may.
func (r *restraint) takes(node types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.take(node)
}

// leaves is told when the work on a node is over, or given up.
func (r *restraint) leaves(node types.UID) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, node)
	if _, ok := r.taken[node]; ok {
		r.taken[node] = time.Now()
	}
}

// HeldBack returns how many drains wait because too many nodes are out of use,
// and a sentence about it for people.
func (c *Controller) HeldBack() (drains int, why string) {
	c.init()
	r := c.restraint
	if r == nil {
		return 0, ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return 0, ""
	}
	free := r.free()
	return len(r.waiting), fmt.Sprintf("drains held back: %d, because %d of %d nodes are not ready, cordoned or about to be; max-unready-nodes is %s",
		len(r.waiting), r.most(r.all)-free, r.all, c.MaxUnready.String())
}

// restrain is next, held back if it can wait and too many nodes are out of use. A
// node that its intent, old, has not held back so far goes on.
func (c *Controller) restrain(ref cluster.Ref, old, next cluster.Intent, now time.Time) cluster.Intent {
	if underWay := old.Version > 0 && !old.Finished() && !old.HeldBack; underWay || next.Finished() {
		return next
	}
	if !canWait(next, now, c.Policy) {
		c.restraint.takes(ref.UID)
	} else if !c.restraint.admits(ref.UID, next.Deadline()) {
		next.HeldBack = true
		return next
	}
	return next.Released(now)
}

// comeForward waits while the node is held back, and cordons it then.
func (c *Controller) comeForward(ctx context.Context, log logr.Logger, w *work) error {
	if !w.heldBack() {
		return nil
	}
	_, why := c.HeldBack()
	log.Info("the drain is held back", "why", why)
	c.Observer.Node(w.ref, StepHoldBack, string(WhyMaxUnready), nil)
	for {
		intent, changed := w.now()
		if !intent.HeldBack || !c.Cluster.Exists(w.ref) { // a notice has come that cannot wait, or there is nothing to do any more
			return nil
		}
		now := time.Now().UTC()
		near := !canWait(intent, now, c.Policy)
		if near || c.restraint.admits(w.ref.UID, intent.Deadline()) {
			why := WhyEnoughReady
			if near {
				why = WhyDeadlineNear
				c.restraint.takes(w.ref.UID)
			}
			if err := c.rewrite(ctx, w, func(i cluster.Intent) cluster.Intent { return i.Released(now) }); err != nil {
				return err
			}
			log.Info("the drain is no longer held back", "why", why)
			c.Observer.Node(w.ref, StepCordon, string(why), nil)
			return nil
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-w.gone.given:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
