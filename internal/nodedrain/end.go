package nodedrain

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// askLeaderAgain is how often it is looked whether the leader has ended a drain.
const askLeaderAgain = 5 * time.Second

// An endStage is the last stage of a drain: after the completion delay, and when the other Nodes of the instance are
// empty too, its hooks are completed, and the node is marked finished.
type endStage struct{ *Drain }

// run does what follows the evacuation. ended are the hooks that have ended, each true if it was completed here. It
// returns errAsksMore if there was no evacuation, and a notice asks for one, and errHooksLeft if hooks have come that
// have not ended.
func (d endStage) run(ctx context.Context, release func(), ended map[intent.Hook]bool) error {
	onlyCordoned := d.outcome == intent.Cordoned
	ctx, stop := d.whileNot(ctx, errAsksMore, func() bool { return onlyCordoned && !d.cordonsOnly() })
	defer stop()
	if err := d.awaitCompletionDelay(ctx); err != nil {
		return err
	}
	next, err := d.awaitOthers(ctx)
	if err != nil {
		return err
	}
	release()
	if next != nil { // the drain of the next Node of the instance does the rest, but for hooks that it has no place for
		d.say(overview.Completing, waitsForSuccessor(next))
		releaseLeft := hookKeeper(d).holdAll(ctx, ended)
		err := next.Await(ctx)
		releaseLeft()
		if err != nil {
			return err
		}
		return hookKeeper(d).completeAll(ctx, ended)
	}
	return d.completeAndFinish(ctx, ended)
}

// awaitCompletionDelay waits between the end of the drain and the completion of the hooks,
// from a moment that the node carries, so that a failover does not restart it.
func (d endStage) awaitCompletionDelay(ctx context.Context) error {
	carried := d.carried()
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
			at := intent.Earlier(carried.DrainedAt.Add(d.r.CompletionDelay), d.r.delayUntil(carried))
			noting, stop := context.WithDeadline(ctx, at) // the hooks do not wait for a Node that cannot be written
			err := d.rewrite(noting, note)
			over := noting.Err() != nil
			stop()
			if err != nil && (!over || ctx.Err() != nil) {
				return err
			}
		}
	}
	return d.sleepUntil(ctx, carried.DrainedAt.Add(d.r.CompletionDelay))
}

// sleepUntil returns at the time, or when the hooks have to be completed, which may become known or change meanwhile,
// or when nothing runs on the instance any more.
func (d endStage) sleepUntil(ctx context.Context, at time.Time) error {
	for time.Now().Before(at) && !isClosed(d.instanceGone.done) {
		carried, changed := d.current()
		until := intent.Earlier(at, d.r.delayUntil(carried))
		d.say(overview.Completing, overview.Wait{
			Cause: overview.Delay, Until: until, Why: "the hooks are completed later, as the option says",
		})
		if !time.Now().Before(until) {
			break
		}
		most := min(time.Until(until), againAfter) // nobody tells when heartbeats fail
		if err := awaitFor(ctx, most, changed, d.instanceGone.done, nil); err != nil {
			return err
		}
	}
	d.say(overview.Completing)
	return nil
}

// awaitOthers waits for the other Nodes of the instance, as awaitOtherNodes does, and for load balancers. It waits for
// both again where a Node has come meanwhile.
func (d endStage) awaitOthers(ctx context.Context) (next *Drain, err error) {
	for {
		before := d.r.Cluster.Others(d.ref)
		next, err := d.awaitOtherNodes(ctx)
		d.say(overview.Completing)
		if next != nil || err != nil {
			return next, err
		}
		waited, err := d.awaitLateExclusion(ctx)
		isNew := func(ref cluster.Ref) bool { return !slices.Contains(before, ref) }
		if err != nil || !waited && !slices.ContainsFunc(d.r.Cluster.Others(d.ref), isNew) {
			return nil, err
		}
	}
}

// awaitLateExclusion waits for load balancers where no evacuation has done so: the node is only cordoned, a notice has
// excluded it from them when its pods had left already, or it was not the only Node of its instance then. waited: there
// was something to wait for. The error is the cause of ctx.
func (d endStage) awaitLateExclusion(ctx context.Context) (waited bool, err error) {
	if d.detached {
		return false, nil
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer d.afterMachine(func() { stop(evacuation.ErrMachineGone) })()
	if _, err = d.awaitLoadBalancers(waiting); errors.Is(err, errTakesConnections) {
		return true, nil
	}
	return d.detached, err
}

// errHooksLeft is returned when hooks have come while the end of the drain was written: they wait for all that the
// others have waited for.
var errHooksLeft = errors.New("hooks have come that are not completed")

// completeAndFinish completes the node's hooks, each once, and marks the intent finished. Its errors are those of run.
func (d endStage) completeAndFinish(ctx context.Context, ended map[intent.Hook]bool) error {
	if err := hookKeeper(d).completeAll(ctx, ended); err != nil {
		return err
	}
	now := time.Now().UTC()
	var left remaining
	var hooks []intent.Hook
	err := d.rewrite(ctx, func(i intent.Intent) intent.Intent {
		hooks, left = i.Hooks, d.leftOf(i, ended)
		if left == nothingLeft {
			i.Hooks, i.FinishedAt, i.Outcome, i.Pods = nil, now, d.outcome, d.history.pods()
		}
		if (left == nothingLeft || left == hooksLeft) && isClosed(d.instanceGone.done) {
			i = i.Gone(now)
		}
		return i
	})
	if err != nil {
		return err
	}
	switch left {
	case nothingLeft:
	case hooksLeft:
		return errHooksLeft
	case evacuationLeft:
		return errAsksMore
	case leftToLeader:
		return d.awaitLeader(ctx)
	}
	isUncompleted := func(h intent.Hook) bool { return !ended[h.Action()] }
	d.history.hooks = slices.DeleteFunc(slices.Clone(hooks), isUncompleted)
	for _, h := range hooks { // without a queue they are left to a leader; two may be of one, of which one has no token
		if isUncompleted(h) && !d.r.OnNode && !slices.ContainsFunc(d.history.hooks, h.MayBe) {
			d.history.uncompleted = append(d.history.uncompleted, h)
		}
	}
	return nil
}

// A remaining says what is left to do, when the hooks are completed, before a drain is finished.
type remaining uint8

const (
	nothingLeft    remaining = iota
	hooksLeft                // have come meanwhile
	evacuationLeft           // of a node that was only to be cordoned
	leftToLeader             // has a queue, and finishes it
)

// leftOf is what is left to do before an intent is finished, when these hooks have ended.
func (d endStage) leftOf(i intent.Intent, ended map[intent.Hook]bool) remaining {
	switch {
	case d.r.OnNode && d.r.Cluster.Shares(i):
		return leftToLeader
	case d.outcome == intent.Cordoned && !decision.CordonsOnly(i, d.r.Policy):
		return evacuationLeft
	case len(completing(i.Hooks, ended)) > 0:
		return hooksLeft
	}
	return nothingLeft
}

// awaitLeader waits at the end of a drain that a leader with a queue has begun: the next one can complete its hooks.
func (d endStage) awaitLeader(ctx context.Context) error {
	for {
		if i, ok := d.r.intentOn(d.ref); !d.r.Cluster.Exists(d.ref) || ok && i.Finished() {
			return nil
		}
		if err := retry.Sleep(ctx, askLeaderAgain); err != nil {
			return err
		}
	}
}
