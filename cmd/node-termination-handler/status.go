package main

import (
	"context"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
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

Exit status: 0 no node is stuck; 1 status failed; 2 mistakes in the options; 3 a node is stuck: its
deadline has passed and pods are left, or it is blocked, and no pod has left for 15 minutes or its
deadline is 30 s away; 4 no node is known to be stuck, but the leader was not asked; 5 no notice
is acted on, because the handler is paused, nobody leads, or receives fail, whatever else is so.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var s tool.Status
	where := whereFlags(cmd)
	cmd.Flags().BoolVarP(&s.Watch, "watch", "w", false, "Show it again every 2 seconds, until Ctrl-C. "+
		"The exit status is 0.")
	cmd.Flags().StringVarP(&s.Format, "output", "o", tool.FormatText, "Output format: text, wide or json.")
	formats := []string{tool.FormatText, tool.FormatWide, tool.FormatJSON}
	p.completes(cmd, map[string][]string{"output": formats})
	html := cmd.Flags().Bool("html", false, "Print a page for a browser instead, with the drains of the last 24 hours.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems := slices.Concat(p.wrong, options.UnexpectedArgs(args))
		if !slices.Contains(formats, s.Format) {
			problems = append(problems, options.Problem{Name: "output", Text: "takes text, wide or json"})
		}
		if *html && (s.Watch || cmd.Flags().Changed("output")) {
			problems = append(problems, options.Problem{Name: "html", Text: "cannot be used with --watch or --output"})
		}
		if len(problems) > 0 {
			return problems
		}
		viewer, err := tool.NewViewer(*where, p.environ)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		s.Terminal = tool.IsTerminal(out)
		s.Screen = func() (columns, lines int) { return tool.ScreenOf(out) }
		s.Colour = timeline.ColourWanted(s.Terminal, os.Getenv)
		show := s.Run
		if *html {
			show = func(ctx context.Context, v *tool.Viewer, out io.Writer) (tool.Health, error) {
				return v.Page(ctx, out, version)
			}
		}
		health, err := show(cmd.Context(), viewer, out)
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
	}
	return cmd
}

// whereFlags gives cmd the flags that say where the handler is.
func whereFlags(cmd *cobra.Command) *tool.Cluster {
	var c tool.Cluster
	flags := cmd.Flags()
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "Path of the kubeconfig file. By default as of kubectl.")
	flags.StringVar(&c.Context, "context", "", "Context of the kubeconfig. By default the current one.")
	flags.StringVarP(&c.Namespace, "namespace", "n", "", "Namespace of the handler. By default "+programName+
		", or where its Lease is found.")
	flags.StringVar(&c.Lease, "lease", "", "Name of the Lease by which the handler elects its leader. By default "+
		programName+", or the one that is found.")
	return &c
}
