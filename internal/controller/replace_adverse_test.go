package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
)

func (s *story) forge(i intent.Intent) {
	s.Helper()
	text, err := i.Encode()
	s.must(err)
	s.change(theNode, func(n *corev1.Node) { n.Annotations = map[string]string{cluster.IntentAnnotation: text} })
}

func TestAForgedReplacementEndsNoOtherInstanceAndReachesNoOtherGroup(t *testing.T) {
	const victim = "i-00000000000000001"
	for name, r := range map[string]intent.Replacement{
		"returning, of the same group":  {Step: intent.Returning, Group: "workers", Instance: victim, Raised: true, For: "x"},
		"returning, of another group":   {Step: intent.Returning, Group: "others", Instance: "i-00000000000000009", For: "x"},
		"launching, for another group":  {Step: intent.Launching, Group: "others", For: "x"},
		"launched, into another group":  {Step: intent.Launched, Group: "others", Instance: victim, For: "x"},
		"ending, with another instance": {Step: intent.Ending, Group: "others", Instance: victim, For: "x"},
	} {
		for _, event := range []string{"rebalance-recommendation", "spot-interruption", "called off"} {
			t.Run(name+", "+event, func(t *testing.T) {
				tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
					s.must(s.aws.PutInstance(awssim.Instance{ID: "i-00000000000000009", Tags: map[string]string{"managed": ""}}))
					s.must(s.aws.PutGroup(awssim.Group{Name: "others", Desired: 1, Instances: []string{"i-00000000000000009"}}))
					s.booting()
					s.lead()
					r.Since, r.Until = time.Now(), time.Now().Add(10*time.Minute)
					forged := intent.Intent{Version: intent.Version, Queue: s.aws.QueueURL(queueName), Replacement: r, FinishedAt: time.Now()}
					s.forge(forged)
					s.after(time.Second)
					if event == "called off" {
						s.send(s.reboot(48 * time.Hour))
						s.after(5 * time.Second)
						s.send(s.body("health-maintenance-completed", theID))
					} else {
						s.send(s.body(event, theID))
					}
					s.after(20 * time.Minute)
					for _, id := range []string{victim, "i-00000000000000009"} {
						if s.terminations(id) > 0 {
							t.Errorf("instance %s was terminated", id)
						}
					}
					for _, g := range s.aws.Groups() {
						if g.Name == "others" && (len(g.Instances) != 1 || g.Desired != 1) {
							t.Errorf("the other group has %v, desired %d", g.Instances, g.Desired)
						}
					}
				})
			})
		}
	}
}

func (s *story) withTargets(delay time.Duration) {
	s.Helper()
	s.must(s.aws.PutTargetGroup(awssim.TargetGroup{Name: "web", DeregistrationDelay: delay}))
	s.must(s.aws.RegisterTarget("web", theID, 30080))
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.playLoadBalancerController(ctx)
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	edit := s.edit
	s.edit = func(c *Config) {
		edit(c)
		nodes, err := cluster.New(s.kube, nil, s.aws.QueueURL(queueName), cluster.CordonOptions{ExcludeFromLoadBalancers: c.Excludes})
		s.must(err)
		s.watch(nodes)
		c.Cluster = nodes
		c.LoadBalancers = &loadbalancer.Targets{
			Client: elb.NewFromConfig(s.aws.Config()),
			Groups: func(context.Context, map[string]string) ([]loadbalancer.TargetGroup, error) {
				return []loadbalancer.TargetGroup{{ARN: s.aws.TargetGroupARN("web"), Name: "web"}}, nil
			},
		}
	}
}

func TestANodeThatIsReplacedLeavesItsLoadBalancersBeforeItsInstanceIsTerminated(t *testing.T) {
	const delay = 90 * time.Second
	for name, hook := range map[string]bool{"with a hook": true, "without a hook": false} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
				if hook {
					s.hooked()
				}
				s.withTargets(delay)
				s.booting()
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(bootTime - 5*time.Second)
				if cluster.Excluded(s.node()) {
					t.Fatal("it is excluded while it waits for its replacement")
				}
				s.after(15 * time.Second)
				if !cluster.Excluded(s.node()) {
					t.Error("it is drained, and not excluded from load balancers")
				}
				s.after(delay - 10*time.Second)
				if s.terminations(theID) > 0 || !slices.Contains(s.serving(), theID) {
					t.Error("the instance is terminated while load balancers use it")
				}
				s.after(5 * time.Minute)
				s.wantReplaced()
			})
		})
	}
}

func TestANodeThatOnlyGetsCordonedByNowIsNotTerminated(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, p *policyOf, _ *steps) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(20 * time.Second)
		p.set(decision.NodeRule{Name: "replaced", Do: decision.Cordoning, Before: -1})
		s.after(5 * time.Minute)
		if i := s.intent(); !s.node().Spec.Unschedulable || i.Outcome != intent.Cordoned || len(s.drain.all()) > 0 {
			t.Fatalf("intent %+v, want it cordoned", i)
		}
		if got := s.serving(); s.terminations(theID) > 0 || len(got) != 3 || s.aws.Groups()[0].Desired != 3 {
			t.Errorf("the group has %v; want the instance to run with its pods, and the other one returned", got)
		}
	})
}

