package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

var replacementFirst = decision.NodeRule{
	Name: "replaced", Kinds: []notice.Kind{notice.RebalanceRecommendation, notice.ScheduledChange},
	Do: decision.Draining, Before: -1, ReplaceFirst: true,
}

// launchesFirst is the maintenance policy of a group that launches an instance before it terminates the one that is
// replaced.
var launchesFirst = awssim.Maintenance{MinHealthy: 100, MaxHealthy: 110}

// A group that cannot replace an instance waits for capacity.
var withoutCapacity = awssim.Group{Maintenance: launchesFirst, LaunchError: "InsufficientInstanceCapacity"}

// tellOfReplacement tells a story of a group with the node's instance and two others, in which a replacement comes
// first. The group has a termination hook.
func tellOfReplacement(t *testing.T, group awssim.Group, run func(s *story, p *policyOf, told *steps)) {
	t.Helper()
	tellWithoutHook(t, group, func(s *story, p *policyOf, told *steps) {
		s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
		run(s, p, told)
	})
}

// tellWithoutHook tells such a story of a group without a hook.
func tellWithoutHook(t *testing.T, group awssim.Group, run func(s *story, p *policyOf, told *steps)) {
	t.Helper()
	tellWithRules(t, func(s *story, p *policyOf, told *steps) {
		s.replaces(asg.Of(autoscaling.NewFromConfig(s.aws.Config())))
		for _, id := range []string{"i-00000000000000001", "i-00000000000000002"} {
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: id, Tags: map[string]string{"managed": ""}}))
			group.Instances = append(group.Instances, id)
		}
		group.Name, group.Desired, group.Instances = "workers", 3, append(group.Instances, theID)
		group.Tags = map[string]string{"managed": ""}
		s.must(s.aws.PutGroup(group))
		s.must(s.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
		run(s, p, told)
	}, replacementFirst)
}

// replaces has the story's leaders ask a client of Auto Scaling for replacements.
func (s *story) replaces(client asg.API) {
	edit := s.edit
	s.edit = func(c *Config) {
		edit(c)
		c.Replacements = &asg.Hooks{Client: client}
	}
}

// forge writes an intent to the story's node, as a kubelet can.
func (s *story) forge(i intent.Intent) {
	s.Helper()
	text, err := i.Encode()
	s.must(err)
	s.change(theNode, func(n *corev1.Node) { n.Annotations = map[string]string{cluster.IntentAnnotation: text} })
}

// launchHook has what is launched wait for its Node.
func (s *story) launchHook() {
	s.Helper()
	s.must(s.aws.PutHook(awssim.Hook{Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: time.Hour}))
}

