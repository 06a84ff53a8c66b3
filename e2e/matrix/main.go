// Matrix plays the scenarios on each version of Kubernetes that hack/controlplane
// describes, one after the other, and writes what came of it into the table of
// docs/support.md.
//
//	matrix [-commit HASH]
//
// With a commit it plays only one version, which the commit chooses among those that
// are not the default one, and of this only what differs between versions, and writes no
// table. So the gate costs little more, and the commits of a while try all versions. The variable KUBERNETES, such as
// KUBERNETES=1.35, chooses one version as well.
//
// It is run from the root of the repository, and exits with 1 if a scenario fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
)

// page has the table.
const page = "docs/support.md"

func main() {
	commit := flag.String("commit", "", "play only the version that this commit chooses")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *commit, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, commit string, out io.Writer) error {
	all, err := sandbox.Versions()
	if err != nil {
		return err
	}
	played, tests := all, ""
	switch minor := os.Getenv(sandbox.Variable); {
	case commit != "":
		version, err := turn(all, commit)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "commit %s chooses Kubernetes %s; the same by hand: make matrix %s=%s\n",
			commit, version.Release, sandbox.Variable, version.Minor)
		played = []sandbox.Version{version}
		if tests, err = testsOf(gated); err != nil {
			return fmt.Errorf("find the scenarios of the gate: %w", err)
		}
	case minor != "":
		played = slices.DeleteFunc(slices.Clone(all), func(v sandbox.Version) bool { return v.Minor != minor })
		if len(played) == 0 {
			return fmt.Errorf("hack/controlplane has no Kubernetes %s", minor)
		}
	}
	var failed []error
	results := map[string]result{}
	for _, version := range played {
		fmt.Fprintf(out, "=== Kubernetes %s\n", version.Release)
		start := time.Now()
		r, err := play(ctx, version, tests, out)
		if err != nil {
			return fmt.Errorf("play the scenarios on Kubernetes %s: %w", version.Release, err)
		}
		fmt.Fprintf(out, "=== Kubernetes %s: %s; %d passed, %d were skipped, in %s\n",
			version.Release, r, r.passed, r.skipped, time.Since(start).Round(time.Second))
		results[version.Minor] = r
		if len(r.failed) > 0 {
			failed = append(failed, fmt.Errorf("on Kubernetes %s: %s", version.Release, r))
		}
	}
	if commit == "" {
		err = rewrite(page, all, results)
	}
	return errors.Join(append(failed, err)...)
}

// turn is the version that a commit chooses among those that are not the default
// one: the first digits of its hash, modulo their number.
func turn(all []sandbox.Version, commit string) (sandbox.Version, error) {
	others := slices.DeleteFunc(slices.Clone(all), func(v sandbox.Version) bool { return v.Default })
	if len(others) == 0 {
		return sandbox.Version{}, errors.New("hack/controlplane has only the default version")
	}
	number, err := strconv.ParseUint(commit[:min(len(commit), 12)], 16, 64)
	if err != nil {
		return sandbox.Version{}, fmt.Errorf("%q is no commit: %w", commit, err)
	}
	return others[number%uint64(len(others))], nil
}

// A result is what came of the scenarios on one version.
type result struct {
	passed, skipped int
	failed          []string // names of tests, or of packages that failed outside their tests
}

// String is a cell of the table. It has no numbers: they would be wrong after the
// next new scenario.
func (r result) String() string {
	if len(r.failed) > 0 {
		return "fail: " + strings.Join(r.failed, ", ")
	}
	return allPass
}

const allPass = "all pass"
