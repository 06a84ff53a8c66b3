package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
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
	ref  cluster.Ref
	gone chan struct{} // closed when nothing runs on the node any more
	quit chan struct{} // closed when the work was called off
	done chan struct{} // closed at the end; err is set then
	err  error

	// mu serialises what is written to the node.
	mu      sync.Mutex
	intent  cluster.Intent // as the node carries it
	started bool
	over    bool
	// changed is closed and replaced when the intent has changed.
	changed chan struct{}
}

// on returns the node's work, a new one if there is none.
func (c *Controller) on(ref cluster.Ref) *work {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.works[ref]
	if w == nil {
		w = &work{
			ref:     ref,
			gone:    make(chan struct{}),
			quit:    make(chan struct{}),
			done:    make(chan struct{}),
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

// end takes the work out of the books. w.mu is held.
func (c *Controller) end(w *work) {
	w.over = true
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.works[w.ref] == w {
		delete(c.works, w.ref)
	}
}

// update takes in the intent that the node carries now. w.mu is held.
func (w *work) update(i cluster.Intent) {
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// join makes the node carry the notice, and waits for the end of the node's work.
func (c *Controller) join(ctx context.Context, log logr.Logger, n notice.Notice, ref cluster.Ref, d decision) error {
	entry := entryOf(n, d)
	var hook *cluster.Hook
	if n.Hook != (notice.Hook{}) {
		hook = &cluster.Hook{Group: n.Hook.Group, Name: n.Hook.Name, Token: n.Hook.Token, Instance: n.Instances[0], Started: entry.Time}
	}
	var w *work
	err := c.persist(ctx, log, "cordon the node", func(ctx context.Context) (err error) {
		w, err = c.record(ctx, ref, entry, hook)
		if ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			c.Observer.Node(ref, StepCordon, string(d.why), err)
		}
		return err
	})
	switch {
	case errors.Is(err, cluster.ErrNodeGone) && hook != nil:
		return c.Hooks.Complete(ctx, hookOf(n, hook.Instance))
	case errors.Is(err, cluster.ErrNodeGone):
		return nil
	case err != nil:
		return err
	case w == nil:
		log.V(1).Info("the node's work for this event is finished already", "node", ref.Name)
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
// It returns nil when that is finished already.
func (c *Controller) record(ctx context.Context, ref cluster.Ref, entry cluster.Entry, hook *cluster.Hook) (*work, error) {
	for {
		w := c.on(ref)
		w.mu.Lock()
		if w.over { // it ended while we waited for it
			w.mu.Unlock()
			continue
		}
		defer w.mu.Unlock()
		now := time.Now().UTC()
		intent, err := c.Cluster.Record(ctx, ref, func(i cluster.Intent) cluster.Intent { return i.With(entry, hook, now) })
		if err != nil || intent.Finished() {
			if !w.started {
				c.end(w)
			}
			return nil, err
		}
		w.update(intent)
		return w, c.start(ctx, w)
	}
}

// start hands a work to Run. w.mu is held.
func (c *Controller) start(ctx context.Context, w *work) error {
	if w.started {
		return nil
	}
	select {
	case c.begin <- w:
		w.started = true
		return nil
	case <-ctx.Done():
		c.end(w)
		return context.Cause(ctx)
	}
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
				err := c.carryOut(ctx, w)
				w.mu.Lock()
				c.end(w)
				w.mu.Unlock()
				w.err = err
				close(w.done)
				if errors.Is(err, ErrGiveWay) {
					stop(ErrGiveWay)
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
		w.mu.Lock()
		if !w.over && !w.started {
			w.update(intent)
			if c.start(ctx, w) != nil {
				w.mu.Unlock()
				return
			}
		}
		w.mu.Unlock()
	}
	close(c.resumed)
}

// carryOut does what the node's intent asks for, to the end: the pods, the
// hooks, the mark that it is done. nil means that every message about it can go.
func (c *Controller) carryOut(ctx context.Context, w *work) error {
	log := c.Log.WithValues("node", w.ref.Name, "instance", w.ref.Instance)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-w.quit:
			stop(errUndone)
		case <-ctx.Done():
		}
	}()
	release := c.holdHooks(ctx, w)
	defer release()

	err := c.evacuate(ctx, log, w)
	if err == nil {
		err = c.delay(ctx, w)
	}
	if err == nil {
		release()
		err = c.conclude(ctx, log, w)
	}
	if errors.Is(err, errUndone) {
		return nil
	}
	return err
}

// evacuate gets the pods off the node, unless only cordoning is wanted.
func (c *Controller) evacuate(ctx context.Context, log logr.Logger, w *work) error {
	if c.CordonOnly {
		return nil
	}
	free, err := c.takeSlot(ctx, w)
	if err != nil {
		return err
	}
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go c.watchGone(ctx, w, stop)
	intent, changed := w.now()
	terms := make(chan pods.Terms)
	go w.tighten(ctx, changed, terms)
	start := time.Now()
	result, err := c.Drainer.Drain(ctx, pods.Order{Node: w.ref.Name, CordonedAt: intent.CordonedAt, Terms: termsOf(intent), Changed: terms, Log: log})
	if errors.Is(context.Cause(ctx), errNodeGone) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("drain node %s: %w", w.ref.Name, err)
	}
	if result.Self {
		log.Info("only the pod of this program is left on the node: giving the lease away")
		return ErrGiveWay
	}
	final, _ := w.now()
	c.Observer.Drained(w.ref, result, time.Since(start), final.Deadline())
	values := []any{"evicted", result.Evicted, "forced", result.Forced, "took", time.Since(start).Round(time.Millisecond).String()}
	if d := final.Deadline(); !d.IsZero() {
		values = append(values, "left", time.Until(d).Round(time.Second).String())
	}
	if len(result.Missed) > 0 {
		values = append(values, "missed", result.Missed)
	}
	log.Info("drained", values...)
	return nil
}

// tighten sends the terms of the work on each time its intent has changed.
func (w *work) tighten(ctx context.Context, changed <-chan struct{}, terms chan<- pods.Terms) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		var intent cluster.Intent
		intent, changed = w.now()
		select {
		case <-ctx.Done():
			return
		case terms <- termsOf(intent):
		}
	}
}

