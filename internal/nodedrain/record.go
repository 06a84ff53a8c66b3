package nodedrain

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// News are what is to be recorded on a node.
type News struct {
	Entry *intent.Entry
	Hook  *intent.Hook // nil: there is none of ours, or another Node carries it
	Why   decision.Why
	Void  func() bool // reports whether the notice is called off by now
}

// A recording is a notice on its way to a node.
type recording struct {
	*Registry
	*News
	ref    cluster.Ref
	log    logr.Logger // of the notice
	began  time.Time   // when the try had the lock of the node; zero: it has not
	begins bool        // the node was in no drain before the first try
	isNew  bool        // nor did it have the notice
}

// Record writes a notice to a node, and begins its drain, unless that has begun. It returns nil if nothing is left to
// do, and ErrOutdated if it does not succeed in the time of one try: the decision might no longer hold.
func (r *Registry) Record(ctx context.Context, log logr.Logger, ref cluster.Ref, n *News) (joined *Drain, err error) {
	p := &recording{Registry: r, News: n, ref: ref, log: log}
	trying, cancel := context.WithTimeoutCause(ctx, p.timeout(), ErrOutdated)
	defer cancel()
	err = r.Cluster.RetryWrite(trying, log, ref, "cordon the node", func(try context.Context) (err error) {
		p.began = time.Time{}
		if joined, err = p.tryOnce(ctx, try); !p.began.IsZero() {
			r.writes.note(ref, n, p.began, err)
		}
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) && try.Err() == nil {
			r.Observer.Stepped(report.Step{Node: ref, Kind: report.Cordon, Why: n.Why, Err: err})
		}
		return err
	})
	if err == nil && p.begins && joined != nil && !joined.carried().HeldBack {
		joined.tellCordoned(log.WithValues("node", ref.Name), n.Why)
	}
	return joined, err
}

// tryOnce writes the notice to the node and begins the drain, unless that has begun. It returns
// nil if the drain is finished already, or if the notice is void. It asks for the latter while it holds the lock of the
// node: whoever makes the notice void later waits for the lock, and then finds the notice recorded. The requests end
// with try; drainUnrecorded goes on with ctx.
func (p *recording) tryOnce(ctx, try context.Context) (*Drain, error) {
	d, err := p.lock(try)
	if err != nil {
		return nil, err
	}
	defer d.unlock()
	p.began = time.Now()
	if p.Void() {
		p.drop(d)
		return nil, nil
	}
	defer d.place.Recorded()
	carried, isDone, err := p.write(try, d)
	switch {
	case err != nil && !errors.Is(err, cluster.ErrNodeGone) && (p.isLate(err) || d.unrecorded.Load()):
		return nil, errors.Join(err, p.drainUnrecorded(ctx, d, err))
	case err != nil, (isDone || carried.Finished()) && (!d.started || !d.unrecorded.Load()):
		p.drop(d)
		return nil, err
	}
	if p.isNew && !isDone && !carried.HeldBack {
		p.Observer.Recorded(*p.Entry)
	}
	d.written(carried)
	switch {
	case isDone:
		return nil, nil
	case d.started:
		return d, nil
	}
	d.resumed = !p.begins // another handler has begun it: what the node carries may be of an earlier life of the machine
	return d, p.start(try, d)
}

// lock returns the drain of the node, locked. It has not ended, and is not being called off. For the end of that it
// waits until half of the notice has passed: the node may be one that cannot be written.
func (p *recording) lock(ctx context.Context) (*Drain, error) {
	for {
		d, err := p.locked(ctx, p.ref)
		if err != nil || !isClosed(d.quit.done) {
			return d, err
		}
		d.unlock() // the notice is to begin another drain
		if d, err = p.awaitCalledOff(ctx, d); d != nil || err != nil {
			return d, err
		}
	}
}

// awaitCalledOff waits for the end of a drain that is being called off, see lock. next takes its place, and is locked;
// nil: there is none.
func (p *recording) awaitCalledOff(ctx context.Context, d *Drain) (next *Drain, err error) {
	if half := p.half(); !half.IsZero() {
		waiting, stop := context.WithTimeout(ctx, max(firstTries, time.Until(half)))
		defer stop()
		if d.AwaitEnd(waiting) == nil {
			return nil, nil
		}
		if fails := !p.writes.since(p.ref).IsZero(); fails && ctx.Err() == nil && !p.Void() {
			if next = d.supersede(p.News); next != nil { // its end takes no request
				var cut context.CancelFunc
				ctx, cut = context.WithTimeout(context.WithoutCancel(ctx), firstTries)
				defer cut()
			}
		}
	}
	return d.awaitSuccession(ctx, next)
}

