// Package drain gets the pods off a node before its deadline.
//
// A [Drainer] watches the pods of one node, evicts them in tiers, deletes those that would
// otherwise outlive the deadline, and waits until they are gone and their volumes are detached.
// A [Simulation] plays the same plan without a cluster.
//
// [Filter] says which pods have to leave, by kubectl's rules. nextStep, in plan.go, decides what is
// done with a pod and when; it is pure, and its comment is the table of what it decides. This file
// carries the plan out, request.go makes the requests.
package drain

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

const (
	// lateBindTime is how long after the cordon a pod can still appear that a scheduler had bound
	// before it saw the cordon.
	lateBindTime = 5 * time.Second
	// recheckInterval is how often the node's readiness is checked while a pod is past its end.
	recheckInterval = 10 * time.Second
	// maxPending bounds the evictions of one drain that wait at the gate or for an answer. Urgent
	// ones are counted apart, with the same bound.
	maxPending = 16
)

// Drainer drains nodes. Drain may be called concurrently for different nodes; the fields must not
// change meanwhile.
type Drainer struct {
	Client kube.Client
	Filter Filter
	// Grace replaces the pods' own termination grace period; negative: their own.
	Grace time.Duration
	// Self is the pod that this program runs in, which leaves as the last one.
	Self types.NamespacedName
	// Keep is a pod of a DaemonSet that stays whatever a rule says: the one of a program that runs on
	// each node. If it were evicted, the next one would have to begin with the drain again.
	Keep types.NamespacedName
	// Gate bounds the evictions and deletions in flight; nil: no bound.
	Gate *pace.Gate
	// Surge has the workload of a pod roll out a replacement, which then takes the pod away. It is called
	// once for each pod whose turn is to leave so, on a goroutine of its own, while there is time for it.
	// ctx ends when there is no more. An error says why there is no replacement: the pod leaves last, as
	// it does if the replacement does not come in time. The pod has the fields that [Trim] keeps, and
	// must not be changed. nil: no workload is asked for that.
	Surge func(ctx context.Context, pod *corev1.Pod) error
	// Volumes are waited for after the pods; nil: they are not.
	Volumes *Volumes
	// Observe is called for each answer to a request for a pod, by the goroutine of Drain; nil: it
	// is not called.
	Observe func(evacuation.Answer)
	// Blocked is called when something has kept a pod or the volumes on the node for a while, once
	// for each pod and cause, by the goroutine of Drain; nil: it is not called.
	Blocked func(evacuation.Blocked)

	turns           sync.Once
	lists, watches  chan struct{} // see podTurns
	conditionDenied sync.Once     // the log says that pods of Jobs cannot get their condition
}

// Drain asks the pods that have to leave to do so. It returns
//
//   - when they are gone (their UIDs, not only their deletion accepted) and their volumes are
//     detached. A pod that has ended counts as gone after endedTime, though finalizers keep it, and so
//     does one that should have ended two minutes ago, if no kubelet confirms it;
//   - at the deadline;
//   - when ctx ends. Requests in flight then get requestLinger to end.
//
// The error is the cause of ctx, or nil: whatever else fails is tried again. ErrMachineGone is no
// error: it ends the drain.
func (d *Drainer) Drain(ctx context.Context, request *evacuation.Request) (*evacuation.Result, error) {
	calls, cut := retry.WithDelayedCancel(ctx, requestLinger)
	defer cut()
	r := newRun(d, request, ctx.Done())
	defer r.close()
	err := r.drain(ctx, calls)
	if errors.Is(err, evacuation.ErrMachineGone) {
		err, r.result.Volumes = nil, 0
		if !r.pods.listed {
			r.countLost(calls)
		}
	}
	result := r.result // without the pods and all else that r has
	return &result, err
}

// run is one drain in progress. Its fields belong to the goroutine of Drain. Other goroutines hand it functions through
// posted, and it calls them there.
//
// Two contexts are passed through its methods: ctx is the drain's, and calls is the one of its
// requests, which ends requestLinger later; see Drain.
type run struct {
	drainer *Drainer
	request evacuation.Request
	told    time.Time // when the deadline of the terms was told
	store   *podStore
	result  evacuation.Result

	pods     nodePods
	slots    slots
	requests requests

	cordonPending time.Time // when the node was last seen to be cordoned again soon; zero: never
	nextProgress  time.Time // when the log says next what the drain waits for; zero: not set yet

	begun       bool            // the pods are being listed, or were; else it waits at the gate
	volumeWaits []overview.Wait // what is waited for after the pods; nil: nothing

	inFlight int           // requests in flight
	posted   chan func()   // functions that the goroutine of Drain is to call
	ended    chan struct{} // closed when Drain returns: nobody receives from posted any more
}

