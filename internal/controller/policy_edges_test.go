package controller

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// rebootOf is a message about a reboot of an instance.
func (s *story) rebootOf(id string, in time.Duration) string {
	s.Helper()
	at := time.Now().Add(in).UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT")
	return s.body("health-reboot-scheduled", id, "Fri, 27 Nov 2026 06:00:00 GMT", at)
}

func TestANoticeWithoutADeadlineForcesNothingByThatOfAPatientOne(t *testing.T) {
	t.Parallel()
	patient := aReboot
	patient.Before, patient.Patient = -1, true
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.drain.takes = -1
		s.lead()
		s.send(s.reboot(time.Hour))
		s.after(10 * time.Second)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		if drains := s.drain.all(); len(drains) != 1 || !drains[0].terms.Patient || drains[0].terms.Deadline.IsZero() {
			t.Fatalf("drains %+v; want the rule about the reboot to hold: nothing is forced by its deadline", drains)
		}
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		if drains := s.drain.all(); drains[0].terms.Patient {
			t.Errorf("drains %+v; want the spot warning to force", drains)
		}
	}, patient)
}

func TestWhatWaitsForATimeHoldsNoPlaceInLine(t *testing.T) {
	t.Parallel()
	// n0 waits for a place, then its reboot is moved by days. n1 has all the time of the world, and is next.
	hold := func(t *testing.T, most string, rules ...decision.NodeRule) {
		tellOfFleet(t, most, func(f *fleet) {
			p := &policyOf{}
			p.set(rules...)
			edit := f.edit
			f.edit = func(c *Config) {
				edit(c)
				c.PolicyFile = p
			}
			f.setReady(9, corev1.ConditionUnknown)
			f.lead()
			f.send(f.rebootOf(f.ids[0], 3*time.Hour))
			f.after(5 * time.Second)
			if w := f.nodes(waits); !slices.Equal(w, []int{0}) {
				t.Fatalf("waiting %v", w)
			}
			f.send(f.rebootOf(f.ids[0], 100*time.Hour)) // moved
			f.send(f.body("rebalance-recommendation", f.ids[1]))
			f.after(5 * time.Second)
			f.setReady(9, corev1.ConditionTrue)
			f.after(5 * time.Second)
			if out := f.nodes(cordoned); !slices.Equal(out, []int{1}) {
				t.Errorf("cordoned %v, waiting %v; want n1 to begin, because n0 waits for its time", out, f.nodes(waits))
			}
		})
	}
	late := decision.NodeRule{
		Name: "late", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Draining, Before: 4 * time.Hour,
	}
	t.Run("of the option", func(t *testing.T) { hold(t, "1", late) })
	limited := late
	limited.Kinds, limited.Limit = []notice.Kind{notice.ScheduledChange, notice.RebalanceRecommendation}, decision.Limit{Nodes: "1"}
	t.Run("of a rule", func(t *testing.T) { hold(t, "100%", limited) })
}

func TestWhatBeginsWithoutItsLimitLeavesTheLine(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.ScheduledChange, notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "2"},
	}
	tellOfFleet(t, "100%", func(f *fleet) {
		p := &policyOf{}
		p.set(limited)
		edit := f.edit
		f.edit = func(c *Config) {
			edit(c)
			c.PolicyFile = p
		}
		f.drain.byNode = map[string]time.Duration{"n0": -1}
		f.setReady(8, corev1.ConditionUnknown)
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		f.send(f.rebootOf(f.ids[0], 3*time.Hour))
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(5 * time.Second)
		f.want(0, 2)
		f.send(f.body("spot-interruption", f.ids[0]))
		f.after(5 * time.Second)
		f.setReady(8, corev1.ConditionTrue)
		f.setReady(9, corev1.ConditionTrue)
		f.after(5 * time.Second)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0, 1}) {
			t.Errorf("cordoned %v; want n1 to begin: one of two places is free", out)
		}
	})
}

