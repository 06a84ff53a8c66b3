package main

import (
	"net/http"
	"slices"
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
		want             time.Duration
	}{
		"it says for how long":               {"/api/v1/nodes/a", "3", 3 * time.Second},
		"it does not say for how long":       {"/api/v1/nodes/a", "", time.Second},
		"a budget, which answers like that":  {"/api/v1/namespaces/b/pods/c/eviction", "10", 0},
		"a pod whose name is that of a call": {"/api/v1/namespaces/b/pods/eviction-1", "3", 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := pace.NewGate(1)
				server := heeding{gate: gate, next: roundTrip(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {test.retryAfter}}}, nil
				})}
				leave, err := gate.Enter(t.Context(), pace.Priority{}) // the others have to wait for it
				if err != nil {
					t.Fatal(err)
				}
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "https://kubernetes"+test.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if _, err := server.RoundTrip(request); err != nil {
					t.Fatal(err)
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
