package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// change edits a node as people, kubelets and other controllers do.
func (s *story) change(name string, edit func(*corev1.Node)) {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	edit(n)
	version, err := strconv.Atoi(n.ResourceVersion)
	s.must(err)
	n.ResourceVersion = strconv.Itoa(version + 1)
	_, err = s.kube.CoreV1().Nodes().Update(s.Context(), n, metav1.UpdateOptions{})
	s.must(err)
}

func uncordon(n *corev1.Node) { n.Spec.Unschedulable = false }
func recordon(n *corev1.Node) { n.Spec.Unschedulable = true }
func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

// register makes a Node, or makes it anew.
func (s *story) register(name string, uid types.UID) {
	s.Helper()
	n := aNode(name, theID)
	n.UID = uid
	_, err := s.kube.CoreV1().Nodes().Create(s.Context(), n, metav1.CreateOptions{})
	s.must(err)
}

func (s *story) remove(name string) {
	s.Helper()
	s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), name, metav1.DeleteOptions{}))
}

func (s *story) isCordoned(name string) bool {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return n.Spec.Unschedulable
}

// restart is what a stop and a start make of the instance, as EC2 tells it.
func (s *story) restart() {
	s.Helper()
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: map[string]string{"managed": ""}}))
}

// launch begins a launch of the instance, held by a hook.
func (s *story) launch(timeout time.Duration) {
	s.Helper()
	s.must(s.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
	s.quietly(awssim.Launching, "join", timeout)
}

// quietly begins a transition of the instance, held by a hook, of which no message
// tells without a rule.
func (s *story) quietly(transition awssim.Transition, hook string, timeout time.Duration) awssim.LifecycleAction {
	s.Helper()
	s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{theID}}))
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: hook, Transition: transition, HeartbeatTimeout: timeout}))
	started, err := s.aws.StartTransition(theID, transition)
	s.must(err)
	return started[0]
}

// at is a time as an event tells it; a Health event has the other form.
func rfc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func gmt(t time.Time) string {
	return strings.Replace(t.UTC().Format(time.RFC1123), "UTC", "GMT", 1)
}

// ago is a body about an event of then.
func (s *story) ago(d time.Duration, name string) string {
	return s.body(name, theID, "2026-11-20T10:15:30Z", rfc(time.Now().Add(-d)))
}

// maintenance is the announcement of one that starts after d.
func (s *story) maintenance(d time.Duration, edits ...string) string {
	return s.body("health-reboot-scheduled", theID, append(edits, "Fri, 27 Nov 2026 06:00:00 GMT", gmt(time.Now().Add(d)))...)
}

// lastDrain is the latest of the drains.
func (s *story) lastDrain() drained {
	s.Helper()
	all := s.drain.all()
	if len(all) == 0 {
		s.Fatal("nothing was drained")
	}
	return all[len(all)-1]
}

// Whatever a node was drained for once, and whatever it is drained for next: the
// second drain is bound by the second notice alone.
func TestANewEpisodeIsBoundByItsOwnNoticeAlone(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(*story){
		"a spot warning":          func(s *story) { s.send(s.body("spot-interruption", theID)) },
		"a hibernation":           func(s *story) { s.send(s.body("spot-interruption", theID, `"terminate"`, `"hibernate"`)) },
		"a recommendation":        func(s *story) { s.send(s.body("rebalance-recommendation", theID)) },
		"a stop":                  func(s *story) { s.send(s.body("state-change-stopping", theID)) },
		"a maintenance in a week": func(s *story) { s.send(s.maintenance(7*24*time.Hour, "reboot", "another")) },
		"a termination hook":      func(s *story) { s.terminate(time.Hour) },
	}
	for first, begin := range kinds {
		for second, again := range kinds {
			t.Run(first+", and after it "+second, func(t *testing.T) {
				t.Parallel()
				tell(t, func(s *story) {
					s.lead()
					alone := func() drained {
						again(s)
						s.after(2 * time.Second)
						return s.lastDrain()
					}
					sent := time.Now()
					want := alone().terms
					want.Deadline = moved(want.Deadline, sent, 0) // relative to the notice
					s.after(time.Minute)
					s.change(theNode, func(n *corev1.Node) { n.Spec.Unschedulable, n.Annotations, n.Labels = false, nil, nil })
					s.restart()
					s.after(time.Second)

					begin(s)
					s.after(3 * time.Minute)
					s.change(theNode, uncordon)
					s.restart()
					s.after(2 * time.Hour)
					sent = time.Now()
					got := alone().terms
					if d := moved(got.Deadline, sent, 0); d.Sub(want.Deadline).Abs() > 2*time.Second || got.IgnoreBudgets != want.IgnoreBudgets {
						t.Errorf("deadline %s after the notice, budgets ignored %t; want %s and %t", d.Sub(time.Time{}), got.IgnoreBudgets, want.Deadline.Sub(time.Time{}), want.IgnoreBudgets)
					}
					if time.Since(got.CordonedAt) > time.Minute {
						t.Errorf("the drain counts its cordon from %s ago", time.Since(got.CordonedAt))
					}
				})
			})
		}
	}
}

// moved is a deadline relative to the moment of its notice; zero stays zero.
func moved(deadline, sent time.Time, by time.Duration) time.Time {
	if deadline.IsZero() {
		return deadline
	}
	return time.Time{}.Add(deadline.Sub(sent) + by)
}

func TestARepeatedMessageOfAnEarlierEpisodeBeginsNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		warning := s.body("spot-interruption", theID)
		s.send(warning)
		s.after(time.Minute)
		s.change(theNode, uncordon)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		before := len(s.drain.all())
		s.change(theNode, uncordon)
		s.after(time.Second)
		s.send(warning)
		s.after(30 * time.Second)
		if n := len(s.drain.all()); n != before || s.left() != 0 || s.isCordoned(theNode) {
			t.Errorf("%d drains more, %d messages left, cordoned %t", n-before, s.left(), s.isCordoned(theNode))
		}
	})
}

func TestADeadlineOfLongAgoForcesNothingOnResuming(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		stop := s.lead()
		s.send(s.body("spot-interruption", theID))
		s.terminate(3 * time.Minute)
		s.after(5 * time.Second)
		stop()
		s.after(5 * time.Hour)
		s.lead()
		s.after(time.Second)
		if d := s.lastDrain().terms.Deadline; !d.IsZero() {
			t.Errorf("the resumed drain forces what is there %s after its deadline", time.Since(d))
		}
	})
}

