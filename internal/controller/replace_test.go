package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

var replacementFirst = decision.NodeRule{
	Name: "replaced", Kinds: []notice.Kind{notice.RebalanceRecommendation, notice.ScheduledChange},
	Do: decision.Draining, Before: -1, ReplaceFirst: true,
}

// bootTime is how long a launched instance takes to become a ready node.
const bootTime = 90 * time.Second

// tellOfReplacement tells a story of a group with the node's instance and two others, in which a replacement
// comes first. Launched instances become nodes by themselves.
func tellOfReplacement(t *testing.T, group awssim.Group, run func(s *story, p *policyOf, told *steps)) {
	t.Helper()
	tellWithRules(t, func(s *story, p *policyOf, told *steps) {
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			hooks := c.Hooks.(*asg.Hooks)
			c.Replacements = &replacement.Groups{
				Client: autoscaling.NewFromConfig(s.aws.Config()), Share: hooks.Share, Hooks: hooks.TerminationHookNames,
			}
		}
		for _, id := range []string{"i-00000000000000001", "i-00000000000000002"} {
			s.must(s.aws.PutInstance(awssim.Instance{ID: id, Tags: map[string]string{"managed": ""}}))
			group.Instances = append(group.Instances, id)
		}
		group.Name, group.Desired, group.Instances = "workers", 3, append(group.Instances, theID)
		group.Tags = map[string]string{"managed": ""}
		s.must(s.aws.PutGroup(group))
		s.must(s.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
		run(s, p, told)
	}, replacementFirst)
}

// hooked adds a termination hook to the group.
func (s *story) hooked() {
	s.Helper()
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
}

