package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// ErrGiveWay is returned by Run when the pod of this program is the last on a
// node that is being drained: whoever leads next has to finish that.
var ErrGiveWay = errors.New("this pod is the last on its node")

var (
	errNodeGone = errors.New("nothing runs on the node any more")
	errUndone   = errors.New("the scheduled change was called off")
)

// work is what is under way for one node: its one drain. It exists from the
// first notice (or from the resumption of an intent) to the end.
type work struct {
	ref   cluster.Ref
	since time.Time
	gone  signal        // nothing runs on the node any more
	quit  signal        // the work was called off
	done  chan struct{} // closed at the end; err is set then
	err   error

	// turn holds a value while somebody writes to the node; see take. It guards
	// started and span.
	turn    chan struct{}
	started bool
	span    trace.Span // of the work, in the trace of the notice that has started it
	over    bool       // guarded by Controller.mu

	mu     sync.Mutex
	intent cluster.Intent // as the node carries it
	empty  bool           // the pods have left, or are not waited for any more
	// changed is closed and replaced when the intent has changed.
	changed chan struct{}
}

// take waits for the turn to write to the node, or returns the cause of ctx. The
// caller gives it back with giveBack. It is no mutex, because it is held for as
// long as the API server takes to answer.
func (w *work) take(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *work) giveBack() { <-w.turn }

// on returns the node's work, a new one if there is none.
func (c *Controller) on(ref cluster.Ref) *work {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[ref]
	if w == nil {
		w = &work{
			ref:     ref,
			since:   time.Now(),
			gone:    newSignal(),
			quit:    newSignal(),
			done:    make(chan struct{}),
			turn:    make(chan struct{}, 1),
			changed: make(chan struct{}),
		}
		c.works[ref] = w
	}
	return w
}

// underWay returns the node's work; nil if there is none.
func (c *Controller) underWay(ref cluster.Ref) *work {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.works[ref]
}

// end takes the work out of the books.
func (c *Controller) end(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.over = true
	if c.works[w.ref] == w {
		delete(c.works, w.ref)
		c.restraint.leaves(w.ref.UID)
	}
}

func (c *Controller) isOver(w *work) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return w.over
}

// update takes in the intent that the node carries now.
func (w *work) update(i cluster.Intent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.intent = i
	close(w.changed)
	w.changed = make(chan struct{})
}

// now returns the intent, and what is closed when it changes.
func (w *work) now() (cluster.Intent, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intent, w.changed
}

// heldBack reports whether the node is not touched so far. There may be no work.
func (w *work) heldBack() bool {
	if w == nil {
		return false
	}
	intent, _ := w.now()
	return intent.HeldBack
}

// signal is given once, however often.
type signal struct {
	given chan struct{} // closed then
	once  *sync.Once
}

func newSignal() signal { return signal{make(chan struct{}), new(sync.Once)} }

