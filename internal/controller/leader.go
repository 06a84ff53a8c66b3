package controller

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
)

// The times of the lease. A leader that was killed is followed within leaseTime
// and two looks at the lease; one that is cut off has stopped acting at
// renewDeadline, before anybody can take over; one that leaves gives it away, and
// is followed at the next look: those who wait look each 1 to 2.2 times lookTime,
// by client-go's jitter, and two seconds is what that may take.
const (
	leaseTime     = 15 * time.Second
	renewDeadline = 10 * time.Second
	lookTime      = 750 * time.Millisecond
)

// ErrLeaseLost is the cause of the context of a leader that no longer leads.
var ErrLeaseLost = errors.New("the lease was lost")

// Lease is where replicas agree on the one that acts.
type Lease struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string
	Identity  string // of this replica, and of no other
	Log       logr.Logger
	// Asked, if it is not nil, is told how each request about the lease has ended:
	// there is one every second or so.
	Asked func(error)
}

// A toldLock tells how each request ended.
type toldLock struct {
	resourcelock.Interface
	told func(error)
}

// Get implements resourcelock.Interface. That there is no lease is an answer.
func (l toldLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		l.told(nil)
	} else {
		l.told(err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l toldLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	l.told(err)
	return err
}

// Update implements resourcelock.Interface.
func (l toldLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.told(err)
	return err
}

// Lead runs work whenever this replica holds the lease, until ctx ends or work
// returns by itself. The context of work ends with ErrLeaseLost as its cause when
// the lease cannot be renewed; after that Lead stands for election again. The
// lease is given away only after work has returned, so two never act at once.
func (l Lease) Lead(ctx context.Context, work func(context.Context) error) error {
	for {
		err := l.term(ctx, work)
		if !errors.Is(err, ErrLeaseLost) {
			return err
		}
		l.Log.Error(err, "standing for election again")
	}
}

// term is one candidacy: it waits for the lease, and works while it has it.
func (l Lease) term(ctx context.Context, work func(context.Context) error) error {
	var lock resourcelock.Interface = &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name},
		Client:     l.Client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: l.Identity},
	}
	if l.Asked != nil {
		lock = toldLock{lock, l.Asked}
	}
	leading, over := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lock,
		LeaseDuration: leaseTime,
		RenewDeadline: renewDeadline,
		RetryPeriod:   lookTime,
		// The elector would give the lease away before it says that it has lost it,
		// which can take longer than the lease; see release.
		ReleaseOnCancel: false,
		Name:            l.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("stand for election: %w", err)
	}
	electing, resign := context.WithCancel(context.WithoutCancel(ctx)) // the lease is kept until the work has ended
	defer resign()
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	select {
	case <-ctx.Done():
		resign()
		<-over
		l.release(ctx, lock)
		return context.Cause(ctx)
	case <-leading:
	}
	l.Log.Info("leading", "lease", l.Namespace+"/"+l.Name, "identity", l.Identity)
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		<-over
		stop(ErrLeaseLost)
	}()
	err = work(working)
	lost := isClosed(over)
	resign()
	<-over
	if lost {
		return ErrLeaseLost
	}
	l.release(ctx, lock)
	return err
}

// release gives the lease away if it is ours, so that the next leader need not
// wait for its end. It works after ctx has ended, and gives up soon.
func (l Lease) release(ctx context.Context, lock resourcelock.Interface) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	record, _, err := lock.Get(ctx)
	if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != l.Identity {
		return
	}
	if err == nil {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: record.LeaderTransitions,
		})
	}
	if err != nil {
		l.Log.Error(err, "the lease could not be given away: it runs out by itself", "in", leaseTime.String())
		return
	}
	l.Log.Info("gave the lease away", "lease", l.Namespace+"/"+l.Name)
}
