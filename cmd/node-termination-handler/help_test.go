package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
)

func TestHelpShowsEveryOptionInItsGroup(t *testing.T) {
	var out, errOut bytes.Buffer
	environ := []string{
		"WEBHOOK_URL=https://hooks.example.com/hush", "QUEUE_URL=https://queue.example.com/123456789012/mine",
		`WEBHOOK_HEADERS={"X-Token":"hush"}`, "WEBHOOK_PROXY=http://user:hush@proxy.example.com", "AWS_SECRET_ACCESS_KEY=hush",
	}
	if status := run(t.Context(), []string{"--help"}, environ, &out, &errOut); status != exitDone {
		t.Fatalf("status %d: %s", status, &errOut)
	}
	golden.Compare(t, "testdata/help.txt", out.String())
	for line := range strings.Lines(out.String()) {
		if len(strings.TrimRight(line, "\n")) > 100 {
			t.Errorf("longer than 100 columns: %s", line)
		}
	}
	if strings.Contains(out.String(), "example.com") || strings.Contains(out.String(), "hush") {
		t.Error("help shows what the environment holds")
	}
}
