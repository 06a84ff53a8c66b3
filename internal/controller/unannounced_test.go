package controller

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestAHookWithoutANoticeIsCompletedAfterTheDrain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.lead()
		began := s.quietly(awssim.Terminating, "drain", 10*time.Minute).Started
		s.after(100 * time.Second)
		action := s.wantHook(awssim.Completed)
		took := action.Ended.Sub(began)
		if took > 90*time.Second+s.drain.takes || len(s.drain.drains) != 1 || !s.node().Spec.Unschedulable {
			t.Errorf("completed after %s and %d drains", took, len(s.drain.drains))
		}
		if calls := s.calls("CompleteLifecycleAction"); calls != 1 {
			t.Errorf("%d completions", calls)
		}
	})
}

// EventBridge delivers late: the notice and the sweep make one drain.
func TestANoticeThatIsLateJoinsWhatTheSweepHasBegun(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps, s.drain.takes = true, 2*time.Minute
		s.lead()
		action := s.quietly(awssim.Terminating, "drain", 10*time.Minute)
		s.after(80 * time.Second)
		if !s.node().Spec.Unschedulable {
			t.Fatal("the sweep has not begun")
		}
		s.send(s.body("asg-terminate-lifecycle", theID, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
		s.after(5 * time.Minute)
		s.wantHook(awssim.Completed)
		if len(s.drain.drains) != 1 || s.left() != 0 {
			t.Errorf("%d drains, %d messages are left", len(s.drain.drains), s.left())
		}
	})
}

// The instance goes on waiting for the hook of another program.
func TestASweepBeginsNoSecondDrain(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"one leader": false, "another leader": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.sweeps, s.edit = true, func(c *Config) { c.HookNames = []string{"drain"} }
				stop := s.lead()
				s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
				s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "another", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
				s.terminate(time.Hour)
				s.after(2 * time.Minute)
				if restart {
					stop()
					s.lead()
				}
				s.after(10 * time.Minute)
				if calls := s.calls("CompleteLifecycleAction"); calls != 1 || len(s.drain.drains) != 1 {
					t.Errorf("%d completions, %d drains", calls, len(s.drain.drains))
				}
			})
		})
	}
}

func TestADryRunOnlySaysWhatTheSweepFinds(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps, s.edit = true, func(c *Config) { c.DryRun = true }
		s.lead()
		s.quietly(awssim.Terminating, "drain", 10*time.Minute)
		s.after(5 * time.Minute)
		s.wantUntouched()
		s.wantHook("")
	})
}

func TestASweepLeavesInstancesWithoutTheTagAlone(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
		s.lead()
		s.quietly(awssim.Terminating, "drain", 10*time.Minute)
		s.after(5 * time.Minute)
		s.wantUntouched()
		s.wantHook("")
	})
}
