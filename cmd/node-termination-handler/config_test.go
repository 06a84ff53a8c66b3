package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

const testQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/workers"

// load parses args and environ as the program does.
func load(args, environ []string) (*config, error) {
	var c config
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.register(flags)
	normal, wrong := normalise(flags, args)
	if err := flags.Parse(normal); err != nil {
		return nil, err
	}
	wrong = append(wrong, leftOver(flags.Args())...)
	var more mistakes
	if err := c.load(flags, environ); err != nil && !errors.As(err, &more) {
		return nil, err
	}
	return &c, slices.Concat(wrong, more).err()
}

// defaults is what a queue's URL alone gives.
func defaults() *config {
	return &config{
		queue:             queueURL{text: testQueue, base: "https://sqs.us-east-1.amazonaws.com", form: hostRegional, region: "us-east-1", account: "123456789012", name: "workers"},
		region:            "us-east-1",
		visibilityTimeout: 20 * time.Second,
		checkTag:          true,
		managedTag:        "aws-node-termination-handler/managed",
		taintEffect:       corev1.TaintEffectNoSchedule,
		nodeGracePeriod:   2 * time.Minute,
		deleteLocalData:   true,
		ignoreDaemonSets:  true,
		podGracePeriod:    -1,
		kubeQPS:           500,
		kubeBurst:         1000,
		leaderElect:       true,
		leaseName:         "node-termination-handler",
		logLevel:          zapcore.InfoLevel,
		prometheusServer:  true,
		prometheusPort:    9092,
		probesServer:      true,
		probesPort:        8080,
		probesPath:        "/healthz",
		emitEvents:        true,
		webhookHeaders:    map[string]string{"Content-type": "application/json"},
		webhookPhases:     []telemetry.Phase{telemetry.PhaseReceived},
		webhookTemplate:   telemetry.DefaultTemplate,
		changed:           map[string]string{"queue-url": testQueue},
	}
}

