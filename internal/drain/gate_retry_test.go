package drain

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

// Many nodes are drained, so that requests wait at the gate. Pods that a budget keeps wait behind what has not been
// tried, that of other nodes too. They do not keep the other pods of their own node from being tried.
func TestPodsThatABudgetKeepsDoNotKeepOthersFromTheGate(t *testing.T) {
	play(t, func(s *stage) {
		const kept, free = 20, 60
		for k := range kept {
			s.pod(fmt.Sprintf("a-kept-%02d", k))
		}
		for k := range free {
			s.pod(fmt.Sprintf("b-free-%02d", k))
		}
		begun := make(chan struct{}) // else the others keep it from beginning
		begin := sync.OnceFunc(func() { close(begun) })
		s.refuse = func(pod string) *metav1.Status {
			begin()
			if strings.HasPrefix(pod, "a-") {
				return budget(pod)
			}
			return nil
		}
		gate := pace.NewGate(4, 4)
		s.drainer.Gate = gate
		ctx, stop := context.WithTimeout(s.Context(), 2*time.Minute)
		defer stop()
		var others sync.WaitGroup
		for range 8 {
			others.Go(func() {
				<-begun
				for ctx.Err() == nil {
					if leave, err := gate.Enter(ctx, pace.Priority{Rank: pace.Advance}); err == nil {
						time.Sleep(100 * time.Millisecond)
						leave(0)
					}
				}
			})
		}
		_, _ = s.drainIn(ctx, evacuation.Terms{}, nil) // the cause of ctx
		others.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		evicted := 0
		for _, e := range s.events {
			if strings.Contains(e, "evicted b-") {
				evicted++
			}
		}
		if evicted != free {
			t.Errorf("%d of %d pods that nothing keeps were evicted in two minutes", evicted, free)
		}
	})
}
