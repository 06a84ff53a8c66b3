package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain [KIND] --node NAME",
		Short: "Say which rule decides about a notice for a node.",
		Long: `Says which rule of the policy file decides about a notice for a node, why the rules before it do not,
when the drain would begin, and which pods would leave when. It changes nothing, and needs no queue.

It goes by the options and the policy of the installed handler. --policy-file with a file of this
machine tries another policy.

` + kindHelp() + `

Exit status: 0 explained; 1 explain failed; 2 mistakes in the options.`,
		ValidArgsFunction: completeKind,
	}
	e := tool.Explain{Kind: notice.SpotInterruption}
	flags := cmd.Flags()
	flags.StringVar(&e.Node, "node", "", "Name of the node. Required.")
	flags.StringVar(&e.Code, "code", "", "Code of the scheduled change, such as "+
		"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED.")
	e.Start = 7 * 24 * time.Hour
	flags.Var((*span)(&e.Start), "start", "When the scheduled change begins, from now on, such as 36h. By default 7d.")
	output, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatJSON)
	check := func(args []string) (problems options.Problems) {
		if len(args) > 0 {
			e.Kind, problems = parseKind(args)
		}
		e.JSON = *output == tool.FormatJSON
		if e.Start < 0 {
			problems = append(problems, options.Problem{Name: "start", Text: "must not be negative"})
		}
		for _, name := range []string{"code", "start"} {
			if e.Kind != notice.ScheduledChange && e.Kind != notice.Ignored && flags.Changed(name) {
				problems = append(problems, options.Problem{
					Name: name, Text: "has no effect on " + e.Kind.Dashed() + ": it is of a scheduled change",
				})
			}
		}
		return slices.Concat(problems, checkNode(e.Node), checkOutput())
	}
	p.withSession(cmd, tool.Loader{QueueOptional: true}, check, func(ctx context.Context, s *tool.Session) error {
		return e.Run(ctx, s, cmd.OutOrStdout())
	})
	return cmd
}
