package telemetry

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/node-termination-handler/node-termination-handler/internal/report/reporttest"
	"github.com/node-termination-handler/node-termination-handler/internal/trace"
)

// A collector is a real OTLP receiver whose answers follow each other, and the
// last for ever; it keeps what it took with a 200.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests int
	header   http.Header
	got      []*tracepb.ResourceSpans
}

func newCollector(t *testing.T, codes ...int) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		code := codes[min(c.requests, len(codes)-1)]
		c.requests++
		c.header = r.Header
		in := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if in, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
			}
		}
		body, err := io.ReadAll(in)
		if err != nil {
			t.Error(err)
		}
		// An ExportTraceServiceRequest has the same one field, with the same number.
		// https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/collector/trace/v1/trace_service.proto
		var request tracepb.TracesData
		if err := proto.Unmarshal(body, &request); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" {
			t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
		if code == http.StatusOK {
			c.got = append(c.got, request.GetResourceSpans()...)
		}
		w.Header().Set("X-Echo", reporttest.Secret)
		w.WriteHeader(code)
	}))
	t.Cleanup(c.Close)
	return c
}

// names are those of the spans, sorted, each behind that of its service.
func (c *collector) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, r := range c.got {
		service := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				all = append(all, service+" "+s.GetName())
			}
		}
	}
	slices.Sort(all)
	return all
}

// traced follows a message about which something is done, to the end of the tracer.
func traced(t *testing.T, env map[string]string) (log string) {
	t.Helper()
	kept := &reporttest.Lines{}
	o, err := ReadTraceOptions(env)
	if err != nil || o == nil {
		t.Fatalf("%+v, %v", o, err)
	}
	tracer, stop := NewTracer(t.Context(), o, "handler", "v1", kept.Logger())
	ctx := trace.Receive(trace.With(t.Context(), tracer), "message-1")
	open := trace.Open(ctx, "SpotInterruption", "event", "event-1")
	_, span := trace.Begin(open, "cordon", "node", "node-1")
	span.End(errors.New("no"))
	trace.Settled(ctx, time.Now(), "deleted")
	stop()
	return kept.All()
}

func TestSpansReachACollector(t *testing.T) {
	for _, compression := range []string{"none", "gzip"} {
		t.Run(compression, func(t *testing.T) {
			c := newCollector(t, 200)
			log := traced(t, map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_COMPRESSION": compression, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=" + reporttest.Secret + "%20%2C, b=",
			})
			if diff := cmp.Diff([]string{"handler SpotInterruption", "handler cordon", "handler settle"}, c.names()); diff != "" {
				t.Errorf("spans (-want +got):\n%s", diff)
			}
			if got := c.header.Get("X-Token"); got != reporttest.Secret+" ," {
				t.Errorf("header %q", got)
			}
			if log != "" {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestTheServiceIsNamedAsTheEnvironmentSays(t *testing.T) {
	c := newCollector(t, 200)
	t.Setenv("OTEL_SERVICE_NAME", "drainer")
	traced(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.URL + "/v1/traces"})
	if diff := cmp.Diff([]string{"drainer SpotInterruption", "drainer cordon", "drainer settle"}, c.names()); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}

func TestAMistakeInTheResourceIsToldAndSpansAreSentAllTheSame(t *testing.T) {
	c := newCollector(t, 200)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no pair")
	log := traced(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL})
	if diff := cmp.Diff([]string{"handler SpotInterruption", "handler cordon", "handler settle"}, c.names()); diff != "" || !strings.Contains(log, "no pair") {
		t.Errorf("spans (-want +got):\n%slog: %s", diff, log)
	}
}

func TestASamplerThatTakesNothingSendsNothing(t *testing.T) {
	c := newCollector(t, 200)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	traced(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL})
	if c.requests > 0 {
		t.Errorf("%d requests", c.requests)
	}
}

func TestSpansAreSentAgainWhenTheCollectorIsBack(t *testing.T) {
	for _, code := range []int{429, 502, 503, 504} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			c := newCollector(t, code, 200)
			kept := &reporttest.Lines{}
			o, err := ReadTraceOptions(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL})
			if err != nil {
				t.Fatal(err)
			}
			client := &otlp{TraceOptions: o, client: &http.Client{Timeout: o.Timeout}, log: kept.Logger()}
			span := []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "cordon"}}}}}}
			if err := client.UploadTraces(t.Context(), span); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]string{" cordon"}, c.names()); diff != "" || kept.All() != "" {
				t.Errorf("spans (-want +got):\n%slog: %s", diff, kept.All())
			}
		})
	}
}

