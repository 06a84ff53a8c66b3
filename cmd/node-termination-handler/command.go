package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const programName = "node-termination-handler"

// The exit statuses of the program. Kubernetes shows them; 2 tells that another
// try with the same options is in vain.
const (
	exitDone     = 0
	exitFailed   = 1
	exitMistaken = 2
	exitWarned   = 3 // of doctor: it works, and not as well as it could
)

// A statusError ends a command that has said all there is to say.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Set by the linker for releases: -ldflags "-X main.version=… -X main.commit=…".
var version, commit string

// run is the program: it does what args and environ, a list as from os.Environ,
// ask for, until it is done or ctx ends, and returns the exit status. Answers go
// to out, logs and errors to errOut.
func run(ctx context.Context, args, environ []string, out, errOut io.Writer) int {
	p := program{environ: environ, errOut: errOut}
	root := p.rootCommand()
	root.SetArgs(p.normalise(root, args))
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	var wrong mistakes
	var status statusError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &wrong):
		fmt.Fprintf(errOut, "%s: %v\n%[1]s --help tells about every option.\n", programName, wrong)
		return exitMistaken
	default:
		fmt.Fprintf(errOut, "%s: %v\n", programName, err)
		return exitFailed
	}
}

// A program is one run of the command line.
type program struct {
	environ []string
	errOut  io.Writer
	wrong   mistakes // in the arguments
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   programName,
		Short: "Drain Kubernetes nodes before AWS takes their instances away.",
		Long: `Reads notices about EC2 instances from an SQS queue, cordons and drains the node of each before
the instance goes away, completes its lifecycle hook, and only then deletes the message.

Options are flags or environment variables; the flag counts first.`,
		Version:           describeVersion(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetVersionTemplate("{{.Version}}")
	root.SetHelpFunc(writeCommandHelp)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return mistakes{{"command line", err.Error()}}
	})
	root.Flags().Bool("version", false, "Tell the version and exit.")
	p.withOptions(root, func(ctx context.Context, c *config) error { return serve(ctx, c, p.errOut) })

	root.AddCommand(p.doctorCommand(), p.simulateCommand(), p.whatIfCommand(), &cobra.Command{
		Use:   "version",
		Short: "Tell the version, and what it was built from and with.",
		Args:  func(_ *cobra.Command, args []string) error { return leftOver(args).err() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(p.wrong) > 0 {
				return p.wrong
			}
			_, err := io.WriteString(cmd.OutOrStdout(), describeVersion())
			return err
		},
	})
	return root
}

// withOptions gives cmd the options of the table, and makes it call do with
// them when they are right.
func (p *program) withOptions(cmd *cobra.Command, do func(context.Context, *config) error) {
	p.withOptionsAnd(cmd, &config{}, leftOver, do)
}

// withOptionsAnd is withOptions for a command with arguments or flags of its
// own: check gets the arguments, and says what is wrong with them all. The
// options are loaded into c.
func (p *program) withOptionsAnd(cmd *cobra.Command, c *config, check func(args []string) mistakes, do func(context.Context, *config) error) {
	c.register(cmd.Flags())
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		wrong := slices.Concat(p.wrong, check(args))
		if err := c.load(cmd.Flags(), p.environ); err != nil {
			var more mistakes
			if !errors.As(err, &more) {
				return err
			}
			wrong = append(wrong, more...)
		}
		if len(wrong) > 0 {
			return wrong
		}
		return do(cmd.Context(), c)
	}
}

// normalise rewrites args for the flags of the command that they name, and
// keeps what is wrong with them for that command to return, so that --help
// works all the same.
func (p *program) normalise(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil {
		return args // Execute finds the same
	}
	cmd.InitDefaultHelpFlag()
	args, p.wrong = normalise(cmd.Flags(), args)
	return args
}

func writeCommandHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	words := cmd.Long
	if words == "" {
		words = cmd.Short
	}
	use := cmd.CommandPath()
	if _, more, ok := strings.Cut(cmd.Use, " "); ok {
		use += " " + more
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s [options]\n", words, use)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(w, "  %-42s %s\n", sub.CommandPath(), sub.Short)
		}
	}
	writeOwnFlags(w, cmd)
	writeHelp(w, cmd.Flags())
}

// writeOwnFlags writes the flags of a subcommand that are no options of the table.
func writeOwnFlags(w io.Writer, cmd *cobra.Command) {
	if !cmd.HasParent() {
		return
	}
	var table config
	options := pflag.NewFlagSet("", pflag.ContinueOnError)
	table.register(options)
	heading := "\nOf this command:\n"
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if options.Lookup(f.Name) != nil || f.Name == "help" {
			return
		}
		fmt.Fprintf(w, "%s  --%s\n", heading, f.Name)
		heading = ""
		writeWrapped(w, "      ", f.Usage)
	})
}

// describeVersion returns the version, the commit, and the Go version and
// platform that the program was built with and for, each in a line.
func describeVersion() string {
	v, c, modified := version, commit, ""
	if build, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = build.Main.Version
		}
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision" && c == "":
				c = s.Value
			case s.Key == "vcs.modified" && s.Value == "true" && commit == "":
				modified = " (modified)"
			}
		}
	}
	return fmt.Sprintf("%s %s\ncommit: %s%s\nbuilt with: %s for %s/%s\n",
		programName, orUnknown(v), orUnknown(c), modified, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
