package nodedrain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// An evacuateStage is the second stage of a drain: the pods leave, and the machine leaves its load balancers.
type evacuateStage struct{ *Drain }

// run gets the pods off the node, and the machine out of load balancers, unless the node is only to be
// cordoned.
func (d evacuateStage) run(ctx context.Context) error {
	d.say(overview.Draining) // it is not held back any more, whatever has ended that
	if d.cordonsOnly() {
		d.outcome = intent.Cordoned
		return nil
	}
	asked := time.Now()
	free, err := d.acquireWorker(ctx)
	if err != nil {
		return err
	}
	var began time.Time // zero: it has not waited
	if time.Since(asked) > time.Second {
		began = time.Now().UTC()
	}
	d.say(overview.Draining)
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer d.afterMachine(func() { stop(evacuation.ErrMachineGone) })()
	d.delegate(ctx)
	start := time.Now()
	err = d.drainPods(ctx, began)
	free()
	took := time.Since(start)
	targets := new(report.Targets)
	if err == nil {
		targets, err = d.awaitLoadBalancers(ctx)
	}
	if errors.Is(err, errTakesConnections) { // the last stage waits for both
		err = nil
	}
	return d.conclude(targets, took, err)
}

// acquireWorker waits for a worker, if their number is bounded and the drain can wait.
// free gives the worker back. A drain that takes longer than the grace period of a node loses
// its worker before its end. It mostly waits for PodDisruptionBudgets then, and a budget that
// never allows a disruption must not stop all other drains.
func (d evacuateStage) acquireWorker(ctx context.Context) (free func(), err error) {
	if d.r.workers == nil {
		return func() {}, nil
	}
	gone := make(chan struct{})
	defer d.afterMachine(sync.OnceFunc(func() { close(gone) }))()
	for {
		carried, changed := d.current()
		carried = d.r.pressing(carried)
		if !decision.CanWait(carried, time.Now(), d.r.Policy) {
			return func() {}, nil
		}
		var hurry, again <-chan time.Time // a near deadline matters more than the bound
		if at := carried.Deadline(); !at.IsZero() {
			hurry = time.After(time.Until(at.Add(-d.r.NodeGracePeriod)))
		}
		if len(carried.Hooks) > 0 { // nobody tells when their heartbeats fail
			again = time.After(againAfter)
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
		case <-again:
		case <-hurry:
			return func() {}, nil
		case <-gone:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// drainPods gets the pods off the node. began is when it could begin, if it had to wait for a worker: a budget has its
// share of the time from then on. What came of it is in d.evacuated.
func (d evacuateStage) drainPods(ctx context.Context, began time.Time) error {
	terms := make(chan evacuation.Terms, 1) // the latest that Drain has not received
	defer d.onChange(func() {
		select {
		case <-terms:
		default:
		}
		latest := d.terms()
		if began.After(latest.NoticedAt) {
			latest.NoticedAt = began
		}
		terms <- latest
	})()
	d.evacuating.Store(true)
	result, err := d.r.Drainer.Drain(ctx, &evacuation.Request{
		Node: d.ref.Name, Terms: <-terms, Changed: terms, Asked: d.questions,
		Log: d.log, Rules: d.r.CurrentPolicy().Rules, Resumed: d.resumed,
		NodeState: d.nodeState,
	})
	d.evacuating.Store(false)
	d.evacuated.Store(result)
	return err
}

// cordonPatience is how long a cordon may fail before a drain without pods ends without it: longer than a spot notice.
const cordonPatience = 3 * time.Minute

// nodeState is what a drain has to know of its node. A deleted Node is not ready.
func (d evacuateStage) nodeState() evacuation.NodeState {
	node, there := d.r.Cluster.Look(d.ref)
	if !there {
		return evacuation.NodeState{}
	}
	on, goes := d.r.uncordoned(node)
	// watchNode is about to do that, or whoever tries to record what was not. No hook waits for what fails for long.
	pending := on != nil && on.Uncordoned == 0 && goes || d.unrecorded.Load() && !node.Spec.Unschedulable
	since := d.r.writes.since(d.ref)
	return evacuation.NodeState{
		Ready: cluster.Ready(node), Cordoned: node.Spec.Unschedulable,
		CordonPending:   pending && (since.IsZero() || time.Since(since) < cordonPatience),
		StaysUncordoned: on != nil && on.Uncordoned > 0,
	}
}

// conclude says what came of the drain of the pods, and of the wait for load balancers.
func (d evacuateStage) conclude(targets *report.Targets, took time.Duration, err error) error {
	result := *d.evacuated.Load()
	final := d.carried()
	ended := report.Drain{
		Node: d.ref, Intent: final, Outcome: outcomeOf(final, result, err), Result: result, Targets: *targets, Took: took,
		Resumed: d.partial,
	}
	if ended.Outcome != "" {
		ended.Told = d.r.leftPods.told(d.ref.UID, result, time.Now())
		d.history.drain = &ended
		d.r.Observer.Drained(ended)
	}
	if err != nil {
		return fmt.Errorf("drain node %s: %w", d.ref.Name, err)
	}
	d.podsGone.close()
	d.outcome = ended.Outcome
	logEnd(d.log, ended)
	return nil
}

// TermsOf is what an intent asks of a drain.
func TermsOf(i intent.Intent) evacuation.Terms {
	terms, noticed := i.Terms(), i.Cause().Time
	// What has passed by the cordon is nobody's. A second cordon in the middle of the drain moves nothing.
	if began := cmp.Or(i.FirstCordonedAt, i.CordonedAt); began.After(noticed) {
		noticed = began
	}
	return evacuation.Terms{
		Deadline: i.Deadline(), CordonedAt: i.CordonedAt, Patient: terms.Patient,
		Grace: terms.Grace(), MostGrace: terms.MostGrace(), NoticedAt: noticed, BudgetShare: terms.BudgetShare(),
		IgnoreBudgets: i.Forces(notice.StateChange) || i.Forces(notice.InstanceImpaired),
	}
}
