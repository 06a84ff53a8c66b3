package nodedrain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Drain is the one drain of a node, with everything that belongs to it: the cordon,
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
// A goroutine of [Registry.Run] moves it from stage to stage; see stages. Whoever has
// its lock may record a further notice meanwhile, or call it off; see record.go and revert.go.
// What the stages have to know of that stands in the intent, whose every change they see.
type Drain struct {
	carrier

	r            *Registry
	place        *holdback.Place
	since        time.Time
	instanceGone signal         // nothing runs on the instance any more
	podsGone     signal         // the pods have left, or are not waited for any more
	quit         signal         // it is called off, with the reason: nobody joins it any more
	quitOn       *intent.Intent // what it was called off on; nil: there was no reason; set before
	beside       sync.WaitGroup // what goes on beside the stages, and ends with them or before: run waits for it
	done         chan struct{}  // closed at the end, after err is set
	err          error

	started  bool           // Run has it; guarded by turn
	resumed  bool           // an earlier leader has begun it
	outcome  intent.Outcome // of its evacuation; only the goroutine of Run uses it
	ended    bool           // guarded by Registry.mu
	detached bool           // load balancers were waited for; only the goroutine of the drain uses it
	next     *Drain         // takes its place at its end, if there is one; guarded by Registry.mu

	record record // only the goroutine of Run uses it

	progress
}

// ErrOutdated is returned when a notice is to be decided about again: what the decision went by may have changed.
var ErrOutdated = errors.New("it has taken too long to record the notice")

var (
	errUndone     = errors.New("what asked for the drain is over")
	errRestarted  = errors.New("the instance was stopped and started again since")
	errIgnored    = errors.New("a rule of the policy file ignores by now what asked for the drain")
	errUncordoned = errors.New("somebody has uncordoned the node, and the drain can wait")
	errAsksMore   = errors.New("the node was only to be cordoned, and is to be evacuated by now")
)

// isCalledOff reports whether a drain has ended because its reason is gone.
func isCalledOff(err error) bool {
	return errors.Is(err, errUndone) || errors.Is(err, errUncordoned) || errors.Is(err, errRestarted) ||
		errors.Is(err, errIgnored)
}

// run does what the node's intent asks for, to the end: the pods, the hooks, the mark that
// it is done. nil means that every message about it can be deleted.
func (d *Drain) run(ctx context.Context) error {
	log := d.r.Log.WithValues("node", d.ref.Name, "instance", d.ref.Instance)
	working, stop := context.WithCancelCause(ctx)
	defer d.beside.Wait()
	reading := false
	defer d.onChange(func() {
		if isClosed(d.quit.done) {
			stop(d.quitReason())
		}
		if !reading && d.hasHooks() {
			reading = true
			d.beside.Go(func() { d.hookKeeper().read(working) })
		}
	})()
	defer d.watchNode(working)()
	defer stop(nil)
	var err error
	if d.resumed {
		err = d.forgetWhatPassed(working, log)
	}
	if err == nil {
		err = d.stages(working, log)
	}
	return d.runEnded(ctx, log, err)
}

// runEnded does what is left to do at the end of the stages, and returns the error of the drain.
func (d *Drain) runEnded(ctx context.Context, log logr.Logger, err error) error {
	d.recordEpisode(err)
	switch {
	case errors.Is(err, errUndone):
		return nil
	case isCalledOff(err):
		return d.callOff(ctx, log, err)
	}
	return err
}

// stages are what a drain consists of. The hooks of the node are held open until they are
// completed. A node that was only to be cordoned may have to be evacuated after all.
func (d *Drain) stages(ctx context.Context, log logr.Logger) error {
	release := d.hookKeeper().hold(ctx)
	defer func() { release() }()
	if err := d.awaitBegin(ctx, log); err != nil {
		return err
	}
	for {
		err := d.evacuate(ctx, log)
		if err == nil {
			err = d.conclude(ctx, log, release)
		}
		if !errors.Is(err, errAsksMore) {
			return err
		}
		release()
		release = d.hookKeeper().hold(ctx)
	}
}

