package nodedrain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A Drain is the one drain of a node, with everything that belongs to it: the cordon,
// the pods, the lifecycle hooks. It exists from the first notice, or from the moment when a
// new leader finds the intent on the node, to the end.
//
//	recorded ─▶ beginStage ─▶ evacuateStage ─▶ endStage
//	            held back     draining         pods gone: the completion delay, other Nodes, hooks, finished
//
//	from any of them, by quit ─▶ called off: undone, uncordoned, restarted; what cannot be written is superseded
//	from any of them, by instanceGone ─▶ evacuateStage ends at once, and the rest follows
//	after it was only cordoned, by a notice that asks for more ─▶ evacuateStage
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
	podsGone     signal         // the pods have left, or are not waited for any more; see hasPods
	quit         signal         // it is called off, with the reason: nobody joins it any more
	callsOff     cluster.Change // takes out the notices that it was called off on; nil for errUndone; set before quit
	superseded   signal         // a notice does not wait any longer for its calling off
	beside       sync.WaitGroup // what goes on beside the stages, and ends with them or before: run waits for it
	cordonTold   sync.Once
	done         chan struct{} // closed at the end, after err is set
	err          error         // that the drain has ended with

	started    bool           // Run has it; guarded by turn
	supersedes atomic.Bool    // it takes the place of one that could not be called off, as the node still says
	why        decision.Why   // of what could not be recorded; guarded by turn
	resumed    bool           // an earlier leader has begun it
	partial    bool           // by which pods may have left; only the goroutine of the drain uses it
	outcome    intent.Outcome // of its evacuation; only the goroutine of Run uses it
	ended      bool           // guarded by Registry.mu
	detached   bool           // load balancers were waited for; only the goroutine of the drain uses it
	next       *Drain         // takes its place at its end, if there is one; guarded by Registry.mu

	history history // only the goroutine of Run uses it

	progress
}

// ErrOutdated is returned when a notice is to be decided about again: what the decision went by may have changed.
var ErrOutdated = errors.New("what the decision went by may have changed")

var (
	errUndone     = errors.New("what asked for the drain is over")
	errRestarted  = errors.New("the instance was stopped and started again since")
	errIgnored    = errors.New("a rule of the policy file ignores by now what asked for the drain")
	errLeftAlone  = errors.New("the node is to be left alone, as its label " + decision.LeaveAloneLabel + " says")
	errUncordoned = errors.New("somebody has uncordoned the node, and the drain can wait")
	errSuperseded = errors.New("another notice asks for a drain, and half of its time has passed")
	errAsksMore   = errors.New("the node was only to be cordoned, and is to be evacuated by now")
)

// isCalledOff reports whether a drain has ended because its reason is gone.
func isCalledOff(err error) bool {
	return errors.Is(err, errUndone) || errors.Is(err, errUncordoned) || errors.Is(err, errRestarted) ||
		errors.Is(err, errIgnored) || errors.Is(err, errLeftAlone)
}

// run does what the node's intent asks for, to the end: the pods, the hooks, the mark that
// it is done. nil means that every message about it can be deleted.
func (d *Drain) run(ctx context.Context) error {
	working, stop := context.WithCancelCause(ctx)
	// In the end, from the last to the first: working is over, nobody looks at the node, nothing more begins beside the
	// stages, and what goes on there is waited for.
	defer d.beside.Wait()
	reading := false
	defer d.onChange(func() {
		if isClosed(d.quit.done) {
			stop(d.quit.why)
		}
		if !reading && len(d.carried().Hooks) > 0 {
			reading = true
			d.goBeside(func() { hookKeeper{d}.read(working) })
		}
	})()
	defer d.watchNode(working)()
	defer stop(nil)
	var err error
	carried := d.carried()
	waits := carried.HeldBack && decision.CanWait(carried, time.Now(), d.r.Policy) // else its pods may leave unrecorded
	if d.partial = d.resumed && !waits; d.partial && !carried.HeldBack {
		d.cordonTold.Do(func() {}) // the earlier leader has
	}
	if d.resumed && waits {
		d.history.heldBack = "it was held back before"
	}
	if d.resumed {
		err = d.forgetWhatPassed(working)
	}
	if err == nil {
		err = d.stages(working)
	}
	return d.runEnded(ctx, err)
}

