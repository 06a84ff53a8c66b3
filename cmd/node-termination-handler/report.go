package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) reportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report [--node NAME] [--since 24h]",
		Short: "Report on past drains, for an incident channel.",
		Long: `Reports on drains that have ended, in markdown: what AWS said, what was done when, which pods were lost,
which budget or grace period was to blame, and what to change.

It asks the leader, by way of the API server, which keeps the last 500 drains. If the leader cannot
be asked, it goes by what the nodes carry and by the Events of the node, and says what it cannot
know. It changes nothing.

Exit status: 0 no pod was lost or cut short; 1 report failed; 2 mistakes in the options; 3 pods were
killed before the end of their grace periods, or lost: they were still on the node, or perhaps,
when its machine went away; 4 it is not known, because the
leader was not asked, or does not know all drains of that time: its pod is younger, and another one has
led before it, or it keeps no older ones; or a node does not tell how its drain has ended, or an
earlier leader had begun it.`,
	}
	flags := cmd.Flags()
	node := flags.String("node", "", "Name of the node. By default the report is on all nodes.")
	var since span
	flags.Var(&since, "since", "How far back the report goes, such as 24h or 7d. By default 24h, and with --node as "+
		"far as is known.")
	output, checkOutput := outputFlag(cmd, formatMarkdown, tool.FormatJSON)
	checkSince := func() options.Problems {
		if since < 0 {
			return options.Problems{{Name: "since", Text: "must not be negative"}}
		}
		return nil
	}
	p.withViewer(cmd, func(ctx context.Context, v *tool.Viewer) error {
		if since == 0 && *node == "" {
			since = span(24 * time.Hour)
		}
		var from time.Time // zero: as far as is known
		if since > 0 {
			from = time.Now().Add(-time.Duration(since))
		}
		report, err := v.Report(ctx, *node, from)
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if *output == tool.FormatJSON {
			err = tool.WriteJSON(out, report)
		} else {
			_, err = io.WriteString(out, report.Markdown())
		}
		switch {
		case err != nil:
			return err
		case report.Harmed():
			return statusError(exitWarned)
		case report.Incomplete():
			return statusError(exitUnknown)
		}
		return nil
	}, checkOutput, checkSince)
	return cmd
}

// A span is a time span as a flag has it: one of Go, or days.
type span time.Duration

// Set implements [pflag.Value].
func (s *span) Set(text string) error {
	const day = 24 * time.Hour
	if number, ok := strings.CutSuffix(text, "d"); ok {
		if days, err := strconv.ParseInt(number, 10, 16); err == nil {
			*s = span(time.Duration(days) * day)
			return nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("takes a time span such as 90m, 24h or 7d")
	}
	*s = span(d)
	return nil
}

// String implements [pflag.Value].
func (s *span) String() string { return time.Duration(*s).String() }

// Type implements [pflag.Value].
func (s *span) Type() string { return "duration" }
