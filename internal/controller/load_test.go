package controller

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	pods "github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// about lets times differ by a second: a look-up takes a while, and AWS counts in seconds.
var about = cmpopts.EquateApproxTime(time.Second)

func TestTheLoadIsWhatIsUnderWay(t *testing.T) {
	tell(t, func(s *story) {
		var c *Controller
		s.edit = func(made *Controller) { c, made.CompletionDelay = made, time.Minute }
		s.lead()
		want := func(when string, want telemetry.Load) {
			s.Helper()
			if diff := cmp.Diff(want, c.Load(), about); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		want("at rest", telemetry.Load{})
		began := time.Now()
		s.terminate(10 * time.Minute)
		s.after(time.Second)
		load := telemetry.Load{Drains: 1, Oldest: began, Deadline: began.Add(10*time.Minute - 5*time.Second), Hooks: 1}
		load.HookDeadline = load.Deadline
		want("while the pods leave", load)
		s.after(s.drain.takes)
		load.Deadline = time.Time{}
		want("while the hook waits for its delay", load)
		s.after(c.CompletionDelay)
		want("at the end", telemetry.Load{})
	})
}

func TestTheLoadCountsTheHookOfAnInstanceThatIsNoNodeYet(t *testing.T) {
	tell(t, func(s *story) {
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		var c *Controller
		s.edit = func(made *Controller) { c = made }
		s.lead()
		began := time.Now()
		s.terminate(time.Hour)
		s.after(time.Second)
		if diff := cmp.Diff(telemetry.Load{Hooks: 1, HookDeadline: began.Add(time.Hour - 5*time.Second)}, c.Load(), about); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		s.after(3 * time.Minute)
		s.wantHook(awssim.Completed)
		if diff := cmp.Diff(telemetry.Load{}, c.Load()); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
}

// counts are the Metrics of a story.
type counts struct {
	mu   sync.Mutex
	told []string
}

func (c *counts) Cordoned(e cluster.Entry) { c.add("cordoned for %s", e.Kind) }

func (c *counts) Ended(i cluster.Intent, r pods.Result, gone bool) {
	c.add("ended for %s, gone: %v, %d evicted, %d left, %d missed", i.Cause().Kind, gone, r.Evicted, r.Left, len(r.Missed))
}

func (c *counts) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf(format, args...))
}

func TestANodeIsCountedOnceForEachNoticeAndOnceForItsDrain(t *testing.T) {
	tests := map[string]struct {
		story func(s *story)
		want  []string
	}{
		"a warning that comes twice, after a recommendation": {
			func(s *story) {
				s.send(s.body("rebalance-recommendation", theID))
				s.after(time.Second)
				warning := s.body("spot-interruption", theID)
				s.send(warning)
				s.after(time.Second)
				s.send(warning)
				s.after(time.Minute)
			},
			[]string{"cordoned for RebalanceRecommendation", "cordoned for SpotInterruption", "ended for SpotInterruption, gone: false, 1 evicted, 0 left, 0 missed"},
		},
		"a machine that goes early": {
			func(s *story) {
				s.send(s.body("spot-interruption", theID))
				s.after(time.Second)
				s.send(s.body("state-change-terminated", theID))
				s.after(time.Second)
			},
			[]string{"cordoned for SpotInterruption", "ended for SpotInterruption, gone: true, 0 evicted, 1 left, 0 missed"},
		},
		"a deadline that is missed": {
			func(s *story) {
				s.drain.takes = -1
				s.send(s.body("spot-interruption", theID))
				s.after(3 * time.Minute)
			},
			[]string{"cordoned for SpotInterruption", "ended for SpotInterruption, gone: false, 0 evicted, 0 left, 1 missed"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				var seen counts
				s.edit = func(c *Controller) { c.Metrics = &seen }
				s.lead()
				test.story(s)
				if diff := cmp.Diff(test.want, seen.told); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestEveryDecisionIsAmongThoseThatAreExpected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Controller{Policy: Policy{
			CordonOnly: rapid.Bool().Draw(t, "cordon only"), DeleteForeign: rapid.Bool().Draw(t, "delete foreign"), NodeGracePeriod: 2 * time.Minute,
			HookNames: rapid.SampledFrom([][]string{nil, {"a"}, {"b"}}).Draw(t, "hook names"),
		}}
		expected := map[choice]bool{}
		for _, d := range c.Decisions() {
			key := choice{d.Notice.Kind, d.Action, Why(d.Why)}
			if expected[key] {
				t.Fatalf("%v is there twice", key)
			}
			expected[key] = true
		}
		now := time.Now()
		n := notice.Notice{Kind: rapid.SampledFrom(notice.Kinds).Draw(t, "kind")}
		f := facts{whose: whose(rapid.IntRange(int(foreign), int(ours)).Draw(t, "whose")), now: now}
		if rapid.Bool().Draw(t, "has a time") {
			n.Time = now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "age")) * time.Second)
		}
		if rapid.Bool().Draw(t, "has a deadline") {
			n.Deadline = now.Add(time.Duration(rapid.IntRange(-3600, 3600).Draw(t, "left")) * time.Second)
		}
		switch n.Kind {
		case notice.StateChange:
			n.Gone = rapid.Bool().Draw(t, "gone")
		case notice.ScheduledChange:
			n.Ended = rapid.Bool().Draw(t, "ended")
			f.calledOff = !n.Ended && rapid.Bool().Draw(t, "called off")
		case notice.ASGTerminate, notice.ASGLaunch:
			n.Hook.Name = rapid.SampledFrom([]string{"a", "c"}).Draw(t, "hook")
			f.limits = asg.Limits{Timeout: time.Duration(rapid.IntRange(0, 7200).Draw(t, "timeout")) * time.Second}
		}
		d := decide(n, f, c.Policy)
		if key := (choice{n.Kind, d.action.String(), d.why}); !expected[key] {
			t.Errorf("%v is not expected", key)
		}
	})
}
