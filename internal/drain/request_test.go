package drain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/kube/kubetest"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// each is how long a request takes at a gate that lets in one at a time.
const each = time.Second

// on puts a pod on another node.
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}

// requests are the names of the pods in the order in which they were asked to leave.
func (s *stage) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, event := range s.events {
		names = append(names, strings.Fields(event)[2])
	}
	return names
}

// A rebalance recommendation comes before the spot warning, and other nodes in between.
func TestWhatWaitsAtTheGateIsBroughtForwardWithItsDrain(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Gate = pace.NewGate(1, 1)
		s.answers = each
		for k := range 5 {
			s.pod(fmt.Sprintf("calm%d", k), on("calm"))
			s.pod(fmt.Sprintf("hurried%d", k), on("hurried"))
		}
		changed := make(chan evacuation.Terms)
		var drains sync.WaitGroup
		for _, o := range []evacuation.Request{
			{Node: "hurried", Changed: changed},
			{Node: "calm", Terms: evacuation.Terms{Deadline: s.begin.Add(100 * time.Second)}},
		} {
			o.Terms.CordonedAt, o.Log = s.begin, s.log()
			drains.Go(func() {
				result, err := s.drainer.Drain(s.Context(), &o)
				if result.Evicted != 5 || err != nil {
					t.Errorf("%s: %+v, %v", o.Node, result, err)
				}
			})
			synctest.Wait() // each has begun with a pod, and the others wait
		}
		time.Sleep(each + each/2)
		changed <- evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(60 * time.Second)}
		drains.Wait()
		first := s.requests()[:7] // two were made, or begun, by then
		if hurried := slices.DeleteFunc(first, func(name string) bool { return !strings.HasPrefix(name, "hurried") }); len(hurried) != 5 {
			t.Errorf("of the first seven requests %v were for the node with the nearer deadline, want five", hurried)
		}
	})
}

// crowd keeps the gate taken, from a moment on, by calls with a nearer deadline.
func (s *stage) crowd(gate *pace.Gate, from time.Duration) {
	go func() {
		s.passes(from)
		for range 10 {
			go func() {
				for s.Context().Err() == nil {
					leave, err := gate.Enter(s.Context(), pace.Priority{Deadline: s.begin.Add(time.Second)})
					if err != nil {
						return
					}
					s.passes(each)
					leave(0)
				}
			}()
		}
	}()
}

func TestAPodThatMustBeForcedDoesNotWaitBehindACrowd(t *testing.T) {
	for name, refuse := range map[string]func(string) *metav1.Status{"asked before": budget, "never asked": nil} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.drainer.Gate = pace.NewGate(1, 1)
				s.refuse = refuse
				s.pod("critical", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) }) // it waits for the other
				s.pod("stuck", func(p *corev1.Pod) {
					runsOn(p)
					p.DeletionTimestamp = new(metav1.NewTime(s.begin.Add(30 * time.Second)))
				})
				if refuse != nil {
					s.pod("stuck2", func(p *corev1.Pod) { p.Spec.Priority = new(int32(2_000_000_000)) })
				}
				s.crowd(s.drainer.Gate, time.Second)
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
				if err != nil || len(result.Missed) != 1 {
					t.Errorf("Drain = %+v, %v, want one pod missed", result, err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, want := range []string{"1m25s", "1m26s"} {
					for _, event := range s.events {
						if strings.HasPrefix(event, want) && strings.Contains(event, "critical") {
							return
						}
					}
				}
				t.Errorf("the pod was not asked at 1m25s: %v", s.events)
			})
		})
	}
}

func TestADeadlineThatIsPutOffForcesNothing(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Gate = pace.NewGate(1, 1)
		s.pod("a")
		s.refuse = func(pod string) *metav1.Status {
			if time.Since(s.begin) > 200*time.Second {
				return nil
			}
			return budget(pod)
		}
		changed := make(chan evacuation.Terms)
		go func() {
			s.passes(84 * time.Second)
			leave, err := s.drainer.Gate.Enter(s.Context(), pace.Priority{Class: pace.Foremost})
			if err != nil {
				s.Error(err)
				return
			}
			s.passes(5 * time.Second) // the deletion waits at the gate by now
			changed <- evacuation.Terms{CordonedAt: s.begin}
			s.passes(time.Second)
			leave(0)
			if leave, err = s.drainer.Gate.Enter(s.Context(), pace.Priority{}); err != nil || time.Since(s.begin) > 91*time.Second {
				s.Errorf("what was called off keeps the gate until %s, %v", time.Since(s.begin), err)
				return
			}
			leave(0)
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, changed)
		if err != nil || result.Evicted != 1 || result.Forced != 0 {
			t.Errorf("Drain = %+v, %v, want the pod evicted when its budget lets it go", result, err)
		}
	})
}