func diff(want, got *config) string {
	return cmp.Diff(want, got, cmp.AllowUnexported(config{}, queueURL{}))
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
			got, err := load(tt.args, tt.environ)
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(defaults(), got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOptionsReachTheirFields(t *testing.T) {
	for _, tt := range []struct {
		flag, text string
		set        func(*config)
		unchanged  bool // the text means the default
	}{
		{flag: "aws-region", text: "us-east-1", set: func(*config) {}},
		{flag: "aws-endpoint", text: "http://127.0.0.1:4566", set: func(c *config) {
			c.awsEndpoint, c.sqsEndpoint = "http://127.0.0.1:4566", "http://127.0.0.1:4566"
		}},
		{flag: "enable-sqs-termination-draining", text: "true", set: func(*config) {}, unchanged: true},
		{flag: "sqs-msg-visibility-timeout-sec", text: "119", set: func(c *config) { c.visibilityTimeout = 119 * time.Second }},
		{flag: "delete-sqs-msg-if-node-not-found", text: "true", set: func(c *config) { c.deleteIfNodeNotFound = true }},
		{flag: "workers", text: "25", set: func(c *config) { c.workers = 25 }},
		{flag: "check-tag-before-draining", text: "false", set: func(c *config) { c.checkTag = false }},
		{flag: "check-tag-before-draining", text: "0", set: func(c *config) { c.checkTag = false }},
		{flag: "managed-tag", text: "team/managed", set: func(c *config) { c.managedTag = "team/managed" }},
		{flag: "cluster-name", text: "blue", set: func(c *config) { c.clusterName = "blue" }},
		{flag: "dry-run", text: "true", set: func(c *config) { c.dryRun = true }},
		{flag: "cordon-only", text: "T", set: func(c *config) { c.cordonOnly = true }},
		{flag: "taint-node", text: "1", set: func(c *config) { c.taintNode = true }},
		{flag: "taint-effect", text: "PreferNoSchedule", set: func(c *config) { c.taintEffect = corev1.TaintEffectPreferNoSchedule }},
		{flag: "taint-effect", text: "noexecute", set: func(c *config) { c.taintEffect = corev1.TaintEffectNoExecute }},
		{flag: "enable-out-of-service-taint", text: "true", set: func(c *config) { c.outOfServiceTaint = true }},
		{flag: "exclude-from-load-balancers", text: "true", set: func(c *config) { c.excludeFromLoadBalancers = true }},
		{flag: "node-termination-grace-period", text: "600", set: func(c *config) { c.nodeGracePeriod = 10 * time.Minute }},
		{flag: "max-unready-nodes", text: "12", set: func(c *config) { c.maxUnready = intstr.FromInt(12) }},
		{flag: "max-unready-nodes", text: "07%", set: func(c *config) { c.maxUnready = intstr.FromString("7%") }},
		{flag: "delete-local-data", text: "false", set: func(c *config) { c.deleteLocalData = false }},
		{flag: "ignore-daemon-sets", text: "false", set: func(c *config) { c.ignoreDaemonSets = false }},
		{flag: "pod-termination-grace-period", text: "30", set: func(c *config) { c.podGracePeriod = 30 * time.Second }},
		{flag: "pod-termination-grace-period", text: "-7", set: func(*config) {}},
		{flag: "heartbeat-interval", text: "30", set: func(c *config) { c.heartbeatInterval, c.heartbeatUntil = 30*time.Second, 48*time.Hour }},
		{flag: "heartbeat-interval", text: "-1", set: func(*config) {}, unchanged: true},
		{flag: "heartbeat-until", text: "-1", set: func(*config) {}, unchanged: true},
		{flag: "complete-lifecycle-action-delay-seconds", text: "15", set: func(c *config) { c.completionDelay = 15 * time.Second }},
		{flag: "lifecycle-hook-names", text: "drain, team/drain_2", set: func(c *config) { c.hookNames = []string{"drain", "team/drain_2"} }},
		{flag: "kubeconfig", text: "/a:/b", set: func(c *config) { c.kubeconfig = "/a:/b" }},
		{flag: "leader-elect", text: "false", set: func(c *config) { c.leaderElect = false }},
		{flag: "leader-elect-resource-name", text: "other", set: func(c *config) { c.leaseName = "other" }},
		{flag: "kube-api-qps", text: "2.5", set: func(c *config) { c.kubeQPS = 2.5 }},
		{flag: "kube-api-qps", text: "-3", set: func(c *config) { c.kubeQPS = -1 }},
		{flag: "kube-api-burst", text: "7", set: func(c *config) { c.kubeBurst = 7 }},
		{flag: "kube-api-burst", text: "-3", set: func(c *config) { c.kubeQPS, c.kubeBurst = -1, -1 }},
		{flag: "node-name", text: "ip-10-0-0-1.ec2.internal", set: func(c *config) { c.nodeName = "ip-10-0-0-1.ec2.internal" }},
		{flag: "pod-name", text: "handler-0", set: func(c *config) { c.podName = "handler-0" }},
		{flag: "pod-namespace", text: "kube-system", set: func(c *config) { c.podNamespace = "kube-system" }},
		{flag: "kubernetes-service-host", text: "fd00::1", set: func(c *config) { c.kubernetesServiceHost = "fd00::1" }},
		{flag: "kubernetes-service-port", text: "6443", set: func(c *config) { c.kubernetesServicePort = "6443" }},
		{flag: "log-level", text: "WARN", set: func(c *config) { c.logLevel = zapcore.WarnLevel }},
		{flag: "json-logging", text: "true", set: func(c *config) { c.jsonLogging = true }},
		{flag: "enable-prometheus-server", text: "false", set: func(c *config) { c.prometheusServer = false }},
		{flag: "prometheus-server-port", text: "0", set: func(c *config) { c.prometheusPort = 0 }},
		{flag: "enable-probes-server", text: "false", set: func(c *config) { c.probesServer = false }},
		{flag: "probes-server-port", text: "65535", set: func(c *config) { c.probesPort = 65535 }},
		{flag: "probes-server-endpoint", text: "/live/now", set: func(c *config) { c.probesPath = "/live/now" }},
		{flag: "emit-kubernetes-events", text: "false", set: func(c *config) { c.emitEvents = false }},
		{flag: "kubernetes-events-extra-annotations", text: "example.com/Team=a=b, stage=", set: func(c *config) {
			c.eventAnnotations = map[string]string{"example.com/Team": "a=b", "stage": ""}
		}},
		{flag: "webhook-url", text: "https://hooks.example.com/hush?a=b", set: func(c *config) { c.webhookURL = "https://hooks.example.com/hush?a=b" }},
		{flag: "webhook-proxy", text: "tcp://10.0.0.1:3128", set: func(c *config) { c.webhookProxy = &url.URL{Scheme: "http", Host: "10.0.0.1:3128"} }},
		{flag: "webhook-phases", text: "drained, Missed", set: func(c *config) { c.webhookPhases = []telemetry.Phase{telemetry.PhaseDrained, telemetry.PhaseMissed} }},
		{flag: "webhook-headers", text: `{"Authorization":"Bearer hush"}`, set: func(c *config) { c.webhookHeaders = map[string]string{"Authorization": "Bearer hush"} }},
		{flag: "webhook-template", text: `{"text":"{{ .Kind }}"}`, set: func(c *config) { c.webhookTemplate = `{"text":"{{ .Kind }}"}` }},
		{flag: "webhook-template-file", text: "/templates/body", set: func(c *config) { c.webhookTemplateFile = "/templates/body" }},
	} {
		t.Run(tt.flag+"="+tt.text, func(t *testing.T) {
			o := row(t, tt.flag)
			want := defaults()
			tt.set(want)
			if !tt.unchanged {
				want.changed[tt.flag] = tt.text
				if o.secret {
					want.changed[tt.flag] = "(secret)"
				}
			}
			byFlag, err := load([]string{"--queue-url=" + testQueue, "--" + tt.flag + "=" + tt.text}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(want, byFlag); diff != "" {
				t.Errorf("by its flag (-want +got):\n%s", diff)
			}
			byVariable, err := load(nil, []string{"QUEUE_URL=" + testQueue, o.env + "=" + tt.text})
			if err != nil {
				t.Fatal(err)
			}
			if diff := diff(want, byVariable); diff != "" {
				t.Errorf("by its variable (-want +got):\n%s", diff)
			}
		})
	}
}

func row(t *testing.T, flag string) option {
	t.Helper()
	for _, o := range new(config).options() {
		if o.flag == flag {
			return o
		}
	}
	t.Fatalf("no option %s", flag)
	return option{}
}

func TestMistakesAreToldWithTheirOptionTheirSourceAndWhatIsAllowed(t *testing.T) {
	documented := startEntries(t)
	for _, tt := range []struct {
		name          string
		args, environ []string
		want          []string
	}{
		{"no queue", []string{"--queue-url="}, nil, []string{
			"queue-url: is required: give --queue-url or QUEUE_URL; allowed: https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits",
		}},
		{"a queue's name", nil, []string{"QUEUE_URL=workers"}, []string{
			`queue-url: "workers" (from QUEUE_URL) does not start with http:// or https://; allowed: https://sqs.REGION.SUFFIX/ACCOUNT/NAME, with an account of 12 digits`,
		}},
		{"a mode that is not there", nil, []string{"QUEUE_URL=" + testQueue, "ENABLE_SQS_TERMINATION_DRAINING=false"}, []string{
			`enable-sqs-termination-draining: "false" (from ENABLE_SQS_TERMINATION_DRAINING) asks for another mode: this handler has the queue mode only; allowed: true`,
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
				`webhook-phases: "received,late" (from WEBHOOK_PHASES) has "late", which is none of them; allowed: some of received,drained,missed`,
			},
		},
		{"an older name", nil, []string{"QUEUE_URL=" + testQueue, "GRACE_PERIOD=soon"}, []string{
			`pod-termination-grace-period: "soon" (from GRACE_PERIOD) is not a whole number; allowed: 0 to 604800, or negative`,
		}},
		{"heartbeats until, without an interval", nil, []string{"QUEUE_URL=" + testQueue, "HEARTBEAT_UNTIL=7200"}, []string{
			`heartbeat-until: "7200" (from HEARTBEAT_UNTIL) needs heartbeat-interval, which is off`,
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
			`webhook-template: "{{ .Kind }" (from --webhook-template) does not work: line 1, column 10: unexpected "}" in operand; allowed: a Go template`,
		}},
		{"secrets are not repeated", nil, []string{"QUEUE_URL=" + testQueue, "WEBHOOK_URL=hush", "WEBHOOK_PROXY=ftp://me:hush@proxy", `WEBHOOK_HEADERS={"Authorization":7}`}, []string{
			"webhook-url: (secret, 4 characters) (from WEBHOOK_URL) does not start with http:// or https://; allowed: an http or https URL",
			"webhook-proxy: (secret, 19 characters) (from WEBHOOK_PROXY) has no scheme that a proxy can have; allowed: an http, https, socks5 or socks5h URL",
			`webhook-headers: (secret, 19 characters) (from WEBHOOK_HEADERS) has a header "Authorization" that is not a string; allowed: a JSON object of strings, such as {"Content-type":"application/json"}`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(tt.args, tt.environ)
			var wrong mistakes
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
		set           func(*config)
		want          []string
	}{
		{
			"the IMDS mode",
			[]string{"--metadata-tries=many"},
			[]string{"ENABLE_SPOT_INTERRUPTION_DRAINING=true", "USE_APISERVER_CACHE=true", "UPTIME_FROM_FILE=/proc/uptime"},
			func(*config) {},
			[]string{
				"USE_APISERVER_CACHE has no effect: nodes are watched",
				"--metadata-tries, UPTIME_FROM_FILE, ENABLE_SPOT_INTERRUPTION_DRAINING have no effect: this handler has the queue mode only",
			},
		},
		{
			"an older name", nil,
			[]string{"CHECK_ASG_TAG_BEFORE_DRAINING=false"},
			func(c *config) { c.checkTag = false },
			[]string{"CHECK_ASG_TAG_BEFORE_DRAINING is an older name: use --check-tag-before-draining or CHECK_TAG_BEFORE_DRAINING"},
		},
		{
			"an older name and the newer",
			[]string{"--grace-period=5"},
			[]string{"POD_TERMINATION_GRACE_PERIOD=6"},
			func(c *config) { c.podGracePeriod = 6 * time.Second },
			[]string{"--grace-period is ignored: it is an older name of pod-termination-grace-period, which is set by POD_TERMINATION_GRACE_PERIOD"},
		},
		{
			"no grace at all", nil,
			[]string{"POD_TERMINATION_GRACE_PERIOD=0"},
			func(c *config) { c.podGracePeriod = time.Second },
			[]string{"pod-termination-grace-period 0 counts as 1: with 0 the API server forgets a pod whose containers still run"},
		},
		{
			"traces in a protocol that is not there", nil,
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
			func(*config) {},
			[]string{`no traces are sent: OTEL_EXPORTER_OTLP_PROTOCOL is "grpc": there is http/protobuf alone`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := load(append(tt.args, "--queue-url="+testQueue), tt.environ)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			tt.set(want)
			want.warnings = tt.want
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{}, queueURL{}), cmpopts.IgnoreFields(config{}, "changed")); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
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
			got, err := load(nil, append(tt.environ, "AWS_REGION=us-east-1"))
			if err != nil {
				t.Fatal(err)
			}
			if got.sqsEndpoint != tt.want {
				t.Errorf("sqsEndpoint = %q, want %q", got.sqsEndpoint, tt.want)
			}
		})
	}
}

func TestTableIsSound(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range new(config).options() {
		if o.def != "" {
			if err := o.value.set(o.def); err != nil {
				t.Errorf("%s: its default %q %v", o.flag, o.def, err)
			}
		}
		if o.noEffect == "" && (o.value.allowed == "" || !strings.HasSuffix(o.words, ".")) {
			t.Errorf("%s: lacks what is allowed, or a sentence about it", o.flag)
		}
		if !slices.Contains(groups, o.group) || (o.noEffect != "") != (o.group == groupNoEffect) {
			t.Errorf("%s: is in the group %q", o.flag, o.group)
		}
		for _, n := range append([]names{o.names}, o.older...) {
			for _, name := range []string{"--" + n.flag, n.env} {
				if seen[name] {
					t.Errorf("%s: %s is taken", o.flag, name)
				}
				seen[name] = true
			}
			if env := strings.ToUpper(strings.ReplaceAll(n.flag, "-", "_")); env != n.env &&
				!slices.Contains([]string{"NAMESPACE", "INSTANCE_METADATA_URL"}, n.env) {
				t.Errorf("%s: its variable is %s, want %s", n.flag, n.env, env)
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
	for _, o := range new(config).options() {
		for _, n := range append([]names{o.names}, o.older...) {
			for helm := range strings.SplitSeq(n.helm, ", ") {
				for _, r := range []row{{n.flag, n.env, helm}, {n.flag, "-", helm}, {n.flag, n.env, "-"}, {"-", "-", helm}} {
					have[r] = true
				}
			}
		}
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
		c, err := load(strings.Split(args, "\n"), append(strings.Split(environ, "\n"),
			"WEBHOOK_URL="+before+secret, "WEBHOOK_PROXY="+before+secret, "WEBHOOK_HEADERS="+string(header), "AWS_SECRET_ACCESS_KEY="+secret))
		told := fmt.Sprint(err)
		if c != nil {
			told += fmt.Sprint(c.warnings, c.changed)
		}
		if strings.Contains(told, "hush") {
			t.Errorf("a secret is told: %s", told)
		}
		if err != nil {
			var wrong mistakes
			if errors.As(err, &wrong) {
				for _, m := range wrong {
					if m.name == "" || m.words == "" {
						t.Errorf("a mistake without a name or words: %q", m)
					}
				}
			} else if !errors.Is(err, pflag.ErrHelp) {
				t.Errorf("not a mistake: %v", err)
			}
			return
		}
		most, err := intstr.GetScaledValueFromIntOrPercent(&c.maxUnready, 100, false)
		if err != nil {
			t.Errorf("max-unready-nodes: %v", err)
		}
		for what, right := range map[string]bool{
			"queue":        c.queue.text != "" && c.queue.name != "" && len(c.queue.account) == 12,
			"region":       c.region != "",
			"managed tag":  c.managedTag != "" || !c.checkTag,
			"visibility":   c.visibilityTimeout >= time.Second && c.visibilityTimeout < 2*time.Minute,
			"workers":      c.workers >= 0,
			"max unready":  (most > 0) == (c.maxUnready != intstr.IntOrString{}),
			"taint effect": c.taintEffect != "",
			"node grace":   c.nodeGracePeriod >= time.Second,
			"pod grace":    c.podGracePeriod == -1 || c.podGracePeriod >= time.Second,
			"heartbeats":   (c.heartbeatInterval == 0) == (c.heartbeatUntil == 0) && (c.heartbeatInterval == 0 || c.heartbeatInterval >= 30*time.Second),
			"delay":        c.completionDelay >= 0,
			"hook names":   !slices.Contains(c.hookNames, ""),
			"rate":         c.kubeQPS == -1 || c.kubeQPS > 0 && c.kubeBurst > 0,
			"probes path":  strings.HasPrefix(c.probesPath, "/"),
			"ports":        min(c.prometheusPort, c.probesPort) >= 0 && max(c.prometheusPort, c.probesPort) < 1<<16,
		} {
			if !right {
				t.Errorf("%s: out of range in %+v", what, c)
			}
		}
	})
}