// drop ends the drain if it has not started: there is nothing to do.
func (p *recording) drop(d *Drain) {
	if !d.started {
		p.end(d, nil)
	}
}

// write writes the notice to the node, and returns what that carries now. isDone: also what the notice asks for. The
// caller holds the lock of the drain, and calls place.Recorded afterwards.
func (p *recording) write(ctx context.Context, d *Drain) (carried *intent.Intent, isDone bool, err error) {
	now := time.Now().UTC()
	var begins, isNew bool
	carried, err = p.Cluster.Record(ctx, p.ref, func(on intent.Intent) intent.Intent {
		i := d.orUnrecorded(on)
		begins = !on.InWork() || !i.InWork()
		isNew, isDone = !i.Covers(*p.Entry), i.Over(*p.Entry)
		if isDone {
			return i
		}
		return p.with(d, i, now)
	})
	p.begins, p.isNew = p.begins || begins, p.isNew || isNew // also where the answer to the write was lost
	return carried, isDone, err
}

// with is the intent of a node with the notice. Its drain takes a place and begins at once, unless it gets none and can
// wait; one that supersedes another does not, as half of its time has passed. The caller calls place.Recorded
// afterwards, which gives the place back where nothing was written.
func (p *recording) with(d *Drain, carried intent.Intent, now time.Time) intent.Intent {
	next := carried.With(*p.Entry, p.Hook, now)
	switch {
	case carried.InWork() || next.Finished():
	case !p.getsPlace(d, next, now) && decision.CanWait(next, now, p.Policy) && !d.supersedes.Load():
		next.HeldBack = true
	default:
		next = next.Released(now)
	}
	return p.Cluster.Joined(next)
}

// getsPlace takes a place for a node that is in no drain, if its drain may begin with its next intent. The next Node of
// a machine needs none.
func (p *recording) getsPlace(d *Drain, next intent.Intent, now time.Time) bool {
	rules := p.RulesChanged() // before they are read
	outdated := p.isOutdated(next, now)
	if p.MaxUnready == (intstr.IntOrString{}) && p.Entry.Rule == "" && !outdated {
		return true
	}
	if decision.CanWait(next, now, p.Policy) && !p.isDraining(d.ref) && (outdated || p.replacesFirst(next)) {
		return false // the first stage decides again
	}
	begins := d.place.AskToRecord(next, now).Begins
	return begins && p.RulesChanged() == rules
}

// isOutdated reports whether the rules, or the labels of the node, have changed since it was decided about the notice,
// or about what the node will carry: what is still ahead of a drain that has ended keeps the terms of then, also if the
// notice is an older one about the same scheduled change.
func (p *recording) isOutdated(next intent.Intent, now time.Time) bool {
	policy := p.CurrentPolicy()
	if rule := p.Entry.Rule; rule != "" && policy.Rules.Named(rule) == nil {
		return true
	}
	node, there := p.Cluster.Look(p.ref)
	return there && policy.IsOutdated(next, node.Labels, now)
}

// start hands the drain to Run. The caller holds the lock.
func (r *Registry) start(ctx context.Context, nd *Drain) error {
	select {
	case r.toRun <- nd:
		nd.started = true
		return nil
	case <-ctx.Done():
		r.end(nd, context.Cause(ctx))
		return context.Cause(ctx)
	}
}

// applyIntent notes the intent that the node carries now, and tells if somebody has
// uncordoned the node during the drain. With a finished intent the drain has ended.
func (d *Drain) applyIntent(i *intent.Intent) {
	before := d.carried()
	d.setIntent(*i)
	if i.Finished() {
		d.r.remove(d) // the next notice begins another drain
		return
	}
	if i.Uncordoned <= before.Uncordoned {
		return
	}
	if i.Uncordoned > 1 {
		logging.Warn(d.log, "somebody has uncordoned the node again: it stays uncordoned, although its machine goes away; "+
			"pods that come to it stay until somebody cordons it")
		d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.LeftUncordoned, Why: decision.WhyUncordonedAgain})
		return
	}
	logging.Warn(d.log, "somebody has uncordoned the node during its drain: it is cordoned again, once, "+
		"because its machine goes away")
	d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.CordonAgain, Why: decision.WhyUncordoned})
}

// firstTries is how long it is tried to write a node before its pods leave without the cordon: some of them would be
// scheduled to it again.
const firstTries = 5 * time.Second

