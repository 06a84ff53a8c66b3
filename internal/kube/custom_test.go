package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// customConfigMaps are ConfigMaps as if they were custom resources, of a server with these handlers.
func customConfigMaps(t *testing.T, list, watching http.HandlerFunc) Custom[*corev1.ConfigMap, *corev1.ConfigMapList] {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/example.com/v1/things" || r.Header.Get("Accept") != "application/json" {
			t.Errorf("%s, Accept: %s", r.URL, r.Header.Get("Accept"))
		}
		if w.Header().Set("Content-Type", "application/json"); r.URL.Query().Get("watch") == "true" {
			watching(w, r)
			return
		}
		list(w, r)
	}))
	t.Cleanup(server.Close)
	clients, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return Custom[*corev1.ConfigMap, *corev1.ConfigMapList]{
		Client: clients.CoreV1().RESTClient(), Path: "/apis/example.com/v1/things",
		Object:  func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		Objects: func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} },
	}
}

func TestACustomResourceIsListedAndWatched(t *testing.T) {
	ended := make(chan struct{})
	things := customConfigMaps(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"data":{"k":"v"},"unknown":1}]}`)
	}, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("resourceVersion"); got != "7" {
			t.Errorf("a watch from %q on", got)
		}
		fmt.Fprint(w, `{"type":"ADDED","object":{"metadata":{"name":"b"}}}`+"\n"+
			`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	list, err := things.List(t.Context(), metav1.ListOptions{})
	if err != nil || list.ResourceVersion != "7" || len(list.Items) != 1 || list.Items[0].Data["k"] != "v" {
		t.Fatalf("%+v, %v", list, err)
	}
	w, err := things.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.ConfigMap).Name != "b" {
		t.Errorf("%+v", e)
	}
	if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("%+v", e)
	}
	w.Stop()
	<-ended // the request goes with its watch
	if _, more := <-w.ResultChan(); more {
		t.Error("an event after the end")
	}
}

func TestACustomResourceThatDoesNotExistIsNotFound(t *testing.T) {
	absent := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "404 page not found", http.StatusNotFound) }
	things := customConfigMaps(t, absent, absent)
	if _, err := things.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list: %v", err)
	}
	if _, err := things.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("watch: %v", err)
	}
}
