package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// Every second Event is refused, as the admission plugin EventRateLimit does it. The drains are no slower for that.
func TestEventsThatAreRefusedHoldNoDrainUp(t *testing.T) {
	tier.Full(t, "two storms side by side; internal/kube has what a 429 of an Event holds up")
	s := newScenarioIn(t, shared) // it plays alone: what others do meanwhile would be measured too
	const tries = 3               // the machine may have stalled in one of both
	pulse, free, held := s.feel(), time.Hour, time.Hour
	for try := 1; ; try++ {
		free, held = min(free, s.drainBehind(try, false)), min(held, s.drainBehind(try, true))
		report(t, "20 nodes of 10 pods: the last evicted after %s, and %s where every second Event is refused: %.2f times as long",
			free.Round(time.Millisecond), held.Round(time.Millisecond), held.Seconds()/free.Seconds())
		// A gate that an Event closes would stay closed for a second. Two runs of the same differ by a tenth of that.
		bound := free*11/10 + 200*time.Millisecond
		if held <= bound {
			return
		}
		if try == tries {
			if held > 3*free {
				t.Errorf("%s with Events that are refused, and %s without", held, free)
			}
			pulse.judge("%s with Events that are refused, want %s at most", held, bound)
			return
		}
	}
}

// drainBehind has 20 nodes drained, and returns how long after the warnings the last pod was evicted.
func (s *scenario) drainBehind(try int, refusesEvents bool) time.Duration {
	s.Helper()
	var nodes []node
	prefix, from := fmt.Sprint("free", try), 200*try
	if refusesEvents {
		prefix, from = fmt.Sprint("held", try), 200*try+100
	}
	for k := range 20 {
		n := s.node(fmt.Sprintf("%s-%s-%02d", s.name, prefix, k), s.id(from+k))
		nodes = append(nodes, n)
		for j := range 10 {
			p := s.newPod(fmt.Sprintf("%s-%d", n.name, j), n.name, stopping(20*time.Second, time.Second))
			_, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, p, metav1.CreateOptions{})
			s.must(err)
		}
	}
	var events atomic.Int64
	h := s.launchBehind(func(*handler) proxy.Hooks {
		return proxy.Hooks{Before: func(_ context.Context, call proxy.Call) proxy.Fault {
			if refusesEvents && call.Resource == "events" && events.Add(1)%2 == 0 {
				return proxy.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"5"}}}
			}
			return proxy.Fault{}
		}}
	})
	h.awaitReady()
	h.awaitLead()
	sent := time.Now()
	var messages []string
	for _, n := range nodes {
		message, _ := s.warn(n, 2*time.Minute)
		messages = append(messages, message)
	}
	s.awaitDeleted(soon, messages...)
	h.stop()
	if refusesEvents && events.Load() < 2 {
		s.Errorf("%d Events were written, so none was refused", events.Load())
	}
	var last time.Time
	for _, r := range s.requests("") {
		if r.code < http.StatusMultipleChoices && r.at.After(last) {
			last = r.at
		}
	}
	return last.Sub(sent)
}
