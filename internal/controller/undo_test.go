package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestAnEndThatIsToldAgainPushesNoOtherOut(t *testing.T) {
	t.Parallel()
	c, at := newCancelledChanges(), time.Now()
	end := func(change string, at time.Time) notice.Notice {
		return notice.Notice{Kind: notice.ScheduledChange, Change: change, Time: at, Ended: true}
	}
	announced := func(change string, at time.Time) notice.Notice {
		return notice.Notice{Kind: notice.ScheduledChange, Change: change, Time: at}
	}
	c.add(end("first", at), theID)
	for k := range 100 {
		c.add(end("again", at.Add(-time.Duration(k)*time.Second)), theID) // the newest comes first
	}
	if !c.has(announced("first", at), theID) || !c.has(announced("again", at), theID) {
		t.Error("an announcement is not known to be called off")
	}
	if c.has(announced("again", at.Add(time.Second)), theID) || c.has(announced("first", at), "another instance") {
		t.Error("an announcement counts as called off that is not")
	}
	for k := range 100 { // ever new ones are bounded
		c.add(end(fmt.Sprint("new-", k), at), theID)
	}
	if n := len(c.of(theID)); n != 16 {
		t.Errorf("%d ends are remembered", n)
	}
}

// Delivered again, to a leader that does not know of the end, it would ask for another drain.
func TestAMessageAboutAChangeThatIsOverDoesNotWaitForTheDrain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 20 * time.Minute
		s.lead()
		s.terminate(time.Hour)
		s.send(s.reboot(time.Hour))
		s.after(time.Minute)
		if n := s.left(); n != 2 {
			t.Fatalf("%d messages wait for the drain, want 2", n)
		}
		s.send(s.body("health-maintenance-completed", theID))
		s.after(10 * time.Second)
		if n := s.left(); n != 1 || s.intent().Finished() {
			t.Errorf("%d messages wait for the drain, want that of the hook; the drain has ended: %t", n, s.intent().Finished())
		}
	})
}

// SQS delivers each message at least once.
func TestAnEndThatIsDeliveredAgainTakesBackNoNewerAnnouncement(t *testing.T) {
	t.Parallel()
	for name, failover := range map[string]bool{"to the same leader": false, "to the next leader": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				stop := s.lead()
				s.send(s.maintenance(24 * time.Hour))
				s.after(time.Minute)
				end := s.maintenance(24*time.Hour, "upcoming", "closed")
				s.send(end)
				s.after(time.Minute)
				s.wantUntouched()
				s.send(s.maintenance(48 * time.Hour))
				s.after(time.Minute)
				if failover {
					stop()
					s.lead()
				}
				s.send(end)
				s.after(time.Minute)
				if !s.isCordoned(theNode) || len(s.intent().Entries) != 1 || s.left() != 0 {
					t.Errorf("cordoned %t, intent %+v, %d messages left", s.isCordoned(theNode), s.intent(), s.left())
				}
				s.send(s.maintenance(48*time.Hour, "upcoming", "closed"))
				s.after(time.Minute)
				s.wantUntouched()
			})
		})
	}
}

// The messages of AWS have the time of its clock, and the leader's may be behind.
func TestAnEndIsOfTheClockOfItsAnnouncement(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		end, err := notice.Parse(s.maintenance(24*time.Hour, "upcoming", "closed"))
		s.must(err)
		end.Time = time.Now().Add(30 * time.Second)
		told := &task{c: s.c, log: s.c.Log, n: &end, id: theID, found: lookup.Found{Refs: []cluster.Ref{cluster.RefOf(s.node())}}}
		s.must(told.undo(s.Context()))
		before := intent.Entry{Kind: end.Kind, Change: end.Change, IDs: []string{"a"}, Time: end.Time.Add(-time.Second)}
		after := intent.Entry{Kind: end.Kind, Change: end.Change, IDs: []string{"b"}, Time: end.Time.Add(time.Second)}
		if i := s.intent(); !i.Over(before) || i.Over(after) {
			t.Errorf("past %+v: an announcement of before is over: %t, one of after: %t", i.Past, i.Over(before), i.Over(after))
		}
	})
}
