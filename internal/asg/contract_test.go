package asg

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The operations, as the SDK names them.
const (
	describe  = "DescribeLifecycleHooks"
	heartbeat = "RecordLifecycleActionHeartbeat"
	complete  = "CompleteLifecycleAction"
)

// autoScaling is an Auto Scaling for tests. The stories of TestContract hold
// for each of them, which is what makes the stories about fakeASG alone worth
// believing.
type autoScaling interface {
	client() API
	// putHook adds a hook, and its group where there is none.
	putHook(t *testing.T, group, name string, timeout time.Duration)
	// begin has the instance of the tests wait for a hook of its group.
	begin(t *testing.T, group, name string) intent.Hook
	state(t *testing.T, hook intent.Hook) actionState
	// fail makes an operation fail: the next count calls, or all if count is 0.
	fail(t *testing.T, operation, code string, status, count int)
	// heal ends all failing.
	heal()
}

type actionState struct {
	Heartbeats int
	Outcome    string // completed, timed out, or empty while it is open
}

const instance = "i-0123456789abcdef0"

func TestContract(t *testing.T) {
	worlds := map[string]func(*testing.T) autoScaling{
		"fake":      func(*testing.T) autoScaling { return newFakeASG() },
		"simulator": newSimulator,
	}
	stories := map[string]func(t *testing.T, as autoScaling, h *Hooks){
		"a hook is held open while work runs and completed once": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 15*time.Second)
			hook := as.begin(t, "workers", "drain")
			work, done := context.WithTimeout(t.Context(), 32*time.Second)
			defer done()
			h.Hold(work, started(hook, time.Now()))
			wantState(t, as, hook, actionState{Heartbeats: 6})
			mustComplete(t, h, hook)
			mustComplete(t, h, hook)
			time.Sleep(time.Hour)
			wantState(t, as, hook, actionState{Heartbeats: 6, Outcome: "completed"})
		},
		"a hook is completed by its instance where it has no token": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Minute)
			hook := as.begin(t, "workers", "drain")
			mustComplete(t, h, intent.Hook{Group: hook.Group, Name: hook.Name, Instance: hook.Instance})
			wantState(t, as, hook, actionState{Outcome: "completed"})
		},
		"a hook that has timed out needs no completion": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Minute)
			hook := as.begin(t, "workers", "drain")
			time.Sleep(time.Minute)
			wantGone(t, h, hook)
			wantGone(t, h, hook)
			wantState(t, as, hook, actionState{Outcome: "timed out"})
		},
		"a hook or a group that is gone needs no completion": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Minute)
			wantGone(t, h, intent.Hook{Group: "workers", Name: "other", Instance: instance})
			wantGone(t, h, intent.Hook{Group: "others", Name: "drain", Instance: instance, Token: "token"})
		},
		"limits are those of the hook": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Minute)
			as.putHook(t, "workers", "slow", 2*time.Hour)
			wantLimits(t, h, intent.Hook{Group: "workers", Name: "drain"}, notice.HookLimits{Timeout: time.Minute, Global: 100 * time.Minute})
			wantLimits(t, h, intent.Hook{Group: "workers", Name: "slow"}, notice.HookLimits{Timeout: 2 * time.Hour, Global: 48 * time.Hour})
			for _, missing := range []intent.Hook{{Group: "workers", Name: "other"}, {Group: "others", Name: "drain"}} {
				if limits, err := h.Limits(t.Context(), missing); !errors.Is(err, ErrNoHook) {
					t.Errorf("limits of %+v = %+v, %v; want ErrNoHook", missing, limits, err)
				}
			}
		},
		"holding ends when somebody else completes the hook": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 30*time.Second)
			hook := as.begin(t, "workers", "drain")
			start := time.Now()
			time.AfterFunc(45*time.Second, func() { mustComplete(t, h, hook) })
			h.Hold(t.Context(), started(hook, start))
			wantAfter(t, start, 50*time.Second)
			wantState(t, as, hook, actionState{Heartbeats: 4, Outcome: "completed"})
		},
		"holding ends at the limit of all heartbeats": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 3*time.Second)
			hook := as.begin(t, "workers", "drain")
			start := time.Now()
			h.Hold(t.Context(), started(hook, start))
			wantAfter(t, start, 300*time.Second)
			wantState(t, as, hook, actionState{Heartbeats: 299, Outcome: "timed out"})
		},
		"a hook is completed in spite of throttling and faults": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Hour)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, complete, "Throttling", 400, 7)
			as.fail(t, complete, "InternalFailure", 500, 7)
			as.fail(t, complete, "ResourceContention", 500, 7)
			mustComplete(t, h, hook)
			wantState(t, as, hook, actionState{Outcome: "completed"})
		},
		"a hook is completed when its permission comes back": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Hour)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, complete, "AccessDenied", 403, 0)
			time.AfterFunc(10*time.Minute, func() { as.heal() })
			start := time.Now()
			mustComplete(t, h, hook)
			if late := time.Since(start) - 10*time.Minute; late < 0 || late > 2*denials.First {
				t.Errorf("completed %v after the permission came back, want up to %v", late, 2*denials.First)
			}
		},
		"a hook without the permission to complete it names the permission": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", time.Hour)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, complete, "AccessDenied", 403, 0)
			over := errors.New("drain is over")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, over)
			defer cancel()
			err := h.Complete(ctx, hook)
			if !errors.Is(err, over) {
				t.Errorf("Complete = %v, want it to wrap %v", err, over)
			}
			wantPermission(t, err, "autoscaling:CompleteLifecycleAction", "workers")
		},
		"heartbeats go on when their permission comes back": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 90*time.Second)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, heartbeat, "AccessDenied", 403, 0)
			time.AfterFunc(80*time.Second, func() { as.heal() }) // after two heartbeats that were due
			ctx, cancel := context.WithTimeout(t.Context(), 115*time.Second)
			defer cancel()
			h.Hold(ctx, started(hook, time.Now()))
			wantState(t, as, hook, actionState{Heartbeats: 2})
		},
		"a hook whose heartbeats are never allowed is let go when it has timed out": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 90*time.Second)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, heartbeat, "AccessDenied", 403, 0)
			time.AfterFunc(95*time.Second, func() { as.heal() })
			start := time.Now()
			h.Hold(t.Context(), started(hook, start))
			wantAfter(t, start, 97500*time.Millisecond)
			wantState(t, as, hook, actionState{Outcome: "timed out"})
		},
		"without the permission to read limits the interval is the option's": func(t *testing.T, as autoScaling, h *Hooks) {
			as.putHook(t, "workers", "drain", 50*time.Second)
			hook := as.begin(t, "workers", "drain")
			as.fail(t, describe, "AccessDenied", 403, 0)
			_, err := h.Limits(t.Context(), hook)
			wantPermission(t, err, "autoscaling:DescribeLifecycleHooks", "")
			ctx, cancel := context.WithTimeout(t.Context(), 130*time.Second)
			defer cancel()
			h.Hold(ctx, started(hook, time.Now()))
			wantState(t, as, hook, actionState{Heartbeats: 3})
		},
	}
	for world, build := range worlds {
		for story, tell := range stories {
			t.Run(world+"/"+story, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					as := build(t)
					tell(t, as, &Hooks{Client: as.client(), HeartbeatInterval: 40 * time.Second, Metrics: &recorder{}})
				})
			})
		}
	}
}

