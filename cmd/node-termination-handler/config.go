package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

// A config is everything that the handler can be told. It comes from flags and
// the environment in three steps: register, load, validate. Only validate
// looks at more than one field.
type config struct {
	queue queueURL
	// queueOptional is for commands that need no queue: load then does without.
	queueOptional bool
	// region is where the queue and its instances are. Never empty.
	region string
	// awsEndpoint replaces the endpoint of every AWS service; empty leaves the
	// choice to the SDK.
	awsEndpoint string
	// sqsEndpoint is awsEndpoint for SQS, where the host of the queue's URL has
	// a say too. Empty leaves the choice to the SDK.
	sqsEndpoint string
	// visibilityTimeout is how long SQS hides a message between extensions.
	visibilityTimeout    time.Duration
	deleteIfNodeNotFound bool
	// workers bounds the drains that are not urgent; 0 is no bound.
	workers int
	// maxUnready bounds the nodes out of use while there are drains that can wait;
	// zero: no bound.
	maxUnready intstr.IntOrString

	checkTag    bool
	managedTag  string // key of the tag; not empty if checkTag
	clusterName string // empty: unknown

	dryRun                   bool
	cordonOnly               bool
	taintNode                bool
	taintEffect              corev1.TaintEffect
	outOfServiceTaint        bool
	excludeFromLoadBalancers bool
	nodeGracePeriod          time.Duration // bounds a drain whose notice has no deadline

	deleteLocalData  bool
	ignoreDaemonSets bool
	podGracePeriod   time.Duration // negative: each pod's own; never 0

	heartbeatInterval time.Duration // 0: no heartbeats
	heartbeatUntil    time.Duration // since the hook began; for heartbeatInterval > 0 alone
	completionDelay   time.Duration // 0: none
	hookNames         []string      // empty: all

	kubeconfig            string // paths, separated as in PATH; empty: see kube
	kubernetesServiceHost string // empty: as the cluster says
	kubernetesServicePort string
	kubeQPS               float32 // negative: no limit
	kubeBurst             int     // only for kubeQPS > 0
	leaderElect           bool
	leaseName             string
	nodeName              string // of the handler's own pod, as are the next two; empty: unknown
	podName               string
	podNamespace          string

	logLevel    zapcore.Level
	jsonLogging bool

	prometheusServer bool
	prometheusPort   int // 0: any that is free, as for probesPort
	probesServer     bool
	probesPort       int
	probesPath       string

	emitEvents       bool
	eventAnnotations map[string]string

	webhookURL      string // empty: no webhook
	webhookProxy    *url.URL
	webhookHeaders  map[string]string
	webhookTemplate string
	// webhookTemplateFile is a path; what it holds goes before webhookTemplate.
	webhookTemplateFile string
	webhookPhases       []telemetry.Phase // at least one

	traces *telemetry.TraceOptions // nil: none

	// warnings are for the log at the start: what was given and does nothing, or
	// not what it says.
	warnings []string
	// changed are the options that differ from their default, with the text they
	// got, for the log at the start. It holds no secret.
	changed map[string]string
}

// register adds the flags of all options to flags. Their values are texts here:
// pflag would stop at the first that is wrong, and it is load that parses.
func (c *config) register(flags *pflag.FlagSet) {
	for _, o := range c.options() {
		for _, n := range append([]names{o.names}, o.older...) {
			if n.flag == "" {
				continue
			}
			flags.String(n.flag, "", o.words)
			if o.value.kind == kindBool {
				flags.Lookup(n.flag).NoOptDefVal = "true"
			}
		}
	}
}

