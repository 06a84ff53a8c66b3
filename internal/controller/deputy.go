package controller

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// A Leader tells whether a handler that has its notices from a queue leads now. Its method may be
// called concurrently. An answer that cannot be had is no: that both drain does no harm.
type Leader interface {
	Leads(ctx context.Context) bool
}

// askLeaderAgain is how often it is asked whether the leader still leads, while it drains the node
// of this process.
const askLeaderAgain = 5 * time.Second

var errLeaderDrains = errors.New("the leader with the queue drains the node")

// stagesAsDeputy are the stages where a leader with a queue may see the same machine. A node has one
// drain. The first who hears of a notice begins it. Once the leader has heard, it goes on alone,
// because it knows of hooks, of volumes and of other nodes. Without a leader the deputy drains the
// node, and leaves the end to the next leader: only that can complete the hooks.
func (c *Controller) stagesAsDeputy(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	for {
		if c.sharedIntent(nd) && (isClosed(nd.podsGone.done) || c.Leader.Leads(ctx)) {
			if ended, err := c.awaitLeader(ctx, nd); ended || err != nil {
				return err
			}
		}
		working, stop := context.WithCancelCause(ctx)
		go c.watchForLeader(working, nd, stop)
		err := c.stages(working, log, nd)
		stop(nil)
		if !errors.Is(err, errLeaderDrains) {
			return err
		}
		log.Info("the handler with the queue knows of the node: it goes on with the drain")
	}
}

// sharedIntent reports whether notices of a queue have joined, by what is known of the node.
func (c *Controller) sharedIntent(nd *nodeDrain) bool {
	carried, _ := nd.current()
	if c.Cluster.Shares(carried) {
		return true
	}
	on, ok := c.intentOn(nd)
	return ok && !on.Finished() && c.Cluster.Shares(on)
}

// intentOn is what the watch says that the node carries.
func (c *Controller) intentOn(nd *nodeDrain) (intent.Intent, bool) {
	node, there := c.Cluster.Look(nd.ref)
	if !there {
		return intent.Intent{}, false
	}
	i, ok, err := cluster.ReadIntent(node)
	return i, ok && err == nil
}

// watchForLeader stops the drain with errLeaderDrains once the leader drains the node.
func (c *Controller) watchForLeader(ctx context.Context, nd *nodeDrain, stop context.CancelCauseFunc) {
	again := time.NewTicker(askLeaderAgain)
	defer again.Stop()
	for {
		changed := c.Cluster.Changed()
		if c.sharedIntent(nd) && c.Leader.Leads(ctx) {
			stop(errLeaderDrains)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again.C:
		}
	}
}

// awaitLeader waits while the leader drains the node. ended is false if nobody leads any more and
// pods are left, or if a notice has begun another episode, of which the leader has not heard.
func (c *Controller) awaitLeader(ctx context.Context, nd *nodeDrain) (ended bool, err error) {
	again := time.NewTicker(askLeaderAgain)
	defer again.Stop()
	for {
		changed := c.Cluster.Changed()
		if !c.Cluster.Exists(nd.ref) {
			return true, nil
		}
		if on, ok := c.intentOn(nd); ok && (on.Finished() || !c.Cluster.Shares(on)) {
			// A notice may have been recorded since: the node is read, and its lock is held.
			if err := c.reread(ctx, nd); err != nil {
				return false, err
			}
			carried, _ := nd.current()
			if carried.Finished() || !c.Cluster.Shares(carried) {
				return carried.Finished(), nil
			}
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-changed:
		case <-again.C:
			if !isClosed(nd.podsGone.done) && !c.Leader.Leads(ctx) {
				return false, nil
			}
		}
	}
}

// adopt takes over what another handler has written to the node during the drain. An error means
// that the drain ends.
func (c *Controller) adopt(ctx context.Context, nd *nodeDrain) error {
	on, ok := c.intentOn(nd)
	carried, _ := nd.current()
	if !ok || !c.Cluster.Shares(on) && !c.Cluster.Shares(carried) ||
		reflect.DeepEqual(on.Entries, carried.Entries) && !on.Finished() {
		return nil
	}
	if err := c.reread(ctx, nd); err != nil {
		return err
	}
	return c.quitIf(ctx, nd, errUndone, func(i intent.Intent) bool { return i.Finished() && len(i.Entries) == 0 })
}
