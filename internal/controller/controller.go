// Package controller takes a message from its arrival to its end: it has the notice read (package notice), finds out
// whose instance it is (lookup), decides (decision), and waits for the drain of each node that is affected (nodedrain).
package controller

import (
	"cmp"
	"context"
	"errors"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/queue"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// Config is what a controller is made of.
type Config struct {
	nodedrain.Config

	Instances lookup.Instances
	// StartupTaints are the keys of taints that a node loses at the end of its startup: with one of
	// them it is not ready for a launch hook to be completed. Taints whose keys begin with
	// readiness.k8s.io/ are of this sort too.
	StartupTaints []string
	// ClusterName is this cluster's name in the tags of its instances; can be empty.
	ClusterName string
	// Lease is this handler's, as namespace/name: it takes the reports of pods on nodes that name it. Empty: none.
	Lease string
	// OutOfServiceTaint puts the out-of-service taint on nodes whose instance has stopped.
	OutOfServiceTaint bool
}

const (
	// askStateAgain is when EC2 is asked again after it has contradicted a new notice.
	askStateAgain = 5 * time.Second
	// lookUpsAtOnce bounds the look-ups for messages that name several instances: of those with a Node, and of the
	// others. A body can name thousands, and EC2 takes 200 in one request.
	lookUpsAtOnce = 200
	// crowdsAtOnce bounds the messages that are looked up at once and name several
	// instances. Each holds 150 KB of ids at most.
	crowdsAtOnce = 64
	// mostTold bounds the notices that told remembers: there are more of them than nodes in the largest cluster.
	mostTold = 8192
	// mostStrange bounds the messages that strange remembers.
	mostStrange = 1024
)

// A Controller handles the messages of the queue during one term of leadership: [Controller.Run]
// carries out what [Controller.Handle] begins. Its methods may be called concurrently.
type Controller struct {
	Config

	Registry *nodedrain.Registry

	resolver   *lookup.Resolver
	cancelled  cancelledChanges
	lookUps    chan struct{} // a semaphore, see lookUpsAtOnce
	ownLookUps chan struct{} // the same, for instances with a Node
	crowds     chan struct{} // a semaphore, see crowdsAtOnce
	awaited    sync.Map      // deadlines by *task, of the hooks that no drain is about: of launches, and without a Node
	nodeless   sync.Map      // overview.Held by *task, of those that wait for a Node
	uncarried  sync.Map      // intent.Hook by *task, of those that are completed and that no drain carries
	told       *report.Told  // the notices that change no node, as a rule says
	strange    *report.Told  // the messages about ids that are no instance's
}

// New returns a controller that begins with Run.
func New(cfg Config) *Controller {
	cfg.Lookup = &lookup.Lookup{Instances: cfg.Instances, Needed: cfg.ManagedTag != "", Log: cfg.Log}
	resolver := lookup.NewResolver(cfg.Lookup, cfg.Cluster, cfg.Policy)
	resolver.ClusterName, resolver.StartupTaints = cfg.ClusterName, cfg.StartupTaints
	resolver.Observer, resolver.DryRun = cfg.Observer, cfg.DryRun
	cancelled := newCancelledChanges()
	cfg.Cancelled = cancelled.hasEntry
	return &Controller{
		Config:    cfg,
		Registry:  nodedrain.New(cfg.Config),
		resolver:  resolver,
		cancelled: cancelled,
		told:      report.NewTold(mostTold),
		strange:   report.NewTold(mostStrange),
		lookUps:   make(chan struct{}, lookUpsAtOnce), ownLookUps: make(chan struct{}, lookUpsAtOnce),
		crowds: make(chan struct{}, crowdsAtOnce),
	}
}

// Run carries out what Handle begins, after the drains that the nodes carry from an earlier leader. It returns the
// cause of ctx when ctx ends. Nothing is written after it has returned.
func (c *Controller) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	if !c.DryRun && !c.OnNode { // also those of a time when the option was on
		beside.Go(func() { c.takeTaintsBack(ctx) })
	}
	if !c.DryRun && !c.OnNode && c.Lease != "" {
		beside.Go(func() {
			select {
			case <-c.Registry.Resumed(): // limits count what resumes
				c.handleReports(ctx)
			case <-ctx.Done():
			}
		})
	}
	return c.Registry.Run(ctx)
}

// Load returns what is in progress. It may be called at any time.
func (c *Controller) Load() report.Load {
	l := c.Registry.Load()
	c.awaited.Range(func(_, deadline any) bool {
		l.Hooks++
		l.HookDeadline = intent.Earlier(l.HookDeadline, deadline.(time.Time))
		return true
	})
	return l
}

