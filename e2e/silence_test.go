package e2e

import (
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// The leader's connections to the API server go silent without being closed, as where a router between them forgets them.
// New ones live. A machine is warned in the same moment.
func TestALeaderLeavesSilentConnectionsAndKeepsItsTerm(t *testing.T) {
	tier.Full(t, "seconds matter; internal/kube plays a silent connection in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("web", n.name, stopping(20*time.Second, time.Second))
	h := s.launchBehind(func(*handler) proxy.Hooks { return proxy.Hooks{} })
	h.awaitReady()
	h.awaitLead()
	pulse := s.feel()
	h.api.Silence()
	silent := time.Now()
	message, deadline := s.warn(n, 2*time.Minute)
	acquired := s.lease().Spec.AcquireTime
	s.eventually("the drain ends", func() bool { return s.isDeleted(message) })
	requests := s.requests("web")
	if len(requests) != 1 || !requests[0].evicts || !requests[0].accepted() {
		t.Fatalf("requests for the pod: %v, want an eviction", requests)
	}
	report(t, "evicted %s after the connections went silent", requests[0].at.Sub(silent).Round(100*time.Millisecond))
	if took := requests[0].at.Sub(silent); took < 3*time.Second {
		t.Errorf("evicted after %s: nothing was silent", took)
	} else {
		pulse.atMost(took, 20*time.Second, "the eviction")
	}
	pulse.before(s.gone("web"), deadline, "gone")
	if again := s.lease().Spec.AcquireTime; !again.Equal(acquired) {
		t.Errorf("the leader has lost its term: it took the lease at %s, and again at %s", acquired, again)
	}
}
