package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

// completionTimeout is how long somebody waits who presses Tab.
const completionTimeout = 2 * time.Second

// completes has a shell complete the values of the flags of cmd that are a choice, and of --node the names of nodes.
func (p *program) completes(cmd *cobra.Command, choices map[string][]string) {
	for flag, values := range choices {
		mustComplete(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	if cmd.Flags().Lookup("node") != nil {
		mustComplete(cmd, "node", p.completeNode)
	}
}

// mustComplete registers a completion. cmd has the flag, and no completion for it.
func mustComplete(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) //nolint:forbidigo // a mistake in this program, which each test of it finds
	}
}

// completeNode completes the names of the cluster's nodes. A cluster that does not answer has none.
func (p *program) completeNode(
	cmd *cobra.Command, _ []string, begin string,
) ([]string, cobra.ShellCompDirective) {
	var where tool.Cluster
	for flag, value := range map[string]*string{"kubeconfig": &where.Kubeconfig, "context": &where.Context} {
		if f := cmd.Flags().Lookup(flag); f != nil {
			*value = f.Value.String()
		}
	}
	viewer, err := tool.NewViewer(where, p.environ)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	names, err := viewer.Nodes(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, name := range names {
		if strings.HasPrefix(name, begin) {
			all = append(all, name)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}
