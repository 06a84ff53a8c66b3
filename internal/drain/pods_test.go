package drain

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// A list from a cache that is behind lacks pods, and 500 lists that are not from a
// cache are too many. The drain is over here before the watch has begun.
func TestPodsAreListedAsOfNowAndWatchedFromThere(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		query.Del("timeoutSeconds")
		query.Del("timeout")
		requests <- r.URL.Path + "?" + query.Encode()
		if query.Get("watch") != "" {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	store, end := newPodStore(), make(chan struct{})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), funcr.New(func(prefix, args string) {
		log.WriteString(prefix + args + "\n")
	}, funcr.Options{})))
	defer cancel()
	go func() {
		defer close(end)
		store.watch(ctx, client, "a")
	}()
	for _, want := range []string{
		"/api/v1/pods?fieldSelector=spec.nodeName%3Da",
		"/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Da&resourceVersion=7&watch=true",
	} {
		if got := <-requests; got != want {
			t.Errorf("the request is %s, want %s", got, want)
		}
	}
	if !store.synced() {
		t.Error("the pods have not been seen once")
	}
	cancel()
	<-end
	if log.Len() > 0 {
		t.Errorf("the log says:\n%s", log.String())
	}
}