// Held are the messages about instances whose Nodes are waited for. It may be called at any time.
func (c *Controller) Held() (all []overview.Held) {
	c.nodeless.Range(func(_, held any) bool {
		all = append(all, held.(overview.Held))
		return true
	})
	slices.SortFunc(all, func(a, b overview.Held) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Instance, b.Instance))
	})
	return all
}

// Unseen names a lifecycle hook that no drain carries and whose completion fails, and says why; empty: there is none.
// It may be called at any time.
func (c *Controller) Unseen() (what string) {
	c.uncarried.Range(func(_, value any) bool {
		h := value.(intent.Hook)
		if err := c.Hooks.Failure(h); err != nil {
			what = "the end of lifecycle hook " + h.Group + "/" + h.Name + " of " + h.Instance + ": " + err.Error()
		}
		return what == ""
	})
	return what
}

// Handle does what a message asks for, and returns when that is done. nil means that the
// message can be deleted. Handle may be called again for the same message, in any order with
// other messages, and by another process.
func (c *Controller) Handle(ctx context.Context, m queue.Message) error {
	log := c.Log.WithValues("message", m.ID)
	n, err := c.read(log, m)
	if n == nil || err != nil {
		return verdictOf(err)
	}
	m.Release() // what follows may take hours
	defer pprof.SetGoroutineLabels(ctx)
	ctx = pprof.WithLabels(ctx, pprof.Labels("message", m.ID))
	pprof.SetGoroutineLabels(ctx)
	log = log.WithValues("kind", n.Kind, "event", n.ID)
	switch {
	case hasMembers(n):
		return verdictOf(c.handleMembers(ctx, log, *n)...)
	case len(n.Instances) != 1:
		return verdictOf(c.handleAll(ctx, log, *n)...)
	}
	return verdictOf(c.handle(ctx, log, n, func(decision.Action) {}))
}

// read reads the notice of a message; nil: it asks for nothing, or cannot be read, and the error says so.
func (c *Controller) read(log logr.Logger, m queue.Message) (*notice.Notice, error) {
	n, err := notice.Parse(m.Body)
	if errors.Is(err, notice.ErrInstanceID) {
		return nil, c.leaveUnknown(log, m, err)
	}
	if err != nil {
		c.Observer.Decided(report.Decision{Action: decision.Reject, Why: decision.WhyUndecodable, DryRun: c.DryRun})
		if c.DryRun {
			logging.Warn(log, "a message cannot be read", "error", err, "body", quoted(m.Body))
			return nil, errDryRun
		}
		return nil, queue.Reject(err) // the queue logs it, and not at each delivery
	}
	if n.Kind == notice.Ignored {
		c.Observer.Decided(report.Decision{Notice: n, Action: decision.Drop, Why: decision.Why(n.Ignored), DryRun: c.DryRun})
		log.V(1).Info("a message asks for nothing", "why", n.Ignored)
		if c.DryRun {
			return nil, errDryRun
		}
		return nil, nil
	}
	// Without a time it would be a new notice at each delivery, and with one from the future it would never be late.
	if n.Time.IsZero() || !m.Sent.IsZero() && n.Time.After(m.Sent) {
		n.Time = m.Sent
	}
	if len(n.Instances) == 1 && len(n.Hosts) == 0 {
		n = ofOne(n, n.Instances[0])
	}
	return &n, nil
}