// simulator is the account that e2e/awssim simulates, reached by the SDK's
// own client over its wire protocol.
type simulator struct{ server *awssim.Server }

func newSimulator(*testing.T) autoScaling {
	return simulator{awssim.New(awssim.Options{})}
}

func (s simulator) client() API { return Of(autoscaling.NewFromConfig(s.server.Config())) }

func (s simulator) putHook(t *testing.T, group, name string, timeout time.Duration) {
	err := errors.Join(
		s.server.PutInstance(awssim.Instance{ID: instance}),
		s.server.PutGroup(awssim.Group{Name: group, Instances: []string{instance}}),
		s.server.PutHook(awssim.Hook{Group: group, Name: name, Transition: awssim.Terminating, HeartbeatTimeout: timeout}),
	)
	if err != nil {
		t.Fatal(err)
	}
}

func (s simulator) begin(t *testing.T, group, name string) intent.Hook {
	started, err := s.server.StartTransition(instance, awssim.Terminating)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range started {
		if a.Group == group && a.Hook == name {
			return intent.Hook{Group: a.Group, Name: a.Hook, Instance: a.InstanceID, Token: a.Token}
		}
	}
	t.Fatalf("no hook %s of group %s", name, group)
	return intent.Hook{}
}

func (s simulator) state(t *testing.T, hook intent.Hook) actionState {
	for _, a := range s.server.LifecycleActions() {
		if a.Token == hook.Token {
			return actionState{Heartbeats: a.Heartbeats, Outcome: string(a.Outcome)}
		}
	}
	t.Fatalf("no action of %+v", hook)
	return actionState{}
}

func (s simulator) fail(t *testing.T, operation, code string, status, count int) {
	err := s.server.SetFault(awssim.Fault{
		ID: operation + code, Service: "autoscaling", Action: operation,
		Code: code, Status: status, Count: count, Message: "a fault of the test",
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s simulator) heal() {
	for _, f := range s.server.Faults() {
		s.server.RemoveFault(f.ID)
	}
}

func mustComplete(t *testing.T, h *Hooks, hook intent.Hook) {
	t.Helper()
	if err := h.Complete(t.Context(), hook); err != nil {
		t.Errorf("Complete = %v", err)
	}
}

// wantGone expects that there is nothing to complete, and that it is not said to have been completed.
func wantGone(t *testing.T, h *Hooks, hook intent.Hook) {
	t.Helper()
	if err := h.Complete(t.Context(), hook); !errors.Is(err, ErrGone) {
		t.Errorf("Complete = %v, want ErrGone", err)
	}
}

func wantLimits(t *testing.T, h *Hooks, hook intent.Hook, want notice.HookLimits) {
	t.Helper()
	got, err := h.Limits(t.Context(), hook)
	if err != nil {
		t.Errorf("Limits = %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits of %s (-want +got):\n%s", hook.Name, diff)
	}
}

func wantState(t *testing.T, as autoScaling, hook intent.Hook, want actionState) {
	t.Helper()
	if diff := cmp.Diff(want, as.state(t, hook)); diff != "" {
		t.Errorf("the lifecycle action (-want +got):\n%s", diff)
	}
}

func wantAfter(t *testing.T, start time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("over after %v, want %v", got, want)
	}
}

func wantPermission(t *testing.T, err error, action, group string) {
	t.Helper()
	p, ok := errors.AsType[*PermissionError](err)
	if !ok || p.Action != action || p.Group != group {
		t.Errorf("err = %v, want one for the permission %s on group %q", err, action, group)
	}
}