func TestWhatTheInstanceIsInNowIsBelievedMoreThanAMessage(t *testing.T) {
	t.Parallel()
	stopped := func(s *story) { s.send(s.ago(10*time.Minute, "state-change-stopped")) }
	forged := func(s *story) { s.send(s.body("state-change-stopped", theID)) }
	for name, send := range map[string]func(*story){"late": stopped, "forged": forged} {
		t.Run("a stop that is "+name+" ends no drain, completes no hook, taints nothing", func(t *testing.T) {
			tell(t, func(s *story) {
				s.edit = func(c *Config) { c.OutOfServiceTaint = true }
				s.drain.takes = 30 * time.Minute
				s.lead()
				s.terminate(time.Hour)
				s.after(5 * time.Second)
				send(s)
				s.after(2 * time.Minute)
				s.wantHook(awssim.Active)
				if taints := s.node().Spec.Taints; len(taints) > 0 || s.left() != 1 {
					t.Errorf("taints %v, %d messages left; want none, and the hook's", taints, s.left())
				}
			})
		})
	}
	t.Run("a forged stop ends no drain of a Node without a provider id", func(t *testing.T) {
		tell(t, func(s *story) {
			s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
			s.drain.takes = 30 * time.Minute
			s.lead()
			s.terminate(time.Hour)
			s.after(5 * time.Second)
			forged(s)
			s.after(2 * time.Minute)
			s.wantHook(awssim.Active)
		})
	})
	t.Run("a stop that EC2 tells a moment later than the message", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = -1
			s.lead()
			s.terminate(time.Hour)
			s.after(5 * time.Second)
			forged(s)
			s.after(2 * time.Second)
			s.wantHook(awssim.Active)
			s.end(theID)
			s.after(10 * time.Second)
			s.wantHook(awssim.Completed)
		})
	})
	for _, event := range []string{"spot-interruption", "rebalance-recommendation", "state-change-stopping"} {
		t.Run(event+" of before the instance was started last", func(t *testing.T) {
			tell(t, func(s *story) {
				s.lead()
				late := s.body(event, theID)
				s.after(10 * time.Minute)
				s.restart()
				s.after(10 * time.Second)
				s.send(late)
				s.after(10 * time.Second)
				if n := len(s.drain.all()); n > 0 || s.left() != 0 {
					t.Errorf("%d drains, %d messages left", n, s.left())
				}
			})
		})
	}
	t.Run("a stop of five minutes ago, where EC2 says that the instance runs", func(t *testing.T) {
		tell(t, func(s *story) {
			s.after(time.Hour)
			s.lead()
			s.send(s.ago(5*time.Minute, "state-change-stopping"))
			s.after(10 * time.Second)
			if n := len(s.drain.all()); n > 0 || s.left() != 0 {
				t.Errorf("%d drains, %d messages left", n, s.left())
			}
		})
	})
	t.Run("a late warning is acted on where EC2 does not answer", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.ManagedTag = "" }
			s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
			s.after(time.Hour)
			s.lead()
			s.send(s.ago(70*time.Second, "spot-interruption"))
			s.after(20 * time.Second)
			if !s.isCordoned(theNode) {
				t.Error("the node is not cordoned")
			}
		})
	})
}

func TestTheOutOfServiceTaintGoesWhenEC2SaysThatTheInstanceRuns(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.OutOfServiceTaint = true }
		s.lead()
		s.must(s.aws.SetInstanceState(theID, "stopped"))
		s.send(s.body("state-change-stopped", theID))
		s.after(10 * time.Second)
		if taints := s.node().Spec.Taints; len(taints) != 1 || taints[0].Value != "node-termination-handler" {
			t.Fatalf("taints %v, want ours", taints)
		}
		s.after(10 * time.Minute) // its Node still says that it is ready, and was so before
		if len(s.node().Spec.Taints) != 1 {
			t.Fatal("taken back while the instance is stopped")
		}
		s.restart()
		s.after(20 * time.Second)
		if taints := s.node().Spec.Taints; len(taints) != 0 {
			t.Errorf("taints %v", taints)
		}
	})
}

func TestTheOutOfServiceTaintGoesThoughTheOptionIsOffByNow(t *testing.T) {
	t.Parallel()
	for _, dryRun := range []bool{false, true} {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.OutOfServiceTaint = true }
			stop := s.lead()
			s.must(s.aws.SetInstanceState(theID, "stopped"))
			s.send(s.body("state-change-stopped", theID))
			s.after(10 * time.Second)
			stop()
			s.edit = func(c *Config) { c.DryRun = dryRun }
			s.lead()
			s.restart()
			s.after(time.Minute)
			if taints := s.node().Spec.Taints; len(taints) != 0 != dryRun {
				t.Errorf("dry-run %t: taints %v", dryRun, taints)
			}
		})
	}
}

// EC2 is not asked which instance such a Node is: it comes back as its kubelet says, whatever its clock says.
func TestTheOutOfServiceTaintGoesFromANodeWithoutAProviderID(t *testing.T) {
	t.Parallel()
	for clock, ahead := range map[string]time.Duration{"right": 0, "an hour ahead": time.Hour, "an hour behind": -time.Hour} {
		turnsReady := func(bootID string) func(*corev1.Node) {
			return func(n *corev1.Node) {
				boots(bootID)(n)
				n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(ahead))
			}
		}
		for name, change := range map[string]func(s *story, stop func()){
			"":                func(*story, func()) {},
			"another leader ": func(s *story, stop func()) { stop(); s.lead() },
		} {
			t.Run(name+"finds it ready, its clock is "+clock, func(t *testing.T) {
				t.Parallel()
				tell(t, func(s *story) {
					s.edit = func(c *Config) { c.OutOfServiceTaint = true }
					s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
					s.change(theNode, turnsReady("first"))
					s.must(s.aws.PutInstance(awssim.Instance{ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
					stop := s.lead()
					s.after(10 * time.Minute)
					s.must(s.aws.SetInstanceState(theID, "stopped"))
					s.send(s.body("state-change-stopped", theID))
					s.after(10 * time.Second)
					change(s, stop)
					s.after(20 * time.Second)
					if len(s.node().Spec.Taints) != 1 {
						t.Fatalf("taints %v, want ours: its kubelet is silent, and its Node still says that it is ready", s.node().Spec.Taints)
					}
					s.change(theNode, notReady)
					s.after(10 * time.Minute)
					if len(s.node().Spec.Taints) != 1 {
						t.Fatalf("taints %v, want ours", s.node().Spec.Taints)
					}
					s.change(theNode, turnsReady("second"))
					s.after(20 * time.Second)
					if taints := s.node().Spec.Taints; len(taints) != 0 {
						t.Errorf("taints %v", taints)
					}
				})
			})
		}
	}
}

func TestAllNodesOfAnInstanceAreDrainedAndTheHookComesAfterAll(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.drain.byNode = map[string]time.Duration{theNode: 20 * time.Minute} // its kubelet is gone
		s.change(theNode, notReady)
		s.register("new-name", "another")
		s.lead()
		s.terminate(time.Hour)
		s.after(2 * time.Minute)
		if !s.isCordoned(theNode) || !s.isCordoned("new-name") {
			t.Errorf("cordoned %t and %t", s.isCordoned(theNode), s.isCordoned("new-name"))
		}
		s.wantHook(awssim.Active)
		s.after(19 * time.Minute)
		s.wantHook(awssim.Completed)
		if s.left() != 0 || s.calls("CompleteLifecycleAction") != 1 {
			t.Errorf("%d messages left, %d completions", s.left(), s.calls("CompleteLifecycleAction"))
		}
	})
}

