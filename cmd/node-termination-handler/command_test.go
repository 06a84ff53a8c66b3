package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestMistakesEndWithStatusTwo(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"--queue-url=" + testQueue, "--no-such"},
		{"--queue-url=" + testQueue, "stray"},
		{"--queue-url=" + testQueue, "--help=perhaps"},
		{"version", "stray"},
	} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), args, nil, &out, &errOut); status != exitMistaken {
			t.Errorf("%q: status %d, want %d: %s", args, status, exitMistaken, &errOut)
		}
	}
}

func TestACommandGetsTheOptionsOfTheTable(t *testing.T) {
	var got *config
	boom := errors.New("boom")
	p := program{environ: []string{"QUEUE_URL=" + testQueue}}
	root := &cobra.Command{Use: "root", SilenceErrors: true, SilenceUsage: true}
	sub := &cobra.Command{Use: "sub"}
	p.withOptions(sub, func(_ context.Context, c *config) error {
		got = c
		return boom
	})
	root.AddCommand(sub)
	root.SetArgs(p.normalise(root, []string{"sub", "-workers", "3"}))
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, boom) {
		t.Fatalf("error %v, want that of the command", err)
	}
	want := defaults()
	want.workers = 3
	want.changed["workers"] = "3"
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{}, queueURL{})); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}