func TestSpansThatNobodyTakesAreOneLineOfTheLogWithoutASecret(t *testing.T) {
	c := newCollector(t, 401)
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, test := range []struct{ name, endpoint, want string }{
		{"refused", c.URL, "the answer was 401 Unauthorized"},
		{"nobody there", gone.URL, "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			begin := time.Now()
			log := traced(t, map[string]string{
				"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": strings.Replace(test.endpoint, "//", "//me:"+reporttest.Secret+"@", 1) + "/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS": "x-token=" + reporttest.Secret,
			})
			if strings.Count(log, "\n") > 0 || !strings.Contains(log, test.want) || strings.Contains(log, reporttest.Secret) {
				t.Errorf("log: %s", log)
			}
			if took := time.Since(begin); took > 10*lastWords {
				t.Errorf("the end took %s", took)
			}
		})
	}
}

func TestTracesAreAsTheVariablesSay(t *testing.T) {
	const base = "OTEL_EXPORTER_OTLP_ENDPOINT"
	plain := &TraceOptions{URL: "http://c:4318/v1/traces", Timeout: 10 * time.Second, Headers: map[string]string{}}
	for _, test := range []struct {
		name string
		env  map[string]string
		want *TraceOptions
		err  string
	}{
		{"nothing is off", nil, nil, ""},
		{"an endpoint is on", map[string]string{base: "http://c:4318/"}, plain, ""},
		{"the SDK can be disabled", map[string]string{base: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, nil, ""},
		{"and the exporter", map[string]string{base: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, nil, ""},
		{
			"what is of traces counts first",
			map[string]string{
				base: "grpc://x", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t", "OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2000",
				"OTEL_EXPORTER_OTLP_HEADERS": "a=1,b=2", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "b=3", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
			},
			&TraceOptions{URL: "http://c/t", Timeout: 2 * time.Second, Headers: map[string]string{"a": "1", "b": "3"}, Gzip: true}, "",
		},
		{"an endpoint is a URL", map[string]string{base: "hush:4317"}, nil, "OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL"},
		{"gRPC is not spoken", map[string]string{base: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, nil, `OTEL_EXPORTER_OTLP_PROTOCOL is "grpc"; allowed: http/protobuf`},
		{"nor Zipkin", map[string]string{base: "http://c", "OTEL_TRACES_EXPORTER": "zipkin"}, nil, `OTEL_TRACES_EXPORTER is "zipkin"; allowed: otlp, none`},
		{"milliseconds", map[string]string{base: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, nil, `OTEL_EXPORTER_OTLP_TIMEOUT is "10s"; allowed: a number of milliseconds above 0`},
		{"compression", map[string]string{base: "http://c", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, nil, `OTEL_EXPORTER_OTLP_COMPRESSION is "zstd"; allowed: gzip, none`},
		{"headers", map[string]string{base: "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "hush"}, nil, "OTEL_EXPORTER_OTLP_HEADERS: is not key=value,key=value"},
		{"a file that is not there", map[string]string{base: "http://c", "OTEL_EXPORTER_OTLP_CERTIFICATE": "nowhere"}, nil, "OTEL_EXPORTER_OTLP_CERTIFICATE, CLIENT_CERTIFICATE or CLIENT_KEY: open nowhere: no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ReadTraceOptions(test.env)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if text := fmt.Sprint(err); text != test.err && (err != nil || test.err != "") {
				t.Errorf("error %q, want %q", text, test.err)
			}
		})
	}
}
