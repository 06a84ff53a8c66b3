package controller

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

// A heartbeat of the sweep for the hook of an instance that is not ours would hold it to its global limit.
func TestASweepDoesNotHoldTheHookOfAnInstanceWithoutTheTag(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
		s.lead()
		s.quietly(awssim.Terminating, "drain", 10*time.Minute)
		s.after(11 * time.Minute)
		if calls := s.calls("RecordLifecycleActionHeartbeat"); calls != 0 {
			t.Errorf("%d heartbeats", calls)
		}
		s.wantHook(awssim.TimedOut)
		s.wantUntouched()
	})
}

// The machine goes in two minutes, whatever EC2 answers.
func TestTheNextNodeOfAWarnedMachineIsDrainedThoughEC2DoesNotAnswer(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 5 * time.Second
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.register("node-b", "another")
		s.after(10 * time.Second)
		if !s.isCordoned("node-b") || s.lastDrain().node != "node-b" {
			t.Errorf("cordoned %t, drains %+v", s.isCordoned("node-b"), s.drain.all())
		}
	})
}

// The Node was deleted, its machine runs on, as far as anybody knows, and its group waits.
func TestAHookOfADeletedNodeIsCompletedInTimeThoughEC2DoesNotAnswer(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 5 * time.Second
		s.lead()
		s.terminate(time.Hour)
		s.after(2 * time.Second)
		s.remove(theNode)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.after(time.Minute)
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The next Node comes while EC2 is asked.
func TestAHookOfADeletedNodeWaitsForTheNextNodeThoughEC2DoesNotAnswer(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		s.terminate(time.Hour)
		s.after(2 * time.Second)
		s.remove(theNode)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.after(10 * time.Second)
		s.register("node-b", "another")
		s.after(5 * time.Minute)
		s.wantHook(awssim.Active)
		s.aws.RemoveFault("ec2")
		s.after(30 * time.Second)
		if !s.isCordoned("node-b") {
			t.Error("the next Node is not drained")
		}
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The limits of the hook cannot be read. What is assumed about them is no reason to let the machine go before its next
// Node has had its time.
func TestTheNextNodeIsAwaitedThoughAnAssumedDeadlinePasses(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.denyLimits()
		s.interval, s.drain.takes = 30*time.Second, time.Hour
		s.lead()
		s.terminate(time.Hour)
		s.after(100 * time.Second)
		s.remove(theNode)
		s.after(110 * time.Second)
		s.wantHook(awssim.Active)
		s.after(15 * time.Second)
		s.wantHook(awssim.Completed)
	})
}

// So is what is assumed no reason to complete a hook while another Node of the machine is being drained.
func TestAHookWaitsForTheOtherNodeThoughAnAssumedDeadlineHasPassed(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.denyLimits()
		s.interval, s.drain.takes = 30*time.Second, 10*time.Second
		s.drain.byNode = map[string]time.Duration{"node-b": 5 * time.Minute}
		s.edit = func(c *Config) { c.CompletionDelay = 20 * time.Minute }
		s.lead()
		s.terminate(time.Hour)
		s.after(19 * time.Minute)
		s.register("node-b", "another")
		s.after(4 * time.Minute)
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// Nothing tells the next Node that the change has been cancelled, and nothing would take back what is done to it.
func TestACancelledChangeDoesNotComeBackWithTheNextNode(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"after the drain": 0, "in the drain": time.Hour} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = takes
				s.lead()
				s.send(s.maintenance(24 * time.Hour))
				s.after(10 * time.Second)
				s.remove(theNode)
				s.after(time.Minute)
				s.send(s.maintenance(24*time.Hour, "upcoming", "closed"))
				s.after(40 * time.Minute)
				s.register("node-b", "another")
				s.after(time.Minute)
				if s.isCordoned("node-b") {
					t.Error("the next Node is cordoned for what was cancelled")
				}
				if s.left() != 0 {
					t.Errorf("%d messages left", s.left())
				}
			})
		})
	}
}

// A rule has terminations only cordoned. A spot warning has both Nodes of the machine evacuated while the completion of
// the hook is delayed.
func TestAHookWaitsForTheOtherNodeThatWasOnlyCordonedAtFirst(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.CompletionDelay = 20 * time.Second
		}
		s.drain.byNode = map[string]time.Duration{theNode: 90 * time.Second, "node-b": 0}
		s.change(theNode, notReady) // the hook stands on the ready one
		s.register("node-b", "another")
		s.lead()
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if all := s.drain.all(); len(all) != 2 {
			t.Fatalf("drains %+v", all)
		}
		s.wantHook(awssim.Active)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	}, cordonsTerminations)
}

// The delay is for what pods leave behind, such as their logs: it counts from the end of the evacuation.
func TestTheCompletionDelayCountsFromTheEvacuationThatFollowsACordon(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.CompletionDelay = 2 * time.Minute
		}
		s.lead()
		s.terminate(time.Hour)
		s.after(110 * time.Second)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		if all := s.drain.all(); len(all) != 1 {
			t.Fatalf("drains %+v", all)
		}
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	}, cordonsTerminations)
}

