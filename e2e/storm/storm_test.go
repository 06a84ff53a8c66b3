package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/storm/figures"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestAStormOfEachKindIsDrained(t *testing.T) {
	tier.Full(t, "three control planes")
	dir := t.TempDir()
	program := filepath.Join(dir, "node-termination-handler")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/node-termination-handler")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the handler: %v\n%s", err, text)
	}
	for _, kind := range []string{"spot", "rebalance", "state-change"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o := options{
				program: program, manifests: "../../deploy/manifests/node-termination-handler.yaml", simulate: "none", level: "service-accounts",
				nodes: 4, pods: 3, kind: kind, stop: 10 * time.Millisecond, tagCheck: true, keep: time.Second,
				record: filepath.Join(dir, kind),
			}
			if err := run(t.Context(), o, t.Output()); err != nil {
				t.Fatal(err)
			}
			line, err := os.ReadFile(o.record)
			if err != nil {
				t.Fatal(err)
			}
			var r figures.Run
			if err := json.Unmarshal(line, &r); err != nil {
				t.Fatal(err)
			}
			asked := r.Kubernetes["create pods/eviction"] + r.Kubernetes["delete pods"]
			if asked != 12 || r.Missed != 0 || r.Cordoned.Max == 0 || r.Deleted.Max == 0 {
				t.Errorf("%d pods asked to leave, %d nodes missed, the last cordoned after %g s, its message deleted after %g s; want 12 of 4 nodes",
					asked, r.Missed, r.Cordoned.Max, r.Deleted.Max)
			}
		})
	}
}
