package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/browser"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// chromium is the browser. Without it the test is skipped, unless REQUIRE_CHROMIUM is set, as make test-all does.
func chromium(t *testing.T) *browser.Browser {
	t.Helper()
	b, err := browser.New(t.Context(), "..")
	switch {
	case errors.Is(err, browser.ErrMissing) && os.Getenv("REQUIRE_CHROMIUM") == "" && *pictures == "":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	return b
}

// A storm hits a cluster that has quieter drains already: some drains have ended, some in time and some not, and
// others wait for what drains wait for.
func TestAStormIsSeenOnThePage(t *testing.T) {
	tier.Full(t, "Chromium and 30 nodes")
	b := chromium(t)
	s := newScenario(t)
	const quick, late, slow, guarded, advised, planned = 12, 2, 8, 4, 2, 2
	labelled := func(app string, grace int64, stop time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": app}
			p.Spec.TerminationGracePeriodSeconds = &grace
			p.Annotations[sandbox.StopAfter] = stopAfter(stop)
		}
	}
	at := 0
	nodes := s.crowd(quick+late+slow+guarded+advised+planned, func(n node) []*corev1.Pod {
		var k int
		_, err := fmt.Sscanf(n.name, s.name+"-%d", &k)
		s.must(err)
		pods := []*corev1.Pod{
			s.newPod(n.name+"-a", n.name, labelled("quick", 10, 200*time.Millisecond)),
			s.newPod(n.name+"-b", n.name, labelled("quick", 10, 200*time.Millisecond)),
		}
		edit := labelled("quick", 10, 200*time.Millisecond)
		switch {
		case k < late:
			edit = func(p *corev1.Pod) { p.Finalizers = []string{"example.com/backup"} }
		case k < late+quick:
		case k < late+quick+slow:
			edit = labelled("slow", 60, 50*time.Second)
		case k%2 == 0:
			edit = labelled("web", 10, 200*time.Millisecond)
		default:
			edit = labelled("data", 10, 200*time.Millisecond)
		}
		return append(pods, s.newPod(n.name+"-c", n.name, edit))
	})
	next := func(n int) []node {
		at += n
		return nodes[at-n : at]
	}
	s.budget("web", "web", 4)
	s.budget("data", "data", 4)
	s.budget("brokers", "data", 4) // two budgets cover the same pods
	h := s.leader()

	now := time.Now()
	for _, n := range next(late) { // a notice that comes after its deadline would force nothing
		s.send(s.bodyAt(now.Add(-95*time.Second), "spot-interruption", n.instance))
	}
	for _, n := range next(quick) {
		s.send(s.bodyAt(now, "spot-interruption", n.instance))
	}
	for k, n := range next(slow) {
		s.send(s.bodyAt(now.Add(-time.Duration(6*k)*time.Second), "spot-interruption", n.instance))
	}
	for k, n := range next(guarded) {
		s.send(s.bodyAt(now.Add(-time.Duration(9*k)*time.Second), "capacity-reservation-interruption", n.instance))
	}
	for _, n := range next(advised) {
		s.send(s.body("rebalance-recommendation", n.instance))
	}
	for _, n := range next(planned) {
		s.send(s.body("health-reboot-scheduled", n.instance, startTime, startIn(30*time.Hour)))
	}
	s.eventually("drains have ended and others wait", func() bool {
		o, past := h.overview(), h.history()
		waits := 0
		for _, n := range o.Nodes {
			if !n.Deadline.IsZero() && n.Deadline.Before(o.At.Add(20*time.Second)) {
				return false // one that is late is still in it
			}
			waits += min(len(n.WaitsFor), 1)
		}
		missed := 0
		for _, e := range past.Episodes {
			if e.Outcome == "missed" {
				missed++
			}
		}
		return len(past.Episodes) >= quick+late && missed >= late && waits >= guarded+advised+planned
	})

	url := fmt.Sprintf("http://127.0.0.1:%d/", h.metrics)
	status, html := h.fetch(h.metrics, "/")
	if status != http.StatusOK || !strings.Contains(html, "<bdi>"+s.name+"/web</bdi>") || !strings.Contains(html, "missed the deadline") {
		t.Errorf("status %d, and it does not say what blocks or what was missed: %s", status, html)
	}
	follower := s.start()
	s.eventually("the page of a replica that stands by names the leader", func() bool {
		status, html := follower.fetch(follower.metrics, "/")
		return status == http.StatusServiceUnavailable && strings.Contains(html, "The leader is <bdi>")
	})
	if *pictures != "" {
		s.must(os.MkdirAll(*pictures, 0o750))
	}
	seen, err := b.Look(s.ctx, browser.Look{
		URL: url, Refresh: true, Pictures: *pictures,
		Count: map[string]string{
			"rows": "#progress tbody tr", "lanes": "svg.lane", "bands": ".band", "dots": ".dot", "missed": ".dot.bad", "slack": ".slack", "blocks": "#blocks tbody tr",
		},
	})
	s.must(err)
	for _, problem := range seen.Problems(url) {
		t.Error(problem)
	}
	// Slow drains may have ended since.
	for name, least := range map[string]int{
		"rows": advised + planned, "lanes": advised + planned, "bands": 2, "dots": quick + late, "missed": late, "blocks": 2,
	} {
		if seen.Count[name] < least {
			t.Errorf("%d %s, want %d or more: %v", seen.Count[name], name, least, seen.Count)
		}
	}
	if seen.Count["lanes"] != seen.Count["rows"] || !seen.Refreshed || !seen.KeptFocus || !seen.Pauses {
		t.Errorf("%v, refreshed: %t, focus kept: %t, paused: %t", seen.Count, seen.Refreshed, seen.KeptFocus, seen.Pauses)
	}
}
