// Again plays tests by go test, and those that fail once more alone, three times. If all of
// these pass, it exits with 0 and names the tests, so that somebody mends them: on a shared
// machine one stall among many scenarios is no defect of the change. Nothing is played
// again if more than three have failed, or something besides tests: a panic, a race, or
// what is checked after them.
//
//	again [ARGUMENTS OF go test]
//
// It is run from the root of the repository.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, suite.Play)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "again:", err)
		os.Exit(1)
	}
}

const (
	most  = 3 // tests that are played again
	times = 3 // that each has to pass then
)

type play = func(ctx context.Context, out io.Writer, env []string, args ...string) (suite.Result, error)

func run(ctx context.Context, args []string, out io.Writer, play play) error {
	first, err := play(ctx, out, nil, append([]string{"-count=1"}, args...)...)
	switch failed := strings.Join(first.Failed, ", "); {
	case err != nil:
		return err
	case len(first.Failed) == 0:
		return nil
	case first.Broken || len(first.Failed) > most:
		return fmt.Errorf("failed: %s", failed)
	}
	for _, test := range first.Failed {
		fmt.Fprintf(out, "playing %s again, alone\n", test)
		r, err := play(ctx, out, nil, append([]string{fmt.Sprintf("-count=%d", times), "-run=^" + test + "$"}, args...)...)
		if err != nil {
			return err
		}
		if r.Broken || len(r.Failed) > 0 || r.Passed != times {
			return fmt.Errorf("failed, and again alone: %s", test)
		}
	}
	for _, test := range first.Failed { // hack/steps.sh looks for these lines
		fmt.Fprintf(out, "FLAKY: %s has failed, and passed alone, %d times: mend it\n", test, times)
	}
	return nil
}