func TestANodeThatComesBesideAnotherOneOfItsInstanceGetsTheNotice(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(20 * time.Second)
		s.register("new-name", "another")
		s.after(2 * time.Second)
		if !s.isCordoned("new-name") {
			t.Error("the second Node is not cordoned")
		}
		if d := s.lastDrain(); d.node != "new-name" || time.Until(d.terms.Deadline) > 100*time.Second {
			t.Errorf("the last drain is %+v", d)
		}
	})
}

func TestTheNextNodeOfAMachineGetsTheNotice(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]time.Duration{"at once": 0, "after a while": 30 * time.Second} {
		t.Run("registered again "+name+" in the middle of the drain", func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 50 * time.Second
				s.lead()
				s.terminate(time.Hour)
				s.send(s.body("spot-interruption", theID))
				s.after(10 * time.Second)
				s.remove(theNode)
				s.after(between)
				s.register(theNode, "again")
				s.after(20 * time.Second)
				if !s.isCordoned(theNode) || s.left() != 2 {
					t.Errorf("cordoned %t, %d messages left, want both", s.isCordoned(theNode), s.left())
				}
				s.wantHook(awssim.Active)
				s.after(40 * time.Second)
				s.wantHook(awssim.Completed)
				if s.left() != 0 || s.calls("CompleteLifecycleAction") != 1 {
					t.Errorf("%d messages left, %d completions", s.left(), s.calls("CompleteLifecycleAction"))
				}
			})
		})
	}
	t.Run("registered again after the drain, before the deadline", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = 10 * time.Second
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(20 * time.Second)
			s.remove(theNode)
			s.after(5 * time.Second)
			s.register(theNode, "again")
			s.after(5 * time.Second)
			if !s.isCordoned(theNode) {
				t.Error("the machine goes, and its new Node takes pods")
			}
		})
	})
	t.Run("after one that went before it could be told", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = 10 * time.Second
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(20 * time.Second)
			s.remove(theNode)
			s.register(theNode, "of a moment")
			s.remove(theNode)
			s.register(theNode, "again")
			s.after(5 * time.Second)
			if !s.isCordoned(theNode) {
				t.Error("the machine goes, and its third Node takes pods")
			}
		})
	})
	t.Run("not where the instance was started since", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = 10 * time.Second
			s.lead()
			s.send(s.maintenance(7 * 24 * time.Hour))
			s.after(20 * time.Second)
			s.remove(theNode)
			s.after(time.Minute)
			s.restart()
			s.register(theNode, "again")
			s.after(time.Minute)
			if s.isCordoned(theNode) {
				t.Error("the instance was moved to other hardware, and its Node is cordoned")
			}
		})
	})
	t.Run("a warning that comes between the two", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.remove(theNode)
			s.after(10 * time.Minute)
			s.send(s.body("spot-interruption", theID))
			s.after(5 * time.Second)
			s.register(theNode, "again")
			s.after(2 * time.Second)
			if !s.isCordoned(theNode) {
				t.Error("the warning is lost")
			}
		})
	})
	t.Run("a hook waits for it no longer than for a node that never joined", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = -1
			s.lead()
			s.terminate(time.Hour)
			s.after(10 * time.Second)
			s.remove(theNode)
			s.after(time.Minute)
			s.wantHook(awssim.Active)
			s.after(time.Minute + 20*time.Second)
			s.wantHook(awssim.Completed)
		})
	})
}

func TestANodeBesideOneThatGetsItsProviderIDLaterGetsTheNotice(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = 5 * time.Second
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.register("node-b", "another")
		s.after(10 * time.Second)
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-east-1a/" + theID })
		s.after(5 * time.Second)
		if !s.isCordoned("node-b") {
			t.Error("the other Node of a machine that goes takes pods")
		}
	})
}

// The Node with the hook and the one that comes after it both wait for a drain of
// another to end, and are then empty in the same moment.
func TestNodesOfAnInstanceDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.Workers = 1 }
		s.drain.byNode = map[string]time.Duration{theNode: 2 * time.Minute, "node-b": 0}
		s.change(theNode, notReady)
		s.register("node-b", "before")
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Second)
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		s.remove("node-b")
		s.register("node-b", "again")
		s.after(time.Minute)
		s.wantHook(awssim.Active)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The Event of an ignored notice says how to add the tag, and that helps.
func TestATagThatIsAddedCountsTheNextTimeTheMessageIsReceived(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		instance := awssim.Instance{Lifecycle: "spot", ID: theID, LaunchTime: s.began.Add(-time.Hour)}
		s.must(s.aws.PutInstance(instance))
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(3 * time.Second)
		if !asBefore(s.node()) {
			t.Fatal("the notice is not ignored")
		}
		instance.Tags = map[string]string{"managed": ""}
		s.must(s.aws.PutInstance(instance))
		s.after(35 * time.Second)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains, want 1", n)
		}
	})
}

