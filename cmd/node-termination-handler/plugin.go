package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// kubectl runs a program by this name as `kubectl nth`.
// https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
const (
	pluginFile = "kubectl-nth"
	pluginName = "kubectl nth"
	// kubectl runs a program by this name when the shell completes `kubectl nth`.
	// https://pkg.go.dev/k8s.io/kubectl/pkg/cmd/plugin#SetupPluginCompletion
	completionFile = "kubectl_complete-nth"
)

// isPlugin reports whether the program was called as a plugin of kubectl.
func isPlugin(path string) bool {
	return strings.TrimSuffix(filepath.Base(path), ".exe") == pluginFile
}

// completesPlugin reports whether the program was called to complete the command line of the plugin.
func completesPlugin(path string) bool {
	return strings.TrimSuffix(filepath.Base(path), ".exe") == completionFile
}

// pluginCommand returns the command that is the plugin of kubectl. It has the commands of the handler and is no
// handler: without a command it prints its help.
func (p *program) pluginCommand() *cobra.Command {
	root := p.family(&cobra.Command{
		Use:         pluginFile + " COMMAND",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: pluginName},
		Short:       "See what node-termination-handler does, and why.",
		Long: `Shows what the installed node-termination-handler does: which nodes are drained, what each waits for, and
how earlier drains have gone. It also checks the installation, and predicts drains.`,
	})
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if problems := slices.Concat(p.wrong, unexpectedArgs(cmd, args)); len(problems) > 0 {
			return problems
		}
		printHelp(cmd, nil)
		return nil
	}
	return root
}
