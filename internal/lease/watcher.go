package lease

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// A State is what a Lease says of its leader.
type State int

const (
	// Absent says that there is no Lease, that the permission to read it is missing, or that its leader is in dry-run.
	Absent State = iota
	// Vacant says that nobody holds the Lease.
	Vacant
	// Held says that a replica holds the Lease.
	Held
	// Stopped says that the handler is paused by the Lease, whoever holds it.
	Stopped
	// Unknown says that the API server has given no answer about it.
	Unknown
)

// DryRunLabel is the label of a Lease whose leader changes nothing, and so takes over nothing: "true" or "false".
const DryRunLabel = "node-termination-handler/dry-run"

// A Watcher tells whether some replica holds the Lease Namespace/Name. It may be used concurrently.
type Watcher struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string

	mu    sync.Mutex
	seen  metav1.MicroTime // the last renewal
	since time.Time        // when it was seen first, by our clock
	asked time.Time        // when the Lease was seen last; zero: never

	stopped bool // the last answer said that the handler is paused
}

// Leadership asks the API server whether a replica holds the Lease, for some seconds at most. The first answer after a
// while believes what the Lease says of its times. After that only their changes count, because the clocks of two nodes
// may differ: so a Lease that seems to have expired at first is looked at again, after a leader would have renewed it.
func (w *Watcher) Leadership(ctx context.Context) State {
	state, expired := w.look(ctx)
	if expired && retry.Sleep(ctx, renewedWithin) == nil {
		state, _ = w.look(ctx)
	}
	return state
}

// renewedWithin is longer than a leader needs for its next renewal, where answers are fast.
const renewedWithin = 3 * retryPeriod

// LookAgain returns a Lease as it is. It is for a tool, whose clock may be ahead of the holder's: one that seems to
// have expired is looked at again, after its holder would have renewed it. If it was, RenewTime is when that was seen.
func LookAgain(
	ctx context.Context, client typedcoordinationv1.LeasesGetter, l *coordinationv1.Lease,
) *coordinationv1.Lease {
	lasts := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
	if l.Spec.RenewTime == nil || ptr.Deref(l.Spec.HolderIdentity, "") == "" ||
		time.Since(l.Spec.RenewTime.Time) <= lasts || retry.Sleep(ctx, renewedWithin) != nil {
		return l
	}
	again, err := client.Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if err != nil {
		return l
	}
	if !again.Spec.RenewTime.Equal(l.Spec.RenewTime) {
		again.Spec.RenewTime = new(metav1.NowMicro())
	}
	return again
}

// look asks once. expired: the Lease is vacant by what it says of its times alone.
func (w *Watcher) look(ctx context.Context) (_ State, expired bool) {
	const timeout = 6 * time.Second // a leader keeps its term where answers take five
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l, err := w.Client.Leases(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if w.isStopped(l, err) {
		return Stopped, false
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || err == nil && l.Labels[DryRunLabel] == "true" {
		return Absent, false
	}
	if err != nil {
		return Unknown, false
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" ||
		l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return Vacant, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now, lasts := time.Now(), time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second
	last := w.asked
	w.asked = now
	switch {
	case (last.IsZero() || now.Sub(last) > lasts) && l.Spec.RenewTime.Before(new(metav1.NewMicroTime(now))):
		w.seen, w.since, expired = *l.Spec.RenewTime, l.Spec.RenewTime.Time, true
	case !w.seen.Equal(l.Spec.RenewTime):
		w.seen, w.since = *l.Spec.RenewTime, now
	}
	if now.Before(w.since.Add(lasts)) {
		return Held, false
	}
	return Vacant, expired
}

// isStopped reports whether the handler is paused, by an answer about the Lease. Without an answer it is what it was.
func (w *Watcher) isStopped(l *coordinationv1.Lease, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		_, w.stopped = Paused(l)
	case apierrors.IsNotFound(err):
		w.stopped = false
	}
	return w.stopped
}
