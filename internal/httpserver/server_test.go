package httpserver

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
)

// A pipe is a listener with one connection, in memory, for a bubble of virtual time.
type pipe struct {
	net.Listener
	conns chan net.Conn
}

func (p pipe) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipe) Close() error { return nil }

// exchange serves one connection, until run has ended.
func exchange(t *testing.T, handler http.Handler, run func(client net.Conn)) {
	t.Helper()
	client, server := net.Pipe()
	listener := pipe{conns: make(chan net.Conn, 1)}
	listener.conns <- server
	s := newHTTPServer(logr.Discard(), handler)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener)
	}()
	run(client)
	_ = client.Close()
	close(listener.conns)
	_ = s.Close()
	<-done
	<-time.After(time.Second) // the server lingers on a connection that it has closed
}

func TestASlowClientIsCutOff(t *testing.T) {
	big := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 10<<20))
	})
	for name, tt := range map[string]struct {
		client func(net.Conn)
		want   time.Duration
	}{
		"that sends nothing":             {func(net.Conn) {}, 10 * time.Second},
		"that sends half a header":       {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX-A: ") }, 10 * time.Second},
		"that does not read the answer":  {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") }, 10 * time.Second},
		"that sends no body it has told": {func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n") }, 10 * time.Second},
		"that has its answer and asks no more": {func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if n, err := io.Copy(io.Discard, response.Body); n != 10<<20 || err != nil {
				t.Errorf("an answer of %d bytes, %v", n, err)
			}
		}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				exchange(t, big, func(client net.Conn) {
					tt.client(client)
					<-time.After(tt.want + time.Second)
					synctest.Wait()
					// What is left is the end: a write to a peer that has gone fails at once.
					_ = client.SetWriteDeadline(time.Now().Add(time.Minute))
					if _, err := io.WriteString(client, "x"); err == nil || time.Since(start) > tt.want+2*time.Second {
						t.Errorf("still connected after %s: %v", time.Since(start), err)
					}
				})
			})
		})
	}
}

func TestAHeaderThatIsTooLargeIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exchange(t, http.NotFoundHandler(), func(client net.Conn) {
			go func() {
				_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nX-A: "+strings.Repeat("a", 1<<20)+"\r\n\r\n")
			}()
			response, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("status %d", response.StatusCode)
			}
		})
	})
}

func TestAPanicOfAPageIsInTheLog(t *testing.T) {
	var log logtest.Log
	s, err := Listen(t.Context(), log.Logger(), []netip.Addr{netip.MustParseAddr("127.0.0.1")}, 0, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic("a page is broken")
	}))
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.Get("http://127.0.0.1:" + strconv.Itoa(s.Port())); err == nil {
		t.Errorf("it is answered with %s", response.Status)
	}
	s.Close()
	said := log.Entries("message of a library", "level", "warn")
	if len(said) != 1 || said[0].Logger != "http" || !strings.Contains(said[0].String(), "a page is broken") {
		t.Errorf("the log is:\n%s", log.String())
	}
}

func TestAServerListensOnItsAddressesAlone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have one address of their own")
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })
	for name, test := range map[string]struct {
		addresses []string
		served    []string
		closed    []string
	}{
		"one":  {[]string{"127.0.0.2"}, []string{"127.0.0.2"}, []string{"127.0.0.1", "127.0.0.3"}},
		"two":  {[]string{"127.0.0.1", "127.0.0.2"}, []string{"127.0.0.1", "127.0.0.2"}, []string{"127.0.0.3"}},
		"all":  {nil, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, nil},
		"IPv4": {[]string{"0.0.0.0"}, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var addresses []netip.Addr
			for _, a := range test.addresses {
				addresses = append(addresses, netip.MustParseAddr(a))
			}
			s, err := Listen(t.Context(), logr.Discard(), addresses, 0, handler)
			if err != nil {
				t.Fatal(err)
			}
			answers := map[string]bool{}
			for _, host := range append(test.served, test.closed...) {
				conn, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(s.Port())))
				if answers[host] = err == nil; err == nil {
					_ = conn.Close()
				}
			}
			want := map[string]bool{}
			for _, host := range test.served {
				want[host] = true
			}
			for _, host := range test.closed {
				want[host] = false
			}
			if diff := cmp.Diff(want, answers); diff != "" {
				t.Errorf("connected (-want +got):\n%s", diff)
			}
			s.Close()
		})
	}
}

func TestAnAddressThatThePodDoesNotHaveIsNamed(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")}
	_, err := Listen(t.Context(), logr.Discard(), addresses, 0, http.NotFoundHandler())
	if err == nil || !strings.Contains(err.Error(), "listen on port 0") || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("the error is %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
