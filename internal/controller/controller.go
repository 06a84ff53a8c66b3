// Package controller is what a notice means for this cluster: whose instance it
// is, what to do, and the one drain that every affected node has.
package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Controller handles the messages of the queue during one term of leadership: [Controller.Run]
// carries out what [Controller.Handle] begins. Its methods may be called concurrently.
type Controller struct {
	Config

	Registry *nodedrain.Registry

	resolver  *lookup.Resolver
	lookUps   chan struct{} // a semaphore, see lookUpsAtOnce
	crowds    chan struct{} // a semaphore, see crowdsAtOnce
	cancelled cancelledChanges

	mu sync.Mutex
	// awaited has the deadline of each open hook that no drain is about: those of
	// launches, and of instances that have no Node yet.
	awaited map[*time.Time]bool
	// told are the notices that change no node, as a rule says, and that people have been told of.
	told *lru.Cache
	// strange are the messages about ids that are no instance's, of which the log has told.
	strange *lru.Cache
}

// Handle does what a message asks for, and returns when that is done. nil means that the
// message can be deleted. Handle may be called again for the same message, in any order with
// other messages, and by another process.
func (c *Controller) Handle(ctx context.Context, m queue.Message) error {
	log := c.Log.WithValues("message", m.ID)
	n, err := c.read(log, m)
	if n == nil || err != nil {
		return err
	}
	m.Release() // what follows may take hours
	defer pprof.SetGoroutineLabels(ctx)
	ctx = pprof.WithLabels(ctx, pprof.Labels("message", m.ID))
	pprof.SetGoroutineLabels(ctx)
	log = log.WithValues("kind", n.Kind, "event", n.ID)
	if hasMembers(n) || len(n.Instances) != 1 {
		return verdictOf(c.handleSeveral(ctx, log, n)...)
	}
	return verdictOf(c.handle(ctx, log, n, func(decision.Action) {}))
}

// handleSeveral is Handle for a notice that is not about one instance, with one error of each sort.
func (c *Controller) handleSeveral(ctx context.Context, log logr.Logger, n *notice.Notice) []error {
	if hasMembers(n) {
		return c.handleMembers(ctx, log, *n)
	}
	return c.handleAll(ctx, log, *n)
}

// read reads the notice of a message; nil, with the verdict: it asks for nothing, or cannot be read.
func (c *Controller) read(log logr.Logger, m queue.Message) (*notice.Notice, error) {
	n, err := notice.Parse(m.Body)
	if errors.Is(err, notice.ErrInstanceID) {
		return nil, c.leaveUnknown(log, m, err)
	}
	if err != nil {
		c.Observer.Decided(report.Decision{Action: decision.Reject, Why: decision.WhyUndecodable, DryRun: c.DryRun})
		if c.DryRun {
			logging.Warn(log, "a message cannot be read", "why", err.Error(), "body", quoted(m.Body))
			return nil, verdictOf(errDryRun)
		}
		return nil, queue.Reject(err) // the queue logs it, and not at each delivery
	}
	if n.Kind == notice.Ignored {
		c.Observer.Decided(report.Decision{Notice: n, Action: decision.Drop, Why: decision.Why(n.Ignored), DryRun: c.DryRun})
		log.V(1).Info("a message asks for nothing", "why", n.Ignored)
		if c.DryRun {
			return nil, verdictOf(errDryRun)
		}
		return nil, nil
	}
	if len(n.Instances) == 1 && len(n.Hosts) == 0 {
		n = ofOne(n, n.Instances[0])
	}
	return &n, nil
}

// handleAll does what a notice asks for each of several instances. It returns one error of
// each sort. While the drains go on it keeps nothing of the notice in memory.
func (c *Controller) handleAll(ctx context.Context, log logr.Logger, n notice.Notice) (errs []error) {
	select {
	case c.crowds <- struct{}{}:
	default:
		return []error{errCrowded}
	}
	var mu sync.Mutex
	add := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return isLeave(e) == isLeave(err) }) {
			errs = append(errs, err)
		}
	}
	var all sync.WaitGroup
	for _, id := range n.Instances {
		select {
		case c.lookUps <- struct{}{}:
		case <-ctx.Done():
			add(context.Cause(ctx))
			continue
		}
		one := ofOne(n, id)
		all.Go(func() {
			decided := sync.OnceFunc(func() { <-c.lookUps })
			defer decided()
			add(logging.Recover(c.Log, func() error {
				return c.handle(ctx, log, &one, func(decision.Action) { decided() })
			}))
		})
	}
	<-c.crowds
	n.Instances, n.Hosts, n.Resolved = nil, nil, nil
	all.Wait()
	return errs
}

// ofOne is the notice for one of its instances.
func ofOne(n notice.Notice, id string) notice.Notice {
	if slices.Contains(n.Resolved, id) {
		n.Ended, n.Deadline = true, time.Time{}
	}
	n.Instances, n.Hosts, n.Resolved = []string{id}, nil, nil
	return n
}