// boot makes a Node of what was launched.
func (s *story) boot() {
	s.Helper()
	for _, i := range s.aws.Instances() {
		if i.State == "pending" {
			s.must(s.aws.SetInstanceState(i.ID, "running"))
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-"+i.ID, i.ID), metav1.CreateOptions{})
			s.must(err)
		}
	}
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

// terminations counts how often an instance began to end.
func (s *story) terminations(id string) (n int) {
	for _, e := range s.aws.Effects() {
		if e.InstanceID == id && e.Kind == awssim.InstanceState && e.Result == "shutting-down" {
			n++
		}
	}
	return n
}

// wantReplaced checks that the node was drained, and that its instance was replaced by another one, once.
func (s *story) wantReplaced() {
	s.Helper()
	if i := s.intent(); !i.Finished() || i.Outcome != intent.Drained {
		s.Errorf("intent %+v, want it finished", i)
	}
	if got := s.serving(); len(got) != 3 || slices.Contains(got, theID) || len(s.aws.Instances()) != 4 {
		s.Errorf("the group has %v of %d instances", got, len(s.aws.Instances()))
	}
	if n := s.terminations(theID); n != 1 {
		s.Errorf("the instance was terminated %d times", n)
	}
}

// wantNotReplaced checks that the node was drained, and that its group is as it was.
func (s *story) wantNotReplaced() {
	s.Helper()
	if i := s.intent(); !i.Finished() || i.Outcome != intent.Drained || i.Replacement.Step != intent.Over {
		s.Errorf("intent %+v", i)
	}
	if len(s.aws.Instances()) != 3 || s.terminations(theID) > 0 {
		s.Errorf("instances %+v", s.aws.Instances())
	}
}

// want checks the reasons of the steps about replacements.
func (s *steps) want(t *testing.T, want ...decision.Why) {
	t.Helper()
	var got []decision.Why
	for _, step := range s.of(report.Replace) {
		got = append(got, step.Why)
	}
	if !slices.Equal(got, want) {
		t.Errorf("told of replacements: %v, want %v", got, want)
	}
}

func TestANodeIsDrainedWhenItsGroupHasReplacedItsInstance(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]func(*story) string{
		"a recommendation": func(s *story) string { return s.body("rebalance-recommendation", theID) },
		"a change":         func(s *story) string { return s.reboot(48 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, _ *policyOf, told *steps) {
				s.launchHook()
				s.lead()
				s.send(body(s))
				s.after(time.Minute)
				if i := s.intent(); !i.HeldBack || s.node().Spec.Unschedulable || i.Replacement.Step != intent.Marked {
					t.Fatalf("intent %+v, want it to wait for the group", i)
				}
				if held := told.of(report.HoldBack); len(held) != 1 || held[0].Why != decision.WhyReplacement {
					t.Errorf("told %+v", held)
				}
				s.boot()
				s.after(5 * time.Minute)
				s.wantReplaced()
				told.want(t)
				if n := s.calls("SetInstanceHealth"); n != 1 || s.left() != 0 {
					t.Errorf("%d calls, %d messages left", n, s.left())
				}
			})
		})
	}
}

func TestWithoutAReplacementTheNodeIsDrainedAsTheRuleSays(t *testing.T) {
	t.Parallel()
	able := awssim.Group{Maintenance: launchesFirst}
	denied := func(action string) awssim.Fault { return awssim.Fault{Action: action, Code: "AccessDenied"} }
	for name, tt := range map[string]struct {
		group awssim.Group
		tell  func(*testing.T, awssim.Group, func(*story, *policyOf, *steps)) // nil: tellOfReplacement
		fault awssim.Fault
		want  decision.Why
	}{
		"the group terminates first":    {want: decision.WhyNoReplacement},
		"a suspended process":           {group: awssim.Group{Maintenance: launchesFirst, Suspended: []string{"Launch"}}, want: decision.WhyNoReplacement},
		"no hook":                       {group: able, tell: tellWithoutHook, want: decision.WhyNoReplacement},
		"no hook, Capacity Rebalancing": {group: awssim.Group{CapacityRebalance: true}, tell: tellWithoutHook, want: decision.WhyNoReplacement},
		"a missing permission":          {group: able, fault: denied("SetInstanceHealth"), want: decision.WhyReplacementRight},
		"no permission to look":         {group: able, fault: denied("DescribeAutoScalingInstances"), want: decision.WhyReplacementRight},
		"an invalid request":            {group: able, fault: awssim.Fault{Action: "SetInstanceHealth", Code: "ValidationError"}, want: decision.WhyReplacementFails},
	} {
		t.Run(name, func(t *testing.T) {
			tell := tt.tell
			if tell == nil {
				tell = tellOfReplacement
			}
			tell(t, tt.group, func(s *story, _ *policyOf, told *steps) {
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
				s.wantNotReplaced()
			})
		})
	}
}

