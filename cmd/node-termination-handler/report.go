package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

const outputMarkdown = "markdown"

func (p *program) reportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report [--node NAME] [--since 24h]",
		Short: "Report on past drains, for an incident channel.",
		Long: `Reports on drains that have ended, in markdown: what AWS said, what was done when, which pods were lost,
which budget or grace period was to blame, and what to change.

It asks the leader, by way of the API server, which keeps the last 500 drains. If the leader cannot
be asked, it goes by what the nodes carry and by the Events of the node, and says what it cannot
know. It changes nothing.

Exit status: 0 no pod was lost; 1 report failed; 2 mistakes in the options; 3 pods were lost: they
were still on the node, or perhaps, when its machine went away; 4 it is not known, because the
leader was not asked, or does not know all drains of that time: it began to lead later, or keeps no
older ones; or a node does not tell how its drain has ended.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	where := whereFlags(cmd)
	flags := cmd.Flags()
	node := flags.String("node", "", "Name of the node. By default the report is on all nodes.")
	var since span
	flags.Var(&since, "since", "How far back the report goes, such as 24h or 7d. By default 24h, and with --node as "+
		"far as is known.")
	output := flags.StringP("output", "o", outputMarkdown, "Output format: markdown or json.")
	p.completes(cmd, map[string][]string{"output": {outputMarkdown, outputJSON}})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems := slices.Concat(p.wrong, options.UnexpectedArgs(args))
		if *output != outputMarkdown && *output != outputJSON {
			problems = append(problems, options.Problem{Name: "output", Text: "takes markdown or json"})
		}
		if since < 0 {
			problems = append(problems, options.Problem{Name: "since", Text: "must not be negative"})
		}
		if len(problems) > 0 {
			return problems
		}
		viewer, err := tool.NewViewer(*where, p.environ)
		if err != nil {
			return err
		}
		report, err := viewer.Report(cmd.Context(), *node, sinceTime(time.Duration(since), *node != ""))
		if err != nil {
			return err
		}
		text := []byte(report.Markdown())
		if *output == outputJSON {
			if text, err = json.MarshalIndent(report, "", "  "); err != nil {
				return err
			}
			text = append(text, '\n')
		}
		if _, err := cmd.OutOrStdout().Write(text); err != nil {
			return err
		}
		switch {
		case report.LostAny():
			return statusError(exitWarned)
		case report.Incomplete():
			return statusError(exitUnknown)
		}
		return nil
	}
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

// sinceTime is the earliest time that a report is about; zero: as far as is known.
func sinceTime(back time.Duration, ofNode bool) time.Time {
	const usual = 24 * time.Hour
	switch {
	case back > 0:
		return time.Now().Add(-back)
	case ofNode:
		return time.Time{}
	}
	return time.Now().Add(-usual)
}
