package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// answeringHooks answer each completion with an error.
type answeringHooks struct {
	Hooks
	err, failure, unheld error
}

func (h answeringHooks) Complete(context.Context, intent.Hook) error { return h.err }
func (h answeringHooks) Failure(intent.Hook) error                   { return h.failure }
func (h answeringHooks) HeartbeatFailure(intent.Hook) (time.Time, error) {
	return time.Time{}, h.unheld
}

func TestAWaitForAHookSaysWhyItIsNotCompleted(t *testing.T) {
	hooks := []intent.Hook{{Group: "workers", Name: "wait"}}
	for want, failure := range map[string]error{
		"hook: lifecycle hook workers/wait is being completed":                        nil,
		"failing-hook: lifecycle hook workers/wait is not completed yet: not allowed": errors.New("not allowed"),
	} {
		d := &Drain{r: New(Config{Hooks: answeringHooks{failure: failure, unheld: failure}})}
		waits := d.withFailures(append(completing(hooks, nil), overview.Wait{Cause: overview.Delay, Name: "workers/wait"}), hooks)
		if got := string(waits[0].Cause) + ": " + waits[0].Why; got != want || waits[1].Cause != overview.Delay {
			t.Errorf("%q, %+v, want %q", got, waits[1], want)
		}
		unheld := d.unheld(hooks)
		if failure == nil && len(unheld) > 0 || failure != nil && (len(unheld) != 1 || unheld[0].Cause != overview.FailingHook) {
			t.Errorf("heartbeats: %+v", unheld)
		}
	}
}

// A kubelet can write the name of a hook that there never was.
func TestTheLogSaysOfAHookThatWasCompletedAloneThatItWas(t *testing.T) {
	unreachable := errors.New("no answer")
	for _, tt := range []struct {
		answer error
		says   string // empty: nothing
		err    error
	}{
		{nil, "lifecycle hook completed", nil},
		{fmt.Errorf("complete: %w", asg.ErrGone), "lifecycle hook is gone, there was nothing to complete", nil},
		{fmt.Errorf("complete: %w", asg.ErrRefused), "the lifecycle hook cannot be completed: its default result applies", nil},
		{errNotOurs, "lifecycle hook is left alone: a handler without a queue completes none", nil},
		{unreachable, "", unreachable},
	} {
		var log logtest.Log
		completed, err := New(Config{Hooks: answeringHooks{err: tt.answer}}).Complete(t.Context(), log.Logger(), intent.Hook{Group: "workers", Name: "wait"})
		if said := log.String(); !errors.Is(err, tt.err) || completed != (tt.answer == nil) || strings.Count(said, "\n") != min(1, len(tt.says)) || !strings.Contains(said, tt.says) {
			t.Errorf("%v: Complete = %v, and the log is %q, want %q", tt.answer, err, said, tt.says)
		}
	}
}
