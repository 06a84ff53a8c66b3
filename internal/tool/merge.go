package tool

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/spf13/pflag"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// merge parses the options of the release, with those of the command line on top.
// Options by which a process reaches AWS and the cluster come from process.
func (l Loader) merge(origin *Origin, commandLine, process options.Source) (*options.Options, error) {
	release := origin.release
	sources := func(flags *pflag.FlagSet) func(*options.Option) []options.Source {
		over := options.Source{Flags: flags}
		return func(o *options.Option) []options.Source {
			switch o.Owner {
			case options.OfProcess:
				return []options.Source{process}
			case options.OfReleaseFirst:
				queue, _ := queueOption().LookUp([]options.Source{over, release.options})
				if needsRegion(queue.Text) {
					return []options.Source{over, release.options, process}
				}
			case options.OfRelease:
			}
			return []options.Source{over, release.options}
		}
	}
	if problems := l.noteUnread(origin, commandLine); len(problems) > 0 {
		return nil, problems
	}
	if !release.ready {
		origin.note(fmt.Sprintf("no replica of %s is ready: no notice is received now", release))
	}
	parser := options.Parser{Sources: sources(commandLine.Flags), Env: process.Env, QueueOptional: l.QueueOptional}
	opts, err := parser.Parse()
	if err != nil {
		return nil, err
	}
	reparse := func(flags *pflag.FlagSet) (*options.Options, error) {
		return options.Parser{Sources: sources(flags), Env: process.Env, QueueOptional: true}.Parse()
	}
	contradictions := release.contradictions(opts, commandLine.Flags, reparse)
	if l.Strict && len(contradictions) > 0 {
		return nil, append(contradictions, options.Problem{
			Name: "release",
			Text: "the options of " + release.String() + " decide what happens; remove these options, " +
				"or set --release none for a handler that runs elsewhere",
		})
	}
	for _, c := range contradictions {
		origin.note(c.Error() + "; this answer uses the command line")
	}
	return opts, nil
}

// contradictions returns the flags that make opts differ from the options of the release.
// They are found by parsing without each flag, one after the other.
func (r *Release) contradictions(
	opts *options.Options, flags *pflag.FlagSet, parse func(*pflag.FlagSet) (*options.Options, error),
) (all options.Problems) {
	for _, o := range options.Table() {
		given, _ := o.LookUp([]options.Source{{Flags: flags}})
		if o.Owner == options.OfProcess || given.From == options.FromDefault || r.holds(&o) != "" {
			continue
		}
		names := []string{o.Flag}
		for _, n := range o.Older {
			names = append(names, n.Flag)
		}
		theirs, err := parse(without(flags, names))
		if err == nil && sameOptions(opts, theirs) {
			continue
		}
		installed, _ := o.LookUp([]options.Source{r.options})
		all = append(all, options.Problem{Name: o.Flag, Text: fmt.Sprintf("%s (from %s), but %s has %s",
			o.Show(given.Text), given.From, r, o.Show(installed.Text))})
	}
	return all
}

// noteUnread notes which options have values that are not read. Those that the tool needs
// are problems.
func (l Loader) noteUnread(origin *Origin, commandLine options.Source) (problems options.Problems) {
	release := origin.release
	for _, o := range options.Table() {
		holder := release.holds(&o)
		if holder == "" || o.Owner == options.OfProcess || o.Secret || o.NoEffect != "" {
			continue
		}
		if given, _ := o.LookUp([]options.Source{commandLine}); given.From != options.FromDefault {
			continue
		}
		if l.Strict || o.Required && !l.QueueOptional {
			problems = append(problems, options.Problem{Name: o.Flag, Text: fmt.Sprintf(
				"comes from %s, which is not read: set --%s to the value of %s", holder, o.Flag, release)})
			continue
		}
		origin.note(fmt.Sprintf("%s comes from %s, which is not read: this answer uses the default; set the value by --%s",
			o.Flag, holder, o.Flag))
	}
	for _, secret := range release.unreadAll {
		if l.Strict {
			problems = append(problems, options.Problem{Name: "release", Text: fmt.Sprintf("%s takes variables from %s, "+
				"which is not read: its values are unknown, and so is what the handler would do", release, secret)})
			continue
		}
		origin.note(secret + " is a source of variables and is not read: set its options here")
	}
	return problems
}

// queueOption returns the option that names the queue.
func queueOption() *options.Option {
	all := options.Table()
	return &all[slices.IndexFunc(all, func(o options.Option) bool { return o.Flag == "queue-url" })]
}

// needsRegion reports whether the URL of a queue does not name its region.
func needsRegion(queue string) bool {
	u, err := options.ParseQueueURL(queue)
	return err != nil || u.Region == ""
}

// sameOptions compares what two sets of options mean, not how they were given.
func sameOptions(a, b *options.Options) bool {
	x, y := *a, *b
	x.Changed, x.Warnings, y.Changed, y.Warnings = nil, nil, nil, nil
	return reflect.DeepEqual(x, y)
}

// without returns flags but for some.
func without(flags *pflag.FlagSet, names []string) *pflag.FlagSet {
	rest := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			rest.AddFlag(f)
		}
	})
	return rest
}
