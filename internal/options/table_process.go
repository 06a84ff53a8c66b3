package options

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/webhook"
)

// processOptions are about the cluster, leader election, logs, probes, Kubernetes Events and webhooks.
func (c *Options) processOptions() []Option {
	return []Option{
		{
			Group: groupKube, Names: Names{"kubeconfig", "KUBECONFIG", ""}, Owner: OfProcess,
			DefaultText: "the pod's ServiceAccount; outside of a cluster ~/.kube/config",
			value:       text(&c.Kubeconfig, "paths", nil),
			Help:        "Paths of kubeconfig files, to run outside of the cluster.",
		},
		{
			Names: Names{"leader-elect", "LEADER_ELECT", ""}, Mode: LeaderMode, Default: "true",
			value: boolean(&c.LeaderElect),
			Help:  "Use leader election, so that only one of several replicas acts.",
		},
		{
			Names: Names{"leader-elect-resource-name", "LEADER_ELECT_RESOURCE_NAME", ""}, Default: ProgramName,
			value: notEmpty(text(&c.LeaseName, "the name of a Lease", valid(validation.IsDNS1123Subdomain))),
			Help: "Name of the Lease for leader election, one for each release in a namespace. In IMDS mode: the " +
				"Lease of the handler that leads for the same nodes.",
		},
		{
			Names: Names{"kube-api-qps", "KUBE_API_QPS", "kubeApiQps"}, Owner: OfProcess, Default: defaultQPS,
			value: rate(&c.KubeQPS),
			Help: "Maximum rate of requests to the API server, per second. Negative: no limit but that of requests " +
				"in flight.",
		},
		{
			Names: Names{"kube-api-burst", "KUBE_API_BURST", "kubeApiBurst"}, Owner: OfProcess, Default: defaultBurst,
			value: burst(&c.KubeBurst),
			Help:  "Number of requests to the API server that may exceed kube-api-qps in a burst. Negative: no limit.",
		},
		{
			Names: Names{"node-name", "NODE_NAME", ""},
			value: text(&c.NodeName, "the name of a node", valid(validation.IsDNS1123Subdomain)),
			Help: "Name of the node that this pod runs on, from the downward API. There its own pod goes last. IMDS " +
				"mode requires it, and drains only this node.",
		},
		{
			Names: Names{"pod-name", "POD_NAME", ""},
			value: text(&c.PodName, "the name of a pod", valid(validation.IsDNS1123Subdomain)),
			Help:  "Name of this pod, from the downward API.",
		},
		{
			Names: Names{"pod-namespace", "NAMESPACE", ""},
			value: text(&c.PodNamespace, "the name of a namespace", valid(validation.IsDNS1123Label)),
			Help:  "Namespace of this pod and of the Lease, from the downward API.",
		},
		{
			Names: Names{"kubernetes-service-host", "KUBERNETES_SERVICE_HOST", ""}, Owner: OfProcess,
			DefaultText: "set by Kubernetes",
			value:       text(&c.KubernetesServiceHost, "a host", matching(`^[0-9A-Za-z._:-]+$`, "is not a host")),
			Help:        "Host of the API server, within the cluster.",
		},
		{
			Names: Names{"kubernetes-service-port", "KUBERNETES_SERVICE_PORT", ""}, Owner: OfProcess,
			DefaultText: "set by Kubernetes",
			value: text(&c.KubernetesServicePort, "1 to 65535", func(text string) error {
				_, err := parseInteger(text, 1, 65535)
				return err
			}),
			Help: "Port of the API server, within the cluster.",
		},

		{
			Group: groupLogs, Names: Names{"log-level", "LOG_LEVEL", "logLevel"}, Owner: OfProcess, Default: "info",
			value: oneOf(&c.LogLevel, "debug", "info", "warn", "error"),
			Help:  "Minimum level to log.",
		},
		{
			Names: Names{"json-logging", "JSON_LOGGING", "jsonLogging"}, Owner: OfProcess, Default: "false",
			value: boolean(&c.JSONLogging),
			Help:  "Write logs as JSON, one object per line.",
		},
		{
			Names: Names{"enable-prometheus-server", "ENABLE_PROMETHEUS_SERVER", "enablePrometheusServer"}, Owner: OfProcess,
			Default: "true", value: boolean(&c.PrometheusServer),
			Help: "Serve metrics at /metrics.",
		},
		{
			Names: Names{"prometheus-server-port", "PROMETHEUS_SERVER_PORT", "prometheusServerPort"}, Owner: OfProcess,
			Default: "9092", value: integer(&c.PrometheusPort, 0, 65535),
			Help: "Port of the metrics. 0: any free port.",
		},
		{
			Names: Names{"bind-address", "BIND_ADDRESS", "bindAddress"}, Owner: OfProcess, DefaultText: "all addresses",
			value: list(&c.BindAddresses, "IP addresses, separated by commas", "not an IP address", "not IP addresses",
				netip.ParseAddr),
			Help: "Addresses of the pod for metrics and probes. A kubelet sends its probes to the address of the " +
				"pod.",
		},
		{
			Names: Names{"allowed-hosts", "ALLOWED_HOSTS", "allowedHosts"}, Owner: OfProcess,
			value: list(&c.AllowedHosts, "names of hosts without ports, separated by commas, or *",
				"not the name of a host", "not names of hosts", parseHost),
			Help: "Further host names by which metrics and page are asked for, such as that of an ingress. " +
				"Addresses, localhost and the names of Services need no entry. *: any name, which lets web pages of " +
				"strangers read them by DNS rebinding.",
		},
		{
			Names: Names{"status-page", "STATUS_PAGE", "statusPage"}, Owner: OfProcess, Default: "true",
			value: boolean(&c.StatusPage),
			Help: "Serve a read-only page about drains in progress and of the last day, at / on the port of the " +
				"metrics.",
		},
		{
			Names: Names{"enable-probes-server", "ENABLE_PROBES_SERVER", ""}, Owner: OfProcess, Default: "true",
			value: boolean(&c.ProbesServer),
			Help:  "Serve the liveness and readiness probes.",
		},
		{
			Names: Names{"probes-server-port", "PROBES_SERVER_PORT", "probes.httpGet.port"}, Owner: OfProcess, Default: "8080",
			value: integer(&c.ProbesPort, 0, 65535),
			Help:  "Port of the probes. 0: any free port.",
		},
		{
			Names: Names{"probes-server-endpoint", "PROBES_SERVER_ENDPOINT", "probes.httpGet.path"}, Owner: OfProcess,
			Default: "/healthz", value: text(&c.ProbesPath, "a path, such as /healthz", checkProbesPath),
			Help: "Path of the liveness probe. That of the readiness probe is always /readyz.",
		},

		{
			Group: groupEvents, Names: Names{"node-conditions", "NODE_CONDITIONS", "nodeConditions"}, Default: "true",
			value: boolean(&c.NodeConditions),
			Help: "Say how far a drain is by conditions of the node: DrainInProgress, Drained and " +
				"MaintenancePlanned.",
		},
		{
			Names: Names{"emit-kubernetes-events", "EMIT_KUBERNETES_EVENTS", "emitKubernetesEvents"}, Default: "true",
			value: boolean(&c.EmitEvents),
			Help:  "Record what happens to a node as Kubernetes Events.",
		},
		{
			Names: Names{
				"kubernetes-events-extra-annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS",
				"kubernetesEventsExtraAnnotations",
			},
			value: parsed(&c.EventAnnotations, "key=value,key=value", parseAnnotations),
			Help:  "Annotations to add to these Events.",
		},
		{
			Names: Names{"webhook-url", "WEBHOOK_URL", "webhookURL, webhookURLSecretName"}, Secret: true,
			value: address(&c.WebhookURL),
			Help:  "URL to which a message about each interruption is posted. It is a secret and is never logged.",
		},
		{
			Names: Names{"webhook-proxy", "WEBHOOK_PROXY", "webhookProxy"}, Secret: true,
			DefaultText: "HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
			value:       parsed(&c.WebhookProxy, "an http, https, socks5 or socks5h URL", parseProxy),
			Help:        "Proxy for the webhook.",
		},
		{
			Names: Names{"webhook-headers", "WEBHOOK_HEADERS", "webhookHeaders"}, Secret: true,
			Default: `{"Content-type":"application/json"}`,
			value: parsed(&c.WebhookHeaders,
				`a JSON object of strings, such as {"Content-type":"application/json"}`, parseHeaders),
			Help: "HTTP headers of the webhook's request.",
		},
		{
			Names: Names{"webhook-template", "WEBHOOK_TEMPLATE", "webhookTemplate"}, Default: webhook.DefaultTemplate,
			value: text(&c.WebhookTemplate, "a Go template", checkTemplate),
			Help:  "Body of the request: a Go template with sprig's functions for text (docs/webhooks.md).",
		},
		{
			Names: Names{
				"webhook-template-file", "WEBHOOK_TEMPLATE_FILE",
				"webhookTemplateConfigMapName, webhookTemplateConfigMapKey",
			},
			value: text(&c.WebhookTemplateFile, "a path", nil),
			Help:  "File with the template. It takes precedence over webhook-template.",
		},
		{
			Names: Names{"webhook-phases", "WEBHOOK_PHASES", "webhookPhases"}, Default: string(webhook.PhaseReceived),
			value: notEmpty(list(&c.WebhookPhases, "some of "+joined(webhook.Phases, ","), "none of them", "none of them",
				wordOf(webhook.Phases))),
			Help: "Phases at which the webhook is called (docs/webhooks.md).",
		},
	}
}

