package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

func TestHoldWithoutAnIntervalReturnsAtOnce(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		h.HeartbeatInterval = -1
		h.Hold(t.Context(), started(as.begin(t, "workers", "drain"), time.Now()))
		wantCalls(t, as, map[string]int{})
	})
}

func TestTheFirstHeartbeatIsDueOneIntervalAfterTheStart(t *testing.T) {
	for name, tc := range map[string]struct {
		ago, first time.Duration
	}{
		"just started":              {0, 30 * time.Second},
		"a while ago":               {20 * time.Second, 10 * time.Second},
		"longer than an interval":   {45 * time.Second, 0},
		"by a clock that runs fast": {-10 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				hook := as.begin(t, "workers", "drain")
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), tc.first+45*time.Second)
				defer cancel()
				h.Hold(ctx, started(hook, start.Add(-tc.ago)))
				want := []time.Duration{tc.first, tc.first + 30*time.Second}
				if diff := cmp.Diff(want, times(start, as.made(heartbeat))); diff != "" {
					t.Errorf("heartbeats (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAHookThatIsGoneIsHeldNoLonger(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		start := time.Now()
		h.Hold(t.Context(), started(intent.Hook{Group: "workers", Name: "deleted", Instance: instance}, start.Add(-time.Minute)))
		wantAfter(t, start, 0)
		wantCalls(t, as, map[string]int{describe: 1, heartbeat: 1})
	})
}

// Auto Scaling's shortest timeout is 30 s. A leader that is killed is followed within 20 s.
func TestAHookOfTheShortestTimeoutOutlivesAFailover(t *testing.T) {
	for killed := range 30 {
		story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
			as.putHook(t, "workers", "short", 30*time.Second)
			hook := as.begin(t, "workers", "short")
			start := time.Now()
			hold := func(d time.Duration) {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				defer cancel()
				h.Hold(ctx, started(hook, start))
			}
			hold(time.Duration(killed)*time.Second - time.Millisecond)
			const failover = 20*time.Second - 10*time.Millisecond
			time.Sleep(failover) // virtual: this is the failover
			hold(time.Minute)
			if state := as.state(t, hook); state.Outcome != "" {
				t.Errorf("killed after %d s: %+v", killed, state)
			}
		})
	}
}

// The next leader's clock may be minutes behind that of AWS, and of the leader before.
func TestAHookOutlivesAFailoverToAClockThatIsBehind(t *testing.T) {
	for _, behind := range []time.Duration{3 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute} {
		for killed := range 120 {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				as.putHook(t, "workers", "minutes", 2*time.Minute)
				hook := as.begin(t, "workers", "minutes")
				start := time.Now()
				hold := func(d time.Duration, started intent.Hook) {
					ctx, cancel := context.WithTimeout(t.Context(), d)
					defer cancel()
					h.Hold(ctx, started)
				}
				hold(time.Duration(killed)*time.Second+time.Millisecond, started(hook, start))
				time.Sleep(20 * time.Second)
				hold(3*time.Minute, started(hook, start.Add(behind)))
				if state := as.state(t, hook); state.Outcome != "" {
					t.Errorf("killed after %d s, the next clock is %s behind: %+v", killed, behind, state)
				}
			})
		}
	}
}

func TestHeartbeatsEndAtHeartbeatUntil(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		h.HeartbeatUntil = 100 * time.Second
		hook := as.begin(t, "workers", "drain")
		start := time.Now()
		h.Hold(t.Context(), started(hook, start.Add(-20*time.Second)))
		wantAfter(t, start, 80*time.Second)
		wantState(t, as, hook, actionState{Heartbeats: 3})
	})
}

func TestAFailedHeartbeatIsSentAgainBeforeTheHookTimesOut(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		metrics := &recorder{}
		h.Metrics = metrics
		as.fail(t, heartbeat, "Throttling", 400, 3)
		hook := as.begin(t, "workers", "drain")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		h.Hold(ctx, started(hook, time.Now()))
		wantState(t, as, hook, actionState{Heartbeats: 2})
		if diff := cmp.Diff([]string{"described ok", "heartbeat error", "heartbeat error", "heartbeat error", "heartbeat ok", "heartbeat ok"}, metrics.all()); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}

