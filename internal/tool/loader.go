// Package tool has what the commands doctor, what-if and simulate are made of: how they find
// an installed handler, its options and its cluster, and what they do for one node.
package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// A Loader finds the options of an installed handler for a tool that speaks about it.
type Loader struct {
	// QueueOptional is for tools that need no queue.
	QueueOptional bool
	// Strict is for tools that act. An option on the command line that contradicts the
	// installed handler is a problem then, and so is a handler whose options cannot be read.
	Strict bool
	// WithoutCluster is for tools that can go on by the options of the command line if the
	// cluster cannot be asked.
	WithoutCluster bool
}

// NoRelease is the release for which the options of the command line and the environment
// count.
const NoRelease = "none"

// Load finds the options. flags are those of the command line, with the flags of
// [options.Register]; environ is a list as from os.Environ. release names a Deployment as
// NAMESPACE/NAME, is NoRelease, or is empty to find the Deployment by its label. problems
// are those of the rest of the command line, to be reported together with those of the
// options: then nobody is asked. The error is of type [options.Problems] if the options are
// wrong.
func (l Loader) Load(
	ctx context.Context, flags *pflag.FlagSet, environ []string, release string, problems options.Problems,
) (*options.Options, *Origin, error) {
	env := options.Environment(environ)
	process := options.Source{Flags: flags, Env: env}
	commandLine := options.Source{Flags: flags}
	if release != "" && release != NoRelease && !isReleaseName(release) {
		problems = append(problems, options.Problem{
			Name: "release", Text: "must be NAMESPACE/NAME of a Deployment, or none",
		})
	}
	own, more := options.Parser{QueueOptional: true, Sources: func(o *options.Option) []options.Source {
		if o.Owner == options.OfProcess {
			return []options.Source{process}
		}
		return []options.Source{commandLine}
	}}.ParseEach()
	if problems = slices.Concat(problems, more); len(problems) > 0 {
		return nil, nil, problems
	}
	origin, err := l.findOrigin(ctx, own, env, release)
	if err != nil {
		return nil, nil, err
	}
	if origin.release != nil {
		opts, err := l.merge(origin, commandLine, process)
		return opts, origin, err
	}
	only := func(*options.Option) []options.Source { return []options.Source{process} }
	opts, err := options.Parser{QueueOptional: l.QueueOptional, Env: env, Sources: only}.Parse()
	if opts.IMDS && !l.QueueOptional {
		return nil, origin, errOnNodes
	}
	if wrong, ok := errors.AsType[options.Problems](err); ok && release != NoRelease {
		// The release is where the missing options would have come from.
		err = append(wrong, options.Problem{Name: "release", Text: origin.why})
	}
	return opts, origin, err
}

func isReleaseName(text string) bool {
	namespace, name, ok := strings.Cut(text, "/")
	return ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

// findOrigin finds out whose options count. own are the tool's own options, which say
// where the cluster is.
func (l Loader) findOrigin(
	ctx context.Context, own *options.Options, env map[string]string, release string,
) (*Origin, error) {
	if release == NoRelease {
		return &Origin{why: "as --release none says"}, nil
	}
	if release == "" && inOwnPod(own, env) {
		cmdline, _ := os.ReadFile("/proc/1/cmdline") // without it: the handler has its options from variables, usually
		return &Origin{release: ownPod(env, string(cmdline))}, nil
	}
	var found *Release
	client, err := connect(own)
	if err == nil {
		found, err = findRelease(ctx, client, release)
	}
	switch {
	case err == nil:
		return &Origin{release: found}, nil
	case errors.Is(err, errNoRelease):
	case errors.Is(err, errSeveralReleases):
		return nil, err
	case release != "" || !l.WithoutCluster:
		return nil, fmt.Errorf("%w; the options of the handler are unknown: name its Deployment by "+
			"--release NAMESPACE/NAME, or set the options yourself with --release none", err)
	}
	return &Origin{why: err.Error()}, nil
}

// errOnNodes is why a tool that speaks about a leader has nothing to say.
var errOnNodes = options.Problems{{
	Name: "enable-sqs-termination-draining",
	Text: "is false, the IMDS mode: no handler leads, and each pod checks at its start what it needs; look at the pods " +
		"as docs/imds.md says, and use what-if and explain",
}}

// inOwnPod reports whether the tool runs in the pod of the handler, whose variables
// are its own then.
func inOwnPod(own *options.Options, env map[string]string) bool {
	if own.Kubeconfig != "" || env["POD_NAME"] == "" || env["NAMESPACE"] == "" || env["QUEUE_URL"] == "" {
		return false
	}
	_, err := rest.InClusterConfig()
	return err == nil
}

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
	if opts.IMDS && !l.QueueOptional {
		return nil, errOnNodes
	}
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

// An Origin says whose options a tool goes by.
type Origin struct {
	release *Release // nil: none
	why     string   // why there is none
	notes   []string // what else one has to know about the options
}

// note adds a note, once.
func (o *Origin) note(text string) {
	if !slices.Contains(o.notes, text) {
		o.notes = append(o.notes, text)
	}
}

// describe names whose options count.
func (o *Origin) describe() string {
	if o.release != nil {
		return "options of " + o.release.String()
	}
	return "options of the command line and the environment (" + o.why + ")"
}

// An identity is who asks AWS, empty if nobody does, and Kubernetes.
type identity struct{ aws, kubernetes string }

// line names whose options and, as far as s says, whose identity and rights a tool goes by.
func (o *Origin) line(s identity) string {
	text := "With the " + o.describe()
	if s.aws != "" {
		text += "; in AWS as " + s.aws
	}
	if s.kubernetes != "" {
		text += "; in Kubernetes with the rights of " + s.kubernetes
	}
	return text
}

// Write writes whose options count, and the notes, for a tool that itself says who asks.
func (o *Origin) Write(w io.Writer) error {
	_, err := io.WriteString(w, o.text(identity{}))
	return err
}

// text is the line and the notes.
func (o *Origin) text(s identity) string {
	text := o.line(s) + ".\n"
	for _, note := range o.notes {
		text += "Note: " + note + ".\n"
	}
	return text
}

// An originReport is an Origin for programs.
type originReport struct {
	Options    string   `json:"options"`
	AWS        string   `json:"aws,omitempty"`
	Kubernetes string   `json:"kubernetes"`
	Notes      []string `json:"notes"`
}

func (s *Session) originReport() originReport {
	return originReport{s.origin.describe(), s.identity.aws, s.identity.kubernetes, orEmpty(s.origin.notes)}
}