// boot makes nodes of the instances that were launched, bootTime after their launch, until ctx ends.
func (s *story) boot(ctx context.Context) {
	joined := map[string]bool{}
	for ; ctx.Err() == nil; sleep(ctx, time.Second) {
		for _, i := range s.aws.Instances() {
			if i.State == "running" && s.wasLaunched(i.ID) && time.Since(i.LaunchTime) >= bootTime && !joined[i.ID] {
				joined[i.ID] = true
				_, err := s.kube.CoreV1().Nodes().Create(ctx, aNode("node-"+i.ID, i.ID), metav1.CreateOptions{})
				if err != nil && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
					s.Error(err)
				}
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// booting begins to boot what is launched, until the story ends.
func (s *story) booting() {
	ctx, stop := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.boot(ctx)
	}()
	s.Cleanup(func() {
		stop()
		<-done
	})
}

func (s *story) wasLaunched(id string) bool {
	return id != theID && id != "i-00000000000000001" && id != "i-00000000000000002"
}

// launched are the instances that were.
func (s *story) launched() (ids []string) {
	for _, i := range s.aws.Instances() {
		if s.wasLaunched(i.ID) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

// serving are the instances of the group that are not being terminated.
func (s *story) serving() (ids []string) {
	for _, id := range s.aws.Groups()[0].Instances {
		if !strings.HasPrefix(s.aws.LifecycleState(id), "Terminat") {
			ids = append(ids, id)
		}
	}
	return ids
}

// wantReplaced checks that the node was drained, and that its instance was replaced by another one, once.
func (s *story) wantReplaced() {
	s.Helper()
	if i := s.intent(); !i.Finished() || i.Outcome != intent.Drained || i.Replacement.Open() {
		s.Errorf("intent %+v, want it finished", i)
	}
	if got := s.launched(); len(got) != 1 {
		s.Errorf("%d instances were launched", len(got))
	}
	if got := s.serving(); len(got) != 3 || slices.Contains(got, theID) {
		s.Errorf("the group has %v", got)
	}
	if desired := s.aws.Groups()[0].Desired; desired != 3 {
		s.Errorf("the desired capacity is %d", desired)
	}
	if n := s.terminations(theID); n != 1 {
		s.Errorf("the instance was terminated %d times", n)
	}
}

// terminations counts how often an instance began to end.
func (s *story) terminations(id string) (n int) {
	for _, e := range s.aws.Effects() {
		if e.InstanceID == id && e.Kind == awssim.InstanceState && e.Result == "shutting-down" {
			n++
		}
	}
	return n
}

// results are the reasons of the steps about replacements.
func (s *steps) results() (all []decision.Why) {
	for _, step := range s.of(report.Replace) {
		all = append(all, step.Why)
	}
	return all
}

func (s *steps) want(t *testing.T, want ...decision.Why) {
	t.Helper()
	if got := s.results(); !slices.Equal(got, want) {
		t.Errorf("told of replacements: %v, want %v", got, want)
	}
}

func TestARebalancedNodeIsDrainedWhenItsReplacementIsReady(t *testing.T) {
	for name, group := range map[string]awssim.Group{
		"a launch raises the desired capacity": {},
		"it does not":                          {LaunchesBeside: true},
	} {
		for _, hook := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				tellOfReplacement(t, group, func(s *story, _ *policyOf, told *steps) {
					if hook {
						s.hooked()
					}
					s.booting()
					s.lead()
					s.send(s.body("rebalance-recommendation", theID))
					s.after(bootTime - 5*time.Second)
					if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable || len(s.launched()) != 1 {
						t.Fatalf("intent %+v, launched %v; want the node to wait for one", i, s.launched())
					}
					if held := told.of(report.HoldBack); len(held) != 1 || held[0].Why != decision.WhyReplacement {
						t.Errorf("told %+v", held)
					}
					s.after(15 * time.Second)
					if !s.node().Spec.Unschedulable || slices.Contains(s.serving(), theID) == false {
						t.Error("the replacement is ready: the node is to be drained, and its instance to run until then")
					}
					s.after(5 * time.Minute)
					s.wantReplaced()
					told.want(t, decision.WhyReplaced)
					if s.left() != 0 {
						t.Errorf("%d messages left", s.left())
					}
					for _, a := range s.aws.LifecycleActions() {
						if a.Outcome != awssim.Completed || a.Result != awssim.Continue {
							t.Errorf("lifecycle action %+v", a)
						}
					}
				})
			})
		}
	}
}

func TestWithoutCapacityTheNodeIsDrainedAsTheRuleSays(t *testing.T) {
	for name, tt := range map[string]struct {
		group awssim.Group
		fault awssim.Fault
		want  decision.Why
	}{
		"EC2 has no capacity":       {group: awssim.Group{LaunchError: "InsufficientInstanceCapacity"}, want: decision.WhyNoCapacity},
		"the group is at its limit": {group: awssim.Group{Max: 3}, want: decision.WhyNoReplacement},
		"a launch configuration":    {group: awssim.Group{LaunchConfiguration: true}, want: decision.WhyNoReplacement},
		"a suspended process":       {group: awssim.Group{Suspended: []string{"Launch"}}, want: decision.WhyNoReplacement},
		"a missing permission":      {fault: awssim.Fault{Action: "LaunchInstances", Code: "AccessDenied"}, want: decision.WhyReplacementRight},
		"no permission to look":     {fault: awssim.Fault{Action: "DescribeAutoScalingInstances", Code: "AccessDenied"}, want: decision.WhyReplacementRight},
		"an invalid request":        {fault: awssim.Fault{Action: "LaunchInstances", Code: "ValidationError"}, want: decision.WhyReplacementFails},
		"Capacity Rebalancing":      {group: awssim.Group{CapacityRebalance: true}, want: decision.WhyNoReplacement},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, tt.group, func(s *story, _ *policyOf, told *steps) {
				if tt.fault.Code != "" {
					s.must(s.aws.SetFault(tt.fault))
				}
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(10 * time.Second)
				if !s.node().Spec.Unschedulable {
					t.Error("it is not drained at once")
				}
				s.after(time.Minute)
				told.want(t, tt.want)
				if i := s.intent(); !i.Finished() || i.Outcome != intent.Drained || i.Replacement.Step != intent.Over {
					t.Errorf("intent %+v", i)
				}
				if desired := s.aws.Groups()[0].Desired; len(s.launched()) > 0 || s.terminations(theID) > 0 || desired != 3 {
					t.Errorf("launched %v, desired %d", s.launched(), desired)
				}
			})
		})
	}
}

