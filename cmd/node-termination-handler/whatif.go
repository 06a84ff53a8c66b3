package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) whatIfCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "what-if [KIND] --node NAME | --all",
		Short: "Predict what a notice would do to a node.",
		Long: `Predicts what a notice would do to a node, and changes nothing. It says when each pod would be
evicted, which PodDisruptionBudgets would block, which pods need more time than the notice leaves,
and which pods would still be there at the deadline.

It decides as the installed handler does, with the options of its Deployment. It assumes the worst:
every pod uses its whole grace period, and no PodDisruptionBudget allows a disruption later. It
needs no queue.

` + kindHelp() + `

Exit status: 0 no pod would be harmed; 1 what-if failed; 2 mistakes in the options; 3 pods would be
lost: they are still there when the instance goes away, or the handler ignores the notice; or killed
before the end of their grace periods; or not created again, because they have no controller.`,
		ValidArgsFunction: completeKind,
	}
	w := tool.WhatIf{Kind: notice.SpotInterruption}
	flags := cmd.Flags()
	flags.StringVar(&w.Node, "node", "", "Name of the node. Required without --all.")
	flags.BoolVar(&w.All, "all", false, "Predict for every node, as if it were drained alone: "+
		"one line per node, the worst first.")
	output, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatJSON)
	check := func(args []string) (problems options.Problems) {
		if len(args) > 0 {
			w.Kind, problems = parseKind(args)
		}
		switch {
		case w.All && w.Node != "":
			problems = append(problems, options.Problem{Name: "all", Text: "cannot be used with --node"})
		case !w.All:
			problems = append(problems, checkNode(w.Node)...)
		}
		w.JSON = *output == tool.FormatJSON
		return append(problems, checkOutput()...)
	}
	p.withSession(cmd, tool.Loader{QueueOptional: true}, check, func(ctx context.Context, s *tool.Session) error {
		harms, err := w.Run(ctx, s, cmd.OutOrStdout())
		if err == nil && harms {
			return statusError(exitWarned)
		}
		return err
	})
	return cmd
}
