package options

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// helpWidth is the longest line of --help, in bytes.
const helpWidth = 100

// WriteHelp writes the options of the table that flags has, under the headings of their
// groups. It shows the defaults of the table and no other values.
func WriteHelp(w io.Writer, flags *pflag.FlagSet) {
	for _, g := range groups {
		heading := "\n" + string(g) + ":\n"
		for _, o := range Table() {
			if f := flags.Lookup(o.Flag); o.Group != g || f == nil || f.Usage != o.Help {
				continue
			}
			fmt.Fprint(w, heading)
			heading = ""
			fmt.Fprintf(w, "  %-43s %s\n", "--"+o.Flag, o.Env)
			WriteWrapped(w, "      ", o.help())
		}
	}
}

// help returns the words that stand below the name of o.
func (o *Option) help() string {
	var b strings.Builder
	b.WriteString(o.sentence())
	if o.NoEffect == "" && o.value.allowed != anyBoolean {
		fmt.Fprintf(&b, " Takes %s.", o.value.allowed)
	}
	switch {
	case o.Required:
		b.WriteString(" Required.")
	case len(o.Default) > helpWidth/2:
		b.WriteString(" Default: see docs/options.md.")
	case o.Default != "" && o.DefaultText != "":
		fmt.Fprintf(&b, " Default: %s (%s).", o.Default, o.DefaultText)
	case o.Default != "" || o.DefaultText != "":
		fmt.Fprintf(&b, " Default: %s.", o.Default+o.DefaultText)
	}
	for _, n := range o.Older {
		fmt.Fprintf(&b, " Older names: --%s, %s.", n.Flag, n.Env)
	}
	return b.String()
}

func (o *Option) sentence() string {
	switch {
	case o.NoEffect != "":
		return "No effect: " + o.NoEffect + "."
	case o.Mode == QueueMode:
		return o.Help + " Queue mode only."
	case o.Mode == HookMode:
		return o.Help + " Needs a queue or sweep-interval."
	case o.Mode == LeaderMode && !o.Required:
		return o.Help + " Not for pods in IMDS mode."
	}
	return o.Help
}

// WriteWrapped writes text in lines of at most helpWidth, each after indent. A longer word has a
// line of its own.
func WriteWrapped(w io.Writer, indent, text string) {
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
