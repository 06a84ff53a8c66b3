package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// What follows are stories of two features that meet: windows and limits, limits of both sorts, replacements and
// limits, hooks and rules, load balancers and earlier drains, both modes.

// atNight is a rule for recommendations that lets drains begin from 22:00 to 05:00 UTC.
func atNight(limit string) decision.NodeRule {
	night := &decision.Window{Name: "nights", From: 22 * 60, To: 5 * 60, Zone: time.UTC}
	for day := range night.Days {
		night.Days[day] = true
	}
	return decision.NodeRule{
		Name: "nightly", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Within: night, Limit: decision.Limit{Nodes: limit},
	}
}

// nextNight is when its window opens next.
func nextNight() time.Time {
	now := time.Now().UTC()
	opens := time.Date(now.Year(), now.Month(), now.Day(), 22, 0, 0, 0, time.UTC)
	if !opens.After(now) {
		opens = opens.Add(24 * time.Hour)
	}
	return opens
}

// edits adds to what each leader is configured with.
func (s *story) edits(more func(*Config)) {
	before := s.edit
	s.edit = func(c *Config) {
		before(c)
		more(c)
	}
}

func TestWhatALimitHeldBackBeyondItsWindowWaitsForTheNext(t *testing.T) {
	race.Long(t)
	t.Parallel()
	for _, failover := range []bool{false, true} {
		t.Run(fmt.Sprintf("of a rule, failover %t", failover), func(t *testing.T) {
			t.Parallel()
			zoned(t, func(f *fleet, _ *policyOf) {
				stop := f.lead()
				f.drain.takes = time.Minute
				f.send(f.body("rebalance-recommendation", f.ids[0]))
				f.send(f.body("rebalance-recommendation", f.ids[1]))
				night := nextNight()
				f.after(time.Until(night) + 10*time.Minute)
				first := f.nodes(cordoned)
				if len(first) != 1 || len(f.nodes(waits)) != 1 {
					t.Fatalf("in the night %v are cordoned, and %v wait", first, f.nodes(waits))
				}
				f.after(time.Until(night.Add(8*time.Hour + 30*time.Minute)))
				if failover {
					stop()
					f.lead()
					f.after(5 * time.Second)
				}
				f.replace(first[0]) // its place is free
				f.after(time.Minute)
				if out := f.nodes(cordoned); len(out) != 0 {
					t.Errorf("%v are cordoned at 06:30", out)
				}
				f.after(time.Until(night.Add(24*time.Hour + time.Minute)))
				if out := f.nodes(cordoned); len(out) != 1 {
					t.Errorf("%v are cordoned in the next night, want the other one", out)
				}
			}, atNight("1"))
		})
	}
	t.Run("of the option", func(t *testing.T) {
		t.Parallel()
		tellOfFleet(t, "1", func(f *fleet) {
			p := &policyOf{}
			p.set(atNight(""))
			f.edits(func(c *Config) { c.PolicyFile = p })
			f.setReady(9, corev1.ConditionUnknown)
			f.lead()
			f.send(f.body("rebalance-recommendation", f.ids[0]))
			f.after(time.Until(nextNight().Add(14 * time.Hour)))
			f.setReady(9, corev1.ConditionTrue)
			f.after(time.Minute)
			if out := f.nodes(cordoned); len(out) != 0 {
				t.Errorf("%v are cordoned at noon", out)
			}
		})
	})
}

func TestWhatItsRuleRefusesKeepsNoPlaceOfTheOption(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "one-a-zone", Kinds: []notice.Kind{notice.ScheduledChange, notice.RebalanceRecommendation}, Do: decision.Draining,
		Before: -1, Limit: decision.Limit{Nodes: "1", Per: corev1.LabelTopologyZone},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.edits(func(c *Config) { c.MaxUnready = intstr.Parse("2") })
		f.setReady(7, corev1.ConditionUnknown) // zone-1
		f.setReady(9, corev1.ConditionUnknown) // zone-1
		f.lead()
		f.send(f.rebootOf(f.ids[0], 40*time.Hour)) // zone-0
		f.after(10 * time.Second)
		if w := f.nodes(waits); !slices.Equal(w, []int{0}) {
			t.Fatalf("waiting %v", w)
		}
		f.setReady(8, corev1.ConditionUnknown) // zone-0: now its rule refuses n0, too
		f.after(10 * time.Second)
		f.setReady(7, corev1.ConditionTrue)
		f.setReady(9, corev1.ConditionTrue)
		f.after(10 * time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[1])) // zone-1 is well, and the option has room for one more
		f.after(time.Minute)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{1}) {
			t.Errorf("cordoned %v, waiting %v; want n1 to begin", out, f.nodes(waits))
		}
	}, limited)
}

