package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/replacement"
)

// A killer kills the leader at calls of a replacement, and at patches of nodes: before the call, or after the
// call and before its answer. A leader that is killed makes no call any more.
type killer struct {
	replacement.API
	s *story

	mu     sync.Mutex
	at     []int // at which calls, of all leaders, it kills
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
	kills := slices.Contains(k.at, len(k.seen))
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

func (k *killer) LaunchInstances(ctx context.Context, in *autoscaling.LaunchInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.LaunchInstancesOutput, error) {
	return meet(k, "launch", k.API.LaunchInstances)(ctx, in, opts...)
}

func (k *killer) TerminateInstanceInAutoScalingGroup(ctx context.Context, in *autoscaling.TerminateInstanceInAutoScalingGroupInput, opts ...func(*autoscaling.Options)) (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error) {
	return meet(k, "terminate", k.API.TerminateInstanceInAutoScalingGroup)(ctx, in, opts...)
}

// aLife is a replacement from the notice to the end.
type aLife struct {
	group    awssim.Group
	hook     bool
	change   bool           // the notice is of a scheduled change, not a recommendation
	callOff  bool           // after the launch
	wantLast func(s *story) // nil: story.wantReplaced
}

var replacementLives = map[string]aLife{
	"launch":             {},
	"launch, a hook":     {hook: true},
	"launch beside":      {group: awssim.Group{LaunchesBeside: true}},
	"by the group":       {group: launchesFirst, hook: true, change: true},
	"launch, called off": {hook: true, change: true, callOff: true, wantLast: (*story).wantReturned},
	"launch refused":     {group: awssim.Group{LaunchError: "InsufficientInstanceCapacity"}, wantLast: (*story).wantNotReplaced},
}

// wantReturned checks that a group is as it was before a change that was called off.
func (s *story) wantReturned() {
	s.Helper()
	if i := s.intent(); len(i.Entries) > 0 || s.node().Spec.Unschedulable {
		s.Errorf("intent %+v, want it taken back", i)
	}
	if got := s.serving(); len(got) != 3 || !slices.Contains(got, theID) || s.aws.Groups()[0].Desired != 3 || len(s.launched()) > 1 {
		s.Errorf("the group has %v of %v, desired %d", got, s.launched(), s.aws.Groups()[0].Desired)
	}
}

// wantNotReplaced checks that the node was drained, and that its group is as it was.
func (s *story) wantNotReplaced() {
	s.Helper()
	if i := s.intent(); !i.Finished() || len(s.launched()) > 0 || s.aws.Groups()[0].Desired != 3 || s.terminations(theID) > 0 {
		s.Errorf("intent %+v, launched %v, desired %d", i, s.launched(), s.aws.Groups()[0].Desired)
	}
}

// live plays a life in which the leader is killed at some calls, and returns the calls.
func live(t *testing.T, l aLife, after bool, at ...int) (calls []string) {
	t.Helper()
	tellOfReplacement(t, l.group, func(s *story, _ *policyOf, _ *steps) {
		k := &killer{s: s, at: at, after: after, killed: make(chan struct{}, 1)}
		k.API = autoscaling.NewFromConfig(s.aws.Config())
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			hooks := c.Hooks.(*asg.Hooks)
			c.Replacements = &replacement.Groups{Client: k, Share: hooks.Share, Hooks: hooks.TerminationHookNames}
		}
		s.beforePatch.Store(new(clienttesting.ReactionFunc(k.patch)))
		if l.hook {
			s.hooked()
		}
		s.booting()
		body := s.body("rebalance-recommendation", theID)
		if l.change {
			body = s.reboot(48 * time.Hour)
		}
		s.send(body)
		if l.callOff {
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				for len(s.launched()) == 0 {
					time.Sleep(time.Second)
				}
				s.send(s.body("health-maintenance-completed", theID))
			}()
			defer func() { <-stopped }()
		}
		k.lead(25 * time.Minute)
		if l.wantLast != nil {
			l.wantLast(s)
		} else {
			s.wantReplaced()
		}
		calls = k.seen
	})
	return calls
}

// A leader that is killed at any call leaves no instance for nothing, launches none twice, and terminates none
// twice; and the group is as large as it was.
func TestNothingIsLeftOfAReplacementWhereverTheLeaderIsKilled(t *testing.T) {
	for name, l := range replacementLives {
		t.Run(name, func(t *testing.T) {
			calls := live(t, l, false)
			t.Logf("%d calls: %v", len(calls), calls)
			if len(calls) < 4 {
				t.Fatal("too few calls to be killed at")
			}
			for k, call := range calls {
				for when, after := range map[string]bool{"before": false, "after": true} {
					t.Run(fmt.Sprintf("%s call %d, %s", when, k+1, call), func(t *testing.T) { live(t, l, after, k+1) })
				}
			}
		})
	}
}

func TestNothingIsLeftOfAReplacementIfLeadersAreKilledAgainAndAgain(t *testing.T) {
	for name, l := range replacementLives {
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, 7))
			var at []int
			for k := range 30 {
				if r.IntN(4) == 0 {
					at = append(at, k+1)
				}
			}
			t.Run(fmt.Sprintf("%s, at the calls %v", name, at), func(t *testing.T) { live(t, l, seed%2 == 0, at...) })
		}
	}
}
