// Package helm runs Helm, compiled from the module under hack/helm as kubectl is,
// and knows where the chart is.
package helm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Image sets the image that the chart has to be told.
const Image = "--set=image.repository=registry.example.com/node-termination-handler"

// Helm is the program, with a home of its own: it sees nothing of the user's
// Helm, and leaves nothing there.
type Helm struct {
	Program    string
	Home       string // an existing directory
	Kubeconfig string // empty: no cluster
}

// Root is the source tree, seen from the directory of a test in e2e or below.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Chart is the path of the chart.
func Chart(root string) string {
	return filepath.Join(root, "deploy", "helm", "node-termination-handler")
}

// Build returns the path of the program, compiled unless it is in Go's build
// cache. The first time takes some 3 minutes on 2 cores.
func Build(ctx context.Context, root string) (string, error) {
	return build(ctx, root, "helm")
}

// BuildKubectl is Build for kubectl.
func BuildKubectl(ctx context.Context, root string) (string, error) {
	return build(ctx, root, "kubectl")
}

func build(ctx context.Context, root, tool string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "-n", tool)
	cmd.Dir = filepath.Join(root, "hack", "helm")
	cmd.Env = append(os.Environ(), "GOWORK=off") // a workspace of the main module's does not know this one
	out, err := output(cmd)
	if err != nil {
		return "", fmt.Errorf("compile %s: %w", tool, err)
	}
	return strings.TrimSpace(out), nil
}

// Run runs Helm and returns what it wrote to standard output. The error has
// what it wrote to standard error.
func (h Helm) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, h.Program, args...)
	cmd.Env = []string{"HOME=" + h.Home, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + h.Kubeconfig}
	return output(cmd)
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}
