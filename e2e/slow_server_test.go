package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/proxy"
	"github.com/node-termination-handler/node-termination-handler/e2e/release"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// Every answer of the API server comes late, to both replicas, for ten minutes. A part of the answers are errors, or are
// lost.
func TestALeaderKeepsItsTermThoughTheAPIServerAnswersLate(t *testing.T) {
	tier.Full(t, "two minutes; internal/lease plays it in virtual time")
	t.Parallel()
	type weather struct {
		takes time.Duration
		fails float64
		terms int32 // more than one, at most
	}
	cases, size, lasts := []weather{{5 * time.Second, 0, 0}}, 10, time.Minute
	if *everyCall {
		cases = append(cases, weather{2 * time.Second, 0, 0}, weather{2 * time.Second, 0.2, 1}, weather{5 * time.Second, 0.2, 1})
		size, lasts = 100, 10*time.Minute
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("after %s, %.0f %% fail", c.takes, 100*c.fails), func(t *testing.T) {
			s := newScenario(t)
			nodes := s.crowd(size, func(n node) []*corev1.Pod {
				return []*corev1.Pod{
					s.newPod("a-"+n.name, n.name, stopping(20*time.Second, time.Second)),
					s.newPod("b-"+n.name, n.name, stopping(20*time.Second, time.Second)),
				}
			})
			late := func(*handler) proxy.Hooks {
				return proxy.Hooks{Before: func(_ context.Context, call proxy.Call) proxy.Fault {
					if call.Service != proxy.Kubernetes {
						return proxy.Fault{}
					}
					f := proxy.Fault{Latency: c.takes}
					if rand.Float64() < c.fails {
						switch rand.IntN(3) {
						case 0:
							f.Status = http.StatusInternalServerError
						case 1:
							f.Status, f.AfterEffect = http.StatusGatewayTimeout, true
						default:
							f.Half = true
						}
					}
					return f
				}}
			}
			replicas := []*handler{s.launchBehind(late, "--json-logging=true"), s.launchBehind(late, "--json-logging=true")}
			for _, h := range replicas {
				s.within(5*time.Minute, "the handler is ready", func() bool { return h.get(h.probes, "/readyz") == http.StatusOK })
			}
			s.within(2*time.Minute, "one leads", func() bool { return replicas[0].leads() || replicas[1].leads() })
			transitions := s.transitions()
			begin := time.Now()
			sent := map[string]time.Time{}
			var messages []string
			for k, n := range nodes {
				if k >= size/2 { // half of them at once, the others one after another
					s.pause(lasts / 2 / time.Duration(size))
				}
				sent[n.name] = time.Now()
				message, _ := s.warn(n, 2*time.Minute)
				messages = append(messages, message)
			}
			s.awaitDeleted(90*time.Second, messages...)
			s.pause(time.Until(begin.Add(lasts)))
			var slowest time.Duration
			for k, n := range nodes {
				if pods := s.podsOn(n.name); len(pods) > 0 {
					t.Errorf("%d pods are still on %s", len(pods), n.name)
				}
				slowest = max(slowest, s.deleted(messages[k]).Sub(sent[n.name]))
			}
			terms := s.transitions() - transitions
			report(t, "answers after %s, %.0f %% fail, for %s: %d changes of leader; the slowest of %d nodes was drained %s after its notice",
				c.takes, 100*c.fails, lasts, terms, size, slowest.Round(time.Second))
			if terms > c.terms {
				t.Errorf("%d changes of leader, want %d at most", terms, c.terms)
			}
			drained, resumed := 0., 0
			for _, h := range replicas {
				drained += h.metric(drains)
				resumed += len(h.logged("resuming the drain that an earlier leader began"))
			}
			if drained != float64(size) {
				t.Errorf("%v drains are counted, want %d", drained, size)
			}
			if terms == 0 && resumed > 0 {
				t.Errorf("%d drains were resumed", resumed)
			}
		})
	}
}

// transitions is how often the Lease has changed hands.
func (s *scenario) transitions() int32 {
	s.Helper()
	return *s.lease().Spec.LeaseTransitions
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
