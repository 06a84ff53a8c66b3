package options

import (
	"encoding/json"
	"slices"

	"github.com/node-termination-handler/node-termination-handler/internal/policyfile"
)

// A chartValue is a value of the Helm chart that is not an option of the program.
// values.yaml, its schema and the README of the chart are generated from the table
// below and the table of options.
type chartValue struct {
	path    string // such as image.tag
	schema  schema
	def     string // YAML, on one line
	words   string // a sentence or two
	heading string // of the group that begins here
}

var (
	anyText = schema{"type": []string{"string", "null"}}
	// Not as text: NTH's chart takes the text "false" for true.
	anyBool   = schema{"anyOf": []schema{{"type": "boolean"}, {"enum": []int{0, 1}}}}
	anyList   = schema{"type": []string{"array", "null"}}
	anyObject = schema{"type": []string{"object", "null"}}
	named     = schema{
		"type":  []string{"array", "null"},
		"items": schema{"type": "object", "required": []string{"name"}},
	}
	anyInteger = orText(schema{"type": "integer", "minimum": 0})
)

// orText is s, or a whole number as text, or nothing.
func orText(s schema) schema {
	return schema{"anyOf": []schema{s, {"type": "string", "pattern": "^[0-9]*$"}, {"type": "null"}}}
}

// policySchema is that of the policy file, which may be missing.
func policySchema() schema {
	looks := schema{}
	_ = json.Unmarshal(policyfile.Schema(), &looks)
	for _, key := range []string{"$schema", "title", "required"} {
		delete(looks, key)
	}
	looks["type"] = []string{"object", "null"}
	return looks
}

func chartValues() []chartValue {
	texts := schema{"type": []string{"object", "null"}, "additionalProperties": schema{"type": "string"}}
	return slices.Concat(chartObjects(texts), chartDaemonSet(texts), chartMonitoring(texts))
}

// chartDaemonSet are values for the DaemonSet of the IMDS mode. They are empty by default: so the notes
// can tell in queue mode which of them are set.
func chartDaemonSet(texts schema) []chartValue {
	orEmpty := schema{"anyOf": []schema{{"type": "boolean"}, {"enum": []any{0, 1, "0", "1", "", "true", "false", nil}}}}
	return []chartValue{
		{
			heading: "DaemonSet of the IMDS mode", path: "targetNodeOs", schema: anyText, def: `""`,
			words: "Operating systems of the nodes that have a pod: linux, windows, or both, separated by a space. Those " +
				"for Windows are HostProcess pods. Default: linux.",
		},
		{
			path: "useHostNetwork", schema: orEmpty, def: `""`,
			words: "Use the network of the node. Without it the hop limit of the instance metadata has to be 2. The " +
				"baseline and restricted Pod Security Standards forbid it. Default: true.",
		},
		{
			path: "enableProbesServer", schema: orEmpty, def: `""`,
			words: "Serve the probes, on a port of the node. In queue mode the pods always have their probes. Default: " +
				"false. So is enablePrometheusServer in IMDS mode.",
		},
		{
			path: "updateStrategy", schema: anyObject, def: "{}",
			words: "Update strategy. Default: a quarter of the pods at a time.",
		},
		{
			path: "daemonsetPriorityClassName", schema: anyText, def: `""`,
			words: "PriorityClass of the pods. Default: system-node-critical.",
		},
		{
			path: "daemonsetNodeSelector", schema: texts, def: "{}",
			words: "Labels of the nodes that have a pod. As in NTH's chart, linuxNodeSelector comes first and nodeSelector " +
				"second. Default: all nodes with an operating system of targetNodeOs.",
		},
		{
			path: "daemonsetAffinity", schema: anyObject, def: "{}",
			words: "Affinity of the pods, after linuxAffinity and affinity. Default: not on Fargate and not on hybrid nodes, " +
				"which have no instance.",
		},
		{
			path: "daemonsetTolerations", schema: anyList, def: "[]",
			words: "Tolerations of the pods, after linuxTolerations and tolerations. Default: all taints.",
		},
	}
}

