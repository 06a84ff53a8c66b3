// Package nodedrain has the one drain of each node: what is recorded of notices, who may begin, the stages from the
// cordon to the completion of the hooks, and how a drain is resumed by the next leader or taken back.
package nodedrain

import (
	"cmp"
	"context"
	"maps"
	"runtime/pprof"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/lru"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/holdback"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// Hooks speaks to Auto Scaling about lifecycle hooks; see package asg.
type Hooks interface {
	Limits(ctx context.Context, h intent.Hook) (notice.HookLimits, error)
	Hold(ctx context.Context, h intent.Hook)
	Waits(ctx context.Context, h intent.Hook) (waits, ended bool, err error)
	Complete(ctx context.Context, h intent.Hook) error
	// Failure is why a hook that is being completed is not completed yet; nil: nothing has failed so far.
	Failure(h intent.Hook) error
	// HeartbeatFailure is why a hook that is being held open may end by itself; nil: nothing is known that says so. ends
	// is when, if that is near; zero: it is not, or not known.
	HeartbeatFailure(h intent.Hook) (ends time.Time, err error)
}

// Replacements speaks to Auto Scaling about other instances in the place of those that go; see package asg.
type Replacements interface {
	Member(ctx context.Context, id string) (m asg.Member, ok bool, err error)
	Group(ctx context.Context, name string) (asg.Group, error)
	MarkUnhealthy(ctx context.Context, id string) error
}

// Drainer gets the pods off a node; see package drain.
type Drainer interface {
	Drain(ctx context.Context, o *evacuation.Request) (*evacuation.Result, error)
	// Remaining lists the pods that would have to leave a node by the rules.
	Remaining(ctx context.Context, node string, rules decision.Rules) ([]string, error)
}

// A PolicyFile has the rules of a file that may change. Its methods may be called concurrently.
type PolicyFile interface {
	// Rules are those of now. They are not changed any more.
	Rules() *decision.Rules
	// Changed returns a channel that is closed when there are other rules.
	Changed() <-chan struct{}
}

// Config is what drains are made of.
type Config struct {
	Cluster *cluster.Cluster
	Lookup  *lookup.Lookup // the controller makes it
	Hooks   Hooks
	Drainer Drainer
	// LoadBalancers are waited for before a drain is called drained; nil: they are not.
	LoadBalancers LoadBalancers
	// Replacements gets nodes replaced before their drains, where a rule asks for it; nil: they are not.
	Replacements Replacements
	// Karpenter gets the nodes that Karpenter drains; nil: it drains none.
	Karpenter Karpenter
	Observer  report.Observer
	// Blocked is told what a drain waits for, beside pods; nil: nobody wants to know.
	Blocked func(evacuation.Blocked)
	// Ended is told of each episode that ends; nil: nobody wants to know. It must not block, and is called
	// concurrently.
	Ended func(overview.Episode)
	// Cancelled reports whether the scheduled change that a notice for an instance has announced was cancelled since. It
	// must not block, and is called concurrently; the controller sets it.
	Cancelled func(instance string, e intent.Entry) bool
	Log       logr.Logger

	// Policy are the options about decisions.
	decision.Policy
	// PolicyFile has the rules of the policy file; nil: there is none.
	PolicyFile PolicyFile
	// MaxUnready is how many nodes may be not ready or cordoned for drains that can
	// wait: a number, or a percentage of all nodes. Zero: no bound.
	MaxUnready intstr.IntOrString
	// OnNode: this handler drains the Node that it runs on because nobody leads who has a queue; see package onnode. It
	// leaves the end of a drain that such a leader has begun to the next one, which can complete its hooks.
	OnNode bool
	// DryRun decides and logs, and writes nothing.
	DryRun bool
	// CompletionDelay is waited between the end of a drain and the completion of its hooks.
	CompletionDelay time.Duration
	// Workers bounds the drains that are not urgent and run at once; 0: no bound.
	Workers int
}

// CurrentPolicy are the options with the rules of now.
func (c *Config) CurrentPolicy() decision.Policy {
	p := c.Policy
	if c.PolicyFile != nil {
		p.Rules = *c.PolicyFile.Rules()
	}
	return p
}

// RulesChanged returns a channel that is closed when the rules change; nil: they never do.
func (c *Config) RulesChanged() <-chan struct{} {
	if c.PolicyFile == nil {
		return nil
	}
	return c.PolicyFile.Changed()
}

// A Registry has the one drain of each node. Its methods may be called concurrently.
//
// The locks, in the order in which they are taken: carrier.turn, that of line, then Registry.mu, or carrier.listening
// and carrier.mu.
// Nobody waits for a request, or for a turn, while holding a mutex.
type Registry struct {
	Config

	toRun   chan *Drain    // drains for Run to carry out
	resumed chan struct{}  // see Resumed
	workers chan struct{}  // a semaphore; nil: no bound
	line    *holdback.Line // who may begin

	leftPods leftPods
	writes   failingWrites

	mu     sync.Mutex
	byNode map[types.UID]*Drain // one a node
}

// New returns a registry without drains. Run carries them out.
func New(cfg Config) *Registry {
	r := &Registry{
		Config:   cfg,
		leftPods: leftPods{lru.New(mostLeftPods)},
		toRun:    make(chan *Drain),
		resumed:  make(chan struct{}),
		byNode:   map[types.UID]*Drain{},
		writes:   failingWrites{cluster: cfg.Cluster, byNode: map[types.UID]failingWrite{}},
	}
	r.line = holdback.New(holdback.Config{
		Cluster: cfg.Cluster, Policies: &r.Config, MaxUnready: cfg.MaxUnready,
		Places: r.places, Joins: r.isDraining, Replaces: r.replacesFirst,
	})
	if cfg.Workers > 0 {
		r.workers = make(chan struct{}, cfg.Workers)
	}
	return r
}

// Get returns the drain of the node; nil if there is none.
func (r *Registry) Get(ref cluster.Ref) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byNode[ref.UID]
}

