package options

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NormaliseArgs rewrites args so that pflag accepts them, and returns what is wrong with
// them: pflag stops at the first problem, and takes no long name after one dash. AWS Node
// Termination Handler does (-workers 5), as it has its flags from the package flag of the
// standard library.
//
// A short name of one letter is written out: -o json becomes --output=json, and so does -ojson.
//
// The values of flags are not checked.
func NormaliseArgs(flags *pflag.FlagSet, args []string) (normal []string, wrong Problems) {
	normal = []string{} // for nil cobra takes those of the process
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
			return append(append(normal, arg), args...), wrong
		case arg == "-" || arg == "-h" || !strings.HasPrefix(arg, "-"):
			normal = append(normal, arg)
			continue
		}
		name, text, hasText := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		f := flags.Lookup(name)
		if f == nil && !strings.HasPrefix(arg, "--") {
			if s, value, inWord := short(flags, arg[1:]); s != nil {
				f, name, text, hasText = s, s.Name, value, inWord
			}
		}
		next := ""
		if len(args) > 0 {
			next = args[0]
		}
		switch {
		case f == nil:
			wrong = append(wrong, unknown(flags, name))
			if !hasText && next != "" && !strings.HasPrefix(next, "-") {
				args = args[1:] // its value, most likely: one mistake, not two
			}
		case hasText:
			normal = append(normal, "--"+name+"="+text)
		case f.NoOptDefVal == "" && len(args) == 0:
			wrong = append(wrong, Problem{name, "--" + name + " is the last word and has no value"})
		case f.NoOptDefVal == "":
			normal = append(normal, "--"+name+"="+next)
			args = args[1:]
		case isBool(next):
			// NTH took this for --dry-run, and for the end of the flags.
			wrong = append(wrong, Problem{name, fmt.Sprintf("--%s %s is two words: write --%[1]s=%[2]s", name, next)})
			args = args[1:]
		default:
			normal = append(normal, "--"+name)
		}
	}
	return normal, wrong
}

// short returns the flag with a short name, nil if there is none, and the value that follows in the same word.
func short(flags *pflag.FlagSet, word string) (f *pflag.Flag, text string, hasText bool) {
	if f = flags.ShorthandLookup(word[:1]); f == nil || word == f.Shorthand {
		return f, "", false
	}
	text, hasEqual := strings.CutPrefix(word[1:], "=")
	if f.NoOptDefVal != "" && !hasEqual {
		return nil, "", false // -wo is two flags in one word, which no other command here takes
	}
	return f, text, true
}

func isBool(text string) bool {
	_, err := strconv.ParseBool(text)
	return err == nil
}

// UnexpectedArgs returns the problems of arguments that belong to no flag.
func UnexpectedArgs(args []string) Problems {
	var wrong Problems
	for _, arg := range args {
		wrong = append(wrong, Problem{strconv.Quote(arg), "is neither an option nor a command: options begin with --, " +
			"and an option's value follows its name (--workers 5, --dry-run=true)"})
	}
	return wrong
}

// unknown returns the problem of a flag that flags does not have.
func unknown(flags *pflag.FlagSet, name string) Problem {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	return Problem{"--" + name, "there is no such option" + DidYouMean("--", strings.ReplaceAll(name, "_", "-"), all)}
}

// DidYouMean returns "; did you mean a or b?" with those of words that are like the given
// one, each after prefix; empty if there are none. It compares as cobra does for commands.
func DidYouMean(prefix, given string, words []string) string {
	// Less than shortest is the beginning of many names. The comparison takes quadratic time, and
	// no name is longer than longest.
	const shortest, longest = 3, 100
	if len(given) < shortest || len(given) > longest {
		return ""
	}
	command := &cobra.Command{SuggestionsMinimumDistance: min(3, len(given)/3)}
	for _, w := range words {
		command.AddCommand(&cobra.Command{Use: w, Run: func(*cobra.Command, []string) {}})
	}
	similar := command.SuggestionsFor(given)
	if len(similar) == 0 {
		return ""
	}
	return "; did you mean " + prefix + strings.Join(similar, " or "+prefix) + "?"
}