func TestHeartbeatsDoNotWaitForLongForTheLimits(t *testing.T) {
	for name, breakIt := range map[string]func(*testing.T, *fakeASG){
		"throttled": func(t *testing.T, as *fakeASG) { as.fail(t, describe, "Throttling", 400, 0) },
		"hanging":   func(_ *testing.T, as *fakeASG) { as.hang = describe },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				breakIt(t, as)
				hook := as.begin(t, "workers", "drain")
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
				defer cancel()
				h.Hold(ctx, started(hook, start))
				want := []time.Duration{30 * time.Second, time.Minute}
				if diff := cmp.Diff(want, times(start, as.made(heartbeat))); diff != "" {
					t.Errorf("heartbeats (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAHookWhoseHeartbeatsFailForHalfOfItsTimeoutIsSaidToEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		ago, fails time.Duration // how long ago the hook began, and after what time heartbeats fail
		want       map[time.Duration]time.Duration
	}{
		"one was accepted":                {0, 50 * time.Second, map[time.Duration]time.Duration{25 * time.Second: 0, 80 * time.Second: 0, 95 * time.Second: 150 * time.Second}},
		"another leader has not held it":  {90 * time.Second, 0, map[time.Duration]time.Duration{time.Second: 0, 20 * time.Second: 30 * time.Second}},
		"another leader may have held it": {10 * time.Minute, 0, map[time.Duration]time.Duration{time.Second: 0, 20 * time.Second: time.Minute, 45 * time.Second: time.Minute}},
		"another leader has held it":      {90 * time.Second, 20 * time.Second, map[time.Duration]time.Duration{10 * time.Second: 0, 55 * time.Second: 0, 65 * time.Second: 2 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				hook := as.begin(t, "workers", "drain")
				start := time.Now()
				time.AfterFunc(tt.fails-time.Millisecond, func() { as.fail(t, heartbeat, "InternalFailure", 500, -1) })
				for at, want := range tt.want {
					time.AfterFunc(at, func() {
						ends, _ := h.HeartbeatFailure(hook)
						if got := ends.Sub(start); want != got && (want > 0 || !ends.IsZero()) {
							t.Errorf("after %s the hook is said to end at %s, want %s", at, got, want)
						}
					})
				}
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 110*time.Second)
				defer cancel()
				h.Hold(ctx, started(hook, start.Add(-tt.ago)))
			})
		})
	}
}

// Two messages about one hook hold it, or its message and its drain.
func TestWhatOneHolderKnowsOfHeartbeatsStaysWhenAnotherOneLeaves(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := as.begin(t, "workers", "drain")
		start := time.Now()
		as.fail(t, heartbeat, "InternalFailure", 500, -1)
		hold := func(lasts time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), lasts)
			defer cancel()
			h.Hold(ctx, started(hook, start.Add(-90*time.Second)))
		}
		check := func() {
			if ends, err := h.HeartbeatFailure(hook); err == nil || ends.Sub(start) != 30*time.Second {
				t.Errorf("after %s the hook is said to end at %s: %v", time.Since(start), ends.Sub(start), err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { hold(time.Minute) })
		time.Sleep(time.Second)
		if ends, err := h.HeartbeatFailure(hook); err == nil || !ends.IsZero() { // one failure tells nothing
			t.Errorf("after one failure the hook is said to end at %s: %v", ends.Sub(start), err)
		}
		time.Sleep(19 * time.Second)
		check()
		all.Go(func() { hold(time.Millisecond) })
		synctest.Wait()
		check()
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		check()
		all.Wait()
		if ends, err := h.HeartbeatFailure(hook); err != nil || !ends.IsZero() {
			t.Errorf("nobody holds it, and it is said to end at %s: %v", ends, err)
		}
	})
}

