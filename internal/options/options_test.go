package options

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

const testQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/workers"

// parse parses args and environ as the program does.
func parse(args, environ []string) (*Options, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	Register(flags)
	normal, problems := NormaliseArgs(flags, args)
	if err := flags.Parse(normal); err != nil {
		return nil, err
	}
	problems = append(problems, UnexpectedArgs(flags.Args())...)
	c, err := Parse(flags, environ)
	if more, ok := errors.AsType[Problems](err); ok {
		problems = append(problems, more...)
	}
	return c, problems.Err()
}

// defaults is what a queue's URL alone gives.
func defaults() *Options {
	return &Options{
		Queue:             QueueURL{Text: testQueue, base: "https://sqs.us-east-1.amazonaws.com", form: hostRegional, Region: "us-east-1", Account: "123456789012", Name: "workers"},
		Region:            "us-east-1",
		MetadataURL:       "http://169.254.169.254",
		SpotDraining:      true,
		ScheduledDraining: true,
		LifecycleDraining: true,
		EventAccounts:     []string{"123456789012"},
		VisibilityTimeout: 20 * time.Second,
		CheckTag:          true,
		ManagedTag:        "aws-node-termination-handler/managed",
		TaintEffect:       corev1.TaintEffectNoSchedule,
		NodeGracePeriod:   2 * time.Minute,
		StatusInterval:    time.Minute,
		DeleteLocalData:   true,
		IgnoreDaemonSets:  true,
		PodGracePeriod:    -1,
		SweepInterval:     30 * time.Second,
		KubeQPS:           -1,
		KubeBurst:         1000,
		LeaderElect:       true,
		LeaseName:         "node-termination-handler",
		LogLevel:          "info",
		PrometheusServer:  true,
		PrometheusPort:    9092,
		StatusPage:        true,
		ProbesServer:      true,
		ProbesPort:        8080,
		ProbesPath:        "/healthz",
		NodeConditions:    true,
		EmitEvents:        true,
		WebhookHeaders:    map[string]string{"Content-type": "application/json"},
		WebhookPhases:     []webhook.Phase{webhook.PhaseReceived},
		WebhookTemplate:   webhook.DefaultTemplate,
		Changed:           map[string]string{"queue-url": testQueue},
	}
}

func diff(want, got *Options) string {
	return cmp.Diff(want, got, cmp.AllowUnexported(QueueURL{}), cmpopts.EquateComparable(netip.Addr{}))
}