// conclude is what follows the evacuation. It returns errAsksMore if there was none, and a notice asks for one.
func (d *Drain) conclude(ctx context.Context, log logr.Logger, release func()) error {
	ctx, stop := d.whileEnough(ctx)
	defer stop()
	if err := d.awaitCompletionDelay(ctx); err != nil {
		return err
	}
	next, err := d.awaitOtherNodes(ctx, log)
	if err != nil {
		return err
	}
	d.say(overview.Completing)
	if next == nil {
		if err := d.awaitLateExclusion(ctx, log); err != nil {
			return err
		}
	}
	release()
	if next != nil { // the drain of the next Node of the instance does the rest
		d.say(overview.Completing, waitsForSuccessor(next))
		return next.Await(ctx)
	}
	return d.completeAndFinish(ctx, log)
}

// whileEnough is a context that ends with errAsksMore when a node that was only cordoned is to be evacuated.
func (d *Drain) whileEnough(ctx context.Context) (_ context.Context, stop func()) {
	if d.outcome != intent.Cordoned {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	remove := d.onChange(func() {
		if !d.cordonsOnly() {
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
func (d *Drain) evacuate(ctx context.Context, log logr.Logger) error {
	d.say(overview.Draining) // it is not held back any more, whatever has ended that
	if d.cordonsOnly() {
		d.outcome = intent.Cordoned
		d.podsGone.close()
		return nil
	}
	free, err := d.acquireWorker(ctx)
	if err != nil {
		return err
	}
	d.say(overview.Draining)
	defer free()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer d.afterMachine(func() { stop(evacuation.ErrMachineGone) })()
	d.delegate(ctx, log)
	start := time.Now()
	err = d.drainPods(ctx, log)
	free()
	took := time.Since(start)
	targets := new(report.Targets)
	if err == nil && !d.evacuated.Load().Self {
		targets, err = d.awaitLoadBalancers(ctx, log)
	}
	return d.concludeEvacuation(log, targets, took, err)
}

func (d *Drain) cordonsOnly() bool {
	decided, _ := d.current()
	return decision.CordonsOnly(decided, d.r.Policy)
}

// drainPods gets the pods off the node. What came of it is in d.evacuated.
func (d *Drain) drainPods(ctx context.Context, log logr.Logger) error {
	terms := make(chan evacuation.Terms, 1) // the latest that Drain has not received
	defer d.onChange(func() {
		select {
		case <-terms:
		default:
		}
		terms <- d.terms()
	})()
	d.evacuating.Store(true)
	result, err := d.r.Drainer.Drain(ctx, d.drainRequest(log, terms))
	d.evacuating.Store(false)
	d.evacuated.Store(result)
	return err
}

func (d *Drain) drainRequest(log logr.Logger, terms <-chan evacuation.Terms) *evacuation.Request {
	return &evacuation.Request{
		Node: d.ref.Name, Terms: <-terms, Changed: terms, Asked: d.questions,
		Log: log, Rules: d.r.CurrentPolicy().Rules,
		NodeState: func() evacuation.NodeState { return d.nodeState() },
	}
}

// concludeEvacuation says what came of the drain of the pods, and of the wait for load balancers.
func (d *Drain) concludeEvacuation(
	log logr.Logger, targets *report.Targets, took time.Duration, err error,
) error {
	result := *d.evacuated.Load()
	final, _ := d.current()
	ended := report.Drain{
		Node: d.ref, Intent: final, Outcome: outcomeOf(final, result, err), Result: result, Targets: *targets, Took: took,
	}
	if ended.Outcome != "" {
		d.record.drain = &ended
		d.r.Observer.Drained(ended)
	}
	switch {
	case err != nil:
		return fmt.Errorf("drain node %s: %w", d.ref.Name, err)
	case result.Self:
		log.Info("only this program's own pod is left on the node: releasing the lease")
		return ErrGiveWay
	}
	d.podsGone.close()
	d.outcome = ended.Outcome
	logEnd(log, ended)
	return nil
}

// goOn implements node.
func (d *Drain) goOn(do func()) { d.beside.Go(do) }

// quitFor has the drain end for a reason; nil: what asked for it is over.
func (d *Drain) quitFor(reason error) {
	d.quit.closeFor(reason)
	d.tell()
}

// quitReason is why the drain was quit. It may be called when quit is closed.
func (d *Drain) quitReason() error { return cmp.Or(d.quit.why, errUndone) }

// Done returns a channel that is closed at the end of the drain.
func (d *Drain) Done() <-chan struct{} { return d.done }

// Err is the error that the drain has ended with. It may be called when Done is closed.
func (d *Drain) Err() error { return d.err }

// Await waits for the end of the drain, and returns its error, or the cause of ctx.
func (d *Drain) Await(ctx context.Context) error {
	if err := d.AwaitEnd(ctx); err != nil {
		return err
	}
	return d.err
}

// AwaitEnd waits for the end of the drain, whatever its error, or returns the cause of ctx.
func (d *Drain) AwaitEnd(ctx context.Context) error {
	select {
	case <-d.done:
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
func (r *Registry) getOrCreate(ref cluster.Ref) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	nd := r.drains[ref.UID]
	if nd == nil {
		nd = r.newDrain(ref)
		r.drains[ref.UID] = nd
	}
	return nd
}

func (r *Registry) newDrain(ref cluster.Ref) *Drain {
	d := &Drain{
		r:            r,
		carrier:      carrier{ref: ref, cfg: &r.Config, turn: make(chan struct{}, 1), changed: make(chan struct{})},
		since:        time.Now(),
		instanceGone: signal{done: make(chan struct{})},
		podsGone:     signal{done: make(chan struct{})},
		quit:         signal{done: make(chan struct{})},
		done:         make(chan struct{}),
		progress:     progress{questions: make(chan chan<- evacuation.Progress)},
	}
	d.hasEnded = func() bool { return r.hasEnded(d) }
	d.applied = d.applyIntent
	d.place = r.line.NewPlace(ref, func() intent.Intent {
		carried, _ := d.current()
		return carried
	})
	return d
}

// succeed makes another drain of the node take the place of one that is about to be quit, so that nobody
// begins one in between. It has not started, and it is locked. It returns nil if the drain is
// being called off, which may begin it again, or has ended.
func (r *Registry) succeed(nd *Drain) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	if nd.ended || isClosed(nd.quit.done) {
		return nil
	}
	nd.next = r.newDrain(nd.ref)
	nd.next.turn <- struct{}{}
	return nd.next
}

// Get returns the drain of the node; nil if there is none.
func (r *Registry) Get(ref cluster.Ref) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drains[ref.UID]
}

// InstanceGone tells the drain of a node that nothing runs on its machine any more, and waits for its end. It returns
// the error of the drain, or the cause of ctx.
func (r *Registry) InstanceGone(ctx context.Context, ref cluster.Ref) error {
	nd := r.Get(ref)
	if nd == nil {
		return nil
	}
	nd.instanceGone.close()
	nd.tell()
	return nd.Await(ctx)
}

// remove says that the drain has ended: the next notice begins another one.
func (r *Registry) remove(nd *Drain) {
	nd.place.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	nd.ended = true
	if r.drains[nd.ref.UID] == nd {
		delete(r.drains, nd.ref.UID)
		if nd.next != nil && !nd.next.ended {
			r.drains[nd.ref.UID] = nd.next
		}
	}
}

func (r *Registry) hasEnded(nd *Drain) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return nd.ended
}

// lockOf returns the drain of the node, locked. It has not ended. A new one has not started.
func (r *Registry) lockOf(ctx context.Context, ref cluster.Ref) (*Drain, error) {
	for {
		nd := r.getOrCreate(ref)
		if err := nd.lock(ctx); err != nil {
			return nil, err
		}
		if !r.hasEnded(nd) {
			return nd, nil
		}
		nd.unlock() // it ended while we waited for it
	}
}