func (s signal) give() { s.once.Do(func() { close(s.given) }) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// join makes the node carry the notice, and waits for the end of the node's work.
func (c *Controller) join(ctx context.Context, log logr.Logger, n notice.Notice, id string, ref cluster.Ref, d decision) error {
	entry := entryOf(n, d)
	entry.Trace = trace.Carry(ctx)
	var hook *cluster.Hook
	if c.owns(n.Hook) {
		hook = &cluster.Hook{Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: n.Instances[0], Started: entry.Time}
	}
	var w *work
	_, span := trace.Begin(ctx, "cordon", "node", ref.Name)
	err := c.persist(ctx, log, "cordon the node", func(ctx context.Context) (err error) {
		w, err = c.record(ctx, ref, entry, hook, func() bool { return c.calledOff.has(n, id) })
		if ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) && !w.heldBack() {
			c.Observer.Node(ref, StepCordon, string(d.why), err)
		}
		return err
	})
	span.End(err)
	switch {
	case errors.Is(err, cluster.ErrNodeGone) && hook != nil:
		return c.complete(ctx, hookOf(n, hook.Instance, d))
	case errors.Is(err, cluster.ErrNodeGone):
		return nil
	case err != nil:
		return err
	case w == nil:
		log.V(1).Info("nothing is left to do for this event", "node", ref.Name)
		return nil
	}
	var patience <-chan time.Time
	if !d.patience.IsZero() {
		timer := time.NewTimer(time.Until(d.patience))
		defer timer.Stop()
		patience = timer.C
	}
	select {
	case <-w.done:
		return w.err
	case <-patience:
		log.Info("the drain goes on without its message: the node carries the intent", "node", ref.Name)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func entryOf(n notice.Notice, d decision) cluster.Entry {
	entry := cluster.Entry{Kind: n.Kind, Change: n.Change, Time: began(n, time.Now()), Deadline: d.deadline}
	if n.ID != "" {
		entry.IDs = []string{n.ID}
	}
	return entry
}

// record writes a notice to the node and sees to it that its work is under way.
// It returns nil when that is finished already, or when the notice turns out to
// be void, which is asked when it has the turn: whoever makes it void later has
// the turn later, and finds it recorded.
func (c *Controller) record(ctx context.Context, ref cluster.Ref, entry cluster.Entry, hook *cluster.Hook, void func() bool) (*work, error) {
	for {
		w := c.on(ref)
		if err := w.take(ctx); err != nil {
			return nil, err
		}
		if c.isOver(w) { // it ended while we waited for it
			w.giveBack()
			continue
		}
		defer w.giveBack()
		if void() {
			if !w.started {
				c.abandon(w, nil)
			}
			return nil, nil
		}
		now := time.Now().UTC()
		repeated := false
		intent, err := c.Cluster.Record(ctx, ref, func(i cluster.Intent) cluster.Intent {
			repeated = i.Covers(entry)
			return c.restrain(ref, i, i.With(entry, hook, now), now)
		})
		if err != nil || intent.Finished() {
			if !w.started {
				c.abandon(w, nil)
			}
			return nil, err
		}
		if !repeated && !intent.HeldBack {
			c.Metrics.Cordoned(entry)
		}
		w.update(intent)
		if w.started {
			w.span.Join(ctx)
			return w, nil
		}
		_, span := trace.Begin(ctx, "drain", "node", ref.Name, "instance", ref.Instance)
		return w, c.start(ctx, w, span)
	}
}

// start hands a work to Run, as span. The caller has the turn.
func (c *Controller) start(ctx context.Context, w *work, span trace.Span) error {
	w.span = span
	if !w.heldBack() {
		c.restraint.takes(w.ref.UID)
	}
	select {
	case c.begin <- w:
		w.started = true
		return nil
	case <-ctx.Done():
		c.abandon(w, context.Cause(ctx))
		return context.Cause(ctx)
	}
}

// abandon ends a work that never started: there may be some who wait for its
// end. The caller has the turn.
func (c *Controller) abandon(w *work, err error) {
	c.end(w)
	w.span.End(err)
	w.err = err
	close(w.done)
}

// Resumed is closed when all that a leader before us left unfinished is under way.
func (c *Controller) Resumed() <-chan struct{} {
	c.init()
	return c.resumed
}

// Run carries out the works of nodes: first those that the nodes carry, then
// those that Handle starts. It returns when ctx ends, with its cause, or with
// ErrGiveWay; in both cases nothing is written any more after it has returned.
func (c *Controller) Run(ctx context.Context) error {
	c.init()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.resume(ctx) })
	if c.OutOfServiceTaint {
		all.Go(func() { c.welcomeBack(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case w := <-c.begin:
			all.Go(func() {
				err := c.carryOut(w.span.In(ctx), w)
				c.end(w)
				w.span.End(err)
				w.err = err
				close(w.done)
				if errors.Is(err, ErrGiveWay) {
					stop(ErrGiveWay)
				} else if err != nil && ctx.Err() == nil {
					c.Log.Error(err, "the work on a node ended early: its messages bring it back", "node", w.ref.Name)
				}
			})
		}
	}
}

// resume starts the works that nodes carry from an earlier leader.
func (c *Controller) resume(ctx context.Context) {
	if c.DryRun {
		close(c.resumed)
		return
	}
	var left map[cluster.Ref]cluster.Intent
	err := c.persist(ctx, c.Log, "list the nodes to go on with", func(ctx context.Context) (err error) {
		left, err = c.Cluster.Unfinished(ctx)
		if len(left) > 0 && err != nil {
			c.Log.Error(err, "an intent cannot be read")
			err = nil
		}
		return err
	})
	if err != nil {
		return
	}
	for ref, intent := range left {
		c.Log.Info("going on with what the node carries", "node", ref.Name, "deadline", intent.Deadline())
		w := c.on(ref)
		if w.take(ctx) != nil {
			return
		}
		if !c.isOver(w) && !w.started {
			w.update(intent)
			err = c.start(ctx, w, trace.Resume(ctx, intent.Traces(), "drain", "node", ref.Name, "instance", ref.Instance, "resumed", true))
		}
		w.giveBack()
		if err != nil {
			return
		}
	}
	close(c.resumed)
}
