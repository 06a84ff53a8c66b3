// Package trace follows what becomes of a notice, as a trace of OpenTelemetry with
// a span for each thing that is done about it. Spans travel with the context, and
// so does what makes them: in a context that never saw With, nothing here does
// anything. Retries have no spans of their own.
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

// With returns a context in which tracer makes the spans.
func With(ctx context.Context, tracer otel.Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, tracer)
}

func tracerOf(ctx context.Context) otel.Tracer {
	tracer, _ := ctx.Value(tracerKey{}).(otel.Tracer)
	return tracer
}

// A message is one that was received. Most of a shared queue are nobody's here
// and leave no trace: the root span is made when it is known what it is about.
type message struct {
	id       string
	received time.Time

	mu   sync.Mutex
	root otel.Span // nil: nothing was done about it so far
}

// Receive begins to follow a message that was received just now. The caller ends
// that with Settled.
func Receive(ctx context.Context, id string) context.Context {
	if tracerOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, messageKey{}, &message{id: id, received: time.Now()})
}

// Open opens the trace of the message that ctx follows, as from its receive,
// unless it is open. Attributes are names, each with its value.
func Open(ctx context.Context, name string, attributes ...any) context.Context {
	m, ok := ctx.Value(messageKey{}).(*message)
	if !ok {
		return ctx
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.root == nil {
		_, m.root = tracerOf(ctx).Start(ctx, name, otel.WithNewRoot(), otel.WithSpanKind(otel.SpanKindConsumer), otel.WithTimestamp(m.received),
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
// outcome is what became of the message, and since when that was under way.
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
	_, s := begin(otel.ContextWithSpan(ctx, m.root), "settle", otel.WithTimestamp(since), otel.WithAttributes(attribute.String("outcome", outcome)))
	s.End(nil)
	m.root.End()
}

// A Span is one thing that is done about a notice. The zero value is none. Its
// methods may be called concurrently.
type Span struct{ span otel.Span }

// Begin begins a span within that of ctx, and returns a context for what belongs
// to it. Where ctx has no span there is none.
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

// End ends the span; err is why what it is about did not work out, nil if it did.
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

// In returns ctx for what belongs to the span, wherever that was begun.
func (s Span) In(ctx context.Context) context.Context {
	if s.span == nil {
		return ctx
	}
	return otel.ContextWithSpan(ctx, s.span)
}

// Join says that the span of ctx waits for s. Where they are of two traces, each
// gets a link to the other.
func (s Span) Join(ctx context.Context) {
	waiting := otel.SpanFromContext(ctx)
	if s.span == nil || !waiting.SpanContext().IsValid() || waiting.SpanContext().TraceID() == s.span.SpanContext().TraceID() {
		return
	}
	waiting.AddLink(otel.Link{SpanContext: s.span.SpanContext()})
	s.span.AddLink(otel.Link{SpanContext: waiting.SpanContext()})
}

const header = "traceparent"

// Carry returns the span of ctx as a text, for another process to Resume; empty
// where ctx has none. https://www.w3.org/TR/trace-context/#traceparent-header
func Carry(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[header]
}

// Resume begins a span that goes on with the first of what was carried here, and
// has links to the others. Without any of them it begins a trace of its own.
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

// keyValues are the attributes of pairs of a name and a value.
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
