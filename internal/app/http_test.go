package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// byAddress is a request to an address.
func byAddress(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "10.0.0.1:9092"
	return r
}

func TestNothingIsServedButProbesAndMetrics(t *testing.T) {
	c := &options.Options{
		ProbesServer: true, ProbesPort: 8080, ProbesPath: "/healthz", PrometheusServer: true, PrometheusPort: 9092, StatusPage: true,
	}
	probes := newHealth()
	probes.set("start", "")
	all := func() map[int]http.Handler {
		return (&App{options: c, metrics: telemetry.New(), health: probes, lookout: &lookout{}}).handlers()
	}
	muxes := all()
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
				muxes[port].ServeHTTP(answer, byAddress(method, path))
				if answer.Code != want {
					t.Errorf("%s %s on port %d: %d, want %d", method, path, port, answer.Code, want)
				}
			}
		}
	}
	c.StatusPage = false
	answer := httptest.NewRecorder()
	all()[c.PrometheusPort].ServeHTTP(answer, byAddress(http.MethodGet, "/"))
	if answer.Code != http.StatusNotFound {
		t.Errorf("the page is turned off, and yet it answers %d", answer.Code)
	}
	c.PrometheusServer, c.ProbesServer = false, false
	if muxes := all(); len(muxes) > 0 {
		t.Errorf("turned off, and yet there are %d ports", len(muxes))
	}
}

func TestAReplicaThatStandsByNamesTheLeader(t *testing.T) {
	var l lookout
	l.ledBy("handler-1_x7f3k2m9")
	mux := (&App{
		options: &options.Options{PrometheusServer: true, StatusPage: true}, metrics: telemetry.New(), health: newHealth(), lookout: &l,
	}).handlers()[0]
	for path, want := range map[string]string{
		"/": "<bdi>handler-1</bdi>", overview.StatusPath: "this replica stands by: the leader, handler-1, knows what is in progress\n",
	} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, byAddress(http.MethodGet, path))
		if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s: %d: %s", path, answer.Code, answer.Body)
		}
	}
}

func TestReadinessTellsWhatALeaderHoldsBack(t *testing.T) {
	why := "3"
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
	defer probes.lead(time.Now, func() (int, string) { return 3, why })()
	if got := read(); got != "ok: leading\ndrains held back: 3\nnode by node: node-termination-handler status\n" {
		t.Errorf("holding back: %q", got)
	}
	why = ""
	if got := read(); got != "ok: leading\n" {
		t.Errorf("leading: %q", got)
	}
}

// Whoever sends a probe, by whatever name, has an answer; what tells something is for those who ask by a name of ours.
func TestStrangersReadNothingButProbes(t *testing.T) {
	o := &options.Options{
		ProbesServer: true, ProbesPort: 8080, ProbesPath: "/healthz", PrometheusServer: true, PrometheusPort: 9092, StatusPage: true,
		PodNamespace: "nth", AllowedHosts: []string{"nth.example.com"},
	}
	probes := newHealth()
	probes.set("start", "")
	all := (&App{options: o, metrics: telemetry.New(), health: probes, lookout: &lookout{}, identity: "handler-1_x"}).handlers()
	const plain = "default-src 'none'; frame-ancestors 'none'"
	for _, test := range []struct {
		port         int
		method, path string
		ours, others int
		policy       string
	}{
		{8080, http.MethodGet, "/healthz", 200, 200, plain},
		{8080, http.MethodGet, "/readyz", 200, 200, plain},
		{8080, http.MethodGet, "/x", 404, 404, plain},
		{8080, http.MethodPost, "/healthz", 405, 405, plain},
		{9092, http.MethodGet, "/metrics", 200, 421, plain},
		{9092, http.MethodHead, "/metrics", 200, 421, plain},
		{9092, http.MethodGet, overview.StatusPath, 503, 421, plain},
		{9092, http.MethodGet, overview.HistoryPath, 503, 421, plain},
		{9092, http.MethodGet, "/metrics?holder=handler-1_x", 200, 200, plain},
		{9092, http.MethodGet, "/metrics?holder=handler-1_y", 200, 421, plain},
		{9092, http.MethodGet, "/", 503, 421, page.Policy},
		{9092, http.MethodGet, "/x", 404, 404, plain},
		{9092, http.MethodPost, "/metrics", 405, 405, plain},
		{9092, http.MethodGet, "//metrics", 307, 307, plain}, // as net/http cleans a path
	} {
		for host, want := range map[string]int{"nth.nth.svc:9092": test.ours, "nth.example.com": test.ours, "rebound.example.net:9092": test.others} {
			r := httptest.NewRequest(test.method, test.path, nil)
			r.Host = host
			answer := httptest.NewRecorder()
			all[test.port].ServeHTTP(answer, r)
			policy := test.policy
			if want == http.StatusMisdirectedRequest {
				policy = plain
			}
			if answer.Code != want || answer.Header().Get("Content-Security-Policy") != policy || answer.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s %s of %s: %d, want %d; %v", test.method, test.path, host, answer.Code, want, answer.Header())
			}
		}
	}
}

func TestTheLeaseTellsThePortThatIsServed(t *testing.T) {
	o := &options.Options{PrometheusServer: true, ProbesServer: true, ProbesPath: "/healthz", LeaderElect: true}
	ports, stop, err := listen(t.Context(), logr.Discard(), nil, (&App{options: o, metrics: telemetry.New(), health: newHealth(), lookout: &lookout{}}).handlers())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	port := leaderPort(o, ports[o.PrometheusPort])
	response, err := http.Get("http://127.0.0.1:" + port + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || port == "0" {
		t.Errorf("port %s: %d", port, response.StatusCode)
	}
	o.PrometheusServer = false // the probes have a port all the same
	if got := leaderPort(o, ports[0]); got != NoPort {
		t.Errorf("nothing is served, and the Lease tells %s", got)
	}
}