// goBeside has something done beside the stages, and the end of run waits for it. If it panics, the drain ends with
// that, and begins again.
func (d *Drain) goBeside(do func()) {
	d.beside.Go(func() {
		if err := logging.Recover(d.log, func() error { do(); return nil }); err != nil {
			d.quitFor(err)
		}
	})
}

// runEnded does what is left to do at the end of the stages, and returns the error of the drain.
func (d *Drain) runEnded(ctx context.Context, err error) error {
	d.recordEpisode(err)
	switch {
	case errors.Is(err, errUndone):
		return nil
	case isCalledOff(err):
		return d.callOff(ctx, err)
	}
	return err
}

// stages are what a drain consists of. The hooks of the node are held open until they are
// completed. A node that was only to be cordoned may have to be evacuated after all.
func (d *Drain) stages(ctx context.Context) error {
	ended := map[intent.Hook]bool{} // true: completed here
	release := hookKeeper{d}.holdAll(ctx, ended)
	defer func() { release() }()
	if err := (beginStage{d}).run(ctx); err != nil {
		return err
	}
	for evacuated := false; ; {
		if !evacuated {
			if err := (evacuateStage{d}).run(ctx); err != nil {
				return err
			}
		}
		err := endStage{d}.run(ctx, release, ended)
		if evacuated = errors.Is(err, errHooksLeft); !evacuated && !errors.Is(err, errAsksMore) {
			return err
		}
		if !evacuated {
			if err := d.forgetDrained(ctx); err != nil {
				return err
			}
		}
		release()
		release = hookKeeper{d}.holdAll(ctx, ended)
	}
}

// forgetDrained has the completion delay count from the end of the evacuation that follows.
func (d *Drain) forgetDrained(ctx context.Context) error {
	if d.carried().DrainedAt.IsZero() || d.unrecorded.Load() {
		return nil
	}
	return d.rewrite(ctx, func(i intent.Intent) intent.Intent {
		i.DrainedAt = time.Time{}
		return i
	})
}

// hasPods reports whether pods have to leave that have not: a node that is only cordoned has none.
func (d *Drain) hasPods() bool {
	unknown := d.carried().Version == 0 // it is being recorded
	return !isClosed(d.podsGone.done) && (unknown || d.evacuating.Load() || !d.cordonsOnly())
}

// needsMachine reports whether the machine has to stay for the drain: not where the Node was deleted, and the instance
// has no other, because the drain then waits for the next one only.
func (d *Drain) needsMachine() bool {
	nodes := d.r.Cluster
	return d.carried().InWork() &&
		(d.hasPods() || nodes.Exists(d.ref) || len(nodes.ByInstance(d.ref.Instance)) > 0)
}

// AwaitRelease waits until the drain has ended, or does not need the machine any more, or returns the cause of ctx.
func (d *Drain) AwaitRelease(ctx context.Context) error {
	for !isClosed(d.done) {
		nodes, pods := d.r.Cluster.Changed(), d.podsGone.done
		if !d.needsMachine() {
			break
		}
		if isClosed(pods) {
			pods = nil
		}
		if err := awaitAny(ctx, d.done, nodes, pods, nil); err != nil {
			return err
		}
	}
	return nil
}

func (d *Drain) cordonsOnly() bool { return decision.CordonsOnly(d.carried(), d.r.Policy) }

// afterMachine calls do, maybe several times, when there is nothing left to evict from. do must not block.
func (d *Drain) afterMachine(do func()) (stop func()) {
	remove := d.onChange(func() {
		if isClosed(d.instanceGone.done) {
			do()
		}
	})
	forget := d.r.Cluster.OnChange(d.ref, func() {
		if !d.r.Cluster.Exists(d.ref) {
			do()
		}
	})
	return func() {
		forget()
		remove()
	}
}

// quitFor has the drain end for a reason: the first counts.
func (d *Drain) quitFor(reason error) {
	d.quit.closeFor(reason)
	d.tell()
}

// tellCordoned tells that the node is cordoned: once, whoever has written that.
func (d *Drain) tellCordoned(log logr.Logger, why decision.Why) {
	d.cordonTold.Do(func() {
		log.Info("cordoned", "why", why)
		d.r.Observer.Stepped(report.Step{Node: d.ref, Kind: report.Cordon, Why: why})
	})
}

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

// AwaitEnd waits for the end of the drain, also of one that failed, or returns the cause of ctx.
func (d *Drain) AwaitEnd(ctx context.Context) error { return awaitAny(ctx, d.done, nil, nil, nil) }