// idleOptions are accepted for compatibility with AWS Node Termination Handler.
func idleOptions() []Option {
	return []Option{
		idle(kindBool, "use-provider-id", "USE_PROVIDER_ID", "useProviderId",
			"nodes are always found by their provider id first"),
		idle(kindBool, "assume-asg-tag-propagation", "ASSUME_ASG_TAG_PROPAGATION", "assumeAsgTagPropagation",
			"the tag is always read from the instance"),
		idle(kindBool, "use-apiserver-cache", "USE_APISERVER_CACHE", "", "nodes are watched"),
		idle(kindInteger, "log-format-version", "LOG_FORMAT_VERSION", "logFormatVersion",
			"there is only one log format"),
		idle(kindInteger, "metadata-tries", "METADATA_TRIES", "metadataTries",
			"the metadata is read every two seconds, and what fails is tried again"),
		idle(kindText, "uptime-from-file", "UPTIME_FROM_FILE", "procUptimeFile", "the boot id of the node tells of a reboot"),
	}
}

// idle is an option that changes nothing, for the reason why.
func idle(k kind, flag, env, helm, why string) Option {
	nothing := value{kind: k, schema: schema{}, set: func(string) error { return nil }}
	return Option{Names: Names{flag, env, helm}, Group: groupNoEffect, value: nothing, NoEffect: why}
}
