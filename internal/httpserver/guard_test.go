package httpserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// guarded answers a request for the path with this host.
func guarded(g Guard, host, path string) *httptest.ResponseRecorder {
	h := Headers(g.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "told") })))
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = host
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer
}

func TestOnlyHostsThatNoStrangerCanOwnAreAnswered(t *testing.T) {
	g := Guard{Namespace: "nth", Hosts: []string{"nth.example.com"}, Identity: "handler-1_x7f3k2m9"}
	told := map[string]bool{}
	for _, host := range []string{
		"10.0.0.1", "10.0.0.1:9092", "[fd00::1]:9092", "[fd00::1]", "127.0.0.1:9092", "[::1]:9092", "[fe80::1%25eth0]:9092", // scraped, and by a forwarded port
		"localhost", "localhost:8001", "LOCALHOST:9092", "localhost.", "page.localhost:9092",
		"handler", "handler:9092", "handler.nth", "handler.nth:9092", "handler.nth.svc", "Handler.NTH.svc.cluster.local:9092", "handler.nth.svc.cluster.local.:9092", // a Service
		"ip-10-0-0-1.eu-west-1.compute.internal:9092", "host.docker.internal", "laptop.local",
		"nth.example.com", "NTH.example.com:443", "nth.example.com.", // the option
		"", // HTTP/1.0, which no browser speaks
	} {
		told[host] = true
	}
	for _, host := range []string{
		"rebound.example.net", "rebound.example.net:9092", "10.0.0.1.example.net", "localhost.example.net", "nth.svc.example.net",
		"handler.nth.example.net", "handler.other:9092", "nth.dev", "svc.dev", "127.0.0.1.nip.io", "evil.nth.example.com", "nth.example.com.evil.net",
		"evil.com:9092:9092", "[evil.com]:9092", ".com", "evil.com..", "evil.com\x00", "10.0.0.1@evil.com", "evil.com/10.0.0.1", "0x7f.1",
		"ABCDEF.gr7.eu-west-1.eks.amazonaws.com", // the API server's proxy, without the proof
	} {
		told[host] = false
	}
	got := map[string]bool{}
	for host := range told {
		answer := guarded(g, host, "/status")
		got[host] = answer.Body.String() == "told" && answer.Code == http.StatusOK
		if !got[host] && (answer.Code != http.StatusMisdirectedRequest || !strings.Contains(answer.Body.String(), "allowed-hosts")) {
			t.Errorf("%q is refused with %d: %s", host, answer.Code, answer.Body)
		}
	}
	if diff := cmp.Diff(told, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// A stranger's page does not know the random part of the identity.
func TestWhoHasReadTheLeaseMayNameAnyHost(t *testing.T) {
	const host = "ABCDEF.gr7.eu-west-1.eks.amazonaws.com"
	led := Guard{Identity: "handler-1_x7f3k2m9"}
	for name, test := range map[string]struct {
		guard Guard
		path  string
		want  int
	}{
		"the identity":              {led, "/status?holder=handler-1_x7f3k2m9", 200},
		"the pod's name alone":      {led, "/status?holder=handler-1", 421},
		"of another process":        {led, "/status?holder=handler-1_aaaaaaaa", 421},
		"nothing":                   {led, "/status?holder=", 421},
		"there is no Lease":         {Guard{}, "/status?holder=", 421},
		"any host by the option":    {Guard{Hosts: []string{Any}}, "/status", 200},
		"the namespace is unknown":  {Guard{}, "/status", 421},
		"something else by its end": {led, "/status?leader=handler-1_x7f3k2m9", 421},
	} {
		t.Run(name, func(t *testing.T) {
			if got := guarded(test.guard, host, test.path).Code; got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}

func TestWhatIsRefusedHasTheHeadersToo(t *testing.T) {
	for _, host := range []string{"10.0.0.1", "evil.example.net"} {
		header := guarded(Guard{}, host, "/").Header()
		if got := header.Get("Content-Security-Policy"); got != "default-src 'none'; frame-ancestors 'none'" {
			t.Errorf("%s: the policy is %q", host, got)
		}
		if got := header.Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options is %q", host, got)
		}
	}
}
