package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// printHelp prints the help of a command: its flags, and the options of the table by group, with their variables. A
// command that takes all options only names the command that lists them. Cobra's own help knows neither variables nor
// groups.
func printHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	use := cmd.CommandPath()
	if _, more, ok := strings.Cut(cmd.Use, " "); ok {
		use += " " + more
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s [options]\n", strings.TrimSpace(text), use)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(w, "  %-42s %s\n", sub.CommandPath(), sub.Short)
		}
	}
	if cmd.HasParent() {
		printOwnFlags(cmd)
	}
	if cmd.HasParent() && takesAllOptions(cmd) {
		fmt.Fprintln(w)
		options.WriteWrapped(w, "", fmt.Sprintf("It goes by the options of the installed handler, and takes each of them, "+
			"as a flag or a variable: run %q to see them.", cmd.Root().CommandPath()+" options"))
		return
	}
	options.WriteHelp(w, cmd.Flags())
}

// takesAllOptions reports whether the command takes what the handler takes.
func takesAllOptions(cmd *cobra.Command) bool { return cmd.Flags().Lookup("queue-url") != nil }

// allOptions lists the options of the handler, as kubectl options does for its own.
func allOptions() string {
	var b strings.Builder
	table := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(table)
	options.WriteHelp(&b, table)
	return b.String()
}

// printOwnFlags prints the flags of a command that are no options of the table.
func printOwnFlags(cmd *cobra.Command) {
	w := cmd.OutOrStdout()
	table := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.Register(table)
	heading := "\nOf this command:\n"
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if option := table.Lookup(f.Name); option != nil && option.Usage == f.Usage || f.Name == "help" {
			return
		}
		short := ""
		if f.Shorthand != "" {
			short = ", -" + f.Shorthand
		}
		fmt.Fprintf(w, "%s  --%s%s\n", heading, f.Name, short)
		heading = ""
		options.WriteWrapped(w, "      ", f.Usage)
	})
}
