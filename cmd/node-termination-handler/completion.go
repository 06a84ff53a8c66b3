package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

// completionTimeout is how long somebody waits who presses Tab.
const completionTimeout = 2 * time.Second

// mustComplete registers a completion. cmd has the flag, and no completion for it.
func mustComplete(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) //nolint:forbidigo // a mistake in this program, which each test of it finds
	}
}

// completeNode completes the names of the cluster's nodes; a shell picks those that begin as it wants. A cluster that
// does not answer has none.
func (p *program) completeNode(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var where tool.Cluster
	where.Kubeconfig, _ = cmd.Flags().GetString("kubeconfig")
	where.Context, _ = cmd.Flags().GetString("context") // not every command has it
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	viewer, err := tool.NewViewer(where, p.environ)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := viewer.Nodes(ctx)
	return names, cobra.ShellCompDirectiveNoFileComp
}
