package awssim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Transport returns a transport that hands each request to the Server within
// the caller's goroutine, whatever host it names. A call ends early when its
// context does, so it needs no goroutine of its own, and it blocks only in ways
// that let the virtual time of a synctest bubble go on; make the Server inside
// the bubble, or its channels do not belong to it.
func (s *Server) Transport() http.RoundTripper { return memoryTransport{s} }

// Config returns a configuration with which SDK clients reach the Server
// through its Transport, with static credentials and the retries of the SDK.
func (s *Server) Config() aws.Config {
	return aws.Config{
		Region:       s.opts.Region,
		BaseEndpoint: aws.String(MemoryEndpoint),
		HTTPClient:   &http.Client{Transport: s.Transport()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIASIMULATED", SecretAccessKey: "secret"}, nil
		}),
	}
}

type memoryTransport struct{ handler http.Handler }

func (t memoryTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	incoming := request.Clone(ctx)
	if incoming.Host == "" {
		incoming.Host = incoming.URL.Host
	}
	if incoming.Body == nil {
		incoming.Body = http.NoBody
	}
	defer incoming.Body.Close()
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	w := &memoryWriter{header: http.Header{}, status: http.StatusOK}
	w.serve(t.handler, incoming)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.err != nil {
		return nil, w.err
	}
	var body io.Reader = &w.body
	if w.aborted {
		body = io.MultiReader(body, brokenOff{})
	}
	return &http.Response{
		Status:        fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		StatusCode:    w.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        w.header,
		Body:          io.NopCloser(body),
		ContentLength: -1,
		Request:       request,
	}, nil
}

// memoryWriter is the ResponseWriter of a memoryTransport.
type memoryWriter struct {
	header  http.Header
	status  int
	body    bytes.Buffer
	err     error // what RoundTrip returns in the place of a response
	aborted bool
}

func (w *memoryWriter) Header() http.Header            { return w.header }
func (w *memoryWriter) WriteHeader(status int)         { w.status = status }
func (w *memoryWriter) Write(part []byte) (int, error) { return w.body.Write(part) }

// serve runs the handler and takes http.ErrAbortHandler as net/http does.
func (w *memoryWriter) serve(handler http.Handler, r *http.Request) {
	defer func() {
		switch reason := recover(); reason {
		case nil:
		case http.ErrAbortHandler:
			w.aborted = true
		default:
			panic(reason)
		}
	}()
	handler.ServeHTTP(w, r)
}

// brokenOff is the end of a body whose connection was lost.
type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