// An instance that stops can be started at once, and then its new pods must not be forced.
func TestTheNextLeaderDrainsNoMachineThatWasStartedAgainMeanwhile(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]func(now time.Time) intent.Entry{
		"a stop": func(now time.Time) intent.Entry { return intent.Entry{Kind: notice.StateChange, Time: now} },
		"a hibernation": func(now time.Time) intent.Entry {
			return intent.Entry{Kind: notice.SpotInterruption, Time: now, Deadline: now}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				s.forge(intent.Intent{
					Version: intent.Version, Queue: s.aws.QueueURL(queueName), CordonedAt: time.Now(), Cordoned: true,
					Entries: []intent.Entry{told(time.Now())},
				})
				s.change(theNode, func(n *corev1.Node) { n.Spec.Unschedulable = true })
				s.after(10 * time.Second)
				s.restart()
				s.after(3 * time.Second)
				s.lead()
				s.after(time.Minute)
				if n := len(s.drain.all()); n != 0 {
					t.Errorf("%d drains, want none", n)
				}
				s.wantUntouched()
			})
		})
	}
}

// The hook of a Node that is deleted is not held until a worker is free.
func TestADeletedNodeWaitsForNoWorker(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const other, otherID = "node-b", "i-0000000000000000b"
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: otherID, Tags: map[string]string{"managed": ""}}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(other, otherID), metav1.CreateOptions{})
		s.must(err)
		s.edit = func(c *Config) { c.Workers = 1 }
		s.drain.byNode = map[string]time.Duration{other: time.Hour}
		s.lead()
		s.send(s.body("rebalance-recommendation", otherID))
		s.after(time.Second)
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		if n := len(s.drain.all()); n != 1 {
			t.Fatalf("%d drains with one worker", n)
		}
		s.remove(theNode)
		s.after(2*time.Minute + 10*time.Second) // the grace period of a node is how long the next one is waited for
		s.wantHook(awssim.Completed)
	})
}

// Nobody knows how long the hook of others holds the machine.
func TestATerminationOfUnknownTimeWaitsForNoWorker(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const other, otherID = "node-b", "i-0000000000000000b"
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: otherID, Tags: map[string]string{"managed": ""}}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(other, otherID), metav1.CreateOptions{})
		s.must(err)
		s.edit = func(c *Config) { c.Workers, c.HookNames = 1, []string{"ours"} }
		s.drain.byNode = map[string]time.Duration{other: time.Hour}
		s.lead()
		s.send(s.body("rebalance-recommendation", otherID))
		s.after(time.Second)
		s.terminate(time.Hour)
		s.after(10 * time.Second)
		if n := len(s.drain.all()); n != 2 {
			t.Errorf("%d drains, want that of the termination too", n)
		}
	})
}

// What is deleted has no pods that its machine's hook could wait for.
func TestAHookThatComesAfterItsNodeWasDeletedIsCompletedInTime(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		s.remove(theNode)
		s.after(10 * time.Second)
		s.terminate(5 * time.Minute)
		s.after(2*time.Minute + 30*time.Second) // the grace period of a node is how long the next one is waited for
		s.wantHook(awssim.Completed)
	})
}

// A budget has its share of the time that is left when a worker is free.
func TestTheTimeForAWorkerIsNoPartOfTheNotice(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const other, otherID = "node-b", "i-0000000000000000b"
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: otherID, Tags: map[string]string{"managed": ""}}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(other, otherID), metav1.CreateOptions{})
		s.must(err)
		s.edit = func(c *Config) { c.Workers = 1 }
		s.drain.byNode = map[string]time.Duration{other: time.Hour, theNode: time.Minute}
		s.lead()
		s.send(s.body("rebalance-recommendation", otherID))
		s.after(time.Second)
		s.terminate(10 * time.Minute)
		begin := time.Now()
		s.after(2*time.Minute + 20*time.Second) // the other one loses its worker after the grace period of a node
		all := s.drain.all()
		if len(all) != 2 || all[1].terms.NoticedAt.Sub(begin) < 100*time.Second {
			t.Errorf("%+v, want the second drain with a notice of then", all)
		}
	})
}

// A hook is noted on one of several Nodes. That one goes, and then the process that
// remembers it; the others had the notice without the hook, and have finished.
func TestAHookThatNoNodeCarriesAnyMoreIsCompletedByItsMessage(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.byNode = map[string]time.Duration{theNode: 2 * time.Minute, "node-b": time.Hour}
		s.change(theNode, notReady)
		s.register("node-b", "another")
		stop := s.lead()
		s.terminate(time.Hour)
		s.after(20 * time.Second)
		s.remove("node-b")
		stop()
		s.drain.byNode = map[string]time.Duration{theNode: 0}
		s.lead()
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}

// The Node is deleted in the middle of its drain, and SQS delivers the message again: it is held for a
// Node for a shorter time than the drain waits for the next one.
func TestARepeatedMessageCompletesNoHookThatADrainHas(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(*story) (later time.Duration){
		"told by a message": func(s *story) time.Duration {
			s.terminate(time.Hour)
			return 0
		},
		"found by a sweep, which does not know its token": func(s *story) time.Duration {
			s.sweeps = true
			s.quietly(awssim.Terminating, "drain", time.Hour)
			return 90 * time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 5 * time.Minute
				begins := begin(s)
				s.lead()
				again := s.body("asg-terminate-lifecycle", theID, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", s.aws.LifecycleActions()[0].Token)
				s.after(100*time.Second + begins)
				s.remove(theNode)
				s.send(again)
				s.after(time.Minute)
				s.wantHook(awssim.Active)
				s.register(theNode, "again")
				s.after(time.Minute)
				if s.wantHook(awssim.Active); !s.isCordoned(theNode) {
					t.Error("the next Node is not cordoned")
				}
				s.after(5 * time.Minute)
				s.wantHook(awssim.Completed)
				if s.calls("CompleteLifecycleAction") != 1 || s.left() != 0 {
					t.Errorf("%d completions, %d messages left", s.calls("CompleteLifecycleAction"), s.left())
				}
			})
		})
	}
}

func TestANodeThatGetsItsProviderIDInTheMiddleIsDrainedOnce(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Minute
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
		s.lead()
		s.terminate(time.Hour)
		s.after(2 * time.Second)
		s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-east-1a/" + theID })
		s.after(time.Second)
		s.send(s.body("rebalance-recommendation", theID))
		s.after(2 * time.Minute)
		if s.drain.most > 1 || s.calls("CompleteLifecycleAction") != 1 {
			t.Errorf("%d drains at once, %d completions", s.drain.most, s.calls("CompleteLifecycleAction"))
		}
		s.wantHook(awssim.Completed)
	})
}

