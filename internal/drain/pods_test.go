package drain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// The second handler is client-go's brake on errors. It keeps the time of the last one
// for the whole process, and waits for decades where that was real and the next is virtual.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	m.Run()
}

// emptyNode is an API server that knows of no pods. No watch of it begins.
type emptyNode struct {
	requests []string
	hangs    int // so many lists get no answer

	shareFrom int // see Drainer.ShareFrom
}

// RoundTrip implements http.RoundTripper.
func (e *emptyNode) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	query.Del("timeoutSeconds")
	query.Del("timeout")
	e.requests = append(e.requests, r.URL.Path+"?"+query.Encode())
	if query.Get("watch") != "" || len(e.requests) <= e.hangs {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {"application/json"}},
		Body:       io.NopCloser(strings.NewReader(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)),
	}, nil
}

// watched watches the node for d, and returns what came of it, and the log.
func (e *emptyNode) watched(t *testing.T, d time.Duration) (*podStore, *logtest.Log) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: e})
	if err != nil {
		t.Fatal(err)
	}
	var log logtest.Log
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), log.Logger()), d)
	defer cancel()
	store := newPodStore()
	store.watch(ctx, &Drainer{Client: client, ShareFrom: e.shareFrom}, "a")
	return store, &log
}

// A list from a cache that is behind lacks pods, and one in pages is not from a
// cache everywhere. The drain is over here before the watch has begun.
func TestPodsAreListedAsOfNowAndWatchedFromThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &emptyNode{}
		store, log := node.watched(t, time.Second)
		want := []string{
			"/api/v1/pods?fieldSelector=spec.nodeName%3Da",
			"/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Da&resourceVersion=7&watch=true",
		}
		if !slices.Equal(node.requests, want) {
			t.Errorf("the requests are\n%q, want\n%q", node.requests, want)
		}
		if !store.synced() {
			t.Error("the pods have not been seen once")
		}
		if log.String() != "" {
			t.Errorf("the log says:\n%s", log)
		}
	})
}

func TestAListWithoutAnAnswerIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &emptyNode{hangs: 1}
		if store, log := node.watched(t, requestTimeout+2*time.Second); !store.synced() {
			t.Errorf("the pods have not been seen, by %d requests; the log says:\n%s", len(node.requests), log)
		}
	})
}

// Of a node's own watch, client-go logs that.
func TestAListOfManyThatFailsIsAWarningOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &emptyNode{hangs: 3, shareFrom: 1}
		store, log := node.watched(t, 5*time.Minute)
		if !store.synced() {
			t.Errorf("the pods have not been seen, by %d requests", len(node.requests))
		}
		var levels []string
		for _, e := range log.Entries("the pods of a node cannot be listed, trying again") {
			levels = append(levels, e.Level)
		}
		if want := []string{"warn", "debug", "debug"}; !slices.Equal(levels, want) {
			t.Errorf("it is logged at the levels %q, want %q:\n%s", levels, want, log)
		}
	})
}

// What is told of several pods of a node, or of the first, is the same each time.
func TestThePodsOfANodeHaveAnOrder(t *testing.T) {
	store := newPodStore()
	var want []string
	for _, namespace := range []string{"a", "a-b"} {
		for k := range 9 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(k), UID: types.UID(namespace + fmt.Sprint(k))}}
			store.put(pod)
			want = append(want, nameOf(pod))
		}
	}
	var got []string
	for _, pod := range store.list() {
		got = append(got, nameOf(pod))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o := obstacles{refusals: []overview.Refusal{{Cause: overview.Webhook, Name: "b", Pods: 2}, {Cause: overview.Budget, Name: "c", Pods: 2}, {Cause: overview.Budget, Name: "a", Pods: 2}, {Cause: overview.Webhook, Name: "a", Pods: 3}}}
	names := ""
	for _, r := range o.sorted() {
		names += string(r.Cause) + " " + r.Name + ";"
	}
	if want := fmt.Sprintf("%[1]s a;%[2]s a;%[2]s c;%[1]s b;", overview.Webhook, overview.Budget); names != want {
		t.Errorf("what kept pods: %s, want %s", names, want)
	}
}
