// Package controller is what a notice means for this cluster: whose instance it
// is, what to do, and the one drain that every affected node has.
package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// Instances tells what EC2 knows of an instance. An answer may be as old as
// maxAge. found is false when EC2 does not know the id; an error says nothing.
type Instances interface {
	Get(ctx context.Context, id string, maxAge time.Duration) (i instance.Instance, found bool, err error)
}

// Hooks speaks to Auto Scaling about lifecycle hooks; see package asg.
type Hooks interface {
	Limits(ctx context.Context, h asg.Hook) (asg.Limits, error)
	Hold(ctx context.Context, h asg.Hook, started time.Time)
	Complete(ctx context.Context, h asg.Hook) error
}

// Drainer gets the pods off a node; see package drain.
type Drainer interface {
	Drain(ctx context.Context, o pods.Order) (pods.Result, error)
}

// Observer is told what happens. Its methods are called concurrently, and must
// not block; action, step and why are of closed sets.
type Observer interface {
	// Decided is called for each decision about an instance, and for each message that names none.
	Decided(d telemetry.Decision)
	// Node is called when a step of the work on a node was done, and each time that it failed.
	Node(ref cluster.Ref, step, why string, err error)
	// Drained is called when the pods of a node have left, or its deadline (zero:
	// it has none) has come.
	Drained(ref cluster.Ref, r pods.Result, took time.Duration, deadline time.Time)
}

// Metrics counts how the work on nodes goes. Its methods are called concurrently,
// and must not block.
type Metrics interface {
	// Cordoned counts a notice that its node, cordoned, carries from now on.
	Cordoned(e cluster.Entry)
	// Ended counts a drain, with the intent that its node had then. gone: nothing
	// runs on the machine any more.
	Ended(i cluster.Intent, r pods.Result, gone bool)
}

// The steps of the work on a node, by the values that the label node_action has
// in the metrics of AWS Node Termination Handler.
const (
	StepCordon   = "cordon"
	StepUncordon = "uncordon"
	StepHoldBack = "hold-back" // not one of its
)

// Controller handles the messages of the queue. Its fields are set before Run.
type Controller struct {
	Cluster   *cluster.Cluster
	Instances Instances
	Hooks     Hooks
	Drainer   Drainer
	Observer  Observer
	Metrics   Metrics
	Log       logr.Logger

	Policy
	// Account and Region are those of the queue; notices of others are foreign.
	// Empty: not known, not compared.
	Account, Region string
	// ManagedTag must be on an instance for its notices to be acted on. Empty: no tag check.
	ManagedTag string
	// ClusterName is this cluster's name in the tags of its instances; can be empty.
	ClusterName string
	// DryRun decides and logs, and writes nothing.
	DryRun bool
	// CompletionDelay is waited between the end of a drain and the completion of its hooks.
	CompletionDelay time.Duration
	// OutOfServiceTaint puts the out-of-service taint on nodes whose instance has stopped.
	OutOfServiceTaint bool
	// Workers bounds the drains that are not urgent and run at once; 0: no bound.
	Workers int

	once      sync.Once
	begin     chan *work    // works for Run to carry out
	resumed   chan struct{} // closed when the intents of the leader before are under way
	slots     chan struct{} // nil: no bound
	restraint *restraint    // nil: no bound
	calledOff changes

	mu       sync.Mutex
	works    map[cluster.Ref]*work
	denied   error     // the last answer of EC2, if the role may not ask and need not
	askAgain time.Time // when it may have changed
	// awaited has the deadline of each open hook that no work is about: those of
	// launches, and of instances that have no Node yet.
	awaited map[*time.Time]bool
}

const (
	// settled is how old EC2's answer may be where it hardly changes any more:
	// whose an instance is. unsettled is for one whose Node is waited for.
	settled   = 10 * time.Minute
	unsettled = 15 * time.Second
	// What fails is tried again after firstPause, then twice that, to lastPause.
	firstPause = 500 * time.Millisecond
	lastPause  = 10 * time.Second
	// lookUpsAtOnce bounds how many instances of one message are looked up at once: a
	// body can name ten thousand, and EC2 takes 200 in one question.
	lookUpsAtOnce = 200
	// tryTimeout bounds one try, so that a peer that hangs costs no more than it.
	tryTimeout = 15 * time.Second
)