// A kubelet may write annotations. Where the Node does not say which instance it
// is, EC2 does.
func TestHooksOfANodeWithoutAProviderIDAreResumedWhereEC2SaysThatTheyAreItsOwn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dns  string
		want awssim.Outcome
	}{
		"its own":       {theNode, awssim.Completed},
		"another one's": {"node-b", awssim.Active},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = "" })
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: test.dns, Tags: map[string]string{"managed": ""}}))
				s.quietly(awssim.Terminating, "drain", time.Hour) // nobody but the node tells of it
				s.change(theNode, func(n *corev1.Node) {
					n.Labels = map[string]string{cluster.StateLabel: cluster.StateDraining}
					n.Annotations = map[string]string{cluster.IntentAnnotation: fmt.Sprintf(
						`{"v":1,"queue":%q,"notices":[{"kind":"ASGTerminate","time":%q}],"hooks":[{"group":"workers","name":"drain","instance":%q,"started":%[2]q}],"cordonedAt":%[2]q}`,
						s.aws.QueueURL(queueName), rfc(time.Now()), theID)}
				})
				s.lead()
				s.after(time.Minute)
				s.wantHook(test.want)
			})
		})
	}
}

func TestANodeThatEC2HasToIdentifyKeepsNoOtherFromBeingResumed(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.ManagedTag = "" }
		s.register("node-b", "another")
		carry := func(n *corev1.Node) {
			n.Labels = map[string]string{cluster.StateLabel: cluster.StateDraining}
			n.Annotations = map[string]string{cluster.IntentAnnotation: fmt.Sprintf(
				`{"v":1,"queue":%q,"notices":[{"kind":"ASGTerminate","time":%q}],"hooks":[{"group":"workers","name":"drain","instance":%q}],"cordonedAt":%[2]q}`,
				s.aws.QueueURL(queueName), rfc(time.Now()), theID)}
			n.Spec.Unschedulable = true
		}
		s.change(theNode, func(n *corev1.Node) {
			carry(n)
			n.Spec.ProviderID = ""
		})
		s.change("node-b", carry)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		time.AfterFunc(time.Minute, func() { s.aws.RemoveFault("ec2") })
		s.lead()
		s.after(time.Second)
		if all := s.drain.all(); time.Since(s.began) > 10*time.Second || len(all) != 1 || all[0].node != "node-b" {
			t.Errorf("after %s: drains %+v, want that of node-b", time.Since(s.began), all)
		}
		s.after(2 * time.Minute)
		if n := len(s.drain.all()); n != 2 {
			t.Errorf("%d drains, want the other too once EC2 answers", n)
		}
	})
}

func TestALaunchHook(t *testing.T) {
	t.Parallel()
	t.Run("is not held open by heartbeats, nor beyond its timeout", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.interval = time.Minute
			s.lead()
			s.launch(30 * time.Minute)
			s.after(31 * time.Minute)
			if a := s.wantHook(awssim.TimedOut); a.Heartbeats > 0 || s.left() != 0 {
				t.Errorf("%d heartbeats, %d messages left", a.Heartbeats, s.left())
			}
		})
	})
	t.Run("waits for the Node where an earlier one was deleted lately", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.remove(theNode)
			s.after(10 * time.Minute)
			s.launch(time.Hour)
			s.after(time.Minute)
			s.wantHook(awssim.Active)
			s.register(theNode, "again")
			s.after(2 * time.Second)
			s.wantHook(awssim.Completed)
		})
	})
	t.Run("waits on where EC2 cannot be asked any more", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.edit = func(c *Config) { c.ManagedTag = "" }
			s.lead()
			s.launch(time.Hour)
			s.after(5 * time.Second)
			s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
			s.after(20 * time.Minute)
			s.wantHook(awssim.Active)
			s.register(theNode, "again")
			s.after(2 * time.Second)
			s.wantHook(awssim.Completed)
		})
	})
	t.Run("takes the cordon of an earlier life back", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.terminate(time.Hour)
			s.after(5 * time.Minute)
			s.restart()
			s.change(theNode, notReady)
			s.after(time.Second) // until the watch has shown it
			s.launch(time.Hour)
			s.after(time.Minute)
			if !s.isCordoned(theNode) {
				t.Error("uncordoned before it is ready")
			}
			s.change(theNode, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
			s.after(2 * time.Second)
			if n := s.node(); !asBefore(n) {
				t.Errorf("the node is in service and is %+v, %v", n.Spec, n.Labels)
			}
			if a := s.aws.LifecycleActions(); len(a) != 2 || a[1].Outcome != awssim.Completed {
				t.Errorf("lifecycle actions %+v", a)
			}
		})
	})
	t.Run("but none that came since, whatever somebody says", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = 20 * time.Second
			s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(10 * time.Second)
			s.send(s.body("asg-launch-lifecycle", theID)) // forged: no group waits
			s.after(30 * time.Second)
			if !s.isCordoned(theNode) || !s.intent().Finished() {
				t.Errorf("cordoned %t, intent %+v", s.isCordoned(theNode), s.intent())
			}
		})
	})
	t.Run("is nobody's of ours where EC2 shows its instance later, without the tag", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.DeleteForeign = true }
			s.remove(theNode)
			s.lead()
			action := s.quietly(awssim.Launching, "join", 10*time.Minute)
			s.aws.RemoveInstance(theID)
			s.send(s.body("asg-launch-lifecycle", theID, `"AutoScalingGroup"`, `"WarmPool"`, `"ready"`, `"join"`, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
			s.after(20 * time.Second)
			if s.left() != 1 {
				t.Fatalf("%d messages left while EC2 does not show the instance, want 1", s.left())
			}
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID}))
			s.after(2 * time.Minute)
			if s.left() != 0 {
				t.Errorf("%d messages left once it does, want none", s.left())
			}
		})
	})
	t.Run("is ours where EC2 shows the tag of its instance later", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.DeleteForeign, c.ClusterName = true, "ours" }
			s.remove(theNode)
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID}))
			s.lead()
			s.launch(10 * time.Minute)
			s.after(50 * time.Second)
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Tags: map[string]string{"managed": "", "kubernetes.io/cluster/ours": "owned"}}))
			s.after(30 * time.Second)
			s.wantHook(awssim.Active)
			s.register("new", "uid of new")
			s.after(30 * time.Second)
			s.wantHook(awssim.Completed)
		})
	})
	t.Run("is ours where EC2 shows the tag later than the Node is there", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.DeleteForeign = true }
			s.remove(theNode)
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID}))
			s.lead()
			s.launch(10 * time.Minute)
			s.after(15 * time.Second)
			s.register("new", "uid of new")
			s.after(15 * time.Second)
			s.wantHook(awssim.Active)
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID, Tags: map[string]string{"managed": ""}}))
			s.after(time.Minute)
			s.wantHook(awssim.Completed)
		})
	})
	t.Run("into a warm pool is left where EC2 shows no tags at its deadline", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.lead()
			action := s.quietly(awssim.Launching, "join", 30*time.Second)
			s.send(s.body("asg-launch-lifecycle", theID, `"AutoScalingGroup"`, `"WarmPool"`, `"ready"`, `"join"`, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
			s.after(5 * time.Second)
			s.must(s.aws.PutInstance(awssim.Instance{ID: theID}))
			s.after(23 * time.Second)
			s.wantHook(awssim.Active)
			if s.left() != 1 {
				t.Errorf("%d messages left, want 1", s.left())
			}
		})
	})
	t.Run("waits for its node where EC2 shows the instance as it was in its warm pool", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.must(s.aws.SetInstanceState(theID, "stopped"))
			s.lead()
			action := s.quietly(awssim.Launching, "join", 10*time.Minute)
			s.send(s.body("asg-launch-from-warm-pool", theID, `"ready"`, `"join"`, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
			s.after(5 * time.Second)
			s.wantHook(awssim.Active)
			s.must(s.aws.SetInstanceState(theID, "running"))
			s.after(5 * time.Minute)
			s.wantHook(awssim.Active)
			s.register("new", "uid of new")
			s.after(30 * time.Second)
			s.wantHook(awssim.Completed)
		})
	})
	t.Run("is not held for ever where its message is of the future", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) { c.DeleteForeign = true }
			s.lead()
			s.send(s.body("asg-launch-lifecycle", "i-0fedcba9876543210", "2026-11-20T10:15:30Z", "9998-01-01T00:00:00Z"))
			s.after(20 * time.Minute)
			if s.left() != 0 {
				t.Errorf("%d messages left", s.left())
			}
		})
	})
	t.Run("is not held beyond its timeout where the message has no time", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.lead()
			action := s.quietly(awssim.Launching, "join", 10*time.Minute)
			s.send(s.body("asg-launch-lifecycle", theID, `"time": "2026-11-20T10:15:30Z",`, "", `"ready"`, `"join"`, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
			s.after(11 * time.Minute)
			if s.left() != 0 {
				t.Errorf("%d messages left", s.left())
			}
		})
	})
	t.Run("into a warm pool is completed at its deadline, though no Node came", func(t *testing.T) {
		tell(t, func(s *story) {
			s.remove(theNode)
			s.lead()
			action := s.quietly(awssim.Launching, "join", 10*time.Minute)
			s.send(s.body("asg-launch-lifecycle", theID, `"AutoScalingGroup"`, `"WarmPool"`, `"ready"`, `"join"`, "f2a5c0a1-6d3f-4b6a-9b62-000000000001", action.Token))
			s.after(11 * time.Minute)
			s.wantHook(awssim.Completed)
		})
	})
}

