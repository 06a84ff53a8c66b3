package controller

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// What the leader hears meanwhile asks it for no drain.
func TestTheDeputyGoesOnAfterNewsThatAskTheLeaderForNoDrain(t *testing.T) {
	for name, send := range map[string]func(s *story){
		"it runs": func(s *story) { s.send(s.body("state-change-running", theID)) },
		"a change is over": func(s *story) {
			n := notice.Notice{Kind: notice.ScheduledChange, Change: "another", ID: "ended-1", Instances: []string{theID}, Ended: true, Time: time.Now()}
			go func() { _ = s.c.HandleNotice(s.ctx, n, func() {}) }()
		},
		"it has recovered": func(s *story) {
			n := notice.Notice{Kind: notice.InstanceImpaired, ID: "ok-1", Instances: []string{theID}, Ended: true, Time: time.Now()}
			go func() { _ = s.c.HandleNotice(s.ctx, n, func() {}) }()
		},
		"a message of before comes again": func(s *story) {
			n := notice.Notice{Kind: notice.RebalanceRecommendation, ID: "old", Instances: []string{theID}, Time: time.Now()}
			go func() { _ = s.c.HandleNotice(s.ctx, n, func() {}) }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.lead()
				d := s.onNode(40 * time.Second)
				if name == "a message of before comes again" {
					_, err := d.c.Cluster.Record(s.ctx, cluster.RefOf(s.node()), func(i intent.Intent) intent.Intent {
						now := time.Now().UTC()
						i = i.With(intent.Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"old"}, Time: now}, nil, now)
						i = i.CalledOff(i.Entries, now)
						i.FinishedAt = now
						return i
					})
					s.must(err)
				}
				d.readsSpot()
				s.after(5 * time.Second)
				s.wantDrains(0, 1, d)
				send(s)
				s.after(80 * time.Second)
				if i := s.intent(); i.Outcome != intent.Drained {
					t.Errorf("the node carries %+v", i)
				}
				s.wantDrains(0, 1, d)
			})
		})
	}
}
