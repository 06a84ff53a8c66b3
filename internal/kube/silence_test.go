package kube

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A connection that goes silent while others would live is left within seconds, by the requests of drains and by those
// about the Lease.
func TestASilentConnectionIsLeft(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Clients) error{
		"a node": func(ctx context.Context, c *Clients) error {
			_, err := c.CoreV1().Nodes().Get(ctx, "a", metav1.GetOptions{})
			return err
		},
		"the Lease": func(ctx context.Context, c *Clients) error {
			_, err := c.CoordinationV1().Leases("ns").Get(ctx, "a", metav1.GetOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clients, network, end := overPipes(t, func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write([]byte(`{"metadata":{"name":"a"}}`))
				})
				defer end()
				if err := ask(t.Context(), clients); err != nil {
					t.Fatal(err)
				}
				network.silent.Store(network.count.Load())
				silent := time.Now()
				for err := context.DeadlineExceeded; err != nil; {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err = ask(ctx, clients)
					cancel()
				}
				if took := time.Since(silent); took > 10*time.Second {
					t.Errorf("answered after %s, want 10 s at most", took)
				}
			})
		})
	}
}

// A watch asks for nothing more, and so it would wait for ever: who watches sees its end within seconds, and begins
// another one.
func TestAWatchOnASilentConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients, network, end := overPipes(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		defer end()
		watch, err := clients.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		network.silent.Store(network.count.Load())
		silent := time.Now()
		for range watch.ResultChan() { // at most an error
		}
		if took := time.Since(silent); took > 10*time.Second {
			t.Errorf("it ended after %s, want 10 s at most", took)
		}
		again, err := clients.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again.Stop()
	})
}

// overPipes returns clients of a server that both use a network in memory, for a bubble of virtual time.
func overPipes(t *testing.T, answer http.HandlerFunc) (clients *Clients, network *pipes, end func()) {
	t.Helper()
	network = &pipes{dialled: make(chan net.Conn), closed: make(chan struct{})}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = network
	server.EnableHTTP2 = true
	server.StartTLS()
	clients, err := New(&rest.Config{
		Host: "https://kubernetes", QPS: -1, Dial: network.dial, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return clients, network, func() {
		network.silent.Store(0)
		server.CloseClientConnections()
		server.Close()
		time.Sleep(time.Minute) // what is left ends
	}
}

// pipes are a network in memory, for one server.
type pipes struct {
	dialled chan net.Conn
	closed  chan struct{}
	once    sync.Once
	count   atomic.Int64 // connections so far
	silent  atomic.Int64 // so many, the first, lose all that is sent
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	n := p.count.Add(1)
	select {
	case p.dialled <- server:
		return &lossy{client, p, n}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.dialled:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// lossy is the client's end of the n-th connection.
type lossy struct {
	net.Conn
	network *pipes
	n       int64
}

func (l *lossy) Write(b []byte) (int, error) {
	if l.n <= l.network.silent.Load() {
		return len(b), nil
	}
	return l.Conn.Write(b)
}
