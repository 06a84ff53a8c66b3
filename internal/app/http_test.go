package app

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

func TestNothingIsServedButProbesAndMetrics(t *testing.T) {
	c := &options.Options{
		ProbesServer: true, ProbesPort: 8080, ProbesPath: "/healthz", PrometheusServer: true, PrometheusPort: 9092, StatusPage: true,
	}
	probes := newHealth()
	probes.set("start", "")
	muxes := handlers(c, telemetry.New(), probes, &lookout{}, "")
	if len(muxes) != 2 {
		t.Errorf("%d ports", len(muxes))
	}
	for port, paths := range map[int]map[string]int{
		c.ProbesPort:     {"/healthz": 200, "/readyz": 200, "/metrics": 404, "/": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404, "/debug/vars": 404},
		c.PrometheusPort: {"/metrics": 200, overview.StatusPath: 503, overview.HistoryPath: 503, "/healthz": 404, "/readyz": 404, "/": 503, "/index.html": 404, "/debug/pprof/": 404, "/debug/pprof/heap": 404, "/debug/vars": 404},
	} {
		for path, want := range paths {
			for method, want := range map[string]int{http.MethodGet: want, http.MethodPost: map[int]int{200: 405, 503: 405, 404: 404}[want]} {
				answer := httptest.NewRecorder()
				muxes[port].ServeHTTP(answer, httptest.NewRequest(method, path, nil))
				if answer.Code != want {
					t.Errorf("%s %s on port %d: %d, want %d", method, path, port, answer.Code, want)
				}
			}
		}
	}
	c.StatusPage = false
	answer := httptest.NewRecorder()
	handlers(c, telemetry.New(), probes, &lookout{}, "")[c.PrometheusPort].ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	if answer.Code != http.StatusNotFound {
		t.Errorf("the page is turned off, and yet it answers %d", answer.Code)
	}
	c.PrometheusServer, c.ProbesServer = false, false
	if muxes := handlers(c, telemetry.New(), probes, &lookout{}, ""); len(muxes) > 0 {
		t.Errorf("turned off, and yet there are %d ports", len(muxes))
	}
}

func TestAReplicaThatStandsByNamesTheLeader(t *testing.T) {
	var l lookout
	l.ledBy("handler-1_x7f3k2m9")
	mux := handlers(&options.Options{PrometheusServer: true, StatusPage: true}, telemetry.New(), newHealth(), &l, "")[0]
	for path, want := range map[string]string{
		"/": "<bdi>handler-1</bdi>", overview.StatusPath: "this replica stands by: the leader, handler-1, knows what is in progress\n",
	} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s: %d: %s", path, answer.Code, answer.Body)
		}
	}
}

func TestReadinessTellsWhatALeaderHoldsBack(t *testing.T) {
	why := "drains held back: 3"
	probes := newHealth()
	probes.set("start", "")
	read := func() string {
		answer := httptest.NewRecorder()
		probes.ready(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if answer.Code != http.StatusOK {
			t.Errorf("status %d", answer.Code)
		}
		return answer.Body.String()
	}
	if got := read(); got != "ok: standing by\n" {
		t.Errorf("standing by: %q", got)
	}
	defer probes.lead(time.Now, func() string { return why })()
	if got := read(); got != "ok: leading\ndrains held back: 3\nnode by node: node-termination-handler status\n" {
		t.Errorf("holding back: %q", got)
	}
	why = ""
	if got := read(); got != "ok: leading\n" {
		t.Errorf("leading: %q", got)
	}
}

// A pipe is a listener with one connection, in memory, for a bubble of virtual time.
type pipe struct {
	net.Listener
	conns chan net.Conn
}

func (p pipe) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipe) Close() error { return nil }

// exchange serves one connection, until run has ended.
func exchange(t *testing.T, handler http.Handler, run func(client net.Conn)) {
	t.Helper()
	client, server := net.Pipe()
	listener := pipe{conns: make(chan net.Conn, 1)}
	listener.conns <- server
	s := newHTTPServer(handler)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener)
	}()
	run(client)
	_ = client.Close()
	close(listener.conns)
	_ = s.Close()
	<-done
	<-time.After(time.Second) // the server lingers on a connection that it has closed
}

func TestASlowClientIsCutOff(t *testing.T) {
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 10<<20))
	})
	for name, tt := range map[string]struct {
		client func(net.Conn)
		want   time.Duration
	}{
		"that sends nothing":             {func(net.Conn) {}, 10 * time.Second},
		"that sends half a header":       {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX-A: ") }, 10 * time.Second},
		"that does not read the answer":  {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") }, 10 * time.Second},
		"that sends no body it has told": {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n") }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				exchange(t, big, func(client net.Conn) {
					tt.client(client)
					<-time.After(tt.want + time.Second)
					synctest.Wait()
					// What is left is the end: a write to a peer that has gone fails at once.
					_ = client.SetWriteDeadline(time.Now().Add(time.Minute))
					if _, err := io.WriteString(client, "x"); err == nil || time.Since(start) > tt.want+2*time.Second {
						t.Errorf("still connected after %s: %v", time.Since(start), err)
					}
				})
			})
		})
	}
}

func TestAHeaderThatIsTooLargeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exchange(t, http.NotFoundHandler(), func(client net.Conn) {
			go func() {
				_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nX-A: "+strings.Repeat("a", 1<<20)+"\r\n\r\n")
			}()
			response, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("status %d", response.StatusCode)
			}
		})
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