// init makes what the methods share; the first of them calls it.
func (c *Controller) init() {
	c.once.Do(func() {
		c.begin = make(chan *work)
		c.resumed = make(chan struct{})
		c.works = map[cluster.Ref]*work{}
		c.awaited = map[*time.Time]bool{}
		c.calledOff = newChanges()
		if c.Workers > 0 {
			c.slots = make(chan struct{}, c.Workers)
		}
		if c.MaxUnready != (intstr.IntOrString{}) {
			c.restraint = &restraint{
				most: c.mostUnready, outOfUse: c.Cluster.OutOfUse,
				taken: map[types.UID]time.Time{}, waiting: map[types.UID]time.Time{},
			}
		}
	})
}

// Handle does what a message asks for, and returns when that is done: nil when
// the message is of no more use. It may be called again for the same message, in
// any order with others, before or after the process was replaced.
func (c *Controller) Handle(ctx context.Context, m queue.Message) error {
	c.init()
	log := c.Log.WithValues("message", m.ID)
	n, err := notice.Parse(m.Body)
	if err != nil {
		c.Observer.Decided(telemetry.Decision{Action: actionReject, Why: string(WhyUndecodable), DryRun: c.DryRun})
		if c.DryRun {
			log.Info("a message cannot be read", "why", err.Error(), "body", quoted(m.Body))
			return settle(errDryRun)
		}
		return queue.Reject(err) // the queue logs it, and not at each delivery
	}
	if n.Kind == notice.Ignored {
		c.Observer.Decided(telemetry.Decision{Notice: n, Action: drop.String(), Why: string(n.Ignored), DryRun: c.DryRun})
		log.V(1).Info("a message asks for nothing", "why", n.Ignored)
		if c.DryRun {
			return settle(errDryRun)
		}
		return nil
	}
	log = log.WithValues("kind", n.Kind, "event", n.ID)
	if len(n.Instances) == 1 {
		return settle(c.handle(ctx, log, n, n.Instances[0], func() {}))
	}
	errs := make([]error, len(n.Instances))
	looking := make(chan struct{}, lookUpsAtOnce)
	var all sync.WaitGroup
	for k, id := range n.Instances {
		looking <- struct{}{}
		all.Go(func() { errs[k] = c.handle(ctx, log, n, id, func() { <-looking }) })
	}
	all.Wait()
	return settle(errs...)
}

// handle does what a notice asks for one of its instances. It calls considered
// when it knows, or has given up to know, what that is.
func (c *Controller) handle(ctx context.Context, log logr.Logger, n notice.Notice, id string, considered func()) error {
	log = log.WithValues("instance", id)
	found, d, err := c.consider(ctx, log, n, id, settled)
	considered()
	if err != nil {
		return err
	}
	c.tell(log, n, id, found, d, false)
	if c.DryRun {
		return errDryRun
	}
	if d.action != leave && d.action != drop {
		ctx = trace.Open(ctx, n.Kind.String(), "event", n.ID, "account", n.Account, "region", n.Region, "happened", n.Time)
		trace.SinceReceive(ctx, "resolve", "instance", id, "node", found.ref.Name, "action", d.action, "why", d.why, "deadline", d.deadline)
	}
	if d.action == hold {
		if found, d, err = c.awaitNode(ctx, log, n, id, d); err != nil {
			return err
		}
		c.tell(log, n, id, found, d, true)
	}
	switch d.action {
	case leave:
		return leftError{d.why}
	case drop, hold:
		return nil
	case cordon, drain:
		return c.join(ctx, log, n, id, found.ref, d)
	case undo:
		return c.undo(ctx, log, n, found.ref)
	case finish:
		return c.finish(ctx, log, found.ref)
	case complete:
		return c.complete(ctx, hookOf(n, id, d))
	case launch:
		return c.awaitReady(ctx, log, n, id, d)
	}
	return nil
}