// A signal is closed by the first call of close; later calls do nothing.
type signal struct {
	done chan struct{} // closed then
	once sync.Once
	why  error // set before; nil where there is only one reason
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

func (r *Registry) newDrain(ref cluster.Ref) *Drain {
	d := &Drain{
		r: r,
		carrier: carrier{
			ref: ref, log: r.Log.WithValues("node", ref.Name, "instance", ref.Instance),
			turn: make(chan struct{}, 1), changed: make(chan struct{}),
		},
		since:        time.Now(),
		instanceGone: signal{done: make(chan struct{})},
		podsGone:     signal{done: make(chan struct{})},
		quit:         signal{done: make(chan struct{})},
		superseded:   signal{done: make(chan struct{})},
		done:         make(chan struct{}),
		progress:     progress{questions: make(chan chan<- evacuation.Progress)},
	}
	d.place = r.line.NewPlace(ref, d.carried)
	return d
}

// InstanceGone tells the drains of the nodes of an instance that nothing runs on it any more, and returns them.
func (r *Registry) InstanceGone(refs ...cluster.Ref) (told []*Drain) {
	for _, ref := range refs {
		if nd := r.Get(ref); nd != nil {
			nd.instanceGone.close()
			nd.tell()
			told = append(told, nd)
		}
	}
	return told
}

// A carrier is the node of a drain with the intent that it carries: who may write it, and who is told of its changes.
type carrier struct {
	ref cluster.Ref
	log logr.Logger // with the node and its instance

	// turn is a lock that can wait with a context: see lock. It is held to write unrecorded.
	turn       chan struct{}
	unrecorded atomic.Bool // the node cannot be written: the intent is here alone
	// uncordoned: nor is it cordoned, while it is unrecorded. uncordonedFor is why it was not when its pods had to leave;
	// nil: it was.
	uncordoned    atomic.Bool
	uncordonedFor atomic.Pointer[string]

	mu      sync.Mutex
	reserve bool           // Karpenter gets the pods off; see delegate
	intent  intent.Intent  // as the node carries it, with what was learned
	learned cluster.Change // what learn has yet to write; nil: nothing
	changed chan struct{}  // closed and replaced when the intent has changed

	listening sync.Mutex // held while listeners are called
	listeners []*func()  // see onChange
}

// Ref is the Node that is drained.
func (c *carrier) Ref() cluster.Ref { return c.ref }

// current returns the intent, and a channel that is closed when the intent changes.
func (c *carrier) current() (intent.Intent, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.intent, c.changed
}

func (c *carrier) carried() intent.Intent {
	i, _ := c.current()
	return i
}

// Changed returns a channel that is closed when the intent changes: when a notice is added or taken back.
func (c *carrier) Changed() <-chan struct{} {
	_, changed := c.current()
	return changed
}

// Carries reports whether the intent has a hook.
func (c *carrier) Carries(h *intent.Hook) bool { return c.carried().HasHook(*h) }

// Knows reports whether the intent has the notice, or has had it.
func (c *carrier) Knows(n notice.Notice) bool { return decision.Knows(c.carried(), n, time.Now()) }

// terms are what the drain of the pods has to observe now.
func (c *carrier) terms() evacuation.Terms {
	c.mu.Lock()
	defer c.mu.Unlock()
	terms := TermsOf(c.intent)
	terms.Reserve = c.reserve
	return terms
}

// onChange calls look now, after each change, and when the drain is called off or its instance is gone, until remove is
// called: a drain that waits for hours, beside thousands of others, needs no goroutine for that. look runs on the
// goroutine of whoever makes the change, once at a time: it must not block, make a change, nor call remove. When remove
// returns, look has too.
func (c *carrier) onChange(look func()) (remove func()) {
	c.listening.Lock()
	defer c.listening.Unlock()
	c.listeners = append(c.listeners, &look)
	look()
	return func() {
		c.listening.Lock()
		defer c.listening.Unlock()
		c.listeners = slices.DeleteFunc(c.listeners, func(l *func()) bool { return l == &look })
	}
}

// whileNot returns a context that ends with a cause as soon as over reports true. That is asked now and after each
// change, and must not block. stop is to be called.
func (c *carrier) whileNot(ctx context.Context, cause error, over func() bool) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	remove := c.onChange(func() {
		if over() {
			cancel(cause)
		}
	})
	return ctx, func() {
		remove()
		cancel(nil)
	}
}

