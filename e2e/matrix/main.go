// Matrix plays the scenarios on each version of Kubernetes that hack/controlplane
// describes, one after the other, and writes what came of it into the table of
// docs/support.md.
//
// The variable KUBERNETES, such as KUBERNETES=1.35, chooses one version.
//
// It is run from the root of the repository, and exits with 1 if a scenario fails.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

// page has the table.
const page = "docs/support.md"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	all, err := sandbox.Versions()
	if err != nil {
		return err
	}
	played := all
	if minor := os.Getenv(sandbox.Variable); minor != "" {
		played = slices.DeleteFunc(slices.Clone(all), func(v sandbox.Version) bool { return v.Minor != minor })
		if len(played) == 0 {
			return fmt.Errorf("hack/controlplane has no Kubernetes %s", minor)
		}
	}
	var failed []error
	results := map[string]suite.Result{}
	for _, version := range played {
		fmt.Fprintf(out, "=== Kubernetes %s\n", version.Release)
		start := time.Now()
		r, err := play(ctx, version, out)
		if err != nil {
			return fmt.Errorf("play the scenarios on Kubernetes %s: %w", version.Release, err)
		}
		fmt.Fprintf(out, "=== Kubernetes %s: %s; %d passed, %d were skipped, in %s\n",
			version.Release, cell(r), r.Passed, r.Skipped, time.Since(start).Round(time.Second))
		results[version.Minor] = r
		if len(r.Failed) > 0 {
			failed = append(failed, fmt.Errorf("on Kubernetes %s: %s", version.Release, cell(r)))
		}
	}
	return errors.Join(append(failed, rewrite(page, all, results))...)
}

// cell is a result in the table. It has no numbers: they would be wrong after the
// next new scenario.
func cell(r suite.Result) string {
	if len(r.Failed) > 0 {
		return "fail: " + strings.Join(r.Failed, ", ")
	}
	return allPass
}

const allPass = "all pass"
