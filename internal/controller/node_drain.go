package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// A nodeDrain is the one drain of a node, with everything that belongs to it: the cordon,
// the pods, the lifecycle hooks. It exists from the first notice, or from the moment when a
// new leader finds the intent on the node, to the end.
//
//	recorded ─▶ awaitBegin ─▶ evacuate ─▶ awaitCompletionDelay ─▶ awaitOtherNodes ─▶ completeAndFinish
//	             held back        draining    pods gone               pods gone          hooks completed, finished
//
//	from any of them, by quit ─▶ called off: undone, uncordoned, restarted
//	from any of them, by instanceGone ─▶ evacuate ends at once, and the rest follows
//
// A goroutine of [Controller.Run] moves it from stage to stage; see stages. Whoever has
// its lock may record a further notice meanwhile, or call it off; see join.go and revert.go.
// What the stages have to know of that stands in the intent, whose every change they see.
type nodeDrain struct {
	ref          cluster.Ref
	since        time.Time
	instanceGone signal        // nothing runs on the instance any more
	podsGone     signal        // the pods have left, or are not waited for any more
	quit         signal        // it is called off, with the reason: nobody joins it any more
	quitOn       intent.Intent // what it was called off on, where there is a reason; set before
	done         chan struct{} // closed at the end, after err is set
	err          error

	// turn is a lock that can wait with a context: see lock. It guards started and span.
	turn    chan struct{}
	started bool           // Run has it
	resumed bool           // an earlier leader has begun it
	outcome intent.Outcome // of its evacuation; only the goroutine of Run uses it
	span    trace.Span     // of the drain, in the trace of the notice that has started it
	ended   bool           // guarded by Controller.mu
	next    *nodeDrain     // takes its place at its end, if there is one; guarded by Controller.mu

	mu      sync.Mutex
	intent  intent.Intent // as the node carries it
	changed chan struct{} // closed and replaced when the intent has changed
}

var (
	errUndone     = errors.New("what asked for the drain is over")
	errOutdated   = errors.New("it has taken too long to record the notice")
	errRestarted  = errors.New("the instance was stopped and started again since")
	errIgnored    = errors.New("a rule of the policy file ignores by now what asked for the drain")
	errUncordoned = errors.New("somebody has uncordoned the node, and the drain can wait")
)

// run does what the node's intent asks for, to the end: the pods, the hooks, the mark that
// it is done. nil means that every message about it can be deleted.
func (c *Controller) run(ctx context.Context, nd *nodeDrain) error {
	log := c.Log.With("node", nd.ref.Name, "instance", nd.ref.Instance)
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-nd.quit.done:
			stop(cmp.Or(*nd.quit.why, errUndone))
		case <-working.Done():
		}
	}()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop(nil)
	beside.Go(func() { c.watchNode(working, nd) })
	beside.Go(func() { c.readHooks(working, nd) })
	var err error
	if nd.resumed {
		err = c.forgetWhatPassed(working, log, nd)
	}
	switch {
	case err != nil:
	case c.Leader != nil:
		err = c.stagesAsDeputy(working, log, nd)
	default:
		err = c.stages(working, log, nd)
	}
	switch {
	case errors.Is(err, errUndone):
		return nil
	case errors.Is(err, errUncordoned), errors.Is(err, errRestarted), errors.Is(err, errIgnored):
		return c.callOff(ctx, log, nd, err)
	}
	return err
}

// stages are what a drain consists of. The hooks of the node are held open until they are
// completed.
func (c *Controller) stages(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	release := c.holdHooks(ctx, nd)
	defer release()
	for _, stage := range []func(context.Context, *slog.Logger, *nodeDrain) error{
		c.awaitBegin, c.evacuate, c.awaitCompletionDelay,
	} {
		if err := stage(ctx, log, nd); err != nil {
			return err
		}
	}
	next, err := c.awaitOtherNodes(ctx, log, nd)
	if err != nil {
		return err
	}
	release()
	if next != nil { // the drain of the next Node of the instance does the rest
		return next.await(ctx)
	}
	return c.completeAndFinish(ctx, log, nd)
}

// evacuate gets the pods off the node, unless the node is only to be cordoned.
func (c *Controller) evacuate(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	if decided, _ := nd.current(); decision.CordonsOnly(decided, c.Policy) {
		nd.outcome = intent.Cordoned
		nd.podsGone.close()
		return nil
	}
	free, err := c.acquireWorker(ctx, nd)
	if err != nil {
		return err
	}
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go c.watchGone(ctx, nd, stop)
	carried, changed := nd.current()
	terms := make(chan drain.Terms)
	go nd.tighten(ctx, changed, terms)
	start := time.Now()
	result, err := c.Drainer.Drain(ctx, drain.Request{
		Node: nd.ref.Name, Terms: TermsOf(carried), Changed: terms, Log: log, Rules: c.currentPolicy().Rules,
		NodeState: func() drain.NodeState { return c.nodeState(nd) },
	})
	final, _ := nd.current()
	ended := report.Drain{
		Node: nd.ref, Intent: final, Outcome: outcomeOf(result, err), Result: result, Took: time.Since(start),
	}
	if ended.Outcome != "" {
		c.Observer.Drained(ended)
	}
	switch {
	case err != nil:
		return fmt.Errorf("drain node %s: %w", nd.ref.Name, err)
	case result.Self:
		log.Info("only this program's own pod is left on the node: releasing the lease")
		return ErrGiveWay
	}
	nd.podsGone.close()
	nd.outcome = ended.Outcome
	nd.span.Set("outcome", string(ended.Outcome), "evicted", result.Evicted, "forced", result.Forced,
		"missed", len(result.Missed), "lost", len(result.Lost))
	logEnd(log, ended)
	return nil
}

