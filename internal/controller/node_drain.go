package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/apart"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
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
//	after it was only cordoned, by a notice that asks for more ─▶ evacuate
//
// A goroutine of [Controller.Run] moves it from stage to stage; see stages. Whoever has
// its lock may record a further notice meanwhile, or call it off; see join.go and revert.go.
// What the stages have to know of that stands in the intent, whose every change they see.
type nodeDrain struct {
	ref          cluster.Ref
	since        time.Time
	instanceGone signal         // nothing runs on the instance any more
	podsGone     signal         // the pods have left, or are not waited for any more
	quit         signal         // it is called off, with the reason: nobody joins it any more
	quitOn       *intent.Intent // what it was called off on; nil: there was no reason; set before
	hurry        signal         // an urgent notice is being recorded
	done         chan struct{}  // closed at the end, after err is set
	err          error

	// turn is a lock that can wait with a context: see lock. It guards started and span.
	turn    chan struct{}
	started bool           // Run has it
	resumed bool           // an earlier leader has begun it
	outcome intent.Outcome // of its evacuation; only the goroutine of Run uses it
	// replaceSince is when it was first asked for a replacement; only the goroutine of Run uses it.
	replaceSince time.Time
	group        string     // the instance's, as Auto Scaling has said; only the goroutine of Run uses it
	span         trace.Span // of the drain, in the trace of the notice that has started it
	ended        bool       // guarded by Controller.mu
	next         *nodeDrain // takes its place at its end, if there is one; guarded by Controller.mu

	asked      chan chan<- drain.Progress   // questions for the progress of its evacuation; see progress
	evacuating atomic.Bool                  // somebody answers them
	evacuated  atomic.Pointer[drain.Result] // of its evacuation; nil: it has not ended
	record     record                       // only the goroutine of Run uses it

	mu      sync.Mutex
	stage   overview.Stage  // how far it has come; empty: it has not begun
	waits   []overview.Wait // what it waits for beside its pods
	reserve bool            // Karpenter gets the pods off; see delegate
	intent  intent.Intent   // as the node carries it, and what learn has added
	changed chan struct{}   // closed and replaced when the intent has changed

	listening sync.Mutex // held while listeners are called
	listeners []*func()  // see onChange
}

var (
	errUndone     = errors.New("what asked for the drain is over")
	errOutdated   = errors.New("it has taken too long to record the notice")
	errRestarted  = errors.New("the instance was stopped and started again since")
	errIgnored    = errors.New("a rule of the policy file ignores by now what asked for the drain")
	errUncordoned = errors.New("somebody has uncordoned the node, and the drain can wait")
	errAsksMore   = errors.New("the node was only to be cordoned, and is to be evacuated by now")
)

// run does what the node's intent asks for, to the end: the pods, the hooks, the mark that
// it is done. nil means that every message about it can be deleted.
func (c *Controller) run(ctx context.Context, nd *nodeDrain) error {
	log := c.Log.With("node", nd.ref.Name, "instance", nd.ref.Instance)
	working, stop := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	reading := false
	defer nd.onChange(func() {
		if isClosed(nd.quit.done) {
			stop(nd.quitReason())
		}
		if !reading && nd.hasHooks() {
			reading = true
			beside.Go(func() { c.readHooks(working, nd) })
		}
	})()
	defer c.watchNode(working, nd)()
	defer stop(nil)
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
	return c.runEnded(ctx, log, nd, err)
}

// runEnded does what is left to do at the end of the stages, and returns the error of the drain.
func (c *Controller) runEnded(ctx context.Context, log *slog.Logger, nd *nodeDrain, err error) error {
	c.recordEpisode(nd, err)
	switch {
	case errors.Is(err, errUndone):
		c.returnReplacement(ctx, log, nd)
		return nil
	case errors.Is(err, errUncordoned), errors.Is(err, errRestarted), errors.Is(err, errIgnored):
		c.returnReplacement(ctx, log, nd)
		return c.callOff(ctx, log, nd, err)
	}
	return err
}

