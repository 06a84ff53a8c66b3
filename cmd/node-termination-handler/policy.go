package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
	"github.com/node-termination-handler/node-termination-handler/internal/tool"
)

func (p *program) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and test a policy file, without a cluster.",
		Args:  cobra.ArbitraryArgs,

		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			problems := slices.Concat(p.wrong, unexpectedArgs(cmd, args))
			if len(problems) == 0 {
				problems = options.Problems{{Name: "policy", Text: "needs a command: policy test FILE, or policy schema"}}
			}
			return problems
		},
	}
	schema := func() string { return string(policyfile.Schema()) }
	cmd.AddCommand(p.policyTestCommand(),
		p.printing("schema", "Print the JSON Schema of policy files, for editors.", schema))
	return cmd
}

func (p *program) policyTestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Check a policy file, and run the tests in it.",
		Long: `Checks a policy file, and runs the tests in it: it decides as the handler does, and compares. It asks
neither the cluster nor AWS. FILE is a path, or - for the standard input.

The options below are those that decide where no rule of the file does.

Exit status: 0 the file is right, and all tests pass; 1 a test fails; 2 the file is wrong.`,
		Args: cobra.ArbitraryArgs,
	}
	output, checkOutput := outputFlag(cmd, tool.FormatText, tool.FormatJSON)
	table := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(table)
	for _, name := range []string{
		"cordon-only", "node-termination-grace-period", "enable-sqs-termination-draining", "enable-rebalance-draining",
	} {
		cmd.Flags().AddFlag(table.Lookup(name))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems := slices.Concat(p.wrong, checkOutput(), options.UnexpectedArgs(args[min(1, len(args)):]))
		if len(args) == 0 {
			problems = append(problems, options.Problem{Name: "FILE", Text: "is missing: the path of a policy file"})
		}
		// What is set where a test of a file happens to run says nothing about the handler.
		flags := options.Source{Flags: cmd.Flags()}
		sources := func(*options.Option) []options.Source { return []options.Source{flags} }
		o, more := options.Parser{QueueOptional: true, Sources: sources}.ParseEach()
		if problems = append(problems, more...); len(problems) > 0 {
			return problems
		}
		data, err := readPolicy(args[0], cmd.InOrStdin())
		if err != nil {
			return options.Problems{{Name: "FILE", Text: err.Error()}}
		}
		tested := testPolicy(data, app.Policy(o))
		if *output == tool.FormatJSON {
			err = tool.WriteJSON(cmd.OutOrStdout(), tested)
		} else {
			tested.writeText(cmd.OutOrStdout(), args[0])
		}
		switch {
		case err != nil:
			return err
		case !tested.Valid:
			return statusError(exitMistaken)
		case tested.failed > 0:
			return statusError(exitFailed)
		}
		return nil
	}
	return cmd
}

func readPolicy(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(stdin, policyfile.MaxSize+1))
	}
	return os.ReadFile(path)
}

// A testedPolicy is what came out of the check and the tests of a file.
type testedPolicy struct {
	Valid    bool                `json:"valid"`
	Errors   policyfile.Problems `json:"errors,omitempty"`
	Warnings policyfile.Problems `json:"warnings,omitempty"`
	Tests    []testedCase        `json:"tests"`
	failed   int                 // of Tests
}

type testedCase struct {
	Name        string             `json:"name"`
	Line        int                `json:"line"`
	Passed      bool               `json:"passed"`
	Got         policyfile.Outcome `json:"got"`
	Differences []string           `json:"differences,omitempty"`
}

func testPolicy(data []byte, p decision.Policy) testedPolicy {
	file, err := policyfile.Parse(data)
	tested := testedPolicy{Valid: err == nil, Warnings: file.Warnings, Tests: []testedCase{}}
	if err != nil {
		tested.Errors = policyfile.ProblemsOf(err)
		return tested
	}
	p.Rules = file.Rules
	for _, t := range file.Tests {
		got := t.Run(p)
		wrong := t.Differences(got)
		if len(wrong) > 0 {
			tested.failed++
		}
		tested.Tests = append(tested.Tests, testedCase{t.Name, t.Line, len(wrong) == 0, got, wrong})
	}
	return tested
}

func (t testedPolicy) writeText(w io.Writer, path string) {
	for _, p := range t.Errors {
		fmt.Fprintf(w, "error: %s\n", p)
	}
	for _, p := range t.Warnings {
		fmt.Fprintf(w, "warning: %s\n", p)
	}
	for _, c := range t.Tests {
		if c.Passed {
			fmt.Fprintf(w, "ok: %s: %s\n", c.Name, c.Got)
			continue
		}
		fmt.Fprintf(w, "FAILED: line %d: %s: %s; %s\n", c.Line, c.Name, c.Got, strings.Join(c.Differences, ", "))
	}
	switch {
	case !t.Valid:
		fmt.Fprintf(w, "%s is wrong: see the errors\n", path)
	case len(t.Tests) == 0:
		fmt.Fprintf(w, "%s is right, and has no tests\n", path)
	case t.failed > 0:
		fmt.Fprintf(w, "%s is right, and %d of %d tests fail\n", path, t.failed, len(t.Tests))
	default:
		fmt.Fprintf(w, "%s is right, and its %d tests pass\n", path, len(t.Tests))
	}
}