func TestRulesThatChangeWhileTheNodeIsWrittenCountToo(t *testing.T) {
	t.Parallel()
	rename := func(name string, before time.Duration) decision.NodeRule {
		r := aReboot
		r.Name, r.Before = name, before
		return r
	}
	t.Run("for what waits", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Hour)
			once := false
			change := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
				if !once {
					once = true
					p.set(rename("third", time.Hour))
				}
				return false, nil, nil
			})
			s.beforePatch.Store(&change)
			p.set(rename("second", 2*time.Hour))
			s.after(time.Minute)
			if i := s.intent(); i.Entries[0].Rule != "third" {
				t.Errorf("intent %+v; want the rule of the file of now", i)
			}
		}, aReboot)
	})
	t.Run("for what begins to wait", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			once := false
			change := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
				if !once {
					once = true
					p.set(rename("second", time.Hour))
				}
				return false, nil, nil
			})
			s.beforePatch.Store(&change)
			s.send(s.reboot(10 * time.Hour))
			s.after(time.Minute)
			if i := s.intent(); i.Entries[0].Rule != "second" {
				t.Errorf("intent %+v; want the rule of the file of now", i)
			}
		}, aReboot)
	})
}

func TestALimitFollowsTheSelectorOfItsRule(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1"},
	}
	zoned(t, func(f *fleet, p *policyOf) {
		f.setReady(1, corev1.ConditionUnknown) // of zone-1
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(5 * time.Second)
		if out := f.nodes(cordoned); len(out) != 0 {
			t.Fatalf("cordoned %v", out)
		}
		narrow := limited
		narrow.Nodes = []decision.Selector{{{Key: corev1.LabelTopologyZone, Operator: decision.In, Values: []string{"zone-0"}}}}
		p.set(narrow)
		f.after(5 * time.Second)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0}) {
			t.Errorf("cordoned %v; want n0: all nodes that the rule selects by now are in use", out)
		}
	}, limited)
}

func TestANodeWhoseLabelsChangeLeavesNothingBehindInItsGroups(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.ScheduledChange, notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1", Per: "group"},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		label := func(k int, group string) {
			node, err := f.kube.CoreV1().Nodes().Get(f.Context(), fmt.Sprintf("n%d", k), metav1.GetOptions{})
			f.must(err)
			node.Labels["group"] = group
			_, err = f.kube.CoreV1().Nodes().Update(f.Context(), node, metav1.UpdateOptions{})
			f.must(err)
		}
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		f.send(f.rebootOf(f.ids[0], 30*time.Hour))
		for k := range 50 {
			label(0, fmt.Sprint("g", k))
			label(9, fmt.Sprint("g", k))
			f.after(3 * time.Second)
		}
		if w := f.nodes(waits); !slices.Equal(w, []int{0}) {
			t.Fatalf("waiting %v", w)
		}
		label(1, "g0")
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(5 * time.Second)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{1}) {
			t.Errorf("cordoned %v; want n1, which is alone in its group", out)
		}
	}, limited)
}

func TestTheWaitOfALaterEpisodeBeginsWithIt(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1", Wait: 2 * time.Hour},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(5 * time.Minute)
		node, err := f.kube.CoreV1().Nodes().Get(f.Context(), "n0", metav1.GetOptions{})
		f.must(err)
		node.Spec.Unschedulable = false // somebody wants to keep it
		_, err = f.kube.CoreV1().Nodes().Update(f.Context(), node, metav1.UpdateOptions{})
		f.must(err)
		f.after(5 * time.Hour)
		f.setReady(9, corev1.ConditionUnknown)
		f.after(5 * time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Hour)
		if w := f.nodes(waits); !slices.Equal(w, []int{0}) {
			t.Errorf("waiting %v, cordoned %v; want n0 to wait for two hours", w, f.nodes(cordoned))
		}
		f.after(time.Hour + time.Minute)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0}) {
			t.Errorf("cordoned %v after the wait", out)
		}
	}, limited)
}

// A node that waits for something else has not waited for the limit of a notice that comes later.
func TestTheWaitOfALimitBeginsWithItsNoticeOnANodeThatWaits(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1", Wait: 2 * time.Hour},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.lead()
		f.send(f.rebootOf(f.ids[0], 200*time.Hour))
		f.after(24 * time.Hour)
		f.setReady(9, corev1.ConditionUnknown)
		f.after(5 * time.Second)
		for range 2 { // told again, it does not begin anew
			f.send(f.body("rebalance-recommendation", f.ids[0]))
			f.after(time.Hour - time.Minute)
			if w := f.nodes(waits); !slices.Equal(w, []int{0}) {
				t.Fatalf("waiting %v, cordoned %v; want n0 to wait for two hours", w, f.nodes(cordoned))
			}
		}
		f.after(3 * time.Minute)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0}) {
			t.Errorf("cordoned %v after the wait", out)
		}
	}, limited, aReboot)
}

