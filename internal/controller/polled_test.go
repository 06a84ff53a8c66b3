package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/status"
)

const theEvent = "instance-event-0123456789abcdef0"

// polls makes the leaders poll EC2.
func (s *story) polls() { s.poll = func(*status.Poll) {} }

// drainsImpaired makes them drain impaired instances too.
func (s *story) drainsImpaired() { s.poll = func(p *status.Poll) { p.DrainImpaired = true } }

// schedules makes EC2 list these events of the node's instance, and no others.
func (s *story) schedules(events ...awssim.ScheduledEvent) {
	s.Helper()
	s.must(s.aws.SetInstanceStatus(theID, events, awssim.StatusCheck{}, awssim.StatusCheck{}))
}

func reboot(at time.Time) awssim.ScheduledEvent {
	return awssim.ScheduledEvent{ID: theEvent, Code: "system-reboot", Description: "scheduled reboot", NotBefore: at}
}

// isOver is what EC2 lists after an event.
func isOver(e awssim.ScheduledEvent, how string) awssim.ScheduledEvent {
	e.Description = "[" + how + "] " + e.Description
	return e
}

// impairs makes the status checks of the node's instance fail.
func (s *story) impairs(since time.Time) {
	s.Helper()
	s.must(s.aws.SetInstanceStatus(theID, nil, awssim.StatusCheck{}, awssim.StatusCheck{Status: "impaired", ImpairedSince: since}))
}

// wantDrained checks that the node is cordoned after one drain.
func (s *story) wantDrained() {
	s.Helper()
	if i := s.intent(); len(s.drain.all()) != 1 || !i.Finished() || len(i.Entries) == 0 || !s.isCordoned(theNode) {
		s.Errorf("%d drains, want one; intent %+v, cordoned %t", len(s.drain.all()), i, s.isCordoned(theNode))
	}
}

// wantLeft checks that nothing was done to the node, or all was undone, after so many drains.
func (s *story) wantLeft(drains int) {
	s.Helper()
	s.wantUntouched()
	if n := len(s.drain.all()); n != drains {
		s.Errorf("%d drains, want %d", n, drains)
	}
}

func TestAScheduledEventThatAPollFindsIsDrainedForUntilItIsOver(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*story, awssim.ScheduledEvent){
		"completed":       func(s *story, e awssim.ScheduledEvent) { s.schedules(isOver(e, "Completed")) },
		"cancelled":       func(s *story, e awssim.ScheduledEvent) { s.schedules(isOver(e, "Canceled")) },
		"listed no more":  func(s *story, _ awssim.ScheduledEvent) { s.schedules() },
		"while it drains": func(s *story, e awssim.ScheduledEvent) { s.schedules(isOver(e, "Canceled")) },
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.polls()
				s.lead()
				e := reboot(time.Now().Add(14 * 24 * time.Hour).Truncate(time.Second))
				s.schedules(e)
				if name == "while it drains" {
					s.drain.take(time.Hour)
					s.after(5 * time.Minute)
				} else {
					s.after(2 * time.Minute)
					s.wantDrained()
					s.after(3 * time.Hour) // a known event is not handed over again
					s.wantDrained()
				}
				want := intent.Entry{Kind: notice.ScheduledChange, Change: theEvent, Deadline: e.NotBefore}
				if got := s.intent().Entries[0]; got.Kind != want.Kind || got.Change != want.Change || !got.Deadline.Equal(want.Deadline) {
					t.Errorf("entry %+v, want %+v", got, want)
				}
				end(s, e)
				s.after(3 * time.Minute)
				s.wantLeft(1)
				s.after(2 * time.Hour)
				s.wantLeft(1)
			})
		})
	}
}

// EC2 answers with eventual consistency.
func TestAnEventThatIsNotListedOnceIsNotOver(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		s.lead()
		e := reboot(time.Now().Add(time.Hour).Truncate(time.Second))
		s.schedules(e)
		s.after(5 * time.Minute)
		calls := s.calls("DescribeInstanceStatus")
		s.schedules()
		for s.calls("DescribeInstanceStatus") < calls+3 { // one poll
			s.after(time.Second)
		}
		s.schedules(e)
		s.after(5 * time.Minute)
		s.wantDrained()
		if version := s.node().ResourceVersion; version != "3" {
			t.Errorf("the node was written %s times", version)
		}
	})
}