// errCrowded returns a message to the queue: it names several instances, and crowdsAtOnce
// such messages are being looked up.
var errCrowded = errors.New("too many messages that name several instances at once")

// handle does what a notice asks for its one instance. It calls decided, more than once
// maybe, when the decision is made or has failed; failed, the action is [decision.Leave].
func (c *Controller) handle(
	ctx context.Context, log logr.Logger, n *notice.Notice, decided func(decision.Action),
) error {
	log = log.WithValues("instance", n.Instances[0])
	for try := 1; ; try++ {
		changed := c.Cluster.Changed()
		t, err := c.decide(ctx, log, n, try, decided)
		if err == nil {
			err = c.act(ctx, log, t)
		}
		switch {
		case ctx.Err() == nil && errors.Is(err, nodedrain.ErrOutdated):
			continue
		case !errors.Is(err, cluster.ErrNodeGone):
			return err
		}
		// The Node was deleted, which says nothing about the instance. The watch may be behind.
		if err := pause(ctx, changed, time.Now().Add(lookup.KeptShort)); err != nil {
			return err
		}
	}
}

// A task is what is to be done about a notice for one instance. Thousands can wait at the gate with theirs, so it goes
// from function to function by its address.
type task struct {
	n     *notice.Notice
	id    string // of the instance; empty: it is about none
	found lookup.Found
	decision.Decision
}

// hook is the lifecycle action that the notice is about.
func (t *task) hook() intent.Hook { return hookOf(t.n, t.id, &t.Decision) }

// decide decides what is to be done about a notice. Where that is to wait for a Node, it waits.
func (c *Controller) decide(
	ctx context.Context, log logr.Logger, n *notice.Notice, try int, decided func(decision.Action),
) (*task, error) {
	t, err := c.resolveAndDecide(ctx, log, n, n.Instances[0], lookup.Kept)
	if err != nil {
		decided(decision.Leave)
		return nil, err
	}
	decided(t.Action)
	c.reportDecision(log, t, try > 1)
	if c.DryRun {
		return nil, errDryRun
	}
	if t.Action == decision.Hold {
		if t, err = c.awaitNode(ctx, log, t); err != nil {
			return nil, err
		}
		c.reportDecision(log, t, true)
	}
	return t, nil
}

// act does what was decided, and waits for its end. cluster.ErrNodeGone: the Node was deleted first.
func (c *Controller) act(ctx context.Context, log logr.Logger, t *task) error {
	if t.Why == decision.WhyConsequence {
		if err := c.noteConsequence(ctx, log, t); err != nil {
			return err
		}
	}
	switch t.Action {
	case decision.Leave:
		return leaveError{t.Why}
	case decision.Drop:
		switch {
		case t.n.Runs:
			return c.runsAgain(ctx, log, t)
		case t.Why == decision.WhyEarlierLife, t.Why == decision.WhyStillRuns: // so may the present drain be
			for _, ref := range t.found.Refs {
				if err := c.Registry.ForgetEarlierLife(ctx, ref); err != nil {
					return err
				}
			}
		}
		return nil
	case decision.Cordon, decision.Drain:
		return c.join(ctx, log, t)
	case decision.Undo:
		return c.undo(ctx, log, t)
	case decision.Finish:
		return c.finish(ctx, log, &t.found)
	case decision.Complete:
		return c.completeUncarried(ctx, log, t)
	case decision.Launch:
		return c.awaitReady(ctx, log, t)
	case decision.Hold, decision.Reject:
		// What waits for a Node was decided again before this; what cannot be read has no instance.
	}
	return fmt.Errorf("no way to %s", t.Action)
}

// resolveAndDecide finds out whose the instance is, and decides. It tries until it knows.
func (c *Controller) resolveAndDecide(
	ctx context.Context, log logr.Logger, n *notice.Notice, id string, maxAge time.Duration,
) (*task, error) {
	found, err := c.resolveSurely(ctx, log, n, id, maxAge)
	if err != nil {
		return nil, err
	}
	return c.decideOn(ctx, log, n, id, found)
}

// resolveSurely is [lookup.Resolver.Resolve]. It tries until it knows, and until EC2 shows what EventBridge has told
// already, which may take a moment.
func (c *Controller) resolveSurely(
	ctx context.Context, log logr.Logger, n *notice.Notice, id string, maxAge time.Duration,
) (found *lookup.Found, err error) {
	for begin := time.Now(); ; {
		err := cluster.Retry(ctx, log, "look up the instance", func(ctx context.Context) (err error) {
			found, err = c.resolver.Resolve(ctx, n, id, maxAge)
			return err
		})
		if err != nil {
			return nil, err
		}
		if !n.Gone || c.DryRun || found.State != decision.Running ||
			decision.Late(*n, time.Now()) || time.Since(begin) > decision.LateAfter {
			return found, nil
		}
		if err := pause(ctx, nil, time.Now().Add(askStateAgain)); err != nil {
			return nil, err
		}
	}
}

