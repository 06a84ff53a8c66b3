package options

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// validate checks what concerns more than one option, and fills in what follows from others.
// got has what was given, by the option's name.
func (c *Options) validate(got map[string]Setting, env map[string]string) Problems {
	c.fillIn()
	switch {
	case c.IMDS:
		return slices.Concat(c.validateNode(), c.validateServers(got))
	case c.Queue.None():
		return slices.Concat(c.validateReports(), c.validateHeartbeats(got), c.validateServers(got))
	}
	return slices.Concat(c.validateAWS(got, env), c.validateHeartbeats(got), c.validateServers(got))
}

func (c *Options) validateNode() Problems {
	if !c.SpotDraining && !c.ScheduledDraining && !c.LifecycleDraining && !c.RebalanceMonitoring && !c.RebalanceDraining {
		const none = "is off, as are all other kinds of notice: nothing would be read"
		return Problems{{"enable-spot-interruption-draining", none}}
	}
	return nil
}

// validateReports checks the options of a leader without a queue, which asks AWS nothing but Auto Scaling for hooks.
func (c *Options) validateReports() (wrong Problems) {
	c.CheckTag, c.StatusInterval = false, 0
	if !c.LeaderElect {
		const why = "cannot be false with queue-url none: pods report to who holds the Lease"
		wrong = append(wrong, Problem{"leader-elect", why})
	}
	return wrong
}

func (c *Options) validateAWS(got map[string]Setting, env map[string]string) Problems {
	var wrong Problems
	if c.CheckTag && c.ManagedTag == "" {
		wrong = append(wrong, Problem{
			"managed-tag", "is empty, and check-tag-before-draining is on: give the key of the tag",
		})
	}
	if c.Queue.Text == "" {
		return wrong // reported already if it is required, and the rest depends on it
	}
	if len(c.EventAccounts) == 0 {
		c.EventAccounts = []string{c.Queue.Account}
	}

	region := got["aws-region"]
	switch {
	case region.Text == "" && c.Queue.Region == "":
		wrong = append(wrong, Problem{"aws-region", fmt.Sprintf(
			"is required: the host of queue-url, %q, names no region; give --aws-region or AWS_REGION", c.Queue.base)})
	case region.Text == "":
		c.Region = c.Queue.Region
	case c.Region != "" && c.Queue.Region != "" && c.Region != c.Queue.Region:
		// EventBridge delivers to queues of its own region: every instance of
		// another one would be foreign.
		wrong = append(wrong, Problem{"aws-region", fmt.Sprintf(
			"%q (from %s) is not the region of queue-url, %q", region.Text, region.From, c.Queue.Region)})
	}

	return append(wrong, c.validateEndpoints(env)...)
}

// validateEndpoints finds out where SQS is, and checks it against the variables that the SDK
// reads itself.
// https://docs.aws.amazon.com/sdkref/latest/guide/feature-endpoints.html
func (c *Options) validateEndpoints(env map[string]string) (wrong Problems) {
	isTrue := func(name string) bool { return strings.EqualFold(env[name], "true") }
	fips, dualStack := isTrue("AWS_USE_FIPS_ENDPOINT"), isTrue("AWS_USE_DUALSTACK_ENDPOINT")
	own := "aws-endpoint"
	sdkHasOne := false
	if !isTrue("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") && c.AWSEndpoint == "" {
		for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"} {
			if env[name] != "" {
				own, sdkHasOne = name, true
			}
		}
	}
	switch {
	case c.AWSEndpoint != "":
		c.SQSEndpoint = c.AWSEndpoint
	case !sdkHasOne:
		own = "queue-url"
		c.SQSEndpoint = c.Queue.endpoint(fips, dualStack)
	}
	if c.SQSEndpoint == "" && !sdkHasOne {
		return nil
	}
	contradiction := "cannot be true when " + own + " names an endpoint of its own: unset one of them"
	if fips {
		wrong = append(wrong, Problem{"AWS_USE_FIPS_ENDPOINT", contradiction})
	}
	if dualStack {
		wrong = append(wrong, Problem{"AWS_USE_DUALSTACK_ENDPOINT", contradiction})
	}
	return wrong
}

// hookLimit is how long Auto Scaling waits for a lifecycle hook at most, with any number of
// heartbeats, in seconds.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
const hookLimit = 48 * 60 * 60

func (c *Options) validateHeartbeats(got map[string]Setting) Problems {
	interval, until := got["heartbeat-interval"], got["heartbeat-until"]
	switch {
	case c.HeartbeatInterval == 0 && c.HeartbeatUntil > 0:
		// An interval that is invalid has been reported; here it is off.
		if strings.HasPrefix(interval.Text, "-") {
			return Problems{{"heartbeat-until", fmt.Sprintf(
				"%q (from %s) needs heartbeat-interval, which is off", until.Text, until.From)}}
		}
	case c.HeartbeatInterval > 0 && c.HeartbeatUntil == 0:
		c.HeartbeatUntil = hookLimit * time.Second
	case c.HeartbeatInterval > c.HeartbeatUntil: // NTH refuses it too
		return Problems{{"heartbeat-interval", fmt.Sprintf(
			"%q (from %s) is longer than heartbeat-until, %q: heartbeats would end before the first",
			interval.Text, interval.From, until.Text)}}
	}
	return nil
}

// fillIn completes values that follow from others, or that must not be taken at their word.
func (c *Options) fillIn() {
	if c.PodGracePeriod == 0 {
		c.PodGracePeriod = time.Second
		c.Warnings = append(c.Warnings, "pod-termination-grace-period 0 counts as 1: "+
			"with 0 the API server forgets a pod whose containers still run")
	}
	if c.KubeBurst < 0 {
		c.KubeQPS = -1
	}
	if c.DrainImpaired && c.StatusInterval == 0 {
		c.Warnings = append(c.Warnings, "drain-impaired-instances does nothing: status-interval is off")
	}
}

func (c *Options) validateServers(got map[string]Setting) Problems {
	reachable := func(a netip.Addr) bool { return !a.IsLoopback() }
	if c.ProbesServer && len(c.BindAddresses) > 0 && !slices.ContainsFunc(c.BindAddresses, reachable) {
		c.Warnings = append(c.Warnings, "bind-address has only loopback addresses: a kubelet, which asks the pod's address, "+
			"gets no answer to its probes")
	}
	if c.PrometheusServer && c.ProbesServer && c.PrometheusPort != 0 && c.PrometheusPort == c.ProbesPort {
		return Problems{{"probes-server-port", fmt.Sprintf(
			"%d (from %s) is the port of prometheus-server-port as well (from %s)",
			c.ProbesPort, got["probes-server-port"].From, got["prometheus-server-port"].From)}}
	}
	return nil
}
