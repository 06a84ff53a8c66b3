package trace

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func recording(t *testing.T) (context.Context, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	return With(t.Context(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")), recorder
}

// outline is what ended, in its order: name, parent, attributes, error, links.
func outline(r *tracetest.SpanRecorder) []string {
	var all []string
	names := map[string]string{}
	for _, s := range r.Started() {
		names[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range r.Ended() {
		line := s.Name()
		if s.Parent().IsValid() {
			line += " in " + names[s.Parent().SpanID().String()]
		}
		for _, a := range s.Attributes() {
			line += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
		}
		if s.Status().Description != "" {
			line += " failed: " + s.Status().Description
		}
		for _, l := range s.Links() {
			line += " -> " + names[l.SpanContext.SpanID().String()]
		}
		all = append(all, line)
	}
	return all
}

func TestAMessageIsOneTrace(t *testing.T) {
	ctx, recorder := recording(t)
	ctx = Receive(ctx, "m")
	open := Open(ctx, "SpotInterruption", "event", "e", "account", "", "at", time.Time{})
	Open(ctx, "SpotInterruption") // for another instance
	SinceReceive(open, "resolve", "why", "because", "n", 2, "yes", true)
	inner, span := Begin(open, "cordon")
	_, innermost := Begin(inner, "patch")
	innermost.End(nil)
	span.End(errors.New("no"), "tries", 3)
	Settled(ctx, time.Now(), "deleted")
	want := []string{
		"resolve in SpotInterruption why=because n=2 yes=true", "patch in cordon", "cordon in SpotInterruption tries=3 failed: no",
		"settle in SpotInterruption outcome=deleted", "SpotInterruption message=m event=e",
	}
	if diff := cmp.Diff(want, outline(recorder)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

func TestAMessageThatNothingIsDoneAboutLeavesNoTrace(t *testing.T) {
	ctx, recorder := recording(t)
	ctx = Receive(ctx, "m")
	SinceReceive(ctx, "resolve")
	_, span := Begin(ctx, "cordon")
	span.End(nil)
	Settled(ctx, time.Now(), "left")
	if got := recorder.Started(); len(got) > 0 {
		t.Errorf("%d spans", len(got))
	}
}

func TestWithoutATracerNothingIsDone(t *testing.T) {
	ctx := t.Context()
	if Receive(ctx, "m") != ctx || Open(ctx, "n") != ctx || (Span{}).In(ctx) != ctx || Carry(ctx) != "" || Resume(ctx, nil, "drain") != (Span{}) {
		t.Error("a context has changed")
	}
	if allocated := testing.AllocsPerRun(100, func() {
		_, span := Begin(ctx, "cordon", "node", "n")
		span.Join(ctx)
		span.End(nil)
		SinceReceive(ctx, "resolve")
		Settled(ctx, time.Time{}, "deleted")
	}); allocated > 0 {
		t.Errorf("%v allocations", allocated)
	}
}

func TestTwoTracesThatShareADrainPointAtEachOther(t *testing.T) {
	ctx, recorder := recording(t)
	a, b := Receive(ctx, "a"), Receive(ctx, "b")
	first, second := Open(a, "first"), Open(b, "second")
	_, drain := Begin(first, "drain")
	drain.Join(first) // of one trace
	drain.Join(second)
	drain.End(nil)
	Settled(a, time.Now(), "deleted")
	Settled(b, time.Now(), "deleted")
	want := []string{
		"drain in first -> second", "settle in first outcome=deleted", "first message=a",
		"settle in second outcome=deleted", "second message=b -> drain",
	}
	if diff := cmp.Diff(want, outline(recorder)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

func TestWhatIsResumedGoesOnInItsTrace(t *testing.T) {
	ctx, recorder := recording(t)
	first, second := Carry(Open(Receive(ctx, "a"), "first")), Carry(Open(Receive(ctx, "b"), "second"))
	span := Resume(ctx, []string{"not a span", first, second}, "drain", "resumed", true)
	_, inner := Begin(span.In(ctx), "evict")
	inner.End(nil)
	span.End(nil)
	Resume(ctx, nil, "drain").End(nil)
	want := []string{"evict in drain", "drain in first resumed=true -> second", "drain"}
	if diff := cmp.Diff(want, outline(recorder)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
