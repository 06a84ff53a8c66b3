package controller

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// targets are what a story with load balancers sees.
type targets struct {
	mu      sync.Mutex
	log     logtest.Log
	drained []report.Drain
	blocked []evacuation.Blocked
}

func (r *targets) Drained(d report.Drain) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drained = append(r.drained, d)
}

func (r *targets) ends() []report.Drain {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drained
}

// balanced tells a story in which the node is a target of the group "web", and something deregisters it as soon as it
// is excluded from load balancers: it drains for delay.
func balanced(t *testing.T, delay time.Duration, run func(s *story, seen *targets)) {
	t.Helper()
	tell(t, func(s *story) {
		s.must(s.aws.PutTargetGroup(awssim.TargetGroup{Name: "web", DeregistrationDelay: delay}))
		s.must(s.aws.RegisterTarget("web", theID, 30080))
		ctx, cancel := context.WithCancel(s.ctx)
		var controller sync.WaitGroup
		controller.Go(func() { s.playLoadBalancerController(ctx) })
		seen := &targets{}
		s.edit = func(cfg *Config) {
			nodes, err := cluster.New(s.kube, nil, s.aws.QueueURL(queueName), cluster.CordonOptions{ExcludeFromLoadBalancers: cfg.Excludes})
			s.must(err)
			s.watch(nodes)
			cfg.Cluster = nodes
			cfg.LoadBalancers = &loadbalancer.Targets{
				Client: elb.NewFromConfig(s.aws.Config()).DescribeTargetHealth,
				Groups: func(context.Context, map[string]string) ([]loadbalancer.TargetGroup, error) {
					return []loadbalancer.TargetGroup{{ARN: s.aws.TargetGroupARN("web"), Name: "web"}}, nil
				},
			}
			cfg.Log = seen.log.Logger()
			cfg.Observer = report.Observers{cfg.Observer, drainedOnly{seen}}
			cfg.Blocked = func(b evacuation.Blocked) {
				seen.mu.Lock()
				defer seen.mu.Unlock()
				seen.blocked = append(seen.blocked, b)
			}
		}
		defer controller.Wait()
		defer cancel()
		run(s, seen)
	})
}

// drainedOnly is told of the ends of drains.
type drainedOnly struct{ *targets }

func (drainedOnly) Decided(report.Decision) {}
func (drainedOnly) Recorded(intent.Entry)   {}
func (drainedOnly) Stepped(report.Step)     {}

// watch lets a cluster of the story's own watch the nodes.
func (s *story) watch(nodes *cluster.Cluster) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		nodes.Run(ctx)
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	s.must(nodes.WaitForSync(ctx))
}

// playLoadBalancerController deregisters the node when it is excluded, and registers it again when it is not.
func (s *story) playLoadBalancerController(ctx context.Context) {
	for excluded := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		node, err := s.kube.CoreV1().Nodes().Get(ctx, theNode, metav1.GetOptions{})
		if err != nil || cluster.Excluded(node) == excluded {
			continue
		}
		if excluded = !excluded; excluded {
			s.must(s.aws.DeregisterTarget("web", theID))
		} else {
			s.must(s.aws.RegisterTarget("web", theID, 30080))
		}
	}
}

func TestAHookIsCompletedWhenTheMachineHasLeftItsTargetGroups(t *testing.T) {
	t.Parallel()
	balanced(t, 90*time.Second, func(s *story, seen *targets) {
		s.lead()
		s.terminate(10 * time.Minute)
		s.after(85 * time.Second)
		s.wantHook(awssim.Active)
		if len(seen.ends()) > 0 || s.intent().Finished() {
			t.Error("the node is called drained, and it still drains in the load balancer")
		}
		if !seen.log.Has("waiting for load balancers", "targetGroups", "web") {
			t.Errorf("nobody is told what the drain waits for:\n%s", seen.log.String())
		}
		if len(seen.blocked) != 1 || seen.blocked[0].Node != theNode || !strings.Contains(seen.blocked[0].Why, "web") {
			t.Errorf("blocked: %+v", seen.blocked)
		}
		s.after(20 * time.Second)
		hook := s.wantHook(awssim.Completed)
		if gone := s.began.Add(90 * time.Second); hook.Ended.Before(gone) {
			t.Errorf("completed %v before the target was gone", gone.Sub(hook.Ended))
		}
		ends := seen.ends()
		if len(ends) != 1 || ends[0].Outcome != intent.Drained || len(ends[0].Targets.Left) > 0 ||
			ends[0].Targets.Waited < 50*time.Second || ends[0].Took > 35*time.Second {
			t.Errorf("%+v", ends)
		}
		if s.intent().Outcome != intent.Drained {
			t.Errorf("outcome %q", s.intent().Outcome)
		}
	})
}

