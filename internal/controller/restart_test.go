package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// boots is what a kubelet says after a boot, or after a time without one.
func boots(id string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.NodeInfo.BootID = id
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionTrue, metav1.Now()
	}
}

// reboots is a boot that takes less time than a kubelet may be silent.
func reboots(id string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }
}

// replaceRootVolume begins what an instance refresh does, held by a hook.
func (s *story) replaceRootVolume() {
	s.Helper()
	s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
	s.must(s.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
	_, err := s.aws.ReplaceRootVolume(theID)
	s.must(err)
}

func (s *story) rootVolumeReplaced() {
	s.Helper()
	_, err := s.aws.RootVolumeReplaced(theID)
	s.must(err)
}

// A machine comes back: within seconds after its node is ready, what we did to it is
// reverted, and nothing that somebody else did.
func TestAMachineThatComesBackTakesPodsAgain(t *testing.T) {
	t.Parallel()
	const most = 5 * time.Second
	stopAndStart := func(s *story, bootID string) {
		s.must(s.aws.SetInstanceState(theID, "stopping"))
		s.after(2 * time.Minute)
		s.change(theNode, notReady)
		s.after(10 * time.Minute)
		s.must(s.aws.SetInstanceState(theID, "pending"))
		s.after(20 * time.Second)
		s.must(s.aws.SetInstanceState(theID, "running"))
		s.after(20 * time.Second)
		s.change(theNode, boots(bootID))
	}
	for name, play := range map[string]func(*story){
		"rebooted for a scheduled change, in no time": func(s *story) {
			s.send(s.maintenance(10 * time.Minute))
			s.after(11 * time.Minute)
			s.change(theNode, reboots("second"))
		},
		"rebooted for a scheduled change": func(s *story) {
			s.send(s.maintenance(10 * time.Minute))
			s.after(11 * time.Minute)
			s.change(theNode, notReady)
			s.after(2 * time.Minute)
			s.change(theNode, boots("second"))
		},
		"stopped and started before a scheduled change": func(s *story) {
			s.send(s.maintenance(14 * 24 * time.Hour))
			s.after(time.Hour)
			stopAndStart(s, "second")
		},
		"hibernated by an interruption": func(s *story) {
			s.send(s.body("spot-interruption", theID))
			s.after(2 * time.Minute)
			stopAndStart(s, "first")
		},
		"another root volume": func(s *story) {
			s.replaceRootVolume()
			s.after(time.Minute)
			s.wantHook(awssim.Completed)
			s.rootVolumeReplaced() // no hook waits for the launch
			s.change(theNode, reboots("second"))
		},
		"a new leader finds that it was rebooted": func(s *story) {
			s.send(s.maintenance(10 * time.Minute))
			s.after(5 * time.Minute)
			s.stop()
			s.after(6 * time.Minute)
			s.change(theNode, reboots("second"))
			s.after(time.Hour)
			s.stop = s.lead()
		},
		"rebooted while its drain was not finished": func(s *story) {
			s.drain.take(time.Hour)
			s.send(s.maintenance(10 * time.Minute))
			s.after(11 * time.Minute)
			s.change(theNode, reboots("second"))
		},
		"started again, where EC2 may not be asked": func(s *story) {
			s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
			s.send(s.body("spot-interruption", theID))
			s.after(10 * time.Minute)
			s.change(theNode, notReady)
			s.after(10 * time.Minute)
			s.change(theNode, boots("second"))
		},
		"EC2 says that it runs, and may not be asked": func(s *story) {
			s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
			s.send(s.body("spot-interruption", theID))
			s.after(time.Hour)
			s.send(s.body("state-change-running", theID))
		},
	} {
		for _, whose := range []string{"ours", "a person's"} {
			t.Run(name+", the cordon is "+whose, func(t *testing.T) {
				tell(t, func(s *story) {
					s.edit = func(c *Config) { c.ManagedTag = "" }
					s.change(theNode, boots("first"))
					if whose != "ours" {
						s.change(theNode, recordon)
					}
					s.stop = s.lead()
					play(s)
					s.after(most)
					if n := s.node(); n.Spec.Unschedulable != (whose != "ours") {
						t.Errorf("cordoned: %t; it carries %s", n.Spec.Unschedulable, n.Annotations)
					}
					if i := s.intent(); len(i.Entries) > 0 || s.left() > 0 {
						t.Errorf("it carries %+v, and %d messages are left", i, s.left())
					}
					s.after(time.Hour)
					if n := s.node(); n.Spec.Unschedulable != (whose != "ours") {
						t.Error("it was cordoned, or uncordoned, later")
					}
				})
			})
		}
	}
}

// A reboot alone ends nothing that is still to come.
func TestAMachineThatRebootsStaysCordonedForWhatIsToCome(t *testing.T) {
	t.Parallel()
	for name, announce := range map[string]func(*story){
		"a scheduled change": func(s *story) { s.send(s.maintenance(24 * time.Hour)) },
		"an interruption":    func(s *story) { s.send(s.body("spot-interruption", theID)) },
		"a recommendation":   func(s *story) { s.send(s.body("rebalance-recommendation", theID)) },
		"a scale-in":         func(s *story) { s.terminate(time.Hour) },
		"the end of a block": func(s *story) {
			s.send(s.body("capacity-reservation-interruption-of-a-block", theID, "2026-11-20T10:17:25Z", rfc(time.Now().Add(time.Hour))))
		},
	} {
		for state, takes := range map[string]time.Duration{"in the middle of its drain": 50 * time.Second, "after it": time.Second} {
			t.Run(name+", "+state, func(t *testing.T) {
				tell(t, func(s *story) {
					s.drain.take(takes)
					s.change(theNode, boots("first"))
					s.lead()
					announce(s)
					s.after(20 * time.Second)
					s.change(theNode, reboots("second"))
					s.after(time.Minute)
					if !s.isCordoned(theNode) || len(s.intent().Entries) != 1 {
						t.Errorf("cordoned: %t; it carries %+v", s.isCordoned(theNode), s.intent())
					}
				})
			})
		}
	}
}

// The launch hook of an instance with another root volume waits for the reboot: what the kubelet
// said before is of the machine that was.
func TestALaunchHookAfterAnotherRootVolumeWaitsForTheReboot(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, boots("first"))
		s.lead()
		s.replaceRootVolume()
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "join", Transition: awssim.Launching, HeartbeatTimeout: time.Hour}))
		s.rootVolumeReplaced()
		s.after(30 * time.Second)
		if a := s.aws.LifecycleActions(); a[1].Outcome != awssim.Active || !s.isCordoned(theNode) {
			t.Fatalf("the launch hook is %q, and the node is cordoned: %t", a[1].Outcome, s.isCordoned(theNode))
		}
		s.change(theNode, reboots("second"))
		s.after(5 * time.Second)
		if a := s.aws.LifecycleActions(); a[1].Outcome != awssim.Completed || s.isCordoned(theNode) || s.left() != 0 {
			t.Errorf("the launch hook is %q, the node is cordoned: %t, %d messages are left", a[1].Outcome, s.isCordoned(theNode), s.left())
		}
	})
}

