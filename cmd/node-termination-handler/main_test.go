package main

import (
	"context"
	"io"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){programName: main, pluginFile: main, completionFile: main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *golden.Update,
	})
}

const testQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/workers"

// run is the program by its own name.
func run(ctx context.Context, args, environ []string, out, errOut io.Writer) int {
	return runAs(ctx, append([]string{programName}, args...), environ, out, errOut)
}
