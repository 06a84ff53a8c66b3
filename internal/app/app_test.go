package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

func TestTheEndOfTheContextIsNoErrorOfRun(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte(testKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &options.Options{Kubeconfig: kubeconfig, Region: "us-east-1", AWSEndpoint: "http://127.0.0.1:1", PodGracePeriod: -1}
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
