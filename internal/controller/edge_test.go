package controller

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// A machine that AWS is about to retire has bad hardware: it may crash and boot again after the
// time from which on AWS may stop it. EC2 lists the event still.
func TestAMachineThatIsToEndStaysCordonedWhenItReboots(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"instance-retirement", "instance-stop", "system-reboot"} {
		t.Run(code, func(t *testing.T) {
			tell(t, func(s *story) {
				s.polls()
				s.change(theNode, boots("first"))
				s.lead()
				e := reboot(time.Now().Add(10 * time.Minute).Truncate(time.Second))
				e.Code = code
				s.schedules(e)
				s.after(11 * time.Minute)
				s.wantDrained()
				s.change(theNode, reboots("after a crash"))
				s.after(time.Hour) // sixty polls, and each lists the event
				if !s.isCordoned(theNode) {
					t.Errorf("it takes pods, and EC2 lists the event; it carries %+v", s.intent())
				}
			})
		})
	}
}

// The same, by a message of AWS Health alone.
func TestAMachineWhoseRetirementIsAnnouncedStaysCordonedWhenItReboots(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.maintenance(10*time.Minute, "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"))
		s.after(11 * time.Minute)
		if !s.isCordoned(theNode) {
			t.Fatal("it is not cordoned")
		}
		s.change(theNode, reboots("after a crash"))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Error("it takes pods: a reboot is no retirement")
		}
	})
}

// A change of the past does not hide another one that is to come.
func TestAChangeOfThePastDoesNotHideOneThatAPollFinds(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.polls()
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.maintenance(10 * time.Minute))
		s.after(5 * time.Minute)
		if !s.isCordoned(theNode) {
			t.Fatal("it is not cordoned")
		}
		s.after(20 * time.Minute) // AWS stops the machine late, and somebody starts it
		s.change(theNode, notReady)
		s.after(10 * time.Minute)
		s.restart()
		s.change(theNode, boots("second"))
		s.after(time.Minute)
		if s.isCordoned(theNode) {
			t.Fatal("it is cordoned, and was started again")
		}
		s.after(2 * time.Hour)
		s.schedules(reboot(time.Now().Add(14 * 24 * time.Hour).Truncate(time.Second)))
		s.after(time.Hour)
		if !s.isCordoned(theNode) {
			t.Errorf("the event of today is ignored; it carries %+v", s.intent())
		}
	})
}

// Somebody has deleted the Node while its machine got another root volume.
func TestTheNextNodeOfAMachineWithAnotherRootVolumeTakesPods(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"after the hook", "during the drain"} {
		t.Run(when, func(t *testing.T) {
			tell(t, func(s *story) {
				if when == "during the drain" {
					s.drain.takes = 3 * time.Minute
				}
				s.change(theNode, boots("first"))
				s.lead()
				s.replaceRootVolume()
				s.after(time.Minute)
				s.remove(theNode)
				s.after(5 * time.Minute)
				s.wantHook(awssim.Completed)
				s.rootVolumeReplaced() // no hook waits for the launch
				n := aNode(theNode, theID)
				n.UID = "another"
				n.Status.NodeInfo.BootID = "second"
				n.Status.Conditions[0].LastTransitionTime = metav1.Now()
				_, err := s.kube.CoreV1().Nodes().Create(s.Context(), n, metav1.CreateOptions{})
				s.must(err)
				s.after(time.Hour)
				if s.isCordoned(theNode) {
					t.Errorf("it is cordoned for ever; it carries %+v", s.intent())
				}
			})
		})
	}
}

// A Node without a provider id was cordoned by way of the name of its instance.
func TestANodeWithoutAProviderIDTakesPodsAfterTheReboot(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*story){
		"rebooted": func(s *story) { s.change(theNode, reboots("second")) },
		"stopped and started": func(s *story) {
			s.change(theNode, notReady)
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
			s.change(theNode, boots("second"))
			s.send(s.body("state-change-running", theID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
				s.change(theNode, boots("first"))
				s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
				s.lead()
				s.send(s.maintenance(10 * time.Minute))
				s.after(11 * time.Minute)
				if !s.isCordoned(theNode) {
					t.Fatal("it is not cordoned")
				}
				again(s)
				s.after(time.Hour)
				if s.isCordoned(theNode) {
					t.Errorf("it is cordoned for ever; it carries %+v", s.intent())
				}
			})
		})
	}
}

