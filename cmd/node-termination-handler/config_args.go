package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// normalise rewrites args so that pflag finds nothing wrong with them, and
// returns what is. NTH had its flags from the package flag of the standard
// library, and manifests show it: one dash will do (-workers 5).
//
// The values of flags are not looked at.
func normalise(flags *pflag.FlagSet, args []string) (normal []string, wrong mistakes) {
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
		switch next := first(args); {
		case f == nil:
			wrong = append(wrong, unknown(flags, name))
			if !hasText && next != "" && !strings.HasPrefix(next, "-") {
				args = args[1:] // its value, most likely: one mistake, not two
			}
		case hasText:
			normal = append(normal, "--"+name+"="+text)
		case f.NoOptDefVal == "" && len(args) == 0:
			wrong = append(wrong, mistake{name, "--" + name + " is the last word and has no value"})
		case f.NoOptDefVal == "":
			normal = append(normal, "--"+name+"="+next)
			args = args[1:]
		case isBool(next):
			// NTH took this for --dry-run, and for the end of the flags.
			wrong = append(wrong, mistake{name, fmt.Sprintf("--%s %s is two words: write --%[1]s=%[2]s", name, next)})
			args = args[1:]
		default:
			normal = append(normal, "--"+name)
		}
	}
	return normal, wrong
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func isBool(text string) bool {
	_, err := strconv.ParseBool(text)
	return err == nil
}

// leftOver returns the mistake of arguments that no flag took.
func leftOver(args []string) mistakes {
	var wrong mistakes
	for _, arg := range args {
		wrong = append(wrong, mistake{strconv.Quote(arg), "is no option and no command: options begin with --, and an option's value follows its name (--workers 5, --dry-run=true)"})
	}
	return wrong
}

// unknown returns the mistake of a flag that flags does not have.
func unknown(flags *pflag.FlagSet, name string) mistake {
	words := "there is no such option"
	if near := nearest(flags, name); near != "" {
		words += "; did you mean --" + near + "?"
	}
	return mistake{"--" + name, words}
}

// nearest returns the flag whose name differs least from name, empty if none is
// alike. Names differ by their letters and digits alone: queueURL and QUEUE_URL
// are queue-url.
func nearest(flags *pflag.FlagSet, name string) string {
	const longest = 100 // no name of ours is; distance takes quadratic time
	if len(name) > longest {
		return ""
	}
	bare := strings.NewReplacer("-", "", "_", "")
	name = strings.ToLower(bare.Replace(name))
	best, least := "", len(name)/3+1
	flags.VisitAll(func(f *pflag.Flag) {
		if d := distance(name, bare.Replace(f.Name)); d < least {
			best, least = f.Name, d
		}
	})
	return best
}

// distance returns how many bytes must be put in, left out or replaced to make
// a into b: Levenshtein's distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to b[:j], by j
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
