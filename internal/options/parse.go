package options

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A Parser reads options. The zero value knows of no place to read them from, and
// so has their defaults only.
type Parser struct {
	// Sources returns the places where an option is looked up, the one that counts
	// most first. Nil: none.
	Sources func(*Option) []Source
	// Env is the environment of this process, without empty variables: see
	// [Environment]. The AWS SDK reads variables that are no options.
	Env map[string]string
	// QueueOptional is for commands that need no queue, nor in IMDS mode the name of their node.
	QueueOptional bool
}

// A Source is a place where options are looked up.
type Source struct {
	Flags *pflag.FlagSet    // with the flags of Register; nil: none
	Env   map[string]string // as of Environment; nil: none
	Of    string            // follows the name of the flag or the variable in messages; empty: this process's own
}

// Register adds the flags of all options to flags. Their values are texts here:
// pflag would stop at the first that is wrong, and it is the Parser that parses.
func Register(flags *pflag.FlagSet) {
	for _, o := range Table() {
		for _, n := range append([]Names{o.Names}, o.Older...) {
			if n.Flag == "" {
				continue
			}
			flags.String(n.Flag, "", o.Help)
			if o.value.kind == kindBool {
				flags.Lookup(n.Flag).NoOptDefVal = "true"
			}
		}
	}
}

// Parse reads the options from flags, which Register has seen, else from environ, a
// list as from os.Environ, else from their defaults. The error is of type Problems,
// and has them all. The options are never nil: with an error they are what could be
// read.
func Parse(flags *pflag.FlagSet, environ []string) (*Options, error) {
	own := Source{Flags: flags, Env: Environment(environ)}
	return Parser{Sources: func(*Option) []Source { return []Source{own} }, Env: own.Env}.Parse()
}

// Parse reads the options, and checks them one by one and together. The error is
// of type Problems, and has them all. The options are never nil.
func (p Parser) Parse() (*Options, error) {
	o, got, problems := p.read()
	if o.IMDS && o.NodeName == "" && !p.QueueOptional {
		const text = "is required in IMDS mode: give --node-name or NODE_NAME, from the downward API"
		problems = append(problems, Problem{"node-name", text})
	}
	return o, append(problems, o.validate(got, p.Env)...).Err()
}

// ParseEach is Parse without the checks of options together: an option that is
// missing is no problem, if it is not required by itself.
func (p Parser) ParseEach() (*Options, Problems) {
	o, _, problems := p.read()
	o.fillIn()
	return o, problems
}

// read returns also, by the option's name, what was found.
func (p Parser) read() (*Options, map[string]Setting, Problems) {
	opts := &Options{Changed: make(map[string]string)}
	table, got := opts.table(), make(map[string]Setting)
	var problems, missing Problems
	for _, o := range table {
		if err := o.value.set(o.Default); err != nil {
			problems = append(problems, o.refuse(Setting{o.Default, FromDefault}, err))
		}
		var sources []Source
		if p.Sources != nil {
			sources = p.Sources(&o)
		}
		g, newer := o.LookUp(sources)
		got[o.Flag] = g
		opts.Warnings = append(opts.Warnings, newer...)
		switch {
		case g.Text == "" && o.Required && !p.QueueOptional:
			missing = append(missing, Problem{o.Flag, fmt.Sprintf("is required: give --%s or %s; allowed: %s",
				o.Flag, o.Env, o.value.allowed)})
			continue
		case g.From == FromDefault:
			continue
		case o.NoEffect != "":
			opts.Warnings = append(opts.Warnings, g.From+" has no effect: "+o.NoEffect)
			continue
		}
		if err := o.value.set(g.Text); err != nil {
			problems = append(problems, o.refuse(g, err))
		} else if !strings.EqualFold(g.Text, o.Default) {
			opts.Changed[o.Flag] = g.Text
			if o.Secret {
				opts.Changed[o.Flag] = "(secret)"
			}
		}
	}
	opts.resetIdle(table, got)
	if !opts.IMDS {
		problems = append(missing, problems...)
	}
	return opts, got, problems
}

// resetIdle gives the options of other modes their defaults, once it is known which mode it is.
func (c *Options) resetIdle(table []Option, got map[string]Setting) {
	if c.Queue.None() && got["sweep-interval"].From == FromDefault {
		c.SweepInterval = 0
	}
	idle := map[string][]string{}
	for _, o := range table {
		if g := got[o.Flag]; g.From != FromDefault && o.Mode.excludes(c) {
			why := whyIdle(c, o.Mode)
			idle[why] = append(idle[why], g.From)
			got[o.Flag] = Setting{o.Default, FromDefault}
			delete(c.Changed, o.Flag)
			_ = o.value.set(o.Default) // read has reported it if it is wrong
		}
	}
	for _, why := range slices.Sorted(maps.Keys(idle)) {
		have := "has"
		if len(idle[why]) > 1 {
			have = "have"
		}
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s %s no effect: %s", strings.Join(idle[why], ", "), have, why))
	}
}

// LookUp returns what was given for o in the first of sources that has it, else its default. The
// warnings tell of older names.
func (o *Option) LookUp(sources []Source) (Setting, []string) {
	for _, p := range sources {
		if g, warnings := o.lookUpIn(p); g.From != FromDefault {
			return g, warnings
		}
	}
	return Setting{o.Default, FromDefault}, nil
}

// lookUpIn returns what was given for o. The warnings name older names that were used, or
// that were ignored because the newer name was given as well.
func (o *Option) lookUpIn(p Source) (g Setting, warnings []string) {
	g, ok := o.lookUp(p)
	for _, n := range o.Older {
		old, found := n.lookUp(p)
		switch {
		case !found:
		case ok:
			warnings = append(warnings, fmt.Sprintf("%s is ignored: it is an older name of %s, which is set by %s",
				old.From, o.Flag, g.From))
		default:
			g, ok = old, true
			warnings = append(warnings, fmt.Sprintf("%s is an older name: use --%s or %s", old.From, o.Flag, o.Env))
		}
	}
	if !ok {
		return Setting{o.Default, FromDefault}, warnings
	}
	return g, warnings
}

// lookUp returns what was given under n. A flag may be empty; it then takes precedence over
// the variable too.
func (n Names) lookUp(p Source) (Setting, bool) {
	if p.Flags != nil {
		if f := p.Flags.Lookup(n.Flag); f != nil && f.Changed {
			return Setting{strings.TrimSpace(f.Value.String()), "--" + n.Flag + p.Of}, true
		}
	}
	if v, ok := p.Env[n.Env]; ok {
		return Setting{v, n.Env + p.Of}, true
	}
	return Setting{}, false
}

// Environment returns environ, a list as from os.Environ, as a map. It removes white space
// around values, because secrets that are made from files end in a newline. It leaves out
// empty variables: a manifest unsets a variable by setting it to nothing.
func Environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, entry := range slices.Backward(environ) { // the first one counts, as for os.Getenv
		if k, v, ok := strings.Cut(entry, "="); ok {
			env[k] = strings.TrimSpace(v)
		}
	}
	maps.DeleteFunc(env, func(_, v string) bool { return v == "" })
	return env
}
