package httpserver

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// What the kernel keeps of a connection counts as memory of the pod.
func TestTheKernelKeepsLittleOfAConnection(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := newCrowd(2, func(netip.Addr) {}).listen(plain)
	defer listener.Close()
	client, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	raw, err := server.(*member).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]int{"read": syscall.SO_RCVBUF, "write": syscall.SO_SNDBUF} {
		var size int
		if asked := raw.Control(func(fd uintptr) { size, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, option) }); asked != nil || err != nil {
			t.Fatal(asked, err)
		}
		if size > 2*socketBuffer { // Linux doubles what it is asked for
			t.Errorf("the buffer for what we %s has %d bytes", name, size)
		}
	}
}