func TestWhatIsPutOffWhileItWaitsForItsReplacementGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, withoutCapacity, func(s *story, p *policyOf, _ *steps) {
		rule := replacementFirst
		rule.Kinds, rule.Before = []notice.Kind{notice.ScheduledChange}, 4*time.Hour
		p.set(rule)
		s.edits(func(c *Config) { c.MaxUnready = intstr.Parse("1") })
		const otherID = "i-00000000000000001"
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("other", otherID), metav1.CreateOptions{})
		s.must(err)
		s.lead()
		s.send(s.rebootOf(theID, 3*time.Hour))
		s.after(time.Minute)
		if i := s.intent(); !i.HeldBack || i.Replacement.Step != intent.Marked {
			t.Fatalf("the node does not wait for its replacement: %+v", i)
		}
		s.send(s.rebootOf(theID, 300*time.Hour)) // AWS moves it
		s.after(time.Minute)
		s.send(s.body("rebalance-recommendation", otherID))
		s.after(time.Minute)
		other, err := s.kube.CoreV1().Nodes().Get(s.Context(), "other", metav1.GetOptions{})
		s.must(err)
		if _, why := s.c.Registry.HeldBack(); !other.Spec.Unschedulable {
			t.Errorf("the other node waits although all are in use: %s", why)
		}
	})
}

func TestTheWaitOfALimitBeginsWithItsNoticeOnANodeThatIsCordoned(t *testing.T) {
	t.Parallel()
	cordon := decision.NodeRule{Name: "cordon", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Cordoning, Before: -1}
	limited := decision.NodeRule{
		Name: "one-at-a-time", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1", Wait: 2 * time.Hour},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.drain.takes = 10 * time.Hour
		f.lead()
		for k := range 4 {
			f.send(f.body("rebalance-recommendation", f.ids[k]))
		}
		f.after(24 * time.Hour)
		if out := f.nodes(cordoned); len(out) != 4 || len(f.drain.all()) != 0 {
			t.Fatalf("cordoned %v, %d drains", out, len(f.drain.all()))
		}
		for k := range 4 {
			f.send(f.rebootOf(f.ids[k], 200*time.Hour))
		}
		f.after(time.Minute)
		if n := len(f.drain.all()); n > 1 {
			t.Errorf("%d nodes are drained at once, want 1", n)
		}
		f.after(2 * time.Hour)
		if n := len(f.drain.all()); n != 4 {
			t.Errorf("%d nodes are drained after the wait, want 4", n)
		}
	}, cordon, limited)
}

func TestARuleThatIgnoresATerminationEndsNoMachineInItsDrain(t *testing.T) {
	t.Parallel()
	ignore := decision.NodeRule{Name: "no-scale-in", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Ignoring, Before: -1}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.drain.takes = time.Minute
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		s.wantHook(awssim.Active)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	}, ignore)
}

// EC2 is slow to say since when the machine runs, so the Node has not got its notices when the pods of the other have left.
func TestAHookWaitsForANodeThatHasJustCome(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		s.terminate(time.Hour)
		s.after(58 * time.Second)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Latency: 5 * time.Second}))
		s.must(s.kube.Tracker().Add(aNode("made-anew", theID)))
		s.after(30 * time.Second)
		s.wantHook(awssim.Active)
		if all := s.drain.all(); all[len(all)-1].node != "made-anew" {
			t.Fatalf("the drains are %+v, want that of the Node that has come", all)
		}
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// EC2 does not answer, so the Node that has come gets no notice.
func TestAHookIsCompletedBeforeItTimesOutThoughANodeGetsNoNotice(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"EC2 answers again": true, "never": false} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = time.Minute
				s.lead()
				s.terminate(time.Hour)
				s.after(58 * time.Second)
				s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
				s.must(s.kube.Tracker().Add(aNode("made-anew", theID)))
				s.after(10 * time.Minute)
				s.wantHook(awssim.Active)
				if answers {
					s.aws.RemoveFault("ec2")
					s.after(3 * time.Minute)
					if all := s.drain.all(); all[len(all)-1].node != "made-anew" {
						t.Errorf("the drains are %+v, want that of the Node that has come", all)
					}
				} else {
					s.after(48*time.Minute + 30*time.Second)
				}
				s.wantHook(awssim.Completed)
			})
		})
	}
}