// EC2 has said of an earlier notice that there is no such instance.
func TestANoticeIsNotJudgedByAnAnswerThatIsOlder(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.DeleteForeign, c.HookNames = true, []string{"ours"} }
		s.remove(theNode)
		s.aws.RemoveInstance(theID)
		s.lead()
		s.send(s.body("asg-launch-lifecycle", theID))
		s.after(5 * time.Second)
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Tags: map[string]string{"managed": ""}}))
		s.after(2 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Second)
		s.register("new", "uid of new")
		s.after(5 * time.Second)
		if !s.isCordoned("new") {
			t.Error("the node is not cordoned")
		}
	})
}

// strictly is Auto Scaling that checks what a request looks like.
func strictly(c *autoscaling.Client) asg.API {
	api := asg.Of(c)
	api.CompleteLifecycleAction = func(ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, o ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
		if *in.LifecycleHookName == "forged" {
			return nil, &smithy.GenericAPIError{Code: "ValidationError", Message: "1 validation error detected"}
		}
		return c.CompleteLifecycleAction(ctx, in, o...)
	}
	return api
}

func TestEachHookHasItsOwnFate(t *testing.T) {
	t.Parallel()
	forged := func(s *story, name string) string {
		return s.body("asg-terminate-lifecycle", theID, `"drain"`, strconv.Quote(name))
	}
	t.Run("one that is refused for good is done with, and the others go on", func(t *testing.T) {
		tell(t, func(s *story) {
			s.edit = func(c *Config) {
				metrics := c.Hooks.(*asg.Hooks).Metrics
				c.Hooks = &asg.Hooks{Client: strictly(autoscaling.NewFromConfig(s.aws.Config())), Log: c.Log, Metrics: metrics}
			}
			s.lead()
			s.send(forged(s, "forged"))
			s.after(time.Second)
			s.terminate(time.Hour)
			s.after(2 * time.Minute)
			s.wantHook(awssim.Completed)
			if n := len(s.drain.all()); n != 1 || s.left() != 0 {
				t.Errorf("%d drains, %d messages left", n, s.left())
			}
		})
	})
	t.Run("a flood of forged ones does not keep the real one from being completed", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			for k := range 30 {
				s.send(forged(s, fmt.Sprintf("forged-%d", k)))
			}
			s.after(time.Second)
			s.terminate(time.Hour)
			s.after(3 * time.Minute)
			s.wantHook(awssim.Completed)
			if s.left() != 0 {
				t.Errorf("%d messages left", s.left())
			}
		})
	})
	t.Run("one that may not be completed is not tried beyond its global limit", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.must(s.aws.SetFault(awssim.Fault{ID: "asg", Service: "autoscaling", Action: "CompleteLifecycleAction", Status: 403, Code: "AccessDenied"}))
			s.terminate(5 * time.Minute)
			s.after(9 * time.Hour) // a hundred times its timeout
			works := len(s.c.Registry.Status(s.ctx))
			if works > 0 || s.left() > 0 || !s.intent().Finished() {
				t.Errorf("%d works, %d messages left, intent %+v", works, s.left(), s.intent())
			}
		})
	})
	for name, down := range map[string]bool{
		"a deadline that was assumed gives way to the real one":              false,
		"it does so while the API server does not answer that it is written": true,
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.assumesADeadline(down)
			})
		})
	}
}

