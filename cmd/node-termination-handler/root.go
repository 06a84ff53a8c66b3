package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/node-termination-handler/node-termination-handler/internal/logging"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

const programName = options.ProgramName

// The exit statuses of the program. Kubernetes shows them. 2 says that another try with
// the same options is pointless.
const (
	exitDone     = 0
	exitFailed   = 1
	exitMistaken = 2
	// doctor: it works, but not as well as it could; what-if: pods would be lost or cut short; status: a node is stuck;
	// report: pods were lost.
	exitWarned  = 3
	exitUnknown = 4 // doctor, status, report: something that matters could not be found out
	exitDeaf    = 5 // status: no notice is acted on
)

// A statusError ends a command that has already printed all there is to say.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// runAs is the program under the name by which it was called, the first of argv. It does what the others and environ,
// a list as from os.Environ, ask for, until that is done or ctx ends, and returns the exit status. Results go to out,
// logs and errors to errOut.
func runAs(ctx context.Context, argv, environ []string, out, errOut io.Writer) int {
	called, args := strings.TrimSuffix(filepath.Base(argv[0]), ".exe"), argv[1:]
	p := program{environ: environ, errOut: errOut, served: &options.Options{}, name: programName}
	root := p.rootCommand()
	if called == pluginFile || called == completionFile {
		p.name, root = pluginName, p.pluginCommand()
	}
	if called == completionFile {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetArgs(p.normalise(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return int(status)
	}
	if _, ok := errors.AsType[options.Problems](err); ok {
		p.lastLine(err, fmt.Sprintf("%s --help tells more.", cmd.CommandPath()))
		return exitMistaken
	}
	p.lastLine(err, "")
	return exitFailed
}

// lastLine prints why the program exits: as an entry of the log where that is JSON.
func (p *program) lastLine(err error, hint string) {
	if p.served.JSONLogging {
		log, end := logging.New(p.errOut, logFormat(p.served))
		defer end()
		log.Error(err, "exit")
		return
	}
	for line := range strings.Lines(fmt.Sprintf("%s: %v\n", p.name, err)) {
		_, _ = io.WriteString(logging.Printable(p.errOut), line)
	}
	if hint != "" {
		fmt.Fprintln(p.errOut, hint)
	}
}

// A program is one run of the command line.
type program struct {
	environ []string
	errOut  io.Writer
	name    string           // of the program, as it was called
	served  *options.Options // of the handler, not of the other commands
	wrong   options.Problems // with the arguments
}

// rootCommand returns the command that is the handler itself, with the others below it.
func (p *program) rootCommand() *cobra.Command {
	root := p.family(&cobra.Command{
		Use:   programName,
		Short: "Drain Kubernetes nodes before AWS takes their instances away.",
		Long: `Reads notices about EC2 instances from an SQS queue: spot interruption warnings, rebalance
recommendations, scheduled changes, state changes, lifecycle hooks. For each it cordons and drains
the node before the instance goes away, and completes the lifecycle hook. Only then does it delete
the message.

Every option is a flag and an environment variable. The flag takes precedence.`,
	})
	options.Register(root.Flags())
	root.RunE = func(cmd *cobra.Command, args []string) error {
		opts, err := options.Parse(cmd.Flags(), p.environ)
		p.served = opts
		problems := unexpectedArgs(cmd, args)
		if slices.ContainsFunc(args, func(arg string) bool { return isLikeCommand(cmd, arg) }) {
			return problems // the options are those of that command
		}
		problems = slices.Concat(p.wrong, problems)
		if more, ok := errors.AsType[options.Problems](err); ok {
			problems = append(problems, more...)
		}
		if len(problems) > 0 {
			return problems
		}
		return serve(cmd.Context(), opts, p.errOut)
	}
	return root
}

// family gives a root command what both have, and all commands below it.
func (p *program) family(root *cobra.Command) *cobra.Command {
	root.Args = cobra.ArbitraryArgs // unexpectedArgs reports them with all other problems
	root.Version = describeVersion()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("{{.Version}}")
	root.SetHelpFunc(printHelp)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return options.Problems{{Name: "command line", Text: err.Error()}}
	})
	root.Flags().Bool("version", false, "Print the version and exit.")
	root.AddCommand(p.statusCommand(), p.reportCommand(), p.pauseCommand(), p.resumeCommand(), p.doctorCommand(),
		p.simulateCommand(), p.whatIfCommand(), p.explainCommand(), p.policyCommand(),
		p.printing("options", "List the options of the handler.", allOptions),
		p.printing("version", "Print the version, and what it was built from and with.", describeVersion))
	for _, cmd := range root.Commands() {
		if cmd.Flags().Lookup("node") != nil {
			mustComplete(cmd, "node", p.completeNode)
		}
	}
	return root
}

