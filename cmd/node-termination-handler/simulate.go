package main

import (
	"bufio"
	"context"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) simulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate KIND --node NAME",
		Short: "Send a test notice for a node, and follow its drain.",
		Long: `Sends a notice for the node's instance, as AWS would, and follows the drain to its end.

THIS DRAINS THE NODE, which stays cordoned afterwards. Before it sends the notice, simulate says
what the installed handler will do, with the options of its Deployment, and asks for confirmation.
The instance is not touched. A lifecycle action is invented, so completing it has no effect. With
--dry-run simulate prints the notice and sends nothing.

` + kindHelp() + `

Exit status: 0 the node was drained in time; 1 it was not, or nothing was sent.`,
		ValidArgsFunction: completeKind,
	}
	var sim tool.Simulation
	flags := cmd.Flags()
	flags.StringVar(&sim.Node, "node", "", "Name of the node. Required.")
	flags.BoolVar(&sim.Yes, "yes", false, "Do not ask for confirmation.")
	flags.BoolVar(&sim.PrintOnly, "dry-run", false, "Print the notice, and send nothing.")
	output, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatJSON)
	flags.Lookup("output").Usage += " json needs --yes."
	check := func(args []string) (problems options.Problems) {
		sim.Kind, problems = parseKind(args)
		problems = append(problems, checkNode(sim.Node)...)
		problems = append(problems, checkOutput()...)
		sim.JSON = *output == tool.FormatJSON
		if sim.JSON && !sim.Yes && !sim.PrintOnly {
			problems = append(problems, options.Problem{Name: "output", Text: "json cannot ask for confirmation: add --yes"})
		}
		return problems
	}
	p.withSession(cmd, tool.Loader{Strict: true}, check, func(ctx context.Context, s *tool.Session) error {
		return sim.Run(ctx, s, tool.Terminal{
			In: bufio.NewReader(cmd.InOrStdin()), Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr(),
		})
	})
	return cmd
}
