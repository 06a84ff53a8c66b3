package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// world is a simulated account with target groups, in virtual time.
type world struct {
	*testing.T
	aws     *awssim.Server
	targets *Targets
	groups  []TargetGroup
	log     *logtest.Log
	cancels []func()
	start   time.Time
}

func inBubble(t *testing.T, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		defer aws.Close()
		w := &world{T: t, aws: aws, log: &logtest.Log{}, start: time.Now()}
		w.targets = &Targets{
			Client: elb.NewFromConfig(aws.Config()).DescribeTargetHealth, Log: w.log.Logger(),
			Groups: func(context.Context, map[string]string) ([]TargetGroup, error) { return slices.Clone(w.groups), nil },
		}
		story(w)
		for _, cancel := range w.cancels {
			cancel()
		}
		synctest.Wait() // nobody looks any more, or the bubble would not end
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// group adds a target group with a deregistration delay, and targets.
func (w *world) group(name string, delay time.Duration, ids ...string) {
	w.Helper()
	w.must(w.aws.PutTargetGroup(awssim.TargetGroup{Name: name, DeregistrationDelay: delay}))
	w.groups = append(w.groups, TargetGroup{ARN: w.aws.TargetGroupARN(name), Name: name, Region: "us-east-1"})
	for _, id := range ids {
		w.must(w.aws.RegisterTarget(name, id, 30080))
	}
}

// calls are the calls that were made, whatever their answers.
func (w *world) calls() (n int) {
	for key, count := range w.aws.Counts() {
		if key.Action == "DescribeTargetHealth" {
			n += count
		}
	}
	return n
}

// machine is one whose wait may last for an hour.
func (w *world) machine(id string) Machine {
	return Machine{Instance: id, Since: time.Now(), Patience: time.Now().Add(time.Hour)}
}

func (w *world) await(ctx context.Context, m Machine) (left []string, err error) {
	return w.targets.Await(ctx, m, func([]string) {})
}

func id(n int) string { return fmt.Sprintf("i-%017x", n) }

var errDeadline = errors.New("the deadline is near")

func (w *world) until(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(w.Context(), d, errDeadline)
	w.cancels = append(w.cancels, cancel)
	return ctx
}

func TestAMachineWaitsUntilItsTargetsAreGone(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", 30*time.Second, id(1), id(2))
		w.group("api", time.Minute, id(1))
		w.group("other", time.Hour, id(2))
		var told [][]string
		m := w.machine(id(1))
		time.AfterFunc(3*time.Second, func() {
			w.must(w.aws.DeregisterTarget("web", id(1)))
			w.must(w.aws.DeregisterTarget("api", id(1)))
		})
		left, err := w.targets.Await(w.Context(), m, func(groups []string) { told = append(told, groups) })
		if took := time.Since(w.start); len(left) > 0 || err != nil || took < 63*time.Second || took > 63*time.Second+Interval {
			t.Errorf("left %v, %v, after %v: api drains for a minute from 3 s on", left, err, took)
		}
		if diff := cmp.Diff([][]string{{"api", "web"}}, told); diff != "" && len(told) != 1 {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

func TestNobodyWaitsForNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		if left, err := w.await(w.Context(), w.machine(id(1))); len(left) > 0 || err != nil || time.Since(w.start) > 0 || w.calls() > 0 {
			t.Errorf("without target groups: %v, %v, after %v, %d calls", left, err, time.Since(w.start), w.calls())
		}
		w.group("web", time.Minute, id(2))
		w.groups = append(w.groups, TargetGroup{ARN: w.aws.TargetGroupARN("gone"), Name: "gone", Region: "us-east-1"})
		if left, err := w.await(w.Context(), w.machine(id(1))); len(left) > 0 || err != nil || time.Since(w.start) > 2*time.Second {
			t.Errorf("a machine that is no target: %v, %v, after %v", left, err, time.Since(w.start))
		}
		w.must(w.aws.PutInstance(awssim.Instance{ID: id(2), State: "stopped"}))
		time.Sleep(Interval)
		if left, err := w.await(w.Context(), w.machine(id(2))); len(left) > 0 || err != nil {
			t.Errorf("a target that is unused: %v, %v", left, err)
		}
		w.targets.Region = "eu-west-1"
		before := w.calls()
		if left, err := w.await(w.Context(), w.machine(id(1))); len(left) > 0 || err != nil || w.calls() > before {
			t.Errorf("groups of another region: %v, %v", left, err)
		}
	})
}

