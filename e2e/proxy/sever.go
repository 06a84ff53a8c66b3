package proxy

import (
	"net"
	"sync"
)

// gate lets bytes through unless it is closed.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil when open; else closed by open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// pass waits until the gate is open, or gone is closed.
func (g *gate) pass(gone <-chan struct{}) {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return
	}
	select {
	case <-closed:
	case <-gone:
	}
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l *gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: c, gate: l.gate, gone: make(chan struct{})}, nil
}

// gatedConn holds back what was received and what is to be sent while the gate is closed.
type gatedConn struct {
	net.Conn
	gate *gate
	once sync.Once
	gone chan struct{} // closed by Close
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.pass(c.gone)
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.gate.pass(c.gone)
	return c.Conn.Write(p)
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}
