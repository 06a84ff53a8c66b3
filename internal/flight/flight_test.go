package flight

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slow is the work of a call that takes a second, and counts how often it is begun.
func slow(begun *int) Func[string] {
	return func(ctx context.Context, _ func(error)) (string, error) {
		*begun++
		select {
		case <-time.After(time.Second):
			return "done", nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func TestCallersForOneKeyShareACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, string]
		var callers sync.WaitGroup
		begun := 0
		for range 10 {
			callers.Go(func() {
				if got, err := g.Do(t.Context(), "key", slow(&begun)); got != "done" || err != nil {
					t.Errorf("Do = %q, %v", got, err)
				}
			})
		}
		callers.Wait()
		if begun != 1 {
			t.Errorf("%d calls, want 1", begun)
		}
		if len(g.calls) != 0 {
			t.Errorf("%d calls are kept", len(g.calls))
		}
	})
}

func TestWhoComesAfterACallHasEndedStartsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, string]
		begun := 0
		for range 2 {
			if _, err := g.Do(t.Context(), "key", slow(&begun)); err != nil {
				t.Error(err)
			}
		}
		if begun != 2 {
			t.Errorf("%d calls, want 2", begun)
		}
	})
}

func TestACallerWhoLeavesDoesNotDisturbTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, string]
		var callers sync.WaitGroup
		begun, lost := 0, errors.New("the lease is lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		callers.Go(func() {
			if _, err := g.Do(ctx, "key", slow(&begun)); !errors.Is(err, lost) {
				t.Errorf("Do = %v, want %v", err, lost)
			}
		})
		synctest.Wait()
		callers.Go(func() {
			if got, err := g.Do(t.Context(), "key", slow(&begun)); got != "done" || err != nil {
				t.Errorf("Do = %q, %v", got, err)
			}
		})
		time.Sleep(500 * time.Millisecond)
		cancel(lost)
		callers.Wait()
		if begun != 1 {
			t.Errorf("%d calls, want 1", begun)
		}
	})
}

func TestACallEndsWithItsLastCallerAndTheNextOneStartsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string, string]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		_, err := g.Do(ctx, "key", func(ctx context.Context, report func(error)) (string, error) {
			report(errors.New("an early failure"))
			report(errThrottled)
			<-ctx.Done()
			time.Sleep(time.Hour) // it takes its time to end
			ended <- context.Cause(ctx)
			return "", context.Cause(ctx)
		})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errThrottled) {
			t.Errorf("Do = %v, want the end of its context and the latest failure", err)
		}
		begun := 0
		if got, err := g.Do(t.Context(), "key", slow(&begun)); got != "done" || err != nil || begun != 1 {
			t.Errorf("Do = %q, %v after %d calls; want the result of a call of its own", got, err, begun)
		}
		if why := <-ended; !errors.Is(why, errNobodyWaits) {
			t.Errorf("the call ended with %v, want %v", why, errNobodyWaits)
		}
	})
}

var errThrottled = errors.New("throttled")

func TestAnEndedContextStartsNoCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errThrottled)
	begun := 0
	if _, err := new(Group[string, string]).Do(ctx, "key", slow(&begun)); !errors.Is(err, errThrottled) || begun != 0 {
		t.Errorf("Do = %v after %d calls, want the cause of its context and no call", err, begun)
	}
}

func TestACallThatHasEndedCannotBeJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		c := Start(t.Context(), slow(&begun))
		if !c.Join() {
			t.Fatal("a call in flight cannot be joined")
		}
		for range 2 {
			if got, err := c.Wait(t.Context()); got != "done" || err != nil {
				t.Errorf("Wait = %q, %v", got, err)
			}
		}
		if c.Join() {
			t.Error("joined a call that has ended")
		}
	})
}

// The last waiter leaves, and the call has ended because of that before it looks.
func TestWhoLeavesIsToldTheCauseOfItsOwnContext(t *testing.T) {
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	call := &Call[int]{cancel: func(error) {}, done: make(chan struct{}), waiting: 1, err: errNobodyWaits}
	close(call.done)
	if _, err := call.Wait(ctx); !errors.Is(err, over) {
		t.Errorf("the error is %v, want the cause of the context", err)
	}
}
