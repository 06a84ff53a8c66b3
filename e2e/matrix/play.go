package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// suite are the packages that start a control plane, and the chart's. The others
// under e2e do not see the version of Kubernetes.
var suite = []string{"./e2e", "./e2e/demo", "./e2e/helm", "./e2e/sandbox"}

// play runs the scenarios on a version, as make e2e-all does. What the go tool says about
// packages goes to out, and what the tests that failed have written. That some failed is
// in the result; an error means that they were not played.
func play(ctx context.Context, version sandbox.Version, out io.Writer) (result, error) {
	args := append([]string{"test", "-json", "-count=1", "-parallel=10", "-timeout=90m"}, suite...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), sandbox.Variable+"="+version.Minor)
	cmd.Stderr = out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tests stop their control planes
	cmd.WaitDelay = 30 * time.Second
	events, err := cmd.StdoutPipe()
	if err != nil {
		return result{}, err
	}
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	r, err := read(events, out)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	ended := cmd.Wait()
	switch exit := new(exec.ExitError); {
	case ctx.Err() != nil:
		return result{}, context.Cause(ctx)
	case err != nil:
		return result{}, fmt.Errorf("read what go test says: %w", err)
	case errors.As(ended, &exit) && len(r.failed) > 0:
		return r, nil
	default:
		return r, ended
	}
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// read reads the events of go test to their end. A test counts once, whatever it
// consists of. What a test writes is kept until it fails.
func read(events io.Reader, out io.Writer) (result, error) {
	var r result
	written := map[string][]byte{}
	inTest := map[string]bool{} // packages in which a test failed
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			slices.Sort(r.failed)
			return r, nil
		} else if err != nil {
			return result{}, err
		}
		top, _, sub := strings.Cut(e.Test, "/")
		key := e.Package + " " + top
		switch {
		case e.Action == "output" && e.Test == "", e.Action == "build-output":
			_, _ = io.WriteString(out, e.Output)
		case e.Action == "output":
			written[key] = append(written[key], e.Output...)
		case sub:
		case e.Action == "pass" && e.Test != "":
			r.passed++
			delete(written, key)
		case e.Action == "skip" && e.Test != "":
			r.skipped++
			delete(written, key)
		case e.Action == "fail" && e.Test != "":
			r.failed = append(r.failed, e.Test)
			inTest[e.Package] = true
			_, _ = out.Write(written[key])
			delete(written, key)
		case e.Action == "fail" && !inTest[e.Package]:
			r.failed = append(r.failed, path.Base(e.Package))
		}
	}
}