// The machine is interrupted nevertheless. EC2 may not be asked, and another root volume is no launch.
func TestASpotInterruptionOutlivesAnotherRootVolume(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		s.replaceRootVolume()
		s.after(time.Minute)
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "join", Transition: awssim.Launching, HeartbeatTimeout: time.Hour}))
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
		s.rootVolumeReplaced()
		s.change(theNode, reboots("second"))
		s.after(10 * time.Second)
		if a := s.aws.LifecycleActions(); a[1].Outcome != awssim.Completed || !s.isCordoned(theNode) || !s.intent().Has(notice.SpotInterruption) {
			t.Errorf("the launch hook is %q, the node is cordoned: %t, and carries %+v", a[1].Outcome, s.isCordoned(theNode), s.intent())
		}
	})
}

// A hook that is open outlives a reboot: the replacement of the root volume is still to come.
func TestARebootBeforeTheRootVolumeIsReplacedEndsNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.take(5 * time.Minute)
		s.change(theNode, boots("first"))
		s.lead()
		s.replaceRootVolume()
		s.after(time.Minute)
		s.change(theNode, reboots("by a person"))
		s.after(10 * time.Minute)
		s.wantHook(awssim.Completed)
		if i := s.intent(); !s.isCordoned(theNode) || !i.Has(notice.ASGTerminate) {
			t.Fatalf("cordoned: %t; it carries %+v", s.isCordoned(theNode), i)
		}
		s.rootVolumeReplaced()
		s.change(theNode, reboots("third"))
		s.after(5 * time.Second)
		if s.isCordoned(theNode) {
			t.Error("it is cordoned, with another root volume")
		}
	})
}

