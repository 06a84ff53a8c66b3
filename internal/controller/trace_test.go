package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// traced makes the leaders of a story trace what they do.
func (s *story) traced() *tracetest.SpanRecorder {
	recorder := tracetest.NewSpanRecorder()
	s.ctx = trace.With(s.ctx, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("story"))
	return recorder
}

// traces are the spans that have ended: by the name of the root, those in its
// trace, each with what it links to, in the order of their beginnings.
func traces(r *tracetest.SpanRecorder) map[string][]string {
	roots := map[string]string{} // by trace id
	for _, span := range r.Started() {
		if !span.Parent().IsValid() {
			roots[span.SpanContext().TraceID().String()] = span.Name()
		}
	}
	ended := r.Ended()
	slices.SortStableFunc(ended, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	all := map[string][]string{}
	for _, span := range ended {
		line := span.Name()
		for _, link := range span.Links() {
			line += " -> " + roots[link.SpanContext.TraceID().String()]
		}
		root := roots[span.SpanContext().TraceID().String()]
		all[root] = append(all[root], line)
	}
	for _, spans := range all {
		slices.Sort(spans)
	}
	return all
}

func TestANoticeIsOneTraceFromItsReceiveToItsDeletion(t *testing.T) {
	tell(t, func(s *story) {
		recorder := s.traced()
		s.lead()
		s.terminate(time.Hour)
		s.send(strings.ReplaceAll(s.body("spot-interruption", theID), theID, "i-0ffffffffffffffff")) // foreign
		s.after(time.Minute)
		want := map[string][]string{"ASGTerminate": {"ASGTerminate", "complete hook", "cordon", "drain", "resolve", "settle"}}
		if diff := cmp.Diff(want, traces(recorder)); diff != "" {
			t.Errorf("traces (-want +got):\n%s", diff)
		}
		for _, span := range recorder.Ended() {
			if span.Name() == "drain" && !slices.Contains(span.Attributes(), attribute.Int("evicted", 1)) {
				t.Errorf("attributes of the drain: %v", span.Attributes())
			}
			if span.Name() == "ASGTerminate" && span.EndTime().Sub(span.StartTime()) < 30*time.Second {
				t.Errorf("the trace took %s, and its drain 30 s", span.EndTime().Sub(span.StartTime()))
			}
		}
	})
}

func TestNoticesThatShareADrainPointAtItAndItAtThem(t *testing.T) {
	tell(t, func(s *story) {
		recorder := s.traced()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		want := map[string][]string{
			"RebalanceRecommendation": {"RebalanceRecommendation", "cordon", "drain -> SpotInterruption", "resolve", "settle"},
			"SpotInterruption":        {"SpotInterruption -> RebalanceRecommendation", "cordon", "resolve", "settle"},
		}
		if diff := cmp.Diff(want, traces(recorder)); diff != "" {
			t.Errorf("traces (-want +got):\n%s", diff)
		}
	})
}

func TestADrainThatIsResumedGoesOnInTheTraceOfItsNotice(t *testing.T) {
	tell(t, func(s *story) {
		recorder := s.traced()
		stop := s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		stop()
		s.lead()
		s.after(2 * time.Minute)
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
		got := traces(recorder)["SpotInterruption"]
		drains := 0
		for _, span := range got {
			if strings.HasPrefix(span, "drain") {
				drains++
			}
		}
		if drains != 2 {
			t.Errorf("spans %q, want those of both drains", got)
		}
	})
}
