package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// nodeState is what a drain has to know of its node. A deleted Node is not ready.
func (c *Controller) nodeState(nd *nodeDrain) drain.NodeState {
	node, there := c.Cluster.Look(nd.ref)
	if !there {
		return drain.NodeState{}
	}
	uncordoned, times, goes := c.uncordoned(node)
	return drain.NodeState{
		Ready: cluster.Ready(node), Cordoned: node.Spec.Unschedulable,
		CordonPending: uncordoned && times == 0 && goes, // watchNode is about to do that
	}
}

// terms are what the drain of the pods has to observe now.
func (nd *nodeDrain) terms() drain.Terms {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	terms := TermsOf(nd.intent)
	terms.Reserve = nd.reserve
	return terms
}

// TermsOf is what an intent asks of a drain.
func TermsOf(i intent.Intent) drain.Terms {
	terms := i.Terms()
	return drain.Terms{
		Deadline: i.Deadline(), CordonedAt: i.CordonedAt, Patient: terms.Patient, Grace: terms.Grace(),
		IgnoreBudgets: i.HasDated(notice.StateChange) || i.HasDated(notice.InstanceImpaired),
	}
}

// acquireWorker waits for a worker, if their number is bounded and the drain is not urgent.
// free gives the worker back. A drain that takes longer than the grace period of a node loses
// its worker before its end. It mostly waits for PodDisruptionBudgets then, and a budget that
// never allows a disruption must not stop all other drains.
func (c *Controller) acquireWorker(ctx context.Context, nd *nodeDrain) (free func(), err error) {
	if c.workers == nil {
		return func() {}, nil
	}
	return c.awaitWorker(ctx, nd)
}

func (c *Controller) awaitWorker(ctx context.Context, nd *nodeDrain) (free func(), err error) {
	for {
		carried, changed := nd.current()
		if carried.Urgent() {
			return func() {}, nil
		}
		var hurry <-chan time.Time // a near deadline matters more than the bound
		if d := carried.Deadline(); !d.IsZero() {
			hurry = time.After(time.Until(d.Add(-c.NodeGracePeriod)))
		}
		nd.say(overview.Draining, overview.Wait{
			Cause: overview.Worker, Why: "other nodes are drained first, as the option workers says",
		})
		select {
		case c.workers <- struct{}{}:
			release := sync.OnceFunc(func() { <-c.workers })
			patience := time.AfterFunc(c.NodeGracePeriod, release)
			return func() {
				patience.Stop()
				release()
			}, nil
		case <-changed:
		case <-hurry:
			return func() {}, nil
		case <-nd.instanceGone.done:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// afterMachine calls do, maybe several times, when there is nothing left to evict from. do must not block.
func (c *Controller) afterMachine(nd *nodeDrain, do func()) (stop func()) {
	remove := nd.onChange(func() {
		if isClosed(nd.instanceGone.done) {
			do()
		}
	})
	forget := c.Cluster.OnChange(nd.ref, func() {
		if !c.Cluster.Exists(nd.ref) {
			do()
		}
	})
	return func() {
		forget()
		remove()
	}
}

// awaitCompletionDelay waits between the end of the drain and the completion of the hooks,
// from a moment that the node carries, so that a failover does not begin it anew.
func (c *Controller) awaitCompletionDelay(ctx context.Context, _ *slog.Logger, nd *nodeDrain) error {
	carried, _ := nd.current()
	if c.CompletionDelay <= 0 || len(carried.Hooks) == 0 {
		return nil
	}
	if carried.DrainedAt.IsZero() {
		now := time.Now().UTC()
		if err := c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
			i.DrainedAt = now
			return i
		}); err != nil {
			return err
		}
		carried.DrainedAt = now
	}
	until := intent.Earlier(carried.DrainedAt.Add(c.CompletionDelay), carried.Deadline())
	nd.say(overview.Completing, overview.Wait{
		Cause: overview.Delay, Until: until, Why: "the hooks are completed later, as the option says",
	})
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		nd.say(overview.Completing)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// completeAndFinish completes the node's hooks, each once, and marks the intent finished.
// A hook that comes meanwhile is completed too. If the node was only to be cordoned, and a
// notice that asks for more has come meanwhile, it returns errAsksMore.
func (c *Controller) completeAndFinish(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	completed := map[intent.Hook]bool{}
	for {
		if err := c.completeHooks(ctx, log, nd, completed); err != nil {
			return err
		}
		more, asksMore, shared := false, false, false
		finished := time.Now().UTC()
		err := c.rewrite(ctx, nd, func(i intent.Intent) intent.Intent {
			if shared = c.Leader != nil && c.Cluster.Shares(i); shared {
				return i
			}
			more, asksMore = false, nd.outcome == intent.Cordoned && !decision.CordonsOnly(i, c.Policy)
			if asksMore {
				return i
			}
			for _, h := range i.Hooks {
				more = more || !completed[h.Action()]
			}
			if !more {
				nd.record.hooks = i.Hooks
				i.Hooks, i.FinishedAt, i.Outcome = nil, finished, nd.outcome
			}
			if isClosed(nd.instanceGone.done) {
				i = i.Gone(finished)
			}
			return i
		})
		if err == nil && shared {
			return errLeaderDrains
		}
		if err == nil && asksMore {
			return errAsksMore
		}
		if err != nil || !more {
			return err
		}
	}
}
