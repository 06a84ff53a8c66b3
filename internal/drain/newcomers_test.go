package drain

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// of gives a pod a controller.
func of(controller string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: controller, UID: types.UID(controller), Controller: new(true)}}
	}
}

func tolerant(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// remake makes the controllers of the stage replace each pod on the same node, pause after
// it has gone, where the scheduler puts it there.
func (s *stage) remake(pause time.Duration, back func(pod *corev1.Pod) bool) {
	var mu sync.Mutex
	made := 0
	s.stopped = func(gone *corev1.Pod) {
		if !s.passes(pause) || !back(gone) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		made++
		name, _, _ := strings.Cut(gone.Name, "-")
		s.pod(fmt.Sprintf("%s-%d", name, made), func(p *corev1.Pod) {
			p.OwnerReferences, p.Spec.Tolerations = gone.OwnerReferences, gone.Spec.Tolerations
		})
	}
}

// asked counts the evictions and deletions, by the name of the controller.
func (s *stage) asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for _, event := range s.events {
		name, _, _ := strings.Cut(strings.Fields(event)[2], "-")
		counts[name]++
	}
	return counts
}

func TestAPodThatToleratesTheCordonAndComesBackIsNotChased(t *testing.T) {
	for name, stops := range map[string]time.Duration{
		"while the scheduler may not have seen the cordon": 0, "and later": 20 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				for k := range 3 {
					s.pod(fmt.Sprintf("tolerant-of%d", k), of("tolerant"), tolerant)
					s.stops[fmt.Sprintf("tolerant-of%d", k)] = stops
				}
				s.pod("slow")
				s.stops["slow"] = 29 * time.Second
				s.remake(500*time.Millisecond, func(gone *corev1.Pod) bool { return gone.Name != "slow" })
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(10 * time.Minute)}, nil)
				s.wantEnd(result, err, evacuation.Result{Evicted: 4, Returned: []string{"ns/tolerant-1", "ns/tolerant-2", "ns/tolerant-3"}}, 29*time.Second)
				if diff := cmp.Diff(map[string]int{"tolerant": 3, "slow": 1}, s.asked()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Twelve pods whose machine is going, and a person who takes the cordon for a mistake.
func TestPodsThatComeToANodeThatSomebodyHasUncordonedStayUntilItIsCordonedAgain(t *testing.T) {
	play(t, func(s *stage) {
		for k := range 12 {
			s.pod(fmt.Sprintf("web-of%d", k), of("web"))
			s.stops[fmt.Sprintf("web-of%d", k)] = 10 * time.Second
		}
		s.pod("tolerant-0", of("tolerant"), tolerant)
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(100)) })
		s.stops["slow"] = 90 * time.Second
		go func() {
			s.passes(30 * time.Second)
			s.pod("other-0", of("other"))
			s.pod("late-0", of("late"), tolerant) // whatever becomes of it, it would come again
		}()
		s.after(7*time.Second, func(n *evacuation.NodeState) { n.Cordoned = false })
		s.after(60*time.Second, func(n *evacuation.NodeState) { n.Cordoned = true })
		s.remake(100*time.Millisecond, func(gone *corev1.Pod) bool {
			return gone.Name != "slow" && (len(gone.Spec.Tolerations) > 0 || !s.look().Cordoned)
		})
		terms, changed := evacuation.Terms{Deadline: s.begin.Add(200 * time.Second), IgnoreBudgets: true, CordonedAt: s.begin}, make(chan evacuation.Terms)
		again := terms
		again.CordonedAt = s.begin.Add(60 * time.Second)
		go func() {
			if s.passes(61 * time.Second) {
				changed <- again
			}
		}()
		result, err := s.drain(terms, changed)
		s.wantEnd(result, err, evacuation.Result{Forced: 28, Returned: []string{"ns/late-14", "ns/tolerant-1"}}, 90*time.Second)
		if diff := cmp.Diff(map[string]int{"web": 24, "tolerant": 1, "other": 1, "late": 1, "slow": 1}, s.asked()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

// As where the node cannot be written: what is on the machine at the deadline is lost, whenever it came.
func TestPodsThatCameToANodeThatIsNotCordonedAreMissedAtTheDeadline(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("web-of0", of("web"))
		s.pod("tolerant-of0", of("tolerant"), tolerant)
		s.after(0, func(n *evacuation.NodeState) { n.Cordoned, n.CordonPending = false, true })
		s.remake(100*time.Millisecond, func(*corev1.Pod) bool { return true })
		go func() {
			s.passes(30 * time.Second)
			s.pod("other-0", of("other"))
			s.pod("job-0", of("job"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(time.Minute), CordonedAt: s.begin}, nil)
		if err != nil || !slices.Contains(result.Missed, "ns/other-0") || slices.Contains(result.Returned, "ns/other-0") {
			t.Errorf("missed %q, returned %q, %v, want other-0 missed", result.Missed, result.Returned, err)
		}
		if slices.Contains(result.Missed, "ns/job-0") {
			t.Error("a pod that has ended is missed")
		}
		if !slices.ContainsFunc(result.Returned, func(name string) bool { return strings.HasPrefix(name, "ns/tolerant") }) {
			t.Errorf("returned %q, want what tolerates the cordon", result.Returned)
		}
	})
}

// The node cannot be written by us, but by them.
func TestPodsThatCameToANodeThatIsNotCordonedLeaveOnceAPersonCordonsIt(t *testing.T) {
	for name, stops := range map[string]time.Duration{"nothing else is left": time.Second, "others stop": 90 * time.Second} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("web-of0", of("web"), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(100)) })
				s.stops["web-of0"] = stops
				s.after(0, func(n *evacuation.NodeState) { n.Cordoned, n.CordonPending = false, true })
				s.after(40*time.Second, func(n *evacuation.NodeState) { n.Cordoned, n.CordonPending = true, false })
				go func() {
					s.passes(30 * time.Second)
					s.pod("other-0", of("other"))
				}()
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(3 * time.Minute), CordonedAt: s.begin}, nil)
				if err != nil || result.Evicted != 2 || len(result.Missed)+len(result.Returned) > 0 {
					t.Errorf("evicted %d, missed %q, returned %q, %v, want both evicted", result.Evicted, result.Missed, result.Returned, err)
				}
			})
		})
	}
}

