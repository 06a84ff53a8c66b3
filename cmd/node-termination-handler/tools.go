package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

// formatMarkdown is a format of report's, beside those of package tool.
const formatMarkdown = "markdown"

// outputFlag gives cmd the flag --output: one of formats, by default the first. check returns what is wrong with it.
func outputFlag(cmd *cobra.Command, formats ...string) (format *string, check func() options.Problems) {
	last := len(formats) - 1
	list := strings.Join(formats[:last], ", ") + " or " + formats[last]
	format = cmd.Flags().StringP("output", "o", formats[0], "Output format: "+list+".")
	mustComplete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return format, func() options.Problems {
		if slices.Contains(formats, *format) {
			return nil
		}
		return options.Problems{{Name: "output", Text: "takes " + list}}
	}
}

// withViewer gives cmd the flags that say where the handler is. When cmd is run, checks return what is wrong with its
// own flags. If nothing is, do is called.
func (p *program) withViewer(
	cmd *cobra.Command, do func(context.Context, *tool.Viewer) error, checks ...func() options.Problems,
) {
	var where tool.Cluster
	flags := cmd.Flags()
	flags.StringVar(&where.Kubeconfig, "kubeconfig", "", "Path of the kubeconfig file. By default as of kubectl.")
	flags.StringVar(&where.Context, "context", "", "Context of the kubeconfig. By default the current one.")
	flags.StringVarP(&where.Namespace, "namespace", "n", "", "Namespace of the handler. By default "+programName+
		", or where its Lease is found.")
	flags.StringVar(&where.Lease, "lease", "", "Name of the Lease by which the handler elects its leader. By default "+
		programName+", or the one that is found.")
	cmd.Args, cmd.ValidArgsFunction = cobra.ArbitraryArgs, cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems := slices.Concat(p.wrong, unexpectedArgs(cmd, args))
		for _, check := range checks {
			problems = append(problems, check()...)
		}
		if len(problems) > 0 {
			return problems
		}
		viewer, err := tool.NewViewer(where, p.environ)
		if err != nil {
			return err
		}
		return do(cmd.Context(), viewer)
	}
}

// withSession is withTool for a command that cannot do without the cluster.
func (p *program) withSession(
	cmd *cobra.Command, loader tool.Loader, check func(args []string) options.Problems,
	do func(context.Context, *tool.Session) error,
) {
	p.withTool(cmd, loader, check, func(ctx context.Context, opts *options.Options, origin *tool.Origin) error {
		session, err := tool.NewSession(ctx, opts, origin)
		if err != nil {
			return err
		}
		return do(ctx, session)
	})
}

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
	if len(args) == 0 {
		for _, k := range kinds() {
			all = append(all, k.Dashed())
		}
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

// checkNode returns the problem of a command that needs a node and names none.
func checkNode(name string) options.Problems {
	if name != "" {
		return nil
	}
	return options.Problems{{Name: "node", Text: "is required: the name of a node"}}
}

// completionTimeout is how long somebody waits who presses Tab.
const completionTimeout = 2 * time.Second

// mustComplete registers a completion. cmd has the flag, and no completion for it.
func mustComplete(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) //nolint:forbidigo // a mistake in this program, which each test of it finds
	}
}

// completeNode completes the names of the cluster's nodes; a shell picks those that begin as it wants. A cluster that
// does not answer has none.
func (p *program) completeNode(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var where tool.Cluster
	where.Kubeconfig, _ = cmd.Flags().GetString("kubeconfig")
	where.Context, _ = cmd.Flags().GetString("context") // not every command has it
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	viewer, err := tool.NewViewer(where, p.environ)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := viewer.Nodes(ctx)
	return names, cobra.ShellCompDirectiveNoFileComp
}
