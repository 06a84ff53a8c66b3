package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

func TestTheEndOfTheContextIsNoErrorOfRun(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte(testKubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &options.Options{Kubeconfig: kubeconfig, Region: "us-east-1", AWSEndpoint: "http://127.0.0.1:1", PodGracePeriod: -1}
	o.Queue.Text = "http://127.0.0.1:1/123456789012/queue"
	var out bytes.Buffer
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := New(ctx, o, slog.New(slog.NewTextHandler(&out, nil)), "")
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("terminated"))
	if err := a.Run(ctx); err != nil || !strings.Contains(out.String(), "msg=stopped why=terminated") {
		t.Errorf("Run = %v, and the log is:\n%s", err, out.String())
	}
}