// assumesADeadline has the limits of a hook be unreadable at first.
func (s *story) assumesADeadline(down bool) {
	s.Helper()
	s.drain.takes = -1
	s.must(s.aws.SetFault(awssim.Fault{ID: "asg", Service: "autoscaling", Action: "DescribeLifecycleHooks", Status: 400, Code: "Throttling"}))
	s.lead()
	s.terminate(time.Hour)
	s.after(15 * time.Second)
	if left := time.Until(s.lastDrain().terms.Deadline); left > 2*time.Minute {
		s.Fatalf("%s left, want a guess", left)
	}
	if down {
		noAnswer := clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no answer")
		})
		s.beforePatch.Store(&noAnswer)
	}
	s.aws.RemoveFault("asg")
	s.after(time.Minute)
	if left := time.Until(s.lastDrain().terms.Deadline); left < 58*time.Minute {
		s.Errorf("%s left of a hook of an hour", left)
	}
	s.beforePatch.Store(nil)
	s.after(time.Minute)
	if i := s.intent(); i.Hooks[0].Assumed || time.Until(i.Hooks[0].Deadline) < 57*time.Minute {
		s.Errorf("the node carries %+v", i.Hooks)
	}
}

func TestAPersonWhoUncordonsInTheMiddle(t *testing.T) {
	t.Parallel()
	goes := map[string]func(*story){
		"a spot warning":     func(s *story) { s.send(s.body("spot-interruption", theID)) },
		"a stop":             func(s *story) { s.send(s.body("state-change-stopping", theID)) },
		"a termination hook": func(s *story) { s.terminate(time.Hour) },
		"a maintenance now":  func(s *story) { s.send(s.maintenance(time.Minute)) },
	}
	for name, send := range goes {
		t.Run("of a drain for "+name+" is fought once", func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = 40 * time.Second
				s.lead()
				send(s)
				s.after(10 * time.Second)
				s.change(theNode, uncordon)
				s.after(time.Second)
				if i := s.intent(); !s.isCordoned(theNode) || i.Uncordoned != 1 || time.Since(i.CordonedAt) > 2*time.Second {
					t.Fatalf("cordoned %t, intent %+v", s.isCordoned(theNode), i)
				}
				s.change(theNode, uncordon)
				s.after(10 * time.Second)
				s.send(s.body("rebalance-recommendation", theID)) // joins, and writes the node
				s.after(30 * time.Second)
				if s.isCordoned(theNode) || !s.intent().Finished() || len(s.drain.all()) != 1 {
					t.Errorf("cordoned %t, %d drains, intent %+v", s.isCordoned(theNode), len(s.drain.all()), s.intent())
				}
			})
		})
	}
	waits := map[string]func(*story) string{
		"a recommendation":        func(s *story) string { return s.body("rebalance-recommendation", theID) },
		"a maintenance in a week": func(s *story) string { return s.maintenance(7 * 24 * time.Hour) },
	}
	for name, body := range waits {
		t.Run("of a drain for "+name+" calls it off", func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = time.Hour
				s.lead()
				message := body(s)
				s.send(message)
				s.after(10 * time.Second)
				s.change(theNode, uncordon)
				s.after(2 * time.Second)
				s.wantUntouched()
				s.send(message) // again
				s.after(10 * time.Second)
				s.wantUntouched()
				s.drain.takes = time.Second
				s.after(time.Hour)
				s.send(s.ago(0, "rebalance-recommendation"))
				s.after(30 * time.Second)
				if !s.isCordoned(theNode) {
					t.Error("a newer notice does not begin anew")
				}
			})
		})
	}
	t.Run("while nobody leads", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = time.Minute
			stop := s.lead()
			s.send(s.body("spot-interruption", theID))
			s.after(10 * time.Second)
			stop()
			s.change(theNode, uncordon)
			s.after(10 * time.Second)
			s.lead()
			s.after(time.Second)
			if !s.isCordoned(theNode) {
				t.Error("the machine goes, and its node is schedulable")
			}
		})
	})
}

func TestACordonThatComesAfterSomebodyUncordonedIsNotOurs(t *testing.T) {
	t.Parallel()
	for name, absent := range map[string]bool{"while somebody leads": false, "noticed by the next leader": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				stop := s.lead()
				s.send(s.maintenance(7 * 24 * time.Hour))
				s.after(time.Minute)
				if absent {
					stop()
				}
				s.change(theNode, uncordon)
				s.after(time.Second)
				if absent {
					s.lead()
					s.after(time.Second)
				}
				s.change(theNode, recordon) // for a broken disk
				s.after(time.Hour)
				s.send(s.body("health-maintenance-completed", theID))
				s.after(5 * time.Second)
				if !s.isCordoned(theNode) || s.left() != 0 {
					t.Errorf("cordoned %t, %d messages left", s.isCordoned(theNode), s.left())
				}
			})
		})
	}
}

func TestAScheduledChange(t *testing.T) {
	t.Parallel()
	t.Run("that is put off gets the later deadline, and an older event none", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = -1
			s.lead()
			first := s.maintenance(24 * time.Hour)
			s.send(first)
			s.after(time.Hour)
			s.send(s.maintenance(14 * 24 * time.Hour))
			s.after(5 * time.Second)
			later := s.lastDrain().terms.Deadline
			if time.Until(later) < 13*24*time.Hour {
				t.Errorf("pods are forced in %s", time.Until(later))
			}
			s.send(first)
			s.after(5 * time.Second)
			if d := s.lastDrain().terms.Deadline; !d.Equal(later) {
				t.Errorf("an event that was overtaken moves the deadline to %s", d)
			}
		})
	})
	t.Run("that is over stays so for the next leader", func(t *testing.T) {
		tell(t, func(s *story) {
			stop := s.lead()
			open := s.body("health-retirement-two-instances", theID) // the other one is foreign: the messages stay
			s.send(open)
			s.after(time.Minute)
			s.send(s.body("health-retirement-two-instances", theID, "upcoming", "closed"))
			s.after(time.Minute)
			before := len(s.drain.all())
			for range 5 {
				stop()
				stop = s.lead()
				s.after(45 * time.Second)
			}
			if n := len(s.drain.all()); n != before || s.isCordoned(theNode) {
				t.Errorf("%d drains more, cordoned %t", n-before, s.isCordoned(theNode))
			}
		})
	})
	t.Run("that is over during the drain of another leader is not drained for again", func(t *testing.T) {
		tell(t, func(s *story) {
			s.drain.takes = 12 * time.Hour
			stop := s.lead()
			s.send(s.maintenance(24 * time.Hour))
			s.after(time.Minute)
			stop()
			s.lead()
			s.after(time.Minute)
			s.beforePatch.Store(new(clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
				time.Sleep(500 * time.Millisecond) // the drain has ended, and the node still carries the notice
				return false, nil, nil
			})))
			s.send(s.body("health-maintenance-completed", theID))
			s.after(time.Minute)
			if s.isCordoned(theNode) || s.c.Load().Drains > 0 || len(s.drain.all()) != 2 {
				t.Errorf("cordoned %t, %d drains go on, there were %d", s.isCordoned(theNode), s.c.Load().Drains, len(s.drain.all()))
			}
		})
	})
	t.Run("that took a stop and a start is undone with them", func(t *testing.T) {
		tell(t, func(s *story) {
			s.lead()
			s.send(s.maintenance(time.Hour))
			s.after(time.Hour)
			s.send(s.body("state-change-stopping", theID))
			s.after(5 * time.Minute)
			s.restart()
			s.after(time.Minute)
			s.send(s.body("health-maintenance-completed", theID))
			s.after(5 * time.Second)
			s.wantUntouched()
		})
	})
}