// A heartbeat that has not had its turn holds the hook as little as one that fails.
func TestAHookWhoseHeartbeatWaitsForItsTurnIsSaidToEnd(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := as.begin(t, "workers", "drain")
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 62*time.Second)
		defer cancel()
		wantLimits(t, h, hook, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
		var all sync.WaitGroup
		for range 90 * callsPerSecond {
			all.Go(func() { _ = h.limiter.Wait(ctx, pace.Priority{Class: completing}) })
		}
		time.AfterFunc(61*time.Second, func() {
			if ends, err := h.HeartbeatFailure(hook); ends.Sub(start) != 2*time.Minute || err == nil {
				t.Errorf("the hook is said to end at %s: %v", ends.Sub(start), err)
			}
		})
		h.Hold(ctx, started(hook, start))
		all.Wait()
		wantCalls(t, as, map[string]int{describe: 1})
	})
}

// An action that a sweep has found has no token: the next one of its instance looks the same.
func TestAHookThatIsHeldAgainHasNotEnded(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := intent.Hook{Group: "workers", Name: "drain", Instance: instance}
		h.Hold(t.Context(), started(hook, time.Now().Add(-time.Minute)))
		if ends, err := h.HeartbeatFailure(hook); !errors.Is(err, ErrGone) || ends != time.Now() {
			t.Errorf("there is none: %v, at %s", err, ends)
		}
		as.begin(t, "workers", "drain")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(10*time.Second, func() {
			if ends, err := h.HeartbeatFailure(hook); err != nil || !ends.IsZero() {
				t.Errorf("the next one has begun: %v, at %s", err, ends)
			}
		})
		h.Hold(ctx, started(hook, time.Now()))
	})
}

func TestAHangingHeartbeatLeavesTimeForAnother(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.putHook(t, "workers", "short", 15*time.Second)
		hook := as.begin(t, "workers", "short")
		as.hang = heartbeat
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		h.Hold(ctx, started(hook, start))
		want := []time.Duration{5 * time.Second, 5*time.Second + 2500*time.Millisecond + 1250*time.Millisecond}
		if diff := cmp.Diff(want, times(start, as.made(heartbeat))); diff != "" {
			t.Errorf("heartbeats (-want +got):\n%s", diff)
		}
	})
}

// A heartbeat that is cut off could reach Auto Scaling after the completion that follows.
func TestAHeartbeatInFlightEndsBeforeHoldReturns(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, returns time.Duration
	}{
		"quick":   {100 * time.Millisecond, 100 * time.Millisecond},
		"hanging": {time.Hour, heartbeatEnds + 10*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				hook := as.begin(t, "workers", "drain")
				start := time.Now()
				if _, err := h.Limits(t.Context(), hook); err != nil {
					t.Fatal(err)
				}
				as.latency = tc.takes
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second+10*time.Millisecond)
				defer cancel()
				h.Hold(ctx, started(hook, start))
				wantAfter(t, start, 30*time.Second+tc.returns)
				wantState(t, as, hook, actionState{Heartbeats: map[bool]int{true: 1}[tc.takes < time.Second]})
			})
		})
	}
}

func TestManyNoticesOfOneHookAskForItsLimitsOnce(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.latency = time.Second
		hook := intent.Hook{Group: "workers", Name: "drain"}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { wantLimits(t, h, hook, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute}) })
		}
		wg.Wait()
		time.Sleep(limitsKept - 2*time.Second)
		wantLimits(t, h, hook, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
		wantCalls(t, as, map[string]int{describe: 1})

		time.Sleep(2 * time.Second)
		as.putHook(t, "workers", "drain", time.Hour)
		wantLimits(t, h, hook, notice.HookLimits{Timeout: time.Hour, Global: 48 * time.Hour})
		wantCalls(t, as, map[string]int{describe: 2})
	})
}