func TestTheHookOfANodeThatIsOnlyCordonedWaitsForLoadBalancersToo(t *testing.T) {
	t.Parallel()
	balanced(t, 90*time.Second, func(s *story, _ *targets) {
		edit := s.edit
		s.edit = func(cfg *Config) {
			cfg.CordonOnly = true
			edit(cfg)
		}
		s.lead()
		s.terminate(10 * time.Minute)
		s.after(85 * time.Second)
		s.wantHook(awssim.Active)
		s.after(20 * time.Second)
		s.wantHook(awssim.Completed)
		if len(s.drain.all()) != 0 {
			t.Error("it is drained")
		}
	})
}

func TestLoadBalancersAreNotWaitedForBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	balanced(t, 5*time.Minute, func(s *story, seen *targets) {
		s.lead()
		s.send(s.body("spot-interruption", theID)) // two minutes
		s.after(114 * time.Second)
		if len(seen.ends()) > 0 {
			t.Error("the wait ends before the deadline is near")
		}
		s.after(2 * time.Second)
		ends := seen.ends()
		if len(ends) != 1 || ends[0].Outcome != intent.Drained || !cmp.Equal(ends[0].Targets.Left, []string{"web"}) {
			t.Fatalf("%+v", ends)
		}
		if log := &seen.log; !log.Has("", "level", "warn", "targetGroups", "[web]") {
			t.Errorf("what still drains is not named:\n%s", log)
		}
		if s.left() != 0 {
			t.Error("the message is still there")
		}
	})
}

// The limits of the hook cannot be read: what is assumed about them cuts no connections.
func TestAnAssumedDeadlineDoesNotEndTheWaitForLoadBalancers(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"one leader": false, "another leader goes on": true} {
		t.Run(name, func(t *testing.T) {
			balanced(t, 4*time.Minute, func(s *story, _ *targets) {
				s.denyLimits()
				s.interval = 30 * time.Second
				stop := s.lead()
				s.terminate(time.Hour)
				s.after(150 * time.Second)
				s.wantHook(awssim.Active)
				if fails {
					stop()
					s.lead()
				}
				s.after(2 * time.Minute)
				if took := s.wantHook(awssim.Completed).Ended.Sub(s.began); took < 4*time.Minute {
					t.Errorf("completed after %s, and connections last for 4 minutes", took)
				}
			})
		})
	}
}

// Nobody knows when a hook times out that no heartbeats hold: it is completed before it may have.
func TestWithoutHeartbeatsAnAssumedDeadlineEndsTheWaitForLoadBalancers(t *testing.T) {
	t.Parallel()
	balanced(t, 4*time.Minute, func(s *story, _ *targets) {
		s.denyLimits()
		s.lead()
		s.terminate(time.Hour)
		s.after(114 * time.Second)
		s.wantHook(awssim.Active)
		s.after(3 * time.Second)
		s.wantHook(awssim.Completed)
	})
}

func TestADeadlineThatGetsEarlierEndsTheWaitForLoadBalancers(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		s.lead()
		s.terminate(30 * time.Minute)
		s.after(time.Minute)
		s.send(s.body("spot-interruption", theID))
		s.after(114 * time.Second)
		s.wantHook(awssim.Active)
		s.after(2 * time.Second)
		s.wantHook(awssim.Completed)
		if ends := seen.ends(); len(ends) != 1 || !cmp.Equal(ends[0].Targets.Left, []string{"web"}) {
			t.Errorf("%+v", ends)
		}
	})
}

func TestADrainThatIsCalledOffWaitsForNoLoadBalancer(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		s.lead()
		s.send(s.body("health-retirement-by-arn", theID))
		s.after(40 * time.Second)
		if !cluster.Excluded(s.node()) {
			t.Fatalf("the node is not excluded: %v, %+v", s.node().Labels, s.intent())
		}
		if len(seen.ends()) > 0 {
			t.Fatal("it waits for no load balancer")
		}
		// A person wants it back: a change of days ahead can wait.
		node := s.node()
		node.Spec.Unschedulable = false
		_, err := s.kube.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
		s.must(err)
		s.after(3 * time.Second)
		ends := seen.ends()
		if len(ends) != 1 || ends[0].Outcome != intent.CalledOff {
			t.Errorf("%+v", ends)
		}
		if cluster.Excluded(s.node()) {
			t.Error("it is still excluded")
		}
		before := s.calls("DescribeTargetHealth")
		s.after(time.Hour)
		if n := s.calls("DescribeTargetHealth") - before; n > 0 {
			t.Errorf("%d calls after the end of the drain", n)
		}
	})
}