func TestTheNextNodeOfAMachineWaitsToo(t *testing.T) {
	t.Parallel()
	for _, failover := range []bool{false, true} {
		t.Run(fmt.Sprintf("failover %t", failover), func(t *testing.T) {
			tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
				stop := s.lead()
				s.send(s.reboot(10 * time.Hour))
				s.after(time.Hour)
				s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
				s.after(10 * time.Second)
				again := aNode(theNode, theID)
				again.UID = types.UID("second uid")
				_, err := s.kube.CoreV1().Nodes().Create(s.Context(), again, metav1.CreateOptions{})
				s.must(err)
				s.after(10 * time.Second)
				if failover {
					stop()
					s.lead()
					s.after(10 * time.Second)
				}
				if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable || i.Entries[0].Rule != "reboot-late" {
					t.Fatalf("intent %+v", i)
				}
				s.after(8*time.Hour + 45*time.Minute)
				if !s.node().Spec.Unschedulable {
					t.Errorf("intent %+v: the reboot is near", s.intent())
				}
			}, aReboot)
		})
	}
}

func TestAHookThatTheNodeHasNoPlaceForIsKeptByItsMessage(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.drain.takes = 10 * time.Minute
		s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
		for k := range intent.MaxHooks {
			s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: fmt.Sprintf("other-%d", k), Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
		}
		s.lead()
		s.terminate(time.Hour)
		s.after(5 * time.Minute)
		if s.left() != intent.MaxHooks+1 {
			t.Errorf("%d messages left, want those of all hooks", s.left())
		}
		s.kill()
		s.lead()
		s.after(20 * time.Minute)
		for _, action := range s.aws.LifecycleActions() {
			if action.Outcome != awssim.Completed {
				t.Errorf("hook %s is %q", action.Hook, action.Outcome)
			}
		}
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	}, decision.NodeRule{Name: "limited", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Draining, Before: -1, Limit: decision.Limit{Nodes: "2"}})
}

// Its message is gone, and the Node of its machine was deleted: the drain of that completes it, after that of the next.
func TestAHookThatTheNextNodeHasNoPlaceForIsCompletedAfterItsDrain(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes, s.interval = time.Minute, 30*time.Second
		s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
		actions, err := s.aws.StartTransition(theID, awssim.Terminating)
		s.must(err)
		now := time.Now().UTC()
		hooks := map[string][]intent.Hook{
			theNode: {{Group: "workers", Name: "drain", Token: actions[0].Token, Instance: theID, Started: now, Deadline: now.Add(time.Hour)}},
		}
		for k := range intent.MaxHooks {
			h := intent.Hook{Group: "workers", Name: fmt.Sprint("other-", k), Token: fmt.Sprint(k), Instance: theID, Started: now, Deadline: now.Add(time.Hour)}
			hooks["next"] = append(hooks["next"], h)
		}
		s.register("next", "uid of next")
		for name, carried := range hooks {
			text, err := intent.Intent{
				Version: intent.Version, Queue: s.aws.QueueURL(queueName), Cordoned: true, CordonedAt: now, Hooks: carried,
				Entries: []intent.Entry{{Kind: notice.ASGTerminate, IDs: []string{"x"}, Time: now, Deadline: now.Add(time.Hour)}},
			}.Encode()
			s.must(err)
			s.change(name, func(n *corev1.Node) {
				n.Annotations, n.Spec.Unschedulable = map[string]string{cluster.IntentAnnotation: text}, true
				n.Labels = map[string]string{cluster.StateLabel: cluster.StateDraining}
			})
		}
		s.lead()
		s.after(10 * time.Second)
		s.remove(theNode)
		s.after(40 * time.Second)
		if a := s.wantHook(awssim.Active); a.Heartbeats == 0 {
			t.Error("it is not held open")
		}
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	})
}

