package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// An Egress carries what the API server sends to pods, as a proxy of a managed control plane does: the pods of a
// sandbox have addresses that lead nowhere. Its methods may be called concurrently.
// https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
type Egress struct {
	dir    string
	server *http.Server

	mu     sync.Mutex
	routes map[string]*route // by the address of a pod, with its port
}

// A route leads to a pod until ctx ends.
type route struct {
	address string
	ctx     context.Context //nolint:containedctx // the end of the route
	close   context.CancelFunc
}

// NewEgress begins to listen. Close must be called after the end of the cluster that has its Flag.
func NewEgress(ctx context.Context) (*Egress, error) {
	dir, err := os.MkdirTemp("", "egress-") // the path of a socket must be short
	if err != nil {
		return nil, err
	}
	e := &Egress{dir: dir, routes: map[string]*route{}}
	socket := filepath.Join(dir, "socket")
	config := fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}
`, socket)
	if err := os.WriteFile(e.config(), []byte(config), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	go func() { _ = e.server.Serve(listener) }() // until Close
	return e, nil
}

// Close ends it, and the connections that it carries.
func (e *Egress) Close() {
	_ = e.server.Close()
	_ = os.RemoveAll(e.dir)
}

func (e *Egress) config() string { return filepath.Join(e.dir, "egress.yaml") }

// Flag is the flag of the API server that makes it use the Egress; see Options.APIServerFlags.
func (e *Egress) Flag() string { return "--egress-selector-config-file=" + e.config() }

// Route lets the API server reach a port of a pod's address, which is address:port of this machine, until ctx ends
// or close is called. That ends its connections too.
func (e *Egress) Route(ctx context.Context, pod, address string) (close func()) {
	r := &route{address: address}
	r.ctx, r.close = context.WithCancel(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.routes[pod] = r
	return r.close
}

// ServeHTTP implements http.Handler: a CONNECT is a connection to a pod. To one without a route it fails, as to a
// port on which nothing listens.
func (e *Egress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	way, known := e.routes[r.Host]
	e.mu.Unlock()
	if r.Method != http.MethodConnect || !known || way.ctx.Err() != nil {
		http.Error(w, "there is no route to "+r.Host, http.StatusBadGateway)
		return
	}
	pod, err := new(net.Dialer).DialContext(r.Context(), "tcp", way.address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer pod.Close()
	client, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	both := make(chan struct{}, 2)
	carry := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from) // one of them has closed
		both <- struct{}{}
	}
	go carry(pod, client)
	go carry(client, pod)
	select {
	case <-both:
	case <-way.ctx.Done():
	}
}
