package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func probe(f http.HandlerFunc) (status int, text string) {
	w := httptest.NewRecorder()
	f(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code, w.Body.String()
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var received time.Time
		h := newHealth()
		lead := func() (end func()) {
			return h.lead(func() time.Time { return received }, func() (int, string) { return 0, "" })
		}
		wants := func(status int, text string) {
			t.Helper()
			if s, got := probe(h.ready); s != status || got != text {
				t.Errorf("/readyz says %d %q, want %d %q", s, got, status, text)
			}
		}
		wants(503, "start: nothing is checked yet\n")
		h.set("start", "")
		h.set("queue", "not checked yet")
		h.set("nodes", "not checked yet")
		wants(503, "nodes: not checked yet\nqueue: not checked yet\n")
		h.set("queue", "")
		h.set("nodes", "")
		wants(200, "ok: standing by\n")
		time.Sleep(time.Hour) // a replica that stands by asks the queue for nothing
		wants(200, "ok: standing by\n")
		h.leaseAnswered(nil)
		lead()
		wants(200, "ok: leading\n")

		time.Sleep(34 * time.Second)
		wants(200, "ok: leading\n")
		time.Sleep(2 * time.Second)
		wants(503, "queue: no answer for 36s\n")
		received = time.Now()
		wants(200, "ok: leading\n")

		h.leaseAnswered(nil)
		time.Sleep(5 * time.Second)
		h.leaseAnswered(errors.New("connection refused"))
		wants(200, "ok: leading\n")
		time.Sleep(6 * time.Second)
		wants(503, "lease: no answer from the API server for 11s: connection refused\n")
		h.leaseAnswered(nil)
		wants(200, "ok: leading\n")
	})
}

func TestALeaderThatHearsNothingOfTheQueueIsUnwellAfterNinetySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var received time.Time
		h := newHealth()
		lead := func() (end func()) {
			return h.lead(func() time.Time { return received }, func() (int, string) { return 0, "" })
		}
		wants := func(status int, text string) {
			t.Helper()
			if s, got := probe(h.alive); s != status || !strings.HasPrefix(got, text) {
				t.Errorf("/healthz says %d %q, want %d %q", s, got, status, text)
			}
		}
		time.Sleep(time.Hour)
		wants(200, "ok") // it stands by
		end := lead()
		received = time.Now()
		time.Sleep(90 * time.Second)
		wants(200, "ok")
		time.Sleep(time.Second)
		wants(503, "the queue has not answered for 1m31s")
		received = time.Now()
		wants(200, "ok")
		time.Sleep(2 * time.Minute)
		wants(503, "the queue")
		end()
		wants(200, "ok")
	})
}