// chartObjects are values for the image, the names, the rights and the pods.
func chartObjects(texts schema) []chartValue {
	return []chartValue{
		{
			heading: "Image", path: "image.repository", schema: anyText, def: `""`,
			words: "Name of the image, without its tag. Required until an image is published: docs/install.md, " +
				"step 2, builds one and pushes it to your registry.",
		},
		{
			path: "image.tag", schema: anyText, def: `""`,
			words: "Its tag, or sha256:… for a digest. Default: the version of the chart.",
		},
		{
			path: "image.pullPolicy", schema: schema{"enum": []any{"", "Always", "IfNotPresent", "Never", nil}},
			def:   "IfNotPresent",
			words: "Pull policy of the image.",
		},
		{
			path: "image.pullSecrets", schema: anyList, def: "[]",
			words: "Names of the Secrets to pull the image with.",
		},

		{
			heading: "Names", path: "nameOverride", schema: anyText, def: `""`,
			words: "Name in labels and selectors, and in the names of objects. To upgrade a release of the chart " +
				"aws-node-termination-handler in place, set it to that name.",
		},
		{
			path: "fullnameOverride", schema: anyText, def: `""`,
			words: "Name of the objects. Default: the name of the release, followed by that of the chart unless " +
				"it contains it.",
		},
		{path: "customLabels", schema: texts, def: "{}", words: "Labels for all objects."},

		{
			heading: "Policy", path: "policy", def: "{}",
			schema: policySchema(),
			words: "The policy file: rules that say what is done with which node and which pod. It begins with version: 1, " +
				"and docs/policy.schema.json describes it. It is in a ConfigMap, whose change takes effect without a restart. " +
				"With an empty policy the options decide.",
		},

		{
			heading: "Rights", path: "serviceAccount.create", schema: anyBool, def: "true",
			words: "Create the ServiceAccount.",
		},
		{
			path: "serviceAccount.name", schema: anyText, def: `""`,
			words: "Its name. Default: that of the objects; without create: default.",
		},
		{
			path: "serviceAccount.labels", schema: texts, def: "{}",
			words: "Its labels, beside those of all objects.",
		},
		{
			path: "serviceAccount.annotations", schema: texts, def: "{}",
			words: "Its annotations: eks.amazonaws.com/role-arn for IRSA. EKS Pod Identity needs none: associate " +
				"the role with the ServiceAccount.",
		},
		{
			path: "rbac.create", schema: anyBool, def: "true",
			words: "Create the ClusterRole, the Role and their bindings. Without them the start fails and lists " +
				"what is missing.",
		},
		{
			path: "rbac.viewers", schema: anyList, def: "[]",
			words: "Subjects of RBAC that may see what the handler does, by kubectl nth status and report: a list of users, " +
				"groups and ServiceAccounts. They may list nodes. In the namespace of the release they may get the Lease, list " +
				"pods with their environment, and get pods/proxy, which reaches each HTTP port of its pods: give the handler a " +
				"namespace of its own. Default: nobody.",
		},
		{
			path: "admissionPolicy.create", schema: anyBool, def: "true",
			words: "Create ValidatingAdmissionPolicies, which limit what the ServiceAccount may change to what the " +
				"handler changes and, in IMDS mode, to the node of the pod. There are none on Kubernetes 1.29, and none " +
				"for the ServiceAccount default. An account of yours must have no other use.",
		},
		{
			path: "admissionPolicy.evictions", schema: anyBool, def: "true",
			words: "In IMDS mode, limit evictions too. For each eviction in the cluster the API server then goes " +
				"through the pods of its namespace.",
		},

		{
			path: "daemonset.create", schema: anyBool, def: "false",
			words: "Beside the Deployment of the queue mode, create the DaemonSet of the IMDS mode. A node that " +
				"both serve is drained once. The values daemonset…, linux… and windows… say where its pods run.",
		},

		{
			heading: "Pods", path: "replicas", schema: anyInteger, def: "2",
			words: "Number of pods. One of them is the leader and acts, the others stand by.",
		},
		{
			path: "podDisruptionBudget", schema: anyObject, def: "{}",
			words: "Spec of the PodDisruptionBudget, without its selector. There is one only with several " +
				"replicas. Default: maxUnavailable 1, and pods that are not ready may be evicted.",
		},
		{path: "strategy", schema: anyObject, def: "{}", words: "Strategy of the Deployment."},
		{
			path: "priorityClassName", schema: anyText, def: "system-cluster-critical",
			words: "PriorityClass of the pods. EKS admits the default in every namespace; GKE and others admit " +
				"it outside of kube-system only where a ResourceQuota names it.",
		},
		{
			path: "terminationGracePeriodSeconds", schema: anyInteger, def: "20",
			words: "Seconds that the pod may take to stop. The program exits at most ten seconds after SIGTERM.",
		},
		{
			path: "resources", schema: anyObject, def: "{requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 256Mi}}",
			words: "Resources of the container.",
		},
		{
			path: "nodeSelector", schema: texts, def: "{}",
			words: "Labels of the nodes that the pods may run on, in addition to kubernetes.io/os: linux.",
		},
		{
			path: "affinity", schema: anyObject, def: "{}",
			words: "Affinity of the pods. Default for its podAntiAffinity: each on a host of its own if possible.",
		},
		{
			path: "tolerations", schema: anyList, def: "[]",
			words: "Tolerations of the pods. The chart adds some, unless yours say otherwise. A pod leaves a node that is " +
				"not ready or unreachable after 30 s, not after 300 s. With taintEffect NoExecute the pods tolerate " +
				"the handler's own taints, so that it does not evict itself in the middle of a drain.",
		},
		{
			path: "topologySpreadConstraints", schema: anyList, def: "[]",
			words: "Topology spread constraints of the pods. Default: spread over zones if possible. A constraint " +
				"without a labelSelector selects the pods of the same revision.",
		},
		{
			path: "podSecurityContext", schema: anyObject,
			def: "{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, " +
				"seccompProfile: {type: RuntimeDefault}}",
			words: "Security context of the pods. The default meets the restricted Pod Security Standard.",
		},
		{
			path: "securityContext", schema: anyObject,
			def:   "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}",
			words: "Security context of the container.",
		},
		{path: "podLabels", schema: texts, def: "{}", words: "Labels for the pods."},
		{path: "podAnnotations", schema: texts, def: "{}", words: "Annotations for the pods."},
		{
			path: "extraEnv", def: "[]",
			schema: named,
			words: "Additional environment variables of the container. They replace variables of the chart that " +
				"have the same name.",
		},
		{
			path: "extraVolumes", def: "[]", schema: named,
			words: "Additional volumes of the pods, such as a ConfigMap with a CA bundle for AWS_CA_BUNDLE.",
		},
		{path: "extraVolumeMounts", def: "[]", schema: named, words: "Where the container finds them."},
		{
			path: "probes.httpGet.path", schema: anyText, def: "/healthz",
			words: "Path of the liveness probe. The path of the readiness probe is always /readyz.",
		},
		{path: "probes.httpGet.port", schema: anyInteger, def: "8080", words: "Port of both probes."},
		{
			path: "probes.initialDelaySeconds", schema: anyInteger, def: "5",
			words: "Delay before the first liveness probe. The other fields of the probe can be set too.",
		},
		{path: "probes.periodSeconds", schema: anyInteger, def: "10", words: "Interval of the liveness probe."},
		{
			path: "hostNetwork", schema: anyBool, def: "false",
			words: "Use the network of the node. The baseline and restricted Pod Security Standards forbid it, and " +
				"two replicas cannot share a node then.",
		},
		{path: "dnsPolicy", schema: anyText, def: `""`, words: "DNS policy of the pods."},
		{path: "dnsConfig", schema: anyObject, def: "{}", words: "DNS configuration of the pods."},
		{
			path: "awsAccessKeyID", schema: anyText, def: `""`,
			words: "Access key for tests against a simulated AWS account. Elsewhere use a role, which gives " +
				"short-lived credentials.",
		},
		{path: "awsSecretAccessKey", schema: anyText, def: `""`, words: "Secret of that access key."},

		{
			heading: "Secrets and templates from elsewhere", path: "webhookURLSecretName", schema: anyText, def: `""`,
			words: "Secret whose key webhookurl holds the URL of the webhook, instead of webhookURL.",
		},
		{
			path: "webhookHeadersSecretName", schema: anyText, def: `""`,
			words: "Secret whose key webhookheaders holds the headers of the webhook, instead of webhookHeaders.",
		},
		{
			path: "webhookTemplateConfigMapName", schema: anyText, def: `""`,
			words: "ConfigMap that holds the template of the webhook, instead of webhookTemplate.",
		},
		{
			path: "webhookTemplateConfigMapKey", schema: anyText, def: `""`,
			words: "Key of the template in that ConfigMap.",
		},
	}
}

