package telemetry

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/node-termination-handler/node-termination-handler/internal/redact"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// lastWords is how long spans are still sent when the process stops.
const lastWords = time.Second

// answerKept is the number of bytes of an answer that are read. The connection of a longer
// answer is not reused.
const answerKept = 64 << 10

// TraceOptions say where traces go. They come from OpenTelemetry's variables:
// https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
type TraceOptions struct {
	URL     string
	Headers map[string]string // secret
	Timeout time.Duration     // of one request
	Gzip    bool
	TLS     *tls.Config // nil: the system's defaults
}

// ReadTraceOptions reads the environment. Without an endpoint it returns nil: there are
// no traces. A value that is not supported is an error; the error contains no secret.
func ReadTraceOptions(env map[string]string) (*TraceOptions, error) {
	// The variable for traces takes precedence over the one for all signals.
	get := func(name string) string {
		return cmp.Or(env["OTEL_EXPORTER_OTLP_TRACES_"+name], env["OTEL_EXPORTER_OTLP_"+name])
	}
	endpoint := env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]
	if base := env["OTEL_EXPORTER_OTLP_ENDPOINT"]; endpoint == "" && base != "" {
		endpoint = strings.TrimSuffix(base, "/") + "/v1/traces"
	}
	if endpoint == "" || strings.EqualFold(env["OTEL_SDK_DISABLED"], "true") || env["OTEL_TRACES_EXPORTER"] == "none" {
		return nil, nil
	}
	o := &TraceOptions{URL: endpoint, Timeout: 10 * time.Second, Headers: map[string]string{}}
	if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("OTEL_EXPORTER_OTLP_ENDPOINT is not an http or https URL")
	}
	if exporter := cmp.Or(env["OTEL_TRACES_EXPORTER"], "otlp"); exporter != "otlp" {
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; allowed: otlp, none", exporter)
	}
	if protocol := cmp.Or(get("PROTOCOL"), "http/protobuf"); protocol != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; allowed: http/protobuf", protocol)
	}
	if text := get("TIMEOUT"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_TIMEOUT is %q; allowed: a number of milliseconds above 0", text)
		}
		o.Timeout = time.Duration(n) * time.Millisecond
	}
	switch compression := cmp.Or(get("COMPRESSION"), "none"); compression {
	case "gzip":
		o.Gzip = true
	case "none":
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_COMPRESSION is %q; allowed: gzip, none", compression)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		headers, err := readHeaders(env[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		maps.Copy(o.Headers, headers)
	}
	var err error
	if o.TLS, err = readTLS(get("CERTIFICATE"), get("CLIENT_CERTIFICATE"), get("CLIENT_KEY")); err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE, CLIENT_CERTIFICATE or CLIENT_KEY: %w", err)
	}
	return o, nil
}

// readHeaders reads key=value,key=value, with values as in a URL.
func readHeaders(text string) (map[string]string, error) {
	headers := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || err != nil || key == "" {
			return nil, errors.New("is not key=value,key=value") // without the text, which may contain a secret
		}
		headers[key] = value
	}
	return headers, nil
}

// readTLS reads the files of certificates; without any it returns nil.
func readTLS(authority, certificate, key string) (*tls.Config, error) {
	if authority == "" && certificate == "" && key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if authority != "" {
		text, err := os.ReadFile(authority)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s contains no certificate", authority)
		}
	}
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// NewTracer returns a tracer of the OpenTelemetry SDK, which sends spans as o says. The
// SDK keeps a bounded number of spans and drops the others. It reads its own
// variables (OTEL_TRACES_SAMPLER, OTEL_BSP_…, OTEL_SERVICE_NAME,
// OTEL_RESOURCE_ATTRIBUTES). stop sends the remaining spans, for one second at most.
func NewTracer(
	ctx context.Context, o *TraceOptions, service, version string, log *slog.Logger,
) (tracer trace.Tracer, stop func()) {
	// Errors of the SDK go to the log, not to standard error.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Debug("message of the OpenTelemetry SDK", "error", err.Error())
	}))
	about, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		log.Warn("some attributes of the traces are missing", "error", err) // a mistake in OTEL_RESOURCE_ATTRIBUTES
	}
	client := &otlp{TraceOptions: o, log: log, stopping: make(chan struct{}), client: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true,
			IdleConnTimeout: time.Minute,
		},
		Timeout: o.Timeout,
		// No other server may get the headers.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(otlptrace.NewUnstarted(client)),
		sdktrace.WithResource(about))
	return provider.Tracer(service, trace.WithInstrumentationVersion(version)), func() {
		close(client.stopping)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
		_ = provider.Shutdown(ctx) // UploadTraces has logged the error
	}
}

// otlp is a client for OTLP over HTTP. It replaces otlptracehttp, which imports gRPC:
// 3 MB of the binary for a protocol that is not used.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp
type otlp struct {
	*TraceOptions
	client   *http.Client
	log      *slog.Logger
	stopping chan struct{} // closed when the process stops
	failing  atomic.Bool
}

// Start implements otlptrace.Client.
func (c *otlp) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *otlp) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It logs the first of a row of failures and
// returns nil: the SDK would write every error to standard error.
func (c *otlp) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	err := c.upload(ctx, spans)
	switch {
	case err == nil:
		c.failing.Store(false)
	case !c.failing.Swap(true):
		c.log.Warn("traces cannot be sent (logged once)", "error", err)
	}
	return nil
}

// uploadBackoff is the minimum pause before spans are sent again.
var uploadBackoff = retry.Backoff{First: time.Second, Factor: 2}

// upload sends spans. It retries errors that may heal until ctx ends, which the SDK limits
// to half a minute, or until the process stops. The error contains no secret.
func (c *otlp) upload(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// On the wire this is an ExportTraceServiceRequest.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.Gzip {
		var small bytes.Buffer
		w := gzip.NewWriter(&small)
		_, err := w.Write(body)
		if err := errors.Join(err, w.Close()); err != nil {
			return fmt.Errorf("compress spans: %w", err)
		}
		body = small.Bytes()
	}
	for try := 1; ; try++ {
		wait, err := c.post(ctx, body)
		if err == nil || wait < 0 {
			return err
		}
		timer := time.NewTimer(max(uploadBackoff.Pause(try), wait))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return err
		case <-c.stopping:
			return err
		}
	}
}

// post tries once. wait is how long the server asks to wait before the next try; negative:
// another try would fail too.
func (c *otlp) post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return -1, errors.New("the URL cannot be used")
	}
	for name, value := range c.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	if c.Gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, redact.Error(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, answerKept)
	switch code := response.StatusCode; code {
	case http.StatusOK:
		return 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 will do
		return time.Duration(seconds) * time.Second, redact.Status(code)
	default:
		return -1, redact.Status(code)
	}
}