func TestANodeOfNoGroupGetsNoReplacement(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, told *steps) {
		s.must(s.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{"i-00000000000000001"}}))
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Minute)
		told.want(t, decision.WhyNoReplacement)
		if !s.intent().Finished() {
			t.Errorf("intent %+v", s.intent())
		}
	})
}

func TestAReplacementIsAwaitedForAsLongAsItsRuleSays(t *testing.T) {
	for name, tt := range map[string]struct{ wait, want time.Duration }{
		"by default":  {0, decision.DefaultPatience},
		"by the rule": {5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, p *policyOf, told *steps) {
				rule := replacementFirst
				rule.Limit.Wait = tt.wait
				p.set(rule)
				stop := s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(time.Minute)
				stop() // the next leader does not begin to count anew
				s.lead()
				s.after(tt.want - 75*time.Second)
				if s.node().Spec.Unschedulable {
					t.Fatal("it was not awaited")
				}
				s.after(30 * time.Second)
				if !s.node().Spec.Unschedulable {
					t.Fatal("it is awaited for longer")
				}
				told.want(t, decision.WhyReplacementLate)
				s.after(3 * time.Minute)
				s.wantReplaced() // it was launched, so the group has to become as large as before
			})
		})
	}
}

func TestAnUrgentNoticeDoesNotWaitForAReplacement(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, told *steps) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(20 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(3 * time.Second)
		if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
			t.Fatal("it waits")
		}
		s.after(5 * time.Minute)
		s.wantReplaced()
		told.want(t)
	})
}

func TestAnUrgentNoticeDoesNotWaitForAnAnswerOfAutoScaling(t *testing.T) {
	for _, action := range []string{"LaunchInstances", "DescribeAutoScalingInstances", "DescribeAutoScalingGroups"} {
		t.Run(action, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
				s.must(s.aws.SetFault(awssim.Fault{ID: "hangs", Action: action, Hang: true, AfterEffect: true}))
				s.booting()
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(5 * time.Second)
				s.send(s.body("spot-interruption", theID))
				s.after(3 * time.Second)
				if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
					t.Fatal("it waits")
				}
				s.after(40 * time.Second)
				s.aws.RemoveFault("hangs")
				s.after(5 * time.Minute)
				if action == "LaunchInstances" {
					s.wantReplaced()
				} else if got := s.launched(); len(got) > 0 || s.aws.Groups()[0].Desired != 3 {
					t.Errorf("launched %v, desired %d", got, s.aws.Groups()[0].Desired)
				}
			})
		})
	}
}

var launchesFirst = awssim.Group{Maintenance: awssim.Maintenance{MinHealthy: 100, MaxHealthy: 110}}

func TestAGroupThatLaunchesFirstReplacesTheInstanceByItself(t *testing.T) {
	tellOfReplacement(t, launchesFirst, func(s *story, _ *policyOf, _ *steps) {
		s.hooked()
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: time.Hour}))
		s.booting()
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(time.Minute)
		if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable || i.Replacement.Step != intent.Marked {
			t.Fatalf("intent %+v, want it to wait for the group", i)
		}
		if s.calls("SetInstanceHealth") != 1 || s.calls("LaunchInstances") != 0 {
			t.Errorf("%d and %d calls", s.calls("SetInstanceHealth"), s.calls("LaunchInstances"))
		}
		// Instances with a launch hook are pending until it is completed.
		for _, id := range s.launched() {
			s.must(s.aws.SetInstanceState(id, "running"))
		}
		s.after(5 * time.Minute)
		s.wantReplaced()
		if n := s.calls("TerminateInstanceInAutoScalingGroup"); n != 0 {
			t.Errorf("%d calls to terminate", n)
		}
	})
}

func TestAGroupThatDoesNotReplaceInTimeIsNotWaitedFor(t *testing.T) {
	group := launchesFirst
	group.LaunchError = "InsufficientInstanceCapacity"
	tellOfReplacement(t, group, func(s *story, _ *policyOf, told *steps) {
		s.hooked()
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(decision.DefaultPatience - 10*time.Second)
		if s.node().Spec.Unschedulable {
			t.Fatal("it was not awaited")
		}
		s.after(time.Minute)
		told.want(t, decision.WhyReplacementLate)
		if !s.intent().Finished() {
			t.Errorf("intent %+v", s.intent())
		}
	})
}