// getOrCreate returns the drain of the node.
func (r *Registry) getOrCreate(ref cluster.Ref) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.byNode[ref.UID]
	if d == nil {
		d = r.newDrain(ref)
		r.byNode[ref.UID] = d
	}
	return d
}

// allDrains returns the drains, in no order.
func (r *Registry) allDrains() []*Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.byNode))
}

// drainsOf returns the drains of all Nodes of an instance, by the Nodes' names; none if its id is not known.
func (r *Registry) drainsOf(id string) (drains []*Drain) {
	if id == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.byNode {
		if d.ref.Instance == id {
			drains = append(drains, d)
		}
	}
	slices.SortFunc(drains, func(a, b *Drain) int { return cmp.Compare(a.ref.Name, b.ref.Name) })
	return drains
}

// otherDrains returns the drains of the other Nodes of the same instance.
func (r *Registry) otherDrains(ref cluster.Ref) []*Drain {
	return slices.DeleteFunc(r.drainsOf(ref.Instance), func(d *Drain) bool { return d.ref.UID == ref.UID })
}

// places are where the drains stand in the line.
func (r *Registry) places() []*holdback.Place {
	all := r.allDrains()
	places := make([]*holdback.Place, len(all))
	for k, d := range all {
		places[k] = d.place
	}
	return places
}

// locked returns the drain of the node, locked. It has not ended. A new one has not started. The error is the cause of
// ctx.
func (r *Registry) locked(ctx context.Context, ref cluster.Ref) (*Drain, error) {
	for {
		d := r.getOrCreate(ref)
		if err := d.lock(ctx); err != nil {
			return nil, err
		}
		if !r.hasEnded(d) {
			return d, nil
		}
		d.unlock() // it ended while we waited for it
	}
}

// reserveSuccessor makes another drain of the node take the place of one that is about to be quit, so that nobody
// begins one in between. It has not started, and it is locked. It returns nil if the drain is
// being called off, which may begin it again, or has ended.
func (r *Registry) reserveSuccessor(d *Drain) *Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(d.quit.done) {
		return nil
	}
	return r.successorOf(d)
}

// successorOf returns the drain that takes the place of one at its end, as reserveSuccessor does; nil: that has ended,
// or has one. The caller holds mu.
func (r *Registry) successorOf(d *Drain) *Drain {
	if d.ended || d.next != nil && !d.next.ended {
		return nil
	}
	d.next = r.newDrain(d.ref)
	d.next.turn <- struct{}{}
	return d.next
}

