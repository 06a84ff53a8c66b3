package httpserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func get(ctx context.Context, h http.Handler) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/status?a=b", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	h.ServeHTTP(answer, r)
	return answer
}

// However many ask, an answer is made twice a second at most; and one who leaves takes nothing from the others.
func TestManyReadersAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		h := Share(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			made++
			time.Sleep(time.Second)
			if r.Context().Err() != nil || r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("it is one reader's: %v, %v", r.Context().Err(), r.Header)
			}
			w.Header().Set("Content-Type", "text/made")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintf(w, "the answer %d", made)
		}))
		leaves, leave := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		readers.Go(func() { get(leaves, h) })
		synctest.Wait()
		leave()
		for range 50 {
			readers.Go(func() {
				answer := get(t.Context(), h)
				if answer.Code != http.StatusServiceUnavailable || answer.Body.String() != "the answer 1" || answer.Header().Get("Content-Type") != "text/made" {
					t.Errorf("%d, %v: %s", answer.Code, answer.Header(), answer.Body)
				}
			})
		}
		readers.Wait()
		time.Sleep(shares)
		if answer := get(t.Context(), h); answer.Body.String() != "the answer 2" {
			t.Errorf("later it is %s", answer.Body)
		}
	})
}

func TestWhoLeavesDoesNotWaitForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Share(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Minute) }))
		go get(t.Context(), h)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		get(ctx, h)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it waited for %s", took)
		}
		time.Sleep(time.Minute)
	})
}

func TestAHandlerThatPanicsDoesNotStopTheNext(t *testing.T) {
	panics := true
	h := Share(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if panics {
			panic(http.ErrAbortHandler)
		}
	}))
	func() {
		defer func() { _ = recover() }()
		get(t.Context(), h)
	}()
	panics = false
	if answer := get(t.Context(), h); answer.Code != http.StatusOK {
		t.Errorf("%d", answer.Code)
	}
}