func TestANodeOfNoGroupGetsNoReplacement(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for name, tt := range map[string]struct{ wait, want, before time.Duration }{
		"by default":                       {want: decision.DefaultPatience},
		"by the rule":                      {wait: 5 * time.Minute, want: 5 * time.Minute},
		"by the rule, shortened meanwhile": {wait: 5 * time.Minute, want: 5*time.Minute + 30*time.Second, before: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, withoutCapacity, func(s *story, p *policyOf, told *steps) {
				rule := replacementFirst
				rule.Limit.Wait = max(tt.wait, tt.before)
				p.set(rule)
				stop := s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(30 * time.Second)
				rule.Limit.Wait = tt.wait
				p.set(rule)
				s.after(30 * time.Second)
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
				s.wantNotReplaced()
			})
		})
	}
}

func TestAnUrgentNoticeDoesNotWaitForAReplacement(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]awssim.Fault{
		"the group has no capacity":           {},
		"no answer about the instance":        {Action: "DescribeAutoScalingInstances", Hang: true},
		"no answer about the group":           {Action: "DescribeAutoScalingGroups", Hang: true},
		"no answer, but it is marked":         {Action: "SetInstanceHealth", Hang: true, AfterEffect: true},
		"it is tried again, and fails always": {Action: "SetInstanceHealth", Status: 503},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, withoutCapacity, func(s *story, _ *policyOf, told *steps) {
				if fault != (awssim.Fault{}) {
					s.must(s.aws.SetFault(fault))
				}
				s.lead()
				s.send(s.body("rebalance-recommendation", theID))
				s.after(20 * time.Second)
				s.send(s.body("spot-interruption", theID))
				s.after(3 * time.Second)
				if !s.node().Spec.Unschedulable || len(s.drain.all()) != 1 {
					t.Error("it waits")
				}
				s.after(time.Minute)
				told.want(t)
			})
		})
	}
}

func TestCapacityRebalancingIsWaitedForWithoutACall(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, awssim.Group{CapacityRebalance: true}, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Minute)
		if i := s.intent(); !i.HeldBack || i.Replacement.Step != intent.Marked {
			t.Fatalf("intent %+v", i)
		}
		_, err := s.aws.StartTransition(theID, awssim.Terminating) // as the group does when the other one is there
		s.must(err)
		s.after(time.Minute)
		if i := s.intent(); !i.Finished() || s.calls("SetInstanceHealth") > 0 {
			t.Errorf("intent %+v", i)
		}
		s.wantHook(awssim.Completed)
	})
}

// Auto Scaling does not take back that it replaces an instance.
func TestAnInstanceThatIsBeingReplacedIsDrainedThoughItsChangeIsCalledOff(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, _ *policyOf, _ *steps) {
		s.launchHook()
		s.lead()
		s.send(s.reboot(48 * time.Hour))
		s.after(20 * time.Second)
		s.send(s.body("health-maintenance-completed", theID))
		s.after(time.Minute)
		if i := s.intent(); s.node().Spec.Unschedulable || len(i.Entries) > 0 {
			t.Errorf("intent %+v, want it taken back", i)
		}
		s.boot()
		s.after(5 * time.Minute)
		s.wantReplaced()
	})
}

func TestACallThatFailsIsNotMadeAgainWheneverANodeChanges(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, withoutCapacity, func(s *story, _ *policyOf, _ *steps) {
		s.must(s.aws.SetFault(awssim.Fault{Action: "SetInstanceHealth", Code: "Throttling"}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode("node-b", "i-00000000000000001"), metav1.CreateOptions{})
		s.must(err)
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		before := s.calls("SetInstanceHealth")
		for k := range 50 { // a Node that flaps
			s.change("node-b", func(n *corev1.Node) {
				n.Status.Conditions[0].Status = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[k%2]
			})
			s.after(time.Second)
		}
		if n := s.calls("SetInstanceHealth") - before; n > 20 {
			t.Errorf("it was tried %d times in 50 s", n)
		}
	})
}