// load sets every field of c: from flags, which register has seen, else from
// environ, a list as from os.Environ, else to its default. The error is of type
// mistakes and tells them all.
func (c *config) load(flags *pflag.FlagSet, environ []string) error {
	*c = config{queueOptional: c.queueOptional, changed: make(map[string]string)}
	env := environment(environ)
	got := make(map[string]given)
	var wrong mistakes
	var idle []given // without effect
	for _, o := range c.options() {
		if err := o.value.set(o.def); err != nil {
			wrong = append(wrong, o.refuse(given{o.def, sourceDefault}, err))
		}
		g, newer := o.lookUp(flags, env)
		got[o.flag] = g
		c.warnings = append(c.warnings, newer...)
		switch {
		case g.text == "" && o.required && !c.queueOptional:
			wrong = append(wrong, mistake{o.flag, fmt.Sprintf("is required: give --%s or %s; allowed: %s", o.flag, o.env, o.value.allowed)})
			continue
		case g.source == sourceDefault:
			continue
		case o.noEffect != "":
			idle = append(idle, given{text: o.noEffect, source: g.source})
			continue
		}
		if err := o.value.set(g.text); err != nil {
			wrong = append(wrong, o.refuse(g, err))
			continue
		}
		if !strings.EqualFold(g.text, o.def) {
			c.changed[o.flag] = g.text
			if o.secret {
				c.changed[o.flag] = "(secret)"
			}
		}
	}
	c.warnings = append(c.warnings, warnIdle(idle)...)
	return append(wrong, c.validate(got, env)...).err()
}

// lookUp returns what was given for o. The warnings tell of older names: that
// one was used, or that one was not because the newer name was given as well.
func (o *option) lookUp(flags *pflag.FlagSet, env map[string]string) (g given, warnings []string) {
	g, ok := o.names.lookUp(flags, env)
	for _, n := range o.older {
		old, found := n.lookUp(flags, env)
		switch {
		case !found:
		case ok:
			warnings = append(warnings, fmt.Sprintf("%s is ignored: it is an older name of %s, which is set by %s", old.source, o.flag, g.source))
		default:
			g, ok = old, true
			warnings = append(warnings, fmt.Sprintf("%s is an older name: use --%s or %s", old.source, o.flag, o.env))
		}
	}
	if !ok {
		return given{o.def, sourceDefault}, warnings
	}
	return g, warnings
}

// lookUp returns what was given under n. A flag may be empty, and then empties
// what the variable says.
func (n names) lookUp(flags *pflag.FlagSet, env map[string]string) (given, bool) {
	if f := flags.Lookup(n.flag); f != nil && f.Changed {
		return given{strings.TrimSpace(f.Value.String()), "--" + n.flag}, true
	}
	if v, ok := env[n.env]; ok {
		return given{v, n.env}, true
	}
	return given{}, false
}

// warnIdle returns one warning for each reason why options have no effect,
// which is the text of idle.
func warnIdle(idle []given) []string {
	var warnings []string
	for len(idle) > 0 {
		why, verb := idle[0].text, "has"
		var sources []string
		idle = slices.DeleteFunc(idle, func(g given) bool {
			if g.text != why {
				return false
			}
			sources = append(sources, g.source)
			return true
		})
		if len(sources) > 1 {
			verb = "have"
		}
		warnings = append(warnings, fmt.Sprintf("%s %s no effect: %s", strings.Join(sources, ", "), verb, why))
	}
	return warnings
}

// validate checks what concerns more than one option, and fills in what follows
// from others. got holds, by the option's name, what load has found.
func (c *config) validate(got map[string]given, env map[string]string) mistakes {
	var err error
	if c.traces, err = telemetry.ReadTraceOptions(env); err != nil { // whoever injects these variables is not who runs this program
		c.warnings = append(c.warnings, "no traces are sent: "+err.Error())
	}
	return slices.Concat(
		c.validateAWS(got, env),
		c.validateHeartbeats(got),
		c.validatePods(),
		c.validateServers(got),
	)
}