// Nothing grows with the number of events: a node that flaps while EC2 gives no answer.
func TestANodeThatFlapsWhileEC2IsAwayAddsNoGoroutines(t *testing.T) {
	tell(t, func(s *story) {
		s.change(theNode, boots("first"))
		s.lead()
		s.send(s.maintenance(24 * time.Hour))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Fatal("it is not cordoned")
		}
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
		s.change(theNode, reboots("zero"))
		s.after(time.Second)
		before := runtime.NumGoroutine()
		const flaps = 200
		for k := range flaps {
			s.change(theNode, reboots(fmt.Sprint(k)))
			s.after(time.Second)
		}
		if more := runtime.NumGoroutine() - before; more > flaps/4 {
			t.Errorf("%d more goroutines after %d flaps", more, flaps)
		}
	})
}

// A kubelet was silent for a moment, and EC2 does not say whether the machine was started since.
func TestWhoUncordonsANodeWhileEC2IsAwayIsHeeded(t *testing.T) {
	t.Parallel()
	uncordonAfterAFlap := func(s *story) {
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
		s.change(theNode, notReady)
		s.after(time.Second)
		s.change(theNode, boots("first"))
		s.after(time.Second)
		s.change(theNode, uncordon)
		s.after(10 * time.Second)
	}
	t.Run("a drain that can wait is called off", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Hour
			s.change(theNode, boots("first"))
			s.lead()
			s.send(s.body("rebalance-recommendation", theID))
			s.after(5 * time.Minute)
			if !s.isCordoned(theNode) || s.left() != 0 {
				t.Fatalf("cordoned %t, %d messages left", s.isCordoned(theNode), s.left())
			}
			uncordonAfterAFlap(s)
			s.wantUntouched()
		})
	})
	t.Run("a machine that goes is cordoned again, once", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Hour
			s.change(theNode, boots("first"))
			s.lead()
			s.terminate(2 * time.Hour)
			s.after(time.Minute)
			uncordonAfterAFlap(s)
			if i := s.intent(); !s.isCordoned(theNode) || i.Uncordoned != 1 {
				t.Fatalf("cordoned %t, intent %+v", s.isCordoned(theNode), i)
			}
			s.change(theNode, uncordon)
			s.after(time.Minute)
			s.aws.RemoveFault("ec2")
			s.after(time.Minute)
			if i := s.intent(); s.isCordoned(theNode) || i.Uncordoned != 2 || i.Finished() {
				t.Errorf("cordoned %t, intent %+v", s.isCordoned(theNode), i)
			}
		})
	})
}

// Clusters whose VPCs have the same addresses have nodes of the same names.
func TestANodeIsNotDrainedForAnInstanceOfAnotherClusterWithItsName(t *testing.T) {
	t.Parallel()
	const theirs = "i-00000000000000bad"
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.ClusterName = "ours" }
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theirs, PrivateDNSName: theNode, Tags: map[string]string{"managed": "", "kubernetes.io/cluster/theirs": "owned"}}))
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": "", "kubernetes.io/cluster/ours": "owned"}}))
		s.lead()
		s.send(s.body("spot-interruption", theirs))
		s.after(30 * time.Second)
		if s.isCordoned(theNode) {
			t.Errorf("it is cordoned for an instance of another cluster")
		}
		s.send(s.body("spot-interruption", theID))
		s.after(30 * time.Second)
		if !s.isCordoned(theNode) {
			t.Error("it is not cordoned for its own instance")
		}
	})
}

// Somebody grants the permission for heartbeats while an instance waits.
func TestASweepGoesOnOnceItMaySendHeartbeats(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.must(s.aws.SetFault(awssim.Fault{ID: "hb", Service: "autoscaling", Action: "RecordLifecycleActionHeartbeat", Status: 403, Code: "AccessDenied"}))
		s.lead()
		s.quietly(awssim.Terminating, "drain", time.Hour)
		s.after(5 * time.Minute)
		s.must(s.aws.SetFault(awssim.Fault{ID: "hb", Service: "none"}))
		s.after(30 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The drain for the spot warning has ended when the hook comes: no drain carries it.
func TestAHookThatNoDrainCarriesIsToldOfWhileItsCompletionFails(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		s.must(s.aws.SetFault(awssim.Fault{ID: "no", Service: "autoscaling", Action: "CompleteLifecycleAction", Status: 403, Code: "AccessDenied"}))
		s.terminate(10 * time.Minute)
		s.after(time.Minute)
		const want = "the end of lifecycle hook workers/drain of " + theID + ": "
		if text := s.c.Unseen(); !strings.HasPrefix(text, want) || !strings.Contains(text, "permission autoscaling:CompleteLifecycleAction is missing") {
			t.Errorf("unseen: %q, want %q and the permission", text, want)
		}
		if l := s.c.Load(); l.Hooks != 1 {
			t.Errorf("%d hooks are open", l.Hooks)
		}
		s.must(s.aws.SetFault(awssim.Fault{ID: "no", Service: "none"}))
		s.after(5 * time.Minute)
		s.wantHook(awssim.Completed)
		if text := s.c.Unseen(); text != "" {
			t.Errorf("afterwards: %s", text)
		}
	})
}

