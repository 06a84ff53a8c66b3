package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

func TestARecommendationCordonsAndAWarningDrains(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CordonRebalance = true }
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		if i := s.intent(); !s.node().Spec.Unschedulable || i.Outcome != intent.Cordoned || len(s.drain.drains) != 0 {
			t.Errorf("after the recommendation: cordoned %v, %q, %d drains", s.node().Spec.Unschedulable, i.Outcome, len(s.drain.drains))
		}
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if i := s.intent(); i.Outcome != intent.Drained || len(s.drain.drains) != 1 || s.left() != 0 {
			t.Errorf("after the warning: %q, %d drains, %d messages", i.Outcome, len(s.drain.drains), s.left())
		}
	})
}

func TestTheChangesOfANodeAreThoseThatItCarries(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		if got := s.c.Unannounced().Changes(theID); got != nil {
			t.Errorf("of a node without a notice: %v", got)
		}
		_, err := s.c.Cluster.Record(s.ctx, cluster.RefOf(s.node()), func(i intent.Intent) intent.Intent {
			now := time.Now().UTC()
			i = i.With(intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"r"}, Time: now}, nil, now)
			return i.With(intent.Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", IDs: []string{"s"}, Time: now}, nil, now)
		})
		s.must(err)
		s.after(time.Second)
		if diff := cmp.Diff([]string{"instance-event-00000000000000001"}, s.c.Unannounced().Changes(theID)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// In a storm the mark of a node that was only cordoned goes before evictions: a notice about the node waits for it.
func TestAWarningDoesNotWaitForTheMarkOfANodeThatWasOnlyCordoned(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.gate = pace.NewGate(64, 512)
		s.edit = func(c *Config) { c.CordonRebalance = true }
		storm := time.Now().Add(10 * time.Minute)
		for range 8 { // evictions
			go func() {
				for time.Now().Before(storm) {
					if leave, err := s.gate.Enter(s.ctx, pace.Priority{}); err == nil {
						time.Sleep(300 * time.Millisecond)
						leave(0)
					}
				}
			}()
		}
		s.lead()
		s.after(2 * time.Second)
		for range 1000 { // marks of other nodes, with near deadlines
			s.gate.EnterAsync(pace.Priority{Deadline: time.Now(), Rank: pace.Conclude}, func(leave func(time.Duration)) {
				time.AfterFunc(300*time.Millisecond, func() { leave(0) })
			})
		}
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
			t.Errorf("cordoned: %t, drains after the warning: %d", s.node().Spec.Unschedulable, len(s.drain.all()))
		}
		time.Sleep(time.Until(storm) + time.Minute)
	})
}
