package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

// A report is how doctor prints its findings.
type report struct {
	json     bool
	verbose  bool
	accepted []string // ids of checks whose warnings do not count
}

func (p *program) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the installation, and say what to fix.",
		Long: `Checks everything that an interruption depends on: credentials, the queue and its policy, the
EventBridge rules, the handler and its permissions in AWS and in the cluster, every node and its
Auto Scaling group. It says what to do about each problem, and changes nothing.

It runs in the handler's pod or outside of the cluster, before or after the installation, and uses
the options of the installed handler.

Exit status: 0 no problems; 1 something is broken; 2 mistakes in the options; 3 warnings only; 4 no
known failure, but an important check could not be made.`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	var r report
	output, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatJSON)
	cmd.Flags().BoolVar(&r.verbose, "verbose", false,
		"Print a line for each check, even if another finding makes the check impossible.")
	accept := cmd.Flags().String("accept", "", "Ids of checks, separated by commas, whose warnings are accepted: "+
		"they are shown, but do not change the exit status. Failures always do.")
	check := func(args []string) (problems options.Problems) {
		r.json = *output == tool.FormatJSON
		r.accepted, problems = parseAccepted(*accept)
		return slices.Concat(options.UnexpectedArgs(args), checkOutput(), problems)
	}
	p.withTool(cmd, tool.Loader{WithoutCluster: true}, check,
		func(ctx context.Context, opts *options.Options, origin *tool.Origin) error {
			if err := origin.Write(cmd.ErrOrStderr()); err != nil {
				return err
			}
			return examine(ctx, opts, origin, cmd.OutOrStdout(), r)
		})
	return cmd
}

// parseAccepted parses ids of checks.
func parseAccepted(list string) (ids []string, problems options.Problems) {
	known := doctor.IDs()
	for id := range strings.SplitSeq(list, ",") {
		switch id = strings.TrimSpace(id); {
		case id == "":
		case slices.Contains(known, id):
			ids = append(ids, id)
		default:
			problems = append(problems, options.Problem{
				Name: "accept", Text: fmt.Sprintf("there is no check with the id %q: %s", id, strings.Join(known, ", ")),
			})
		}
	}
	return ids, problems
}

// examine prints the findings. The error is the exit status, or why there are none.
func examine(ctx context.Context, opts *options.Options, origin *tool.Origin, out io.Writer, r report) error {
	cfg, err := app.AWSConfig(ctx, opts)
	if err != nil {
		return err
	}
	g := tool.NewGatherer(cfg, opts, version)
	g.Policy = tool.ReadPolicy(opts, origin)
	facts := g.Gather(ctx)
	if ctx.Err() != nil { // what has not answered yet is no fault of the installation
		return context.Cause(ctx)
	}
	findings := doctor.Examine(facts, r.accepted...)
	if r.json {
		err = doctor.PrintJSON(out, findings)
	} else {
		colour := overview.ColourWanted(tool.IsTerminal(out), os.Getenv)
		err = doctor.Print(out, findings, doctor.Style{Verbose: r.verbose, Colour: colour})
	}
	if err != nil {
		return err
	}
	switch doctor.Worst(findings) {
	case doctor.Failed:
		return statusError(exitFailed)
	case doctor.Unknown:
		return statusError(exitUnknown)
	case doctor.Warning:
		return statusError(exitWarned)
	case doctor.OK:
	}
	return nil
}
