package doctor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// questions are what Gather asks. Each is asked once, and all run at the same time. A question
// that depends on others waits for their answers.
type questions struct {
	limit time.Duration // of a question that others wait for

	mu   sync.Mutex
	open []string // what is being asked
}

// ask runs a question in the background. It returns a function that waits for its answer. A
// question that others wait for has to limit its own time by soon.
func ask[T any](ctx context.Context, q *questions, what string, question func(context.Context) T) func() T {
	q.mu.Lock()
	q.open = append(q.open, what)
	q.mu.Unlock()
	done := make(chan struct{})
	var answer T
	go func() {
		defer close(done)
		answer = question(ctx)
		q.mu.Lock()
		defer q.mu.Unlock()
		at := slices.Index(q.open, what)
		q.open = slices.Delete(q.open, at, at+1)
	}()
	return func() T {
		<-done
		return answer
	}
}

// waiting names the questions without an answer so far.
func (q *questions) waiting() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.open)
}

// soon limits the time of a question that others wait for.
func (q *questions) soon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, q.limit, fmt.Errorf("no answer within %s", q.limit))
}
