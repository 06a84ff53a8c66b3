package controller

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// A node that is only cordoned gets a termination while its cordon is being written: it is drained after all, and the
// hook is held open meanwhile.
func TestAHookThatJoinsACordonAtItsEndIsHeldOpenWhileTheNodeIsDrained(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CordonRebalance = true }
		s.interval = time.Minute
		s.drain.takes = 25 * time.Minute
		var patches atomic.Int32
		s.beforePatch.Store(new(clienttesting.ReactionFunc(func(clienttesting.Action) (bool, runtime.Object, error) {
			if patches.Add(1) <= 2 {
				time.Sleep(2 * time.Second)
			}
			return false, nil, nil
		})))
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(time.Second)
		s.terminate(2 * time.Minute)
		s.after(24 * time.Minute)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains", n)
		}
		if action := s.wantHook(awssim.Active); action.Heartbeats < 20 {
			t.Errorf("%d heartbeats in 24 minutes", action.Heartbeats)
		}
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

var cordonsTerminations = decision.NodeRule{
	Name: "cordon-terminations", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Cordoning,
}

// A rule has the node of a termination only cordoned. A spot warning, which is about two minutes, comes while the
// completion of the hook is delayed.
func TestAWarningThatComesInTheCompletionDelayOfACordonDrainsInTime(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.CompletionDelay = 5 * time.Minute
		}
		s.interval = time.Minute
		s.lead()
		s.terminate(2 * time.Minute)
		s.after(10 * time.Second)
		if !s.node().Spec.Unschedulable || len(s.drain.all()) != 0 {
			t.Fatalf("cordoned %t, %d drains", s.node().Spec.Unschedulable, len(s.drain.all()))
		}
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains a minute after the spot warning", n)
		}
		s.after(2 * time.Minute)
		if i := s.intent(); i.Outcome != intent.Drained {
			t.Errorf("the outcome is %q", i.Outcome)
		}
	}, cordonsTerminations)
}

// The same, while Auto Scaling does not answer the completion.
func TestAWarningThatComesWhileACordonCannotBeCompletedDrainsInTime(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.interval = time.Minute
		s.must(s.aws.SetFault(awssim.Fault{ID: "complete", Action: "CompleteLifecycleAction", Status: 503}))
		s.lead()
		s.terminate(2 * time.Minute)
		s.after(10 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains a minute after the spot warning", n)
		}
	}, cordonsTerminations)
}