// AWS Health tells of an event by another name, and does not tell that its owner has moved it.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyInstanceEventStartTime.html
func TestAnEventThatIsMovedGetsItsNewTime(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]bool{
		"of which AWS Health has told": true, "of which EC2 alone has told": false, "before the first poll of the next leader": true,
		"of which AWS Health has told last": true,
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.polls()
				s.drain.take(time.Hour)
				stop := s.lead()
				e := reboot(time.Now().Add(2 * time.Hour).Truncate(time.Second))
				s.schedules(e)
				entries := 1
				if strings.HasSuffix(name, "last") {
					entries = 2
					s.after(5 * time.Minute)
					s.send(s.maintenance(2*time.Hour - 5*time.Minute))
				} else if told {
					s.send(s.maintenance(2 * time.Hour))
				}
				s.after(5 * time.Minute)
				e.NotBefore = e.NotBefore.Add(24 * time.Hour)
				s.schedules(e)
				drains := 1
				if strings.HasPrefix(name, "before") {
					stop()
					s.lead()
					drains = 2 // the next leader goes on with it
				}
				s.after(5 * time.Minute)
				if i := s.intent(); !i.Deadline().Equal(e.NotBefore) || len(i.Entries) != entries || len(s.drain.all()) != drains {
					t.Errorf("entries %+v, want them until %s; %d drains", i.Entries, e.NotBefore, len(s.drain.all()))
				}
			})
		})
	}
}

// The message of AWS Health that says so was lost.
func TestAChangeThatEC2ListsAsOverIsOverThoughAMessageHasToldOfIt(t *testing.T) {
	t.Parallel()
	for name, another := range map[string]bool{"alone": false, "another begins then": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.polls()
				s.lead()
				e := reboot(time.Now().Add(2 * time.Hour).Truncate(time.Second))
				s.schedules(e)
				s.send(s.maintenance(2 * time.Hour))
				s.after(5 * time.Minute)
				s.wantDrained()
				ends := []awssim.ScheduledEvent{isOver(e, "Canceled")}
				if another {
					e.ID = "instance-event-0000000000000000b"
					ends = append(ends, e)
				}
				s.schedules(ends...)
				s.after(3 * time.Minute)
				if another {
					s.wantDrained()
				} else {
					s.wantLeft(1)
				}
			})
		})
	}
}

// What a node carries is all that the next leader needs to know.
func TestTheNextLeaderGoesOnWithWhatAPollHasFound(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		stop := s.lead()
		e := reboot(time.Now().Add(24 * time.Hour).Truncate(time.Second))
		s.schedules(e)
		s.after(2 * time.Minute)
		stop()
		stop = s.lead()
		s.after(10 * time.Minute)
		s.wantDrained()
		stop()
		s.schedules()
		s.lead()
		s.after(3 * time.Minute)
		s.wantLeft(1)
	})
}

func TestWhoeverUncordonsANodeIsHeededByThePollToo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes time.Duration
		begin func(*story)
		again func(*story) // what EC2 says after that
	}{
		"after the drain":  {takes: time.Second},
		"during the drain": {takes: time.Hour},
		"and the event is moved": {takes: time.Second, again: func(s *story) {
			s.schedules(reboot(s.began.Add(72 * time.Hour)))
		}},
		"of a change that AWS Health told of": {takes: time.Second, begin: func(s *story) {
			s.schedules() // EC2 lists it later
			s.send(s.maintenance(48 * time.Hour))
		}, again: func(s *story) {
			s.schedules(reboot(s.began.Add(48 * time.Hour)))
		}},
		"of an impaired instance, after the drain":  {takes: time.Second, begin: func(s *story) { s.impairs(s.began) }},
		"of an impaired instance, during the drain": {takes: time.Hour, begin: func(s *story) { s.impairs(s.began) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				s.drainsImpaired()
				s.drain.take(tt.takes)
				stop := s.lead()
				if tt.begin != nil {
					tt.begin(s)
				} else {
					s.schedules(reboot(s.began.Add(48 * time.Hour)))
				}
				for tries := 0; !s.isCordoned(theNode) && tries < 300; tries++ {
					s.after(time.Second)
				}
				s.after(3 * time.Second)
				if !s.isCordoned(theNode) {
					t.Fatal("the node is not cordoned")
				}
				s.change(theNode, uncordon)
				s.after(5 * time.Second)
				if tt.again != nil {
					tt.again(s)
				}
				s.after(2 * time.Hour)
				s.wantLeft(1)
				stop()
				s.lead()
				s.after(2 * time.Hour)
				s.wantLeft(1)
			})
		})
	}
}

// AWS Health tells of the same events as EC2, by other names.
func TestAnEventThatAWSHealthHasToldOfIsNotDrainedForTwice(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		s.lead()
		s.send(s.maintenance(48 * time.Hour))
		s.after(time.Second)
		s.schedules(reboot(s.intent().Deadline()))
		s.after(time.Hour)
		s.wantDrained()
		s.schedules(isOver(reboot(s.began), "Completed"))
		s.send(s.body("health-maintenance-completed", theID))
		s.after(time.Hour)
		s.wantLeft(1)
	})
}

