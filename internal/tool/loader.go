// Package tool has what the commands doctor, what-if and simulate are made of: how they find
// an installed handler, its options and its cluster, and what they do for one node.
package tool

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	client, err := connect(own, requestTimeout)
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

// inOwnPod reports whether the tool runs in the pod of the handler, whose variables
// are its own then.
func inOwnPod(own *options.Options, env map[string]string) bool {
	if own.Kubeconfig != "" || env["POD_NAME"] == "" || env["NAMESPACE"] == "" || env["QUEUE_URL"] == "" {
		return false
	}
	_, err := rest.InClusterConfig()
	return err == nil
}
