package drain

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// A pod is forced at its last moment if its grace period fits into the notice, whoever looks at it when. Else its budget
// has its share first.
func TestWhenAPodIsForced(t *testing.T) {
	for _, tt := range []struct {
		name    string
		pod     podState
		grace   int
		share   float64
		created int // seconds after the notice, which comes 120 s before its deadline
		want    int
	}{
		{name: "it fits", grace: 60, share: .5, want: 55},
		{name: "by a second", grace: 114, share: 1, want: 1},
		{name: "it does not fit", grace: 115, share: .5, want: 57},
		{name: "by far", grace: 604_800, share: .5, want: 57},
		{name: "and the budget has no share", grace: 604_800, want: 0},
		{name: "or all", grace: 604_800, share: 1, want: 115},
		{name: "of a pod that came before the notice", grace: 180, share: .5, created: -1000, want: 57},
		{name: "of one that came later", grace: 180, share: .5, created: 40, want: 77},
		{name: "which fits", grace: 60, share: .5, created: 40, want: 55},
		{name: "or does not fit any more", grace: 60, share: .5, created: 60, want: 87},
		{name: "two budgets never allow it", pod: podState{hopeless: true}, grace: 180, share: .5, want: -65},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pod
			p.grace, p.created = time.Duration(tt.grace)*time.Second, at(tt.created)
			got := p.forceAt(evacuation.Terms{Deadline: at(120), NoticedAt: now, BudgetShare: tt.share})
			if got := got.Sub(now).Truncate(time.Second); got != time.Duration(tt.want)*time.Second {
				t.Errorf("forced after %s, want %d s", got, tt.want)
			}
		})
	}
}

func TestADeletionGoesBeforeEvictionsAtTheGate(t *testing.T) {
	terms := evacuation.Terms{Deadline: at(30), NoticedAt: now}
	p := podState{grace: 30 * time.Second}
	deletion, eviction := priorityOf(p, step{kind: stepDelete}, terms, now), priorityOf(p, step{kind: stepEvict}, terms, now)
	if deletion.Class != eviction.Class || deletion.Rank >= eviction.Rank {
		t.Errorf("a deletion has %+v, an eviction %+v", deletion, eviction)
	}
}

// Nobody has refused it, and each second that it waits at the gate is one of its grace period.
func TestAPodThatLosesOfItsGraceGoesFirstAtTheGate(t *testing.T) {
	terms := evacuation.Terms{Deadline: at(120), NoticedAt: now, BudgetShare: .5}
	for refused, urgently := range map[int]bool{0: true, 1: false} {
		p := podState{grace: 180 * time.Second, refused: refused}
		if got := priorityOf(p, step{kind: stepEvict}, terms, at(3)).Class == pace.Urgent; got != urgently {
			t.Errorf("refused %d times it is urgent: %t", refused, got)
		}
	}
}

// A number that the API server takes as a grace period is no moment in the past.
func TestAGraceOfCenturiesDoesNotFit(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(math.MaxInt64))}}
	p := newPodState(pod, -1, types.NamespacedName{}, now)
	terms := evacuation.Terms{Deadline: at(120), NoticedAt: now, BudgetShare: .5}
	p.reconsider(pod, decision.Rules{}, terms, now)
	if at := p.forceAt(terms).Sub(now); p.fits(terms) || at > time.Minute {
		t.Errorf("it fits: %t; it is forced after %s", p.fits(terms), at)
	}
}

