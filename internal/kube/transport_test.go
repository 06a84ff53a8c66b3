package kube

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// One answer that the API server has too much to do slows everything down, and
// cordons are the first to go on.
func TestAnAPIServerWithTooMuchToDoIsLeftAloneAndCordonsGoFirst(t *testing.T) {
	for name, test := range map[string]struct {
		path, retryAfter string
		body             string
		want             time.Duration
	}{
		"it says for how long":              {path: "/api/v1/nodes/a", retryAfter: "3", want: 3 * time.Second},
		"it does not say for how long":      {path: "/api/v1/nodes/a", retryAfter: "", want: time.Second},
		"a budget, which answers like that": {path: "/api/v1/namespaces/b/pods/c/eviction", retryAfter: "10", want: 0},
		"it asks for an hour":               {path: "/api/v1/nodes/a", retryAfter: "3600", want: 5 * time.Second},
		"a webhook, which chooses the status": {
			path: "/api/v1/nodes/a", retryAfter: "3600", body: `{"message":"admission webhook \"guard.example.com\" denied the request: later"}`,
		},
		"an Event, of which there are too many": {path: "/api/v1/namespaces/b/events", retryAfter: "10"},
		"an Event of the newer API":             {path: "/k8s/clusters/c/apis/events.k8s.io/v1/namespaces/b/events/c", retryAfter: "10"},
		"a node that is called events":          {path: "/api/v1/nodes/events", retryAfter: "3", want: 3 * time.Second},
		"a namespace that is called events":     {path: "/api/v1/namespaces/events", retryAfter: "3", want: 3 * time.Second},
		"a pod whose name is that of a call":    {path: "/api/v1/namespaces/b/pods/eviction-1", retryAfter: "3", want: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := pace.NewGate(1, 1)
				server := AtGate(gate, false)(roundTrip(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {test.retryAfter}}, Body: io.NopCloser(strings.NewReader(test.body))}, nil
				}))
				leave, err := gate.Enter(t.Context(), pace.Priority{Class: pace.Foremost}) // the others have to wait for it
				if err != nil {
					t.Fatal(err)
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "https://kubernetes"+test.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				response, err := server.RoundTrip(request)
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(response.Body); string(body) != test.body || err != nil {
					t.Errorf("the answer is %q, %v, want %q", body, err, test.body)
				}
				if err := response.Body.Close(); err != nil {
					t.Error(err)
				}
				var order []int
				var all sync.WaitGroup
				for _, class := range []int{pace.Aside, pace.Normal, pace.Foremost, pace.Urgent} {
					all.Go(func() {
						leave, err := gate.Enter(t.Context(), pace.Priority{Class: class})
						if err != nil {
							t.Error(err)
							return
						}
						order = append(order, class)
						if waited := time.Since(begin); waited != test.want {
							t.Errorf("class %d waited %s, want %s", class, waited, test.want)
						}
						leave(0)
					})
				}
				synctest.Wait()
				leave(0)
				all.Wait()
				if want := []int{pace.Foremost, pace.Urgent, pace.Normal, pace.Aside}; !slices.Equal(order, want) {
					t.Errorf("they went in the order %v, want %v", order, want)
				}
			})
		})
	}
}

// client-go sends the Event again after the pause that the answer asks for, and the next one after that.
func TestTooManyEventsHoldUpNoOtherCall(t *testing.T) {
	for path, want := range map[string]time.Duration{ // how long others wait
		"/api/v1/namespaces/b/events": 0,
		"/api/v1/nodes/a/status":      3 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			gate := pace.NewGate(4, 4)
			server := AtGate(gate, true)(roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3"}}, Body: http.NoBody}, nil
			}))
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://kubernetes"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := server.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
			begin := time.Now()
			for _, class := range []int{pace.Normal, pace.Aside} {
				leave, err := gate.Enter(t.Context(), pace.Priority{Class: class})
				if err != nil {
					t.Fatal(err)
				}
				leave(0)
				if waited := time.Since(begin); waited != want {
					t.Errorf("after a 429 to %s a call of class %d waited %s, want %s", path, class, waited, want)
				}
			}
			if bound, halved := gate.Bound(), want > 0; (bound < 4) != halved {
				t.Errorf("after a 429 to %s the bound is %d", path, bound)
			}
		})
	}
}
