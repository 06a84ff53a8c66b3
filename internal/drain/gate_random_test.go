package drain

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// Others hold the slots of the gate, terms change, pods go by themselves, and evictions are refused or hang, all at
// random. However a drain ends, all slots are free then, and one without a deadline gets all pods off.
func TestHoweverADrainEndsItHoldsNoSlot(t *testing.T) {
	for seed := range uint64(15) {
		play(t, func(s *stage) {
			random := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			up := func(to int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(to)
			}
			slots := 1 + up(3)
			gate := pace.NewGate(slots, slots)
			s.drainer.Gate = gate
			pods := 1 + up(30)
			for k := range pods {
				name := fmt.Sprint("pod-", k)
				s.pod(name)
				s.stops[name] = time.Duration(up(30000)) * time.Millisecond
			}
			s.answers = time.Duration(up(2000)) * time.Millisecond
			s.refuse = func(string) *metav1.Status {
				if up(3) == 0 {
					return budget("")
				}
				return nil
			}
			if up(3) == 0 {
				s.hangs = func(string) time.Duration { return time.Duration(up(15)) * time.Second }
			}
			terms := make(chan evacuation.Terms, 1)
			ctx, cancel := context.WithCancelCause(s.Context())
			defer cancel(nil)
			over := make(chan struct{})
			var beside sync.WaitGroup
			for range 2 { // others at the gate
				beside.Go(func() {
					for {
						select {
						case <-over:
							return
						case <-time.After(time.Duration(up(3000)) * time.Millisecond):
						}
						p := pace.Priority{Class: up(3)}
						enter, stop := context.WithTimeout(ctx, time.Duration(1+up(3000))*time.Millisecond)
						leave, err := gate.Enter(enter, p)
						stop()
						if err != nil {
							continue
						}
						time.Sleep(time.Duration(up(1500)) * time.Millisecond)
						busy := time.Duration(0)
						if up(20) == 0 {
							busy = time.Second
						}
						leave(busy)
					}
				})
			}
			deadline := up(2) == 0
			first := evacuation.Terms{CordonedAt: s.begin}
			beside.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-over:
						return
					case <-time.After(time.Duration(up(8000)) * time.Millisecond):
					}
					next := evacuation.Terms{CordonedAt: s.begin, Reserve: up(3) == 0}
					if deadline {
						next.Deadline = s.begin.Add(time.Duration(120+up(200)) * time.Second)
						next.IgnoreBudgets = up(6) == 0
						next.Patient = up(4) == 0
					} else if k > 20 {
						next.Reserve = false
					}
					select {
					case <-terms:
					default:
					}
					terms <- next
				}
			})
			beside.Go(func() { // pods that go by themselves
				for range 5 {
					select {
					case <-over:
						return
					case <-time.After(time.Duration(up(20000)) * time.Millisecond):
					}
					_ = s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", fmt.Sprint("pod-", up(pods)))
				}
			})
			stopped := up(3) == 0
			if stopped {
				beside.Go(func() {
					select {
					case <-over:
					case <-time.After(time.Duration(up(90000)) * time.Millisecond):
						cancel([]error{errors.New("lease lost"), evacuation.ErrMachineGone}[up(2)])
					}
				})
			}
			watchdog, bark := context.WithTimeoutCause(ctx, 2*time.Hour, errors.New("it does not end"))
			result, err := s.drainIn(watchdog, first, terms)
			bark()
			close(over)
			beside.Wait()
			if !stopped && err != nil {
				t.Errorf("seed %d: %v, %+v", seed, err, result)
			}
			if !stopped && !deadline {
				if got := result.Evicted + result.Ended; got != pods {
					t.Errorf("seed %d: %d of %d pods have left", seed, got, pods)
				}
			}
			time.Sleep(time.Minute)
			var leaves []func(time.Duration)
			for range gate.Bound() {
				enter, stop := context.WithTimeout(s.Context(), time.Millisecond)
				leave, err := gate.Enter(enter, pace.Priority{})
				stop()
				if err != nil {
					t.Fatalf("seed %d: %d of %d slots are free at the end", seed, len(leaves), gate.Bound())
				}
				leaves = append(leaves, leave)
			}
			for _, leave := range leaves {
				leave(0)
			}
		})
	}
}