// lock waits for the turn to write to the node, or returns the cause of ctx. It is no
// mutex, because it is held for as long as the API server takes to answer.
func (nd *nodeDrain) lock(ctx context.Context) error {
	select {
	case nd.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (nd *nodeDrain) unlock() { <-nd.turn }

// setIntent notes the intent that the node carries now.
func (nd *nodeDrain) setIntent(i intent.Intent) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	nd.intent = i
	close(nd.changed)
	nd.changed = make(chan struct{})
}

// current returns the intent, and a channel that is closed when the intent changes.
func (nd *nodeDrain) current() (intent.Intent, <-chan struct{}) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.intent, nd.changed
}

// heldBack reports whether the node is not touched yet. A nil drain is not held back.
func (nd *nodeDrain) heldBack() bool {
	if nd == nil {
		return false
	}
	carried, _ := nd.current()
	return carried.HeldBack
}

// await waits for the end of the drain, and returns its error, or the cause of ctx.
func (nd *nodeDrain) await(ctx context.Context) error {
	if err := nd.awaitEnd(ctx); err != nil {
		return err
	}
	return nd.err
}

// awaitEnd waits for the end of the drain, whatever its error, or returns the cause of ctx.
func (nd *nodeDrain) awaitEnd(ctx context.Context) error {
	select {
	case <-nd.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// A signal is closed by the first call of close; later calls do nothing.
type signal struct {
	done chan struct{} // closed then
	once *sync.Once
	why  *error // set before
}

func newSignal() signal { return signal{make(chan struct{}), new(sync.Once), new(error)} }

func (s signal) close() { s.closeFor(nil) }

func (s signal) closeFor(why error) {
	s.once.Do(func() {
		*s.why = why
		close(s.done)
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// getOrCreate returns the drain of the node.
func (c *Controller) getOrCreate(ref cluster.Ref) *nodeDrain {
	c.mu.Lock()
	defer c.mu.Unlock()
	nd := c.drains[ref.UID]
	if nd == nil {
		nd = newNodeDrain(ref)
		c.drains[ref.UID] = nd
	}
	return nd
}

func newNodeDrain(ref cluster.Ref) *nodeDrain {
	return &nodeDrain{
		ref:          ref,
		since:        time.Now(),
		instanceGone: newSignal(),
		podsGone:     newSignal(),
		quit:         newSignal(),
		done:         make(chan struct{}),
		turn:         make(chan struct{}, 1),
		changed:      make(chan struct{}),
	}
}

// succeed makes another drain of the node take the place of one that is about to be quit, so that nobody
// begins one in between. It has not started, and it is locked. It returns nil if the drain is
// being called off, which may begin it again, or has ended.
func (c *Controller) succeed(nd *nodeDrain) *nodeDrain {
	c.mu.Lock()
	defer c.mu.Unlock()
	if nd.ended || isClosed(nd.quit.done) {
		return nil
	}
	nd.next = newNodeDrain(nd.ref)
	nd.next.turn <- struct{}{}
	return nd.next
}

// get returns the drain of the node; nil if there is none.
func (c *Controller) get(ref cluster.Ref) *nodeDrain {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drains[ref.UID]
}

// remove says that the drain has ended: the next notice begins another one.
func (c *Controller) remove(nd *nodeDrain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nd.ended = true
	if c.drains[nd.ref.UID] == nd {
		delete(c.drains, nd.ref.UID)
		if nd.next != nil && !nd.next.ended {
			c.drains[nd.ref.UID] = nd.next
		}
		c.unready.release(nd.ref.UID)
		c.ruleLimits.release(nd.ref.UID)
	}
}

func (c *Controller) hasEnded(nd *nodeDrain) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return nd.ended
}

// lockOf returns the drain of the node, locked. It has not ended. A new one has not started.
func (c *Controller) lockOf(ctx context.Context, ref cluster.Ref) (*nodeDrain, error) {
	for {
		nd := c.getOrCreate(ref)
		if err := nd.lock(ctx); err != nil {
			return nil, err
		}
		if !c.hasEnded(nd) {
			return nd, nil
		}
		nd.unlock() // it ended while we waited for it
	}
}