// Its message is kept, also where a rule has a limit.
func TestAHookIsNotForgottenThoughItsNodeGoesAndTheLeaderChanges(t *testing.T) {
	t.Parallel()
	later := decision.NodeRule{
		Name: "later", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "5"},
	}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.drain.takes = 20 * time.Minute
		stop := s.lead()
		s.terminate(time.Hour)
		s.after(10 * time.Minute)
		s.remove(theNode)
		s.after(time.Second)
		stop()
		s.lead()
		s.after(45 * time.Minute)
		s.wantHook(awssim.Completed)
	}, later)
}

func TestAnIgnoredTerminationWaitsForTheNextNodeOfItsMachineToo(t *testing.T) {
	t.Parallel()
	ignore := decision.NodeRule{Name: "no-scale-in", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Ignoring, Before: -1}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.drain.takes = time.Minute
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		s.terminate(time.Hour)
		s.after(5 * time.Second)
		s.remove(theNode)
		s.must(s.kube.Tracker().Add(aNode("made-anew", theID)))
		s.after(30 * time.Second)
		if all := s.drain.all(); all[len(all)-1].node != "made-anew" {
			t.Fatalf("the drains are %+v, want that of the next Node too", all)
		}
		s.wantHook(awssim.Active)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	}, ignore)
}

