// Package lease elects the one replica that acts, by a Kubernetes Lease.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// The timing of the lease. Losing a term costs more than a late takeover: every drain is resumed, every message comes
// again. So the lease lasts as long as three things ask for, and no longer:
//
//   - A leader keeps its term although the API server now takes 5 s for each answer. A renewal counts from when its
//     request was made. The one before was answered 5 s after it was made, the next is made retryPeriod later and is
//     answered after 5 s more: the leader acts for more than 10.7 s after a renewal.
//   - No two replicas act at once. A replica takes the lease when it has seen the same renew time for as long as the
//     lease lasts. It may miss a change by a second, because client-go compares renew times by the second. The leader
//     has 0.6 s to stop in. So it stops stopBefore the end of the lease, whatever happens to its requests. client-go
//     alone would count from the answer, which may come seconds later.
//   - A leader that was killed is followed within 16.1 s: the lease, and two retries, because client-go's jitter makes
//     each candidate retry after 1 to 2.2 times retryPeriod. One that stops in order releases the lease and is followed
//     at the next retry.
//
// Where answers are slow, a renewal that fails costs more of the lease, because client-go then makes three requests. So
// the lease lasts longer by perAnswer times a slow answer, which is enough for one, and by perFailure times a request
// that has failed, where there are more. The Lease says how long, and candidates go by that.
const (
	leaseDuration  = 13 * time.Second // where answers are fast; whole seconds, as the Lease has it
	perAnswer      = 4
	perFailure     = 6
	longestLease   = 60 * time.Second
	stopBefore     = 1600 * time.Millisecond
	retryPeriod    = 700 * time.Millisecond
	requestTimeout = 5400 * time.Millisecond // at least; twice as long as a slow answer
	longestTimeout = 10 * time.Second
)

// ErrLost is the cause of the context of a leader that no longer leads.
var ErrLost = errors.New("the lease was lost")

// errInDoubt has client-go read the Lease before the next write.
var errInDoubt = errors.New("the last write may have been carried out")

// An Elector stands for election with the Lease Namespace/Name, which the replicas share.
type Elector struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string
	Identity  string // of this replica; no other may have it
	// Labels are those that the Lease has while this replica holds it. Others that it has stay.
	Labels map[string]string
	Log    logr.Logger
	// Observe, if it is not nil, is called with the outcome of each request about the
	// lease. There are one or two a second. That the lease does not exist is no error.
	Observe func(error)
	// NewLeader, if it is not nil, is called with the identity of who holds the lease, whenever this replica sees
	// another one there; empty: nobody holds it. It may be called while lead runs.
	NewLeader func(identity string)
	// Renewed, if it is not nil, is called with each Lease that this replica has written.
	Renewed func(Term)
	// Paused, if it is not nil, is called when this replica holds a Lease that pauses the handler, with why, and when it
	// does not any more.
	Paused func(why string, paused bool)
}

// A Term is what is known of the term of this replica at a renewal.
type Term struct {
	Since       time.Time     // it holds the Lease
	Transitions int           // how often the holder has changed
	Answer      time.Duration // how long the API server takes for one: the slowest of the last ten or so
}

// timedLock gives each request its time and each renewal its duration, and calls lost before the Lease may be somebody
// else's. One goroutine may use it at a time.
type timedLock struct {
	resourcelock.Interface
	observe func(error) // is told the outcome of each request
	renewed func(Term)
	lost    func()
	log     logr.Logger
	reads   logging.Outage
	writes  logging.Outage
	slow    time.Duration                      // of an answer: the slowest, forgotten within some ten answers
	failing time.Duration                      // of a request that fails: the longest, forgotten within some hundred
	written *resourcelock.LeaderElectionRecord // the last that was accepted; nil: none
	inDoubt bool                               // whether the last write was carried out; the next Get tells
	ours    time.Time                          // nobody else takes the Lease before
	loss    *time.Timer                        // calls lost; nil: the Lease was never ours
}

// keepUntil says until when the Lease is ours.
func (l *timedLock) keepUntil(ours time.Time) {
	left := time.Until(ours) - stopBefore
	if l.ours = ours; l.loss == nil {
		l.loss = time.AfterFunc(left, l.lost)
		return
	}
	l.loss.Reset(left)
}

// bounded makes one request, which ends in time.
func (l *timedLock) bounded(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, min(max(requestTimeout, 2*l.slow), longestTimeout))
	defer cancel()
	begin := time.Now()
	err := request(ctx)
	took := time.Since(begin)
	l.slow = max(took, l.slow*3/4)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		l.failing = l.failing * 31 / 32
	case !errors.Is(err, context.Canceled): // that is our own end
		l.failing = max(took, l.failing)
	}
	return err
}

// lasts is how long a lease lasts that is written now, in whole seconds.
func (l *timedLock) lasts() time.Duration {
	return min(leaseDuration+perAnswer*l.slow+perFailure*l.failing, longestLease).Truncate(time.Second)
}

