package options

import (
	"fmt"
	"io"
	"strings"
)

// writeOptionsDoc writes docs/options.md.
func writeOptionsDoc(w io.Writer) {
	fmt.Fprint(w, `# Options

<!-- Generated from internal/options/table.go by make generate. -->

Every option is a flag and an environment variable. A flag takes precedence over its variable, and a variable
that is not empty takes precedence over the default. Most options have the same names as in AWS Node Termination Handler, and
a single dash works too (`+"`-dry-run`"+`). A boolean takes its value after an equals sign: `+"`--taint-node=false`"+`.
The program reports all mistakes in the options at once, and exits with status 2.
The column "Helm value" has the name of the option in the [chart](../deploy/helm/node-termination-handler).
`)
	var own []string
	for _, o := range Table() {
		if o.Owner != OfRelease && o.NoEffect == "" {
			own = append(own, code(o.Flag))
		}
	}
	fmt.Fprintf(w, `
`+"`doctor`, `what-if` and `simulate`"+` take most options from the Deployment of the installed handler, see
[whose options they use](doctor.md#whose-options-they-use). From their own command line and environment they take
only these: %s. Their own `+"`aws-region`"+` counts only
if neither the Deployment nor the URL of its queue names the region.
`, strings.Join(own, ", "))
	for _, g := range groups {
		fmt.Fprintf(w, "\n## %s\n\n", g)
		fmt.Fprintln(w, "| Flag | Environment | Helm value | Default | Takes | Meaning |")
		fmt.Fprintln(w, "|---|---|---|---|---|---|")
		for _, o := range Table() {
			if o.Group == g {
				fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s |\n",
					code(o.Flag), code(o.Env), code(o.Helm), o.docDefault(), cell(o.value.allowed), cell(o.docMeaning()))
			}
		}
	}
}

func (o *Option) docDefault() string {
	switch {
	case o.Required:
		return "required"
	case o.Default != "" && o.DefaultText != "":
		return code(o.Default) + ": " + cell(o.DefaultText)
	case o.Default != "":
		return code(o.Default)
	default:
		return cell(o.DefaultText)
	}
}

func (o *Option) docMeaning() string {
	words := o.sentence()
	for _, n := range o.Older {
		words += " Older names: " + code(n.Flag) + ", " + code(n.Env)
		if n.Helm != "" {
			words += ", " + code(n.Helm)
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
