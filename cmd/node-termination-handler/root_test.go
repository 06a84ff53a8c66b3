package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	stdlog "log"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
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
	var got *options.Options
	boom := errors.New("boom")
	p := program{environ: []string{"QUEUE_URL=" + testQueue}}
	root := &cobra.Command{Use: "root", SilenceErrors: true, SilenceUsage: true}
	sub := &cobra.Command{Use: "sub"}
	p.withTool(sub, tool.Loader{}, options.UnexpectedArgs, func(_ context.Context, c *options.Options, _ *tool.Origin) error {
		got = c
		return boom
	})
	root.AddCommand(sub)
	root.SetArgs(p.normalise(root, []string{"sub", "-workers", "3", "-release", "none"}))
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, boom) {
		t.Fatalf("error %v, want that of the command", err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(flags)
	if err := flags.Parse([]string{"--workers=3"}); err != nil {
		t.Fatal(err)
	}
	want, err := options.Parse(flags, p.environ)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(options.QueueURL{})); diff != "" || got.Workers != 3 {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

func TestTheLastLineIsJSONWhereJSONWasAskedFor(t *testing.T) {
	for _, tt := range []struct{ args, environ []string }{
		{args: []string{"--json-logging", "--workers=ten"}},
		{args: []string{"--json-logging=true", "--no-such-option"}},
		{args: []string{"--workers=ten"}, environ: []string{"JSON_LOGGING=true"}}, // as the chart sets it
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), tt.args, append(tt.environ, "QUEUE_URL="+testQueue), &out, &errOut)
		var entry map[string]any
		if err := json.Unmarshal(errOut.Bytes(), &entry); err != nil || entry["level"] != "error" || status != exitMistaken {
			t.Errorf("%v: status %d, and the last line is %s", tt, status, errOut.String())
		}
	}
}

// What libraries log goes where the rest goes: after the last line, nowhere.
func TestLibrariesLogIntoTheLog(t *testing.T) {
	var out, errOut, stray bytes.Buffer
	klog.ClearLogger()
	stdlog.SetOutput(&stray)
	klog.LogToStderr(false)
	klog.SetOutput(&stray)
	t.Cleanup(func() {
		stdlog.SetOutput(os.Stderr)
		klog.ClearLogger()
		klog.LogToStderr(true)
	})
	args := []string{"--webhook-url=https://example.com", "--webhook-template-file=" + t.TempDir() + "/none"}
	if status := run(t.Context(), args, []string{"QUEUE_URL=" + testQueue}, &out, &errOut); status == 0 {
		t.Errorf("it runs without its template: %s%s", &out, &errOut)
	}
	stdlog.Print("of the standard library") //nolint:forbidigo // as a library may
	klog.Error("of Kubernetes")             //nolint:forbidigo // as client-go does
	klog.Flush()
	if stray.Len() > 0 {
		t.Errorf("it is written elsewhere: %s", &stray)
	}
}

func TestEachLineFromTheFirstOnIsJSONWhereJSONWasAskedFor(t *testing.T) {
	var out, errOut bytes.Buffer
	args := []string{"--json-logging", "--webhook-url=https://example.com", "--webhook-template-file=" + t.TempDir() + "/none"}
	status := run(t.Context(), args, []string{"QUEUE_URL=" + testQueue}, &out, &errOut)
	var said []any
	for line := range bytes.Lines(errOut.Bytes()) {
		var entry map[string]any
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		said = append(said, entry["msg"])
	}
	if status == 0 || len(said) < 2 || said[0] != "starting" || out.Len() > 0 {
		t.Errorf("status %d, and it says %s%s", status, &out, &errOut)
	}
}