// The same, where the limits of the hook cannot be read, after what is assumed about them.
func TestARebootAfterAnAssumedDeadlineEndsNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.denyLimits()
		s.interval = 30 * time.Second
		s.edit = func(c *Config) { c.CompletionDelay = 10 * time.Minute }
		s.change(theNode, boots("first"))
		s.lead()
		s.replaceRootVolume()
		s.after(5 * time.Minute)
		s.change(theNode, reboots("by a person"))
		s.after(time.Minute)
		if s.wantHook(awssim.Active); !s.isCordoned(theNode) {
			t.Error("it takes pods, and its root volume is to be replaced")
		}
		s.after(5 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// A node whose startup is not over is not ready for its launch hook.
// The hook stands on one of two Nodes of the instance. It is not completed yet, so that the reboot is
// not the one after the replacement.
func TestARebootBeforeTheRootVolumeIsReplacedEndsNothingOnTheOtherNode(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 20 * time.Minute
		s.change(theNode, reboots("first"))
		s.register("node-b", "another")
		s.change("node-b", reboots("first"))
		s.lead()
		s.replaceRootVolume()
		s.after(time.Minute)
		for _, name := range []string{theNode, "node-b"} {
			s.change(name, reboots("second"))
			s.after(time.Minute)
		}
		if !s.isCordoned(theNode) || !s.isCordoned("node-b") || s.drain.going() != 2 {
			t.Errorf("cordoned %t and %t, %d drains go on", s.isCordoned(theNode), s.isCordoned("node-b"), s.drain.going())
		}
	})
}

func TestALaunchHookWaitsForTheEndOfTheStartup(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"readiness.k8s.io/gpu-driver", "example.com/cni"} {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.StartupTaints = []string{"example.com/cni"} }
			s.change(theNode, func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}, {Key: "team/gpu", Effect: corev1.TaintEffectNoSchedule}}
			})
			s.lead()
			s.launch(time.Hour)
			s.after(5 * time.Minute)
			s.wantHook(awssim.Active)
			s.change(theNode, func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[1:] })
			s.after(2 * time.Second)
			s.wantHook(awssim.Completed)
		})
	}
}

// A notice that comes when the machine is back already begins nothing, and one that comes while
// its hook is open does.
func TestALateNoticeOfAMachineThatIsBackBeginsNothing(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		tell(t, func(s *story) {
			s.change(theNode, boots("first"))
			s.lead()
			s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
			s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
			actions, err := s.aws.ReplaceRootVolume(theID)
			s.must(err)
			began := time.Now()
			s.after(3 * time.Minute)
			if !open {
				_, err := autoscaling.NewFromConfig(s.aws.Config()).CompleteLifecycleAction(s.Context(), &autoscaling.CompleteLifecycleActionInput{
					AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("drain"), InstanceId: aws.String(theID), LifecycleActionResult: aws.String("CONTINUE"),
				})
				s.must(err)
				s.rootVolumeReplaced()
				s.change(theNode, reboots("second"))
			}
			s.send(s.body("asg-terminate-for-another-root-volume", theID, "2026-11-20T10:15:30Z", rfc(began), "f2a5c0a1-6d3f-4b6a-9b62-000000000001", actions[0].Token))
			s.after(time.Minute)
			if s.isCordoned(theNode) != open || len(s.drain.all()) > 0 != open || s.left() > 0 {
				t.Errorf("its hook is open: %t; it is cordoned: %t, after %d drains, and %d messages are left", open, s.isCordoned(theNode), len(s.drain.all()), s.left())
			}
		})
	}
}

// EC2 does not answer when it comes back, and its root volume is to be replaced before that: the hook is not one
// of the drain that has ended.
func TestAMachineThatHasComeBackIsDrainedForTheNextHook(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		s.change(theNode, notReady)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "RequestLimitExceeded"}))
		s.after(5 * time.Minute)
		s.change(theNode, boots("second"))
		s.after(time.Minute)
		if !s.node().Spec.Unschedulable {
			t.Fatal("it is known already that the machine has come back")
		}
		s.terminate(time.Hour)
		s.after(time.Minute)
		if len(s.drain.all()) != 2 {
			t.Errorf("%d drains, want one for the hook", len(s.drain.all()))
		}
		s.aws.RemoveFault("ec2")
	})
}

