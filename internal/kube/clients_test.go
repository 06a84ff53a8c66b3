package kube

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Thousands of requests about nodes and pods, or a limit of their rate, do not keep a lease from being renewed.
func TestLeasesHaveAConnectionOfTheirOwnAndNoLimit(t *testing.T) {
	var mu sync.Mutex
	from := map[string]string{} // the addresses of connections, by path
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		from[r.URL.Path] = r.RemoteAddr
		http.NotFound(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	clients, err := New(&rest.Config{
		Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 0.001, Burst: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(what func() error) {
		t.Helper()
		if err := what(); err == nil {
			t.Error("it is answered")
		}
	}
	ask(func() error {
		_, err := clients.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		return err
	})
	ask(func() error {
		_, err := clients.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		return err
	})
	for range 3 { // the others have used up the limit
		ask(func() error {
			_, err := clients.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
			return err
		})
	}
	mu.Lock()
	defer mu.Unlock()
	a, b, lease := from["/api/v1/nodes/a"], from["/api/v1/nodes/b"], from["/apis/coordination.k8s.io/v1/namespaces/ns/leases/lease"]
	if a == "" || a != b || lease == "" || lease == a {
		t.Errorf("the connections are %q", []string{a, b, lease})
	}
}