func TestTheNextLeaderGoesOnToWaitForLoadBalancers(t *testing.T) {
	t.Parallel()
	balanced(t, 4*time.Minute, func(s *story, seen *targets) {
		stop := s.lead()
		s.terminate(10 * time.Minute)
		s.after(time.Minute)
		stop()
		if len(seen.ends()) > 0 {
			t.Error("a drain that the next leader continues has not ended")
		}
		s.drain.takes = 0 // the pods are gone
		s.lead()
		s.after(2 * time.Minute)
		s.wantHook(awssim.Active)
		s.after(80 * time.Second)
		if hook := s.wantHook(awssim.Completed); hook.Ended.Before(s.began.Add(4 * time.Minute)) {
			t.Errorf("completed at %v", hook.Ended.Sub(s.began))
		}
		if ends := seen.ends(); len(ends) != 1 || ends[0].Outcome != intent.Drained || len(ends[0].Targets.Left) > 0 {
			t.Errorf("%+v", ends)
		}
	})
}

func TestANodeThatIsNotExcludedWaitsForNoLoadBalancer(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(31 * time.Second)
		if ends := seen.ends(); len(ends) != 1 || ends[0].Outcome != intent.Drained || s.calls("DescribeTargetHealth") > 0 {
			t.Errorf("%+v, %d calls", ends, s.calls("DescribeTargetHealth"))
		}
		if cluster.Excluded(s.node()) {
			t.Error("it is excluded for a recommendation")
		}
	})
	// The label may be somebody else's.
	balanced(t, 20*time.Second, func(s *story, seen *targets) {
		node := s.node()
		node.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "theirs"}
		_, err := s.kube.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
		s.must(err)
		s.drain.takes = 0
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		if len(seen.ends()) > 0 {
			t.Error("it does not wait")
		}
		s.after(25 * time.Second)
		if ends := seen.ends(); len(ends) != 1 || len(ends[0].Targets.Left) > 0 {
			t.Errorf("%+v", ends)
		}
	})
}

// A person has excluded the Node, and the kubelet registers under another name: nobody excludes that Node.
func TestAMachineWithANodeThatIsNotExcludedIsWaitedForInNoLoadBalancer(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		node := s.node()
		node.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: "theirs"}
		_, err := s.kube.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
		s.must(err)
		s.drain.takes = 0
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(20 * time.Second)
		if len(seen.ends()) > 0 {
			t.Error("it does not wait")
		}
		s.register("new-name", "another")
		s.after(5 * time.Second)
		ends := seen.ends()
		if len(ends) == 0 || ends[len(ends)-1].Node.Name != theNode {
			t.Errorf("it waits for what nobody does: %+v", ends)
		}
	})
}

func TestWithoutADeadlineLoadBalancersAreWaitedForForTheGracePeriodOfANode(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		edit := s.edit
		s.edit = func(cfg *Config) {
			cfg.Exclusion = decision.ExcludeAll
			edit(cfg)
		}
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(119 * time.Second)
		if len(seen.ends()) > 0 {
			t.Errorf("after two minutes less a second: %+v", seen.ends())
		}
		s.after(2 * time.Second)
		if ends := seen.ends(); len(ends) != 1 || !cmp.Equal(ends[0].Targets.Left, []string{"web"}) {
			t.Errorf("%+v", ends)
		}
	})
}

func TestAnInstanceThatHasGoneIsWaitedForInNoLoadBalancer(t *testing.T) {
	t.Parallel()
	balanced(t, time.Hour, func(s *story, seen *targets) {
		s.lead()
		s.terminate(30 * time.Minute)
		s.after(time.Minute)
		s.send(s.body("state-change-terminated", theID))
		s.end(theID)
		s.must(s.aws.SetInstanceState(theID, "terminated"))
		s.after(10 * time.Second)
		if ends := seen.ends(); len(ends) != 1 || len(ends[0].Targets.Left) > 0 {
			t.Errorf("%+v", ends)
		}
	})
}