// Three members of a quorum are warned in the same second. Each stops in 3 s, whatever it asks for, and its successor is
// ready 15 s later.
func TestABudgetCountsThoughAGraceDoesNotFitIntoTheNotice(t *testing.T) {
	for _, grace := range []int64{30, 180, 604_800} {
		t.Run(fmt.Sprint(grace), func(t *testing.T) {
			play(t, func(s *stage) {
				var mu sync.Mutex
				allowed, ready, fewest := 1, 3, 3
				s.refuse = func(pod string) *metav1.Status {
					mu.Lock()
					defer mu.Unlock()
					if allowed == 0 {
						return budget(pod)
					}
					allowed--
					return nil
				}
				s.stopped = func(*corev1.Pod) { // also one that was deleted
					mu.Lock()
					defer mu.Unlock()
					ready--
					fewest = min(fewest, ready)
					time.AfterFunc(15*time.Second, func() {
						mu.Lock()
						defer mu.Unlock()
						allowed++
						ready++
					})
				}
				deadline := s.begin.Add(2 * time.Minute)
				nodes := []string{"one", "two", "three"}
				for _, node := range nodes {
					s.pod(node, func(p *corev1.Pod) {
						p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = node, &grace
					})
					s.stops[node] = 3 * time.Second
				}
				var drains sync.WaitGroup
				for _, node := range nodes {
					drains.Go(func() {
						terms := evacuation.Terms{CordonedAt: s.begin, Deadline: deadline, NoticedAt: s.begin, BudgetShare: .5}
						result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: node, Terms: terms, Log: s.log()})
						if err != nil || result.Evicted != 1 {
							t.Errorf("%s: %+v, %v, want its pod evicted", node, result, err)
						}
					})
				}
				drains.Wait()
				mu.Lock()
				defer mu.Unlock()
				if took := time.Since(s.begin); fewest < 2 || took > time.Minute {
					t.Errorf("gone after %s, with %d of three ready at worst", took, fewest)
				}
			})
		})
	}
}

// What its budget keeps beyond its share is deleted, with what is left of the notice.
func TestABudgetThatAllowsNothingHasItsShare(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("kept", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(604_800)) })
		s.pod("free", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(604_800)) })
		s.stops["kept"], s.stops["free"] = time.Hour, 100*time.Second
		s.refuse = func(pod string) *metav1.Status {
			if pod == "kept" {
				return budget(pod)
			}
			return nil
		}
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), NoticedAt: s.begin, BudgetShare: .5}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1, Forced: 1}, 120*time.Second-killTime)
		s.mu.Lock()
		refused := len(s.events) - 2
		s.mu.Unlock()
		s.want(refused, "0s evicted free with 1m58s", "58s deleted kept with 1m0s")
		if want := []string{"ns/kept after 1m of 7d"}; !slices.Equal(result.Record.CutShort, want) {
			t.Errorf("cut short are %q, want %q", result.Record.CutShort, want)
		}
		if refused < 6 {
			t.Errorf("its budget was asked %d times in 57 s", refused)
		}
	})
}

// With budgets: 0 of the policy file.
func TestABudgetWithoutAShareIsAskedOnce(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("kept", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(604_800)) })
		s.stops["kept"] = 100 * time.Second
		s.refuse = budget
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), NoticedAt: s.begin}, nil)
		if err != nil || result.Forced != 1 || result.Evicted != 0 {
			t.Errorf("%+v, %v", result, err)
		}
		s.want(1, "0s deleted kept with 1m58s")
	})
}

// A webhook has the share that a budget has, be it there or away.
func TestAWebhookHasItsShareThoughAGraceDoesNotFitIntoTheNotice(t *testing.T) {
	away := forbidden(`Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: Post "https://a.b.svc/": EOF`)
	away.Code, away.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	busy := deniedBy("guard.example.com")
	busy.Code, busy.Reason = http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests
	for name, status := range map[string]*metav1.Status{"it denies": deniedBy("guard.example.com"), "with a 429": busy, "it is away": away} {
		for refuses, want := range map[time.Duration]evacuation.Result{20 * time.Second: {Evicted: 1}, time.Hour: {Forced: 1}} {
			t.Run(fmt.Sprintf("%s for %s", name, refuses), func(t *testing.T) {
				play(t, func(s *stage) {
					s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(180)) })
					s.stops["slow"] = 3 * time.Second
					s.refuse = func(string) *metav1.Status {
						if time.Since(s.begin) < refuses {
							return status
						}
						return nil
					}
					result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), NoticedAt: s.begin, BudgetShare: .5}, nil)
					if err != nil || result.Evicted != want.Evicted || result.Forced != want.Forced {
						t.Errorf("%+v, %v, want %+v", result, err, want)
					}
					asked := result.Record.LastAsked.Sub(s.begin)
					if from, to := min(refuses, 57*time.Second), min(refuses+12*time.Second, 58*time.Second); asked < from || asked > to {
						t.Errorf("it was asked to go after %s, want %s to %s", asked, from, to)
					}
				})
			})
		}
	}
}

