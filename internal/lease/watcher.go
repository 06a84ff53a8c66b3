package lease

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// A Watcher tells whether some replica holds the Lease Namespace/Name. It may be used concurrently.
type Watcher struct {
	Client    typedcoordinationv1.LeasesGetter
	Namespace string
	Name      string

	mu    sync.Mutex
	seen  metav1.MicroTime // the last renewal
	since time.Time        // when it was seen first, by our clock; zero: nothing was seen yet
}

// Leads asks the API server whether a replica holds the lease. No answer within some seconds is no.
// The first answer believes what the lease says of its times. After that only their changes count,
// because the clocks of two nodes may differ.
func (w *Watcher) Leads(ctx context.Context) bool {
	const timeout = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l, err := w.Client.Leases(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" ||
		l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case w.since.IsZero() && l.Spec.RenewTime.Before(new(metav1.NewMicroTime(now))):
		w.seen, w.since = *l.Spec.RenewTime, l.Spec.RenewTime.Time
	case !w.seen.Equal(l.Spec.RenewTime):
		w.seen, w.since = *l.Spec.RenewTime, now
	}
	return now.Before(w.since.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second))
}
