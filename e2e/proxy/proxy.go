// Package proxy stands between a replica and what it calls, the API server or
// AWS, and lets a test decide about each call: it passes, late, not at all or
// with another answer, and the test may kill the replica just before a call
// arrives or just after it was served. The replica needs no code for that: its
// kubeconfig or its endpoint names a proxy.
//
// Give each replica proxies of its own, and they tell the replicas apart.
package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Hooks are called for each call that comes in, concurrently. Both may be nil,
// and may take their time: the call waits for them.
type Hooks struct {
	// Before is called before the call is forwarded, and says what goes wrong with
	// it. ctx ends when the client has gone away; the call is not forwarded then.
	Before func(ctx context.Context, c Call) Fault
	// After is called when the call was served with that status, before the client
	// gets anything of the answer. The answer of a watch is its header: After is
	// called when the watch begins.
	After func(ctx context.Context, c Call, status int)
}

// A Fault is what goes wrong with one call. The zero value lets it pass. Fields
// have the meaning that they have in awssim.Fault.
type Fault struct {
	// Latency is added before the call is forwarded.
	Latency time.Duration
	// Status, if not zero, is the answer's, with Header and Body; the call is not forwarded.
	Status int
	Body   string
	// Header replaces those of the answer, whoever made it.
	Header http.Header
	// Skew moves the Date header of the answer, and nothing else.
	Skew time.Duration
	// Reset ends the client's connection by RST, with all that is under way on it.
	Reset bool
	// Hang never answers: it waits until the client goes away.
	Hang bool
	// AfterEffect forwards the call before Status, Reset or Hang take the answer's place.
	AfterEffect bool
	// Half breaks the answer off in its middle; of a stream, in the middle of what comes first.
	Half bool
	// EndAfter, if positive, ends the answer after so long, without an error: for watches.
	EndAfter time.Duration
}

func (f Fault) replaces() bool { return f.Status != 0 || f.Reset || f.Hang }

// maxBody bounds what is kept of a request or of an answer.
const maxBody = 64 << 20

// Proxy forwards calls to one target.
type Proxy struct {
	target    *url.URL
	transport *http.Transport
	read      func(*http.Request, []byte) Call
	finishes  bool // what was forwarded, whether or not the client is still there
	hooks     Hooks
	server    *http.Server
	url       string
	serving   sync.WaitGroup
	calls     atomic.Int64
	gates     gates
}

// AWS starts a proxy in front of an endpoint of AWS, plain HTTP, as awssim has it.
// The caller must call Close.
func AWS(ctx context.Context, endpoint string, hooks Hooks) (*Proxy, error) {
	return start(ctx, endpoint, nil, &Proxy{transport: &http.Transport{}, read: readAWS, hooks: hooks})
}

// start fills in the rest of p and serves, with TLS if there is a certificate.
func start(ctx context.Context, target string, certificate *tls.Certificate, p *Proxy) (_ *Proxy, err error) {
	if p.target, err = url.Parse(target); err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p.transport.DisableCompression = true // the answer is passed on as it came
	p.transport.MaxIdleConnsPerHost = 100
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p.url = "http://" + listener.Addr().String()
	listener = &gatedListener{listener, &p.gates}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // of connections that clients leave, which is what tests make them do
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	serve := func() error { return p.server.Serve(listener) }
	if certificate != nil {
		p.url = "https://" + listener.Addr().String()
		p.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*certificate}}
		serve = func() error { return p.server.ServeTLS(listener, "", "") } // HTTP/2 too
	}
	p.serving.Go(func() { _ = serve() }) // ends with ErrServerClosed, by Close
	return p, nil
}

// URL is where the proxy listens, the endpoint to give to clients.
func (p *Proxy) URL() string { return p.url }

// Sever cuts the network between clients and the proxy: nothing that either side
// sends arrives, and nobody is told. Calls that had arrived are still served.
func (p *Proxy) Sever() { p.gates.present().close() }

// Silence does so to the connections that there are, for ever. New ones live.
func (p *Proxy) Silence() { p.gates.silence() }

// Mend undoes Sever. Connections on which something was sent meanwhile are closed.
func (p *Proxy) Mend() { p.gates.present().open() }

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.gates.openAll()
	_ = p.server.Close() // of the listener, which is ours
	p.serving.Wait()
	p.transport.CloseIdleConnections()
}

type connKey struct{}

// serve is the way of every call.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return // the client has gone away
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	call := p.read(r, body)
	call.Number = p.calls.Add(1)
	var fault Fault
	if p.hooks.Before != nil {
		fault = p.hooks.Before(r.Context(), call)
	}
	if !wait(r.Context(), fault.Latency) {
		panic(http.ErrAbortHandler) //nolint:forbidigo // net/http resets the connection then
	}
	if fault.replaces() && !fault.AfterEffect {
		fault.answer(w, r)
		return
	}
	forwarded := r
	if p.finishes && !call.streams() {
		// Without a Done channel ReverseProxy would watch the client by another way.
		ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
		defer stop()
		forwarded = r.WithContext(ctx)
	}
	forward := httputil.ReverseProxy{
		Transport:      p.transport,
		FlushInterval:  -1, // watches stream
		ErrorLog:       p.server.ErrorLog,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(p.target); r.Out.Host = r.In.Host },
		ModifyResponse: func(answer *http.Response) error { return p.served(answer, call, fault) },
		// The target cannot be reached, or the answer was lost on purpose: no answer at all.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			if fault.replaces() {
				fault.answer(w, r)
				return
			}
			if r.Context().Err() != nil { // the client has gone away from this call, not from the others
				panic(http.ErrAbortHandler) //nolint:forbidigo // net/http resets the stream then
			}
			reset(r)
		},
	}
	forward.ServeHTTP(w, forwarded)
}

// served takes the target's answer in before the client gets it. An error lets
// the fault answer instead.
func (p *Proxy) served(answer *http.Response, call Call, fault Fault) error {
	ctx := answer.Request.Context()
	if !call.streams() {
		body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody))
		_ = answer.Body.Close()
		if err != nil {
			return err
		}
		answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
	if p.hooks.After != nil {
		p.hooks.After(ctx, call, answer.StatusCode)
	}
	if fault.replaces() {
		_ = answer.Body.Close()
		return errReplaced
	}
	maps.Copy(answer.Header, fault.Header)
	if fault.Skew != 0 {
		answer.Header.Set("Date", time.Now().Add(fault.Skew).UTC().Format(http.TimeFormat))
	}
	if fault.Half {
		answer.Body = &half{ReadCloser: answer.Body, length: answer.ContentLength}
	}
	if fault.EndAfter > 0 {
		answer.Body = endAfter(answer.Body, fault.EndAfter)
	}
	return nil
}

// answer takes the place of the target's answer.
func (f Fault) answer(w http.ResponseWriter, r *http.Request) {
	switch {
	case f.Hang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler) //nolint:forbidigo // net/http resets the connection then
	case f.Reset:
		reset(r)
	}
	header := w.Header()
	maps.Copy(header, f.Header)
	header.Set("Content-Length", strconv.Itoa(len(f.Body)))
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, f.Body) // fails when the client has left
}

// reset ends the connection of a request by RST, and the handler.
func reset(r *http.Request) {
	conn := r.Context().Value(connKey{}).(net.Conn)
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*gatedConn).Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()            // it may be closed
	panic(http.ErrAbortHandler) //nolint:forbidigo // net/http resets the connection then
}

// wait returns false if ctx ended before d was over.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
