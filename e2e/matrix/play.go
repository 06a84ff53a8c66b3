package main

import (
	"context"
	"io"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/suite"
)

// packages are those that start a control plane, and the chart's. The others under e2e do not see the version of
// Kubernetes.
var packages = []string{"./e2e", "./e2e/demo", "./e2e/helm", "./e2e/sandbox"}

// play runs the scenarios on a version, as make e2e-all does: those of ./e2e take both cores, and so play alone.
func play(ctx context.Context, version sandbox.Version, out io.Writer) (suite.Result, error) {
	args := append([]string{"-count=1", "-p=1", "-parallel=10", "-timeout=90m"}, packages...)
	return suite.Play(ctx, out, []string{sandbox.Variable + "=" + version.Minor}, args...)
}
