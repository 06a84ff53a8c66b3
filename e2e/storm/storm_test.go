package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/storm/figures"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestAStormOfEachKindIsDrained(t *testing.T) {
	tier.Full(t, "three control planes")
	dir := t.TempDir()
	program := filepath.Join(dir, "node-termination-handler")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "../../cmd/node-termination-handler")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the handler: %v\n%s", err, text)
	}
	for _, kind := range []string{"spot", "rebalance", "state-change"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			o := options{
				program: program, manifests: "../../deploy/manifests/node-termination-handler.yaml", simulate: "none", level: "service-accounts",
				nodes: 4, pods: 3, kind: kind, stop: 10 * time.Millisecond, tagCheck: true, keep: time.Second, args: []string{"--json-logging"},
				record: filepath.Join(dir, kind), logFile: filepath.Join(dir, kind+".log"),
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
			most := 5 // decided, cordoned, what kubectl's drain warns of, drained, the episode
			if kind == "state-change" {
				most += o.pods // each is deleted, whatever its budgets say
			}
			tellsEachNodesStory(t, o.logFile, o.nodes, most)
		})
	}
}

// tellsEachNodesStory checks what a handler logs at the default level: so many lines a node at most, none twice, and
// before it leads none that is too long to read.
func tellsEachNodesStory(t *testing.T, file string, nodes, most int) {
	t.Helper()
	const longest = 300
	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	leads, seen, about := false, map[string]bool{}, map[string]int{}
	for line := range strings.Lines(string(log)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		delete(entry, "time")
		says := fmt.Sprint(entry)
		if seen[says] {
			t.Errorf("logged twice: %s", says)
		}
		seen[says] = true
		if leads = leads || entry["msg"] == "leading"; !leads && len(line) > longest {
			t.Errorf("%d characters at the start: %s", len(line), line)
		}
		if node, ok := entry["node"].(string); ok {
			about[node]++
		}
	}
	if !leads || len(about) != nodes {
		t.Errorf("the handler leads: %t; %d nodes are told of, want %d:\n%s", leads, len(about), nodes, log)
	}
	for node, lines := range about {
		if lines > most {
			t.Errorf("%d lines are about %s, want %d at most:\n%s", lines, node, most, log)
		}
	}
}
