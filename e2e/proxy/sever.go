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

// pass reports whether the gate is open; if not, it waits until it is, or gone is closed.
func (g *gate) pass(gone <-chan struct{}) bool {
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed == nil {
		return true
	}
	select {
	case <-closed:
	case <-gone:
	}
	return false
}

// gates are those of the connections of a listener. The last one is that of the next connection.
type gates struct {
	mu  sync.Mutex
	all []*gate
}

func (g *gates) present() *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) == 0 {
		g.all = append(g.all, &gate{})
	}
	return g.all[len(g.all)-1]
}

func (g *gates) silence() {
	g.present().close()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, &gate{})
}

func (g *gates) openAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gate := range g.all {
		gate.open()
	}
}

type gatedListener struct {
	net.Listener
	gates *gates
}

func (l *gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: c, gate: l.gates.present(), gone: make(chan struct{})}, nil
}

// gatedConn loses what is received or sent while the gate is closed: that waits
// until it is open, and then the connection is closed.
type gatedConn struct {
	net.Conn
	gate *gate
	once sync.Once
	gone chan struct{} // closed by Close
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.gate.pass(c.gone) {
		return 0, c.lost()
	}
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	if !c.gate.pass(c.gone) {
		return 0, c.lost()
	}
	return c.Conn.Write(p)
}

func (c *gatedConn) lost() error {
	_ = c.Close() // it may be closed
	return net.ErrClosed
}

func (c *gatedConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}