func TestAnIgnoredTerminationWaitsForTheLoadBalancersOfANodeThatIsOnlyCordoned(t *testing.T) {
	t.Parallel()
	rules := []decision.NodeRule{
		{Name: "no-scale-in", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Ignoring, Before: -1},
		{Name: "cordon", Kinds: []notice.Kind{notice.SpotInterruption}, Do: decision.Cordoning, Before: -1},
	}
	balanced(t, 90*time.Second, func(s *story, _ *targets) {
		p := &policyOf{}
		p.set(rules...)
		s.edits(func(c *Config) { c.PolicyFile = p })
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		s.terminate(time.Hour)
		s.after(30 * time.Second)
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

func TestAHookOfANodeThatIsDrainedAlreadyWaitsForLoadBalancers(t *testing.T) {
	t.Parallel()
	balanced(t, 90*time.Second, func(s *story, _ *targets) {
		s.lead()
		s.send(s.rebootOf(theID, 200*time.Hour))
		s.after(5 * time.Minute)
		if i := s.intent(); !i.Finished() || cluster.Excluded(s.node()) {
			t.Fatalf("the node is not drained for its reboot: %+v", i)
		}
		s.terminate(10 * time.Minute)
		s.after(10 * time.Second)
		s.wantHook(awssim.Active)
		if !cluster.Excluded(s.node()) {
			t.Error("the machine goes away, and the node is not excluded from load balancers")
		}
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

func TestThePatienceForLoadBalancersBeginsWithTheirEpisode(t *testing.T) {
	t.Parallel()
	balanced(t, time.Minute, func(s *story, _ *targets) {
		s.drain.takes = time.Second
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(24 * time.Hour)
		first := s.intent().CordonedAt
		s.terminate(10 * time.Minute)
		s.after(time.Second)
		if i := s.intent(); i.CordonedAt.Equal(first) || time.Since(i.CordonedAt) > time.Minute {
			t.Errorf("the episode is a second old, and counts from %s ago", time.Since(i.CordonedAt))
		}
	})
}

func TestADeadlineThatIsAGuessLiftsNoLimitAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		unknown time.Duration // for how long the limits of the hook cannot be read
		most    int
	}{
		"known soon": {15 * time.Second, 1}, "not known in time": {5 * time.Minute, 5},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfFleet(t, "1", func(f *fleet) {
				f.must(f.aws.PutGroup(awssim.Group{Name: "workers", Instances: f.ids[:]}))
				f.must(f.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
				f.must(f.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
				f.must(f.aws.SetFault(awssim.Fault{ID: "throttled", Action: "DescribeLifecycleHooks", Code: "Throttling"}))
				f.drain.takes = 10 * time.Minute
				f.lead()
				for k := range 5 {
					_, err := f.aws.StartTransition(f.ids[k], awssim.Terminating)
					f.must(err)
				}
				f.after(tt.unknown)
				f.aws.RemoveFault("throttled")
				f.after(time.Minute)
				if out := f.nodes(cordoned); len(out) != tt.most {
					t.Errorf("%v are cordoned, want %d of 5", out, tt.most)
				}
			})
		})
	}
}

func TestADeadlineThatIsAGuessLiftsNoWindowAtOnce(t *testing.T) {
	t.Parallel()
	atNoon := atNight("")
	atNoon.Kinds, atNoon.Within.From, atNoon.Within.To = []notice.Kind{notice.ASGTerminate}, 12*60, 13*60
	for name, tt := range map[string]struct {
		unknown time.Duration // for how long the limits of the hook cannot be read
		waits   bool
	}{
		"known soon": {15 * time.Second, true}, "not known in time": {5 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
				s.must(s.aws.SetFault(awssim.Fault{ID: "throttled", Action: "DescribeLifecycleHooks", Code: "Throttling"}))
				s.lead()
				s.terminate(time.Hour)
				s.after(10 * time.Second)
				if !s.intent().HeldBack {
					t.Error("a guess lifted the window at once")
				}
				s.after(tt.unknown - 10*time.Second)
				s.aws.RemoveFault("throttled")
				s.after(2 * time.Minute)
				if i := s.intent(); i.HeldBack != tt.waits {
					t.Errorf("held back: %t, want %t; %+v", i.HeldBack, tt.waits, i)
				}
				s.after(time.Hour)
				s.wantHook(awssim.Completed)
			}, atNoon)
		})
	}
}

func TestATerminationThatOnlyHooksOfOthersHoldDoesNotWait(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.edits(func(c *Config) { c.HookNames = []string{"ours"} })
		f.must(f.aws.PutGroup(awssim.Group{Name: "workers", Instances: f.ids[:]}))
		f.must(f.aws.PutHook(awssim.Hook{Group: "workers", Name: "theirs", Transition: awssim.Terminating, HeartbeatTimeout: 5 * time.Minute}))
		f.must(f.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		_, err := f.aws.StartTransition(f.ids[0], awssim.Terminating)
		f.must(err)
		f.after(10 * time.Second)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0}) {
			t.Errorf("cordoned %v; want n0, whose machine goes in minutes", out)
		}
	})
}

// Nobody led when the time of the hook ran out, and the machine is still there. The hook stands on one of its two Nodes:
// both are drained now, so that the one that is empty does not wait until noon for the other one.
func TestATerminationWhoseTimeHasRunOutDoesNotWait(t *testing.T) {
	t.Parallel()
	atNoon := atNight("")
	atNoon.Kinds, atNoon.Within.From, atNoon.Within.To = []notice.Kind{notice.ASGTerminate}, 12*60, 13*60
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		stop := s.lead()
		s.replaceRootVolume()
		s.after(time.Minute)
		s.register("node-b", "another")
		s.after(time.Minute)
		if a, b := s.intentOf(theNode), s.intentOf("node-b"); !a.HeldBack || !b.HeldBack || len(a.Hooks)+len(b.Hooks) != 1 {
			t.Fatalf("intents %+v and %+v; want both Nodes to wait for noon, and one to carry the hook", a, b)
		}
		stop()
		s.after(2 * time.Hour)
		s.wantHook(awssim.TimedOut)
		s.lead()
		s.after(5 * time.Minute)
		for _, node := range []string{theNode, "node-b"} {
			if i := s.intentOf(node); i.Outcome != intent.Drained {
				t.Errorf("%s carries %+v; want it to be drained, and nothing to be left", node, i)
			}
		}
	}, atNoon)
}

