package e2e

import (
	"encoding/pem"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The endpoint of AWS is behind a proxy that breaks TLS open, and has a certificate of a private authority.
func TestANodeIsDrainedThroughAnEndpointOfAPrivateAuthority(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("web", n.name, stopping(20*time.Second, time.Second))
	target, err := url.Parse(s.endpoint)
	s.must(err)
	server := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(server.Close)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	s.must(os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))

	stranger := s.replica()
	stranger.endpoint = server.URL
	stranger.run()
	s.eventually("without the bundle the log says why nothing is received", func() bool {
		return strings.Contains(stranger.log.String(), "certificate signed by unknown authority")
	})
	stranger.kill()

	h := s.replica()
	h.endpoint, h.env = server.URL, []string{"AWS_CA_BUNDLE=" + bundle}
	h.run()
	h.awaitReady()
	message := s.send(s.body("spot-interruption", n.instance))
	s.awaitDeleted(soon, message)
	if requests := s.requests("web"); len(requests) != 1 || !requests[0].accepted() {
		t.Errorf("requests for the pod: %v, want one", requests)
	}
}