func TestAHookIsHeldWhileItsNodeWaits(t *testing.T) {
	race.Long(t)
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Draining, Before: -1, Limit: decision.Limit{Nodes: "1"},
	}
	// With heartbeats a hook is open for 100 times its timeout.
	for interval, timeout := range map[time.Duration]time.Duration{0: time.Hour, 5 * time.Minute: 10 * time.Minute} {
		t.Run(interval.String(), func(t *testing.T) {
			tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
				other := aNode("other", "i-0fedcba9876543210")
				other.Status.Conditions[0].Status = corev1.ConditionUnknown
				_, err := s.kube.CoreV1().Nodes().Create(s.Context(), other, metav1.CreateOptions{})
				s.must(err)
				s.interval = interval
				stop := s.lead()
				s.terminate(timeout)
				s.after(30 * time.Minute)
				if i := s.intent(); !i.HeldBack || len(i.Hooks) != 1 {
					t.Fatalf("intent %+v", i)
				}
				stop()
				p.set(func() decision.NodeRule { r := limited; r.Name = "renamed"; return r }())
				s.lead()
				s.after(20 * time.Minute)
				if i := s.intent(); !i.HeldBack || i.Entries[0].Rule != "renamed" {
					t.Fatalf("intent %+v", i)
				}
				if interval == 0 {
					s.after(10 * time.Minute)
				} else {
					s.after(100 * timeout)
				}
				s.wantHook(awssim.Completed)
				if len(s.drain.all()) != 1 {
					t.Errorf("drains %+v", s.drain.all())
				}
			}, limited)
		})
	}
}

// A drain that is held back begins in time for a hook that no heartbeat holds.
func TestADrainDoesNotWaitForAHookThatNothingHolds(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Draining, Before: -1, Limit: decision.Limit{Nodes: "1"},
	}
	later := limited
	later.Name = "later"
	later.Limit, later.Within = decision.Limit{}, &decision.Window{
		Name: "evenings", From: 20 * 60, To: 22 * 60, Zone: time.UTC, Days: [7]bool{true, true, true, true, true, true, true},
	}
	deny := func(s *story) {
		s.must(s.aws.SetFault(awssim.Fault{ID: "hb", Service: "autoscaling", Action: "RecordLifecycleActionHeartbeat", Status: 403, Code: "AccessDenied"}))
	}
	for name, tt := range map[string]struct {
		before, after5m func(*story)
		waits, begins   time.Duration // since the hook began; 0: it is held open
	}{
		"heartbeats are refused":        {deny, func(*story) {}, 7*time.Minute + 50*time.Second, 8*time.Minute + 15*time.Second},
		"heartbeats are refused by now": {func(*story) {}, deny, 12*time.Minute + 50*time.Second, 13*time.Minute + 15*time.Second},
		"they are refused for four minutes": {func(*story) {}, func(s *story) {
			deny(s)
			time.AfterFunc(4*time.Minute, func() { s.must(s.aws.SetFault(awssim.Fault{ID: "hb", Service: "none"})) })
		}, time.Hour, 0},
		"they are refused for a minute, and the leader changes": {func(*story) {}, func(s *story) {
			deny(s)
			s.kill()
			s.lead()
			time.AfterFunc(time.Minute, func() { s.must(s.aws.SetFault(awssim.Fault{ID: "hb", Service: "none"})) })
		}, time.Hour, 0},
		"somebody has completed it": {func(*story) {}, func(s *story) {
			_, err := autoscaling.NewFromConfig(s.aws.Config()).CompleteLifecycleAction(s.Context(), &autoscaling.CompleteLifecycleActionInput{
				AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("drain"), InstanceId: aws.String(theID),
				LifecycleActionResult: aws.String("CONTINUE"),
			})
			s.must(err)
		}, 5 * time.Minute, 6 * time.Minute},
	} {
		run := func(s *story, _ *policyOf, _ *steps) {
			other := aNode("other", "i-0fedcba9876543210")
			other.Status.Conditions[0].Status = corev1.ConditionUnknown
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), other, metav1.CreateOptions{})
			s.must(err)
			s.interval = 30 * time.Second
			tt.before(s)
			s.lead()
			s.terminate(10 * time.Minute)
			s.after(5*time.Minute + time.Second)
			tt.after5m(s)
			s.after(tt.waits - 5*time.Minute)
			if i := s.intent(); !i.HeldBack {
				s.Fatalf("after %s it is not held back: %+v", tt.waits, i)
			}
			if tt.begins == 0 {
				return
			}
			s.after(tt.begins - tt.waits)
			if i := s.intent(); i.HeldBack || time.Until(i.Deadline()) < time.Hour { // nothing is forced
				s.Errorf("after %s it is held back, or bound by the end of the hook: %+v", tt.begins, i)
			}
			s.after(10 * time.Minute)
			s.wantHook(awssim.Completed)
			if len(s.drain.all()) != 1 {
				s.Errorf("drains %+v", s.drain.all())
			}
		}
		for _, rule := range []decision.NodeRule{limited, later} {
			t.Run(name+", "+rule.Name, func(t *testing.T) {
				t.Parallel()
				tellWithRules(t, run, rule)
			})
		}
	}
}

