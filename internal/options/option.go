package options

import (
	"fmt"
	"regexp"
	"strconv"
)

// An Option is one row of the table. Flags, environment variables, --help and docs/options.md
// are made from it.
type Option struct {
	Names
	Older   []Names // former names, used if only they are set
	Group   group   // empty in the table: that of the row before
	value   value
	Default string // as one would write it
	// DefaultText says what the default means, where Default does not.
	DefaultText string
	Help        string // sentences that say what the option does, with its unit
	// NoEffect says why the option is accepted but does nothing, in words that follow
	// "has no effect: ". Its value is not checked then. Empty: it has an effect.
	NoEffect string
	Mode     Mode
	Required bool // in its mode
	Secret   bool // never printed, neither in errors nor in logs
	Owner    Owner
}

// An Owner says where a tool, which speaks of a handler that runs elsewhere, takes an option
// from. The zero value is the safe one: a tool does not decide by what happens to be set where
// it runs.
type Owner uint8

const (
	// OfRelease is for options that change what the handler does. The tool takes them from the
	// handler's Deployment.
	OfRelease Owner = iota
	// OfProcess is for options about how a process reaches AWS and the cluster, and for those of
	// logs and ports. The tool uses its own.
	OfProcess
	// OfReleaseFirst is for options that come from the Deployment, and from the tool's own if the
	// Deployment does not say.
	OfReleaseFirst
)

// A Mode says which handlers an option is for. The zero value is for options of all.
type Mode string

// The modes.
const (
	QueueMode  Mode = "queue"  // a handler with a queue
	LeaderMode Mode = "leader" // one that leads, with a queue or without
	HookMode   Mode = "hooks"  // one that completes lifecycle hooks: with a queue, or with sweep-interval
	IMDSMode   Mode = "IMDS"   // one that reads the metadata of its instance
)

// excludes reports whether an option of mode m does not count for a handler with the options o. A leader without a
// queue decides about what pods in IMDS mode report, and so takes their options too.
func (m Mode) excludes(o *Options) bool {
	switch m {
	case QueueMode:
		return o.ByMetadata()
	case LeaderMode:
		return o.IMDS
	case HookMode:
		return o.IMDS || o.Queue.None() && o.SweepInterval == 0
	case IMDSMode:
		return !o.IMDS && !o.Queue.None()
	}
	return false
}

// whyIdle says why an option of a mode has no effect on a handler with the options o.
func whyIdle(o *Options, mode Mode) string {
	switch {
	case o.IMDS:
		return "this handler runs in IMDS mode"
	case o.Queue.None() && mode == HookMode:
		return "this handler has neither a queue nor sweep-interval"
	case o.Queue.None():
		return "this handler has no queue"
	}
	return "this handler runs in queue mode"
}

// Names are the ways to give one option; each may be empty.
type Names struct {
	Flag string // without dashes
	Env  string
	Helm string // paths of the values in the chart, separated by ", "
}

// A group is a heading in --help and docs/options.md.
type group string

const (
	groupQueue     group = "Queue and AWS"
	groupMetadata  group = "IMDS mode"
	groupInstances group = "Which instances"
	groupNode      group = "What happens to a node"
	groupPods      group = "Pods"
	groupHooks     group = "Lifecycle hooks"
	groupKube      group = "Kubernetes"
	groupLogs      group = "Logs and probes"
	groupEvents    group = "Kubernetes events and webhooks"
	groupNoEffect  group = "Accepted, without effect"
)

var groups = []group{
	groupQueue, groupMetadata, groupInstances, groupNode, groupPods, groupHooks, groupKube, groupLogs, groupEvents,
	groupNoEffect,
}

// A Setting is the text that was given for an option.
type Setting struct {
	Text string
	From string // "--workers", "WORKERS", or "default"
}

// FromDefault is where a Setting comes from if nothing was given.
const FromDefault = "default"

// refuse returns the problem of a setting that o does not take.
func (o *Option) refuse(g Setting, why error) Problem {
	words := fmt.Sprintf("%s (from %s) %v", o.Show(g.Text), g.From, why)
	if o.value.allowed != "" {
		words += "; allowed: " + o.value.allowed
	}
	return Problem{Name: o.Flag, Text: words}
}

// userInfo is a user name and password in a URL, well-formed or not.
var userInfo = regexp.MustCompile(`//[^/?#]*@`)

// Show returns text as it may be printed: quoted and cut, without secrets. A user and password in
// a URL count as a secret.
func (o *Option) Show(text string) string {
	const most = 200 // a line of a log, and enough to recognise what was given
	if o.Secret {
		return fmt.Sprintf("(secret, %d characters)", len(text))
	}
	text = userInfo.ReplaceAllLiteralString(text, "//(secret)@")
	if len(text) > most {
		return fmt.Sprintf("%q and %d characters more", text[:most], len(text)-most)
	}
	return strconv.Quote(text)
}
