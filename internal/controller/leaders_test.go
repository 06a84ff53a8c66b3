package controller

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
)

// inOneProcess has all leaders share what one process knows of the nodes: one that was paused, or lost the lease, may
// lead again.
func (s *story) inOneProcess() {
	s.Helper()
	nodes, err := cluster.New(s.kube, s.gate, s.aws.QueueURL(queueName), cluster.CordonOptions{})
	s.must(err)
	var watch sync.WaitGroup
	watch.Go(func() { nodes.Run(s.ctx) })
	s.must(nodes.WaitForSync(s.ctx))
	s.edit = func(c *Config) { c.Cluster = nodes }
}

// EC2 does not answer before the leader has to stop.
func TestWhatALeaderWasNotDoneWithIsDoneWhenItLeadsAgain(t *testing.T) {
	t.Parallel()
	silent := awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}
	t.Run("a machine that has rebooted takes pods again", func(t *testing.T) {
		t.Parallel()
		tell(t, func(s *story) {
			s.inOneProcess()
			s.change(theNode, boots("first"))
			stop := s.lead()
			s.send(s.reboot(10 * time.Minute))
			s.after(11 * time.Minute)
			s.must(s.aws.SetFault(silent))
			s.change(theNode, reboots("second"))
			s.after(time.Minute)
			stop()
			s.aws.RemoveFault("ec2")
			s.lead()
			s.after(time.Minute)
			s.wantUntouched()
		})
	})
	t.Run("the next Node of a machine gets its notice", func(t *testing.T) {
		t.Parallel()
		tell(t, func(s *story) {
			s.inOneProcess()
			stop := s.lead()
			s.send(s.reboot(24 * time.Hour))
			s.after(10 * time.Minute)
			s.must(s.aws.SetFault(silent))
			s.remove(theNode)
			s.register(theNode, "next")
			s.after(time.Minute)
			stop()
			s.aws.RemoveFault("ec2")
			s.lead()
			s.after(time.Minute)
			if !s.isCordoned(theNode) || s.left() != 0 {
				t.Errorf("cordoned %t, %d messages are left", s.isCordoned(theNode), s.left())
			}
		})
	})
}

// One that has led before knows both Nodes, and its predecessor has died between the writes of them. SQS delivers the
// message later.
func TestTheNextLeaderCompletesAHookAfterAllNodesOfAnInstance(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes, s.drain.byNode = 2*time.Second, map[string]time.Duration{"node-b": time.Minute}
		s.register("node-b", "another")
		s.inOneProcess()
		stop := s.lead()
		s.after(time.Minute)
		s.beforePatch.Store(new(clienttesting.ReactionFunc(func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.(clienttesting.PatchAction).GetName() == theNode {
				return false, nil, nil
			}
			s.kill()
			return true, nil, errors.New("the leader is dead")
		})))
		s.terminate(time.Hour)
		s.after(time.Second)
		stop()
		s.beforePatch.Store(nil)
		s.must(s.aws.SetFault(awssim.Fault{ID: "sqs", Service: "sqs", Action: "ReceiveMessage", Status: 503}))
		if s.isCordoned("node-b") || !s.isCordoned(theNode) {
			t.Fatal("want one of them cordoned")
		}
		s.lead()
		s.after(30 * time.Second)
		if s.wantHook(awssim.Active); !s.isCordoned("node-b") {
			t.Error("the other Node is not drained")
		}
		s.after(time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// Its hook was completed, which the leader could not write before it died. It returns from a warm pool while nobody
// leads. The next leader may die, too, as soon as its drain has ended.
func TestAMachineThatReturnsBeforeTheNextLeaderComesTakesPodsAgain(t *testing.T) {
	t.Parallel()
	for _, leaders := range []int{1, 2} {
		tell(t, func(s *story) {
			s.drain.takes = 2 * time.Second
			s.change(theNode, boots("first"))
			stop := s.lead()
			s.terminate(time.Hour)
			s.after(time.Second)
			s.beforePatch.Store(new(clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("no answer")
			})))
			s.after(10 * time.Second)
			s.wantHook(awssim.Completed)
			stop()
			s.beforePatch.Store(nil)
			s.must(s.aws.SetInstanceState(theID, "stopped"))
			s.change(theNode, notReady)
			s.after(10 * time.Minute)
			s.restart()
			s.change(theNode, boots("second"))
			s.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				time.Sleep(time.Second)
				return false, nil, nil
			})
			for range leaders - 1 {
				finished := false
				s.beforePatch.Store(new(clienttesting.ReactionFunc(func(a clienttesting.Action) (bool, runtime.Object, error) {
					dead := finished
					finished = finished || strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), "finishedAt")
					return dead, nil, errors.New("the leader is dead")
				})))
				stop = s.lead()
				s.after(10 * time.Second)
				if stop(); !finished || !s.isCordoned(theNode) {
					t.Fatalf("finished %t, cordoned %t", finished, s.isCordoned(theNode))
				}
				s.beforePatch.Store(nil)
			}
			s.lead()
			s.after(time.Minute)
			s.wantUntouched()
		})
	}
}

// It returns from a warm pool: before the end of its drain is written or, as somebody else has completed the hook, in
// the middle of it.
func TestAMachineThatReturnsBeforeTheEndOfItsDrainTakesPodsAgain(t *testing.T) {
	t.Parallel()
	for name, middle := range map[string]bool{"the end is not written": false, "pods are leaving": true} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = time.Minute
				if middle {
					s.drain.takes = 10 * time.Minute
				}
				s.lead()
				s.terminate(time.Hour)
				s.after(50 * time.Second)
				s.beforePatch.Store(new(clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
					time.Sleep(5 * time.Second)
					return false, nil, nil
				})))
				if middle {
					_, err := autoscaling.NewFromConfig(s.aws.Config()).CompleteLifecycleAction(s.Context(), &autoscaling.CompleteLifecycleActionInput{
						AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("drain"), InstanceId: aws.String(theID),
						LifecycleActionResult: aws.String("CONTINUE"),
					})
					s.must(err)
				}
				s.after(11 * time.Second)
				s.wantHook(awssim.Completed)
				s.must(s.aws.SetInstanceState(theID, "running"))
				s.launch(time.Hour)
				wantLaunch := func(outcome awssim.Outcome) {
					t.Helper()
					for _, a := range s.aws.LifecycleActions() {
						if a.Hook == "join" && a.Outcome != outcome {
							t.Errorf("the launch hook is %q, want %q", a.Outcome, outcome)
						}
					}
				}
				s.after(time.Minute)
				wantLaunch(awssim.Completed)
				s.wantUntouched()
			})
		})
	}
}

// Nobody led when a person uncordoned it.
func TestTheNextLeaderHeedsWhoeverHasUncordonedANode(t *testing.T) {
	t.Parallel()
	for name, providerID := range map[string]string{"with a provider id": "aws:///us-east-1a/" + theID, "without one": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, func(s *story) {
				s.drain.takes = time.Hour
				s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, PrivateDNSName: theNode, Tags: map[string]string{"managed": ""}}))
				s.change(theNode, func(n *corev1.Node) { n.Spec.ProviderID = providerID })
				stop := s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(10 * time.Minute)
				if stop(); s.left() != 0 || !s.isCordoned(theNode) {
					t.Fatalf("cordoned %t, %d messages are left", s.isCordoned(theNode), s.left())
				}
				s.change(theNode, uncordon)
				s.lead()
				s.after(time.Minute)
				s.wantUntouched()
			})
		})
	}
}