func TestAnEvictionMayTakeAsLongAsAWebhookMay(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.hangs = func(string) time.Duration { return 29 * time.Second }
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 29*time.Second)
		s.want(0, "29s evicted a with 30s")
	})
}

func TestAPodThatMustBeForcedIsDeletedBesideAnEvictionThatHangs(t *testing.T) {
	t.Run("when its time has come", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a")
			s.hangs = func(string) time.Duration { return time.Hour }
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
			s.want(0, "25s deleted a with 30s")
			s.wantEnd(result, err, evacuation.Result{Forced: 1}, 25*time.Second)
		})
	})
	t.Run("two seconds later where it has come", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
			s.hangs = func(string) time.Duration { return time.Hour }
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
			s.want(0, "2s deleted a with 56s")
			s.wantEnd(result, err, evacuation.Result{Forced: 1}, lateBindTime)
		})
	})
	t.Run("but not twice where it got through", func(t *testing.T) {
		play(t, func(s *stage) {
			s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
			s.answers, s.behind, s.stops["a"] = time.Hour, time.Hour, 29*time.Second
			result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
			s.want(0, "0s evicted a with 30s")
			s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 29*time.Second)
		})
	})
}

func TestEvictionsThatHangHoldNobodyUpForLong(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Gate = pace.NewGate(maxPending, maxPending)
		for k := range maxPending {
			s.pod(fmt.Sprintf("hangs-%02d", k))
		}
		s.pod("other")
		s.hangs = func(pod string) time.Duration {
			if pod == "other" {
				return 0
			}
			return time.Hour
		}
		go func() {
			s.passes(time.Second)
			for class, want := range map[int]time.Duration{pace.Foremost: time.Second, pace.Normal: answerTime} {
				go func() {
					leave, err := s.drainer.Gate.Enter(s.Context(), pace.Priority{Class: class, Deadline: s.begin})
					if err != nil {
						s.Error(err)
						return
					}
					if waited := time.Since(s.begin); waited != want {
						s.Errorf("a call of class %d has entered after %s, want %s", class, waited, want)
					}
					leave(0)
				}()
			}
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1, Forced: maxPending}, 25*time.Second)
		if requests := s.requests(); requests[0] != "other" || !strings.HasPrefix(s.events[0], "2s ") {
			t.Errorf("%s first, want the pod whose eviction does not hang, after 2 s", s.events[0])
		}
	})
}

// admits delays deletions as an admission webhook does. Each pod takes a little longer than the one before: the fake
// cannot bring the news of all at once.
func (s *stage) admits(after time.Duration) {
	s.drainer.Client = kubetest.Evictable{Interface: s.kube, Evict: s.evict, Admit: func(ctx context.Context, pod string) error {
		k, err := strconv.Atoi(strings.TrimPrefix(pod, "pod-"))
		if err != nil {
			return err
		}
		select {
		case <-time.After(after + time.Duration(k)*time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

func TestANodeFullOfPodsIsEmptyInTimeThoughEachRequestHangs(t *testing.T) {
	const pods = 110
	for name, test := range map[string]struct {
		grace           int64
		evicts, deletes time.Duration // how long a webhook takes
		terms           evacuation.Terms
		latest          time.Duration // when the last deletion has been made
	}{
		"a dead webhook for deletions, with the default timeout of 10 s, that is ignored then": {
			grace: 30, evicts: 0, deletes: 11 * time.Second, terms: evacuation.Terms{IgnoreBudgets: true},
			latest: 13 * time.Second, // 64 at once, each with 2 s at the gate
		},
		"a webhook for evictions that never answers": {
			grace: 600, evicts: time.Hour, latest: 16 * time.Second, // 16 at once, each with 2 s
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.drainer.Gate = pace.NewGate(64, 64)
				for k := range pods {
					s.pod(fmt.Sprintf("pod-%d", k), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &test.grace })
				}
				s.hangs = func(string) time.Duration { return test.evicts }
				s.admits(test.deletes)
				test.terms.Deadline = s.begin.Add(60 * time.Second)
				result, err := s.drain(test.terms, nil)
				if err != nil || result.Forced != pods {
					t.Errorf("Drain = %+v, %v, want %d pods deleted", result, err, pods)
				}
				for _, event := range s.events {
					if at, _ := time.ParseDuration(strings.Fields(event)[0]); at > test.latest {
						t.Errorf("%s: want it %s after the begin at the latest", event, test.latest)
					}
				}
			})
		})
	}
}

func TestADeletionThatFailsLeavesTheOneBesideItItsTime(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		var mu sync.Mutex
		var begun []int // after how many seconds
		s.drainer.Client = kubetest.Evictable{Interface: s.kube, Evict: s.evict, Admit: func(ctx context.Context, _ string) error {
			mu.Lock()
			begun = append(begun, int(time.Since(s.begin)/time.Second))
			mu.Unlock()
			select {
			case <-time.After(15 * time.Second):
			case <-ctx.Done():
			}
			return errors.New("failed calling webhook")
		}}
		if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(22 * time.Second), IgnoreBudgets: true}, nil); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]int{0, 10, 20}, begun); diff != "" {
			t.Errorf("deletions begun (-want +got):\n%s", diff)
		}
	})
}