func TestAMachineThatIsStoppedForItsEventStaysCordoned(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		s.lead()
		e := reboot(time.Now().Add(10 * time.Minute).Truncate(time.Second))
		e.Code = "instance-stop"
		s.schedules(e)
		s.after(10 * time.Minute)
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.after(20 * time.Minute)
		s.wantDrained()
	})
}

// impaired is how often it was told that the status checks of an instance fail.
func (s *sayings) impaired() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, told := range s.told {
		if strings.HasPrefix(told, string(report.Impair)+":") {
			n++
		}
	}
	return n
}

func TestAnImpairedInstanceIsOnlyToldOfByDefault(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		said := s.listen()
		s.lead()
		s.impairs(time.Now())
		s.after(time.Hour)
		s.wantLeft(0)
		if n := said.impaired(); n != 1 {
			t.Errorf("told %d times of it, want once", n)
		}
		s.schedules()
		s.after(time.Hour)
		s.impairs(time.Time{}) // EC2 does not say since when
		s.after(time.Minute)
		if n := said.impaired(); n != 1 {
			t.Error("told of it after less than two minutes")
		}
		s.after(time.Hour)
		if n := said.impaired(); n != 2 {
			t.Errorf("told %d times of two impairments", n)
		}
	})
}

func TestAnImpairedInstanceIsDrainedWithoutAskingBudgets(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drainsImpaired()
		s.drain.take(-1) // until the deadline
		s.lead()
		s.impairs(time.Now())
		s.after(119 * time.Second)
		s.wantLeft(0)
		s.after(2 * time.Minute)
		drains := s.drain.all()
		if len(drains) != 1 || !drains[0].terms.IgnoreBudgets {
			t.Fatalf("drains %+v, want one that asks no budget", drains)
		}
		e := s.intent().Entries[0]
		if left := e.Deadline.Sub(e.Time); left != s.c.NodeGracePeriod || e.Kind != notice.InstanceImpaired {
			t.Errorf("entry %+v with a deadline %s after it", e, left)
		}
		s.after(time.Hour)
		if i := s.intent(); !i.Finished() || i.Outcome != intent.Missed || len(s.drain.all()) != 1 {
			t.Errorf("after %d drains: %+v", len(s.drain.all()), i)
		}
		s.schedules() // all is well again
		s.after(3 * time.Minute)
		s.wantLeft(1)
	})
}

func TestAMachineThatRecoversDuringItsDrainTakesPodsAgain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drainsImpaired()
		s.edit = func(c *Config) { c.NodeGracePeriod = time.Hour }
		s.drain.take(-1)
		s.lead()
		s.impairs(time.Now())
		s.after(10 * time.Minute)
		s.change(theNode, notReady)
		s.schedules()
		s.after(10 * time.Minute)
		if !s.isCordoned(theNode) {
			t.Error("a node that is not ready is uncordoned: its machine may have stopped")
		}
		s.change(theNode, boots(""))
		s.after(3 * time.Minute)
		s.wantLeft(1)
	})
}

// A zone or the network may have failed: pods that run would be deleted for nothing.
func TestNoNodeIsDrainedIfManyAreImpaired(t *testing.T) {
	t.Parallel()
	for impaired, want := range map[int]int{4: 4, 7: 0} { // of eight
		tell(t, func(s *story) {
			s.drainsImpaired()
			for k := range 8 {
				id := "i-0000000000000000" + string(rune('0'+k))
				instance := awssim.Instance{Lifecycle: "spot", ID: id, Tags: map[string]string{"managed": ""}}
				if k < impaired {
					instance.InstanceStatus = awssim.StatusCheck{Status: "impaired", ImpairedSince: s.began}
				}
				s.must(s.aws.PutInstance(instance))
				s.must(s.kube.Tracker().Add(aNode("n"+id, id)))
			}
			s.lead()
			s.after(time.Hour)
			if n := len(s.drain.all()); n != want {
				t.Errorf("%d of 8 are impaired: %d drains, want %d", impaired, n, want)
			}
		})
	}
}

func TestAPollLeavesInstancesWithoutTheTagAlone(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drainsImpaired()
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
		s.lead()
		s.schedules(reboot(time.Now().Add(24 * time.Hour)))
		s.after(30 * time.Minute)
		s.wantLeft(0)
		if n := s.calls("DescribeInstances"); n != 1 {
			t.Errorf("EC2 was asked %d times whose the instance is", n)
		}
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: map[string]string{"managed": ""}}))
		s.schedules(reboot(time.Now().Add(24 * time.Hour)))
		s.after(2 * time.Hour)
		s.wantDrained()
	})
}