func TestWhatStillDrainsAtTheEndIsNamed(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", time.Minute, id(1))
		w.group("api", 5*time.Second, id(1))
		for _, g := range w.groups {
			w.must(w.aws.DeregisterTarget(g.Name, id(1)))
		}
		left, err := w.await(w.until(40*time.Second), w.machine(id(1)))
		if took := time.Since(w.start); !slices.Equal(left, []string{"web"}) || !errors.Is(err, errDeadline) || took != 40*time.Second {
			t.Errorf("left %v, %v, after %v", left, err, took)
		}
	})
}

// Without the AWS Load Balancer Controller nobody takes the machine out.
func TestATargetThatNobodyDeregistersIsNotWaitedForLong(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", time.Minute, id(1), id(2))
		for patience, want := range map[time.Duration]time.Duration{0: leastPatience, 45 * time.Second: 45 * time.Second} {
			m, begin := w.machine(id(1)), time.Now()
			m.Patience = begin.Add(patience)
			left, err := w.await(w.Context(), m)
			if took := time.Since(begin); !slices.Equal(left, []string{"web"}) || err != nil || took != want {
				t.Errorf("left %v, %v, after %v, want %v", left, err, took, want)
			}
		}
		// One that drains may take longer.
		w.must(w.aws.DeregisterTarget("web", id(2)))
		m, begin := w.machine(id(2)), time.Now()
		m.Patience = begin
		if left, err := w.await(w.Context(), m); len(left) > 0 || err != nil || time.Since(begin) < time.Minute {
			t.Errorf("left %v, %v, after %v", left, err, time.Since(begin))
		}
	})
}

// The figure: 100 machines behind five target groups take five calls in ten seconds at most.
func TestAHundredMachinesShareTheirCalls(t *testing.T) {
	inBubble(t, func(w *world) {
		const machines, groups = 100, 5
		var ids []string
		for n := range machines {
			ids = append(ids, id(n))
		}
		for n := range groups {
			w.group(fmt.Sprintf("group-%d", n), 45*time.Second, ids...)
		}
		var all sync.WaitGroup
		for n, id := range ids {
			all.Go(func() {
				time.Sleep(time.Duration(n) * 170 * time.Millisecond) // they come one after the other, for 17 s
				m := w.machine(id)
				for _, g := range w.groups {
					w.must(w.aws.DeregisterTarget(g.Name, id))
				}
				if left, err := w.await(w.Context(), m); len(left) > 0 || err != nil {
					t.Errorf("%s: left %v, %v", id, left, err)
				}
			})
		}
		all.Wait()
		took := time.Since(w.start)
		var times []time.Time
		for _, c := range w.aws.Calls() {
			if c.Action == "DescribeTargetHealth" {
				times = append(times, c.Start)
			}
		}
		most := 0
		for k, from := range times {
			n := 0
			for _, at := range times[k:] {
				if at.Sub(from) < Interval {
					n++
				}
			}
			most = max(most, n)
		}
		t.Logf("%d calls in %v, %d in ten seconds at most", len(times), took, most)
		if most > groups || len(times) < groups {
			t.Errorf("%d calls within ten seconds, want %d at most", most, groups)
		}
		time.Sleep(time.Hour)
		if n := w.calls(); n != len(times) {
			t.Errorf("%d calls after the last machine was gone", n-len(times))
		}
	})
}

func TestALateComerTakesTheLastAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", time.Minute, id(1))
		early := w.machine(id(2))
		if _, err := w.await(w.Context(), early); err != nil {
			t.Fatal(err)
		}
		before := w.calls()
		if left, err := w.await(w.Context(), early); len(left) > 0 || err != nil || w.calls() > before {
			t.Errorf("left %v, %v, %d calls", left, err, w.calls()-before)
		}
		// An answer from before the exclusion does not count.
		late, begin := w.machine(id(3)), time.Now()
		late.Since = begin.Add(time.Nanosecond)
		if left, err := w.await(w.Context(), late); len(left) > 0 || err != nil || time.Since(begin) < Interval-firstLook || time.Since(begin) > Interval {
			t.Errorf("left %v, %v, after %v", left, err, time.Since(begin))
		}
	})
}

// deniedCalls counts the calls that are denied.
type deniedCalls struct{ atomic.Int32 }

func (d *deniedCalls) TargetsDenied() { d.Add(1) }

