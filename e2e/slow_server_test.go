package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// Every answer of the API server comes late, to both replicas. A part of the answers are errors, or are lost. Twenty
// machines get their warning at once, or a hundred. The times have room for these: their cordons are two rounds at the
// gate.
func TestALeaderKeepsItsTermThoughTheAPIServerAnswersLate(t *testing.T) {
	tier.Full(t, "two minutes; internal/lease and internal/app play it in virtual time")
	t.Parallel()
	size, lasts := 20, time.Minute
	if *everyCall {
		size, lasts = 100, 10*time.Minute
	}
	for _, c := range []struct {
		takes    time.Duration
		fails    float64
		changes  int           // of the leader, at most
		cordoned time.Duration // the last node, after the warnings, at most
		empty    time.Duration // the last node, after the warnings, at most: some twice what was measured
	}{
		{2 * time.Second, 0, 0, 10 * time.Second, 45 * time.Second},
		{5 * time.Second, 0, 0, 25 * time.Second, 90 * time.Second},
		{2 * time.Second, 0.2, 1, 30 * time.Second, 60 * time.Second},
	} {
		t.Run(fmt.Sprintf("after %s, %.0f %% fail", c.takes, 100*c.fails), func(t *testing.T) {
			s := newScenario(t)
			nodes := s.crowd(size, func(n node) []*corev1.Pod {
				return []*corev1.Pod{
					s.newPod("a-"+n.name, n.name, stopping(20*time.Second, time.Second)),
					s.newPod("b-"+n.name, n.name, stopping(20*time.Second, time.Second)),
				}
			})
			late := func(*handler) proxy.Hooks { return lateAnswers(c.takes, c.fails) }
			began := time.Now()
			replicas := []*handler{s.launchBehind(late), s.launchBehind(late)}
			for _, h := range replicas {
				s.eventually("the handler is ready", func() bool { return h.get(h.probes, "/readyz") == http.StatusOK })
			}
			s.eventually("one leads", func() bool { return len(leaders(replicas)) == 1 })
			leads := time.Since(began)

			pulse, sent := s.feel(), time.Now()
			var messages []string
			var deadline time.Time
			for _, n := range nodes {
				var message string
				message, deadline = s.warn(n, 2*time.Minute)
				messages = append(messages, message)
			}
			changes, leader := 0, leaders(replicas)
			for time.Since(sent) < lasts || slices.ContainsFunc(messages, func(m string) bool { return !s.isDeleted(m) }) {
				if time.Now().After(deadline.Add(max(lasts, soon))) {
					t.Fatal("messages are left")
				}
				if now := leaders(replicas); !slices.Equal(now, leader) {
					if slices.ContainsFunc(leader, func(led int) bool { return !slices.Contains(now, led) }) {
						changes++
					}
					leader = now
				}
				s.pause(500 * time.Millisecond)
			}
			stopped, first := s.stopped(), map[string]time.Time{}
			for _, e := range s.writes() {
				if _, again := first[e.Name]; e.Resource == "nodes" && e.Code < 300 && !again {
					first[e.Name] = e.Received
				}
			}
			if len(first) != size {
				t.Fatalf("%d nodes were patched, want %d", len(first), size)
			}
			cordoned := slices.MaxFunc(slices.Collect(maps.Values(first)), time.Time.Compare)
			empty := slices.MaxFunc(slices.Collect(maps.Values(stopped)), time.Time.Compare)
			report(t, "answers after %s, %.0f %% fail: a replica led after %s; %d changes of leader; the last of %d nodes was cordoned %s after the warnings, and empty after %s",
				c.takes, 100*c.fails, leads.Round(time.Second), changes, size, cordoned.Sub(sent).Round(100*time.Millisecond), empty.Sub(sent).Round(100*time.Millisecond))
			pulse.atMost(cordoned.Sub(sent), c.cordoned, "the cordon of the last node")
			if len(stopped) != 2*size {
				t.Errorf("%d pods have stopped, want %d", len(stopped), 2*size)
			}
			pulse.atMost(empty.Sub(sent), c.empty, "the drains to the last pod")
			pulse.before(empty, deadline, "the last node was empty")
			if changes > c.changes+3 { // on any machine
				t.Errorf("the leader has changed %d times, want %d at most", changes, c.changes)
			} else if changes > c.changes {
				pulse.judge("the leader has changed %d times, want %d at most", changes, c.changes)
			}
			if drained := replicas[0].metric(drains) + replicas[1].metric(drains); drained != float64(size) {
				pulse.judge("%v drains in time are counted, want %d", drained, size)
			}
			counted := 0.0
			for _, r := range replicas {
				counted += r.sum("node_termination_handler_drains_total")
			}
			if counted != float64(size) {
				t.Errorf("%v drains are counted, want %d, each once", counted, size)
			}
		})
	}
}

// lateAnswers are those of an API server that is slow and fails now and then.
func lateAnswers(takes time.Duration, fails float64) proxy.Hooks {
	return proxy.Hooks{Before: func(_ context.Context, call proxy.Call) proxy.Fault {
		if call.Service != proxy.Kubernetes {
			return proxy.Fault{}
		}
		f := proxy.Fault{Latency: takes}
		if rand.Float64() < fails {
			switch rand.IntN(3) {
			case 0:
				f.Status = http.StatusServiceUnavailable
			case 1:
				f.Status, f.AfterEffect = http.StatusGatewayTimeout, true
			default:
				f.Half = true
			}
		}
		return f
	}}
}

// leaders are the replicas that lead by their own metric. The Lease does not tell: one that loses it may take it back.
func leaders(replicas []*handler) (leading []int) {
	for k, h := range replicas {
		if h.metric("node_termination_handler_leading") == 1 {
			leading = append(leading, k)
		}
	}
	return leading
}

// lease is what the replicas share.
func (s *scenario) lease() *coordinationv1.Lease {
	s.Helper()
	lease, err := s.kube.CoordinationV1().Leases(s.name).Get(s.ctx, release.Name, metav1.GetOptions{})
	s.must(err)
	return lease
}

// pause waits, unless the test ends.
func (s *scenario) pause(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}