// stages are what a drain consists of. The hooks of the node are held open until they are
// completed. A node that was only to be cordoned may have to be evacuated after all.
func (c *Controller) stages(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	release := c.holdHooks(ctx, nd)
	defer func() { release() }()
	if err := c.awaitBegin(ctx, log, nd); err != nil {
		return err
	}
	for {
		err := c.evacuate(ctx, log, nd)
		if err == nil {
			err = c.conclude(ctx, log, nd, release)
		}
		if !errors.Is(err, errAsksMore) {
			return err
		}
		release()
		release = c.holdHooks(ctx, nd)
	}
}

// conclude is what follows the evacuation. It returns errAsksMore if there was none, and a notice asks for one.
func (c *Controller) conclude(ctx context.Context, log *slog.Logger, nd *nodeDrain, release func()) error {
	ctx, stop := c.whileEnough(ctx, nd)
	defer stop()
	if err := c.awaitCompletionDelay(ctx, log, nd); err != nil {
		return err
	}
	next, err := c.awaitOtherNodes(ctx, log, nd)
	if err != nil {
		return err
	}
	nd.say(overview.Completing)
	if next == nil {
		if err := c.endReplaced(ctx, log, nd); err != nil {
			return err
		}
	}
	release()
	if next != nil { // the drain of the next Node of the instance does the rest
		nd.say(overview.Completing, waitsForSuccessor(next))
		return next.await(ctx)
	}
	return c.completeAndFinish(ctx, log, nd)
}

