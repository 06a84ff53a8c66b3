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
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
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

// beatingHooks are gone, or have so long until they end by themselves: not at all, if zero.
type beatingHooks struct {
	Hooks
	gone map[string]bool
	ends map[string]time.Duration
	now  time.Time
}

func (h beatingHooks) HeartbeatFailure(hook intent.Hook) (time.Time, error) {
	if h.gone[hook.Name] {
		return h.now, asg.ErrGone
	}
	if ends := h.ends[hook.Name]; ends > 0 {
		return h.now.Add(ends), errors.New("not allowed")
	}
	return time.Time{}, nil
}

// Somebody else has completed a hook of theirs.
func TestAHookThatIsGoneEndsNoDelayWhileAnotherOneIsOpen(t *testing.T) {
	now := time.Now()
	end := now.Add(time.Hour)
	i := intent.Intent{}.With(intent.Entry{Kind: notice.ASGTerminate, IDs: []string{"e"}, Time: now, Deadline: end}, nil, now)
	for _, name := range []string{"one", "two"} {
		i.Hooks = append(i.Hooks, intent.Hook{Group: "workers", Name: name, Instance: theID, Started: now, Deadline: end})
	}
	both := map[string]bool{"one": true, "two": true}
	for name, test := range map[string]struct {
		hooks beatingHooks
		want  time.Duration
	}{
		"both are held":             {beatingHooks{}, time.Hour},
		"one is not":                {beatingHooks{ends: map[string]time.Duration{"one": time.Minute}}, time.Minute - hookMargin},
		"one is gone":               {beatingHooks{gone: map[string]bool{"one": true}}, time.Hour},
		"one is gone, two not held": {beatingHooks{gone: map[string]bool{"one": true}, ends: map[string]time.Duration{"two": time.Minute}}, time.Minute - hookMargin},
		"both are gone":             {beatingHooks{gone: both}, -hookMargin},
	} {
		test.hooks.now = now
		if got := (&Config{Hooks: test.hooks}).delayUntil(i).Sub(now); got != test.want {
			t.Errorf("%s: the delay ends after %s, want %s", name, got, test.want)
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