// chartMonitoring are values for what is beside the handler.
func chartMonitoring(texts schema) []chartValue {
	return []chartValue{
		{
			heading: "Monitoring", path: "podMonitor.create", schema: anyBool, def: "false",
			words: "Create a PodMonitor. PodMonitor, ServiceMonitor and PrometheusRule need the CRDs of the " +
				"Prometheus operator.",
		},
		{path: "podMonitor.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{path: "podMonitor.labels", schema: texts, def: "{}", words: "Labels by which your Prometheus selects it."},
		{path: "podMonitor.interval", schema: anyText, def: "30s", words: "Interval of the scrapes."},
		{
			path: "podMonitor.sampleLimit", schema: anyInteger, def: "5000",
			words: "Maximum number of samples in a scrape.",
		},
		{
			path: "serviceMonitor.create", schema: anyBool, def: "false",
			words: "Create a ServiceMonitor. A PodMonitor or a ServiceMonitor is enough. Neither is created without " +
				"enablePrometheusServer.",
		},
		{
			path: "serviceMonitor.namespace", schema: anyText, def: `""`,
			words: "Its namespace. Default: the release's.",
		},
		{
			path: "serviceMonitor.labels", schema: texts, def: "{}",
			words: "Labels by which your Prometheus selects it.",
		},
		{path: "serviceMonitor.interval", schema: anyText, def: "30s", words: "Interval of the scrapes."},
		{
			path: "serviceMonitor.sampleLimit", schema: anyInteger, def: "5000",
			words: "Maximum number of samples in a scrape.",
		},
		{
			path: "prometheusRule.create", schema: anyBool, def: "false",
			words: "Create a PrometheusRule with the alerts.",
		},
		{
			path: "prometheusRule.namespace", schema: anyText, def: `""`,
			words: "Its namespace. Default: the release's.",
		},
		{
			path: "prometheusRule.labels", schema: texts, def: "{}",
			words: "Labels by which your Prometheus selects it.",
		},
		{
			path: "dashboard.create", schema: anyBool, def: "false",
			words: "Create a ConfigMap with the dashboard, for Grafana's sidecar.",
		},
		{path: "dashboard.namespace", schema: anyText, def: `""`, words: "Its namespace. Default: the release's."},
		{
			path: "dashboard.labels", schema: texts, def: `{grafana_dashboard: "1"}`,
			words: "Labels by which the sidecar selects it.",
		},
		{
			path: "dashboard.annotations", schema: texts, def: "{}",
			words: "Its annotations, for example the folder in Grafana.",
		},

		{
			heading: "Cluster", path: "networkPolicy.create", schema: anyBool, def: "false",
			words: "Create a NetworkPolicy. It allows ingress to probes and metrics, and egress to DNS, HTTPS, " +
				"the API server, the sources of AWS credentials, and the ports of the webhook and the proxy " +
				"that the values name.",
		},
		{
			path: "networkPolicy.ingressFrom", schema: anyList, def: "[]",
			words: "Peers that may reach probes and metrics, such as the namespace of Prometheus. Default: all. Most " +
				"network plugins let the kubelet's probes through in any case.",
		},
		{
			path: "networkPolicy.egressTo", schema: anyList, def: "[]",
			words: "Peers on the ports 443 and 6443, such as the addresses of your VPC if it has interface " +
				"endpoints for SQS, EC2, Auto Scaling and STS. Default: all. The webhook may need a rule in egress " +
				"then.",
		},
		{
			path: "networkPolicy.dnsTo", schema: anyList, def: "[]",
			words: "Peers on port 53, such as the namespace kube-system. Default: all.",
		},
		{
			path: "networkPolicy.egress", schema: anyList, def: "[]",
			words: "Additional egress rules, for example to a webhook whose URL is in a Secret.",
		},
		{
			path: "flowSchema.create", schema: anyBool, def: "false",
			words: "Create a FlowSchema and a PriorityLevelConfiguration, which reserve a share of the API " +
				"server for this release. Then load from other clients does not slow it down, and its own load " +
				"does not slow them down.",
		},
	}
}
