package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/instance"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// A deputy is a handler on the story's node, beside the leader with the queue.
type deputy struct {
	s      *story
	ctx    context.Context
	c      *Controller
	drain  *slowDrainer
	leads  atomic.Bool // what the Lease says of the leader
	all    sync.WaitGroup
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	ended []intent.Outcome
}

// Leads implements Leader.
func (d *deputy) Leads(context.Context) bool { return d.leads.Load() }

type endings struct {
	report.Observer
	d *deputy
}

func (e endings) Drained(r report.Drain) {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	e.d.ended = append(e.d.ended, r.Outcome)
}

// onNode starts a deputy that drains in a time. The Lease says that somebody leads.
func (s *story) onNode(takes time.Duration) *deputy {
	s.Helper()
	nodes, err := cluster.NewOfNode(s.kube, nil, "imds", cluster.CordonOptions{}, theNode)
	s.must(err)
	d := &deputy{s: s, drain: &slowDrainer{takes: takes}}
	d.leads.Store(true)
	d.ctx, d.cancel = context.WithCancelCause(s.ctx)
	d.c = New(Config{
		Cluster: nodes, Instances: instance.NewDirectory(ec2.NewFromConfig(s.aws.Config())), Hooks: NoHooks{}, Drainer: d.drain,
		Observer: endings{telemetry.New(), d}, Log: slog.New(slog.NewTextHandler(s.Output(), nil)).With("on", "node"),
		Policy: decision.Policy{NodeGracePeriod: 2 * time.Minute}, Leader: d,
	})
	d.all.Go(func() { nodes.Run(d.ctx) })
	s.must(nodes.WaitForSync(d.ctx))
	d.all.Go(func() { _ = d.c.Run(d.ctx) }) // the cause of ctx
	<-d.c.Resumed()
	s.Cleanup(d.stop)
	return d
}

func (d *deputy) stop() {
	d.cancel(errors.New("the story stops the deputy"))
	d.all.Wait()
}

// reads has the deputy handle a notice of the metadata.
func (d *deputy) reads(n notice.Notice, err error) {
	d.s.Helper()
	d.s.must(err)
	d.all.Go(func() { _ = d.c.HandleNotice(d.ctx, n, func() {}) })
}

func (d *deputy) readsSpot() {
	d.s.Helper()
	at := time.Now().Add(2 * time.Minute).UTC().Format(time.RFC3339)
	d.reads(notice.OfSpotAction(`{"action":"terminate","time":"`+at+`"}`, theID))
}

func (d *deputy) outcomes() []intent.Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

func (s *story) wantDrains(leader, deputys int, d *deputy) {
	s.Helper()
	s.drain.mu.Lock()
	d.drain.mu.Lock()
	defer s.drain.mu.Unlock()
	defer d.drain.mu.Unlock()
	if len(s.drain.drains) != leader || len(d.drain.drains) != deputys {
		s.Errorf("%d drains by the leader and %d by the deputy, want %d and %d", len(s.drain.drains), len(d.drain.drains), leader, deputys)
	}
}

func TestTheLeaderGoesOnWithTheDrainThatTheDeputyHasBegun(t *testing.T) {
	tell(t, func(s *story) {
		s.lead()
		d := s.onNode(40 * time.Second)
		d.readsSpot()
		s.after(5 * time.Second)
		s.wantDrains(0, 1, d)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		s.wantDrains(1, 1, d)
		if d.drain.now != 0 {
			t.Error("both drain the node")
		}
		s.after(time.Minute)
		if i := s.intent(); i.Outcome != intent.Drained || s.left() != 0 || len(i.Entries) != 1 {
			t.Errorf("the node carries %+v, %d messages are left", i, s.left())
		}
		if got := d.outcomes(); len(got) != 0 {
			t.Errorf("the deputy says that its drain has ended: %v", got)
		}
		s.wantDrains(1, 1, d)
		if d.c.get(cluster.RefOf(s.node())) != nil {
			t.Error("the deputy waits for ever")
		}
	})
}

func TestTheDeputyAddsToTheDrainOfTheLeader(t *testing.T) {
	tell(t, func(s *story) {
		s.drain.takes = -1
		s.lead()
		d := s.onNode(40 * time.Second)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		d.readsSpot()
		s.after(5 * time.Second)
		s.wantDrains(1, 0, d)
		if terms := s.lastDrain().terms; terms.Deadline.IsZero() {
			t.Error("the leader does not know of the deadline")
		}
	})
}

