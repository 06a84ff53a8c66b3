package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// handlers serve probes and metrics as the options say, by port: one serves both if they
// want the same port. Beside the metrics stands what is in progress, and what has happened.
func handlers(
	o *options.Options, metrics *telemetry.Metrics, h *health, l *lookout, version string,
) map[int]*http.ServeMux {
	muxes := map[int]*http.ServeMux{}
	mux := func(port int) *http.ServeMux {
		if muxes[port] == nil {
			muxes[port] = http.NewServeMux()
		}
		return muxes[port]
	}
	if o.ProbesServer {
		m := mux(o.ProbesPort)
		m.HandleFunc("GET "+o.ProbesPath, h.alive)
		if o.ProbesPath != "/readyz" {
			m.HandleFunc("GET /readyz", h.ready)
		}
	}
	if o.PrometheusServer {
		m := mux(o.PrometheusPort)
		m.Handle("GET /metrics", metrics.Handler())
		m.HandleFunc("GET "+overview.StatusPath, serveJSON(l.Overview))
		m.HandleFunc("GET "+overview.HistoryPath, serveJSON(l.History))
		if o.StatusPage {
			m.Handle("GET /{$}", page.Handler(l, page.HandlerOptions{Version: version, Port: o.PrometheusPort}))
		}
	}
	return muxes
}

// listen serves each handler on its port until stop is called.
func listen(ctx context.Context, log *slog.Logger, muxes map[int]*http.ServeMux) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, s := range stops {
			s()
		}
	}
	for port, m := range muxes {
		s, err := serveHTTP(ctx, log, port, m)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
	}
	return stop, nil
}

// serveHTTP listens on all of the pod's addresses, and serves until stop is called.
func serveHTTP(ctx context.Context, log *slog.Logger, port int, mux *http.ServeMux) (stop func(), err error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", port, err)
	}
	server := newHTTPServer(mux)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("serve HTTP", "error", err, "port", port)
		}
	}()
	log.Debug("serving HTTP", "address", strings.Replace(listener.Addr().String(), "[::]", "localhost", 1))
	return func() {
		_ = server.Close() // the process ends
		<-done
	}, nil
}

// newHTTPServer bounds what a client that is slow, or sends too much, can use.
func newHTTPServer(handler http.Handler) *http.Server {
	const timeout = 10 * time.Second
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: timeout,
		ReadTimeout:       timeout,
		WriteTimeout:      timeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
}