func TestAMistakeInThePolicyThatIsMendedLosesNothing(t *testing.T) {
	t.Parallel()
	ignoring := decision.NodeRule{Name: "mistake", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Ignoring, Before: -1}
	late := aReboot
	late.Codes = nil
	mistake := func(s *story, p *policyOf) {
		s.after(time.Hour)
		p.set(ignoring)
		s.after(5 * time.Minute)
		s.wantUntouched()
		p.set(late)
		s.after(5 * time.Minute)
	}
	t.Run("a poll finds it again within the hour", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.polls()
			s.schedules(reboot(time.Now().Add(10 * time.Hour)))
			s.lead()
			mistake(s, p)
			s.after(time.Hour)
			if i := s.intent(); !i.HeldBack || len(i.Entries) != 1 {
				t.Errorf("intent %+v", i)
			}
		}, late)
	})
	t.Run("so does the same message", func(t *testing.T) {
		tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
			s.lead()
			body := s.reboot(10 * time.Hour)
			s.send(body)
			mistake(s, p)
			s.send(body)
			s.after(time.Second)
			if i := s.intent(); !i.HeldBack || len(i.Entries) != 1 {
				t.Errorf("intent %+v", i)
			}
		}, late)
	})
}

// Rules that ignore the last notice while the others are being forgotten leave no drain for nothing.
func TestRulesThatChangeDuringAForgettingLeaveNoDrain(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, rules *policyOf, _ *steps) {
		s.hasNoRoom()
		s.edits(func(c *Config) { c.ManagedTag = "" })
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(3 * time.Minute)
		s.change(theNode, notReady)
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.after(5 * time.Minute)
		s.must(s.aws.SetInstanceState(theID, "pending"))
		s.after(20 * time.Second)
		s.must(s.aws.SetInstanceState(theID, "running"))
		s.send(s.reboot(48 * time.Hour))
		s.after(10 * time.Second)
		if i := s.intent(); len(i.Entries) != 2 || !i.HeldBack {
			t.Fatalf("%+v", i)
		}
		once := sync.OnceFunc(func() {
			rules.set(decision.NodeRule{Name: "never", Kinds: []notice.Kind{notice.ScheduledChange}, Do: decision.Ignoring})
		})
		failed := false
		fails := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
			if failed {
				return false, nil, nil
			}
			failed = true
			once()
			return true, nil, apierrors.NewInternalError(errors.New("the API server fails once"))
		})
		s.beforePatch.Store(&fails)
		s.change(theNode, boots("second"))
		s.after(20 * time.Second)
		s.beforePatch.Store(nil)
		s.change("other", boots("x"))
		s.after(5 * time.Minute)
		if n := len(s.drain.all()); n != 0 || s.isCordoned(theNode) {
			t.Errorf("%d drains, cordoned %t, for nothing: %+v", n, s.isCordoned(theNode), s.intent())
		}
	})
}

// The machine's next Node is cordoned a moment after it has come, without waiting for room: others do not take its place.
func TestTheNextNodeOfAMachineThatIsDrainedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1, Limit: decision.Limit{Nodes: "1"},
	}
	for name, delete := range map[string]bool{"in the place of a deleted one": true, "beside another": false} {
		t.Run(name, func(t *testing.T) {
			tellWithRules(t, func(s *story, p *policyOf, _ *steps) {
				if !delete {
					r := limited
					r.Limit.Nodes = "2"
					p.set(r)
				}
				const otherID = "i-00000000000000001"
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: otherID, Tags: map[string]string{"managed": ""}}))
				_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("other", otherID), metav1.CreateOptions{})
				s.must(err)
				s.drain.takes = time.Hour
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(10 * time.Second)
				// Until EC2 answers the next Node does not get the notice.
				s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
				next := "node-b"
				if delete {
					next = theNode
					s.remove(theNode)
				}
				s.register(next, "next")
				s.after(2 * time.Second)
				s.send(s.body("rebalance-recommendation", otherID))
				s.after(20 * time.Second)
				s.aws.RemoveFault("ec2")
				s.after(2 * time.Minute)
				if !s.isCordoned(next) || s.isCordoned("other") {
					t.Errorf("cordoned are the next Node: %t, the other machine's: %t; want the first alone", s.isCordoned(next), s.isCordoned("other"))
				}
			}, limited)
		})
	}
}
