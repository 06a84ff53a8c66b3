package controller

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// about lets times differ by a second: a look-up takes a while, and AWS counts in seconds.
var about = cmpopts.EquateApproxTime(time.Second)

func TestTheLoadIsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CompletionDelay = time.Minute }
		s.lead()
		c := s.c
		want := func(when string, want report.Load) {
			s.Helper()
			if diff := cmp.Diff(want, c.Load(), about); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		want("at rest", report.Load{})
		began := time.Now()
		s.terminate(10 * time.Minute)
		s.after(time.Second)
		load := report.Load{Drains: 1, Oldest: began, Deadline: began.Add(10*time.Minute - 5*time.Second), Hooks: 1}
		load.HookDeadline = load.Deadline
		want("while the pods leave", load)
		s.after(s.drain.takes)
		load.Deadline = time.Time{}
		want("while the hook waits for its delay", load)
		s.after(c.CompletionDelay)
		want("at the end", report.Load{})
	})
}

// The limits of the hook cannot be read: it may be open for longer than is assumed.
func TestAnAssumedDeadlineIsNoTimeoutOfAHook(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.denyLimits()
		s.interval = 30 * time.Second
		s.lead()
		s.terminate(time.Hour)
		s.after(time.Second)
		if left := time.Until(s.c.Load().HookDeadline); left < 49*time.Minute || left > 50*time.Minute {
			t.Errorf("the hook ends in %s, want the 50 minutes that heartbeats hold any hook", left)
		}
	})
}

// A drain that is stuck is as old for the next leader.
func TestTheAgeOfADrainOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		began := time.Now()
		s.terminate(3 * time.Hour)
		s.after(10 * time.Minute)
		s.kill()
		s.lead()
		s.after(time.Minute)
		if load := s.c.Load(); load.Drains != 1 || load.Oldest.Sub(began) > time.Second {
			t.Errorf("%d drains, the oldest since %s after the notice", load.Drains, load.Oldest.Sub(began))
		}
	})
}

func TestTheLoadCountsTheHookOfAnInstanceThatIsNoNodeYet(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		s.lead()
		c := s.c
		began := time.Now()
		s.terminate(time.Hour)
		s.after(time.Second)
		if diff := cmp.Diff(report.Load{Hooks: 1, HookDeadline: began.Add(time.Hour - 5*time.Second)}, c.Load(), about); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if held := c.Held(); len(held) != 1 || held[0].Instance != theID || held[0].Until.Before(time.Now()) {
			t.Errorf("held: %+v", held)
		}
		s.after(3 * time.Minute)
		s.wantHook(awssim.Completed)
		if diff := cmp.Diff(report.Load{}, c.Load()); diff != "" || len(c.Held()) > 0 {
			t.Errorf("at the end there is %+v (-want +got):\n%s", c.Held(), diff)
		}
	})
}

// counts is the Observer of a story that keeps what metrics count.
type counts struct {
	mu   sync.Mutex
	told []string
}

func (c *counts) Decided(report.Decision) {}

func (c *counts) Stepped(report.Step) {}

func (c *counts) Recorded(e intent.Entry) { c.add("cordoned for %s", e.Kind) }

func (c *counts) Drained(d report.Drain) {
	r := d.Result
	c.add("ended for %s, %s: %d evicted, %d lost, %d missed", d.Intent.Cause().Kind, d.Outcome, r.Evicted, len(r.Lost), len(r.Missed))
}

func (c *counts) add(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf(format, args...))
}

func TestANodeIsCountedOnceForEachNoticeAndOnceForItsDrain(t *testing.T) {
	t.Parallel()
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
			[]string{"cordoned for RebalanceRecommendation", "cordoned for SpotInterruption", "ended for SpotInterruption, drained: 1 evicted, 0 lost, 0 missed"},
		},
		"a machine that goes early": {
			func(s *story) {
				s.send(s.body("spot-interruption", theID))
				s.after(time.Second)
				s.end(theID)
				s.send(s.body("state-change-terminated", theID))
				s.after(time.Second)
			},
			[]string{"cordoned for SpotInterruption", "ended for SpotInterruption, gone: 0 evicted, 1 lost, 0 missed"},
		},
		"a deadline that is missed": {
			func(s *story) {
				s.drain.takes = -1
				s.send(s.body("spot-interruption", theID))
				s.after(3 * time.Minute)
			},
			[]string{"cordoned for SpotInterruption", "ended for SpotInterruption, missed: 0 evicted, 0 lost, 1 missed"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				var seen counts
				s.edit = func(c *Config) { c.Observer = &seen }
				s.lead()
				test.story(s)
				if diff := cmp.Diff(test.want, seen.told); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}
