package lease

import (
	"context"
	"errors"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// PausedAnnotation is the annotation of a Lease that pauses the handler: while it is there, whatever it says, who holds
// the Lease does nothing else. Its value is why, for people.
const PausedAnnotation = "node-termination-handler/paused"

// Paused reports whether the handler is paused by its Lease, and why.
func Paused(l *coordinationv1.Lease) (why string, paused bool) {
	why, paused = l.Annotations[PausedAnnotation]
	return strings.TrimSpace(why), paused
}

// errPaused is the cause of the context of a leader that is paused.
var errPaused = errors.New("the handler is paused")

// pause is whether the handler is paused, by the last answer about the Lease. It may be used concurrently.
type pause struct {
	mu      sync.Mutex
	why     string
	paused  bool
	changed chan struct{} // closed when one of them changes
}

func (p *pause) sees(l *coordinationv1.Lease, err error) {
	if err != nil || l == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	beforeWhy, before := p.why, p.paused
	if p.why, p.paused = Paused(l); p.paused != before || p.why != beforeWhy {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *pause) now() (why string, paused bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why, p.paused, p.changed
}

// unlessPaused is lead, but that its context ends when the handler is paused, and that it is called again afterwards.
func (e Elector) unlessPaused(ctx context.Context, p *pause, lead func(context.Context) error) error {
	for {
		changed, err := e.awaitResume(ctx, p)
		if err != nil {
			return err
		}
		term, stop := context.WithCancelCause(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			select {
			case <-changed:
				stop(errPaused)
			case <-term.Done():
			}
		})
		err = lead(term)
		stop(nil)
		watching.Wait()
		if !errors.Is(context.Cause(term), errPaused) {
			return err
		}
	}
}

// awaitResume waits while the handler is paused. changed is closed when it is paused again.
func (e Elector) awaitResume(ctx context.Context, p *pause) (changed <-chan struct{}, err error) {
	why, paused, changed := p.now()
	if !paused {
		return changed, nil
	}
	defer e.tell("", false)
	for ; paused; why, paused, changed = p.now() {
		logging.Warn(e.Log, "the handler is paused: it drains no node and receives no message until the annotation "+
			PausedAnnotation+" is taken off the Lease", "lease", e.Namespace+"/"+e.Name, "why", why)
		e.tell(why, true)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	e.Log.Info("the handler is no longer paused", "lease", e.Namespace+"/"+e.Name)
	return changed, nil
}

func (e Elector) tell(why string, paused bool) {
	if e.Paused != nil {
		e.Paused(why, paused)
	}
}

// watched are the Leases of a namespace. It shows each one that it gets to the pause.
type watched struct {
	typedcoordinationv1.LeaseInterface
	pause *pause
}

// Leases implements typedcoordinationv1.LeasesGetter, for the namespace that it is of.
func (w watched) Leases(string) typedcoordinationv1.LeaseInterface { return w }

// Get implements typedcoordinationv1.LeaseInterface, as the method below does. client-go's lock uses no other that
// tells what a Lease has which is there already.
func (w watched) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	l, err := w.LeaseInterface.Get(ctx, name, o)
	w.pause.sees(l, err)
	return l, err
}

// Update is the other.
func (w watched) Update(
	ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	l, err := w.LeaseInterface.Update(ctx, lease, o)
	w.pause.sees(l, err)
	return l, err
}
