package httpserver

import (
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Any is the name in [Guard.Hosts] that stands for all.
const Any = "*"

// Headers has the answers of next say that a browser is not to take them for something else, nor to show them in the
// frame of another page. A handler may replace what it says.
func Headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// A Guard is before the endpoints that tell something. Probes are without it: they tell nothing, and have to be
// answered whatever happens.
//
// It answers only requests that name a host which no stranger can own. By DNS rebinding the web page of a stranger
// reads what its browser can reach: the browser believes that the handler's address is that of the stranger's name, and
// sends this name as the host. These hosts are safe: addresses, names without a dot, names of Services, and
// [Guard.Hosts]. A Service that is asked for as "name.namespace" is safe unless there is such a top-level domain.
//
// The proxy of the API server sends the name by which its client knows the API server, which can be any. Who asks
// through it shows by the parameter [Proof] that it has read the Lease.
type Guard struct {
	Namespace string   // of this pod; empty: unknown
	Hosts     []string // further names, in lower case; [Any]: all
	// Identity is of this replica, and has a random part. Empty: there is no Lease that tells it.
	Identity string
}

// Proof is the parameter of a request with what the Lease says of who holds it.
const Proof = "holder"

// Protect returns a handler that hands to next what may pass.
func (g Guard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.allows(r.Host) && !g.proves(r) {
			http.Error(w, fmt.Sprintf("the host %q is not one of this server: ask for an address, localhost or the name of "+
				"a Service, or add the name to allowed-hosts", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allows reports whether no stranger can own the host, which may have a port.
func (g Guard) allows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	labels := strings.Split(name, ".")
	switch last := labels[len(labels)-1]; {
	case len(labels) == 1: // empty as well: no browser sends that
		return true
	case slices.Contains(reserved, last):
		return true
	case len(labels) == 2 && last == g.Namespace: // the name of a Service and its namespace
		return true
	}
	return slices.Contains(g.Hosts, Any) || slices.Contains(g.Hosts, name)
}

// reserved are the domains that the Internet does not have: of Services, of clusters and networks, of EC2.
var reserved = []string{"svc", "local", "internal", "localhost"}

func (g Guard) proves(r *http.Request) bool {
	given := r.URL.Query().Get(Proof)
	return g.Identity != "" && subtle.ConstantTimeCompare([]byte(given), []byte(g.Identity)) == 1
}
