package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestBuild has the output of a first build where someone can see it.
func TestBuild(t *testing.T) {
	binaries, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{binaries.ControlPlane, binaries.KWOK, binaries.Stages} {
		if !exists(path) {
			t.Errorf("%s is missing", path)
		}
	}
	var out bytes.Buffer
	again, err := Build(t.Context(), &out)
	if err != nil || again != binaries || out.Len() != 0 {
		t.Errorf("the second Build = %v, %v and says %q, want the same in silence", again, err, out.String())
	}
}

func TestOneHoldsTheLockAndTheOtherWaitsAndSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, "it", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, cause)
	defer cancel()
	var out strings.Builder
	if _, err := lock(ctx, path, "it", &out); !errors.Is(err, cause) {
		t.Errorf("lock = %v, want %v", err, cause)
	}
	if !strings.HasPrefix(out.String(), "waiting for another process") {
		t.Errorf("it says %q", out.String())
	}
	unlock()
	again, err := lock(t.Context(), path, "it", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestACompilerThatFailsIsQuotedAndLeavesNothing(t *testing.T) {
	source, cache := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"go.mod": "module broken\n", "main.go": "package main\n\nfunc main() { undefined() }\n"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := keep(t.Context(), filepath.Join(cache, "built"), "it", io.Discard, func(partial string) error {
		return compile(t.Context(), source, Version{Release: "v1.2.3", Minor: "1.2", modfile: defaultModfile}, partial, io.Discard)
	})
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("compile = %v, want the compiler's words", err)
	}
	if left, _ := os.ReadDir(cache); len(left) != 1 || left[0].Name() != "built.lock" {
		t.Errorf("left behind: %v, want the lock alone", left)
	}
}

func TestPruneKeepsWhatIsRecent(t *testing.T) {
	cache, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{"controlplane-old": 48 * time.Hour, "controlplane-new": time.Hour, "karpenter-old": 48 * time.Hour, "unrelated": 48 * time.Hour} {
		path := filepath.Join(cache, name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	prune(cache, now.Add(-24*time.Hour))
	var left []string
	for _, name := range []string{"controlplane-new", "controlplane-old", "karpenter-old", "unrelated"} {
		if exists(filepath.Join(cache, name)) {
			left = append(left, name)
		}
	}
	if diff := cmp.Diff([]string{"controlplane-new", "unrelated"}, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
