// Package httpserver serves HTTP where anybody in the cluster can connect: it bounds what clients can use, and keeps
// from the web pages of others what a browser could read for them.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
)

// A Server serves a port until it is closed.
type Server struct {
	http    *http.Server
	port    int
	serving sync.WaitGroup // its listeners
}

// Listen serves the handler on a port of these addresses; none: of all. The port 0 is any that is free, the same for
// all addresses.
func Listen(
	ctx context.Context, log logr.Logger, addresses []netip.Addr, port int, handler http.Handler,
) (*Server, error) {
	hosts := []string{""}
	if len(addresses) > 0 {
		hosts = nil
		for _, a := range addresses {
			hosts = append(hosts, a.String())
		}
	}
	s := &Server{http: newHTTPServer(log, handler), port: port}
	connections := newCrowd(mostConnections, func(from netip.Addr) {
		logging.Warn(log, "too many connections: the oldest ones of the address that has most are closed",
			"port", s.port, "address", from.String(), "connections", mostConnections)
	})
	for _, host := range hosts {
		var listen net.ListenConfig
		listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(s.port)))
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("listen on port %d: %w", port, err)
		}
		if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
			s.port = tcp.Port
		}
		log.V(1).Info("serving HTTP", "address", strings.Replace(listener.Addr().String(), "[::]", "localhost", 1))
		s.serving.Go(func() {
			if err := s.http.Serve(connections.listen(listener)); !errors.Is(err, http.ErrServerClosed) {
				log.Error(err, "serve HTTP", "address", listener.Addr().String())
			}
		})
	}
	return s, nil
}

// Port is the port that is served, never 0.
func (s *Server) Port() int { return s.port }

// Close ends the server, and breaks off what is being answered: the process ends.
func (s *Server) Close() {
	_ = s.http.Close() // it tells of listeners, which have no more to do
	s.serving.Wait()
}

// newHTTPServer bounds what a client that is slow, or sends too much, can use.
func newHTTPServer(log logr.Logger, handler http.Handler) *http.Server {
	const timeout = 10 * time.Second
	return &http.Server{
		Handler:           handler,
		ErrorLog:          logging.Std(log.WithName("http")),
		ReadHeaderTimeout: timeout,
		ReadTimeout:       timeout,
		WriteTimeout:      timeout,
		IdleTimeout:       timeout,
		MaxHeaderBytes:    1 << 14,
	}
}
