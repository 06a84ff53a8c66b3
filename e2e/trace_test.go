package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestANoticeIsOneTraceInACollector(t *testing.T) {
	tier.Full(t, "internal/trace and internal/telemetry have it")
	s := newScenario(t)
	nodes := s.nodes(3)
	s.deployment("web", 3)
	spans := s.collector()
	h := s.leader()
	warned := s.body("spot-interruption", nodes[0].instance)
	recommended := s.body("rebalance-recommendation", nodes[0].instance)
	foreign := s.send(s.body("spot-interruption", s.id(77)))
	s.awaitDeleted(soon, s.send(warned), s.send(recommended))
	evicted := s.evictions()
	if len(evicted) == 0 {
		t.Error("no pod was evicted")
	}
	want := []string{"RebalanceRecommendation", "SpotInterruption", "cordon", "cordon", "drain", "resolve", "resolve", "settle", "settle"}
	for range evicted {
		want = append(want, "evict")
	}
	slices.Sort(want)
	if status := h.stop(); status != 0 { // sends what is left
		t.Errorf("exit status %d", status)
	}
	got := spans()
	var names []string
	roots := map[string]*tracepb.Span{} // by trace
	for _, span := range got {
		names = append(names, span.GetName())
		if len(span.GetParentSpanId()) == 0 {
			roots[string(span.GetTraceId())] = span
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "await volumes" })
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	if len(roots) != 2 || s.isDeleted(foreign) {
		t.Errorf("%d traces, want one a notice, and none of the foreign one", len(roots))
	}
	doc, err := os.ReadFile("../docs/traces.md")
	s.must(err)
	for _, span := range got {
		if len(span.GetParentSpanId()) > 0 && !strings.Contains(string(doc), "\n| `"+span.GetName()+"` |") {
			t.Errorf("docs/traces.md has no row for %s", span.GetName())
		}
		root := roots[string(span.GetTraceId())]
		if root == nil {
			t.Errorf("the trace of %s has no root", span.GetName())
			continue
		}
		if span.GetStartTimeUnixNano() < root.GetStartTimeUnixNano() {
			t.Errorf("%s began before its notice was received", span.GetName())
		}
		// Whichever came second waits for the drain of the other.
		if span.GetName() == "drain" && (len(span.GetLinks()) != 1 || roots[string(span.GetLinks()[0].GetTraceId())] == nil) {
			t.Errorf("links of the drain: %v", span.GetLinks())
		}
		if span.GetName() == "evict" && !strings.Contains(fmt.Sprint(span.GetAttributes()), s.name+"/web-") {
			t.Errorf("attributes of an eviction: %v", span.GetAttributes())
		}
	}
}

func TestACollectorThatHangsDelaysNothing(t *testing.T) {
	tier.Full(t, "internal/telemetry has it")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 2)
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	s.Cleanup(server.Close)
	s.Cleanup(func() { close(release) })
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_BSP_SCHEDULE_DELAY=100"}
	h := s.leader()
	message := s.send(s.body("spot-interruption", nodes[0].instance))
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	begin := time.Now()
	if status := h.stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// collector starts a collector for the scenario's handlers, and returns what
// gives the spans that it has taken.
func (s *scenario) collector() (spans func() []*tracepb.Span) {
	s.Helper()
	var mu sync.Mutex
	var all []*tracepb.Span
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request tracepb.TracesData // on the wire an ExportTraceServiceRequest is the same
		if err != nil || proto.Unmarshal(body, &request) != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, resource := range request.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				all = append(all, scope.GetSpans()...)
			}
		}
	}))
	s.Cleanup(server.Close)
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL}
	return func() []*tracepb.Span {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}
