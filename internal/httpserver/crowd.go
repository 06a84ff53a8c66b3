package httpserver

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// mostConnections is how many connections are open on a port: far more than kubelets, Prometheus and people need,
	// and some 5 MiB. At 333 a second, 20,000 a minute, each has three quarters of a second to be answered.
	mostConnections = 256
	// socketBuffer is what the kernel keeps of one connection in each direction, which counts as memory of the pod. A
	// request fits into it. The kernel would keep megabytes for a client that reads nothing.
	socketBuffer = 16 << 10
	// warnings is the time between two calls of crowd.full.
	warnings = time.Minute
)

// A crowd bounds the open connections of its listeners. One more takes the place of another: of the address that has
// the most connections, the oldest. So a new connection is always served, such as that of a kubelet, and who opens
// many loses his own. That a connection is in use does not spare it: then slow readers could not be displaced.
type crowd struct {
	most int
	// full is called when a connection is closed for another, with its address, once in a while.
	full func(netip.Addr)

	mu     sync.Mutex
	open   []*member // the oldest first
	of     map[netip.Addr]int
	joined int
	warned time.Time
}

func newCrowd(most int, full func(netip.Addr)) *crowd {
	return &crowd{most: most, full: full, of: map[netip.Addr]int{}}
}

// listen returns the listener with its connections in the crowd.
func (c *crowd) listen(l net.Listener) net.Listener { return entrance{l, c} }

type entrance struct {
	net.Listener

	crowd *crowd
}

// Accept implements net.Listener.
func (e entrance) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// What is refused here stays as it was.
		_ = tcp.SetReadBuffer(socketBuffer)
		_ = tcp.SetWriteBuffer(socketBuffer)
	}
	m := &member{Conn: conn, crowd: e.crowd, address: addressOf(conn.RemoteAddr())}
	displaced, yield := e.crowd.join(m)
	if displaced != nil {
		displaced.drop()
	}
	if yield {
		runtime.Gosched()
	}
	return m, nil
}

// join lets m in. It returns the one that has to go for it, or nil; and whether those who are in need the processor
// before more come in. In a burst, and on one processor, each would be displaced before it was heard.
func (c *crowd) join(m *member) (displaced *member, yield bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.joined++
	if len(c.open) >= c.most {
		displaced = slices.MaxFunc(c.open, func(a, b *member) int { return c.of[a.address] - c.of[b.address] })
		c.remove(displaced)
		if time.Since(c.warned) >= warnings {
			c.warned = time.Now()
			c.full(displaced.address)
		}
	}
	c.open = append(c.open, m)
	c.of[m.address]++
	return displaced, c.joined%max(1, c.most/4) == 0
}

func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(m)
}

func (c *crowd) remove(m *member) {
	k := slices.Index(c.open, m)
	if k < 0 {
		return // it has gone already
	}
	c.open = slices.Delete(c.open, k, k+1)
	if c.of[m.address]--; c.of[m.address] == 0 {
		delete(c.of, m.address)
	}
}

// A member is a connection of the crowd.
type member struct {
	net.Conn

	crowd   *crowd
	address netip.Addr
}

// Close implements net.Conn.
func (m *member) Close() error {
	m.crowd.leave(m)
	return m.Conn.Close()
}

// drop closes the connection, and has the kernel forget what is not sent yet.
func (m *member) drop() {
	if tcp, ok := m.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = m.Conn.Close() // nobody waits for it
}

// addressOf is the address without its port. A network without addresses has one.
func addressOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