// consider finds out whose the instance is, and decides. It tries until it knows.
func (c *Controller) consider(ctx context.Context, log logr.Logger, n notice.Notice, id string, maxAge time.Duration) (finding, decision, error) {
	var found finding
	err := c.persist(ctx, log, "look up the instance", func(ctx context.Context) (err error) {
		found, err = c.find(ctx, n, id, maxAge)
		return err
	})
	if err != nil {
		return found, decision{}, err
	}
	f := facts{whose: found.whose, calledOff: c.calledOff.has(n, id)}
	if c.owns(n.Hook) && (found.whose == ours || found.whose == pending) {
		f.limits = c.limits(ctx, log, hookOf(n, id, decision{}))
	}
	if n.Ended {
		c.calledOff.add(n, id)
	}
	f.now = time.Now()
	return found, decide(n, f, c.Policy), nil
}

// limits reads the limits of a hook; zero where that fails, or takes too long
// for a node that waits to be cordoned.
func (c *Controller) limits(ctx context.Context, log logr.Logger, hook asg.Hook) asg.Limits {
	ctx, cancel := context.WithTimeout(ctx, lastPause)
	defer cancel()
	limits, err := c.Hooks.Limits(ctx, hook)
	if err != nil {
		log.V(1).Info("the hook cannot be read", "why", err.Error())
	}
	return limits
}

// tell logs and counts a decision. What is not ours is no line in the log: in a
// shared queue that is most of what comes.
func (c *Controller) tell(log logr.Logger, n notice.Notice, id string, f finding, d decision, waited bool) {
	c.Observer.Decided(telemetry.Decision{
		Notice: n, Instance: id, Node: f.ref, Action: d.action.String(), Why: string(d.why), Deadline: d.deadline, DryRun: c.DryRun,
		Repeated: f.intent.Covers(entryOf(n, d)), Waited: waited,
	})
	level := 0
	if d.action == leave || d.action == drop {
		level = 1
	}
	values := []any{"action", d.action.String(), "why", d.why}
	if f.ref.Name != "" {
		values = append(values, "node", f.ref.Name)
	}
	if !d.deadline.IsZero() {
		values = append(values, "deadline", d.deadline.Format(time.RFC3339), "left", time.Until(d.deadline).Round(time.Second).String())
	}
	if c.DryRun {
		values = append(values, "dryRun", true)
	}
	log.V(level).Info("decided", values...)
}

// actionReject is what is decided about a body that says nothing.
const actionReject = "reject"

// quoted is the beginning of a body, safe to log.
func quoted(body string) string {
	const limit = 256
	if len(body) > limit {
		body = body[:limit]
	}
	return strconv.QuoteToASCII(body)
}

// errDryRun leaves a message alone because nothing may be written.
var errDryRun error = leftError{WhyDryRun}

// leftError leaves a message to others.
type leftError struct{ why Why }

func (e leftError) Error() string { return string(e.why) }

// Reason is the error as a metric label.
func (e leftError) Reason() string { return string(e.why) }

// settle is the answer to the queue for a message, given how it ended for each
// of its instances: one failure brings it back, one that is somebody else's
// leaves it to them.
func settle(errs ...error) error {
	var left error
	for _, err := range errs {
		if _, ok := errors.AsType[leftError](err); ok {
			left = queue.Leave(err)
		} else if err != nil {
			return err
		}
	}
	return left
}

// complete completes a hook; see Hooks.
func (c *Controller) complete(ctx context.Context, h asg.Hook) error {
	ctx, span := trace.Begin(ctx, "complete hook", "group", h.Group, "hook", h.Name, "instance", h.Instance)
	err := c.Hooks.Complete(ctx, h)
	span.End(err)
	return err
}

func hookOf(n notice.Notice, id string, d decision) asg.Hook {
	return asg.Hook{Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: id, Deadline: d.deadline}
}

// persist tries until it works or ctx ends, which returns an error with the cause.
// The message is held all the while: to give it back would spend its receives.
func (c *Controller) persist(ctx context.Context, log logr.Logger, doing string, try func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, tryTimeout)
			defer cancel()
			return try(ctx)
		}()
		if err == nil || errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
		if ctx.Err() == nil {
			log.Error(err, "trying again", "doing", doing, "in", pause.String())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (the last try: %w)", doing, context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}