// A kubelet can write the intent of its node.
func TestAForgedReplacementReachesNoOtherInstance(t *testing.T) {
	t.Parallel()
	for _, step := range []intent.ReplacementStep{intent.Marking, intent.Marked, "launching"} {
		t.Run(string(step), func(t *testing.T) {
			tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, _ *policyOf, _ *steps) {
				s.lead()
				s.forge(intent.Intent{
					Version: intent.Version, Queue: s.aws.QueueURL(queueName), FinishedAt: time.Now(),
					Replacement: intent.Replacement{Step: step, Group: "others", Until: time.Now().Add(time.Hour)},
				})
				s.after(time.Second)
				s.send(s.body("rebalance-recommendation", theID))
				s.after(20 * time.Minute)
				s.wantReplaced()
			})
		})
	}
}

// A killer kills the leader at calls of a replacement, and at patches of nodes: before the call, or after the
// call and before its answer. A leader that is killed makes no call any more.
type killer struct {
	asg.API
	s *story

	mu     sync.Mutex
	at     int // at which call it kills
	after  bool
	dead   bool
	seen   []string
	killed chan struct{}
}

var errKilled = errors.New("the leader was killed")

// meet makes a call, unless the leader is dead or is killed before.
func (k *killer) meet(name string, call func() error) error {
	k.mu.Lock()
	if k.dead {
		k.mu.Unlock()
		return errKilled
	}
	k.seen = append(k.seen, name)
	kills := k.at == len(k.seen)
	k.dead = kills
	k.mu.Unlock()
	if !kills {
		return call()
	}
	if k.after {
		_ = call() // nobody hears the answer
	}
	k.s.kill()
	k.killed <- struct{}{}
	return errKilled
}

// lead leads until d has passed. A leader that is killed is followed by another one when its lease is over.
func (k *killer) lead(d time.Duration) {
	stop := k.s.lead()
	for end := time.After(d); ; {
		select {
		case <-k.killed:
			stop()
			k.s.after(15 * time.Second)
			k.mu.Lock()
			k.dead = false
			k.mu.Unlock()
			stop = k.s.lead()
		case <-end:
			return
		}
	}
}

func (k *killer) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	var node runtime.Object
	err := k.meet("patch", func() (err error) {
		_, node, err = k.s.applyPatch(action)
		return err
	})
	return true, node, err
}

func meet[In, Out any](
	k *killer, name string, call func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error),
) func(context.Context, *In, ...func(*autoscaling.Options)) (*Out, error) {
	return func(ctx context.Context, in *In, opts ...func(*autoscaling.Options)) (out *Out, err error) {
		err = k.meet(name, func() (err error) {
			out, err = call(ctx, in, opts...)
			return err
		})
		return out, err
	}
}

func (k *killer) DescribeAutoScalingGroups(ctx context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	return meet(k, "groups", k.API.DescribeAutoScalingGroups)(ctx, in, opts...)
}

func (k *killer) DescribeAutoScalingInstances(ctx context.Context, in *autoscaling.DescribeAutoScalingInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingInstancesOutput, error) {
	return meet(k, "instances", k.API.DescribeAutoScalingInstances)(ctx, in, opts...)
}

func (k *killer) SetInstanceHealth(ctx context.Context, in *autoscaling.SetInstanceHealthInput, opts ...func(*autoscaling.Options)) (*autoscaling.SetInstanceHealthOutput, error) {
	return meet(k, "health", k.API.SetInstanceHealth)(ctx, in, opts...)
}