func TestAQueueURLIsEnough(t *testing.T) {
	for _, tt := range []struct {
		name          string
		args, environ []string
	}{
		{"flag", []string{"--queue-url", testQueue}, nil},
		{"variable", nil, []string{"QUEUE_URL=" + testQueue}},
		{"variable with a line's end", nil, []string{"QUEUE_URL=" + testQueue + "\n"}},
		{"flag before variable", []string{"--queue-url", testQueue}, []string{"QUEUE_URL=nonsense"}},
		{"variables that are empty", nil, []string{"QUEUE_URL=" + testQueue, "WORKERS=", "DRY_RUN= ", "NONSENSE", "AWS_REGION="}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(tt.args, tt.environ)
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(defaults(), got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOptionsReachTheirFields(t *testing.T) {
	for _, tt := range []struct {
		flag, text string
		set        func(*Options)
		unchanged  bool // the text means the default
	}{
		{flag: "aws-region", text: "us-east-1", set: func(*Options) {}},
		{flag: "event-accounts", text: "210987654321", set: func(c *Options) { c.EventAccounts = []string{"210987654321"} }},
		{flag: "event-accounts", text: "210987654321, 000000000042,210987654321", set: func(c *Options) { c.EventAccounts = []string{"210987654321", "000000000042"} }},
		{flag: "aws-endpoint", text: "http://127.0.0.1:4566", set: func(c *Options) {
			c.AWSEndpoint, c.SQSEndpoint = "http://127.0.0.1:4566", "http://127.0.0.1:4566"
		}},
		{flag: "enable-sqs-termination-draining", text: "true", set: func(*Options) {}, unchanged: true},
		{flag: "sqs-msg-visibility-timeout-sec", text: "119", set: func(c *Options) { c.VisibilityTimeout = 119 * time.Second }},
		{flag: "delete-sqs-msg-if-node-not-found", text: "true", set: func(c *Options) { c.DeleteIfNodeNotFound = true }},
		{flag: "workers", text: "25", set: func(c *Options) { c.Workers = 25 }},
		{flag: "check-tag-before-draining", text: "false", set: func(c *Options) { c.CheckTag = false }},
		{flag: "check-tag-before-draining", text: "0", set: func(c *Options) { c.CheckTag = false }},
		{flag: "managed-tag", text: "team/managed", set: func(c *Options) { c.ManagedTag = "team/managed" }},
		{flag: "cluster-name", text: "blue", set: func(c *Options) { c.ClusterName = "blue" }},
		{flag: "cluster-name", text: "k.example.com", set: func(c *Options) { c.ClusterName = "k.example.com" }},
		{flag: "dry-run", text: "true", set: func(c *Options) { c.DryRun = true }},
		{flag: "cordon-only", text: "T", set: func(c *Options) { c.CordonOnly = true }},
		{flag: "taint-node", text: "1", set: func(c *Options) { c.TaintNode = true }},
		{flag: "taint-effect", text: "PreferNoSchedule", set: func(c *Options) { c.TaintEffect = corev1.TaintEffectPreferNoSchedule }},
		{flag: "taint-effect", text: "noexecute", set: func(c *Options) { c.TaintEffect = corev1.TaintEffectNoExecute }},
		{flag: "enable-out-of-service-taint", text: "true", set: func(c *Options) { c.OutOfServiceTaint = true }},
		{flag: "exclude-from-load-balancers", text: "true", set: func(c *Options) { c.ExcludeFromLoadBalancers = decision.ExcludeAll }},
		{flag: "exclude-from-load-balancers", text: "0", set: func(c *Options) { c.ExcludeFromLoadBalancers = decision.ExcludeNone }},
		{flag: "exclude-from-load-balancers", text: "Auto", set: func(*Options) {}, unchanged: true},
		{flag: "node-termination-grace-period", text: "600", set: func(c *Options) { c.NodeGracePeriod = 10 * time.Minute }},
		{flag: "max-unready-nodes", text: "12", set: func(c *Options) { c.MaxUnready = intstr.FromInt(12) }},
		{flag: "max-unready-nodes", text: "07%", set: func(c *Options) { c.MaxUnready = intstr.FromString("7%") }},
		{flag: "delete-local-data", text: "false", set: func(c *Options) { c.DeleteLocalData = false }},
		{flag: "ignore-daemon-sets", text: "false", set: func(c *Options) { c.IgnoreDaemonSets = false }},
		{flag: "pod-termination-grace-period", text: "30", set: func(c *Options) { c.PodGracePeriod = 30 * time.Second }},
		{flag: "pod-termination-grace-period", text: "-7", set: func(*Options) {}},
		{flag: "drain-by-karpenter", text: "true", set: func(c *Options) { c.DrainByKarpenter = true }},
		{flag: "surge-singletons", text: "true", set: func(c *Options) { c.SurgeSingletons = true }},
		{flag: "heartbeat-interval", text: "30", set: func(c *Options) { c.HeartbeatInterval, c.HeartbeatUntil = 30*time.Second, 48*time.Hour }},
		{flag: "heartbeat-interval", text: "-1", set: func(*Options) {}, unchanged: true},
		{flag: "heartbeat-until", text: "-1", set: func(*Options) {}, unchanged: true},
		{flag: "complete-lifecycle-action-delay-seconds", text: "15", set: func(c *Options) { c.CompletionDelay = 15 * time.Second }},
		{flag: "status-interval", text: "30", set: func(c *Options) { c.StatusInterval = 30 * time.Second }},
		{flag: "status-interval", text: "-1", set: func(c *Options) { c.StatusInterval = 0 }},
		{flag: "drain-impaired-instances", text: "true", set: func(c *Options) { c.DrainImpaired = true }},
		{flag: "sweep-interval", text: "60", set: func(c *Options) { c.SweepInterval = time.Minute }},
		{flag: "sweep-interval", text: "-1", set: func(c *Options) { c.SweepInterval = 0 }},
		{flag: "lifecycle-hook-names", text: "drain, team/drain_2", set: func(c *Options) { c.HookNames = []string{"drain", "team/drain_2"} }},
		{flag: "lifecycle-hook-names", text: "drain,drain", set: func(c *Options) { c.HookNames = []string{"drain"} }},
		{flag: "startup-taints", text: "example.com/gpu, cilium", set: func(c *Options) { c.StartupTaints = []string{"example.com/gpu", "cilium"} }},
		{flag: "kubeconfig", text: "/a:/b", set: func(c *Options) { c.Kubeconfig = "/a:/b" }},
		{flag: "leader-elect", text: "false", set: func(c *Options) { c.LeaderElect = false }},
		{flag: "leader-elect-resource-name", text: "other", set: func(c *Options) { c.LeaseName = "other" }},
		{flag: "kube-api-qps", text: "2.5", set: func(c *Options) { c.KubeQPS = 2.5 }},
		{flag: "kube-api-qps", text: "-3", set: func(c *Options) { c.KubeQPS = -1 }},
		{flag: "kube-api-burst", text: "7", set: func(c *Options) { c.KubeBurst = 7 }},
		{flag: "kube-api-burst", text: "-3", set: func(c *Options) { c.KubeQPS, c.KubeBurst = -1, -1 }},
		{flag: "policy-file", text: "/policy/policy.yaml", set: func(c *Options) { c.PolicyFile = "/policy/policy.yaml" }},
		{flag: "node-name", text: "ip-10-0-0-1.ec2.internal", set: func(c *Options) { c.NodeName = "ip-10-0-0-1.ec2.internal" }},
		{flag: "pod-name", text: "handler-0", set: func(c *Options) { c.PodName = "handler-0" }},
		{flag: "pod-namespace", text: "kube-system", set: func(c *Options) { c.PodNamespace = "kube-system" }},
		{flag: "kubernetes-service-host", text: "fd00::1", set: func(c *Options) { c.KubernetesServiceHost = "fd00::1" }},
		{flag: "kubernetes-service-port", text: "6443", set: func(c *Options) { c.KubernetesServicePort = "6443" }},
		{flag: "log-level", text: "WARN", set: func(c *Options) { c.LogLevel = "warn" }},
		{flag: "json-logging", text: "true", set: func(c *Options) { c.JSONLogging = true }},
		{flag: "enable-prometheus-server", text: "false", set: func(c *Options) { c.PrometheusServer = false }},
		{flag: "prometheus-server-port", text: "0", set: func(c *Options) { c.PrometheusPort = 0 }},
		{flag: "bind-address", text: "10.0.0.1, fd00::1,10.0.0.1", set: func(c *Options) {
			c.BindAddresses = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
		}},
		{flag: "bind-address", text: "127.0.0.1,::1", set: func(c *Options) {
			c.BindAddresses = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}
			c.Warnings = []string{"bind-address has only loopback addresses: a kubelet, which asks the pod's address, gets no answer to its probes"}
		}},
		{flag: "allowed-hosts", text: "nth.example.com, Api.Example.com", set: func(c *Options) { c.AllowedHosts = []string{"nth.example.com", "api.example.com"} }},
		{flag: "allowed-hosts", text: "*", set: func(c *Options) { c.AllowedHosts = []string{"*"} }},
		{flag: "status-page", text: "false", set: func(c *Options) { c.StatusPage = false }},
		{flag: "enable-probes-server", text: "false", set: func(c *Options) { c.ProbesServer = false }},
		{flag: "probes-server-port", text: "65535", set: func(c *Options) { c.ProbesPort = 65535 }},
		{flag: "probes-server-endpoint", text: "/live/now", set: func(c *Options) { c.ProbesPath = "/live/now" }},
		{flag: "node-conditions", text: "false", set: func(c *Options) { c.NodeConditions = false }},
		{flag: "emit-kubernetes-events", text: "false", set: func(c *Options) { c.EmitEvents = false }},
		{flag: "kubernetes-events-extra-annotations", text: "example.com/Team=a=b, stage=", set: func(c *Options) {
			c.EventAnnotations = map[string]string{"example.com/Team": "a=b", "stage": ""}
		}},
		{flag: "webhook-url", text: "https://hooks.example.com/hush?a=b", set: func(c *Options) { c.WebhookURL = "https://hooks.example.com/hush?a=b" }},
		{flag: "webhook-proxy", text: "tcp://10.0.0.1:3128", set: func(c *Options) { c.WebhookProxy = &url.URL{Scheme: "http", Host: "10.0.0.1:3128"} }},
		{flag: "webhook-phases", text: "drained, Missed", set: func(c *Options) { c.WebhookPhases = []webhook.Phase{webhook.PhaseDrained, webhook.PhaseMissed} }},
		{flag: "webhook-headers", text: `{"Authorization":"Bearer hush"}`, set: func(c *Options) { c.WebhookHeaders = map[string]string{"Authorization": "Bearer hush"} }},
		{flag: "webhook-template", text: `{"text":"{{ .Kind }}"}`, set: func(c *Options) { c.WebhookTemplate = `{"text":"{{ .Kind }}"}` }},
		{flag: "webhook-template-file", text: "/templates/body", set: func(c *Options) { c.WebhookTemplateFile = "/templates/body" }},
	} {
		t.Run(tt.flag+"="+tt.text, func(t *testing.T) {
			o := row(t, tt.flag)
			want := defaults()
			tt.set(want)
			if !tt.unchanged {
				want.Changed[tt.flag] = tt.text
				if o.Secret {
					want.Changed[tt.flag] = "(secret)"
				}
			}
			byFlag, err := parse([]string{"--queue-url=" + testQueue, "--" + tt.flag + "=" + tt.text}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(want, byFlag); diff != "" {
				t.Errorf("by its flag (-want +got):\n%s", diff)
			}
			byVariable, err := parse(nil, []string{"QUEUE_URL=" + testQueue, o.Env + "=" + tt.text})
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(want, byVariable); diff != "" {
				t.Errorf("by its variable (-want +got):\n%s", diff)
			}
		})
	}
}

func row(t *testing.T, flag string) Option {
	t.Helper()
	for _, o := range Table() {
		if o.Flag == flag {
			return o
		}
	}
	t.Fatalf("no option %s", flag)
	return Option{}
}

func TestMistakesAreToldWithTheirOptionTheirSourceAndWhatIsAllowed(t *testing.T) {
	documented := startEntries(t)
	for _, tt := range []struct {
		name          string
		args, environ []string
		want          []string
	}{
		{"no queue", []string{"--queue-url="}, nil, []string{
			"queue-url: is required: give --queue-url or QUEUE_URL; allowed: https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits; or none",
		}},
		{"a queue's name", nil, []string{"QUEUE_URL=workers"}, []string{
			`queue-url: "workers" (from QUEUE_URL) does not start with http:// or https://; allowed: https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits; or none`,
		}},
		{"the IMDS mode without a node", nil, []string{"ENABLE_SQS_TERMINATION_DRAINING=false"}, []string{
			"node-name: is required in IMDS mode: give --node-name or NODE_NAME, from the downward API",
		}},
		{"the IMDS mode without a kind of notice", []string{"--enable-spot-interruption-draining=false", "--enable-scheduled-event-draining=false", "--enable-asg-lifecycle-draining=false"}, []string{"ENABLE_SQS_TERMINATION_DRAINING=false", "NODE_NAME=a"}, []string{
			"enable-spot-interruption-draining: is off, as are all other kinds of notice: nothing would be read",
		}},
		{"no address of the metadata", []string{"--metadata-url="}, []string{"QUEUE_URL=" + testQueue}, []string{
			`metadata-url: "" (from --metadata-url) is empty; allowed: an http or https URL`,
		}},
		{
			"several at once",
			[]string{"--queue-url=" + testQueue, "--dry-run=maybe", "--workers=-1", "--sqs-msg-visibility-timeout-sec=120", "--node-termination-grace-period=-1", "--log-level="},
			[]string{"HEARTBEAT_INTERVAL=29", "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS=1m", "KUBE_API_QPS=0", "KUBE_API_BURST=0", "TAINT_EFFECT=Nothing", "PROBES_SERVER_ENDPOINT=healthz", "KUBERNETES_SERVICE_PORT=https", "POD_NAMESPACE=unused", "NAMESPACE=A B", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS=a", "WEBHOOK_PHASES=received,late"},
			[]string{
				`sqs-msg-visibility-timeout-sec: "120" (from --sqs-msg-visibility-timeout-sec) is out of range; allowed: 1 to 119`,
				`workers: "-1" (from --workers) is out of range; allowed: 0 to 10000`,
				`dry-run: "maybe" (from --dry-run) is neither true nor false; allowed: true or false`,
				`taint-effect: "Nothing" (from TAINT_EFFECT) is none of them; allowed: NoSchedule, PreferNoSchedule, NoExecute`,
				`node-termination-grace-period: "-1" (from --node-termination-grace-period) is out of range; allowed: 1 to 604800`,
				`heartbeat-interval: "29" (from HEARTBEAT_INTERVAL) is out of range; allowed: 30 to 3600, or negative`,
				`complete-lifecycle-action-delay-seconds: "1m" (from COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS) is not a whole number; allowed: 0 to 172800, or negative`,
				`kube-api-qps: "0" (from KUBE_API_QPS) is out of range; allowed: above 0 to 100000, or negative`,
				`kube-api-burst: "0" (from KUBE_API_BURST) is out of range; allowed: 1 to 100000, or negative`,
				`pod-namespace: "A B" (from NAMESPACE) is not valid; allowed: the name of a namespace`,
				`kubernetes-service-port: "https" (from KUBERNETES_SERVICE_PORT) is not a whole number; allowed: 1 to 65535`,
				`log-level: "" (from --log-level) is none of them; allowed: debug, info, warn, error`,
				`probes-server-endpoint: "healthz" (from PROBES_SERVER_ENDPOINT) is not a path; allowed: a path, such as /healthz`,
				`kubernetes-events-extra-annotations: "a" (from KUBERNETES_EVENTS_EXTRA_ANNOTATIONS) has "a", which is not key=value; allowed: key=value,key=value`,
				`webhook-phases: "received,late" (from WEBHOOK_PHASES) has "late", which is none of them; allowed: some of received,drained,missed,gone,unconfirmed`,
			},
		},
		{"an address that is a name", nil, []string{"QUEUE_URL=" + testQueue, "BIND_ADDRESS=10.0.0.1,localhost"}, []string{
			`bind-address: "10.0.0.1,localhost" (from BIND_ADDRESS) has "localhost", which is not an IP address; allowed: IP addresses, separated by commas`,
		}},
		{"several mistakes in each of several lists", []string{"--webhook-phases="}, []string{"QUEUE_URL=" + testQueue, "BIND_ADDRESS=a,10.0.0.1,b", "STARTUP_TAINTS=a b,c d"}, []string{
			`startup-taints: "a b,c d" (from STARTUP_TAINTS) has "a b", "c d", which are not keys of taints; allowed: keys of taints, separated by commas`,
			`bind-address: "a,10.0.0.1,b" (from BIND_ADDRESS) has "a", "b", which are not IP addresses; allowed: IP addresses, separated by commas`,
			`webhook-phases: "" (from --webhook-phases) is empty; allowed: some of received,drained,missed,gone,unconfirmed`,
		}},
		{"an address with its port", nil, []string{"QUEUE_URL=" + testQueue, "BIND_ADDRESS=:9092"}, []string{
			`bind-address: ":9092" (from BIND_ADDRESS) has ":9092", which is not an IP address; allowed: IP addresses, separated by commas`,
		}},
		{"a host with its port", nil, []string{"QUEUE_URL=" + testQueue, "ALLOWED_HOSTS=nth.example.com:443"}, []string{
			`allowed-hosts: "nth.example.com:443" (from ALLOWED_HOSTS) has "nth.example.com:443", which is not the name of a host; allowed: names of hosts without ports, separated by commas, or *`,
		}},
		{"hosts by a pattern", nil, []string{"QUEUE_URL=" + testQueue, "ALLOWED_HOSTS=*.example.com"}, []string{
			`allowed-hosts: "*.example.com" (from ALLOWED_HOSTS) has "*.example.com", which is not the name of a host; allowed: names of hosts without ports, separated by commas, or *`,
		}},
		{"an older name", nil, []string{"QUEUE_URL=" + testQueue, "GRACE_PERIOD=soon"}, []string{
			`pod-termination-grace-period: "soon" (from GRACE_PERIOD) is not a whole number; allowed: 0 to 604800, or negative`,
		}},
		{"heartbeats until, without an interval", nil, []string{"QUEUE_URL=" + testQueue, "HEARTBEAT_UNTIL=7200"}, []string{
			`heartbeat-until: "7200" (from HEARTBEAT_UNTIL) needs heartbeat-interval, which is off`,
		}},
		{"heartbeats that end before the first of them", nil, []string{"QUEUE_URL=" + testQueue, "HEARTBEAT_INTERVAL=300", "HEARTBEAT_UNTIL=100"}, []string{
			`heartbeat-interval: "300" (from HEARTBEAT_INTERVAL) is longer than heartbeat-until, "100": heartbeats would end before the first`,
		}},
		{"heartbeats until, with an interval that is wrong", nil, []string{"QUEUE_URL=" + testQueue, "HEARTBEAT_INTERVAL=no", "HEARTBEAT_UNTIL=7200"}, []string{
			`heartbeat-interval: "no" (from HEARTBEAT_INTERVAL) is not a whole number; allowed: 30 to 3600, or negative`,
		}},
		{"no region", nil, []string{"QUEUE_URL=http://127.0.0.1:9324/123456789012/workers"}, []string{
			`aws-region: is required: the host of queue-url, "http://127.0.0.1:9324", names no region; give --aws-region or AWS_REGION`,
		}},
		{"another region", nil, []string{"QUEUE_URL=" + testQueue, "AWS_REGION=eu-west-1"}, []string{
			`aws-region: "eu-west-1" (from AWS_REGION) is not the region of queue-url, "us-east-1"`,
		}},
		{"no region by name", nil, []string{"QUEUE_URL=http://127.0.0.1:9324/123456789012/workers", "AWS_REGION=Europe"}, []string{
			`aws-region: "Europe" (from AWS_REGION) is not a region; allowed: a region, such as us-east-1`,
		}},
		{"a bound of unready nodes", nil, []string{"QUEUE_URL=" + testQueue, "MAX_UNREADY_NODES=0"}, []string{
			`max-unready-nodes: "0" (from MAX_UNREADY_NODES) is out of range; allowed: 1 to 100000, or 1% to 100%`,
		}},
		{"a bound of unready nodes that is more than all", nil, []string{"QUEUE_URL=" + testQueue, "MAX_UNREADY_NODES=101%"}, []string{
			`max-unready-nodes: "101%" (from MAX_UNREADY_NODES) is out of range; allowed: 1 to 100000, or 1% to 100%`,
		}},
		{"a bound of unready nodes that is no number", nil, []string{"QUEUE_URL=" + testQueue, "MAX_UNREADY_NODES=few%"}, []string{
			`max-unready-nodes: "few%" (from MAX_UNREADY_NODES) is not a percentage; allowed: 1 to 100000, or 1% to 100%`,
		}},
		{"hooks by pattern", nil, []string{"QUEUE_URL=" + testQueue, "LIFECYCLE_HOOK_NAMES=drain,team-*"}, []string{
			`lifecycle-hook-names: "drain,team-*" (from LIFECYCLE_HOOK_NAMES) has "team-*", which is not the name of a lifecycle hook; allowed: names of hooks, separated by commas`,
		}},
		{"all accounts", nil, []string{"QUEUE_URL=" + testQueue, "EVENT_ACCOUNTS=any"}, []string{
			`event-accounts: "any" (from EVENT_ACCOUNTS) has "any", which is not the id of an account; allowed: ids of 12 digits, separated by commas`,
		}},
		{"several accounts that are none", []string{"--event-accounts=123456789012,*,1234-5678-9012,,12345678901a,1234567890123"}, []string{"QUEUE_URL=" + testQueue}, []string{
			`event-accounts: "123456789012,*,1234-5678-9012,,12345678901a,1234567890123" (from --event-accounts) has "*", "1234-5678-9012", "", "12345678901a", "1234567890123", which are not ids of accounts; allowed: ids of 12 digits, separated by commas`,
		}},
		{"a password where none belongs", nil, []string{"QUEUE_URL=https://user:hush@sqs.us-east-1.amazonaws.com/123456789012/q", "AWS_ENDPOINT=ftp://:hush@%zz"}, []string{
			`queue-url: "https://(secret)@sqs.us-east-1.amazonaws.com/123456789012/q" (from QUEUE_URL) holds a user name or password; allowed: ` + queueURLForm,
			`aws-endpoint: "ftp://(secret)@%zz" (from AWS_ENDPOINT) is not a URL; allowed: an http or https URL`,
		}},
		{"no tag", []string{"--managed-tag="}, []string{"QUEUE_URL=" + testQueue}, []string{
			"managed-tag: is empty, and check-tag-before-draining is on: give the key of the tag",
		}},
		{"one port twice", nil, []string{"QUEUE_URL=" + testQueue, "PROBES_SERVER_PORT=9092"}, []string{
			"probes-server-port: 9092 (from PROBES_SERVER_PORT) is the port of prometheus-server-port as well (from default)",
		}},
		{"FIPS with an endpoint", nil, []string{"QUEUE_URL=" + testQueue, "AWS_USE_FIPS_ENDPOINT=true", "AWS_ENDPOINT=http://127.0.0.1:4566"}, []string{
			"AWS_USE_FIPS_ENDPOINT: cannot be true when aws-endpoint names an endpoint of its own: unset one of them",
		}},
		{"FIPS with an endpoint of the SDK's", nil, []string{"QUEUE_URL=" + testQueue, "AWS_USE_FIPS_ENDPOINT=true", "AWS_ENDPOINT_URL_SQS=http://127.0.0.1:4566"}, []string{
			"AWS_USE_FIPS_ENDPOINT: cannot be true when AWS_ENDPOINT_URL_SQS names an endpoint of its own: unset one of them",
		}},
		{"FIPS and dual-stack with a queue elsewhere", nil, []string{"QUEUE_URL=http://127.0.0.1:9324/123456789012/workers", "AWS_REGION=us-east-1", "AWS_USE_FIPS_ENDPOINT=TRUE", "AWS_USE_DUALSTACK_ENDPOINT=true"}, []string{
			"AWS_USE_FIPS_ENDPOINT: cannot be true when queue-url names an endpoint of its own: unset one of them",
			"AWS_USE_DUALSTACK_ENDPOINT: cannot be true when queue-url names an endpoint of its own: unset one of them",
		}},
		{"templates that cannot be parsed, or name what there is not", []string{"--webhook-template={{ .Kind }"}, []string{"QUEUE_URL=" + testQueue}, []string{
			`webhook-template: "{{ .Kind }" (from --webhook-template) does not work: template: webhook:1: unexpected "}" in operand; allowed: a Go template`,
		}},
		{"secrets are not repeated", nil, []string{"QUEUE_URL=" + testQueue, "WEBHOOK_URL=hush", "WEBHOOK_PROXY=ftp://me:hush@proxy", `WEBHOOK_HEADERS={"Authorization":7}`}, []string{
			"webhook-url: (secret, 4 characters) (from WEBHOOK_URL) does not start with http:// or https://; allowed: an http or https URL",
			"webhook-proxy: (secret, 19 characters) (from WEBHOOK_PROXY) has no scheme that a proxy can have; allowed: an http, https, socks5 or socks5h URL",
			`webhook-headers: (secret, 19 characters) (from WEBHOOK_HEADERS) has a header "Authorization" that is not a string; allowed: a JSON object of strings, such as {"Content-type":"application/json"}`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.args, tt.environ)
			var wrong Problems
			if !errors.As(err, &wrong) {
				t.Fatalf("error %v, want mistakes", err)
			}
			var got []string
			for _, m := range wrong {
				got = append(got, m.Error())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			for _, line := range got {
				if !documented.MatchString(line) {
					t.Errorf("docs/troubleshooting.md has no entry for %s", line)
				}
			}
		})
	}
}

func TestHeadersOfTheWebhookAreChecked(t *testing.T) {
	for _, tt := range []struct{ text, why string }{
		{`[]`, "is not a JSON object"},
		{`{"a":"b"`, "is not a JSON object"},
		{`{"a":null}`, `has a header "a" that is not a string`},
		{`{"X-Token":"a","X-Token":"b"}`, "has a header twice"},
		{`{"X-Token":"a","x-token":"b"}`, `has "X-Token" and "x-token", which are one header`},
		{`{"a b":"c"}`, `has "a b", which is not the name of a header`},
		{`{"a":"b\nc: d"}`, `has a header "a" whose value no header can have`},
	} {
		if _, err := parseHeaders(tt.text); err == nil || err.Error() != tt.why {
			t.Errorf("parseHeaders(%s): %v, want %q", tt.text, err, tt.why)
		}
	}
}

func TestWarningsTellOfWhatDoesNothing(t *testing.T) {
	for _, tt := range []struct {
		name          string
		args, environ []string
		set           func(*Options)
		want          []string
	}{
		{
			"options of the IMDS mode",
			[]string{"--metadata-tries=many"},
			[]string{"ENABLE_SPOT_INTERRUPTION_DRAINING=false", "USE_APISERVER_CACHE=true", "ENABLE_REBALANCE_DRAINING=true"},
			func(*Options) {},
			[]string{
				"USE_APISERVER_CACHE has no effect: nodes are watched",
				"--metadata-tries has no effect: the metadata is read every two seconds, and what fails is tried again",
				"ENABLE_SPOT_INTERRUPTION_DRAINING, ENABLE_REBALANCE_DRAINING have no effect: this handler runs in queue mode",
			},
		},
		{
			"an older name", nil,
			[]string{"CHECK_ASG_TAG_BEFORE_DRAINING=false"},
			func(c *Options) { c.CheckTag = false },
			[]string{"CHECK_ASG_TAG_BEFORE_DRAINING is an older name: use --check-tag-before-draining or CHECK_TAG_BEFORE_DRAINING"},
		},
		{
			"an older name and the newer",
			[]string{"--grace-period=5"},
			[]string{"POD_TERMINATION_GRACE_PERIOD=6"},
			func(c *Options) { c.PodGracePeriod = 6 * time.Second },
			[]string{"--grace-period is ignored: it is an older name of pod-termination-grace-period, which is set by POD_TERMINATION_GRACE_PERIOD"},
		},
		{
			"no grace at all", nil,
			[]string{"POD_TERMINATION_GRACE_PERIOD=0"},
			func(c *Options) { c.PodGracePeriod = time.Second },
			[]string{"pod-termination-grace-period 0 counts as 1: with 0 the API server forgets a pod whose containers still run"},
		},
		{
			"impaired instances of which nobody asks",
			[]string{"--drain-impaired-instances", "--status-interval=-1"},
			nil,
			func(c *Options) { c.DrainImpaired, c.StatusInterval = true, 0 },
			[]string{"drain-impaired-instances does nothing: status-interval is off"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(append(tt.args, "--queue-url="+testQueue), tt.environ)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			tt.set(want)
			want.Warnings = tt.want
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(QueueURL{}), cmpopts.IgnoreFields(Options{}, "Changed")); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSQSIsWhereTheQueueIsUnlessAnEndpointIsNamed(t *testing.T) {
	const simulator = "http://127.0.0.1:9324"
	for _, tt := range []struct {
		name    string
		environ []string
		want    string
	}{
		{"AWS", []string{"QUEUE_URL=" + testQueue}, ""},
		{"a simulator", []string{"QUEUE_URL=" + simulator + "/123456789012/workers"}, simulator},
		{"aws-endpoint", []string{"QUEUE_URL=" + simulator + "/123456789012/workers", "AWS_ENDPOINT=http://127.0.0.1:1"}, "http://127.0.0.1:1"},
		{"aws-endpoint before the SDK's", []string{"QUEUE_URL=" + testQueue, "AWS_ENDPOINT=http://127.0.0.1:1", "AWS_ENDPOINT_URL=http://127.0.0.1:2"}, "http://127.0.0.1:1"},
		{"the SDK's, which it reads itself", []string{"QUEUE_URL=" + simulator + "/123456789012/workers", "AWS_ENDPOINT_URL_SQS=http://127.0.0.1:2"}, ""},
		{"the SDK's, when told not to read it", []string{"QUEUE_URL=" + simulator + "/123456789012/workers", "AWS_ENDPOINT_URL=http://127.0.0.1:2", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true"}, simulator},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parse(nil, append(tt.environ, "AWS_REGION=us-east-1"))
			if err != nil {
				t.Fatal(err)
			}
			if got.SQSEndpoint != tt.want {
				t.Errorf("sqsEndpoint = %q, want %q", got.SQSEndpoint, tt.want)
			}
		})
	}
}

func TestInstancesAreOfTheAccountWhoseNoticesAreActedOnIfThatIsOne(t *testing.T) {
	for given, want := range map[string]string{
		"":                            "123456789012", // the queue's
		"210987654321":                "210987654321",
		"210987654321,210987654321":   "210987654321",
		"210987654321,123456789012":   "",
		" 123456789012 ,123456789012": "123456789012",
	} {
		c, err := parse(nil, []string{"QUEUE_URL=" + testQueue, "EVENT_ACCOUNTS=" + given})
		if err != nil {
			t.Errorf("%q: %v", given, err)
		} else if got := c.InstanceAccount(); got != want {
			t.Errorf("%q: instances are of account %q, want %q", given, got, want)
		}
	}
}

func TestTableIsSound(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range Table() {
		if o.Default != "" {
			if err := o.value.set(o.Default); err != nil {
				t.Errorf("%s: its default %q %v", o.Flag, o.Default, err)
			}
		}
		if o.NoEffect == "" && (o.value.allowed == "" || !strings.HasSuffix(o.Help, ".")) {
			t.Errorf("%s: lacks what is allowed, or a sentence about it", o.Flag)
		}
		if !slices.Contains(groups, o.Group) || (o.NoEffect != "") != (o.Group == groupNoEffect) {
			t.Errorf("%s: is in the group %q", o.Flag, o.Group)
		}
		for _, n := range append([]Names{o.Names}, o.Older...) {
			for _, name := range []string{"--" + n.Flag, n.Env} {
				if seen[name] {
					t.Errorf("%s: %s is taken", o.Flag, name)
				}
				seen[name] = true
			}
			if env := strings.ToUpper(strings.ReplaceAll(n.Flag, "-", "_")); env != n.Env &&
				!slices.Contains([]string{"NAMESPACE", "INSTANCE_METADATA_URL"}, n.Env) {
				t.Errorf("%s: its variable is %s, want %s", n.Flag, n.Env, env)
			}
		}
	}
}

func TestEveryNameOfNTHIsKept(t *testing.T) {
	f, err := os.Open("testdata/nth-names.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type row struct{ flag, env, helm string }
	have := make(map[row]bool) // with every column also left out
	for _, o := range Table() {
		for _, n := range append([]Names{o.Names}, o.Older...) {
			for helm := range strings.SplitSeq(n.Helm, ", ") {
				for _, r := range []row{{n.Flag, n.Env, helm}, {n.Flag, "-", helm}, {n.Flag, n.Env, "-"}, {"-", "-", helm}} {
					have[r] = true
				}
			}
		}
	}
	for _, o := range chartOptions() {
		have[row{"-", "-", o.Helm}] = true
	}
	for _, v := range chartValues() {
		have[row{"-", "-", v.path}] = true
	}
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r row
		if _, err := fmt.Sscan(lines.Text(), &r.flag, &r.env, &r.helm); err != nil || r.flag == "#" {
			continue
		}
		rows++
		if !have[r] {
			t.Errorf("not in the table: %v", r)
		}
	}
	if rows < 60 {
		t.Errorf("%d rows in the file", rows)
	}
}

// FuzzConfig: whatever is given, every mistake is told by its option's name, no
// secret is told at all, and what is accepted is in range.
func FuzzConfig(f *testing.F) {
	f.Add("", "", "")
	f.Add("--queue-url="+testQueue, "WORKERS=25\nGRACE_PERIOD=5\nHEARTBEAT_INTERVAL=60", "https://hooks.example.com/")
	f.Add("-dry-run\nfalse\n-workers\n-5\n--\nx", "QUEUE_URL=https://vpce-1.sqs.us-east-1.vpce.amazonaws.com/123456789012/q.fifo", "http://user:")
	f.Add("--webhook-url=http://a\n--webhook-headers={\"a\":7}", "QUEUE_URL="+testQueue+"\nAWS_USE_FIPS_ENDPOINT=true", "%zz")
	f.Add("--kube-api-qps=NaN\n--kube-api-burst=-9\n-kubernetes-events-extra-annotations=a=b,", "WEBHOOK_PROXY=tcp://a:1\nKUBE_API_QPS=-Inf", "a\x00b")
	f.Add("--max-unready-nodes=10%\n--lifecycle-hook-names=a,b", "QUEUE_URL="+testQueue+"\nMAX_UNREADY_NODES=+3", "ftp://")
	const secret = "c0a1f8e2-hush"
	f.Fuzz(func(t *testing.T, args, environ, before string) {
		if strings.Contains(args+environ, "hush") {
			return // given where it is no secret
		}
		header, err := json.Marshal(map[string]string{"X-Token": before + secret})
		if err != nil {
			t.Fatal(err)
		}
		c, err := parse(strings.Split(args, "\n"), append(strings.Split(environ, "\n"),
			"WEBHOOK_URL="+before+secret, "WEBHOOK_PROXY="+before+secret, "WEBHOOK_HEADERS="+string(header), "AWS_SECRET_ACCESS_KEY="+secret))
		told := fmt.Sprint(err)
		if c != nil {
			told += fmt.Sprint(c.Warnings, c.Changed)
		}
		if strings.Contains(told, "hush") {
			t.Errorf("a secret is told: %s", told)
		}
		if err != nil {
			if wrong, ok := errors.AsType[Problems](err); ok {
				for _, m := range wrong {
					if m.Name == "" || m.Text == "" {
						t.Errorf("a mistake without a name or words: %q", m)
					}
				}
			} else if !errors.Is(err, pflag.ErrHelp) {
				t.Errorf("not a mistake: %v", err)
			}
			return
		}
		most, err := intstr.GetScaledValueFromIntOrPercent(&c.MaxUnready, 100, false)
		if err != nil {
			t.Errorf("max-unready-nodes: %v", err)
		}
		for what, right := range map[string]bool{
			"queue":        c.Queue.Text != "" && c.Queue.Name != "" && len(c.Queue.Account) == 12,
			"region":       c.Region != "",
			"accounts":     len(c.EventAccounts) > 0 && !slices.ContainsFunc(c.EventAccounts, func(id string) bool { return len(id) != 12 }),
			"managed tag":  c.ManagedTag != "" || !c.CheckTag,
			"visibility":   c.VisibilityTimeout >= time.Second && c.VisibilityTimeout < 2*time.Minute,
			"workers":      c.Workers >= 0,
			"max unready":  (most > 0) == (c.MaxUnready != intstr.IntOrString{}),
			"taint effect": c.TaintEffect != "",
			"node grace":   c.NodeGracePeriod >= time.Second,
			"pod grace":    c.PodGracePeriod == -1 || c.PodGracePeriod >= time.Second,
			"heartbeats":   (c.HeartbeatInterval == 0) == (c.HeartbeatUntil == 0) && (c.HeartbeatInterval == 0 || c.HeartbeatInterval >= 30*time.Second),
			"delay":        c.CompletionDelay >= 0,
			"polls":        c.StatusInterval == 0 || c.StatusInterval >= 10*time.Second,
			"sweeps":       c.SweepInterval == 0 || c.SweepInterval >= 10*time.Second,
			"hook names":   !slices.Contains(c.HookNames, ""),
			"taint keys":   !slices.Contains(c.StartupTaints, ""),
			"rate":         c.KubeQPS == -1 || c.KubeQPS > 0 && c.KubeBurst > 0,
			"probes path":  strings.HasPrefix(c.ProbesPath, "/"),
			"ports":        min(c.PrometheusPort, c.ProbesPort) >= 0 && max(c.PrometheusPort, c.ProbesPort) < 1<<16,
		} {
			if !right {
				t.Errorf("%s: out of range in %+v", what, c)
			}
		}
	})
}

// startEntries match what docs/troubleshooting.md has an entry for.
func startEntries(t *testing.T) *regexp.Regexp {
	t.Helper()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## It does not start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all []string
	for line := range strings.Lines(section) {
		if says, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | "); isRow {
			for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(says, -1) {
				all = append(all, strings.ReplaceAll(regexp.QuoteMeta(span[1]), "…", ".*"))
			}
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d entries in docs/troubleshooting.md", len(all))
	}
	return regexp.MustCompile("^(?:" + strings.Join(all, "|") + ")")
}

// A leader without a queue goes by the options of both modes, and asks AWS nothing.
func TestWithoutAQueueAWSIsNotAsked(t *testing.T) {
	want := defaults()
	want.Queue, want.Region, want.EventAccounts = QueueURL{Text: "none"}, "", nil
	want.CheckTag, want.StatusInterval, want.SweepInterval = false, 0, 0
	want.Changed = map[string]string{"queue-url": "none"}
	got, err := parse(nil, []string{"QUEUE_URL=none"})
	if diff := diff(want, got); err != nil || diff != "" || !got.Queue.None() || defaults().Queue.None() {
		t.Errorf("%v, options (-want +got):\n%s", err, diff)
	}
	got, err = parse(nil, []string{"QUEUE_URL=none", "WORKERS=3", "MAX_UNREADY_NODES=1", "ENABLE_REBALANCE_DRAINING=true"})
	if err != nil || got.Workers != 3 || got.MaxUnready.IntValue() != 1 || !got.RebalanceDraining || len(got.Warnings) > 0 {
		t.Errorf("%v, %+v", err, got)
	}
	got, err = parse([]string{"--check-tag-before-draining"}, []string{"QUEUE_URL=none", "STATUS_INTERVAL=50", "DRAIN_IMPAIRED_INSTANCES=true"})
	warned := []string{"--check-tag-before-draining, STATUS_INTERVAL, DRAIN_IMPAIRED_INSTANCES have no effect: this handler has no queue"}
	if diff := cmp.Diff(warned, got.Warnings); err != nil || diff != "" || got.CheckTag || got.StatusInterval != 0 || got.DrainImpaired {
		t.Errorf("%v, %+v, warnings (-want +got):\n%s", err, got, diff)
	}
	got, err = parse([]string{"--heartbeat-interval=60"}, []string{"QUEUE_URL=none"})
	warned = []string{"--heartbeat-interval has no effect: this handler has neither a queue nor sweep-interval"}
	if diff := cmp.Diff(warned, got.Warnings); err != nil || diff != "" {
		t.Errorf("%v, warnings (-want +got):\n%s", err, diff)
	}
	if got, err = parse([]string{"--sweep-interval=60"}, []string{"QUEUE_URL=none"}); err != nil || got.SweepInterval != time.Minute {
		t.Errorf("tools need no region: %v, %+v", err, got)
	}
	got, err = parse([]string{"--sweep-interval=60"}, []string{"QUEUE_URL=none", "AWS_REGION=us-east-1", "HEARTBEAT_INTERVAL=60"})
	if err != nil || len(got.Warnings) > 0 || got.SweepInterval != time.Minute || got.HeartbeatInterval != time.Minute || got.HeartbeatUntil != 48*time.Hour {
		t.Errorf("%v, %+v", err, got)
	}
	got, err = parse(nil, []string{"QUEUE_URL=none", "HEARTBEAT_INTERVAL=60"})
	if err != nil || len(got.Warnings) != 1 || got.HeartbeatInterval != 0 {
		t.Errorf("%v, %+v", err, got)
	}
	if _, err := parse([]string{"--leader-elect=false"}, []string{"QUEUE_URL=none"}); err == nil || !strings.Contains(err.Error(), "leader-elect: cannot be false with queue-url none") {
		t.Errorf("%v", err)
	}
}

// A values file of the queue mode still works when the mode is changed.
func TestTheIMDSModeNeedsANodeAndNoQueue(t *testing.T) {
	base := []string{"ENABLE_SQS_TERMINATION_DRAINING=false", "NODE_NAME=node-1"}
	want := defaults()
	want.IMDS, want.NodeName = true, "node-1"
	want.Queue, want.Region, want.EventAccounts = QueueURL{}, "", nil
	want.Changed = map[string]string{"enable-sqs-termination-draining": "false", "node-name": "node-1"}
	got, err := parse(nil, base)
	if diff := diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, options (-want +got):\n%s", err, diff)
	}

	got, err = parse([]string{"--heartbeat-until=60"}, append(base, "QUEUE_URL="+testQueue, "WORKERS=5", "MAX_UNREADY_NODES=1",
		"ENABLE_OUT_OF_SERVICE_TAINT=true"))
	want.Warnings = []string{"QUEUE_URL, WORKERS, ENABLE_OUT_OF_SERVICE_TAINT, MAX_UNREADY_NODES, --heartbeat-until have no effect: " +
		"this handler runs in IMDS mode"}
	if diff := diff(want, got); err != nil || diff != "" {
		t.Errorf("with options of the queue mode: %v, options (-want +got):\n%s", err, diff)
	}

	got, err = parse(nil, append(base, "INSTANCE_METADATA_URL=http://[fd00:ec2::254]", "ENABLE_SPOT_INTERRUPTION_DRAINING=false",
		"ENABLE_SCHEDULED_EVENT_DRAINING=0", "ENABLE_ASG_LIFECYCLE_DRAINING=true", "ENABLE_REBALANCE_MONITORING=true", "ENABLE_REBALANCE_DRAINING=1"))
	if err != nil || got.MetadataURL != "http://[fd00:ec2::254]" || got.SpotDraining || got.ScheduledDraining ||
		!got.LifecycleDraining || !got.RebalanceMonitoring || !got.RebalanceDraining || len(got.Warnings) > 0 {
		t.Errorf("%v, %+v", err, got)
	}
}
