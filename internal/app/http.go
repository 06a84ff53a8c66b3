package app

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/httpserver"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/page"
)

// handlers serve probes and metrics as the options say, by port: one serves both if they
// want the same port. Beside the metrics stands what is in progress, and what has happened.
func (a *App) handlers() map[int]http.Handler {
	o := a.options
	muxes := map[int]*http.ServeMux{}
	all := map[int]http.Handler{}
	mux := func(port int) *http.ServeMux {
		if muxes[port] == nil {
			muxes[port] = http.NewServeMux()
			all[port] = httpserver.Headers(muxes[port])
		}
		return muxes[port]
	}
	if o.ProbesServer {
		m := mux(o.ProbesPort)
		m.HandleFunc("GET "+o.ProbesPath, a.health.alive)
		if o.ProbesPath != "/readyz" {
			m.HandleFunc("GET /readyz", a.health.ready)
		}
	}
	if o.PrometheusServer {
		m := mux(o.PrometheusPort)
		guard := httpserver.Guard{Namespace: o.PodNamespace, Hosts: o.AllowedHosts, Identity: a.identity}
		serve := func(path string, h http.Handler) { m.Handle("GET "+path, guard.Protect(httpserver.Share(h))) }
		serve("/metrics", a.metrics.Handler())
		serve(overview.StatusPath, serveJSON(a.lookout.Overview))
		serve(overview.HistoryPath, serveJSON(a.lookout.History))
		if o.StatusPage {
			serve("/{$}", page.Handler(a.lookout, page.HandlerOptions{
				Version: a.version, Namespace: o.PodNamespace, Port: o.PrometheusPort,
			}))
		}
	}
	return all
}

// listen serves each handler on its port of the addresses, or of all if there are none, until stop is called. It
// returns the ports that are served, by those that were asked for.
func listen(
	ctx context.Context, log logr.Logger, addresses []netip.Addr, handlers map[int]http.Handler,
) (ports map[int]int, stop func(), err error) {
	var servers []*httpserver.Server
	stop = func() {
		for _, s := range servers {
			s.Close()
		}
	}
	ports = map[int]int{}
	for _, port := range slices.Sorted(maps.Keys(handlers)) {
		s, err := httpserver.Listen(ctx, log, addresses, port, handlers[port])
		if err != nil {
			stop()
			return nil, nil, err
		}
		servers = append(servers, s)
		ports[port] = s.Port()
	}
	return ports, stop, nil
}