// newRun returns the drain that is requested. It begins no request after stopped is closed.
func newRun(d *Drainer, request *evacuation.Request, stopped <-chan struct{}) *run {
	r := &run{
		drainer: d,
		request: *request,
		told:    time.Now(),
		store:   newPodStore(),
		posted:  make(chan func()),
		ended:   make(chan struct{}),
	}
	r.slots = slots{pending: map[lane]int{}}
	r.requests = requests{drainer: d, store: r.store, log: request.Log, stopped: stopped}
	r.pods = nodePods{
		drainer: d, request: &r.request, store: r.store, result: &r.result,
		leaving: map[types.UID]*podState{}, departed: map[types.UID]*podState{}, staying: map[types.UID]bool{},
		newcomers: newcomers{
			cordonedAt: request.Terms.CordonedAt, replaceable: map[owner]int{}, staying: map[types.UID]newcomer{},
		},
		obstacles: obstacles{node: request.Node, blocked: d.Blocked, reported: map[string]bool{}},
		claims:    claims{volumes: map[claim]string{}}, mistakes: map[string]bool{},
	}
	return r
}

// drain does what Drain says, except that it returns ErrMachineGone.
func (r *run) drain(ctx, calls context.Context) error {
	if err := r.startWatch(ctx, calls); err != nil {
		return err
	}
	inTime, err := r.awaitPods(ctx, calls)
	if err == nil || errors.Is(err, evacuation.ErrMachineGone) {
		r.result.Record.PodsGone = time.Now()
	}
	r.result.Returned = r.pods.takeNewcomers(true)
	if volumes := r.drainer.Volumes; inTime && volumes != nil {
		begun := time.Now()
		r.result.Volumes, err = volumes.await(ctx, r)
		r.result.Record.VolumesTook = time.Since(begun)
	}
	return err
}

// startWatch waits for a slot at the gate and starts the pod watch. The slot is not released
// then: the first request takes it over. Otherwise the next node would be started before this
// one makes progress. startWatch returns when all pods have been seen once, early at the
// deadline, or with the cause of ctx when that ends. The watch ends with the context of the requests.
func (r *run) startWatch(ctx, calls context.Context) error {
	release, err := r.acquireSlot(ctx)
	if err != nil || release == nil {
		return err
	}
	r.slots.start, r.begun = release, true
	go r.store.watch(calls, r.drainer, r.request.Node)
	for timeout := time.Now().Add(requestTimeout); !r.store.synced(); {
		until := earlier(timeout, r.end())
		if !time.Now().Before(until) {
			r.slots.releaseStart()
			return nil
		}
		if err := r.sleep(ctx, until, nil); err != nil {
			return err
		}
	}
	return nil
}

// awaitPods asks the pods to leave until none is waited for any more, or, which is not in time,
// until the deadline. It returns the cause of ctx when that ends first.
func (r *run) awaitPods(ctx, calls context.Context) (inTime bool, err error) {
	for {
		wake, done, inTime := r.look(calls)
		if done {
			return inTime, nil
		}
		if err := r.sleep(ctx, wake, nil); err != nil {
			r.interrupt(err)
			return false, err
		}
	}
}

// look does what is due. It returns when to look again (zero: when something changes), and whether no pod is waited for
// any more, in time or because of the deadline.
func (r *run) look(calls context.Context) (wake time.Time, done, inTime bool) {
	now := time.Now()
	if r.pastEnd(now) {
		r.countMissed(now)
		return time.Time{}, true, false
	}
	wake = r.end()
	if r.store.synced() {
		wake, done = r.startDueRequests(calls, now)
		wake = earlier(wake, r.askForOverdue(calls, now))
		r.readClaims(calls)
		r.slots.releaseStart()
		if done {
			r.pods.countPods(nil)
			return time.Time{}, true, true
		}
	}
	return earlier(wake, r.logProgress(now, func(left string) { r.logWaiting(now, left) })), false, false
}

// startDueRequests starts the requests that are due. It returns when to look again (zero: when
// something changes), and whether the drain is done with its pods.
func (r *run) startDueRequests(calls context.Context, now time.Time) (wake time.Time, done bool) {
	front := r.pods.refresh(now)
	if front > own { // no pod is waited for
		if !r.slots.idle() || !r.pods.settledAt.IsZero() {
			return earlier(r.end(), r.pods.settledAt), false
		}
		cordoned := r.request.Terms.CordonedAt
		if cordoned.After(now) { // it is of the clock of an earlier leader
			cordoned = r.told
		}
		if look := cordoned.Add(lateBindTime); now.Before(look) {
			return earlier(r.end(), look), false
		}
		if r.pods.nodeState().CordonPending {
			r.cordonPending = now
		}
		// The terms say it a moment after the cordon.
		look := r.cordonPending.Add(recheckInterval + lateBindTime)
		if r.cordonPending.After(r.request.Terms.CordonedAt) && now.Before(look) {
			return earlier(earlier(r.end(), look), now.Add(recheckInterval)), false
		}
		return time.Time{}, true
	}
	wake = earlier(r.end(), r.pods.settledAt)
	if r.pods.newcomers.awaitCordon() {
		wake = earlier(wake, now.Add(recheckInterval))
	}
	for _, pod := range r.pods.sorted() {
		p := r.pods.leaving[pod.UID]
		answered := r.result.Record.LastAsked.Add(requestTimeout)
		if p.tier == own && r.inFlight > p.inFlight && now.Before(answered) && !p.mustForce(r.request.Terms, now) {
			p.dequeue() // what is cut off by our end may be done all the same
			wake = earlier(earlier(wake, answered), p.forceAt(r.request.Terms))
			continue
		}
		wake = earlier(wake, r.advance(calls, pod, p, front, now))
	}
	return wake, false
}