func TestAReplacementComesOnceWhereverTheLeaderIsKilled(t *testing.T) {
	t.Parallel()
	for name, life := range map[string]struct {
		group awssim.Group
		want  func(*story)
	}{
		"by the group": {awssim.Group{Maintenance: launchesFirst}, (*story).wantReplaced},
		"none":         {awssim.Group{}, (*story).wantNotReplaced},
	} {
		play := func(t *testing.T, at int, after bool) (calls []string) {
			t.Helper()
			tellOfReplacement(t, life.group, func(s *story, _ *policyOf, _ *steps) {
				k := &killer{s: s, at: at, after: after, killed: make(chan struct{}, 1)}
				k.API = asg.Of(autoscaling.NewFromConfig(s.aws.Config()))
				api := k.API
				api.DescribeAutoScalingGroups = k.DescribeAutoScalingGroups
				api.DescribeAutoScalingInstances, api.SetInstanceHealth = k.DescribeAutoScalingInstances, k.SetInstanceHealth
				s.replaces(api)
				s.beforePatch.Store(new(clienttesting.ReactionFunc(k.patch)))
				s.send(s.body("rebalance-recommendation", theID))
				k.lead(25 * time.Minute)
				life.want(s)
				calls = k.seen
			})
			return calls
		}
		t.Run(name, func(t *testing.T) {
			calls := play(t, 0, false)
			if len(calls) < 4 {
				t.Fatalf("too few calls to be killed at: %v", calls)
			}
			for k, call := range calls {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s call %d, %s", when, k+1, call), func(t *testing.T) { play(t, k+1, after) })
				}
			}
		})
	}
}

// An intent of an older version, which launched an instance of its own: the group is asked for nothing it cannot do.
func TestAStepOfAnOlderVersionMarksNoInstanceOfAGroupWithoutAHook(t *testing.T) {
	t.Parallel()
	for _, step := range []intent.ReplacementStep{"launching", "launched"} {
		t.Run(string(step), func(t *testing.T) {
			tellWithoutHook(t, awssim.Group{}, func(s *story, _ *policyOf, told *steps) {
				now := time.Now().UTC()
				s.forge(intent.Intent{
					Version: intent.Version, Queue: s.aws.QueueURL(queueName), HeldBack: true, CordonedAt: now,
					Entries: []intent.Entry{{
						Kind: notice.RebalanceRecommendation, IDs: []string{"x"}, Time: now,
						Terms: intent.Terms{Rule: "replaced", ReplaceFirst: true},
					}},
					Replacement: intent.Replacement{Step: step, Group: "workers", Until: now.Add(10 * time.Minute)},
				})
				s.lead()
				s.after(time.Minute)
				if n := s.calls("SetInstanceHealth"); n != 0 {
					t.Errorf("%d calls of SetInstanceHealth for an instance of a group without a hook; drained %d times; it is terminated %d times",
						n, len(s.drain.all()), s.terminations(theID))
				}
				s.after(10 * time.Minute)
			})
		})
	}
}

// What has begun goes on, though a limit would let nothing begin by now.
func TestAGroupThatDidNotAnswerAtOnceIsAskedAgain(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, p *policyOf, _ *steps) {
		rule := replacementFirst
		rule.Limit = decision.Limit{Nodes: "1", Wait: 15 * time.Minute}
		p.set(rule)
		s.must(s.aws.SetFault(awssim.Fault{ID: "f", Action: "SetInstanceHealth", Status: 503}))
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.addUnready()
		s.after(15 * time.Second)
		s.aws.RemoveFault("f")
		s.after(20 * time.Second)
		// If the notice of the end comes before the answer, the node does not carry that the group was asked.
		if r := s.intent().Replacement; slices.Contains(s.serving(), theID) || r.Group != "workers" {
			t.Errorf("the group is not asked any more: %+v", r)
		}
	})
}

// A deadline that comes nearer while the group replaces the instance ends the wait in time.
func TestANearerDeadlineEndsTheWaitForAReplacement(t *testing.T) {
	t.Parallel()
	t.Run("a change is moved", func(t *testing.T) {
		tellOfReplacement(t, withoutCapacity, func(s *story, _ *policyOf, _ *steps) {
			s.lead()
			s.send(s.reboot(48 * time.Hour))
			s.after(30 * time.Second)
			if i := s.intent(); i.Replacement.Step != intent.Marked {
				t.Fatalf("%+v", i)
			}
			s.send(s.reboot(8 * time.Minute))
			s.after(8 * time.Minute)
			if len(s.drain.all()) == 0 {
				t.Errorf("the machine reboots, and its node is not drained: %+v", s.intent())
			}
			s.after(10 * time.Minute)
		})
	})
	t.Run("a change joins a recommendation", func(t *testing.T) {
		tellOfReplacement(t, withoutCapacity, func(s *story, _ *policyOf, _ *steps) {
			s.lead()
			s.send(s.body("rebalance-recommendation", theID))
			s.after(30 * time.Second)
			s.send(s.reboot(8 * time.Minute))
			s.after(8 * time.Minute)
			if len(s.drain.all()) == 0 {
				t.Errorf("the machine reboots, and its node is not drained: %+v", s.intent())
			}
		})
	})
}