func TestLimitsThatWereRefusedAreNotAskedForEachNotice(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		var log logtest.Log
		h.Log = log.Logger()
		as.fail(t, describe, "AccessDenied", 403, 0)
		for i := range 50 {
			_, err := h.Limits(t.Context(), intent.Hook{Group: fmt.Sprint("workers-", i), Name: "drain"})
			wantPermission(t, err, "autoscaling:DescribeLifecycleHooks", "")
		}
		wantCalls(t, as, map[string]int{describe: 1})

		time.Sleep(refusalKept)
		if _, err := h.Limits(t.Context(), intent.Hook{Group: "workers", Name: "drain"}); err == nil {
			t.Error("the fault of the test is gone")
		}
		wantCalls(t, as, map[string]int{describe: 2})
		wantOnce(t, &log, "the role of this controller lacks a permission", "autoscaling:DescribeLifecycleHooks")

		as.heal()
		time.Sleep(refusalKept)
		wantLimits(t, h, intent.Hook{Group: "workers", Name: "drain"}, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
	})
}

func TestAFailedDescriptionIsNotRemembered(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.fail(t, describe, "InternalFailure", 500, 1)
		hook := intent.Hook{Group: "workers", Name: "drain"}
		if _, err := h.Limits(t.Context(), hook); err == nil {
			t.Error("no error")
		}
		wantLimits(t, h, hook, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
	})
}

func TestWhatIsKnownOfHooksDoesNotGrow(t *testing.T) {
	story(t, func(t *testing.T, _ *fakeASG, h *Hooks) {
		for i := range 1100 {
			_, _ = h.Limits(t.Context(), intent.Hook{Group: fmt.Sprint("workers-", i), Name: "drain"})
			time.Sleep(time.Second)
		}
		if n := h.known.Len(); n != 1024 {
			t.Errorf("%d hooks are remembered", n)
		}
	})
}

func TestOneWarningForHeartbeatsThatAreNotAllowed(t *testing.T) {
	const permission = "autoscaling:RecordLifecycleActionHeartbeat"
	for code, tt := range map[string]struct{ why, err string }{
		"AccessDenied":  {"the role of this controller lacks a permission", "permission " + permission + " is missing on group workers: "},
		"InvalidAction": {"the server does not have a call", "the server does not have " + permission + " on group workers: "},
	} {
		t.Run(code, func(t *testing.T) {
			story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
				var log logtest.Log
				h.Log = log.Logger()
				metrics := &recorder{}
				h.Metrics = metrics
				as.fail(t, heartbeat, code, 403, 0)
				holding, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				var holds sync.WaitGroup
				for range 3 {
					hook := as.begin(t, "workers", "drain")
					holds.Go(func() { h.Hold(holding, started(hook, time.Now())) })
				}
				holds.Wait()
				wantCalls(t, as, map[string]int{describe: 1, heartbeat: 6}) // at 30 s and, since they failed, at 37.5 s
				wantOnce(t, &log, tt.why, permission)
				if !strings.Contains(log.String(), tt.err) {
					t.Errorf("the log says\n%s\nwant the error %q", &log, tt.err)
				}
				want := append([]string{"described ok"}, slices.Repeat([]string{"heartbeat denied"}, 6)...)
				if diff := cmp.Diff(want, metrics.all()); diff != "" {
					t.Errorf("metrics (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRefusedHeartbeatsLeaveTheBucketToTheOthers(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.putHook(t, "denied", "drain", 30*time.Second)
		as.putHook(t, "allowed", "drain", 30*time.Second)
		as.failGroup("denied", heartbeat, &smithy.GenericAPIError{Code: "AccessDenied", Message: "not authorized"})
		holding, cancel := context.WithTimeout(t.Context(), 115*time.Second)
		defer cancel()
		var holds sync.WaitGroup
		for range 400 {
			hook := as.begin(t, "denied", "drain")
			holds.Go(func() { h.Hold(holding, started(hook, time.Now())) })
		}
		time.Sleep(time.Minute)
		hook := as.begin(t, "allowed", "drain")
		holds.Go(func() { h.Hold(holding, started(hook, time.Now())) })
		holds.Wait()
		wantState(t, as, hook, actionState{Heartbeats: 5})
	})
}

func TestConcurrentCompletionsShareOneRequest(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.latency = time.Second
		hook := as.begin(t, "workers", "drain")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { mustComplete(t, h, hook) })
		}
		wg.Wait()
		wantCalls(t, as, map[string]int{complete: 1})
	})
}