func (c *carrier) tell() {
	c.listening.Lock()
	defer c.listening.Unlock()
	for _, look := range c.listeners {
		(*look)()
	}
}

// change changes what current and terms return. do is called with mu held.
func (c *carrier) change(do func()) {
	func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		do()
		close(c.changed)
		c.changed = make(chan struct{})
	}()
	c.tell()
}

// setIntent notes the intent that the node carries now.
func (c *carrier) setIntent(i intent.Intent) {
	c.change(func() {
		if c.learned != nil {
			i = c.learned(i)
		}
		c.intent = i
	})
}

// setReserve sets whether the drain is in reserve, as its terms say.
func (c *carrier) setReserve(on bool) { c.change(func() { c.reserve = on }) }

// lock waits for the turn to write to the node, or returns the cause of ctx. It is no
// mutex, because it is held for as long as the API server takes to answer.
func (c *carrier) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}: // also where ctx has ended: nobody else would own a new drain
		return nil
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *carrier) unlock() { <-c.turn }

// rewrite changes the intent of a node that is being drained, and tries until that is done. If the Node was deleted, it
// changes what is remembered of it. Others may write the node between two tries. The error is the cause of ctx.
func (d *Drain) rewrite(ctx context.Context, change cluster.Change) error {
	return d.r.Cluster.RetryWrite(ctx, d.log, d.ref, "write the intent", func(ctx context.Context) error {
		return d.rewriteOnce(ctx, change)
	})
}

// rewriteOnce is one try of rewrite.
func (d *Drain) rewriteOnce(ctx context.Context, change cluster.Change) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	ended, began := d.r.hasEnded(d), time.Now()
	err := d.recordAtLast(ctx)
	defer func() {
		if !errors.Is(ctx.Err(), context.Canceled) { // else it is another matter by now
			d.r.writes.note(d.ref, nil, began, err)
		}
	}()
	if err == nil {
		var carried *intent.Intent
		carried, err = d.r.Cluster.Record(ctx, d.ref, func(i intent.Intent) intent.Intent {
			if i = change(i); !ended { // the next episode may be another handler's
				i = d.r.Cluster.Joined(i)
			}
			return i
		})
		if err == nil {
			d.applyIntent(carried)
		}
	}
	if errors.Is(err, cluster.ErrNodeGone) { // the drain goes on without it
		left := change(d.carried())
		d.setIntent(left)
		d.r.Cluster.Remember(d.ref, left)
		err = nil
	}
	return err
}

// learn changes the intent of a drain, and then that of the node. So the drain heeds what was learned also
// while the API server does not answer, whatever is recorded meanwhile. The next leader learns it for itself. It is not
// called concurrently.
func (d *Drain) learn(ctx context.Context, change cluster.Change) error {
	d.change(func() { d.intent, d.learned = change(d.intent), change })
	err := d.rewrite(ctx, change)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.learned = nil
	return err
}

// recordAtLast records what could not be recorded before, and cordons the node with that. The caller holds the lock.
func (d *Drain) recordAtLast(ctx context.Context) error {
	if !d.unrecorded.Load() {
		return nil
	}
	carried, err := d.r.Cluster.Record(ctx, d.ref, d.orUnrecorded)
	if err == nil {
		d.written(carried)
	}
	return err
}

// written notes what the node carries now, with what could not be recorded before. The caller holds the lock.
func (d *Drain) written(carried *intent.Intent) {
	if d.unrecorded.Swap(false) && !carried.HeldBack && carried.Uncordoned < 2 {
		d.tellCordoned(d.log, d.why)
	}
	d.supersedes.Store(false)
	d.applyIntent(carried)
}

// orUnrecorded is what the node carries, or would carry if it could be written. That somebody has uncordoned it
// meanwhile stays counted. What was done to the node is what that says: the answer to a write may have been lost. The
// caller holds the lock.
func (d *Drain) orUnrecorded(on intent.Intent) intent.Intent {
	if !d.unrecorded.Load() {
		return on
	}
	carried := d.carried()
	if !d.supersedes.Load() { // else it was the cordon of the other drain
		carried.Uncordoned = max(carried.Uncordoned, on.Uncordoned)
	}
	carried.Cordoned, carried.Taints, carried.Excluded = on.Cordoned, on.Taints, on.Excluded
	if on.Cordoned && on.CordonedAt.After(carried.CordonedAt) {
		carried.CordonedAt, carried.FirstCordonedAt = on.CordonedAt, on.FirstCordonedAt
	}
	return carried
}