// That there is no replacement cannot be written down. The drain does not wait for that.
func TestADrainBeginsInTimeThoughItsNodeCannotBeToldOfNoReplacement(t *testing.T) {
	t.Parallel()
	for name, notices := range map[string]int{"at its last moment": 0, "by an urgent notice": 1} {
		t.Run(name, func(t *testing.T) {
			tellOfReplacement(t, withoutCapacity, func(s *story, _ *policyOf, _ *steps) {
				s.lead()
				s.send(s.reboot(30 * time.Minute))
				s.after(14 * time.Minute)
				heal := s.failPatches()
				defer heal()
				s.after(3 * time.Minute)
				if n := len(s.drain.all()); n != 0 {
					t.Errorf("%d drains before the last moment", n)
				}
				if notices > 0 {
					s.send(s.body("spot-interruption", theID))
					s.after(2 * time.Minute)
				} else {
					s.after(12*time.Minute + 30*time.Second)
				}
				if n := len(s.drain.all()); n != 1 {
					t.Errorf("%d drains half a minute before the deadline, want one", n)
				}
			})
		})
	}
}

// The Node of the launched instance is out of use itself, so that the limit refuses the drain while it is awaited.
func TestAReplacementThatNeverTurnsReadyIsAwaitedNoLongerThanItsRuleSays(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, p *policyOf, told *steps) {
		rule := replacementFirst
		rule.Limit.Wait = 5 * time.Minute
		p.set(rule)
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.MaxUnready = intstr.FromInt32(1)
		}
		s.launchHook()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(20 * time.Second)
		var id string // of what was launched
		for _, i := range s.aws.Instances() {
			if i.State == "pending" {
				id = i.ID
			}
		}
		s.must(s.aws.SetInstanceState(id, "running"))
		broken := aNode("broken", id)
		broken.Status.Conditions[0].Status = corev1.ConditionFalse
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), broken, metav1.CreateOptions{})
		s.must(err)
		s.after(rule.Limit.Wait)
		told.want(t, decision.WhyReplacementLate)
		if _, why := s.c.Registry.HeldBack(); s.node().Spec.Unschedulable || !strings.Contains(why, "max-unready-nodes is 1") {
			t.Errorf("cordoned %t, held back: %s; want the limit to hold it still", s.node().Spec.Unschedulable, why)
		}
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), broken.Name, metav1.DeleteOptions{}))
		s.after(time.Minute)
		if i := s.intent(); !i.Finished() {
			t.Errorf("the limit has room, and the node still waits: %+v", i)
		}
	})
}

// Auto Scaling does not answer, and the leader is followed again and again: a replacement is not looked for for ever.
func TestTheSearchForAReplacementEndsThoughLeadersChange(t *testing.T) {
	t.Parallel()
	tellOfReplacement(t, awssim.Group{Maintenance: launchesFirst}, func(s *story, _ *policyOf, _ *steps) {
		s.must(s.aws.SetFault(awssim.Fault{Action: "DescribeAutoScalingInstances", Status: 503}))
		stop := s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		for range 12 {
			s.after(10 * time.Minute)
			stop()
			stop = s.lead()
		}
		if len(s.drain.all()) == 0 {
			t.Errorf("after two hours it is still looked for: %+v", s.intent())
		}
	})
}
