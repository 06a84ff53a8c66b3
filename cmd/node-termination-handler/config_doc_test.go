package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestHelpShowsEveryOptionInItsGroup(t *testing.T) {
	var out, errOut bytes.Buffer
	environ := []string{"WEBHOOK_URL=https://hooks.example.com/hush", "QUEUE_URL=https://queue.example.com/123456789012/mine"}
	if status := run(t.Context(), []string{"--help"}, environ, &out, &errOut); status != exitDone {
		t.Fatalf("status %d: %s", status, &errOut)
	}
	golden(t, "testdata/help.txt", out.Bytes())
	for line := range strings.Lines(out.String()) {
		if len(strings.TrimRight(line, "\n")) > helpWidth {
			t.Errorf("longer than %d columns: %s", helpWidth, line)
		}
	}
	if strings.Contains(out.String(), "example.com") {
		t.Error("help shows what the environment holds")
	}
}

func TestOptionsDocIsWhatTheTableSays(t *testing.T) {
	var doc bytes.Buffer
	writeOptionsDoc(&doc)
	golden(t, "../../docs/options.md", doc.Bytes())
}