// whileEnough is a context that ends with errAsksMore when a node that was only cordoned is to be evacuated.
func (c *Controller) whileEnough(ctx context.Context, nd *nodeDrain) (_ context.Context, stop func()) {
	if nd.outcome != intent.Cordoned {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	remove := nd.onChange(func() {
		if !c.cordonsOnly(nd) {
			cancel(errAsksMore)
		}
	})
	return ctx, func() {
		remove()
		cancel(nil)
	}
}

// evacuate gets the pods off the node, and the machine out of load balancers, unless the node is only to be
// cordoned.
func (c *Controller) evacuate(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	nd.say(overview.Draining) // it is not held back any more, whatever has ended that
	var cordonsOnly bool
	if apart.Do(func() { cordonsOnly = c.cordonsOnly(nd) }); cordonsOnly {
		nd.outcome = intent.Cordoned
		nd.podsGone.close()
		return nil
	}
	free, err := c.acquireWorker(ctx, nd)
	if err != nil {
		return err
	}
	nd.say(overview.Draining)
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer c.afterMachine(nd, func() { stop(drain.ErrMachineGone) })()
	apart.Do(func() { c.delegate(ctx, log, nd) })
	start := time.Now()
	err = c.drainPods(ctx, log, nd)
	free()
	took := time.Since(start)
	targets := new(report.Targets)
	if err == nil && !nd.evacuated.Load().Self {
		targets, err = c.awaitLoadBalancers(ctx, log, nd)
	}
	apart.Do(func() { err = c.concludeEvacuation(log, nd, targets, took, err) })
	return err
}

func (c *Controller) cordonsOnly(nd *nodeDrain) bool {
	decided, _ := nd.current()
	return decision.CordonsOnly(decided, c.Policy)
}

// drainPods gets the pods off the node. What came of it is in nd.evacuated. A drain may take hours, and there may be
// thousands, so what needs much stack is done apart.
func (c *Controller) drainPods(ctx context.Context, log *slog.Logger, nd *nodeDrain) error {
	terms := make(chan drain.Terms, 1) // the latest that Drain has not received
	var remove func()
	apart.Do(func() {
		remove = nd.onChange(func() {
			select {
			case <-terms:
			default:
			}
			terms <- nd.terms()
		})
	})
	defer remove()
	nd.evacuating.Store(true)
	result, err := c.Drainer.Drain(ctx, c.drainRequest(log, nd, terms))
	nd.evacuating.Store(false)
	nd.evacuated.Store(result)
	return err
}

func (c *Controller) drainRequest(log *slog.Logger, nd *nodeDrain, terms <-chan drain.Terms) *drain.Request {
	return &drain.Request{
		Node: nd.ref.Name, Terms: <-terms, Changed: terms, Asked: nd.asked,
		Log: log, Rules: c.currentPolicy().Rules,
		NodeState: func() drain.NodeState { return c.nodeState(nd) },
	}
}

// concludeEvacuation says what came of the drain of the pods, and of the wait for load balancers.
func (c *Controller) concludeEvacuation(
	log *slog.Logger, nd *nodeDrain, targets *report.Targets, took time.Duration, err error,
) error {
	result := *nd.evacuated.Load()
	final, _ := nd.current()
	ended := report.Drain{
		Node: nd.ref, Intent: final, Outcome: outcomeOf(result, err), Result: result, Targets: *targets, Took: took,
	}
	if ended.Outcome != "" {
		nd.record.drain = &ended
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
func (nd *nodeDrain) setIntent(i intent.Intent) { nd.change(func() { nd.intent = i }) }

// change changes what current and terms return. do is called with mu held.
func (nd *nodeDrain) change(do func()) {
	nd.mu.Lock()
	do()
	close(nd.changed)
	nd.changed = make(chan struct{})
	nd.mu.Unlock()
	nd.tell()
}

// onChange calls look now, after each change, and when the drain is called off or its instance is gone, until remove is
// called: a drain that waits for hours, beside thousands of others, needs no goroutine for that. look runs on the
// goroutine of whoever makes the change, once at a time: it must not block, make a change, nor call remove. When remove
// returns, look has too.
func (nd *nodeDrain) onChange(look func()) (remove func()) {
	nd.listening.Lock()
	defer nd.listening.Unlock()
	nd.listeners = append(nd.listeners, &look)
	look()
	return func() {
		nd.listening.Lock()
		defer nd.listening.Unlock()
		nd.listeners = slices.DeleteFunc(nd.listeners, func(l *func()) bool { return l == &look })
	}
}

func (nd *nodeDrain) tell() {
	nd.listening.Lock()
	defer nd.listening.Unlock()
	for _, look := range nd.listeners {
		(*look)()
	}
}

// quitFor has the drain end for a reason; nil: what asked for it is over.
func (nd *nodeDrain) quitFor(reason error) {
	nd.quit.closeFor(reason)
	nd.tell()
}

// quitReason is why the drain was quit. It may be called when quit is closed.
func (nd *nodeDrain) quitReason() error { return cmp.Or(nd.quit.why, errUndone) }

// current returns the intent, and a channel that is closed when the intent changes.
func (nd *nodeDrain) current() (intent.Intent, <-chan struct{}) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.intent, nd.changed
}

// hasHooks reports whether the intent has hooks.
func (nd *nodeDrain) hasHooks() bool {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return len(nd.intent.Hooks) > 0
}

// heldBack reports whether the node is not touched yet. A nil drain is not held back.
func (nd *nodeDrain) heldBack() bool {
	if nd == nil {
		return false
	}
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.intent.HeldBack
}

// carries reports whether the intent has a hook.
func (nd *nodeDrain) carries(h *intent.Hook) bool {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	return nd.intent.HasHook(*h)
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
	once sync.Once
	why  error // set before
}

func (s *signal) close() { s.closeFor(nil) }

func (s *signal) closeFor(why error) {
	s.once.Do(func() {
		s.why = why
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
		instanceGone: signal{done: make(chan struct{})},
		podsGone:     signal{done: make(chan struct{})},
		quit:         signal{done: make(chan struct{})},
		hurry:        signal{done: make(chan struct{})},
		done:         make(chan struct{}),
		turn:         make(chan struct{}, 1),
		asked:        make(chan chan<- drain.Progress),
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