// A webhook refuses all patches of one node.
func TestANodeThatCannotBeWrittenHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	refuse := func(s *story, name string) {
		s.beforePatch.Store(new(clienttesting.ReactionFunc(func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.PatchAction).GetName() == name {
				return true, nil, errors.New("refused by the story")
			}
			return false, nil, nil
		})))
	}
	t.Run("a notice for the next Nodes", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Second
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(10 * time.Second)
			refuse(s, "node-b")
			s.register("node-b", "refused")
			s.after(2 * time.Second)
			s.register("node-c", "another")
			s.after(10 * time.Second)
			if !s.isCordoned("node-c") {
				t.Error("a Node is not cordoned because another cannot be")
			}
		})
	})
	t.Run("what is left of a drain", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Second
			s.register("node-b", "another")
			s.lead()
			s.send(s.body("rebalance-recommendation", theID))
			s.after(10 * time.Second)
			refuse(s, theNode)
			for _, name := range []string{theNode, "node-b"} {
				s.change(name, uncordon)
				s.after(2 * time.Second)
			}
			s.after(10 * time.Second)
			if i := s.intentOf("node-b"); i.Cordoned {
				t.Error("the cordon that comes next would be taken for ours")
			}
			if i := s.intentOf(theNode); !i.Cordoned || i.Outcome != intent.Drained {
				t.Errorf("the other was written: %+v", i)
			}
		})
	})
}

// A kubelet can make its Node one that nobody can write, and claim the instance of another.
func TestANodeThatCannotBeWrittenHoldsUpNoOtherOfItsInstance(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*story){
		"a warning":        func(s *story) { s.send(s.body("spot-interruption", theID)) },
		"a recommendation": func(s *story) { s.send(s.body("rebalance-recommendation", theID)) },
		"a termination":    func(s *story) { s.terminate(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.interval, s.drain.takes = 10*time.Second, 10*time.Second
				s.register("node-b", "another")
				s.change("node-b", notReady) // the other one is asked first
				s.failPatches(theNode)
				s.lead()
				begin(s)
				s.after(20 * time.Second)
				if all := s.drain.all(); !s.isCordoned("node-b") || len(all) != 1 {
					t.Errorf("cordoned %t, drains %+v", s.isCordoned("node-b"), all)
				}
				if name == "a termination" {
					s.wantHook(awssim.Active)
					s.after(4 * time.Minute)
					if all := s.drain.all(); len(all) != 2 {
						t.Errorf("drains %+v", all)
					}
					s.wantHook(awssim.Completed)
				}
			})
		})
	}
}

// Nor does it keep what is taken back on the others.
func TestANodeThatCannotBeWrittenKeepsNoOtherOfItsInstanceCordoned(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.register("node-b", "another")
		s.change("node-b", notReady)
		s.lead()
		s.send(s.maintenance(24 * time.Hour))
		s.after(10 * time.Second)
		if !s.isCordoned(theNode) || !s.isCordoned("node-b") {
			t.Fatal("want both cordoned")
		}
		s.failPatches(theNode)
		s.send(s.maintenance(24*time.Hour, "upcoming", "closed"))
		s.after(time.Minute)
		if s.isCordoned("node-b") {
			t.Error("a Node stays cordoned because another cannot be written")
		}
	})
}

// The hook ends by its timeout while Auto Scaling refuses to complete it.
func TestAHookThatRanOutIsNotSaidToBeCompleted(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		episodes := s.ended()
		s.drain.takes = 5 * time.Second
		s.must(s.aws.SetFault(awssim.Fault{ID: "complete", Action: "CompleteLifecycleAction", Status: 503}))
		s.lead()
		s.terminate(2 * time.Minute)
		s.after(2*time.Minute + 10*time.Second)
		s.wantHook(awssim.TimedOut)
		s.aws.RemoveFault("complete")
		s.after(2 * time.Minute)
		if all := episodes(); len(all) != 1 || len(all[0].Hooks) != 0 {
			t.Errorf("the episodes are %+v", all)
		}
	})
}

// The heartbeats of a hook fail while its completion is delayed: it is completed before it ends by itself.
func TestTheCompletionDelayEndsBeforeAHookThatHeartbeatsDoNotHold(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.interval = 30 * time.Second
		s.edit = func(c *Config) { c.CompletionDelay = time.Hour }
		s.must(s.aws.SetFault(awssim.Fault{ID: "beats", Service: "autoscaling", Action: "RecordLifecycleActionHeartbeat", Status: 403, Code: "AccessDenied"}))
		s.lead()
		s.terminate(10 * time.Minute)
		s.after(9*time.Minute + 30*time.Second)
		s.wantHook(awssim.Active)
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The machine that a completion is delayed for is gone.
func TestTheCompletionDelayEndsWithTheMachine(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CompletionDelay = 20 * time.Minute }
		s.drain.takes = 5 * time.Second
		s.lead()
		s.terminate(time.Hour)
		s.after(time.Minute)
		s.wantHook(awssim.Active)
		s.end(theID)
		s.send(s.body("state-change-terminated", theID))
		s.after(10 * time.Second)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

// A kubelet can write anything there, and a later version something else.
func TestAnIntentThatCannotBeReadKeepsNobodyFromServingTheQueue(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, func(n *corev1.Node) {
			n.Labels = map[string]string{cluster.StateLabel: cluster.StateDraining}
			n.Annotations = map[string]string{cluster.IntentAnnotation: "{"}
		})
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if s.left() != 0 || !s.isCordoned(theNode) || len(s.drain.all()) != 1 {
			t.Errorf("%d messages left, cordoned %t, %d drains", s.left(), s.isCordoned(theNode), len(s.drain.all()))
		}
	})
}