func TestWithoutAHookAGroupIsNotAskedToTerminate(t *testing.T) {
	tellOfReplacement(t, launchesFirst, func(s *story, _ *policyOf, _ *steps) {
		s.booting()
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(5 * time.Minute)
		s.wantReplaced()
		if s.calls("SetInstanceHealth") != 0 || s.calls("LaunchInstances") != 1 {
			t.Errorf("%d and %d calls", s.calls("SetInstanceHealth"), s.calls("LaunchInstances"))
		}
	})
}

func TestCapacityRebalancingIsWaitedForWithoutACall(t *testing.T) {
	tellOfReplacement(t, awssim.Group{CapacityRebalance: true}, func(s *story, _ *policyOf, _ *steps) {
		s.hooked()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Minute)
		if i := s.intent(); !i.HeldBack || i.Replacement.Step != intent.Marked {
			t.Fatalf("intent %+v", i)
		}
		_, err := s.aws.StartTransition(theID, awssim.Terminating) // as the group does when the other one is there
		s.must(err)
		s.after(time.Minute)
		if i := s.intent(); !i.Finished() || s.calls("LaunchInstances")+s.calls("SetInstanceHealth")+s.calls("TerminateInstanceInAutoScalingGroup") > 0 {
			t.Errorf("intent %+v", i)
		}
		s.wantHook(awssim.Completed)
	})
}

func TestWhatWasLaunchedForAChangeThatIsCalledOffIsReturned(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration // its launch
		hook  bool
		stays bool
	}{
		"it has not joined":             {after: 20 * time.Second},
		"it has a node, and a hook":     {after: bootTime + 20*time.Second, hook: true},
		"it has a node, and no hook":    {after: bootTime + 20*time.Second, stays: true},
		"it has joined, with the drain": {after: bootTime + 5*time.Second, hook: true},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, told *steps) {
				if tt.hook {
					s.hooked()
				}
				s.drain.takes = time.Hour
				s.booting()
				s.lead()
				s.send(s.reboot(48 * time.Hour))
				s.after(tt.after)
				s.send(s.body("health-maintenance-completed", theID))
				s.after(5 * time.Minute)
				if s.node().Spec.Unschedulable || len(s.intent().Entries) > 0 {
					t.Errorf("intent %+v, want it taken back", s.intent())
				}
				want, desired := 3, 3
				if tt.stays {
					want, desired = 4, 4
				}
				if got := s.serving(); len(got) != want || !slices.Contains(got, theID) || s.aws.Groups()[0].Desired != desired {
					t.Errorf("the group has %v, desired %d", got, s.aws.Groups()[0].Desired)
				}
				if results := told.results(); tt.stays != slices.Contains(results, decision.WhySurplusLeft) ||
					tt.stays == slices.Contains(results, decision.WhySurplusReturned) {
					t.Errorf("told %v", results)
				}
			})
		})
	}
}

func TestANodeThatIsMadeAnewGetsNoSecondReplacement(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, _ *steps) {
		s.booting()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(20 * time.Second)
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		s.after(time.Second)
		again := aNode(theNode, theID)
		again.UID = "another"
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), again, metav1.CreateOptions{})
		s.must(err)
		s.after(10 * time.Minute)
		s.wantReplaced()
	})
}

func TestWhatWasLaunchedStaysIfTheInstanceEndsWhenTheDrainIsCalledOff(t *testing.T) {
	tellOfReplacement(t, awssim.Group{}, func(s *story, _ *policyOf, told *steps) {
		s.hooked()
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(20 * time.Second)
		s.aws.RemoveRule("lifecycle") // nobody hears of it
		_, err := s.aws.StartTransition(theID, awssim.Terminating)
		s.must(err)
		s.send(s.body("health-maintenance-completed", theID))
		s.after(time.Minute)
		if got := s.launched(); len(got) != 1 || s.terminations(got[0]) > 0 {
			t.Errorf("launched %v, want it to stay", got)
		}
		told.want(t, decision.WhySurplusLeft)
	})
}
