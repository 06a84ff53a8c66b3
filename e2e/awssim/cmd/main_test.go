package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// start runs the command until the test ends, and returns what it announces.
func start(t *testing.T, args ...string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"--listen", "127.0.0.1:0"}, args...), writer)
		_ = writer.CloseWithError(io.EOF)
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run = %v, want no error at its end", err)
		}
	})
	lines := map[string]string{}
	for scanner := bufio.NewScanner(reader); scanner.Scan(); {
		if name, value, ok := strings.Cut(strings.TrimPrefix(scanner.Text(), "export "), "="); ok {
			lines[name] = value
		}
		if name, value, ok := strings.Cut(strings.TrimPrefix(scanner.Text(), "# "), ": "); ok {
			lines[name] = value
		}
		if lines["AWS_SECRET_ACCESS_KEY"] != "" {
			return lines
		}
	}
	t.Fatalf("the command ended after %v: %v", lines, <-ended)
	return nil
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestTheCommandServesAQueueAndAState(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state.json")
	err := os.WriteFile(state, []byte(`{"instances": [{"id": "i-0123456789abcdef0", "tags": {"team": "red"}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	lines := start(t, "--queue", "interruptions", "--state", state)
	endpoint := lines["AWS_ENDPOINT_URL"]
	if want := endpoint + "/123456789012/interruptions"; lines["queue"] != want {
		t.Errorf("queue = %q, want %q", lines["queue"], want)
	}
	shown := get(t, endpoint+"/_awssim/state")
	for _, want := range []string{`"interruptions"`, `"i-0123456789abcdef0"`, `"every-event"`} {
		if !strings.Contains(shown, want) {
			t.Errorf("state = %s, want %s in it", shown, want)
		}
	}
}

func TestTheCommandSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"queue": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args  []string
		usage bool
		says  string
	}{
		"an unknown flag":           {[]string{"--nope"}, true, "-nope"},
		"an argument too many":      {[]string{"--queue", "q", "extra"}, true, "extra"},
		"a state file that is not":  {[]string{"--state", "nowhere.json"}, false, "nowhere.json"},
		"a state file of mistakes":  {[]string{"--state", broken}, false, `unknown field "queue"`},
		"an address that is no one": {[]string{"--listen", "nowhere"}, false, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := run(t.Context(), test.args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.says) || errors.As(err, new(usageError)) != test.usage {
				t.Errorf("run = %v, want %q in it, a usage error: %v", err, test.says, test.usage)
			}
		})
	}
}

func TestHelpIsPrintedAndIsNoFailure(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), []string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-listen") {
		t.Errorf("run = %v, having printed %q", err, out.String())
	}
}
