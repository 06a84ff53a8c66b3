package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/karpenter"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A fakeKarpenter remembers when it was asked, and until when it was to be done.
type fakeKarpenter struct {
	mu    sync.Mutex
	asked []time.Time
	by    []time.Time
	err   error
	// begins is called when it was asked for the first time; nil: it does not act.
	begins func()
	// takes is called while it is being asked; nil: that takes no time.
	takes func()
}

func (k *fakeKarpenter) Replace(_ context.Context, _ *corev1.Node, by time.Time) error {
	if k.takes != nil {
		k.takes()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked, k.by = append(k.asked, time.Now()), append(k.by, by)
	if k.err == nil && k.begins != nil && len(k.asked) == 1 {
		time.AfterFunc(time.Second, k.begins)
	}
	return k.err
}

func (k *fakeKarpenter) times() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.asked)
}

// disrupted is a Node that Karpenter drains.
func disrupted(n *corev1.Node) {
	n.DeletionTimestamp, n.Finalizers = new(metav1.Now()), []string{"karpenter.sh/termination"}
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: decision.DisruptedTaint, Effect: corev1.TaintEffectNoSchedule})
}

// tellOfKarpenter tells a story of a node of Karpenter's, with the option on. Karpenter begins within a second
// if acts.
func tellOfKarpenter(t *testing.T, acts bool, run func(s *story, k *fakeKarpenter, told *steps), rules ...decision.NodeRule) {
	t.Helper()
	tellWithRules(t, func(s *story, _ *policyOf, told *steps) {
		k := &fakeKarpenter{}
		if acts {
			k.begins = func() { s.change(theNode, disrupted) }
		}
		s.change(theNode, func(n *corev1.Node) { n.Labels = map[string]string{decision.NodePoolLabel: "pool"} })
		edit := s.edit
		s.edit = func(c *Config) {
			edit(c)
			c.Karpenter, c.DrainByKarpenter = k, true
		}
		s.drain.takes = time.Minute
		run(s, k, told)
	}, rules...)
}

func TestKarpenterIsAskedAndTheDrainStaysInReserve(t *testing.T) {
	t.Parallel()
	tellOfKarpenter(t, true, func(s *story, k *fakeKarpenter, told *steps) {
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(30 * time.Second)
		terms := s.lastDrain().terms
		if k.times() != 1 || k.asked[0].Sub(s.began) > time.Second || !k.by[0].Equal(terms.Deadline.Add(-7*time.Second)) {
			t.Errorf("Karpenter was asked at %v to be done by %v, the deadline is %s", k.asked, k.by, terms.Deadline)
		}
		if !terms.Reserve || !s.isCordoned(theNode) || !s.intent().Delegated() || len(told.of(report.Delegate)) != 1 {
			t.Errorf("terms %+v, intent %+v, told %v", terms, s.intent(), told.all)
		}
		s.after(time.Minute)
		if s.left() != 0 || s.intent().Outcome != intent.Drained || len(told.of(report.TakeOver)) != 0 {
			t.Errorf("%d messages left, outcome %q, told %v", s.left(), s.intent().Outcome, told.all)
		}
	})
}

func TestNothingIsWrittenAfterTheTermHasEnded(t *testing.T) {
	t.Parallel()
	tellOfKarpenter(t, true, func(s *story, k *fakeKarpenter, _ *steps) {
		var asking atomic.Bool
		k.takes = func() {
			asking.Store(true)
			defer asking.Store(false)
			time.Sleep(5 * time.Second) // the API server has the request, whatever becomes of its context
		}
		stop := s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Second)
		if !asking.Load() {
			t.Fatal("Karpenter is not being asked")
		}
		if stop(); asking.Load() {
			t.Error("Karpenter is being asked after Run has returned")
		}
	})
}

func TestTheHandlerTakesOverWhereKarpenterDoesNotBegin(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, "x", errors.New("no"))
	for name, test := range map[string]struct {
		event  string
		err    error
		after  time.Duration // that the handler takes over
		why    decision.Why
		marked bool // the node carries that Karpenter was asked
	}{
		"it does nothing":              {event: "spot-interruption", after: 5 * time.Second, why: decision.WhyKarpenterAway, marked: true},
		"it does nothing, no hurry":    {event: "rebalance-recommendation", after: time.Minute, why: decision.WhyKarpenterAway, marked: true},
		"there is no NodeClaim":        {event: "spot-interruption", err: karpenter.Refusal("none"), why: decision.WhyNoNodeClaim},
		"it may not be asked":          {event: "spot-interruption", err: forbidden, why: decision.WhyKarpenterRefused},
		"the API server has no answer": {event: "spot-interruption", err: errors.New("down"), after: 5 * time.Second, why: decision.WhyKarpenterRefused},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfKarpenter(t, false, func(s *story, k *fakeKarpenter, told *steps) {
				k.err = test.err
				s.drain.takes = 10 * time.Minute
				s.lead()
				s.send(s.body(test.event, theID))
				if s.after(max(0, test.after-time.Second)); test.after > 0 && (!s.lastDrain().terms.Reserve || len(told.of(report.TakeOver)) > 0) {
					t.Errorf("it has taken over before %s", test.after)
				}
				s.after(2 * time.Second)
				over := told.of(report.TakeOver)
				if s.lastDrain().terms.Reserve || len(over) != 1 || over[0].Why != test.why || s.intent().Delegated() != test.marked {
					t.Errorf("terms %+v, told %v, intent %+v", s.lastDrain().terms, over, s.intent())
				}
			})
		})
	}
}

func TestKarpenterIsNotAskedForWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	mine := decision.NodeRule{Name: "mine", Do: decision.Draining, Before: -1, By: intent.ByHandler}
	cordon := decision.NodeRule{Name: "cordon", Do: decision.Cordoning, Before: -1}
	for name, test := range map[string]struct {
		rules []decision.NodeRule
		edit  func(s *story)
	}{
		"a rule says the handler":         {rules: []decision.NodeRule{mine}},
		"the node is only cordoned":       {rules: []decision.NodeRule{cordon}},
		"the node is none of Karpenter's": {edit: func(s *story) { s.change(theNode, func(n *corev1.Node) { n.Labels = nil }) }},
		"the option is off": {edit: func(s *story) {
			edit := s.edit
			s.edit = func(c *Config) { edit(c); c.Karpenter, c.DrainByKarpenter = nil, false }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tellOfKarpenter(t, true, func(s *story, k *fakeKarpenter, _ *steps) {
				if test.edit != nil {
					test.edit(s)
				}
				s.lead()
				s.send(s.body("spot-interruption", theID))
				s.after(10 * time.Second)
				if k.times() != 0 || !s.isCordoned(theNode) || s.intent().Delegated() || len(s.drain.all()) > 0 && s.lastDrain().terms.Reserve {
					t.Errorf("Karpenter was asked at %v; intent %+v", k.asked, s.intent())
				}
			}, test.rules...)
		})
	}
}

func TestAnEarlierDeadlineIsGivenToKarpenter(t *testing.T) {
	t.Parallel()
	tellOfKarpenter(t, true, func(s *story, k *fakeKarpenter, _ *steps) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		if k.times() != 1 || !k.by[0].IsZero() {
			t.Fatalf("Karpenter was asked %d times, by %v; want once without a time", k.times(), k.by)
		}
		s.send(s.body("spot-interruption", theID))
		s.after(2 * time.Second)
		if want := s.lastDrain().terms.Deadline.Add(-7 * time.Second); k.times() != 2 || !k.by[1].Equal(want) || !s.lastDrain().terms.Reserve {
			t.Errorf("Karpenter was asked %d times, by %v; want %s", k.times(), k.by, want)
		}
	})
}

func TestTheNextLeaderAsksAgainAndWaitsNoLonger(t *testing.T) {
	t.Parallel()
	for name, acts := range map[string]bool{"Karpenter acts": true, "Karpenter is away": false} {
		t.Run(name, func(t *testing.T) {
			tellOfKarpenter(t, acts, func(s *story, k *fakeKarpenter, told *steps) {
				s.drain.takes = time.Hour
				stop := s.lead()
				s.send(s.body("spot-interruption", theID))
				s.after(3 * time.Second)
				stop()
				asked := s.intent().DelegatedAt
				s.lead()
				s.after(4 * time.Second)
				if over := len(told.of(report.TakeOver)) > 0; k.times() != 2 || !s.intent().DelegatedAt.Equal(asked) || asked.IsZero() || over == acts || s.lastDrain().terms.Reserve != acts {
					t.Errorf("asked at %v, first noted at %s, then %s; told %v", k.asked, asked, s.intent().DelegatedAt, told.all)
				}
				if delegated := told.of(report.Delegate); len(delegated) != 1 {
					t.Errorf("it is told %d times that Karpenter drains the node", len(delegated))
				}
			})
		})
	}
}

func TestWhatKarpenterWasAskedForIsNotUndone(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]time.Duration{"during its drain": time.Hour, "after it": time.Second} {
		t.Run(name, func(t *testing.T) {
			tellOfKarpenter(t, true, func(s *story, _ *fakeKarpenter, told *steps) {
				s.drain.takes = takes
				s.lead()
				s.send(s.body("health-reboot-scheduled", theID))
				s.after(20 * time.Second)
				s.send(s.body("health-maintenance-completed", theID))
				s.after(5 * time.Second)
				if !s.isCordoned(theNode) || !s.intent().Delegated() || len(told.of(report.Uncordon)) != 0 || len(told.of(report.KeepDelegated)) != 1 {
					t.Errorf("intent %+v, told %v", s.intent(), told.all)
				}
			})
		})
	}
}

func TestSomebodyWhoUncordonsADelegatedNodeDoesNotCallItOff(t *testing.T) {
	t.Parallel()
	tellOfKarpenter(t, true, func(s *story, _ *fakeKarpenter, told *steps) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		s.change(theNode, uncordon)
		s.after(5 * time.Second)
		if !s.isCordoned(theNode) || len(told.of(report.CallOff)) != 0 || len(told.of(report.CordonAgain)) != 1 {
			t.Errorf("cordoned %t, told %v", s.isCordoned(theNode), told.all)
		}
	})
}

func TestAnAPIServerThatFailsIsNotAskedForKarpenterTenTimesASecond(t *testing.T) {
	t.Parallel()
	tellOfKarpenter(t, true, func(s *story, k *fakeKarpenter, told *steps) {
		k.err = errors.New("down")
		s.drain.takes = 10 * time.Minute
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(50 * time.Second)
		if n := k.times(); n < 10 || n > 50 || len(told.of(report.TakeOver)) > 0 {
			t.Errorf("it was asked %d times in 50 s", n)
		}
	})
}
