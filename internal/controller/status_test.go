package controller

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// ended collects the episodes of a story.
func (s *story) ended() (episodes func() []overview.Episode) {
	var mu sync.Mutex
	var all []overview.Episode
	before := s.edit
	s.edit = func(c *Config) {
		if before != nil {
			before(c)
		}
		c.Ended = func(e overview.Episode) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
		}
	}
	return func() []overview.Episode {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// What has missed the deadline of a hook is still there when the machine goes, which another drain is for.
func TestAPodThatIsLeftIsCountedOnce(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = -1
		episodes := s.ended()
		s.lead()
		s.terminate(time.Minute)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
		s.dies()
		var outcomes []string
		left := 0
		for _, e := range episodes() {
			outcomes = append(outcomes, e.Outcome)
			if e.Pods != nil {
				left += e.Pods.Missed + e.Pods.Lost
			}
		}
		if diff := cmp.Diff([]string{"missed", "gone"}, outcomes); diff != "" || left != 1 {
			t.Errorf("%d pods are left, outcomes (-want +got):\n%s", left, diff)
		}
	})
}

func TestTheStatusSaysHowFarADrainHasCome(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CompletionDelay = time.Minute }
		episodes := s.ended()
		s.lead()
		if got := s.c.Registry.Status(s.Context()); len(got) > 0 {
			t.Errorf("at rest: %+v", got)
		}
		began := time.Now()
		s.terminate(10 * time.Minute)
		s.after(time.Second)
		node := overview.Node{
			Name: theNode, Instance: theID, Kind: "asg-terminate", Stage: overview.Draining,
			Since: began, CordonedAt: began, Deadline: began.Add(10*time.Minute - 5*time.Second),
			Hooks: []overview.Hook{{Group: "workers", Name: "drain", Deadline: began.Add(10*time.Minute - 5*time.Second)}},
		}
		want := func(when string, want overview.Node) {
			s.Helper()
			ignore := cmpopts.IgnoreFields(overview.Wait{}, "Why", "Until")
			if diff := cmp.Diff([]overview.Node{want}, s.c.Registry.Status(s.Context()), about, ignore); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		want("while the pods leave", node)
		s.after(s.drain.takes)
		node.Stage, node.WaitsFor = overview.Completing, []overview.Wait{{Cause: overview.Delay}}
		node.PodsGone, node.Pods = began.Add(s.drain.takes), &overview.Pods{Gone: 1}
		want("while the hook waits for its delay", node)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
		if got := s.c.Registry.Status(s.Context()); len(got) > 0 {
			t.Errorf("at the end: %+v", got)
		}
		all := episodes()
		if len(all) != 1 || all[0].Outcome != "drained" || all[0].Known != overview.Everything || all[0].Pods == nil ||
			len(all[0].Hooks) != 1 || len(all[0].Notices) != 1 || all[0].Notices[0].Kind != "asg-terminate" {
			t.Errorf("episodes %+v", all)
		}
	})
}

func TestADrainThatIsCalledOffIsAnEpisodeToo(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		episodes := s.ended()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		s.change(theNode, uncordon)
		s.after(2 * time.Second)
		s.wantUntouched()
		all := episodes()
		if len(all) != 1 || all[0].Outcome != "called-off" || all[0].Why == "" || all[0].Kind != "rebalance-recommendation" {
			t.Errorf("episodes %+v", all)
		}
	})
}

// Each term tells of what it ends, and of nothing else.
func TestAnEpisodeIsToldByTheLeaderThatEndsIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 30 * time.Second
		episodes := s.ended()
		stop := s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		stop()
		if all := episodes(); len(all) > 0 {
			t.Errorf("episodes %+v of a drain that goes on", all)
		}
		s.lead()
		s.after(40 * time.Second)
		if all := episodes(); len(all) != 1 || all[0].Outcome != "drained" || all[0].Known != overview.SinceTakeOver {
			t.Errorf("episodes %+v", all)
		}
	})
}