// The tag is put on an instance while it waits.
func TestASweepFindsAnInstanceThatGetsItsTagLater(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.sweeps = true
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
		s.lead()
		s.quietly(awssim.Terminating, "drain", 2*time.Hour)
		s.after(5 * time.Minute)
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: map[string]string{"managed": ""}}))
		s.after(90 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// Whoever can send to the queue says that the machine was started, while EC2 gives no answer.
func TestNobodyIsBelievedThatAMachineRunsWhileEC2GivesNoAnswer(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.ManagedTag = "" }
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Fatal("it is not cordoned")
		}
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503, Code: "Unavailable"}))
		s.send(s.body("state-change-running", theID))
		s.after(time.Minute)
		if !s.isCordoned(theNode) {
			t.Error("it is uncordoned by a message alone")
		}
	})
}

// The drain ends while EC2 is asked whether the machine was started: it was hibernated, and its
// boot id is the same.
func TestAMachineThatComesBackAsItsDrainEndsTakesPodsAgain(t *testing.T) {
	t.Parallel()
	for _, bootID := range []string{"first", "second"} {
		t.Run(bootID, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 10 * time.Minute
				s.change(theNode, boots("first"))
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(5 * time.Minute)
				if !s.isCordoned(theNode) {
					t.Fatal("it is not cordoned")
				}
				s.change(theNode, notReady)
				s.restart()
				s.after(4*time.Minute + 57*time.Second)
				s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Latency: 8 * time.Second}))
				s.change(theNode, boots(bootID))
				s.after(time.Hour)
				if s.isCordoned(theNode) {
					t.Errorf("it is cordoned for ever; it carries %+v", s.intent())
				}
			})
		})
	}
}

// The rules leave out the hook of another program, which works on it still.
func TestASweepLeavesAHookAloneThatTheRulesLeaveOut(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{
		"our clock is right": 0, "it is 2 minutes ahead of AWS's": 2 * time.Minute, "it is 2 minutes behind": -2 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				s.sweeps = true
				s.lead()
				s.after(5 * time.Minute) // the sweeps know that it did not wait
				s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
				for _, hook := range []string{"drain", "logs"} {
					s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: hook, Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
				}
				actions, err := s.aws.StartTransition(theID, awssim.Terminating)
				s.must(err)
				for _, a := range actions {
					if a.Hook == "drain" {
						s.send(s.body("asg-terminate-lifecycle", theID, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", a.Token,
							"2026-11-20T10:15:30Z", rfc(time.Now().Add(-ahead))))
					}
				}
				s.after(10 * time.Minute)
				for _, a := range s.aws.LifecycleActions() {
					if a.Hook == "drain" && a.Outcome != awssim.Completed || a.Hook == "logs" && a.Outcome != awssim.Active {
						t.Errorf("hook %s is %q", a.Hook, a.Outcome)
					}
				}
			})
		})
	}
}

// A message names an event as only EC2 does, and says that it is over.
func TestAMessageDoesNotEndWhatAPollFinds(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"the message", "the poll"} {
		t.Run(first, func(t *testing.T) {
			tell(t, func(s *story) {
				s.polls()
				s.lead()
				e := reboot(time.Now().Add(48 * time.Hour).Truncate(time.Second))
				if first == "the poll" {
					s.schedules(e)
				}
				s.after(5 * time.Minute)
				const arn = "arn:aws:health:us-east-1::event/EC2/AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED/AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED_90353408594353980"
				s.send(s.body("health-maintenance-completed", theID, arn, theEvent))
				s.after(time.Minute)
				s.schedules(e)
				s.after(2 * time.Hour)
				if !s.isCordoned(theNode) {
					t.Errorf("it takes pods, and EC2 lists the event; it carries %+v", s.intent())
				}
			})
		})
	}
}

// The tag check has the answer at hand. Without it EC2 is not asked about a spot warning, unless it has said so before.
func TestAForgedSpotWarningDrainsNoOtherInstance(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"managed", ""} {
		for _, kind := range []string{"spot-interruption", "rebalance-recommendation"} {
			tell(t, func(s *story) {
				s.edit = func(c *Config) { c.ManagedTag = tag }
				s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Tags: map[string]string{"managed": ""}}))
				s.lead()
				if tag == "" {
					s.send(s.body("state-change-stopped", theID)) // EC2 is asked, and says that it runs
					s.after(time.Minute)
				}
				s.send(s.body(kind, theID))
				s.after(time.Minute)
				if s.isCordoned(theNode) || s.left() > 0 {
					t.Errorf("%s, tag %q: cordoned %t, %d messages left", kind, tag, s.isCordoned(theNode), s.left())
				}
			})
		}
	}
}
