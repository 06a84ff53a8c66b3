package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

func TestTheEndOfTheContextIsNoErrorOfRun(t *testing.T) {
	o := &options.Options{Kubeconfig: kubeconfigOf(t, testServer), Region: "us-east-1", AWSEndpoint: "http://127.0.0.1:1", PodGracePeriod: -1}
	o.Queue.Text = "http://127.0.0.1:1/123456789012/queue"
	var out logtest.Log
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := New(ctx, o, out.Logger(), "")
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("terminated"))
	if err := a.Run(ctx); err != nil || !out.Has("stopped", "why", "terminated") {
		t.Errorf("Run = %v, and the log is:\n%s", err, out.String())
	}
}

func TestRunListensOnTheAddressesOfItsOptions(t *testing.T) {
	o := &options.Options{
		Kubeconfig: kubeconfigOf(t, testServer), PodGracePeriod: -1, PrometheusServer: true,
		BindAddresses: []netip.Addr{netip.MustParseAddr("240.0.0.1")}, // which is nobody's
	}
	o.Queue.Text = "none"
	a, err := New(t.Context(), o, logr.Discard(), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("it listens elsewhere"))
	defer cancel()
	if err := a.Run(ctx); err == nil || !strings.Contains(err.Error(), "240.0.0.1") {
		t.Errorf("Run = %v, and 240.0.0.1 is no address of this machine", err)
	}
}

func TestHooksWithoutAQueueNeedARegion(t *testing.T) {
	o := &options.Options{Kubeconfig: kubeconfigOf(t, testServer), PodGracePeriod: -1, SweepInterval: time.Minute}
	o.Queue.Text = "none"
	if _, err := New(t.Context(), o, logr.Discard(), ""); err == nil || !strings.HasPrefix(err.Error(), "aws-region: is required") {
		t.Errorf("without a region: %v", err)
	}
	o.Region = "us-east-1"
	if _, err := New(t.Context(), o, logr.Discard(), ""); err != nil {
		t.Errorf("with one: %v", err)
	}
}

func TestAReplicaThatStandsByNotesWhatADeletedNodeCarried(t *testing.T) {
	const queue = "http://127.0.0.1:1/123456789012/queue"
	node := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"a","uid":"1","resourceVersion":"1","annotations":{%q:%q}}}`,
		cluster.IntentAnnotation, `{"v":1,"queue":"`+queue+`","notices":[{"kind":"SpotInterruption"}],"cordonedAt":"2026-03-03T03:00:00Z","finishedAt":"2026-03-03T03:01:00Z","outcome":"missed"}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("sendInitialEvents") != "": // of an older API server
			http.Error(w, "{}", http.StatusBadRequest)
		case r.URL.Query().Get("watch") == "":
			_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[`+node+`]}`)
		default:
			_, _ = io.WriteString(w, `{"type":"DELETED","object":`+node+"}\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	o := &options.Options{Kubeconfig: kubeconfigOf(t, server.URL), Region: "us-east-1", AWSEndpoint: "http://127.0.0.1:1", PodGracePeriod: -1, KubeQPS: 100, KubeBurst: 100}
	o.Queue.Text = queue
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out logtest.Log
	a, err := New(ctx, o, out.Logger(), "")
	if err != nil {
		t.Fatal(err)
	}
	go a.nodes.Run(ctx)
	for began := time.Now(); len(a.lookout.episodes.History().Episodes) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			t.Fatal("nothing is noted")
		}
	}
	if e := a.lookout.episodes.History().Episodes[0]; e.Node != "a" || e.Outcome != "missed" {
		t.Errorf("%+v", e)
	}
}
