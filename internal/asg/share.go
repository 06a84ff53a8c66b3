package asg

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// shared lets all who ask for the same thing at the same time wait for one
// asking. The zero value is ready for use.
type shared[K comparable, V any] struct {
	mu      sync.Mutex
	running map[K]*asking[V]
}

type asking[V any] struct {
	waiting int // guarded by shared.mu
	nobody  context.CancelCauseFunc

	failure error // the latest that was reported; guarded by shared.mu

	done   chan struct{} // closed when the result is set
	result V
	err    error
}

var errNobodyWaits = errors.New("nobody waits for the result any more")

// ask returns what f returned for key: an f that runs already, or else this
// one. The context of f ends when the last who waits for it has left. A caller
// whose ctx ends leaves without disturbing the others; its error wraps the
// cause of ctx and the failure that f reported last, if any.
func (s *shared[K, V]) ask(ctx context.Context, key K, f func(ctx context.Context, report func(error)) (V, error)) (V, error) {
	if ctx.Err() != nil {
		var zero V
		return zero, context.Cause(ctx)
	}
	a := s.join(ctx, key, f)
	select {
	case <-a.done:
	case <-ctx.Done():
	}
	failure := s.leave(key, a)
	select {
	case <-a.done:
		return a.result, a.err
	default:
	}
	var zero V
	if failure != nil {
		return zero, fmt.Errorf("%w, after: %w", context.Cause(ctx), failure)
	}
	return zero, context.Cause(ctx)
}

func (s *shared[K, V]) join(ctx context.Context, key K, f func(context.Context, func(error)) (V, error)) *asking[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.running[key]
	if a == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		a = &asking[V]{nobody: cancel, done: make(chan struct{})}
		if s.running == nil {
			s.running = map[K]*asking[V]{}
		}
		s.running[key] = a
		go func() {
			a.result, a.err = f(ctx, func(failure error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				a.failure = failure
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			s.forget(key, a)
			close(a.done)
		}()
	}
	a.waiting++
	return a
}

// leave counts the caller out and returns the latest failure.
func (s *shared[K, V]) leave(key K, a *asking[V]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.waiting--
	if a.waiting == 0 {
		s.forget(key, a)
		a.nobody(errNobodyWaits)
	}
	return a.failure
}

// forget makes the next who asks for key start anew. Another asking may have
// taken the place of a already.
func (s *shared[K, V]) forget(key K, a *asking[V]) {
	if s.running[key] == a {
		delete(s.running, key)
	}
}
