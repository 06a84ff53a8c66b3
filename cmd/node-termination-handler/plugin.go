package main

import (
	"slices"

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
		if err := slices.Concat(p.wrong, unexpectedArgs(cmd, args)).Err(); err != nil {
			return err
		}
		printHelp(cmd, nil)
		return nil
	}
	return root
}
