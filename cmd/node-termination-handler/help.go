package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// printHelp prints the help of a command: its flags, and the options of the table by group,
// with their variables. Cobra's own help knows neither variables nor groups.
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
	options.WriteHelp(w, cmd.Flags())
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