func TestACompletedActionIsNotCompletedAgain(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := as.begin(t, "workers", "drain")
		mustComplete(t, h, hook)
		mustComplete(t, h, hook)
		wantCalls(t, as, map[string]int{complete: 1})
		mustComplete(t, h, as.begin(t, "workers", "drain"))
		wantCalls(t, as, map[string]int{complete: 2})
	})
}

func TestWhoeverCompletesAnActionInTheSameMomentMakesOneCall(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		const actions = 200
		for range actions {
			hook := as.begin(t, "workers", "drain")
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { mustComplete(t, h, hook) })
			}
			wg.Wait()
		}
		wantCalls(t, as, map[string]int{complete: actions})
	})
}

func TestACallerWhoGivesUpDoesNotHurtTheCompletion(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.latency = time.Second
		hook := as.begin(t, "workers", "drain")
		lost := errors.New("lease lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := h.Complete(ctx, hook); !errors.Is(err, lost) {
				t.Errorf("Complete = %v, want %v", err, lost)
			}
		})
		synctest.Wait()
		wg.Go(func() { mustComplete(t, h, hook) })
		time.Sleep(500 * time.Millisecond)
		cancel(lost)
		wg.Wait()
		wantCalls(t, as, map[string]int{complete: 1})
		wantState(t, as, hook, actionState{Outcome: "completed"})
	})
}

func TestACompletionEndsWithItsLastCaller(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.fail(t, complete, "Throttling", 400, 0)
		hook := as.begin(t, "workers", "drain")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := h.Complete(ctx, hook)
		if api, ok := errors.AsType[smithy.APIError](err); !errors.Is(err, context.DeadlineExceeded) || !ok || api.ErrorCode() != "Throttling" {
			t.Errorf("Complete = %v, want the end of its context and the throttling", err)
		}
		synctest.Wait()
		before := len(as.made(complete))
		time.Sleep(time.Hour)
		if after := len(as.made(complete)); after > before {
			t.Errorf("%d calls after the last caller had left", after-before)
		}
	})
}

func TestWhyAHookIsNotCompletedYetIsKnown(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.fail(t, complete, "AccessDenied", 403, 0)
		hook := as.begin(t, "workers", "drain")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := h.Failure(hook); err != nil {
			t.Errorf("before it is completed: %v", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = h.Complete(ctx, hook) })
		time.Sleep(time.Minute)
		later := hook // as after a heartbeat
		later.Deadline = later.Deadline.Add(time.Hour)
		if err := h.Failure(later); !lacksPermission(err) {
			t.Errorf("while it is completed: %v, want the missing permission", err)
		}
		cancel()
		wg.Wait()
		synctest.Wait()
		if err := h.Failure(hook); err != nil {
			t.Errorf("after the last caller has left: %v", err)
		}
	})
}

func TestAHookThatIsCompletedIsNotHeldOpen(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := started(as.begin(t, "workers", "drain"), time.Now())
		mustComplete(t, h, hook)
		h.Hold(t.Context(), hook)
		wantCalls(t, as, map[string]int{complete: 1})
	})
}

func TestWhyAHookMayEndByItselfIsKnown(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		hook := started(as.begin(t, "workers", "drain"), time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { h.Hold(ctx, hook) })
		time.Sleep(time.Minute)
		if _, err := h.HeartbeatFailure(hook); err != nil {
			t.Errorf("while heartbeats are accepted: %v", err)
		}
		as.fail(t, heartbeat, "AccessDenied", 403, 0)
		time.Sleep(time.Minute)
		if _, err := h.HeartbeatFailure(hook); !lacksPermission(err) {
			t.Errorf("while they are denied: %v, want the missing permission", err)
		}
		cancel()
		wg.Wait()
		if _, err := h.HeartbeatFailure(hook); err != nil {
			t.Errorf("when nobody holds it: %v", err)
		}
	})
}

func TestACompletionWhoseAnswerIsLostIsSentAgain(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.loseAnswer = true
		hook := as.begin(t, "workers", "drain")
		mustComplete(t, h, hook)
		wantCalls(t, as, map[string]int{complete: 2})
		wantState(t, as, hook, actionState{Outcome: "completed"})
	})
}