func (c *config) validateAWS(got map[string]given, env map[string]string) mistakes {
	var wrong mistakes
	if c.checkTag && c.managedTag == "" {
		wrong = append(wrong, mistake{"managed-tag", "is empty, and check-tag-before-draining is on: give the key of the tag"})
	}
	if c.queue.text == "" {
		return wrong // said already where it is needed, and the rest follows from it
	}

	region := got["aws-region"]
	switch {
	case region.text == "" && c.queue.region == "":
		wrong = append(wrong, mistake{"aws-region", fmt.Sprintf(
			"is required: the host of queue-url, %q, names no region; give --aws-region or AWS_REGION", c.queue.base)})
	case region.text == "":
		c.region = c.queue.region
	case c.region != "" && c.queue.region != "" && c.region != c.queue.region:
		// EventBridge delivers to queues of its own region: every instance of
		// another one would be foreign.
		wrong = append(wrong, mistake{"aws-region", fmt.Sprintf(
			"%q (from %s) is not the region of queue-url, %q", region.text, region.source, c.queue.region)})
	}

	// What the SDK reads for itself.
	// https://docs.aws.amazon.com/sdkref/latest/guide/feature-endpoints.html
	isTrue := func(name string) bool { return strings.EqualFold(env[name], "true") }
	fips, dualStack := isTrue("AWS_USE_FIPS_ENDPOINT"), isTrue("AWS_USE_DUALSTACK_ENDPOINT")
	own := "aws-endpoint"
	sdkHasOne := false
	if !isTrue("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") && c.awsEndpoint == "" {
		for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"} {
			if env[name] != "" {
				own, sdkHasOne = name, true
			}
		}
	}
	switch {
	case c.awsEndpoint != "":
		c.sqsEndpoint = c.awsEndpoint
	case !sdkHasOne:
		own = "queue-url"
		c.sqsEndpoint = c.queue.endpoint(fips, dualStack)
	}
	if c.sqsEndpoint == "" && !sdkHasOne {
		return wrong
	}
	if fips {
		wrong = append(wrong, mistake{"AWS_USE_FIPS_ENDPOINT", "cannot be true when " + own + " names an endpoint of its own: unset one of them"})
	}
	if dualStack {
		wrong = append(wrong, mistake{"AWS_USE_DUALSTACK_ENDPOINT", "cannot be true when " + own + " names an endpoint of its own: unset one of them"})
	}
	return wrong
}

// hookLimit is how long Auto Scaling holds an instance for a lifecycle hook at
// most, whatever its heartbeats, in seconds.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
const hookLimit = 48 * 60 * 60

func (c *config) validateHeartbeats(got map[string]given) mistakes {
	until := got["heartbeat-until"]
	switch {
	case c.heartbeatInterval == 0 && c.heartbeatUntil > 0:
		// An interval that is wrong has been told of; only one that is off is news.
		if strings.HasPrefix(got["heartbeat-interval"].text, "-") {
			return mistakes{{"heartbeat-until", fmt.Sprintf("%q (from %s) needs heartbeat-interval, which is off", until.text, until.source)}}
		}
	case c.heartbeatInterval > 0 && c.heartbeatUntil == 0:
		c.heartbeatUntil = hookLimit * time.Second
	}
	return nil
}

func (c *config) validatePods() mistakes {
	if c.podGracePeriod == 0 {
		c.podGracePeriod = time.Second
		c.warnings = append(c.warnings, "pod-termination-grace-period 0 counts as 1: with 0 the API server forgets a pod whose containers still run")
	}
	if c.kubeBurst < 0 {
		c.kubeQPS = -1
	}
	return nil
}

func (c *config) validateServers(got map[string]given) mistakes {
	if c.prometheusServer && c.probesServer && c.prometheusPort != 0 && c.prometheusPort == c.probesPort {
		return mistakes{{"probes-server-port", fmt.Sprintf("%d (from %s) is the port of prometheus-server-port as well (from %s)",
			c.probesPort, got["probes-server-port"].source, got["prometheus-server-port"].source)}}
	}
	return nil
}