// decideOn decides about a notice for an instance that was looked up.
func (c *Controller) decideOn(
	ctx context.Context, log logr.Logger, of *notice.Notice, id string, found *lookup.Found,
) (*task, error) {
	n := *of
	f := decision.Facts{
		Ownership: found.Ownership, State: found.State, Launched: found.Launched, NotSpot: found.NotSpot,
		CalledOff: c.cancelled.has(n, id), Labels: found.Labels,
	}
	if c.Owns(n.Hook) && (found.Ownership == decision.Ours || found.Ownership == decision.Pending) {
		f.Limits = c.limits(ctx, log, hookOf(&n, id, &decision.Decision{}))
	}
	if n.Ended {
		c.cancelled.add(n, id)
	}
	if n.Kind == notice.ASGTerminate && c.Owns(n.Hook) && f.EarlierLife(n) {
		// Somebody may have stopped and started an instance that its group still waits for.
		err := cluster.Retry(ctx, log, "ask for the lifecycle hook", func(ctx context.Context) error {
			waits, err := c.Hooks.Waits(ctx, hookOf(&n, id, &decision.Decision{}))
			if waits {
				f.Launched = time.Time{}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if n.Kind == notice.ASGTerminate && n.Hook.Returns() && c.Owns(n.Hook) &&
		found.Ownership == decision.Ours && decision.Late(n, time.Now()) {
		err := cluster.Retry(ctx, log, "ask for the lifecycle hook", func(ctx context.Context) (err error) {
			f.HookEnded, err = c.Hooks.Ended(ctx, hookOf(&n, id, &decision.Decision{}))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	f.Drained = c.isAsDrained(ctx, n, *found)
	f.Now = time.Now()
	return &task{of, id, *found, decision.Decide(n, f, c.CurrentPolicy())}, nil
}

// reportDecision logs a decision and tells the observer. Messages that are not ours are
// logged at debug level only: in a shared queue most are of this sort. So are those whose notice the node carries
// already, as many do in a new term: each drain is resumed, and says so, once.
func (c *Controller) reportDecision(log logr.Logger, t *task, waited bool) {
	n, id, f, d := *t.n, t.id, &t.found, t.Decision
	repeated := f.Intent.Covers(d.Entry(n, time.Now()))
	if d.Why == decision.WhyIgnoredByRule || d.Why == decision.WhyNotifiedByRule {
		repeated = c.hasBeenTold(c.told, id+" "+n.ID+n.Change)
	}
	c.Observer.Decided(report.Decision{
		Notice: n, Instance: id, Node: f.Ref(), Action: d.Action, Why: d.Why, Deadline: d.Deadline, DryRun: c.DryRun,
		Rule: d.Rule, Repeated: repeated, Waited: waited,
	})
	if repeated || d.Action == decision.Leave || d.Action == decision.Drop && !d.ByFile() {
		log = log.V(1)
	}
	values := []any{"action", d.Action.String(), "why", d.Why}
	if node := f.Ref().Name; node != "" {
		values = append(values, "node", node)
	}
	if d.Rule != "" {
		values = append(values, "rule", d.Rule)
	}
	if !d.Deadline.IsZero() {
		values = append(values,
			"deadline", d.Deadline.Format(time.RFC3339), "left", time.Until(d.Deadline).Round(time.Second).String())
	}
	if c.DryRun {
		values = append(values, "dryRun", true)
	}
	log.Info("decided", values...)
}

// leaveUnknown is the verdict on a message about what is no instance, as far as we know: it is treated as one about an
// instance of somebody else.
func (c *Controller) leaveUnknown(log logr.Logger, m queue.Message, err error) error {
	action := c.CurrentPolicy().Foreign()
	c.Observer.Decided(report.Decision{Action: action, Why: decision.WhyNoInstanceID, DryRun: c.DryRun})
	if !c.hasBeenTold(c.strange, m.ID) {
		logging.Warn(log, "a message is about an id that is no instance's (logged once)",
			"why", err.Error(), "body", quoted(m.Body))
	}
	switch {
	case c.DryRun:
		return verdictOf(errDryRun)
	case action == decision.Drop:
		return nil
	}
	return verdictOf(leaveError{decision.WhyNoInstanceID})
}

// hasBeenTold reports whether people have been told of something that changes no node, and notes that they are: a poll
// finds what a rule ignores again each time, and what is left in the queue comes back.
func (c *Controller) hasBeenTold(before *lru.Cache, of string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, told := before.Get(of)
	before.Add(of, nil)
	return told
}

// quoted is the beginning of a body, safe to log.
func quoted(body string) string {
	const limit = 256
	if len(body) > limit {
		body = body[:limit]
	}
	return strconv.QuoteToASCII(body)
}