func TestAnEndedContextCompletesNothing(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Complete(ctx, as.begin(t, "workers", "drain")); !errors.Is(err, context.Canceled) {
			t.Errorf("Complete = %v, want the end of its context", err)
		}
		synctest.Wait()
		wantCalls(t, as, map[string]int{})
	})
}

func TestAnInvalidCompletionIsNotRepeated(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.fail(t, complete, "ValidationError", 400, 0)
		if err := h.Complete(t.Context(), as.begin(t, "workers", "drain")); err == nil {
			t.Error("no error")
		}
		wantCalls(t, as, map[string]int{complete: 1})
	})
}

func TestAHangingCompletionIsSentAgain(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.hang = complete
		time.AfterFunc(time.Minute, func() {
			as.mu.Lock()
			defer as.mu.Unlock()
			as.hang = ""
		})
		start := time.Now()
		hook := as.begin(t, "workers", "drain")
		mustComplete(t, h, hook)
		if took := time.Since(start); took > time.Minute+callTimeout+2*failures.Max {
			t.Errorf("took %v", took)
		}
	})
}

func TestRetriesBackOffAndAreCapped(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.fail(t, complete, "Throttling", 400, 20)
		mustComplete(t, h, as.begin(t, "workers", "drain"))
		calls := as.made(complete)
		if len(calls) != 21 {
			t.Fatalf("%d calls, want 21", len(calls))
		}
		for i := range calls[1:] {
			pause := calls[i+1].at.Sub(calls[i].at)
			most := min(500*time.Millisecond<<min(i, 10), 10*time.Second)
			if pause < most/2 || pause > most {
				t.Errorf("pause %d is %v, want between %v and %v", i, pause, most/2, most)
			}
		}
	})
}

// emptyBucket takes all tokens, so that the calls that come next wait for their turns.
func emptyBucket(t *testing.T, h *Hooks) {
	t.Helper()
	for range callBurst {
		if err := h.limiter.Wait(t.Context(), pace.Priority{Class: completing}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCompletionsGoBeforeHeartbeatsAndThoseBeforeDescriptions(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.putHook(t, "workers", "short", 10*time.Second)
		wantLimits(t, h, intent.Hook{Group: "workers", Name: "drain"}, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
		wantLimits(t, h, intent.Hook{Group: "workers", Name: "short"}, notice.HookLimits{Timeout: 10 * time.Second, Global: 1000 * time.Second})
		long, short := as.begin(t, "workers", "drain"), as.begin(t, "workers", "short")
		emptyBucket(t, h)

		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for _, call := range []func(){
			func() { _, _ = h.Limits(ctx, intent.Hook{Group: "others", Name: "drain"}) },
			func() { h.Hold(ctx, started(long, time.Now().Add(-time.Minute))) },
			func() { h.Hold(ctx, started(short, time.Now().Add(-time.Minute))) },
			func() { mustComplete(t, h, as.begin(t, "workers", "drain")) },
		} {
			wg.Go(call)
			synctest.Wait()
		}
		wg.Wait()
		var order []string
		for _, c := range as.made("")[2:] {
			order = append(order, c.operation+" "+c.hook.Name)
		}
		want := []string{complete + " drain", heartbeat + " short", heartbeat + " drain", describe + " drain"}
		if diff := cmp.Diff(want, order); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestTheCompletionOfTheHookThatEndsSoonerGoesFirst(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		wantLimits(t, h, intent.Hook{Group: "workers", Name: "drain"}, notice.HookLimits{Timeout: 2 * time.Minute, Global: 200 * time.Minute})
		late, soon, unknown := as.begin(t, "workers", "drain"), as.begin(t, "workers", "drain"), as.begin(t, "workers", "drain")
		late.Deadline, soon.Deadline = time.Now().Add(time.Hour), time.Now().Add(time.Minute)
		emptyBucket(t, h)
		var wg sync.WaitGroup
		for _, hook := range []intent.Hook{unknown, late, soon} {
			wg.Go(func() { mustComplete(t, h, hook) })
			synctest.Wait()
		}
		wg.Wait()
		var order []string
		for _, c := range as.made(complete) {
			order = append(order, c.hook.Instance)
		}
		if diff := cmp.Diff([]string{soon.Instance, late.Instance, unknown.Instance}, order); diff != "" {
			t.Errorf("completions (-want +got):\n%s", diff)
		}
	})
}

func TestRefusedCompletionsLeaveTheBucketToTheOthers(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		as.putHook(t, "workers", "short", 10*time.Second)
		as.fail(t, complete, "AccessDenied", 403, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 800 {
			hook := as.begin(t, "workers", "drain")
			wg.Go(func() { _ = h.Complete(ctx, hook) })
		}
		time.Sleep(2 * time.Minute)
		hook := as.begin(t, "workers", "short")
		wg.Go(func() { h.Hold(ctx, started(hook, time.Now())) })
		time.Sleep(6 * time.Minute)
		if state := as.state(t, hook); state.Outcome != "" || state.Heartbeats < 60 {
			t.Errorf("the hook of another is %+v, want it open and held", state)
		}
		wg.Wait()
	})
}

func TestAThousandHooksKeepToTheRate(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		start := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			hook := as.begin(t, "workers", "drain")
			wg.Go(func() { mustComplete(t, h, hook) })
		}
		wg.Wait()
		wantCalls(t, as, map[string]int{complete: 1000})
		wantAfter(t, start, (1000-callBurst)*time.Second/callsPerSecond)
	})
}

