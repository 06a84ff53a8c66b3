// Package suite plays tests by go test, and reads what came of them.
package suite

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
)

// A Result is what came of tests. A test counts once, whatever it consists of.
type Result struct {
	Passed, Skipped int
	// Failed are the names of tests, or of packages that failed outside their tests, sorted.
	Failed []string
	// Broken: something other than a test has failed as well, or has made one fail: a panic, a race, a package that
	// does not compile, or what is checked after the tests.
	Broken bool
}

// Outside begins a line by which a test program says that something has failed that belongs to no test.
const Outside = "outside of the tests: "

// Play runs go test with arguments, and env beside the environment of this process. What the go tool says about
// packages goes to out, and what the tests that failed have written. That some failed is in the result; an error means
// that they were not played.
func Play(ctx context.Context, out io.Writer, env []string, args ...string) (Result, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = out
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the tests stop their control planes
	cmd.WaitDelay = 30 * time.Second
	events, err := cmd.StdoutPipe()
	if err != nil {
		return Result{}, err
	}
	if err := cmd.Start(); err != nil {
		return Result{}, err
	}
	r, err := read(events, out)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	ended := cmd.Wait()
	switch exit := new(exec.ExitError); {
	case ctx.Err() != nil:
		return Result{}, context.Cause(ctx)
	case err != nil:
		return Result{}, fmt.Errorf("read what go test says: %w", err)
	case errors.As(ended, &exit) && len(r.Failed) > 0:
		return r, nil
	default:
		return r, ended
	}
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

func (e event) begins(words string) bool { return strings.HasPrefix(e.Output, words) }

// read reads the events of go test to their end. What a test writes is kept until it fails.
func read(events io.Reader, out io.Writer) (Result, error) {
	var r Result
	written := map[string][]byte{}
	inTest := map[string]bool{} // packages in which a test failed
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			slices.Sort(r.Failed)
			return r, nil
		} else if err != nil {
			return Result{}, err
		}
		top, _, sub := strings.Cut(e.Test, "/")
		key := e.Package + " " + top
		r.Broken = r.Broken || slices.ContainsFunc(broken, e.begins)
		switch {
		case e.Action == "output" && e.Test == "", e.Action == "build-output":
			_, _ = io.WriteString(out, e.Output)
		case e.Action == "output":
			written[key] = append(written[key], e.Output...)
		case sub:
		case e.Action == "pass" && e.Test != "":
			r.Passed++
			delete(written, key)
		case e.Action == "skip" && e.Test != "":
			r.Skipped++
			delete(written, key)
		case e.Action == "fail" && e.Test != "":
			r.Failed = append(r.Failed, e.Test)
			inTest[e.Package] = true
			_, _ = out.Write(written[key])
			delete(written, key)
		case e.Action == "fail" && !inTest[e.Package]:
			r.Failed = append(r.Failed, path.Base(e.Package))
			r.Broken = true
		}
	}
}

// broken are beginnings of lines that no test of its own writes.
var broken = []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", Outside}