func TestAnInstanceWithTwoNodesIsTerminatedWhenBothAreDrained(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-b", theID), metav1.CreateOptions{})
		s.must(err)
		s.drain.byNode = map[string]time.Duration{theNode: 10 * time.Second, "node-b": 5 * time.Minute}
		s.booting()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(bootTime + 3*time.Minute)
		if s.terminations(theID) > 0 {
			t.Error("the instance is terminated, and pods of its other Node have not left")
		}
		s.after(6 * time.Minute)
		s.wantReplaced()
	})
}

func TestALimitDoesNotKeepTheSecondNodeOfAReplacedInstanceWaiting(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, p *policyOf, _ *steps) {
		limited := replacementFirst
		limited.Limit = decision.Limit{Nodes: "1"}
		p.set(limited)
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-b", theID), metav1.CreateOptions{})
		s.must(err)
		s.booting()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(bootTime + 8*time.Minute)
		if len(s.drain.all()) != 2 {
			t.Errorf("drains %+v, want both Nodes drained", s.drain.all())
		}
		s.wantReplaced()
	})
}

func TestALaunchThatFailsIsNotTriedAgainWheneverANodeChanges(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
		s.must(s.aws.SetFault(awssim.Fault{Action: "LaunchInstances", Code: "Throttling"}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-b", "i-00000000000000001"), metav1.CreateOptions{})
		s.must(err)
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		before := s.calls("LaunchInstances")
		for k := range 50 { // a Node that flaps
			s.change("node-b", func(n *corev1.Node) {
				n.Status.Conditions[0].Status = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[k%2]
			})
			s.after(time.Second)
		}
		if n := s.calls("LaunchInstances") - before; n > 20 {
			t.Errorf("%d launches were tried in 50 s", n)
		}
	})
}

func TestAnUrgentNoticeDoesNotWaitUntilAReplacementIsReturned(t *testing.T) {
	for name, fault := range map[string]awssim.Fault{
		"it fails":  {Action: "TerminateInstanceInAutoScalingGroup", Status: 503},
		"it hangs":  {Action: "TerminateInstanceInAutoScalingGroup", Hang: true},
		"no launch": {Action: "LaunchInstances", Hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
				s.lead()
				s.send(s.reboot(48 * time.Hour))
				s.after(20 * time.Second)
				s.must(s.aws.SetFault(fault))
				s.send(s.body("health-maintenance-completed", theID))
				s.after(10 * time.Second)
				s.send(s.body("spot-interruption", theID))
				s.after(15 * time.Second)
				if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
					t.Errorf("intent %+v: the pods of a machine that goes in two minutes are not drained", s.intent())
				}
			})
		})
	}
}

func TestNothingIsLaunchedForANodeThatGotAnUrgentNoticeMeanwhile(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
		s.must(s.aws.SetFault(awssim.Fault{Action: "DescribeAutoScalingGroups", Latency: 5 * time.Second}))
		patches := 0
		s.beforePatch.Store(new(clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
			if patches++; patches == 2 { // of the second notice
				time.Sleep(8 * time.Second)
			}
			return false, nil, nil
		})))
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(2 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(5 * time.Minute)
		if n := s.calls("LaunchInstances"); n > 0 || !s.intent().Finished() {
			t.Errorf("%d launches after the drain; intent %+v", n, s.intent())
		}
	})
}

func TestAHookIsNotHeldForAReplacementThatNobodyAnswersFor(t *testing.T) {
	for name, fault := range map[string]awssim.Fault{
		"the launch fails":   {Action: "LaunchInstances", Status: 503},
		"nobody knows of it": {Action: "DescribeAutoScalingInstances", Status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
				s.hooked()
				if fault.Action == "LaunchInstances" {
					s.must(s.aws.SetFault(fault))
				}
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(10 * time.Second)
				s.must(s.aws.SetFault(fault))
				_, err := s.aws.StartTransition(theID, awssim.Terminating)
				s.must(err)
				s.after(5 * time.Minute)
				s.wantHook(awssim.Completed)
			})
		})
	}
}

func TestAPatientDrainThatMissedPodsDoesNotTerminateTheirMachine(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, p *policyOf, told *steps) {
		patient := replacementFirst
		patient.Patient = true
		p.set(patient)
		s.drain.takes = -1
		s.drain.result = &drain.Result{}
		s.booting()
		s.lead()
		s.send(s.reboot(time.Hour))
		s.after(90 * time.Minute)
		if i := s.intent(); i.Outcome != intent.Missed || s.terminations(theID) > 0 {
			t.Errorf("intent %+v, want the machine to be there with the pods that have not left", i)
		}
		if results := told.results(); !slices.Contains(results, decision.WhySurplusLeft) {
			t.Errorf("told %v", results)
		}
	})
}

func TestTheNextLeaderDoesNotDrainWhatIsBeingReturned(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(20 * time.Second)
		s.must(s.aws.SetFault(awssim.Fault{Action: "TerminateInstanceInAutoScalingGroup", Status: 503}))
		s.send(s.body("health-maintenance-completed", theID))
		s.after(10 * time.Second)
		s.kill()
		s.after(15 * time.Second)
		s.lead()
		s.after(3 * time.Minute)
		if s.node().Spec.Unschedulable || len(s.drain.all()) > 0 {
			t.Errorf("drained: %+v; intent step %s", s.drain.all(), s.intent().Replacement.Step)
		}
	})
}