// story tells it about a group "workers" with a hook "drain" of two minutes,
// and heartbeats each half minute, in virtual time.
func story(t *testing.T, tell func(t *testing.T, as *fakeASG, h *Hooks)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		as := newFakeASG()
		as.putHook(t, "workers", "drain", 2*time.Minute)
		tell(t, as, &Hooks{Client: as.client(), HeartbeatInterval: 30 * time.Second, Metrics: &recorder{}})
	})
}

func wantCalls(t *testing.T, as *fakeASG, want map[string]int) {
	t.Helper()
	if diff := cmp.Diff(want, as.counts()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func times(start time.Time, calls []call) []time.Duration {
	var after []time.Duration
	for _, c := range calls {
		after = append(after, c.at.Sub(start))
	}
	return after
}

// recorder is a Metrics that keeps what it was told, in order.
type recorder struct {
	mu   sync.Mutex
	told []string
}

func (r *recorder) Completed(_ time.Time, err error) { r.tell("completed", err) }
func (r *recorder) Heartbeat(err error)              { r.tell("heartbeat", err) }
func (r *recorder) Described(err error)              { r.tell("described", err) }

func (r *recorder) tell(what string, err error) {
	result := "ok"
	if lacksPermission(err) {
		result = "denied"
	} else if err != nil {
		result = "error"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, what+" "+result)
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.told)
}

// wantOnce wants one line of a log that says why a permission is missing.
func wantOnce(t *testing.T, log *logtest.Log, why, permission string) {
	t.Helper()
	if found := log.Entries(why, "permission", permission); len(found) != 1 {
		t.Errorf("%d lines say that %s is missing, want 1:\n%s", len(found), permission, log)
	}
}

// Who knows the token of an action (it stands in the annotation of its node, for all who
// may read nodes) and can have another one with it completed, by a message or on his own
// node, keeps the real one from ever being completed.
func TestATokenOfAnotherActionCompletesNothing(t *testing.T) {
	story(t, func(t *testing.T, as *fakeASG, h *Hooks) {
		real := as.begin(t, "workers", "drain")
		forged := intent.Hook{Group: "no-such-group", Name: "x", Instance: "i-0000000000000bad0", Token: real.Token}
		wantGone(t, h, forged)
		real.Deadline = time.Now().Add(time.Minute)
		if err := h.Complete(t.Context(), real); err != nil {
			t.Fatal(err)
		}
		if state := as.state(t, real); state.Outcome != "completed" {
			t.Errorf("the real action is %+v", state)
		}
	})
}

// started is the hook, which began at that time.
func started(hook intent.Hook, at time.Time) intent.Hook {
	hook.Started = at
	return hook
}