// handle does what a notice asks for its one instance. It calls decided, more than once
// maybe, when the decision is made or has failed; failed, the action is [decision.Leave].
func (c *Controller) handle(
	ctx context.Context, log logr.Logger, n *notice.Notice, decided func(decision.Action),
) error {
	log = log.WithValues("instance", n.Instances[0])
	for try := 1; ; try++ {
		changed := c.Cluster.Changed()
		t, err := c.decideAndAwaitNode(ctx, log, n, try, decided)
		if err == nil {
			err = t.act(ctx)
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

// decideAndAwaitNode decides what is to be done about a notice. Where that is to wait for a Node, it waits.
func (c *Controller) decideAndAwaitNode(
	ctx context.Context, log logr.Logger, n *notice.Notice, try int, decided func(decision.Action),
) (*task, error) {
	t := &task{c: c, log: log, n: n, id: n.Instances[0]}
	err := t.decide(ctx, lookup.Kept)
	if err != nil {
		decided(decision.Leave)
		return nil, err
	}
	decided(t.Action)
	t.report(try > 1)
	if c.DryRun {
		return nil, errDryRun
	}
	if t.Action == decision.Hold {
		if t, err = t.awaitNode(ctx); err != nil {
			return nil, err
		}
		t.report(true)
	}
	return t, nil
}

// A task is what is to be done about a notice for one instance. Thousands wait with theirs.
type task struct {
	c     *Controller
	log   logr.Logger
	n     *notice.Notice
	id    string // of the instance; empty: it is about none
	found lookup.Found
	decision.Decision
}

// hook is the lifecycle action that the notice is about.
func (t *task) hook() intent.Hook {
	h := hookOf(t.n, t.id)
	h.Deadline, h.Assumed = t.Deadline, t.Assumed
	return h
}

// hookOf is the lifecycle action of a notice for an instance; nobody knows yet how long it waits.
func hookOf(n *notice.Notice, id string) intent.Hook {
	return intent.Hook{
		Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: id, Started: n.HappenedAt(time.Now()),
	}
}

// again is the task as it is decided now.
func (t *task) again(ctx context.Context) (*task, error) {
	next := &task{c: t.c, log: t.log, n: t.n, id: t.id}
	return next, next.decide(ctx, lookup.KeptShort)
}

// report logs the decision and tells the observer. Messages that are not ours are
// logged at debug level only: in a shared queue most are of this sort. So are those whose notice the node carries
// already, as many do in a new term: each drain is resumed, and says so, once.
func (t *task) report(waited bool) {
	n, d, log := *t.n, t.Decision, t.log
	repeated := t.found.Intent.Covers(d.Entry(n, time.Now()))
	if d.Why == decision.WhyIgnoredByRule || d.Why == decision.WhyNotifiedByRule {
		repeated = t.c.told.Before(t.id + " " + t.n.ID + t.n.Change)
	}
	t.c.Observer.Decided(report.Decision{
		Notice: n, Instance: t.id, Node: t.found.Ref(), Action: d.Action, Why: d.Why, Rule: d.Rule,
		Deadline: d.Deadline, DryRun: t.c.DryRun, Repeated: repeated, Waited: waited,
	})
	if repeated || d.Action == decision.Leave || d.Action == decision.Drop && !d.ByFile() {
		log = log.V(1)
	}
	values := []any{"action", d.Action.String(), "why", d.Why}
	if node := t.found.Ref().Name; node != "" {
		values = append(values, "node", node)
	}
	if d.Rule != "" {
		values = append(values, "rule", d.Rule)
	}
	if !d.Deadline.IsZero() {
		values = append(values, "left", time.Until(d.Deadline).Round(time.Second).String())
	}
	if t.c.DryRun {
		values = append(values, "dryRun", true)
	}
	logging.Deadline(log, d.Deadline).Info("decided", values...)
}

// leaveUnknown is the verdict on a message about what is no instance, as far as we know. It is never deleted: the id
// may be of a form that is newer than this release.
func (c *Controller) leaveUnknown(log logr.Logger, m queue.Message, err error) error {
	c.Observer.Decided(report.Decision{Action: decision.Leave, Why: decision.WhyNoInstanceID, DryRun: c.DryRun})
	if !c.strange.Before(m.ID) {
		logging.Warn(log, "a message is about an id that is no instance's: it is left in the queue (logged once)",
			"error", err, "body", quoted(m.Body))
	}
	if c.DryRun {
		return errDryRun
	}
	return leaveError{decision.WhyNoInstanceID}
}

// quoted is the beginning of a body, safe to log.
func quoted(body string) string {
	const limit = 256
	if len(body) > limit {
		body = body[:limit]
	}
	return strconv.QuoteToASCII(body)
}

// errDryRun leaves a message alone because nothing may be written.
var errDryRun error = leaveError{decision.WhyDryRun}

// leaveError leaves a message to other readers of the queue.
type leaveError struct{ why decision.Why }

func (e leaveError) Error() string { return string(e.why) }

// Reason is the error as a metric label.
func (e leaveError) Reason() string { return string(e.why) }

func isLeave(err error) bool {
	_, left := errors.AsType[leaveError](err)
	return left
}

// verdictOf is the answer to the queue for a message, given the error for each of its
// instances. One failure returns the message to the queue; one instance that is not ours
// leaves the message to other readers.
func verdictOf(errs ...error) error {
	var left error
	for _, err := range errs {
		if isLeave(err) {
			left = queue.Leave(err)
		} else if err != nil {
			return err
		}
	}
	return left
}

// hasMembers reports whether only EC2 can say which instances the notice is about: those of a Capacity Block, or those
// on Dedicated Hosts.
func hasMembers(n *notice.Notice) bool {
	return n.Kind == notice.CapacityBlockExpiration || len(n.Hosts) > 0
}

// handleMembers does what the end of a Capacity Block, or the change of a host, asks for each of its instances, as if
// the notice named them. The message is held for that of all their Nodes.
// After a crash it is delivered again, and EC2 is asked again: then it finds the drains that
// the Nodes carry, and what is left to do.
func (c *Controller) handleMembers(ctx context.Context, log logr.Logger, n notice.Notice) []error {
	if n.Reservation != "" {
		log = log.WithValues("reservation", n.Reservation)
	}
	n, ownership, err := c.withMembers(ctx, log, n)
	if err != nil {
		return []error{err}
	}
	if len(n.Hosts) > 0 {
		log.V(1).Info("the notice is about Dedicated Hosts", "hosts", n.Hosts, "instances", len(n.Instances))
	}
	if len(n.Instances) > 0 {
		errs := c.handleAll(ctx, log, n)
		if ownership == decision.Unknown { // those on the hosts remain to be asked for
			errs = append(errs, leaveError{decision.WhyUnknown})
		}
		return errs
	}
	d := decision.Decide(n, decision.Facts{Ownership: ownership, Now: time.Now()}, c.Policy)
	t := &task{c: c, log: log, n: &n, found: lookup.Found{Ownership: ownership}, Decision: d}
	t.report(false)
	if c.DryRun {
		return []error{errDryRun}
	}
	return []error{t.act(ctx)}
}

// withMembers adds the instances of a Capacity Block, or those on the hosts, to the notice. If there are
// none, ownership says why.
func (c *Controller) withMembers(
	ctx context.Context, log logr.Logger, n notice.Notice,
) (with notice.Notice, ownership decision.Ownership, err error) {
	if c.Elsewhere(n) {
		c.resolver.WarnOfOtherAccount(n)
		return n, decision.Elsewhere, nil
	}
	var found []instance.Instance
	ownership = decision.Foreign
	err = cluster.Retry(ctx, log, "look up which instances the notice is about", func(ctx context.Context) error {
		err := c.Lookup.Permitted(ctx, func() (err error) {
			found, err = c.Lookup.MembersOf(ctx, &n)
			return err
		})
		if errors.Is(err, instance.ErrDenied) && c.ManagedTag == "" {
			ownership = decision.Unknown
			return nil
		}
		return err
	})
	n.Instances = slices.Clone(n.Instances)
	for _, i := range found {
		if slices.Contains(n.Instances, i.ID) {
			continue
		}
		n = n.OnType(i.Type) // all of a block have the same
		n.Instances = append(n.Instances, i.ID)
		if slices.Contains(n.Resolved, i.Host) {
			n.Resolved = append(n.Resolved, i.ID)
		}
	}
	return n, ownership, err
}

// handleAll does what a notice asks for each of several instances: first for those with Nodes, as EC2 might not
// answer about others. It returns one error of each sort. While the drains go on it keeps nothing of the notice in
// memory.
func (c *Controller) handleAll(ctx context.Context, log logr.Logger, n notice.Notice) (errs []error) {
	select {
	case c.crowds <- struct{}{}:
	default:
		return []error{errCrowded}
	}
	var ids, others []string
	for _, id := range n.Instances {
		if len(c.Cluster.ByInstance(id)) > 0 {
			ids = append(ids, id)
		} else {
			others = append(others, id)
		}
	}
	own := len(ids)
	ids = append(ids, others...)
	came := make([]error, len(ids)) // of each instance
	var all sync.WaitGroup
	for k, id := range ids {
		slots := c.lookUps
		if k < own {
			slots = c.ownLookUps
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			came[k] = context.Cause(ctx)
			continue
		}
		decided := sync.OnceFunc(func() { <-slots })
		one := ofOne(n, id)
		all.Go(func() {
			defer decided()
			came[k] = logging.Recover(c.Log, func() error {
				return c.handle(ctx, log, &one, func(decision.Action) { decided() })
			})
		})
	}
	<-c.crowds
	n.Instances, n.Hosts, n.Resolved = nil, nil, nil
	all.Wait()
	for _, err := range came {
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return isLeave(e) == isLeave(err) }) {
			errs = append(errs, err)
		}
	}
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