func termsOf(i cluster.Intent) pods.Terms {
	return pods.Terms{Deadline: i.Deadline(), IgnoreBudgets: i.Has(notice.StateChange)}
}

// takeSlot waits for a worker, where their number is bounded and nothing urgent
// is about the node. free gives it back. A drain that has taken longer than the
// node's grace period gives it back before its end: what it still waits for is
// budgets, mostly, and one that never clears must not stop all other drains.
func (c *Controller) takeSlot(ctx context.Context, w *work) (free func(), err error) {
	for c.slots != nil {
		intent, changed := w.now()
		if intent.Has(notice.SpotInterruption) || intent.Has(notice.StateChange) {
			break
		}
		var hurry <-chan time.Time // the deadline comes first
		if d := intent.Deadline(); !d.IsZero() {
			hurry = time.After(time.Until(d.Add(-c.NodeGracePeriod)))
		}
		select {
		case c.slots <- struct{}{}:
			release := sync.OnceFunc(func() { <-c.slots })
			patience := time.AfterFunc(c.NodeGracePeriod, release)
			return func() {
				patience.Stop()
				release()
			}, nil
		case <-changed:
		case <-hurry:
			return func() {}, nil
		case <-w.gone:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {}, nil
}

// watchGone stops the evictions when there is nothing left to evict from.
func (c *Controller) watchGone(ctx context.Context, w *work, stop context.CancelCauseFunc) {
	for {
		changed := c.Cluster.Changed()
		if !c.Cluster.Exists(w.ref) || isClosed(w.gone) {
			stop(errNodeGone)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.gone:
		case <-changed:
		}
	}
}

// delay waits between the end of the drain and the completion of the hooks, from
// a moment that the node carries, so that a failover does not begin it anew.
func (c *Controller) delay(ctx context.Context, w *work) error {
	intent, _ := w.now()
	if c.CompletionDelay <= 0 || len(intent.Hooks) == 0 {
		return nil
	}
	if intent.DrainedAt.IsZero() {
		now := time.Now().UTC()
		if err := c.rewrite(ctx, w, func(i cluster.Intent) cluster.Intent {
			i.DrainedAt = now
			return i
		}); err != nil {
			return err
		}
		intent.DrainedAt = now
	}
	timer := time.NewTimer(time.Until(cluster.Earlier(intent.DrainedAt.Add(c.CompletionDelay), intent.Deadline())))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// conclude completes the node's hooks, each once, and marks the intent finished.
// A hook that comes meanwhile is completed too.
func (c *Controller) conclude(ctx context.Context, log logr.Logger, w *work) error {
	completed := map[cluster.Hook]bool{}
	for {
		intent, _ := w.now()
		for _, h := range intent.Hooks {
			if completed[h] {
				continue
			}
			if err := c.Hooks.Complete(ctx, asg.Hook{Group: h.Group, Name: h.Name, Token: h.Token, Instance: h.Instance}); err != nil {
				return err
			}
			completed[h] = true
			log.Info("lifecycle hook completed", "group", h.Group, "hook", h.Name)
		}
		more := false
		finished := time.Now().UTC()
		err := c.rewrite(ctx, w, func(i cluster.Intent) cluster.Intent {
			more = false
			for _, h := range i.Hooks {
				more = more || !completed[h]
			}
			if !more {
				i.Hooks, i.FinishedAt = nil, finished
			}
			return i
		})
		if err != nil || !more {
			return err
		}
	}
}

// rewrite changes the intent of a node under way. A node that is gone needs none.
func (c *Controller) rewrite(ctx context.Context, w *work, change func(cluster.Intent) cluster.Intent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := c.persist(ctx, c.Log.WithValues("node", w.ref.Name), "write the intent", func(ctx context.Context) error {
		intent, err := c.Cluster.Record(ctx, w.ref, change)
		if err == nil {
			w.update(intent)
			if intent.Finished() { // who comes now opens it again
				c.end(w)
			}
		}
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	return err
}

// holdHooks sends the heartbeats of all hooks of the node, those that come later
// too, until release is called, which returns when there will be no more.
func (c *Controller) holdHooks(ctx context.Context, w *work) (release func()) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		held := map[cluster.Hook]bool{}
		for {
			intent, changed := w.now()
			for _, h := range intent.Hooks {
				if !held[h] {
					held[h] = true
					all.Go(func() {
						c.Hooks.Hold(ctx, asg.Hook{Group: h.Group, Name: h.Name, Token: h.Token, Instance: h.Instance}, h.Started)
					})
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	})
	return func() {
		stop()
		all.Wait()
	}
}

// undo takes back what a scheduled change that is over brought to its node.
func (c *Controller) undo(ctx context.Context, log logr.Logger, n notice.Notice, ref cluster.Ref) error {
	if w := c.underWay(ref); w != nil {
		w.mu.Lock()
		last := w.intent.HasChange(n.Change) && len(w.intent.Without(n.Change).Entries) == 0
		if last && !isClosed(w.quit) {
			close(w.quit)
		}
		w.mu.Unlock()
		if last {
			select {
			case <-w.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	undone := false
	err := c.persist(ctx, log, "uncordon the node", func(ctx context.Context) (err error) {
		undone, err = c.takeBack(ctx, ref, n.Change)
		if undone || err != nil && ctx.Err() == nil && !errors.Is(err, cluster.ErrNodeGone) {
			c.Observer.Node(ref, StepUncordon, string(WhyChangeEnded), err)
		}
		return err
	})
	if errors.Is(err, cluster.ErrNodeGone) {
		return nil
	}
	if undone {
		log.Info("uncordoned", "node", ref.Name)
	}
	return err
}

func (c *Controller) takeBack(ctx context.Context, ref cluster.Ref, change string) (undone bool, err error) {
	w := c.underWay(ref)
	if w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
	}
	var kept cluster.Intent
	undone, err = c.Cluster.Undo(ctx, ref, func(i cluster.Intent) (cluster.Intent, bool) {
		had := i.HasChange(change)
		kept = i.Without(change)
		return kept, !had || len(kept.Entries) > 0
	})
	if w != nil && err == nil && !undone {
		w.update(kept)
	}
	return undone, err
}

// finish ends the work on a node whose instance runs nothing any more.
func (c *Controller) finish(ctx context.Context, log logr.Logger, ref cluster.Ref) error {
	if c.OutOfServiceTaint {
		err := c.persist(ctx, log, "taint the node out of service", func(ctx context.Context) error {
			return c.Cluster.SetOutOfService(ctx, ref, true)
		})
		if err != nil && !errors.Is(err, cluster.ErrNodeGone) {
			return err
		}
	}
	w := c.underWay(ref)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	if !isClosed(w.gone) {
		close(w.gone)
	}
	w.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// welcomeBack takes the out-of-service taint back from nodes that have returned.
func (c *Controller) welcomeBack(ctx context.Context) {
	for {
		changed := c.Cluster.Changed()
		for _, ref := range c.Cluster.Returned() {
			err := c.persist(ctx, c.Log, "take the out-of-service taint back", func(ctx context.Context) error {
				return c.Cluster.SetOutOfService(ctx, ref, false)
			})
			if err == nil {
				c.Log.Info("the node is back in service", "node", ref.Name)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