// Get implements resourcelock.Interface.
func (l *timedLock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	err = l.bounded(ctx, func(ctx context.Context) error {
		record, raw, err = l.Interface.Get(ctx)
		return err
	})
	seen := err
	if apierrors.IsNotFound(err) {
		seen = nil
	}
	l.observe(seen)
	l.note(&l.reads, seen)
	l.inDoubt = l.inDoubt && seen != nil
	if err == nil && record.HolderIdentity != l.Identity() {
		l.note(&l.writes, nil) // there is nothing to write
		if l.loss != nil && record.HolderIdentity != "" {
			l.lost() // it was taken while this process or its machine stood still, and our clock with it
		}
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *timedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

// Update implements resourcelock.Interface.
func (l *timedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

func (l *timedLock) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	do func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	if l.inDoubt { // another version is a conflict, which costs a request more
		return errInDoubt
	}
	lasts := l.lasts()
	record.LeaseDurationSeconds = int(lasts.Seconds())
	record.RenewTime = metav1.Now() // client-go's is older, if it has read the Lease before
	ours := record.RenewTime.Add(lasts)
	if l.loss != nil && ours.Before(l.ours) {
		l.keepUntil(ours) // it may be written although no answer comes
	}
	err := l.bounded(ctx, func(ctx context.Context) error { return do(ctx, record) })
	if err == nil {
		l.written = &record
		l.renewed(Term{record.AcquireTime.UTC(), record.LeaderTransitions, l.slow})
		l.keepUntil(ours)
	}
	l.inDoubt = err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err)
	l.observe(err)
	l.note(&l.writes, err)
	if err == nil {
		l.note(&l.reads, nil) // who leads reads only after a failure
	}
	return err
}

// note logs requests that fail again and again.
func (l *timedLock) note(o *logging.Outage, err error) {
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another replica was faster
		o.Ended(l.log)
	case !errors.Is(err, context.Canceled): // that is our own end
		o.Failed(l.log, err)
	}
}

// stop ends the watch for the loss of the Lease.
func (l *timedLock) stop() {
	if l.loss != nil {
		l.loss.Stop()
	}
}

// release gives the Lease up, if it is identity's. A renewal that was cut off may have changed the Lease: then it is
// read again.
func (l *timedLock) release(ctx context.Context, identity string) (released bool, err error) {
	if l.written != nil && l.letGo(ctx, l.written.LeaderTransitions) == nil {
		return true, nil
	}
	record, _, err := l.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != identity {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, l.letGo(ctx, record.LeaderTransitions)
}

func (l *timedLock) letGo(ctx context.Context, transitions int) error {
	now := metav1.Now()
	return l.bounded(ctx, func(ctx context.Context) error {
		return l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: transitions,
		})
	})
}

// Run calls lead whenever this replica holds the lease and the handler is not paused, until ctx ends or lead
// returns by itself. When the lease cannot be renewed, the context of lead ends with
// ErrLost as its cause; after that Run stands for election again. Run releases the
// lease only after lead has returned, so that two replicas never act at once.
func (e Elector) Run(ctx context.Context, lead func(context.Context) error) error {
	for {
		err := e.term(ctx, lead)
		if !errors.Is(err, ErrLost) {
			return err
		}
		logging.Warn(e.Log, "standing for election again", "error", err)
	}
}

// term is one candidacy: it waits for the lease and calls lead while it holds it.
func (e Elector) term(ctx context.Context, lead func(context.Context) error) error {
	leading, stopLeading := context.WithCancelCause(ctx)
	defer stopLeading(nil)
	p := &pause{changed: make(chan struct{})}
	lock := e.lock(p, func() { stopLeading(ErrLost) })
	acquired, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock,
		// The lock writes another duration, and ends the term in time.
		LeaseDuration: longestLease,
		RenewDeadline: longestLease - time.Second,
		RetryPeriod:   retryPeriod,
		// client-go would release the lease before lead has returned.
		ReleaseOnCancel: false,
		Name:            e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(acquired) },
			OnStoppedLeading: func() {},
			OnNewLeader:      e.NewLeader,
		},
	})
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	// The lease is kept until lead has returned. The lock logs what fails, once: client-go would at each try.
	electing, stopElecting := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer stopElecting()
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	select {
	case <-acquired:
		e.Log.Info("leading", "lease", e.Namespace+"/"+e.Name, "identity", e.Identity)
		err = e.unlessPaused(leading, p, lead)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	lost := errors.Is(context.Cause(leading), ErrLost)
	stopElecting()
	<-ended
	lock.stop()
	if lost {
		return ErrLost
	}
	e.release(ctx, lock)
	return err
}

func (e Elector) lock(p *pause, lost func()) *timedLock {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		Client:     watched{e.Client.Leases(e.Namespace), p},
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		Labels:     e.Labels,
	}
	observe := e.Observe
	if observe == nil {
		observe = func(error) {}
	}
	renewed := e.Renewed
	if renewed == nil {
		renewed = func(Term) {}
	}
	outage := func(what string) logging.Outage {
		return logging.Outage{
			Fails: "the lease is out of reach, trying again", Works: "the lease is within reach again", What: what,
		}
	}
	return &timedLock{
		Interface: lock, observe: observe, renewed: renewed, lost: lost, log: e.Log,
		reads: outage("reading"), writes: outage("writing"),
	}
}

// release releases the lease if this replica holds it, so that the next leader need not wait until it expires. It works
// after ctx has ended, and gives up after 7 s.
func (e Elector) release(ctx context.Context, lock *timedLock) {
	const timeout = 7 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if released, err := lock.release(ctx, e.Identity); err != nil {
		logging.Warn(e.Log, "the lease could not be released: it expires by itself",
			"error", err, "in", lock.lasts().String())
	} else if released {
		e.Log.Info("released the lease", "lease", e.Namespace+"/"+e.Name)
	}
}
