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

Every option is a flag and an environment variable, whose name is the flag's in upper case with underscores:
`+"`--dry-run` is `DRY_RUN`"+`. A flag takes precedence over its variable, and a variable that is not empty over the default.
A boolean takes its value after an equals sign: `+"`--taint-node=false`"+`. "Helm value" is the name in the
[chart](../deploy/helm/node-termination-handler). With mistakes in the options the program reports all of them and exits
with status 2.
`)
	var own []string
	for _, o := range Table() {
		if o.Owner != OfRelease && o.NoEffect == "" {
			own = append(own, code(o.Flag))
		}
	}
	fmt.Fprintf(w, `
`+"`doctor`, `what-if` and `simulate`"+` take [most options from the installed handler](doctor.md#whose-options-they-use).
Only these are their own: %s. Their own `+"`aws-region`"+` counts only
if neither the Deployment nor the URL of its queue names the region.
`, strings.Join(own, ", "))
	for _, g := range groups {
		fmt.Fprintf(w, "\n## %s\n\n", g)
		if g == groupNoEffect {
			fmt.Fprint(w, "| Flag | Helm value | Why |\n|---|---|---|\n")
		} else {
			fmt.Fprint(w, "| Flag | Helm value | Default | Takes | Meaning |\n|---|---|---|---|---|\n")
		}
		for _, o := range Table() {
			switch {
			case o.Group != g:
			case g == groupNoEffect:
				fmt.Fprintf(w, "| %s | %s | %s |\n", code(o.Flag), code(o.Helm), cell(o.NoEffect))
			default:
				fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n",
					code(o.Flag), code(o.Helm), o.docDefault(), cell(o.docTakes()), cell(o.docMeaning()))
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

// docTakes is what the option takes, in one word for a boolean.
func (o *Option) docTakes() string {
	if o.value.allowed == anyBoolean {
		return "boolean"
	}
	return o.value.allowed
}

// docMeaning has the names that the columns and the rule for variables do not tell.
func (o *Option) docMeaning() string {
	words := o.sentence()
	if o.Env != variable(o.Flag) {
		words += " Variable: " + code(o.Env) + "."
	}
	for _, n := range o.Older {
		words += " Older names: " + code(n.Flag)
		if n.Env != variable(n.Flag) {
			words += ", " + code(n.Env)
		}
		if n.Helm != "" {
			words += ", " + code(n.Helm)
		}
		words += "."
	}
	return words
}

// variable is the name that the variable of a flag has by the rule at the top of the page.
func variable(flag string) string { return strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }

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
