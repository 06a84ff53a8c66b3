package httpserver

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// shares is how long an answer is given again. The shortest usual deadline is two minutes.
const shares = 500 * time.Millisecond

// Share returns a handler that gives all the same answers of next: an answer is made when there is a request and the
// last one is older than half a second, and one at a time. So it does not matter how many ask, and how slowly they
// read. next gets requests without headers and body, which do not end with the one who asked first: it bounds its time
// itself. It must not look at parameters.
func Share(next http.Handler) http.Handler {
	return &shared{next: next, turn: make(chan struct{}, 1)}
}

type shared struct {
	next http.Handler

	turn chan struct{} // has one element while somebody makes an answer, or takes the last one
	last *answer
	made time.Time
}

// An answer is written once, and then read by many.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := s.take(r)
	if a == nil {
		return // the client has left
	}
	maps.Copy(w.Header(), a.header)
	w.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the reader may have left
}

// take returns an answer that is fresh, or nil if the client leaves before.
func (s *shared) take(r *http.Request) *answer {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-r.Context().Done():
		return nil
	}
	if s.last == nil || time.Since(s.made) >= shares {
		asked := (&http.Request{Method: http.MethodGet, URL: r.URL, Header: http.Header{}}).
			WithContext(context.WithoutCancel(r.Context()))
		a := &answer{header: http.Header{}, status: http.StatusOK}
		s.next.ServeHTTP(a, asked)
		s.last, s.made = a, time.Now()
	}
	return s.last
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