// half is when half of the time is over that the notice leaves; zero: it has no deadline, and can wait. The hours of a
// hook that heartbeats hold open do not count: they may cease to be accepted. Nor is it waited for a termination's
// deadline that nobody knows.
func (p *recording) half() time.Time {
	half, known := p.Entry.Deadline.Sub(p.Entry.Time)/2, !p.Entry.Deadline.IsZero()
	switch {
	case p.Entry.Kind == notice.ASGTerminate && (!known || half > p.NodeGracePeriod):
		half = p.NodeGracePeriod
	case !known:
		return time.Time{}
	}
	return p.Entry.Time.Add(half)
}

// isLate reports whether the pods leave without the cordon, as a try has failed with an error: half of the notice has
// passed, and the node could not be written for a while.
func (p *recording) isLate(err error) bool {
	half, since := p.half(), p.writes.since(p.ref)
	if half.IsZero() || time.Now().Before(half) || since.IsZero() && p.writes.isBusy(p.ref, err) {
		return false
	}
	return time.Since(intent.Earlier(since, p.began)) > firstTries
}

// timeout is how long it is tried to record the notice. Pods that leave already wait for nothing.
func (p *recording) timeout() time.Duration {
	if d := p.Get(p.ref); d != nil && d.unrecorded.Load() {
		return p.Cluster.TryTimeout(p.ref)
	}
	return p.tryTimeout(p.ref, p.half())
}

// tryTimeout is how long a try to cordon a node may take. One that may take longer, since the last has hung, ends when
// half of the notice is over: the pods wait for its end. A zero half never comes: what can wait holds the lock of the
// node for no longer than usual, since a notice that cannot may come.
func (r *Registry) tryTimeout(ref cluster.Ref, half time.Time) time.Duration {
	if half.IsZero() {
		return lookup.KeptShort
	}
	return max(lookup.KeptShort, min(r.Cluster.TryTimeout(ref), time.Until(half)))
}

// drainUnrecorded drains a node that cannot be written, as where a webhook refuses every patch: its own pods may be on
// nodes that go away. The pods leave although the node is not cordoned and carries no intent, so a new leader learns of
// the drain from the message alone. Whoever has the message tries on to record the notice, and with it what has come
// meanwhile. The drain waits for that at its end, and what has come to the node until then leaves, too.
//
// The caller holds the lock since before the try that has failed, and calls place.Recorded afterwards. A drain that has
// started may have ended since. Then the next try begins another one. why is the error of the try.
func (p *recording) drainUnrecorded(ctx context.Context, d *Drain, why error) error {
	carried := d.carried()
	if on, ok := p.intentOn(d.ref); !d.started && !d.unrecorded.Load() && ok {
		carried = on
	}
	known := d.started && (carried.Covers(*p.Entry) || p.hasEnded(d))
	if known || carried.Over(*p.Entry) || p.Void() {
		p.drop(d)
		return nil
	}
	next := p.with(d, carried, time.Now().UTC())
	if next.Finished() || next.HeldBack {
		p.drop(d)
		return nil
	}
	p.Observer.Recorded(*p.Entry)
	p.isNew = false
	d.goUnrecorded(p.log.WithValues("node", d.ref.Name), next, p.Why, why)
	if d.started {
		return nil
	}
	return p.start(ctx, d)
}

// goUnrecorded has the drain go by an intent that the node does not carry, because of err. The caller holds the lock.
func (d *Drain) goUnrecorded(log logr.Logger, i intent.Intent, why decision.Why, err error) {
	how := "all the same"
	uncordoned := d.r.isUncordoned(d.ref)
	if uncordoned {
		how = "without the cordon"
		d.uncordonedFor.CompareAndSwap(nil, new(overview.Clean(kube.Why(err))))
	}
	d.uncordoned.Store(uncordoned)
	logging.Warn(log, "the node cannot be written, and its pods wait no longer: they leave "+how, "error", err)
	d.why = why
	d.unrecorded.Store(true)
	d.setIntent(i)
}

// isUncordoned reports whether the pods leave, or have left, without the cordon.
func (c *carrier) isUncordoned() bool { return c.unrecorded.Load() && c.uncordoned.Load() }

// isUncordoned reports whether a Node is there and takes pods, as the watch says.
func (c *Config) isUncordoned(ref cluster.Ref) bool {
	node, there := c.Cluster.Look(ref)
	return there && !node.Spec.Unschedulable
}

// intentOn is the intent that the node carries, as the watch says; zero where there is none, or it cannot be read.
func (c *Config) intentOn(ref cluster.Ref) (intent.Intent, bool) {
	node, there := c.Cluster.Look(ref)
	if !there {
		return intent.Intent{}, false
	}
	i, ok, err := cluster.ReadIntent(node)
	return i, ok && err == nil
}
