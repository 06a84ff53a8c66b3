// Package lease elects the one replica that acts, by a Kubernetes Lease.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The timing of the lease. A leader that cannot renew it stops before another replica can take it, whatever happens
// to its requests: it stops actAfter the renew time that it has written last. No replica takes the lease before it has
// seen the same renew time for leaseDuration. It may miss a change by a second, because client-go compares renew times
// by the second. So 0.6 s are left to stop in. client-go alone would count from the answer, which may come
// seconds later.
//
// A request has requestTimeout, so that a second one can be answered in time. A leader that was killed is followed
// within leaseDuration and two retries: client-go's jitter makes each candidate retry after 1 to 2.2 times
// retryPeriod. One that stops in order releases the lease and is followed at the next retry.
const (
	leaseDuration  = 7 * time.Second // whole seconds, as the Lease has it
	actAfter       = 5400 * time.Millisecond
	renewDeadline  = 6 * time.Second // client-go's, which ends later than actAfter
	requestTimeout = 2400 * time.Millisecond
	retryPeriod    = 400 * time.Millisecond
)

// ErrLost is the cause of the context of a leader that no longer leads.
var ErrLost = errors.New("the lease was lost")

// An Elector stands for election with the Lease Namespace/Name, which the replicas share.
type Elector struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string
	Identity  string // of this replica; no other may have it
	// Labels are those that the Lease has while this replica holds it. Others that it has stay.
	Labels map[string]string
	Log    *slog.Logger
	// Observe, if it is not nil, is called with the outcome of each request about the
	// lease. There are about two a second. That the lease does not exist is no error.
	Observe func(error)
	// NewLeader, if it is not nil, is called with the identity of who holds the lease, whenever this replica sees
	// another one there; empty: nobody holds it. It may be called while lead runs.
	NewLeader func(identity string)
}

// boundedLock bounds each request by requestTimeout, calls observe with its outcome, and remembers the last renew time
// that was written.
type boundedLock struct {
	resourcelock.Interface
	observe func(error)
	renewed atomic.Pointer[time.Time] // nil: never
}

// Get implements resourcelock.Interface.
func (l *boundedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.observe(nil)
	} else {
		l.observe(err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *boundedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

// Update implements resourcelock.Interface.
func (l *boundedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

func (l *boundedLock) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	do func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := do(ctx, record)
	if err == nil {
		l.renewed.Store(&record.RenewTime.Time)
	}
	l.observe(err)
	return err
}

// awaitLoss returns when the lease may be somebody else's soon, or when ended is closed.
func (l *boundedLock) awaitLoss(ended <-chan struct{}) {
	for {
		left := actAfter - time.Since(*l.renewed.Load())
		if left <= 0 {
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(left):
		}
	}
}

// Run calls lead whenever this replica holds the lease, until ctx ends or lead
// returns by itself. When the lease cannot be renewed, the context of lead ends with
// ErrLost as its cause; after that Run stands for election again. Run releases the
// lease only after lead has returned, so that two replicas never act at once.
func (e Elector) Run(ctx context.Context, lead func(context.Context) error) error {
	for {
		err := e.term(ctx, lead)
		if !errors.Is(err, ErrLost) {
			return err
		}
		e.Log.Warn("standing for election again", "error", err)
	}
}

// term is one candidacy: it waits for the lease and calls lead while it holds it.
func (e Elector) term(ctx context.Context, lead func(context.Context) error) error {
	lock := e.lock()
	acquired, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: leaseDuration,
		RenewDeadline: renewDeadline,
		RetryPeriod:   retryPeriod,
		// client-go would release the lease before it reports the loss, and that request
		// can take longer than the lease lasts; see release.
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
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx)) // the lease is kept until lead has returned
	defer stopElecting()
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	select {
	case <-ctx.Done():
		stopElecting()
		<-ended
		e.release(ctx, lock)
		return context.Cause(ctx)
	case <-acquired:
	}
	e.Log.Info("leading", "lease", e.Namespace+"/"+e.Name, "identity", e.Identity)
	leading, stopLeading := context.WithCancelCause(ctx)
	defer stopLeading(nil)
	go func() {
		lock.awaitLoss(ended)
		stopLeading(ErrLost)
	}()
	err = lead(leading)
	lost := errors.Is(context.Cause(leading), ErrLost)
	stopElecting()
	<-ended
	if lost {
		return ErrLost
	}
	e.release(ctx, lock)
	return err
}

func (e Elector) lock() *boundedLock {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		Client:     e.Client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		Labels:     e.Labels,
	}
	observe := e.Observe
	if observe == nil {
		observe = func(error) {}
	}
	return &boundedLock{Interface: lock, observe: observe}
}

// release releases the lease if this replica holds it, so that the next leader need
// not wait until it expires. It works after ctx has ended, and gives up after two seconds.
func (e Elector) release(ctx context.Context, lock resourcelock.Interface) {
	const timeout = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != e.Identity {
		return
	}
	if err == nil {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: record.LeaderTransitions,
		})
	}
	if err != nil {
		e.Log.Warn("the lease could not be released: it expires by itself", "error", err, "in", leaseDuration.String())
		return
	}
	e.Log.Info("released the lease", "lease", e.Namespace+"/"+e.Name)
}