// A pod that must be killed anyway is killed early enough: its kubelet confirms that before the deadline.
func TestThePodThatIsCutShortIsGoneAtTheDeadline(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.stops["slow"], s.confirms = time.Hour, killTime-time.Second
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second)}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1}, 119*time.Second)
		if want := []string{"ns/slow after 1m58s of 10m"}; !slices.Equal(result.Record.CutShort, want) {
			t.Errorf("cut short are %q, want %q", result.Record.CutShort, want)
		}
	})
}

// The leader that comes after the first half of the notice has the same plan as the one before.
func TestTheNextLeaderForcesWhenTheFirstWouldHave(t *testing.T) {
	for grace, want := range map[int64]string{60: "1m10s deleted kept with 48s", 180: "1m10s deleted kept with 48s"} {
		t.Run(fmt.Sprint(grace), func(t *testing.T) {
			play(t, func(s *stage) {
				s.pod("kept", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &grace })
				s.refuse = budget
				time.Sleep(70 * time.Second)
				result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), NoticedAt: s.begin, BudgetShare: .5}, nil)
				if err != nil || result.Forced != 1 {
					t.Errorf("%+v, %v", result, err)
				}
				s.want(1, want)
			})
		})
	}
}

// What ran when the deadline came has left late. What had ended before the drain began has not.
func TestTheLastPodThatRanIsTheEndOfADrain(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("job", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(-10 * time.Second)}, nil)
		if err != nil || !result.Record.LastLeft.IsZero() || len(result.Record.CutShort) > 0 {
			t.Errorf("%+v, %v, and nothing ran", result, err)
		}
	})
	play(t, func(s *stage) {
		s.pod("web")
		s.stops["web"] = time.Second
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(2 * time.Second)}, nil)
		if took := result.Record.LastLeft.Sub(s.begin); err != nil || took.Round(time.Second) != time.Second {
			t.Errorf("%+v, %v, the last pod left after %s", result, err, took)
		}
	})
}

// A tighter deadline kills what is stopping already.
// Its own grace would end at the deadline itself: too late for its kubelet to confirm it.
func TestAPodWhoseGraceEndsAtTheNextDeadlineIsCutShort(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(120)) })
		s.stops["slow"], s.confirms = time.Hour, killTime-time.Second
		terms := make(chan evacuation.Terms, 1)
		go func() {
			if s.passes(time.Second) {
				terms <- evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(120 * time.Second)}
			}
		}()
		result, err := s.drain(evacuation.Terms{}, terms)
		if err != nil || result.Evicted+result.Forced != 1 || len(result.Missed) > 0 {
			t.Errorf("%+v, %v, want it gone in time", result, err)
		}
	})
}

func TestAPodThatATighterDeadlineKillsIsCutShort(t *testing.T) {
	play(t, func(s *stage) {
		s.pod("slow", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.pod("quick", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(600)) })
		s.stops["slow"], s.stops["quick"] = time.Hour, 3*time.Second
		terms := make(chan evacuation.Terms, 1)
		go func() {
			if s.passes(100 * time.Second) {
				terms <- evacuation.Terms{CordonedAt: s.begin, Deadline: s.begin.Add(160 * time.Second)}
			}
		}()
		result, err := s.drain(evacuation.Terms{}, terms)
		want := []string{"ns/slow after 2m36s of 10m"}
		if err != nil || result.Evicted+result.Forced != 2 || !slices.Equal(result.Record.CutShort, want) {
			t.Errorf("%+v, %v, want cut short %q", result, err, want)
		}
	})
}