func TestWithoutALeaderTheDeputyDrainsAndLeavesTheHookToTheNextLeader(t *testing.T) {
	for name, takes := range map[string]time.Duration{"the leader returns late": 10 * time.Second, "in the middle": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = time.Hour
				stop := s.lead()
				d := s.onNode(takes)
				s.terminate(30 * time.Minute)
				s.after(5 * time.Second)
				d.readsSpot()
				s.after(5 * time.Second)
				s.wantDrains(1, 0, d)
				stop()
				d.leads.Store(false)
				s.after(20 * time.Second)
				s.wantDrains(1, 1, d)
				s.after(time.Minute)
				if i := s.intent(); i.Finished() || len(i.Hooks) != 1 {
					t.Errorf("the node carries %+v", i)
				}
				s.drain.take(time.Second)
				d.leads.Store(true)
				s.lead()
				s.after(2 * time.Minute)
				s.wantDrains(2, 1, d)
				s.wantHook(awssim.Completed)
				if i := s.intent(); i.Outcome != intent.Drained || s.left() != 0 {
					t.Errorf("the node carries %+v, %d messages are left", i, s.left())
				}
				d.stop()
			})
		})
	}
}

// Both ways tell the same news. AWS gives them ids of their own.
func TestANodeIsNotDrainedAgainForTheSameNews(t *testing.T) {
	tell(t, func(s *story) {
		d := s.onNode(time.Second)
		d.leads.Store(false)
		d.readsSpot()
		s.after(10 * time.Second)
		s.wantDrains(0, 1, d)
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.wantDrains(0, 1, d)
		if s.left() != 0 {
			t.Error("the message is left")
		}
		if got := d.outcomes(); len(got) != 1 {
			t.Errorf("outcomes of the deputy: %v", got)
		}
	})
}

func TestWhatTheDeputyTakesBackTheLeaderTakesBackToo(t *testing.T) {
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		d := s.onNode(time.Hour)
		change := func(state string) notice.Notice {
			s.Helper()
			at := time.Now().Add(2 * time.Hour).UTC().Format("2 Jan 2006 15:04:05 GMT")
			list, err := notice.OfScheduled(`[{"NotBefore":"`+at+`","Code":"system-reboot","EventId":"instance-event-1","State":"`+state+`"}]`, theID, time.Now())
			s.must(err)
			return list[0]
		}
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		d.reads(change("active"), nil)
		s.after(10 * time.Second)
		s.wantDrains(1, 0, d)
		d.reads(change("canceled"), nil)
		s.after(10 * time.Second)
		if i := s.intent(); i.Has(notice.ScheduledChange) || !i.Has(notice.RebalanceRecommendation) {
			t.Errorf("the node carries %+v", i)
		}
		if i, _ := s.c.get(cluster.RefOf(s.node())).current(); i.Has(notice.ScheduledChange) {
			t.Error("the leader still drains for the change")
		}
	})
	tell(t, func(s *story) { // the leader knows of the change too, and of nothing else
		s.drain.takes = time.Hour
		s.lead()
		d := s.onNode(time.Hour)
		list, err := notice.OfScheduled(`[{"NotBefore":"1 Jan 2000 03:00:00 GMT","Code":"system-reboot","EventId":"instance-event-1","State":"active"}]`, theID, time.Now())
		s.must(err)
		polled := list[0]
		polled.ID = "polled-1"
		go func() { _ = s.c.HandleNotice(s.ctx, polled, func() {}) }()
		s.after(time.Second)
		d.reads(list[0], nil)
		s.after(10 * time.Second)
		s.wantDrains(1, 0, d)
		ended := list[0]
		ended.Ended, ended.ID, ended.Deadline = true, "imds-instance-event-1-ended", time.Time{}
		d.reads(ended, nil)
		s.after(10 * time.Second)
		if s.node().Spec.Unschedulable || s.drain.now != 0 || s.c.get(cluster.RefOf(s.node())) != nil || d.c.get(cluster.RefOf(s.node())) != nil {
			t.Errorf("cordoned: %v; %d drains of the leader", s.node().Spec.Unschedulable, s.drain.now)
		}
	})
}