// advance takes the next step with a pod: it starts a request, or waits at the gate for its
// turn, or waits. It returns when to look again; zero: when something changes.
func (r *run) advance(calls context.Context, pod *corev1.Pod, p *podState, front tier, now time.Time) time.Time {
	wake := earlier(p.blocks.reportAt(), p.changesAt(now))
	if end := p.stopsAt(); !end.IsZero() && !p.unconfirmed {
		wake = earlier(wake, later(end, now.Add(recheckInterval)))
		if at := r.pods.kubelet.unconfirmedAt(p); now.Before(at) {
			wake = earlier(wake, at)
		}
	}
	wake = earlier(wake, r.startSurge(calls, pod, p, now))
	terms := r.request.Terms
	s := nextStep(*p, front, terms, now)
	if s.kind == stepWait {
		p.dequeue()
		return earlier(wake, s.until)
	}
	priority := priorityOf(*p, s, terms, now)
	in := laneOf(s, priority)
	if release := r.slots.take(p); release != nil {
		r.startRequest(calls, &call{pod: pod, state: p, step: s, lane: in}, release)
		return earlier(wake, nextStep(*p, front, terms, now).until)
	}
	switch {
	case p.ticket == nil && r.slots.hasRoom(in, priority):
		r.enter(p, in, priority)
	case p.ticket != nil && !p.ticket.priority.Same(priority):
		p.dequeue() // and enters again with the new priority
	}
	if !p.mustForce(terms, now) { // once it must, its priority is another
		wake = earlier(wake, p.forceAt(terms))
	}
	return wake
}

// interrupt ends what look has begun, when the context ends with a cause.
func (r *run) interrupt(cause error) {
	r.pods.dequeueAll()
	for r.inFlight > 0 { // the answers to the requests in flight are applied
		(<-r.posted)()
	}
	if errors.Is(cause, evacuation.ErrMachineGone) {
		r.pods.countPods(&r.result.Lost)
		return
	}
	for uid, p := range r.pods.leaving { // nobody can call that off
		if (p.evicted || p.forced) && !p.unconfirmed {
			r.pods.departed[uid] = p
		}
	}
	r.pods.countPods(nil)
}

// end is when the drain ends at the latest: at the deadline. If that had passed when it was told, as
// for a hibernation, it is when each pod has had its second of grace. Zero: no deadline.
func (r *run) end() time.Time {
	end := r.request.Terms.Deadline
	if least := r.told.Add(margin); !end.IsZero() && end.Before(least) {
		return least
	}
	return end
}

// pastEnd reports whether it is time for the drain to end.
func (r *run) pastEnd(now time.Time) bool {
	end := r.end()
	return !end.IsZero() && !now.Before(end)
}

// sleep waits until wake (zero: no limit) or until something changes, and applies the change. also is closed when
// something else changes; nil: nothing else counts. sleep returns the cause of ctx when that ends.
func (r *run) sleep(ctx context.Context, wake time.Time, also <-chan struct{}) error {
	var alarm <-chan time.Time
	if !wake.IsZero() {
		timer := time.NewTimer(time.Until(wake))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-alarm:
	case <-also:
	case <-r.store.changed:
	case terms := <-r.request.Changed:
		if !terms.Deadline.Equal(r.request.Terms.Deadline) {
			r.told = time.Now()
		}
		r.request.Terms = terms
	case f := <-r.posted:
		f()
	case reply := <-r.request.Asked:
		reply <- r.progress(time.Now())
	}
	if ctx.Err() != nil { // also where something else has come at the same time
		return context.Cause(ctx)
	}
	return nil
}

// post has the goroutine of Drain call f. It returns false if Drain has returned.
func (r *run) post(f func()) bool {
	select {
	case r.posted <- f:
		return true
	case <-r.ended:
		return false
	}
}

// close releases what the drain holds at the gate.
func (r *run) close() {
	close(r.ended)
	r.slots.releaseStart()
	r.pods.dequeueAll()
}

// earlier returns the earlier of two times. A zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