func TestADryRunOnlySaysWhatAPollFinds(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drainsImpaired()
		s.edit = func(c *Config) { c.DryRun = true }
		s.lead()
		s.must(s.aws.SetInstanceStatus(theID, []awssim.ScheduledEvent{reboot(time.Now().Add(time.Hour))}, awssim.StatusCheck{Status: "impaired"}, awssim.StatusCheck{}))
		s.after(time.Hour)
		s.wantLeft(0)
	})
}

// What the sweep and the poll ask for is little, however many nodes there are.
func TestAtRestAWSIsAskedRarely(t *testing.T) {
	t.Parallel()
	const (
		nodes = 1000
		mins  = 10
		most  = 6 // calls a minute, beside the receives
	)
	tell(t, func(s *story) {
		for k := range nodes {
			id := fmt.Sprintf("i-%017x", k)
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-"+id, id), metav1.CreateOptions{})
			s.must(err)
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: id, Tags: map[string]string{"managed": ""}}))
			if k%50 == 49 { // groups of fifty
				s.must(s.aws.PutGroup(awssim.Group{Name: "workers-" + id, Instances: []string{id}}))
			}
		}
		s.sweeps = true
		s.polls()
		s.lead()
		s.after(time.Minute)
		before := s.aws.Counts()
		s.after(mins * time.Minute)
		calls := 0
		for key, n := range s.aws.Counts() {
			if n -= before[key]; n > 0 {
				t.Logf("%s %s: %.1f a minute", key.Service, key.Action, float64(n)/mins)
			}
			if key.Action != "ReceiveMessage" {
				calls += n
			}
		}
		if calls > most*mins || calls == 0 {
			t.Errorf("%d calls in %d minutes, want at most %d a minute", calls, mins, most)
		}
	})
}

// A change that a poll finds moved, and moved back.
func TestAPolledChangeThatIsMovedBackIsDrainedForInTime(t *testing.T) {
	t.Parallel()
	rule := decision.NodeRule{Name: "late", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Draining, Before: 30 * time.Minute}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.polls()
		s.lead()
		at := time.Now().Add(10 * time.Hour).Truncate(time.Second)
		for _, later := range []time.Duration{0, 48 * time.Hour, 0} {
			s.schedules(reboot(at.Add(later)))
			s.after(5 * time.Minute)
		}
		if d := s.intent().Deadline(); !d.Equal(at) {
			t.Errorf("the machine reboots at %s, and the node carries %s", at, d)
		}
		s.after(time.Until(at))
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("the machine reboots, and its node was drained %d times", n)
		}
	}, rule)
}

// A cluster gets a queue, and the pods of IMDS mode go: what they have left is the leader's.
func TestTheLeaderWithAQueueTakesOverWhatThePodsHaveLeft(t *testing.T) {
	t.Parallel()
	left := func(s *story, at time.Time, edit func(*intent.Intent)) {
		i := intent.Intent{
			Version: intent.Version, Queue: intent.OfMetadata, CordonedAt: time.Now(),
			Entries: []intent.Entry{{
				Kind: notice.ScheduledChange, Change: theEvent, Code: "system-reboot", Time: time.Now(), Deadline: at,
				IDs: []string{"imds-" + theEvent + at.UTC().Format("-20060102T150405Z")},
			}},
		}
		edit(&i)
		s.forge(i)
	}
	t.Run("a change for which they waited", func(t *testing.T) {
		tell(t, func(s *story) {
			s.polls()
			at := time.Now().Add(48 * time.Hour).Truncate(time.Second)
			left(s, at, func(i *intent.Intent) { i.HeldBack = true })
			s.schedules(reboot(at))
			s.lead()
			s.after(5 * time.Minute)
			s.wantDrained()
		})
	})
	t.Run("a change that is cancelled after their drain", func(t *testing.T) {
		tell(t, func(s *story) {
			s.polls()
			at := time.Now().Add(48 * time.Hour).Truncate(time.Second)
			left(s, at, func(i *intent.Intent) {
				i.Cordoned, i.FinishedAt, i.Outcome = true, time.Now(), intent.Drained
			})
			s.change(theNode, func(n *corev1.Node) { n.Spec.Unschedulable = true })
			s.schedules(reboot(at))
			s.lead()
			s.after(5 * time.Minute)
			if !s.isCordoned(theNode) {
				t.Fatal("it is uncordoned before the change is over")
			}
			s.schedules(isOver(reboot(at), "Canceled"))
			s.after(5 * time.Minute)
			if s.isCordoned(theNode) {
				t.Error("it stays cordoned")
			}
		})
	})
}