func TestWithoutThePermissionNobodyWaits(t *testing.T) {
	const why = "drains do not wait for load balancers: "
	for code, tt := range map[string]struct {
		why    string
		denied int32
	}{
		"AccessDenied":  {why + "the role of this controller lacks a permission", 2},
		"InvalidAction": {why + "the server does not have a call", 0},
	} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var denied deniedCalls
				w.targets.Metrics = &denied
				w.group("web", time.Minute, id(1))
				w.group("api", time.Minute, id(1))
				w.must(w.aws.SetFault(awssim.Fault{ID: "denied", Service: "elasticloadbalancing", Code: code, Status: 403}))
				for range 5 {
					if left, err := w.await(w.Context(), w.machine(id(1))); len(left) > 0 || err != nil || time.Since(w.start) > 2*time.Second {
						t.Errorf("left %v, %v, after %v", left, err, time.Since(w.start))
					}
				}
				if n := w.calls(); n != 2 || denied.Load() != tt.denied {
					t.Errorf("%d calls, want one of each group; %d count as denied, want %d", n, denied.Load(), tt.denied)
				}
				if n := len(w.log.Entries("", "level", "warn")); n != 1 || !w.log.Has(tt.why, "permission", Permission) {
					t.Errorf("%d warnings, want %q:\n%s", n, tt.why, w.log)
				}
				// Somebody grants it.
				w.aws.RemoveFault("denied")
				time.Sleep(deniedPause)
				if left, _ := w.await(w.until(15*time.Second), w.machine(id(1))); len(left) != 2 {
					t.Errorf("left %v", left)
				}
			})
		})
	}
}

func TestFailuresAreTriedAgainMoreSlowly(t *testing.T) {
	for name, tt := range map[string]struct {
		fault awssim.Fault
		most  int // calls in two minutes
	}{
		"throttled": {awssim.Fault{Code: "Throttling"}, 6},
		"a fault":   {awssim.Fault{Status: 500}, 10},
		"no answer": {awssim.Fault{Hang: true}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.group("web", time.Minute, id(1))
				tt.fault.ID, tt.fault.Service = "f", "elasticloadbalancing"
				w.must(w.aws.SetFault(tt.fault))
				left, err := w.await(w.until(2*time.Minute), w.machine(id(1)))
				if !slices.Equal(left, []string{"web"}) || !errors.Is(err, errDeadline) {
					t.Errorf("nothing is known of it: left %v, %v", left, err)
				}
				if n := w.calls(); n < 3 || n > tt.most {
					t.Errorf("%d calls in two minutes, want 3 to %d", n, tt.most)
				}
				if said := w.log.Entries(""); len(said) != 1 || said[0].Level != "warn" {
					t.Errorf("the log says\n%s\nwant one warning", w.log)
				}
				w.aws.RemoveFault("f")
				w.must(w.aws.DeregisterTarget("web", id(1)))
				time.Sleep(2 * time.Minute)
				if left, err = w.await(w.Context(), w.machine(id(1))); len(left) > 0 || err != nil {
					t.Errorf("after the failures: left %v, %v", left, err)
				}
			})
		})
	}
}

func TestAGroupOfWhichNothingIsKnownIsWaitedForAsLongAsOneThatNobodyDrains(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", time.Minute, id(1))
		w.must(w.aws.SetFault(awssim.Fault{ID: "f", Service: "elasticloadbalancing", Hang: true}))
		m := w.machine(id(1))
		m.Patience = w.start.Add(45 * time.Second)
		left, err := w.await(w.Context(), m)
		if took := time.Since(w.start); !slices.Equal(left, []string{"web"}) || err != nil || took != 45*time.Second {
			t.Errorf("left %v, %v, after %v", left, err, took)
		}
	})
}

func TestAWaitThatIsCalledOffEndsAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		w.group("web", time.Hour, id(1), id(2))
		calledOff := errors.New("called off")
		ctx, cancel := context.WithCancelCause(w.Context())
		time.AfterFunc(15*time.Second, func() { cancel(calledOff) })
		var other sync.WaitGroup
		other.Go(func() {
			if left, err := w.await(w.until(time.Minute), w.machine(id(2))); !errors.Is(err, errDeadline) || len(left) != 1 {
				t.Errorf("the other machine: left %v, %v", left, err)
			}
		})
		if _, err := w.await(ctx, w.machine(id(1))); !errors.Is(err, calledOff) || time.Since(w.start) != 15*time.Second {
			t.Errorf("%v after %v", err, time.Since(w.start))
		}
		other.Wait()
		if n := w.calls(); n != 6 {
			t.Errorf("%d calls in a minute: the looks of one go on without the other", n)
		}
	})
}

func TestStatesOfTargets(t *testing.T) {
	for name, want := range map[string]state{
		"unused": outside, "draining": draining, "unhealthy.draining": draining, "initial": serving, "healthy": serving,
		"unhealthy": serving, "unavailable": serving, "of a later API": serving,
	} {
		if got := stateOf(typesState(name)); got != want {
			t.Errorf("%s: %d", name, got)
		}
	}
}
