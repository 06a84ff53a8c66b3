// Package trace follows a notice as a trace of OpenTelemetry, with a span for each step
// of the work. The context carries the spans and the tracer: without With, all functions
// here do nothing. Retries have no spans of their own.
package trace

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	otel "go.opentelemetry.io/otel/trace"
)

type (
	tracerKey  struct{}
	messageKey struct{}
)

// With returns a context in which tracer creates the spans.
func With(ctx context.Context, tracer otel.Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, tracer)
}

func tracerOf(ctx context.Context) otel.Tracer {
	tracer, _ := ctx.Value(tracerKey{}).(otel.Tracer)
	return tracer
}

// A message is a received message. In a shared queue most messages are foreign and have
// no trace. So the root span is created only once the notice is known to be ours.
type message struct {
	id       string
	received time.Time

	mu   sync.Mutex
	root otel.Span // nil before Open
}

// Receive starts to follow a message that was received just now. The caller must
// call Settled at the end.
func Receive(ctx context.Context, id string) context.Context {
	if tracerOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, messageKey{}, &message{id: id, received: time.Now()})
}

// Open opens the trace of the message that ctx follows, starting at its receive,
// unless the trace is open. Attributes are pairs of a name and a value.
func Open(ctx context.Context, name string, attributes ...any) context.Context {
	m, ok := ctx.Value(messageKey{}).(*message)
	if !ok {
		return ctx
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.root == nil {
		_, m.root = tracerOf(ctx).Start(ctx, name, otel.WithNewRoot(),
			otel.WithSpanKind(otel.SpanKindConsumer), otel.WithTimestamp(m.received),
			otel.WithAttributes(attribute.String("message", m.id)), otel.WithAttributes(keyValues(attributes)...))
	}
	return otel.ContextWithSpan(ctx, m.root)
}

// SinceReceive adds a span from the receive of the message that ctx follows to now.
func SinceReceive(ctx context.Context, name string, attributes ...any) {
	if m, ok := ctx.Value(messageKey{}).(*message); ok {
		_, s := begin(ctx, name, otel.WithTimestamp(m.received), otel.WithAttributes(keyValues(attributes)...))
		s.End(nil)
	}
}

// Settled ends the trace of the message that ctx follows, if it was opened.
// since is when the call to SQS for the message began, and outcome is its result.
func Settled(ctx context.Context, since time.Time, outcome string) {
	m, ok := ctx.Value(messageKey{}).(*message)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.root == nil {
		return
	}
	_, s := begin(otel.ContextWithSpan(ctx, m.root), "settle",
		otel.WithTimestamp(since), otel.WithAttributes(attribute.String("outcome", outcome)))
	s.End(nil)
	m.root.End()
}

// A Span is one step of the work on a notice. The methods of the zero value do nothing.
// Methods may be called concurrently.
type Span struct{ span otel.Span }

// Begin starts a child of the span of ctx, and returns a context with the new span.
// If ctx has no span, it returns the zero Span.
func Begin(ctx context.Context, name string, attributes ...any) (context.Context, Span) {
	if !otel.SpanContextFromContext(ctx).IsValid() {
		return ctx, Span{}
	}
	return begin(ctx, name, otel.WithAttributes(keyValues(attributes)...))
}

func begin(ctx context.Context, name string, options ...otel.SpanStartOption) (context.Context, Span) {
	tracer := tracerOf(ctx)
	if tracer == nil || !otel.SpanContextFromContext(ctx).IsValid() {
		return ctx, Span{}
	}
	ctx, span := tracer.Start(ctx, name, options...)
	return ctx, Span{span}
}

// Set adds attributes.
func (s Span) Set(attributes ...any) {
	if s.span != nil {
		s.span.SetAttributes(keyValues(attributes)...)
	}
}

// End ends the span. err is the error of the step, nil if it succeeded.
func (s Span) End(err error, attributes ...any) {
	if s.span == nil {
		return
	}
	s.Set(attributes...)
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// In returns a context like ctx, with s as its span.
func (s Span) In(ctx context.Context) context.Context {
	if s.span == nil {
		return ctx
	}
	return otel.ContextWithSpan(ctx, s.span)
}

// Join records that the span of ctx waits for s. If they are in two traces, each
// gets a link to the other.
func (s Span) Join(ctx context.Context) {
	waiting := otel.SpanFromContext(ctx)
	waits := waiting.SpanContext()
	if s.span == nil || !waits.IsValid() || waits.TraceID() == s.span.SpanContext().TraceID() {
		return
	}
	waiting.AddLink(otel.Link{SpanContext: s.span.SpanContext()})
	s.span.AddLink(otel.Link{SpanContext: waits})
}

const header = "traceparent"

// Carry returns the span of ctx as a text, for Resume in another process; empty
// if ctx has no span. https://www.w3.org/TR/trace-context/#traceparent-header
func Carry(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[header]
}

// Resume starts a span whose parent is the first carried span, with links to the others.
// If none was carried, it starts a new trace.
func Resume(ctx context.Context, carried []string, name string, attributes ...any) Span {
	tracer := tracerOf(ctx)
	if tracer == nil {
		return Span{}
	}
	options := []otel.SpanStartOption{otel.WithAttributes(keyValues(attributes)...)}
	parent := ctx
	for _, text := range carried {
		found := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{header: text})
		switch s := otel.SpanContextFromContext(found); {
		case !s.IsValid():
		case parent == ctx:
			parent = found
		default:
			options = append(options, otel.WithLinks(otel.Link{SpanContext: s}))
		}
	}
	_, span := tracer.Start(parent, name, options...)
	return Span{span}
}

// keyValues converts pairs of a name and a value to attributes.
func keyValues(pairs []any) []attribute.KeyValue {
	var all []attribute.KeyValue
	for k := 0; k+1 < len(pairs); k += 2 {
		key := attribute.Key(fmt.Sprint(pairs[k]))
		switch v := pairs[k+1].(type) {
		case int:
			all = append(all, key.Int(v))
		case bool:
			all = append(all, key.Bool(v))
		case time.Time:
			if !v.IsZero() {
				all = append(all, key.String(v.UTC().Format(time.RFC3339)))
			}
		default:
			if text := fmt.Sprint(v); text != "" {
				all = append(all, key.String(text))
			}
		}
	}
	return all
}