// Two uncordons within seconds: the handler cordons the node after the first one only.
func TestPodsThatComeRightAfterAnUncordonForGoodStay(t *testing.T) {
	forGood := func(n *evacuation.NodeState) { n.Cordoned, n.StaysUncordoned = false, true }
	behind := func(n *evacuation.NodeState) { n.Cordoned = false }
	for name, tt := range map[string]struct {
		change  func(*evacuation.NodeState)
		changes time.Duration
		stays   bool
	}{
		"after it":                                   {forGood, time.Second, true},
		"the pod is seen before the uncordon is":     {forGood, 3 * time.Second, false},
		"our watch of the node is behind the cordon": {behind, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("slow")
				s.stops["slow"] = 20 * time.Second
				s.after(tt.changes, tt.change)
				go func() {
					s.passes(2 * time.Second)
					s.pod("new-0", of("new"))
				}()
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(110 * time.Second), CordonedAt: s.begin}, nil)
				want := evacuation.Result{Evicted: 2}
				if tt.stays {
					want = evacuation.Result{Evicted: 1, Returned: []string{"ns/new-0"}}
				}
				s.wantEnd(result, err, want, 20*time.Second)
			})
		})
	}
}

func TestADrainDoesNotEndBeforeItsNodeIsCordonedAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("first-0", of("first"))
		s.after(2*time.Second, func(n *evacuation.NodeState) { n.Cordoned, n.CordonPending = false, true })
		s.after(60*time.Second, func(n *evacuation.NodeState) { n.Cordoned, n.CordonPending = true, false })
		go func() {
			s.passes(30 * time.Second)
			s.pod("other-0", of("other"))
		}()
		terms, changed := evacuation.Terms{Deadline: s.begin.Add(110 * time.Second), CordonedAt: s.begin}, make(chan evacuation.Terms)
		again := terms
		again.CordonedAt = s.begin.Add(60 * time.Second)
		go func() {
			if s.passes(61 * time.Second) {
				changed <- again
			}
		}()
		result, err := s.drain(terms, changed)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 65*time.Second)
	})
}