// The next leader does not know which instance a Node without a provider id is, until EC2 or a message tells.
func TestTheNextLeaderForgetsAnEarlierLifeOfANodeWithoutAProviderID(t *testing.T) {
	t.Parallel()
	carried := func(t *testing.T, run func(s *story, restart func())) {
		tell(t, func(s *story) {
			start := func() {
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
			}
			s.drain.takes = -1
			s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
			start()
			stop := s.lead()
			s.send(s.reboot(time.Hour))
			s.after(10 * time.Second)
			if len(s.drain.all()) != 1 || !s.isCordoned(theNode) {
				t.Fatalf("drains %+v", s.drain.all())
			}
			stop()
			run(s, start)
		})
	}
	t.Run("before it drains, without a message", func(t *testing.T) {
		carried(t, func(s *story, restart func()) {
			_, err := sqs.NewFromConfig(s.aws.Config()).PurgeQueue(s.Context(), &sqs.PurgeQueueInput{QueueUrl: aws.String(s.aws.QueueURL(queueName))})
			s.must(err)
			s.after(2 * time.Minute)
			restart()
			s.lead()
			s.after(time.Minute)
			s.wantUntouched()
			if len(s.drain.all()) != 1 {
				t.Errorf("drains %+v, want that of the leader before alone", s.drain.all())
			}
		})
	})
	t.Run("by a message of before", func(t *testing.T) {
		carried(t, func(s *story, restart func()) {
			restart()
			s.lead()
			s.after(time.Minute)
			s.wantUntouched()
			if s.drain.going() != 0 || s.left() != 0 {
				t.Errorf("%d drains go on, %d messages left", s.drain.going(), s.left())
			}
		})
	})
	t.Run("when it starts again", func(t *testing.T) {
		carried(t, func(s *story, restart func()) {
			s.lead()
			s.after(time.Minute) // the message joins the drain
			if s.drain.going() != 1 {
				t.Fatalf("drains %+v", s.drain.all())
			}
			s.change(theNode, notReady)
			s.after(time.Minute)
			restart()
			s.change(theNode, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
			s.after(time.Minute)
			s.wantUntouched()
			if s.drain.going() != 0 || s.left() != 0 {
				t.Errorf("%d drains go on, %d messages left", s.drain.going(), s.left())
			}
		})
	})
}

func TestAHookThatComesToTheNextLeaderIsCompletedForANodeWithoutAProviderID(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 5 * time.Minute
		s.interval = time.Minute
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		stop := s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		stop()
		s.lead()
		s.after(10 * time.Second)
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		s.send(s.body("spot-interruption", theID)) // the machine goes: it is cordoned again, which writes the node
		s.after(10 * time.Second)
		s.change(theNode, uncordon)
		s.after(10 * time.Second)
		if !s.isCordoned(theNode) {
			t.Error("the node is open")
		}
		s.after(10 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// No message tells the next leader which instance such a Node is, once its drain has ended.
func TestTheNextLeaderRevertsADrainOfANodeWithoutAProviderID(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.change(theNode, boots("first"))
		stop := s.lead()
		s.send(s.reboot(10 * time.Minute))
		s.after(time.Minute)
		if s.intent().FinishedAt.IsZero() || !s.isCordoned(theNode) {
			t.Fatalf("it carries %+v", s.intent())
		}
		stop()
		s.lead()
		s.after(10 * time.Minute)
		s.change(theNode, reboots("second"))
		s.after(time.Minute)
		s.wantUntouched()
	})
}

// Who searches the log for a node finds why nothing happened to it for a while.
func TestADrainThatIsInterruptedIsLogged(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		var log logtest.Log
		s.edit = func(c *Config) { c.Log = log.Logger() }
		s.drain.take(time.Hour)
		s.stop = s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.stop()
		said := log.Said("the drain is interrupted: the next term goes on with it")
		if len(said) != 1 || !strings.Contains(said[0], theNode) {
			t.Errorf("it says %q", said)
		}
	})
}
