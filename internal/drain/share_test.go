package drain

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
)

// A pod is forced at its last moment if its grace period fits into the notice. Else its budget has its share first.
func TestWhenAPodIsForced(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace int
		share float64
		since int // how long ago the pod got its deadline, which is 120 s ahead of that
		want  int // seconds after it did
	}{
		{"it fits", 114, .5, 0, 1},
		{"it fits, by a second at last", 114, 1, 0, 1},
		{"it does not fit", 115, .5, 0, 57},
		{"by far", 604_800, .5, 0, 57},
		{"and the budget has no share", 604_800, 0, 0, 0},
		{"or all", 604_800, 1, 0, 115},
		{"it did not fit when the notice came", 180, .5, 40, 57},
	} {
		t.Run(tt.name, func(t *testing.T) {
			came := at(-tt.since)
			p := podState{grace: time.Duration(tt.grace) * time.Second, since: came}
			got := p.forceAt(evacuation.Terms{Deadline: came.Add(120 * time.Second), BudgetShare: tt.share})
			if got := got.Sub(came).Truncate(time.Second); got != time.Duration(tt.want)*time.Second {
				t.Errorf("forced after %s, want %d s", got, tt.want)
			}
		})
	}
}

func TestAnotherDeadlineBeginsAnewForABudget(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(3600))}}
	for _, tt := range []struct {
		name   string
		before int // the deadline that it has first, in seconds after the begin of its drain; 0: none
		at, to int // when it gets another, and which
		want   int
	}{
		{"a spot warning during a drain without a deadline", 0, 300, 420, 357},
		{"a nearer deadline", 605, 60, 120, 87},
		{"nearer, when the pod must be forced already", 605, 310, 420, 207},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPodState(pod, -1, types.NamespacedName{}, now)
			terms := evacuation.Terms{BudgetShare: .5}
			if tt.before > 0 {
				terms.Deadline = at(tt.before)
			}
			p.reconsider(pod, decision.Rules{}, terms, now)
			terms.Deadline = at(tt.to)
			p.reconsider(pod, decision.Rules{}, terms, at(tt.at))
			if got := p.forceAt(terms).Sub(now).Truncate(time.Second); got != time.Duration(tt.want)*time.Second {
				t.Errorf("forced after %s, want %d s", got, tt.want)
			}
		})
	}
}

// Three members of a quorum are warned in the same second. Each stops in 3 s, whatever it asks for, and its successor is
// ready 15 s later.
func TestABudgetCountsThoughAGraceDoesNotFitIntoTheNotice(t *testing.T) {
	for _, grace := range []int64{30, 180, 604_800} {
		t.Run(fmt.Sprint(grace), func(t *testing.T) {
			play(t, func(s *stage) {
				var mu sync.Mutex
				ready, fewest := 3, 3
				s.refuse = func(pod string) *metav1.Status {
					mu.Lock()
					defer mu.Unlock()
					if ready < 3 {
						return budget(pod)
					}
					ready--
					fewest = min(fewest, ready)
					return nil
				}
				s.stopped = func(*corev1.Pod) {
					time.AfterFunc(15*time.Second, func() {
						mu.Lock()
						defer mu.Unlock()
						ready++
					})
				}
				deadline := s.begin.Add(2 * time.Minute)
				var drains sync.WaitGroup
				for _, node := range []string{"one", "two", "three"} {
					s.pod(node, func(p *corev1.Pod) {
						p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = node, &grace
					})
					s.stops[node] = 3 * time.Second
					drains.Go(func() {
						terms := evacuation.Terms{CordonedAt: s.begin, Deadline: deadline, BudgetShare: .5}
						result, err := s.drainer.Drain(s.Context(), &evacuation.Request{Node: node, Terms: terms, Log: s.log()})
						if err != nil || result.Evicted != 1 {
							t.Errorf("%s: %+v, %v, want its pod evicted", node, result, err)
						}
					})
				}
				drains.Wait()
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
		result, err := s.drain(evacuation.Terms{Deadline: s.begin.Add(120 * time.Second), BudgetShare: .5}, nil)
		s.wantEnd(result, err, evacuation.Result{Evicted: 1, Forced: 1}, 120*time.Second)
		s.mu.Lock()
		refused := len(s.events) - 2
		s.mu.Unlock()
		s.want(refused, "0s evicted free with 2m0s", "58s deleted kept with 1m2s")
		if refused < 6 {
			t.Errorf("its budget was asked %d times in 57 s", refused)
		}
	})
}