func TestAPodThatToleratesTheCordonAndComesDuringTheDrainStays(t *testing.T) {
	for _, comes := range []time.Duration{time.Second, 10 * time.Second} {
		play(t, func(s *stage) {
			s.pod("slow")
			s.stops["slow"] = 20 * time.Second
			go func() {
				if s.passes(comes) {
					s.pod("late", of("another"), tolerant)
				}
			}()
			result, err := s.drain(evacuation.Terms{}, nil)
			s.wantEnd(result, err, evacuation.Result{Evicted: 1, Returned: []string{"ns/late"}}, 20*time.Second)
		})
	}
}

func TestTheRequestsOfADrainAreBoundedByThePodsThatWereThere(t *testing.T) {
	play(t, func(s *stage) {
		for k := range 5 {
			s.pod(fmt.Sprintf("web-of%d", k), of("web"))
		}
		s.pod("bare") // somebody makes it anew under its name
		s.remake(10*time.Millisecond, func(gone *corev1.Pod) bool {
			if gone.Name != "bare" {
				return true
			}
			s.pod("bare", func(p *corev1.Pod) { p.UID = gone.UID + "-again" })
			return false
		})
		result, err := s.drain(evacuation.Terms{}, nil)
		if err != nil || len(result.Returned) != 6 {
			t.Errorf("Drain = %+v, %v, want six pods that stay", result, err)
		}
		if diff := cmp.Diff(map[string]int{"web": 10, "bare": 2}, s.asked()); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

func TestALatePodThatASchedulerHasSentHasToLeave(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("slow")
		s.stops["slow"] = 20 * time.Second
		go func() {
			if s.passes(10 * time.Second) {
				s.pod("late", of("another"))
			}
		}()
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 2}, 20*time.Second)
		s.want(0, "0s evicted slow with 30s", "10s evicted late with 30s")
	})
}

// Whoever leads now does not know which pods came back before.
func TestPodsOfTheFirstListHaveToLeaveAlsoWhereTheyTolerateTheCordon(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("tolerant", tolerant)
		s.node.Cordoned = false
		result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: "node", NodeState: s.look, Terms: evacuation.Terms{CordonedAt: s.begin.Add(-time.Hour)}})
		if result.Evicted != 1 || err != nil {
			t.Errorf("Drain = %+v, %v", result, err)
		}
	})
}

func TestACordonIsToleratedAsTheSchedulerSays(t *testing.T) {
	taint := &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) corev1.Toleration {
			return corev1.Toleration{
				Key:      rapid.SampledFrom([]string{"", taint.Key, "another"}).Draw(t, "key"),
				Operator: rapid.SampledFrom([]corev1.TolerationOperator{"", corev1.TolerationOpEqual, corev1.TolerationOpExists}).Draw(t, "operator"),
				Value:    rapid.SampledFrom([]string{"", "value"}).Draw(t, "value"),
				Effect:   rapid.SampledFrom([]corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}).Draw(t, "effect"),
			}
		}), 0, 3).Draw(t, "tolerations")}}
		want := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), taint, false)
		})
		trimmed := new(PodTrimmer).Trim(pod, &decision.Rules{})
		if got, kept := toleratesCordon(pod), toleratesCordon(trimmed); got != want || kept != want {
			t.Errorf("tolerates the cordon: %t, trimmed: %t, want %t, by %+v", got, kept, want, pod.Spec.Tolerations)
		}
	})
}
