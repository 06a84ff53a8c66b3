package kubetest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// LargeObjects serves an API server all of whose objects have the name large and an annotation of a megabyte, until the
// test ends. It returns the path of a kubeconfig.
func LargeObjects(t testing.TB) (kubeconfig string) {
	t.Helper()
	const object = `"metadata": {"namespace": "ns", "name": "large", "annotations": {"note": %q}}}`
	large := fmt.Sprintf(object, strings.Repeat("x", 1<<20))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			_, _ = fmt.Fprintf(w, `{"type": "ADDED", "object": {"apiVersion": "v1", "kind": "Pod", %s}`, large)
		case strings.HasSuffix(r.URL.Path, "/large"):
			_, _ = fmt.Fprint(w, "{"+large)
		default:
			_, _ = fmt.Fprintf(w, `{"items": [{%s]}`, large)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("clusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n"+
		"current-context: c\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}