// What is cut off may be done all the same, and its budget is spent then.
func TestTheLeaderDoesNotLeaveItsNodeWithARequestInFlight(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Self = types.NamespacedName{Namespace: "ns", Name: "self"}
		s.pod("self")
		go func() {
			s.passes(17 * time.Second)
			s.pod("late") // our own pod would be evicted three seconds later
		}()
		s.hangs = func(pod string) time.Duration {
			if pod == "self" {
				return 0
			}
			return 6 * time.Second
		}
		s.pod("stays", func(p *corev1.Pod) { // that it does not end sooner
			runsOn(p)
			p.DeletionTimestamp = new(metav1.NewTime(s.begin.Add(30 * time.Second)))
		})
		if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, nil); err != nil {
			t.Error(err)
		}
		s.want(0, "23s evicted late with 30s", "23s evicted self with 30s", "55s deleted stays with 1s")
	})
}

func denial(code int32, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Details: &metav1.StatusDetails{RetryAfterSeconds: 3600},
		Message: `admission webhook "guard.example.com" denied the request: this is the primary, try again later`,
	}
}

func TestA429OfAWebhookIsTheBusinessOfItsPodAlone(t *testing.T) {
	play(t, func(s *stage) {
		s.drainer.Gate = pace.NewGate(1, 1)
		s.pod("guarded")
		s.pod("other", on("other"))
		s.refuse = func(pod string) *metav1.Status {
			if pod != "guarded" {
				return nil
			}
			return denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
		}
		var refusals []evacuation.Refusal
		var mu sync.Mutex // for two drains
		s.drainer.Observe = func(step evacuation.Answer) {
			mu.Lock()
			defer mu.Unlock()
			refusals = append(refusals, step.Refusal)
		}
		go func() {
			s.passes(100 * time.Millisecond)
			result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: "other", Log: s.log()})
			if took := time.Since(s.begin); result.Evicted != 1 || err != nil || took > time.Second {
				s.Errorf("another node: %+v, %v after %s", result, err, took)
			}
		}()
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 85*time.Second)
		s.want(3, "0s evicted other with 30s", "1m25s deleted guarded with 30s")
		if diff := cmp.Diff([]evacuation.Refusal{evacuation.Failed, "", evacuation.Failed, evacuation.Failed, ""}, refusals); diff != "" {
			t.Errorf("refusals (-want +got):\n%s", diff)
		}
	})
}

func TestAWebhooksAnswerIsNotThatThePodIsGone(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = func(string) *metav1.Status { return denial(http.StatusNotFound, metav1.StatusReasonNotFound) }
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Forced: 1}, 85*time.Second)
	})
}

func TestAnAnswerPutsAPodOffForHalfAMinuteAtMost(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.refuse = func(string) *metav1.Status {
			if time.Since(s.begin) > time.Second {
				return nil
			}
			return denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests) // it asks for an hour
		}
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 30*time.Second)
	})
}

// The deletion failed, the change was put off, the next eviction was refused for an hour.
func TestRetryAfterDoesNotDelayADeletion(t *testing.T) {
	for name, test := range map[string]struct {
		message string
		latest  time.Duration
	}{
		"of a webhook":                {denial(0, "").Message, 125 * time.Second},
		"of an overloaded API server": {"", 128 * time.Second}, // the eviction is tried three times before
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a")
				s.refuse = func(string) *metav1.Status {
					status := denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
					status.Message = test.message
					return status
				}
				s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
					return time.Since(s.begin) < 60*time.Second, nil, errors.New("away")
				})
				changed := make(chan evacuation.Terms)
				go func() {
					tell := func(at time.Duration, terms evacuation.Terms) {
						s.passes(at - time.Since(s.begin))
						terms.CordonedAt = s.begin
						changed <- terms
					}
					tell(10*time.Second, evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}) // from 25 s on it is deleted, in vain
					tell(30*time.Second, evacuation.Terms{})
					tell(50*time.Second, evacuation.Terms{Deadline: s.begin.Add(160 * time.Second)})
				}()
				result, err := s.drain(evacuation.Terms{}, changed)
				took := time.Since(s.begin).Round(time.Second)
				if err != nil || result.Forced != 1 || took < 125*time.Second || took > test.latest {
					t.Errorf("Drain = %+v, %v after %s, want the pod deleted at 125 s to %s", result, err, took, test.latest)
				}
			})
		})
	}
}

