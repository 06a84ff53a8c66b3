package main

// A chartValue is a value of the Helm chart that is not an option of the
// program. The table below and that of the options give values.yaml, its schema
// and the README of the chart.
type chartValue struct {
	path    string // such as image.tag
	schema  schema
	def     string // YAML, on one line
	words   string // a sentence or two
	heading string // of the group that begins here
}

var (
	anyText    = schema{"type": []string{"string", "null"}}
	anyBool    = schema{"type": "boolean"}
	anyList    = schema{"type": []string{"array", "null"}}
	anyObject  = schema{"type": []string{"object", "null"}}
	anyInteger = orText(schema{"type": "integer", "minimum": 0})
)

// orText is s, or a whole number as text, or nothing.
func orText(s schema) schema {
	return schema{"anyOf": []schema{s, {"type": "string", "pattern": "^[0-9]*$"}, {"type": "null"}}}
}

func chartValues() []chartValue {
	texts := schema{"type": []string{"object", "null"}, "additionalProperties": schema{"type": "string"}}
	return []chartValue{
		{
			heading: "Image", path: "image.repository", schema: anyText, def: "ghcr.io/node-termination-handler/node-termination-handler",
			words: "Where the image is, without its tag.",
		},
		{path: "image.tag", schema: anyText, def: `""`, words: "Its tag, or sha256:… for a digest. Default: the version of the chart."},
		{path: "image.pullPolicy", schema: schema{"enum": []any{"", "Always", "IfNotPresent", "Never", nil}}, def: "IfNotPresent", words: "When the kubelet pulls it."},
		{path: "image.pullSecrets", schema: anyList, def: "[]", words: "Names of the Secrets that it is pulled with."},

		{
			heading: "Names", path: "nameOverride", schema: anyText, def: `""`,
			words: "Name in labels and selectors, and in the names of objects. Set it to aws-node-termination-handler to upgrade a release of that chart in place.",
		},
		{path: "fullnameOverride", schema: anyText, def: `""`, words: "Name of the objects. Default: the release's name, with the chart's where that does not hold it."},
		{path: "customLabels", schema: texts, def: "{}", words: "Labels for all objects."},

		{heading: "Rights", path: "serviceAccount.create", schema: anyBool, def: "true", words: "Create the ServiceAccount."},
		{path: "serviceAccount.name", schema: anyText, def: `""`, words: "Its name. Default: that of the objects; without create: default."},
		{
			path: "serviceAccount.annotations", schema: texts, def: "{}",
			words: "Its annotations: eks.amazonaws.com/role-arn for IRSA. EKS Pod Identity needs none: associate the role with the ServiceAccount.",
		},
		{
			path: "rbac.create", schema: anyBool, def: "true",
			words: "Create the ClusterRole, the Role and their bindings. Without them the start fails and lists what is missing.",
		},

		{heading: "Pods", path: "replicas", schema: anyInteger, def: "2", words: "How many pods. One works, the others stand by."},
		{path: "podDisruptionBudget", schema: anyObject, def: "{}", words: "Spec of the PodDisruptionBudget of several replicas, without its selector. Default: maxUnavailable: 1, and pods that are not ready may go."},
		{path: "strategy", schema: anyObject, def: "{}", words: "Strategy of the Deployment."},
		{
			path: "priorityClassName", schema: anyText, def: "system-cluster-critical",
			words: "PriorityClass of the pods. GKE and others admit this one outside of kube-system only where a ResourceQuota names it; EKS admits it everywhere.",
		},
		{path: "terminationGracePeriodSeconds", schema: anyInteger, def: "20", words: "From SIGTERM to exit takes the program ten seconds at most."},
		{path: "resources", schema: anyObject, def: "{requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}", words: "Resources of the container."},
		{path: "nodeSelector", schema: texts, def: "{}", words: "Labels of the nodes that the pods may run on, beside kubernetes.io/os: linux."},
		{path: "affinity", schema: anyObject, def: "{}", words: "Affinity of the pods."},
		{path: "tolerations", schema: anyList, def: "[]", words: "Tolerations of the pods."},
		{path: "topologySpreadConstraints", schema: anyList, def: "[]", words: "Default: over hosts and zones, where possible. A constraint without a labelSelector gets that of the pods."},
		{
			path: "podSecurityContext", schema: anyObject, def: "{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}",
			words: "Security context of the pods, as the restricted Pod Security Standard asks for.",
		},
		{
			path: "securityContext", schema: anyObject, def: "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}",
			words: "Security context of the container.",
		},
		{path: "podLabels", schema: texts, def: "{}", words: "Labels for the pods."},
		{path: "podAnnotations", schema: texts, def: "{}", words: "Annotations for the pods."},
		{
			path: "extraEnv", schema: schema{"type": []string{"array", "null"}, "items": schema{"type": "object", "required": []string{"name"}}}, def: "[]",
			words: "More variables for the container. One that the chart has as well takes its place.",
		},
		{path: "probes.httpGet.path", schema: anyText, def: "/healthz", words: "Path of the liveness probe; that of readiness is /readyz."},
		{path: "probes.httpGet.port", schema: anyInteger, def: "8080", words: "Port of both probes."},
		{path: "probes.initialDelaySeconds", schema: anyInteger, def: "5", words: "When the liveness probe begins. Its other fields can be set too."},
		{path: "probes.periodSeconds", schema: anyInteger, def: "10", words: "How often it is asked."},
		{path: "useHostNetwork", schema: anyBool, def: "false", words: "Use the network of the node. Pod Security's baseline and restricted standards forbid it."},
		{path: "dnsPolicy", schema: anyText, def: `""`, words: "DNS policy of the pods."},
		{path: "dnsConfig", schema: anyObject, def: "{}", words: "DNS configuration of the pods."},
		{path: "awsAccessKeyID", schema: anyText, def: `""`, words: "For tests against a simulated account; elsewhere a role gives short-lived credentials."},
		{path: "awsSecretAccessKey", schema: anyText, def: `""`, words: "The secret of that key."},

		{heading: "Secrets and templates from elsewhere", path: "webhookURLSecretName", schema: anyText, def: `""`, words: "Secret whose key webhookurl holds the URL of the webhook, in place of webhookURL."},
		{path: "webhookHeadersSecretName", schema: anyText, def: `""`, words: "Secret whose key webhookheaders holds the headers of the webhook, in place of webhookHeaders."},
		{path: "webhookTemplateConfigMapName", schema: anyText, def: `""`, words: "ConfigMap that holds the template of the webhook, in place of webhookTemplate."},
		{path: "webhookTemplateConfigMapKey", schema: anyText, def: `""`, words: "Key of that template."},

		{heading: "Monitoring", path: "podMonitor.create", schema: anyBool, def: "false", words: "Create a PodMonitor. It takes the CRDs of the Prometheus operator, as do the next two."},
		{path: "podMonitor.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{path: "podMonitor.labels", schema: texts, def: "{}", words: "Labels that your Prometheus selects it by."},
		{path: "podMonitor.interval", schema: anyText, def: "30s", words: "How often the metrics are read."},
		{path: "podMonitor.sampleLimit", schema: anyInteger, def: "5000", words: "How many samples are accepted."},
		{path: "serviceMonitor.create", schema: anyBool, def: "false", words: "Create a ServiceMonitor. One of the two is enough."},
		{path: "serviceMonitor.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{path: "serviceMonitor.labels", schema: texts, def: "{}", words: "Labels that your Prometheus selects it by."},
		{path: "serviceMonitor.interval", schema: anyText, def: "30s", words: "How often the metrics are read."},
		{path: "serviceMonitor.sampleLimit", schema: anyInteger, def: "5000", words: "How many samples are accepted."},
		{path: "prometheusRule.create", schema: anyBool, def: "false", words: "Create a PrometheusRule with the alerts."},
		{path: "prometheusRule.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{path: "prometheusRule.labels", schema: texts, def: "{}", words: "Labels that your Prometheus selects it by."},
		{path: "dashboard.create", schema: anyBool, def: "false", words: "Create a ConfigMap with the dashboard, for Grafana's sidecar."},
		{path: "dashboard.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{path: "dashboard.labels", schema: texts, def: `{grafana_dashboard: "1"}`, words: "Labels that the sidecar selects it by."},
		{path: "dashboard.annotations", schema: texts, def: "{}", words: "Its annotations, such as the folder in Grafana."},

		{
			heading: "Cluster", path: "networkPolicy.create", schema: anyBool, def: "false",
			words: "Create a NetworkPolicy: in for probes and metrics, out for DNS, HTTPS, the API server and the sources of AWS credentials.",
		},
		{path: "networkPolicy.egress", schema: anyList, def: "[]", words: "More rules for the way out, such as to a webhook or a proxy."},
		{
			path: "flowSchema.create", schema: anyBool, def: "false",
			words: "Create a FlowSchema and a PriorityLevelConfiguration: a share of the API server for this release alone. Other clients' storms then do not hold it up, nor its own them.",
		},
	}
}