// remove says that the drain has ended: the next notice begins another one.
func (r *Registry) remove(d *Drain) {
	d.place.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	d.ended = true
	if r.byNode[d.ref.UID] == d {
		delete(r.byNode, d.ref.UID)
		if d.next != nil && !d.next.ended {
			r.byNode[d.ref.UID] = d.next
		}
	}
}

func (r *Registry) hasEnded(d *Drain) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return d.ended
}

// Resumed returns a channel that is closed when the drains of earlier leaders have begun again, but for those of nodes
// without a provider id: EC2 is still asked which instances they are.
func (r *Registry) Resumed() <-chan struct{} { return r.resumed }

// Run carries out the drains: first those that the nodes carry, then those that are recorded. It returns the cause of
// ctx when ctx ends. Nothing is written after it has returned.
func (r *Registry) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { r.resume(ctx) })
	if !r.DryRun {
		r.Cluster.NoteNewNodes()
		all.Go(func() { r.forEach(ctx, r.Cluster.Uncordoned, r.revertUncordoned) })
		all.Go(func() { r.forEach(ctx, r.Cluster.NodesToInform, r.informNode) })
		all.Go(func() {
			if awaitAny(ctx, r.resumed, nil, nil, nil) == nil { // a drain that an earlier leader has begun is waited for
				r.forEach(ctx, r.Cluster.Restarted, r.revertIfRestarted)
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case nd := <-r.toRun:
			all.Go(func() {
				switch err := r.carryOut(ctx, nd); {
				case err != nil && ctx.Err() == nil:
					r.beginAgain(ctx, nd, err)
				case err != nil:
					nd.log.Info("the drain is interrupted: the next term goes on with it", "why", context.Cause(ctx))
				}
			})
		}
	}
}

// forEach works on the nodes that find returns now and after each change of a node, until ctx ends: a node that cannot
// be written holds up no other.
func (r *Registry) forEach(ctx context.Context, find func() []cluster.Ref, work func(context.Context, cluster.Ref)) {
	nodes := cluster.PerNode{Log: r.Log}
	defer nodes.Wait()
	r.Cluster.AtEachChange(ctx, nil, func() {
		for _, ref := range find() {
			nodes.Do(ref.UID, func() { work(ctx, ref) })
		}
	})
}

// carryOut carries out a drain, and tells those who wait for its end.
func (r *Registry) carryOut(ctx context.Context, nd *Drain) error {
	working := pprof.WithLabels(ctx, pprof.Labels("node", nd.ref.Name, "instance", nd.ref.Instance))
	pprof.SetGoroutineLabels(working) // a goroutine dump tells whose drain it is
	err := logging.Recover(r.Log, func() error { return nd.run(working) })
	r.end(nd, err)
	return err
}

// failedPause is how long after a failure a drain is begun again.
const failedPause = 30 * time.Second

// beginAgain begins the drain of a node again that has failed by a mistake of this program: its message may have been
// deleted, as the node carries the intent.
func (r *Registry) beginAgain(ctx context.Context, nd *Drain, failure error) {
	r.Log.Error(failure, "the drain of a node failed: it begins again", "node", nd.ref.Name, "in", failedPause.String())
	if retry.Sleep(ctx, failedPause) != nil {
		return
	}
	i, carries := r.intentOn(nd.ref)
	if !carries || !r.Cluster.Serves(i) {
		return
	}
	i = i.Current(time.Now())
	if last := nd.carried(); len(i.Hooks) == 0 {
		i.Hooks = last.Hooks // a Node without a provider id proves none
	}
	again := r.getOrCreate(nd.ref)
	if r.resumeDrain(ctx, again, i) == nil && r.hasEnded(again) { // a notice had nothing to add meanwhile
		_ = r.goOn(ctx, r.Log, nd.ref)
	} // each ends with ctx alone
}

// end says that the drain has ended, and with which error. One that has never started can be waited for, too; then the
// caller holds its lock.
func (r *Registry) end(nd *Drain, err error) {
	r.remove(nd)
	nd.err = err
	close(nd.done)
}

// resume begins the drains that the nodes carry from an earlier leader.
func (r *Registry) resume(ctx context.Context) {
	if r.DryRun {
		close(r.resumed)
		return
	}
	var unfinished []cluster.Unfinished
	err := cluster.Retry(ctx, r.Log, "list the nodes to go on with", func(ctx context.Context) (err error) {
		var unreadable error
		unfinished, unreadable, err = r.Cluster.Unfinished(ctx)
		if unreadable != nil { // a kubelet can write anything there: the next notice replaces it
			r.Log.Error(unreadable, "the intent in the annotation of a node cannot be read")
		}
		return err
	})
	if err != nil {
		return
	}
	r.resumeAll(ctx, unfinished)
}

// resumeAll begins the drains of these nodes.
func (r *Registry) resumeAll(ctx context.Context, unfinished []cluster.Unfinished) {
	var asking sync.WaitGroup
	defer asking.Wait()
	drains := make([]*Drain, len(unfinished))
	for k, u := range unfinished {
		if len(u.Claimed) == 0 {
			drains[k] = r.getOrCreate(u.Ref) // two of them may be of one instance, and look for each other
		}
	}
	for k, u := range unfinished {
		if len(u.Claimed) > 0 { // only EC2 can say whose notices and hooks they are: no other drain waits for that
			asking.Go(func() {
				if r.identify(ctx, &u) == nil && r.resumeDrain(ctx, r.getOrCreate(u.Ref), u.Intent) == nil {
					r.revertIfRestarted(ctx, u.Ref)
				}
			})
		} else if r.resumeDrain(ctx, drains[k], u.Intent) != nil {
			return
		} else if r.hasEnded(drains[k]) { // it was called off, or a notice had nothing to add: what is left by now begins
			asking.Go(func() { _ = r.goOn(ctx, r.Log, u.Ref) }) // with ctx alone it fails
		}
	}
	close(r.resumed)
}

// resumeDrain begins a drain with what its node carries, unless it has begun or ended meanwhile. It returns the cause
// of ctx if that ends first.
func (r *Registry) resumeDrain(ctx context.Context, nd *Drain, i intent.Intent) error {
	if err := nd.lock(ctx); err != nil {
		return err
	}
	defer nd.unlock()
	switch {
	case r.hasEnded(nd), nd.started:
		return nil
	case i.Finished(): // while EC2 was asked for its instance
		r.end(nd, nil)
		return nil
	}
	return r.begin(ctx, nd, i)
}

// begin begins the drain that a node carries. The caller holds the lock.
func (r *Registry) begin(ctx context.Context, nd *Drain, i intent.Intent) error {
	logging.Deadline(nd.log, i.Deadline()).Info("going on with the drain that the node carries")
	nd.setIntent(i)
	nd.resumed = true
	return r.start(ctx, nd)
}

// isInstance reports whether a node without a provider id is the instance that it claims to be. A kubelet can write
// such claims; only EC2 knows the name of an instance, and is asked until ctx ends. An error is its cause.
func (r *Registry) isInstance(ctx context.Context, log logr.Logger, ref cluster.Ref, claimed string) (bool, error) {
	if claimed == "" {
		return false, nil
	}
	inst, _, err := r.Lookup.Ask(ctx, log, "look up the instance that a node claims", claimed, lookup.Kept)
	if err != nil {
		return false, err
	}
	if inst.PrivateDNSName != ref.Name {
		logging.Warn(log, "the node claims another instance, or a hook of one: that is ignored", "instance", claimed)
		return false, nil
	}
	return true, nil
}

// identify finds out which instance a node without a provider id is, if its intent claims one. Without a quick answer
// the drain of a node that claims no hooks goes on without its instance. The error is the cause of ctx, or
// cluster.ErrNodeGone.
func (r *Registry) identify(ctx context.Context, u *cluster.Unfinished) error {
	log, asking := r.Log.WithValues("node", u.Ref.Name), ctx
	if !u.ClaimsHooks {
		quickly, cancel := context.WithTimeout(ctx, lookup.DoubtTimeout)
		defer cancel()
		asking = quickly
	}
	for _, id := range slices.Compact(u.Claimed) {
		switch is, err := r.isInstance(asking, log, u.Ref, id); {
		case err != nil:
			return context.Cause(ctx)
		case !is:
			continue
		}
		u.Ref.Instance = id
		err := cluster.Retry(ctx, log, "read the intent", func(ctx context.Context) (err error) {
			u.Intent, err = r.Cluster.ReadClaimed(ctx, u.Ref)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