// Three evictions were not heard and the deletion has failed, then the deadline was put off.
func TestABudgetIsAskedAgainAfterADeadlineThatWasPutOff(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a")
		s.away = func() bool { return time.Since(s.begin) < 40*time.Second }
		s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return s.away(), nil, errors.New("away")
		})
		changed := make(chan evacuation.Terms)
		go func() {
			s.passes(30 * time.Second) // since 25 s the pod must be forced
			changed <- evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(160 * time.Second), Reserve: true}
		}()
		if _, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(60 * time.Second)}, changed); err != nil {
			t.Error(err)
		}
		s.want(0, "2m5s evicted a with 30s")
	})
}

// Neither a webhook that refuses with 409 nor an API server that gives up on its own
// writes says that the pod is gone.
func TestAConflictThatIsNotOursIsARefusal(t *testing.T) {
	refused := map[string]*metav1.Status{
		"a webhook's": denial(http.StatusConflict, metav1.StatusReasonConflict),
		"the API server's": {
			Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
			Message: `Operation cannot be fulfilled on pods "a": the object has been modified; please apply your changes to the latest version and try again`,
		},
	}
	for name, status := range refused {
		status.Details = nil
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
				tries := 0
				s.refuse = func(string) *metav1.Status {
					if tries++; tries < 4 {
						return status
					}
					return nil
				}
				result, err := s.drain(evacuation.Terms{}, nil)
				s.wantEnd(result, err, evacuation.Result{Evicted: 1}, lateBindTime)
				if tries != 4 {
					t.Errorf("asked %d times, want 4", tries)
				}
			})
		})
		t.Run(name+", for ever", func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
				s.refuse = func(string) *metav1.Status { return status }
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
				s.wantEnd(result, err, evacuation.Result{Forced: 1}, 85*time.Second)
			})
		})
	}
}

// A budget with many evictions at once answers 409 as well. No watch brings news then: the pod has not changed.
func TestAPodIsAskedAgainAfterAConflictThatCannotBeRead(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"it can wait": 0, "it must be forced": 34 * time.Second} {
		t.Run(name, func(t *testing.T) { askedAgainAfterAConflict(t, deadline) })
	}
}

// askedAgainAfterAConflict plays a conflict, after which the pod cannot be read. The next eviction is accepted.
func askedAgainAfterAConflict(t *testing.T, deadline time.Duration) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
		tries := 0
		s.refuse = func(string) *metav1.Status {
			if tries++; tries > 1 {
				return nil
			}
			return &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
				Message: `Operation cannot be fulfilled on poddisruptionbudgets.policy "a": the object has been modified`,
			}
		}
		s.kube.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			_, one := action.(clienttesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch("metadata.name")
			return one, nil, errors.New("away")
		})
		ctx, stop := context.WithTimeout(s.Context(), time.Hour)
		defer stop()
		terms := evacuation.Terms{}
		if deadline > 0 {
			terms.Deadline = s.begin.Add(deadline)
		}
		result, err := s.drainIn(ctx, terms, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, lateBindTime)
	})
}

func TestWhatIsAcceptedAndDoesNotShowIsAskedAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) { p.ResourceVersion = "7" })
		s.swallows = func(string) bool { return time.Since(s.begin) < 20*time.Second }
		result, err := s.drain(evacuation.Terms{}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, watchLag)
		s.want(0, "0s swallowed a", "30s evicted a with 30s")
	})
}

func TestAPodThatWasAcceptedIsNotAskedAgainByAWatchThatIsBehind(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("a", func(p *corev1.Pod) {
			p.ResourceVersion = "7"
			p.Spec.TerminationGracePeriodSeconds = new(int64(60))
		})
		s.behind, s.stops["a"] = time.Hour, 50*time.Second
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(80 * time.Second)}, nil)
		s.want(0, "0s evicted a with 1m0s")
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 50*time.Second)
	})
}

func TestAWebhooksRefusalIsToldFromOthers(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"a webhook's":      {&apierrors.StatusError{ErrStatus: *denial(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)}, true},
		"without a reason": {&apierrors.StatusError{ErrStatus: metav1.Status{Message: `admission webhook "a" denied the request without explanation`}}, true},
		"wrapped":          {fmt.Errorf("evict: %w", &apierrors.StatusError{ErrStatus: *denial(400, metav1.StatusReasonBadRequest)}), true},
		"a budget's":       {&apierrors.StatusError{ErrStatus: *budget("a")}, false},
		"no answer":        {context.DeadlineExceeded, false},
		"a text":           {errors.New(`admission webhook "a" denied the request`), false},
		"none":             {nil, false},
	} {
		if got := denied(test.err); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
