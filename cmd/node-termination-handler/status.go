package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the drains in progress, and what each waits for.",
		Long: `Shows a line for each node that is being drained: since when, until when, which pods are left, and what it
waits for. Above them it says who leads, how the queue is, and what is held back.

It asks the leader, by way of the API server. If the leader cannot be asked, it shows what the nodes
themselves carry, and says why that is all. It changes nothing.

Exit status: 0 no node is stuck; 1 status failed; 2 mistakes in the options; 3 a node is stuck: the
handler cannot write it or list its pods, or its deadline has passed and pods are left, or it is
blocked, and no pod has left for 15 minutes, or a pod is forced or the deadline comes within 30 s;
4 no node is known to be stuck, but the leader was not asked, or cannot see all; 5 no notice is acted
on, because the handler is paused, nobody leads, or receives fail, whatever else is so.`,
	}
	var s tool.Status
	format, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatWide, tool.FormatJSON)
	cmd.Flags().BoolVarP(&s.Watch, "watch", "w", false, "Show it again every 2 seconds, until Ctrl-C. "+
		"The exit status is 0.")
	html := cmd.Flags().Bool("html", false, "Print a page for a browser instead, with the drains of the last 24 hours.")
	checkHTML := func() options.Problems {
		if *html && (s.Watch || cmd.Flags().Changed("output")) {
			return options.Problems{{Name: "html", Text: "cannot be used with --watch or --output"}}
		}
		return nil
	}
	p.withViewer(cmd, func(ctx context.Context, v *tool.Viewer) error {
		out := cmd.OutOrStdout()
		s.Format, s.Terminal = *format, tool.IsTerminal(out)
		s.Colour = overview.ColourWanted(s.Terminal, os.Getenv)
		var health tool.Health
		var err error
		if *html {
			health, err = v.Page(ctx, out, version)
		} else {
			health, err = s.Run(ctx, v, out)
		}
		switch {
		case err != nil:
			return err
		case health == tool.Deaf:
			return statusError(exitDeaf)
		case health == tool.Stuck:
			return statusError(exitWarned)
		case health == tool.Uncertain:
			return statusError(exitUnknown)
		}
		return nil
	}, checkOutput, checkHTML)
	return cmd
}
