package nodedrain

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// againAfter is when something is asked once more that AWS has not answered.
const againAfter = 10 * time.Second

// nodeState is what a drain has to know of its node. A deleted Node is not ready.
func (d *Drain) nodeState() evacuation.NodeState {
	node, there := d.r.Cluster.Look(d.ref)
	if !there {
		return evacuation.NodeState{}
	}
	uncordoned, times, goes := d.r.uncordoned(node)
	return evacuation.NodeState{
		Ready: cluster.Ready(node), Cordoned: node.Spec.Unschedulable,
		// watchNode is about to do that, or whoever tries to record what was not
		CordonPending: uncordoned && times == 0 && goes || d.unrecorded.Load(),
	}
}

// TermsOf is what an intent asks of a drain.
func TermsOf(i intent.Intent) evacuation.Terms {
	terms, noticed := i.Terms(), i.Cause().Time
	if !i.Urgent() && i.CordonedAt.After(noticed) { // the drain has waited
		noticed = i.CordonedAt
	}
	return evacuation.Terms{
		Deadline: i.Deadline(), CordonedAt: i.CordonedAt, Patient: terms.Patient,
		Grace: terms.Grace(), MostGrace: terms.MostGrace(), NoticedAt: noticed, BudgetShare: terms.BudgetShare(),
		IgnoreBudgets: i.HasDated(notice.StateChange) || i.HasDated(notice.InstanceImpaired),
	}
}

// acquireWorker waits for a worker, if their number is bounded and the drain is not urgent.
// free gives the worker back. A drain that takes longer than the grace period of a node loses
// its worker before its end. It mostly waits for PodDisruptionBudgets then, and a budget that
// never allows a disruption must not stop all other drains.
func (d *Drain) acquireWorker(ctx context.Context) (free func(), err error) {
	if d.r.workers == nil {
		return func() {}, nil
	}
	return d.awaitWorker(ctx)
}

func (d *Drain) awaitWorker(ctx context.Context) (free func(), err error) {
	for {
		carried, changed := d.current()
		if carried.Urgent() {
			return func() {}, nil
		}
		var hurry <-chan time.Time // a near deadline matters more than the bound
		if at := carried.Deadline(); !at.IsZero() {
			hurry = time.After(time.Until(at.Add(-d.r.NodeGracePeriod)))
		}
		d.say(overview.Draining, overview.Wait{
			Cause: overview.Worker, Why: "other nodes are drained first, as the option workers says",
		})
		select {
		case d.r.workers <- struct{}{}:
			release := sync.OnceFunc(func() { <-d.r.workers })
			patience := time.AfterFunc(d.r.NodeGracePeriod, release)
			return func() {
				patience.Stop()
				release()
			}, nil
		case <-changed:
		case <-hurry:
			return func() {}, nil
		case <-d.instanceGone.done:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// afterMachine calls do, maybe several times, when there is nothing left to evict from. do must not block.
func (d *Drain) afterMachine(do func()) (stop func()) {
	remove := d.onChange(func() {
		if isClosed(d.instanceGone.done) {
			do()
		}
	})
	forget := d.r.Cluster.OnChange(d.ref, func() {
		if !d.r.Cluster.Exists(d.ref) {
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
func (d *Drain) awaitCompletionDelay(ctx context.Context) error {
	carried, _ := d.current()
	if d.r.CompletionDelay <= 0 || len(carried.Hooks) == 0 {
		return nil
	}
	if carried.DrainedAt.IsZero() {
		carried.DrainedAt = time.Now().UTC()
		note := func(i intent.Intent) intent.Intent {
			i.DrainedAt = carried.DrainedAt
			return i
		}
		if !d.unrecorded.Load() { // otherwise nobody could go on from there
			if err := d.rewrite(ctx, note); err != nil {
				return err
			}
		}
	}
	return d.sleepUntil(ctx, carried.DrainedAt.Add(d.r.CompletionDelay))
}

// sleepUntil returns at the time, or when the hooks have to be completed, which may become known or change meanwhile.
func (d *Drain) sleepUntil(ctx context.Context, at time.Time) error {
	for time.Now().Before(at) {
		carried, changed := d.current()
		until := intent.Earlier(at, d.hookKeeper().completeBy(ctx, carried))
		d.say(overview.Completing, overview.Wait{
			Cause: overview.Delay, Until: until, Why: "the hooks are completed later, as the option says",
		})
		if !time.Now().Before(until) {
			break
		}
		timer := time.NewTimer(min(time.Until(until), askHooksAgain))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		if timer.Stop(); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	d.say(overview.Completing)
	return nil
}

// completeAndFinish completes the node's hooks, each once, and marks the intent finished.
// A hook that comes meanwhile is completed too. If the node was only to be cordoned, and a
// notice that asks for more has come meanwhile, it returns errAsksMore.
func (d *Drain) completeAndFinish(ctx context.Context, log logr.Logger) error {
	completed := map[intent.Hook]bool{}
	for {
		if err := d.hookKeeper().complete(ctx, log, completed); err != nil {
			return err
		}
		more, asksMore, shared := false, false, false
		var hooks []intent.Hook
		finished := time.Now().UTC()
		err := d.rewrite(ctx, func(i intent.Intent) intent.Intent {
			if shared = d.r.OnNode && d.r.Cluster.Shares(i); shared {
				return i
			}
			more, asksMore = false, d.outcome == intent.Cordoned && !decision.CordonsOnly(i, d.r.Policy)
			if asksMore {
				return i
			}
			for _, h := range i.Hooks {
				more = more || !completed[h.Action()]
			}
			if !more {
				hooks = i.Hooks
				i.Hooks, i.FinishedAt, i.Outcome = nil, finished, d.outcome
			}
			if isClosed(d.instanceGone.done) {
				i = i.Gone(finished)
			}
			return i
		})
		switch {
		case err != nil:
			return err
		case shared:
			return d.awaitLeader(ctx)
		case asksMore:
			return errAsksMore
		case !more:
			d.record.hooks = hooks
			return nil
		}
	}
}

// askLeaderAgain is how often it is looked whether the leader has ended a drain.
const askLeaderAgain = 5 * time.Second

// awaitLeader waits at the end of a drain that a leader with a queue has begun: the next one can complete its hooks.
func (d *Drain) awaitLeader(ctx context.Context) error {
	again := time.NewTicker(askLeaderAgain)
	defer again.Stop()
	for {
		if i, ok := d.r.intentOn(d.ref); !d.r.Cluster.Exists(d.ref) || ok && i.Finished() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}
