package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// helpWidth is the longest line of --help, in bytes.
const helpWidth = 100

// writeHelp writes the options of the table that flags has, under the headings
// of their groups. It shows no value but the defaults of the table.
func writeHelp(w io.Writer, flags *pflag.FlagSet) {
	for _, g := range groups {
		heading := "\n" + string(g) + ":\n"
		for _, o := range new(config).options() {
			if o.group != g || flags.Lookup(o.flag) == nil {
				continue
			}
			fmt.Fprint(w, heading)
			heading = ""
			fmt.Fprintf(w, "  %-43s %s\n", "--"+o.flag, o.env)
			writeWrapped(w, "      ", o.help())
		}
	}
}

// help returns the words that stand below the name of o.
func (o *option) help() string {
	var b strings.Builder
	b.WriteString(o.sentence())
	if o.noEffect == "" && o.value.kind != kindBool {
		fmt.Fprintf(&b, " Takes %s.", o.value.allowed)
	}
	switch {
	case o.required:
		b.WriteString(" Required.")
	case len(o.def) > helpWidth/2:
		b.WriteString(" Default: see docs/options.md.")
	case o.def != "" && o.defWords != "":
		fmt.Fprintf(&b, " Default: %s (%s).", o.def, o.defWords)
	case o.def != "" || o.defWords != "":
		fmt.Fprintf(&b, " Default: %s.", o.def+o.defWords)
	}
	for _, n := range o.older {
		fmt.Fprintf(&b, " Older names: --%s, %s.", n.flag, n.env)
	}
	return b.String()
}

func (o *option) sentence() string {
	if o.noEffect != "" {
		return "No effect: " + o.noEffect + "."
	}
	return o.words
}

// writeWrapped writes text in lines of helpWidth at most, each after indent. A
// word that is longer has a line of its own.
func writeWrapped(w io.Writer, indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && len(line)+1+len(word) > helpWidth {
			fmt.Fprintln(w, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(w, line)
}

// writeOptionsDoc writes docs/options.md.
func writeOptionsDoc(w io.Writer) {
	fmt.Fprint(w, `# Options

<!-- Generated from cmd/node-termination-handler/config_table.go by
     go test ./cmd/node-termination-handler -run TestOptionsDoc -update -->

Every option is a flag and an environment variable. The flag counts first, then the variable unless
it is empty, then the default. Most have the names that they have in AWS Node Termination Handler;
its single dash works too (`+"`-dry-run`"+`). A boolean takes its value after an equals sign:
`+"`--taint-node=false`"+`. Mistakes are reported all at once, and the program exits with status 2.
The column "Helm value" has the name of the option in the chart, deploy/helm/node-termination-handler.
`)
	for _, g := range groups {
		fmt.Fprintf(w, "\n## %s\n\n", g)
		fmt.Fprintln(w, "| Flag | Environment | Helm value | Default | Takes | Meaning |")
		fmt.Fprintln(w, "|---|---|---|---|---|---|")
		for _, o := range new(config).options() {
			if o.group == g {
				fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n",
					code(o.flag), code(o.env), code(o.helm), o.docDefault(), cell(o.value.allowed), cell(o.docMeaning()))
			}
		}
	}
}

func (o *option) docDefault() string {
	switch {
	case o.required:
		return "required"
	case o.def != "" && o.defWords != "":
		return code(o.def) + ": " + cell(o.defWords)
	case o.def != "":
		return code(o.def)
	default:
		return cell(o.defWords)
	}
}

func (o *option) docMeaning() string {
	words := o.sentence()
	for _, n := range o.older {
		words += " Older names: " + code(n.flag) + ", " + code(n.env)
		if n.helm != "" {
			words += ", " + code(n.helm)
		}
		words += "."
	}
	return words
}

// code returns text as code in a cell of a Markdown table. A comma separates
// several.
func code(text string) string {
	if text == "" {
		return ""
	}
	if !strings.Contains(text, "{") {
		text = strings.ReplaceAll(text, ", ", "`, `")
	}
	return "`" + cell(text) + "`"
}

// cell escapes what would end a cell of a Markdown table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// writeOptionsTable writes the short table of the README: the options that have
// an effect.
func writeOptionsTable(w io.Writer) {
	fmt.Fprintln(w, "| Flag | Environment | Default | Meaning |")
	fmt.Fprintln(w, "|---|---|---|---|")
	for _, o := range new(config).options() {
		if o.noEffect == "" {
			fmt.Fprintf(w, "| %s | %s | %s | %s |\n", code(o.flag), code(o.env), o.docDefault(), cell(o.docMeaning()))
		}
	}
}
