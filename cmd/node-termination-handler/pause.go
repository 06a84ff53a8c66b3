package main

import (
	"context"

	"github.com/spf13/cobra"

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
	}
	why := cmd.Flags().String("why", "", "Why, for those who find the handler paused.")
	p.withViewer(cmd, func(ctx context.Context, v *tool.Viewer) error { return v.Pause(ctx, cmd.OutOrStdout(), *why) })
	return cmd
}

func (p *program) resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "End the pause.",
		Long: `Ends what pause began: the handler goes on with what nodes carry, and with the notices that wait.

Exit status: 0 the handler is not paused; 1 resume failed; 2 mistakes in the options.`,
	}
	p.withViewer(cmd, func(ctx context.Context, v *tool.Viewer) error { return v.Resume(ctx, cmd.OutOrStdout()) })
	return cmd
}