func TestWorkThatIsOpenedAgainBelongsToTheQueueThatOpensIt(t *testing.T) {
	t.Parallel()
	for name, finished := range map[string]string{
		"finished":       `,"finishedAt":"1999-01-01T00:01:00Z"`,
		"not yet joined": "",
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.change(theNode, func(n *corev1.Node) {
					n.Annotations = map[string]string{cluster.IntentAnnotation: `{"v":1,"queue":"https://sqs.us-east-1.amazonaws.com/123456789012/another",` +
						`"notices":[{"kind":"RebalanceRecommendation","ids":["old"],"time":"1999-01-01T00:00:00Z"}],"cordonedAt":"1999-01-01T00:00:00Z"` + finished + `}`}
					n.Labels = map[string]string{cluster.StateLabel: cluster.StateDraining}
					n.Spec.Unschedulable = true
				})
				s.drain.takes = time.Hour
				stop := s.lead()
				s.after(time.Second)
				if n := len(s.drain.all()); n != 0 {
					t.Fatalf("%d drains for another queue", n)
				}
				s.send(s.body("rebalance-recommendation", theID))
				s.after(3 * time.Minute)
				if s.left() != 0 {
					t.Fatal("the message is there")
				}
				stop()
				s.lead()
				s.after(time.Second)
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains, want the next leader to go on", n)
				}
			})
		})
	}
}

func TestAPanicInTheHandlingOfOneInstanceEndsNothingElse(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.panics = true
		s.lead()
		s.send(s.body("health-reboot-scheduled", theID, `"affectedEntities": [`, `"affectedEntities": [{"entityValue":"i-0fedcba9876543210"},`))
		s.after(10 * time.Second)
		s.drain.mu.Lock()
		s.drain.panics = false
		s.drain.mu.Unlock()
		s.after(2 * time.Minute)
		if i := s.intent(); !i.Finished() {
			t.Errorf("intent %+v", i)
		}
	})
}

// The message of a drain that can wait is gone when the drain fails.
func TestADrainThatPanicsIsBegunAgainWithoutItsMessage(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		stop := s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Minute)
		if n := s.left(); n != 0 {
			t.Fatalf("%d messages are left", n)
		}
		stop()
		s.drain.mu.Lock()
		s.drain.panics = true
		s.drain.mu.Unlock()
		s.lead()
		s.after(10 * time.Second)
		s.drain.mu.Lock()
		s.drain.panics, s.drain.takes = false, time.Second
		s.drain.mu.Unlock()
		s.after(2 * time.Minute)
		if i := s.intent(); !i.Finished() {
			t.Errorf("intent %+v", i)
		}
	})
}

func TestATagThatWasSeenIsBelievedWhileEC2GivesNoAnswer(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		s.change(theNode, uncordon)
		s.after(2 * time.Hour)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.send(s.body("spot-interruption", theID))
		s.after(20 * time.Second)
		if !s.isCordoned(theNode) {
			t.Error("the node, whose tag was seen two hours ago, is not cordoned")
		}
	})
}

func TestANoticeOfAnotherAccountIsSaidOnce(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.Accounts = []string{"210987654321", "123456789012"} }
		s.lead()
		s.send(s.body("spot-interruption", theID, `"123456789012"`, `"999999999999"`))
		s.send(s.body("spot-interruption", theID, `"us-east-1"`, `"eu-west-1"`))
		s.after(time.Minute)
		if s.isCordoned(theNode) || s.left() != 2 {
			t.Errorf("cordoned %t, %d messages left", s.isCordoned(theNode), s.left())
		}
		s.send(s.body("spot-interruption", theID, `"123456789012"`, `"210987654321"`))
		s.after(time.Second)
		if !s.isCordoned(theNode) {
			t.Error("a notice of an account that is named is left alone")
		}
	})
}

// told is an Observer that keeps the steps on nodes.
type told struct {
	report.Observer
	mu    sync.Mutex
	steps []string
}

func (o *told) Stepped(s report.Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps = append(o.steps, string(s.Kind)+" "+s.Node.Name+": "+s.Reason())
	o.Observer.Stepped(s)
}

func TestANoticeAboutANodeThatIsIgnoredIsToldOnceForEachInstance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(s *story) (edits []string)
		want string
	}{
		"without the tag": {func(s *story) []string {
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID}))
			return nil
		}, "it has no tag managed (aws ec2 create-tags --resources " + theID + " --tags 'Key=managed,Value=')"},
		"of another account": {func(s *story) []string { return []string{`"123456789012"`, `"999999999999"`} }, "it is of account 999999999999 and region us-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				o := &told{}
				s.edit = func(c *Config) { o.Observer, c.Observer = c.Observer, o }
				edits := test.edit(s)
				s.lead()
				s.send(s.body("rebalance-recommendation", theID, edits...))
				s.send(s.body("spot-interruption", theID, edits...))
				s.after(2 * time.Minute) // it comes again
				if s.isCordoned(theNode) || len(o.steps) != 1 || !strings.Contains(o.steps[0], "ignore "+theNode+": ") || !strings.Contains(o.steps[0], test.want) {
					t.Errorf("cordoned %t, told %q", s.isCordoned(theNode), o.steps)
				}
			})
		})
	}
}
