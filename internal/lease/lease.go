// Package lease elects the one replica that acts, by a Kubernetes Lease.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The timing of the lease. A leader that was killed is followed within leaseDuration
// plus two retry periods. One that is cut off stops acting at renewDeadline, before
// anybody can take over. One that stops in order releases the lease and is followed at
// the next retry: client-go's jitter makes each candidate retry after 1 to 2.2 times
// retryPeriod, and a change of leaders may take two seconds.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 750 * time.Millisecond
)

// ErrLost is the cause of the context of a leader that no longer leads.
var ErrLost = errors.New("the lease was lost")

// An Elector stands for election with the Lease Namespace/Name, which the replicas share.
type Elector struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string
	Identity  string // of this replica; no other may have it
	Log       *slog.Logger
	// Observe, if it is not nil, is called with the outcome of each request about the
	// lease. There is about one a second. That the lease does not exist is no error.
	Observe func(error)
}

// observedLock calls observe with the outcome of each request.
type observedLock struct {
	resourcelock.Interface
	observe func(error)
}

// Get implements resourcelock.Interface.
func (l observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.observe(nil)
	} else {
		l.observe(err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	l.observe(err)
	return err
}

// Update implements resourcelock.Interface.
func (l observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.observe(err)
	return err
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
		<-ended
		stopLeading(ErrLost)
	}()
	err = lead(leading)
	select {
	case <-ended:
		return ErrLost
	default:
	}
	stopElecting()
	<-ended
	e.release(ctx, lock)
	return err
}

func (e Elector) lock() resourcelock.Interface {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		Client:     e.Client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
	}
	if e.Observe == nil {
		return lock
	}
	return observedLock{lock, e.Observe}
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
