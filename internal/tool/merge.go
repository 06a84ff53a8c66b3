package tool

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// merge parses the options of the release, with those of the command line on top.
// Options by which a process reaches AWS and the cluster come from process.
func (l Loader) merge(origin *Origin, commandLine, process options.Source) (*options.Options, error) {
	release := origin.release
	sources := func(o *options.Option) []options.Source {
		switch o.Owner {
		case options.OfProcess:
			return []options.Source{process}
		case options.OfReleaseFirst:
			queue, _ := queueOption().LookUp([]options.Source{commandLine, release.options})
			if u, err := options.ParseQueueURL(queue.Text); err != nil || u.Region == "" {
				return []options.Source{commandLine, release.options, process}
			}
		case options.OfRelease:
		}
		return []options.Source{commandLine, release.options}
	}
	if problems := l.noteUnread(origin, commandLine); len(problems) > 0 {
		return nil, problems
	}
	if !release.ready {
		origin.note(fmt.Sprintf("no replica of %s is ready: no notice is received now", release))
	}
	parser := options.Parser{Sources: sources, Env: process.Env, QueueOptional: l.QueueOptional}
	opts, err := parser.Parse()
	if err != nil {
		return nil, err
	}
	contradictions := release.contradictions(opts, parser, commandLine)
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

// contradictions returns the options of the command line that make opts, which parser has parsed, differ from the
// options of the release. They are found by parsing without each of them, one after the other.
func (r *Release) contradictions(
	opts *options.Options, parser options.Parser, commandLine options.Source,
) (all options.Problems) {
	sources := parser.Sources
	parser.QueueOptional = true
	for _, o := range options.Table() {
		given, _ := o.LookUp([]options.Source{commandLine})
		if o.Owner == options.OfProcess || given.From == options.FromDefault || r.holds(&o) != "" {
			continue
		}
		parser.Sources = func(other *options.Option) []options.Source {
			if other.Flag == o.Flag {
				return sources(other)[1:]
			}
			return sources(other)
		}
		theirs, err := parser.Parse()
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

// sameOptions compares what two sets of options mean, not how they were given.
func sameOptions(a, b *options.Options) bool {
	x, y := *a, *b
	x.Changed, x.Warnings, y.Changed, y.Warnings = nil, nil, nil, nil
	return reflect.DeepEqual(x, y)
}