func TestTheSweepFindsTheHookOfATerminationThatTheMetadataHasTold(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.lead()
		s.onNode(10 * time.Second).metadata.SetLifecycleState("Terminated")
		s.after(time.Second)
		s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
		_, err := s.aws.StartTransition(theID, awssim.Terminating) // and its event is lost
		s.must(err)
		s.after(5 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

func TestNoneIsDrainedIfMostNodesAreImpaired(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drainsImpaired()
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		for k := range 5 {
			id := fmt.Sprintf("i-%017x", k+1)
			s.must(s.aws.PutInstance(awssim.Instance{
				ID: id, Tags: map[string]string{"managed": ""}, InstanceStatus: awssim.StatusCheck{Status: "impaired", ImpairedSince: s.began},
			}))
			s.must(s.kube.Tracker().Add(aNode(fmt.Sprintf("n%d", k), id)))
		}
		s.lead()
		s.after(time.Hour)
		if n := len(s.drain.all()); n != 0 {
			t.Errorf("%d of 5 nodes, all ready, are drained without asking budgets", n)
		}
	})
}

func TestWhatIsLeftOfTwoChangesWaitsForItsTimeInUse(t *testing.T) {
	race.Long(t)
	t.Parallel()
	for name, c := range map[string]struct{ drained, reboots bool }{
		"called off after the drain": {drained: true}, "called off during the drain": {}, "made": {drained: true, reboots: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
				if !c.drained {
					s.drain.takes = time.Hour
				}
				s.change(theNode, reboots("first"))
				s.lead()
				later := time.Now().Add(300 * time.Hour)
				s.send(s.reboot(time.Hour))
				s.send(s.body("health-reboot-scheduled", theID, "Fri, 27 Nov 2026 06:00:00 GMT", gmt(later), "90353408594353980", "90353408594353981"))
				s.after(45 * time.Minute)
				if i := s.intent(); i.Finished() != c.drained || len(i.Entries) != 2 || !s.node().Spec.Unschedulable {
					t.Fatalf("intent %+v", i)
				}
				if c.reboots {
					s.after(20 * time.Minute)
					s.change(theNode, reboots("second"))
				} else {
					s.send(s.body("health-maintenance-completed", theID))
				}
				s.after(time.Minute)
				if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable || len(i.Entries) != 1 {
					t.Errorf("the other change is 299 h ahead, its rule says 30 minutes before: cordoned %t, %+v", s.node().Spec.Unschedulable, i)
				}
				s.after(time.Until(later.Add(-29 * time.Minute)))
				if !s.node().Spec.Unschedulable {
					t.Error("29 minutes before the other change the node is not cordoned")
				}
			}, aReboot)
		})
	}
}

func TestADrainThatHasBegunInItsTimeIsNotPutOffWhenAnotherReasonEnds(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(300 * time.Hour))
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Until(nextNight().Add(12 * time.Hour)))
		if i := s.intent(); !i.Finished() || len(i.Entries) != 2 {
			t.Fatalf("the night is over, and the node is not drained: %+v", i)
		}
		s.send(s.body("health-maintenance-completed", theID))
		s.after(30 * time.Hour)
		if n := len(s.drain.all()); n != 1 || !s.node().Spec.Unschedulable {
			t.Errorf("%d drains for one recommendation; cordoned: %t", n, s.node().Spec.Unschedulable)
		}
	}, aReboot, atNight(""))
}

func TestADrainThatWaitsForItsTimeEndsWithItsNode(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(5 * time.Minute)
		if n := s.c.Load().HeldBack; n != 1 {
			t.Fatalf("%d drains are held back, want 1", n)
		}
		s.remove(theNode)
		s.after(20 * time.Minute) // in which its instance may get another Node
		if n := s.c.Load().HeldBack; n != 0 {
			t.Errorf("%d drains are held back for a Node that is gone", n)
		}
	}, aReboot)
}

func TestANodeWhoseLabelsSomebodyTakesOffIsNotForgotten(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		stop := s.lead()
		s.send(s.reboot(10 * time.Hour))
		s.after(5 * time.Minute)
		s.change(theNode, func(n *corev1.Node) { n.Labels = nil })
		stop()
		s.lead()
		s.after(9*time.Hour + 40*time.Minute)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains, want 1", n)
		}
	}, aReboot)
}
