package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

// The values of --output.
const (
	outputText = "text"
	outputJSON = "json"
)

// withTool gives cmd the options of the table and --release. When cmd is run, check returns
// what is wrong with its arguments and its own flags. If nothing is, do is called with the
// options that loader finds.
func (p *program) withTool(
	cmd *cobra.Command, loader tool.Loader,
	check func(args []string) options.Problems,
	do func(context.Context, *options.Options, *tool.Origin) error,
) {
	release := cmd.Flags().String("release", "", "Deployment of the handler whose options are used: NAMESPACE/NAME. "+
		"By default it is found by its label. none: use the options of the command line and the environment, "+
		"for a handler that is not installed yet or runs outside of the cluster.")
	table := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(table)
	table.VisitAll(func(f *pflag.Flag) {
		if cmd.Flags().Lookup(f.Name) == nil { // else it means something else to this command
			cmd.Flags().AddFlag(f)
		}
	})
	cmd.Args = cobra.ArbitraryArgs // check reports them with all other problems
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems := slices.Concat(p.wrong, check(args))
		opts, origin, err := loader.Load(cmd.Context(), table, p.environ, *release, problems)
		if err != nil {
			return err
		}
		return do(cmd.Context(), opts, origin)
	}
}

// kinds returns the kinds of notices that can be simulated.
func kinds() []notice.Kind {
	return slices.DeleteFunc(slices.Clone(notice.Kinds), func(k notice.Kind) bool { return !tool.Sendable(k) })
}

// kindList lists the kinds for people, each with its short name.
func kindList() string {
	var all []string
	for _, k := range kinds() {
		name := k.Dashed()
		if short := k.Names()[1]; short != name {
			name += " (" + short + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

// kindHelp is kindList in the lines of a help text.
func kindHelp() string {
	var b strings.Builder
	options.WriteWrapped(&b, "", "KIND is one of "+kindList()+".")
	return strings.TrimSuffix(b.String(), "\n")
}

// completeKind completes the names of kinds for a shell.
func completeKind(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var all []string
	for _, k := range kinds() {
		all = append(all, k.Dashed())
	}
	if len(args) > 0 {
		all = nil
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// parseKind parses the one argument of a command.
func parseKind(args []string) (notice.Kind, options.Problems) {
	if len(args) == 0 {
		return notice.Ignored, options.Problems{{Name: "the notice", Text: "is missing: one of " + kindList()}}
	}
	unexpected := options.UnexpectedArgs(args[1:])
	kind := notice.KindNamed(args[0])
	if tool.Sendable(kind) {
		return kind, unexpected
	}
	var names []string
	for _, k := range kinds() {
		names = append(append(names, k.Dashed()), k.Names()[1:]...)
	}
	slices.Sort(names)
	names = slices.Compact(names) // some are said as they are written
	return notice.Ignored, append(options.Problems{{
		Name: fmt.Sprintf("%q", args[0]),
		Text: "is not a kind of notice: one of " + kindList() + options.DidYouMean("", args[0], names),
	}}, unexpected...)
}

// checkOutput returns the problem of a value of --output.
func checkOutput(output string) options.Problems {
	if output == outputText || output == outputJSON {
		return nil
	}
	return options.Problems{{Name: "output", Text: "takes text or json"}}
}

// checkNode returns the problem of a command that needs a node and names none.
func checkNode(name string) options.Problems {
	if name != "" {
		return nil
	}
	return options.Problems{{Name: "node", Text: "is required: the name of a node"}}
}