// printing returns a command that takes nothing, and prints a text.
func (p *program) printing(use, short string, text func() string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ArbitraryArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := slices.Concat(p.wrong, unexpectedArgs(cmd, args)).Err(); err != nil {
				return err
			}
			_, err := io.WriteString(cmd.OutOrStdout(), text())
			return err
		},
	}
}

// normalise rewrites args for the flags of the command that they name, and keeps what is
// wrong with them for that command to report, so that --help works all the same.
func (p *program) normalise(root *cobra.Command, args []string) []string {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Print a completion script for a shell."
		}
	}
	if len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd) {
		return args // of a shell: the command line may be incomplete
	}
	cmd, _, err := root.Find(args)
	if err != nil || !reports(cmd) {
		return args // Execute reports what is wrong with them
	}
	cmd.InitDefaultHelpFlag()
	args, p.wrong = options.NormaliseArgs(cmd.Flags(), args)
	return args
}

// reports reports whether cmd is one of ours, which report program.wrong; cobra's own commands do not.
func reports(cmd *cobra.Command) bool {
	for ; cmd.HasParent(); cmd = cmd.Parent() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return false
		}
	}
	return true
}

// unexpectedArgs returns the problems of arguments that cmd does not take.
func unexpectedArgs(cmd *cobra.Command, args []string) options.Problems {
	problems := options.UnexpectedArgs(args)
	for k, arg := range args {
		switch {
		case isLikeCommand(cmd, arg):
			problems[k].Text = "is not a command; did you mean " + cmd.SuggestionsFor(arg)[0] + "?"
		case cmd.HasParent() && cmd.HasAvailableSubCommands():
			problems[k].Text = "is not a command of " + cmd.Name() + ": " + subcommands(cmd)
		case cmd.Flags().Lookup("node") != nil:
			problems[k].Text = "is not an option; did you mean --node " + arg + "?"
		}
	}
	return problems
}

// subcommands are the names of the commands below cmd.
func subcommands(cmd *cobra.Command) string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return strings.Join(names, ", ")
}

// isLikeCommand reports whether an argument is a command below cmd that was misspelled.
func isLikeCommand(cmd *cobra.Command, arg string) bool {
	return arg != "" && len(cmd.SuggestionsFor(arg)) > 0
}

// kubectl runs a program by this name as `kubectl nth`.
// https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
const (
	pluginFile = "kubectl-nth"
	pluginName = "kubectl nth"
	// kubectl runs a program by this name when the shell completes `kubectl nth`.
	// https://pkg.go.dev/k8s.io/kubectl/pkg/cmd/plugin#SetupPluginCompletion
	completionFile = "kubectl_complete-nth"
)

// pluginCommand returns the command that is the plugin of kubectl. It has the commands of the handler and is no
// handler: without a command it prints its help.
func (p *program) pluginCommand() *cobra.Command {
	root := p.family(&cobra.Command{
		Use:         pluginFile + " COMMAND",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: pluginName},
		Short:       "See what node-termination-handler does, and why.",
		Long: `Shows what the installed node-termination-handler does: which nodes are drained, what each waits for, and
how earlier drains have gone. It also checks the installation, and predicts drains.`,
	})
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if err := slices.Concat(p.wrong, unexpectedArgs(cmd, args)).Err(); err != nil {
			return err
		}
		printHelp(cmd, nil)
		return nil
	}
	return root
}
