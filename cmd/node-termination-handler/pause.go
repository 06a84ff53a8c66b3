package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) pauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Stop all drains now, until resume.",
		Long: `Pauses the handler: it drains no node and receives no message until resume. Drains in progress stop where they
are. AWS does not stop: machines end at their deadlines, and lifecycle hooks time out. The messages wait in the
queue for as long as it keeps them.

It sets the annotation node-termination-handler/paused on the Lease of the handler, which survives changes of
the leader. status says first that the handler is paused. In IMDS mode without a leader there is no Lease.

Exit status: 0 the handler is paused; 1 pause failed; 2 mistakes in the options.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	where := whereFlags(cmd)
	why := cmd.Flags().String("why", "", "Why, for those who find the handler paused.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		viewer, err := p.viewer(*where, args)
		if err != nil {
			return err
		}
		return viewer.Pause(cmd.Context(), cmd.OutOrStdout(), *why)
	}
	return cmd
}

func (p *program) resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "End the pause.",
		Long: `Ends what pause began: the handler goes on with what nodes carry, and with the notices that wait.

Exit status: 0 the handler is not paused; 1 resume failed; 2 mistakes in the options.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	where := whereFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		viewer, err := p.viewer(*where, args)
		if err != nil {
			return err
		}
		return viewer.Resume(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

// viewer is that of a command which takes no arguments.
func (p *program) viewer(where tool.Cluster, args []string) (*tool.Viewer, error) {
	if problems := slices.Concat(p.wrong, options.UnexpectedArgs(args)); len(problems) > 0 {
		return nil, problems
	}
	return tool.NewViewer(where, p.environ)
}
