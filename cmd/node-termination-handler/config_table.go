package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap/zapcore"
	"golang.org/x/net/http/httpguts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/telemetry"
)

const (
	// Nothing waits longer than a week on purpose; milliseconds given for
	// seconds do.
	week = 7 * 24 * 60 * 60

	// 500 nodes of 10 pods ask for some 6,000 writes at once: 10 seconds at this
	// rate, of the 120 that a spot warning leaves. It is there to stop a loop gone
	// wild, not to protect the API server, which has priority and fairness.
	defaultQPS   = "500"
	defaultBurst = "1000"

	queueModeOnly = "this handler has the queue mode only"
)

// options is the table of all options, each bound to its field of c. Flags,
// environment variables, --help and docs/options.md come from here. The names
// are those of AWS Node Termination Handler, where it has them.
func (c *config) options() []option {
	return []option{
		{
			names: names{"queue-url", "QUEUE_URL", "queueURL"},
			group: groupQueue, required: true,
			value: parsed(&c.queue, kindURL, queueURLForm, parseQueueURL),
			words: "URL of the SQS queue that EventBridge sends the notices to.",
		},
		{
			names: names{"aws-region", "AWS_REGION", "awsRegion"},
			group: groupQueue, defWords: "as in queue-url",
			value: text(&c.region, "a region, such as us-east-1", matching(`^[a-z][a-z0-9-]{0,62}$`, "is not a region")),
			words: "Region of the queue and of the instances.",
		},
		{
			names: names{"aws-endpoint", "AWS_ENDPOINT", "awsEndpoint"},
			group: groupQueue, defWords: "those of the region",
			value: address(&c.awsEndpoint),
			words: "One endpoint for all AWS services, for tests and proxies. AWS_ENDPOINT_URL and its kin work too.",
		},
		{
			names: names{"enable-sqs-termination-draining", "ENABLE_SQS_TERMINATION_DRAINING", "enableSqsTerminationDraining"},
			group: groupQueue, def: "true",
			value: queueMode(),
			words: "Read notices from a queue. Accepted for its name's sake: there is no other mode.",
		},
		{
			names: names{"sqs-msg-visibility-timeout-sec", "SQS_MSG_VISIBILITY_TIMEOUT_SEC", "sqsMsgVisibilityTimeoutSec"},
			group: groupQueue, def: "20",
			value: seconds(&c.visibilityTimeout, 1, 119),
			words: "Seconds for which SQS hides a message from others; extended for as long as the message is worked on.",
		},
		{
			names: names{"delete-sqs-msg-if-node-not-found", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", "deleteSqsMsgIfNodeNotFound"},
			group: groupQueue, def: "false",
			value: boolean(&c.deleteIfNodeNotFound),
			words: "Delete messages about instances that are not of this cluster, instead of leaving them for the other readers of the queue. A look-up that failed is not an instance that was not found.",
		},
		{
			names: names{"workers", "WORKERS", "workers"},
			group: groupQueue, def: "0", defWords: "no bound",
			value: integer(&c.workers, 0, 10000),
			words: "How many nodes are drained at once for notices that are not urgent. Spot interruptions and stopping instances never wait.",
		},

		{
			names: names{"check-tag-before-draining", "CHECK_TAG_BEFORE_DRAINING", "checkTagBeforeDraining"},
			older: []names{{"check-asg-tag-before-draining", "CHECK_ASG_TAG_BEFORE_DRAINING", "checkASGTagBeforeDraining"}},
			group: groupInstances, def: "true",
			value: boolean(&c.checkTag),
			words: "Act only on instances that have the managed tag.",
		},
		{
			names: names{"managed-tag", "MANAGED_TAG", "managedTag"},
			older: []names{{"managed-asg-tag", "MANAGED_ASG_TAG", "managedAsgTag"}},
			group: groupInstances, def: "aws-node-termination-handler/managed",
			value: text(&c.managedTag, "the key of a tag, at most 128 characters", func(text string) error {
				if utf8.RuneCountInString(text) > 128 {
					return errors.New("is too long for a tag")
				}
				return nil
			}),
			words: "Key of the tag that an instance has if it is to be looked after. Its value does not matter.",
		},
		{
			names: names{"cluster-name", "CLUSTER_NAME", "clusterName"},
			group: groupInstances,
			value: text(&c.clusterName, "at most 100 letters, digits, - and _", matching(`^[0-9A-Za-z][0-9A-Za-z_-]{0,99}$`, "is not the name of a cluster")),
			words: "Name of the EKS cluster, as in the tag kubernetes.io/cluster/NAME: tells that an instance which has no Node yet is of this cluster.",
		},

		{
			names: names{"dry-run", "DRY_RUN", "dryRun"},
			group: groupNode, def: "false",
			value: boolean(&c.dryRun),
			words: "Decide and log, and write nothing anywhere: the node, its pods, the hook and the message stay as they are.",
		},
		{
			names: names{"cordon-only", "CORDON_ONLY", "cordonOnly"},
			group: groupNode, def: "false",
			value: boolean(&c.cordonOnly),
			words: "Cordon the node and leave its pods where they are.",
		},
		{
			names: names{"taint-node", "TAINT_NODE", "taintNode"},
			group: groupNode, def: "false",
			value: boolean(&c.taintNode),
			words: "Taint the node as well, with a key that tells the kind of the notice.",
		},
		{
			names: names{"taint-effect", "TAINT_EFFECT", "taintEffect"},
			group: groupNode, def: string(corev1.TaintEffectNoSchedule),
			value: oneOf(&c.taintEffect,
				choice[corev1.TaintEffect]{"NoSchedule", corev1.TaintEffectNoSchedule},
				choice[corev1.TaintEffect]{"PreferNoSchedule", corev1.TaintEffectPreferNoSchedule},
				choice[corev1.TaintEffect]{"NoExecute", corev1.TaintEffectNoExecute}),
			words: "Effect of that taint.",
		},
		{
			names: names{"enable-out-of-service-taint", "ENABLE_OUT_OF_SERVICE_TAINT", "enableOutOfServiceTaint"},
			group: groupNode, def: "false",
			value: boolean(&c.outOfServiceTaint),
			words: "Taint the node as out of service once its instance is known to be stopped or terminated, so that volumes are detached at once.",
		},
		{
			names: names{"exclude-from-load-balancers", "EXCLUDE_FROM_LOAD_BALANCERS", "excludeFromLoadBalancers"},
			group: groupNode, def: "false",
			value: boolean(&c.excludeFromLoadBalancers),
			words: "Label the node so that load balancers send it nothing more.",
		},
		{
			names: names{"node-termination-grace-period", "NODE_TERMINATION_GRACE_PERIOD", "nodeTerminationGracePeriod"},
			group: groupNode, def: "120",
			value: seconds(&c.nodeGracePeriod, 1, week),
			words: "Seconds that a drain may take where the notice has no deadline of its own.",
		},
		{
			names: names{"max-unready-nodes", "MAX_UNREADY_NODES", "maxUnreadyNodes"},
			group: groupNode, defWords: "no bound",
			value: parsed(&c.maxUnready, kindText, "1 to 100000, or 1% to 100%", parseMaxUnready),
			words: "How many nodes, or what percentage of all, may be not ready or cordoned before drains that can wait are held back, their nodes untouched. Spot interruptions, stopping instances and deadlines within node-termination-grace-period never wait.",
		},

		{
			names: names{"delete-local-data", "DELETE_LOCAL_DATA", "deleteLocalData"},
			group: groupPods, def: "true",
			value: boolean(&c.deleteLocalData),
			words: "Evict pods with emptyDir volumes too; what these hold is lost.",
		},
		{
			names: names{"ignore-daemon-sets", "IGNORE_DAEMON_SETS", "ignoreDaemonSets"},
			group: groupPods, def: "true",
			value: boolean(&c.ignoreDaemonSets),
			words: "Leave the pods of DaemonSets alone without a word. They stay in any case; false reports them.",
		},
		{
			names: names{"pod-termination-grace-period", "POD_TERMINATION_GRACE_PERIOD", "podTerminationGracePeriod"},
			older: []names{{"grace-period", "GRACE_PERIOD", ""}},
			group: groupPods, def: "-1", defWords: "each pod's own",
			value: secondsOr(&c.podGracePeriod, -1, 0, week),
			words: "Seconds that a pod gets to stop; negative for each pod's own. A deadline can shorten either.",
		},

		{
			names: names{"heartbeat-interval", "HEARTBEAT_INTERVAL", "heartbeatInterval"},
			group: groupHooks, def: "-1", defWords: "off",
			value: secondsOr(&c.heartbeatInterval, 0, 30, 3600),
			words: "Seconds between the heartbeats that keep a lifecycle hook open; less than the hook's own timeout. Negative for none.",
		},
		{
			names: names{"heartbeat-until", "HEARTBEAT_UNTIL", "heartbeatUntil"},
			group: groupHooks, def: "-1", defWords: "172800 with an interval",
			value: secondsOr(&c.heartbeatUntil, 0, 60, hookLimit),
			words: "Seconds after which no more heartbeats are sent. Only with heartbeat-interval.",
		},
		{
			names: names{"complete-lifecycle-action-delay-seconds", "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS", "completeLifecycleActionDelaySeconds"},
			group: groupHooks, def: "-1", defWords: "none",
			value: secondsOr(&c.completionDelay, 0, 0, hookLimit),
			words: "Seconds between the end of a drain and the completion of its hook, for logs to be shipped.",
		},

		{
			names: names{"lifecycle-hook-names", "LIFECYCLE_HOOK_NAMES", "lifecycleHookNames"},
			group: groupHooks, defWords: "all",
			value: parsed(&c.hookNames, kindText, "names of hooks, separated by commas", parseHookNames),
			words: "Lifecycle hooks to hold open and to complete. The others are left to whom they belong to; a node whose instance such a hook terminates is drained all the same, and nothing is forced for it.",
		},

		{
			names: names{"kubeconfig", "KUBECONFIG", ""},
			group: groupKube, defWords: "the pod's ServiceAccount, else the usual file",
			value: text(&c.kubeconfig, "paths", nil),
			words: "Files that tell where the cluster is, outside of it.",
		},
		{
			names: names{"leader-elect", "LEADER_ELECT", ""},
			group: groupKube, def: "true",
			value: boolean(&c.leaderElect),
			words: "Work only while holding a Lease, so that of several replicas one acts.",
		},
		{
			names: names{"leader-elect-resource-name", "LEADER_ELECT_RESOURCE_NAME", ""},
			group: groupKube, def: programName,
			value: notEmpty(text(&c.leaseName, "the name of a Lease", valid(validation.IsDNS1123Subdomain))),
			words: "Name of that Lease. Releases in one namespace, each with a queue of its own, need one each.",
		},
		{
			names: names{"kube-api-qps", "KUBE_API_QPS", "kubeApiQps"},
			group: groupKube, def: defaultQPS,
			value: rate(&c.kubeQPS),
			words: "Requests a second to the API server; negative for no limit.",
		},
		{
			names: names{"kube-api-burst", "KUBE_API_BURST", "kubeApiBurst"},
			group: groupKube, def: defaultBurst,
			value: burst(&c.kubeBurst),
			words: "Requests that may go beyond that rate at once; negative for no limit.",
		},
		{
			names: names{"node-name", "NODE_NAME", ""},
			group: groupKube,
			value: text(&c.nodeName, "the name of a node", valid(validation.IsDNS1123Subdomain)),
			words: "Node that the handler runs on, from the downward API: the handler's own pod is drained last.",
		},
		{
			names: names{"pod-name", "POD_NAME", ""},
			group: groupKube,
			value: text(&c.podName, "the name of a pod", valid(validation.IsDNS1123Subdomain)),
			words: "The handler's own pod, from the downward API.",
		},
		{
			names: names{"pod-namespace", "NAMESPACE", ""},
			group: groupKube,
			value: text(&c.podNamespace, "the name of a namespace", valid(validation.IsDNS1123Label)),
			words: "Its namespace, from the downward API. The Lease is kept there.",
		},
		{
			names: names{"kubernetes-service-host", "KUBERNETES_SERVICE_HOST", ""},
			group: groupKube, defWords: "as the cluster says",
			value: text(&c.kubernetesServiceHost, "a host", matching(`^[0-9A-Za-z._:-]+$`, "is not a host")),
			words: "Host of the API server, within the cluster.",
		},
		{
			names: names{"kubernetes-service-port", "KUBERNETES_SERVICE_PORT", ""},
			group: groupKube, defWords: "as the cluster says",
			value: text(&c.kubernetesServicePort, "1 to 65535", func(text string) error {
				return integer(new(int), 1, 65535).set(text)
			}),
			words: "Port of the API server, within the cluster.",
		},

		{
			names: names{"log-level", "LOG_LEVEL", "logLevel"},
			group: groupLogs, def: "info",
			value: oneOf(&c.logLevel,
				choice[zapcore.Level]{"debug", zapcore.DebugLevel},
				choice[zapcore.Level]{"info", zapcore.InfoLevel},
				choice[zapcore.Level]{"warn", zapcore.WarnLevel},
				choice[zapcore.Level]{"error", zapcore.ErrorLevel}),
			words: "The least that is logged.",
		},
		{
			names: names{"json-logging", "JSON_LOGGING", "jsonLogging"},
			group: groupLogs, def: "false",
			value: boolean(&c.jsonLogging),
			words: "Log in JSON, a line an entry.",
		},
		{
			names: names{"enable-prometheus-server", "ENABLE_PROMETHEUS_SERVER", "enablePrometheusServer"},
			group: groupLogs, def: "true",
			value: boolean(&c.prometheusServer),
			words: "Serve metrics at /metrics.",
		},
		{
			names: names{"prometheus-server-port", "PROMETHEUS_SERVER_PORT", "prometheusServerPort"},
			group: groupLogs, def: "9092",
			value: integer(&c.prometheusPort, 0, 65535),
			words: "Port of the metrics; 0 for any that is free.",
		},
		{
			names: names{"enable-probes-server", "ENABLE_PROBES_SERVER", "enableProbesServer"},
			group: groupLogs, def: "true",
			value: boolean(&c.probesServer),
			words: "Serve the probes of the kubelet.",
		},
		{
			names: names{"probes-server-port", "PROBES_SERVER_PORT", "probes.httpGet.port"},
			group: groupLogs, def: "8080",
			value: integer(&c.probesPort, 0, 65535),
			words: "Port of the probes; 0 for any that is free.",
		},
		{
			names: names{"probes-server-endpoint", "PROBES_SERVER_ENDPOINT", "probes.httpGet.path"},
			group: groupLogs, def: "/healthz",
			value: probesPath(&c.probesPath),
			words: "Path of the liveness probe; that of readiness is /readyz.",
		},

		{
			names: names{"emit-kubernetes-events", "EMIT_KUBERNETES_EVENTS", "emitKubernetesEvents"},
			group: groupEvents, def: "true",
			value: boolean(&c.emitEvents),
			words: "Record what happens to a node as Kubernetes events.",
		},
		{
			names: names{"kubernetes-events-extra-annotations", "KUBERNETES_EVENTS_EXTRA_ANNOTATIONS", "kubernetesEventsExtraAnnotations"},
			group: groupEvents,
			value: pairs(&c.eventAnnotations, "key=value,key=value", func(k, _ string) error {
				if len(validation.IsQualifiedName(strings.ToLower(k))) > 0 {
					return fmt.Errorf("has %q, which is not the key of an annotation", k)
				}
				return nil
			}),
			words: "Annotations to put on these events.",
		},
		{
			names: names{"webhook-url", "WEBHOOK_URL", "webhookURL, webhookURLSecretName"},
			group: groupEvents, secret: true,
			value: address(&c.webhookURL),
			words: "Where to post a message about each interruption; a secret, and never logged.",
		},
		{
			names: names{"webhook-proxy", "WEBHOOK_PROXY", "webhookProxy"},
			group: groupEvents, secret: true, defWords: "HTTPS_PROXY and its kin",
			value: parsed(&c.webhookProxy, kindURL, "an http, https, socks5 or socks5h URL", parseProxy),
			words: "Proxy for the webhook.",
		},
		{
			names: names{"webhook-headers", "WEBHOOK_HEADERS", "webhookHeaders"},
			group: groupEvents, secret: true, def: `{"Content-type":"application/json"}`,
			value: parsed(&c.webhookHeaders, kindText, `a JSON object of strings, such as {"Content-type":"application/json"}`, parseHeaders),
			words: "Headers of the webhook's request.",
		},
		{
			names: names{"webhook-template", "WEBHOOK_TEMPLATE", "webhookTemplate"},
			group: groupEvents, def: telemetry.DefaultTemplate,
			value: text(&c.webhookTemplate, "a Go template", checkTemplate),
			words: "Body of the webhook's request: a Go template, with sprig's functions for text; toJson quotes a value for JSON.",
		},
		{
			names: names{"webhook-template-file", "WEBHOOK_TEMPLATE_FILE", "webhookTemplateConfigMapName, webhookTemplateConfigMapKey"},
			group: groupEvents,
			value: text(&c.webhookTemplateFile, "a path", nil),
			words: "File with that template; goes before webhook-template.",
		},
		{
			names: names{"webhook-phases", "WEBHOOK_PHASES", "webhookPhases"},
			group: groupEvents, def: string(telemetry.PhaseReceived),
			value: listOf(&c.webhookPhases, telemetry.Phases...),
			words: "What the webhook is called for, separated by commas: a notice was received, its node was drained, pods missed the deadline.",
		},

		idle(kindBool, "use-provider-id", "USE_PROVIDER_ID", "useProviderId", "nodes are always found by their provider id first"),
		idle(kindBool, "assume-asg-tag-propagation", "ASSUME_ASG_TAG_PROPAGATION", "assumeAsgTagPropagation", "the tag is always looked for on the instance"),
		idle(kindBool, "use-apiserver-cache", "USE_APISERVER_CACHE", "", "nodes are watched"),
		idle(kindInteger, "log-format-version", "LOG_FORMAT_VERSION", "logFormatVersion", "there is one format of the log"),
		idle(kindText, "metadata-url", "INSTANCE_METADATA_URL", "instanceMetadataURL", queueModeOnly),
		idle(kindInteger, "metadata-tries", "METADATA_TRIES", "metadataTries", queueModeOnly),
		idle(kindText, "uptime-from-file", "UPTIME_FROM_FILE", "procUptimeFile", queueModeOnly),
		idle(kindBool, "enable-spot-interruption-draining", "ENABLE_SPOT_INTERRUPTION_DRAINING", "enableSpotInterruptionDraining", queueModeOnly),
		idle(kindBool, "enable-asg-lifecycle-draining", "ENABLE_ASG_LIFECYCLE_DRAINING", "enableASGLifecycleDraining", queueModeOnly),
		idle(kindBool, "enable-scheduled-event-draining", "ENABLE_SCHEDULED_EVENT_DRAINING", "enableScheduledEventDraining", queueModeOnly),
		idle(kindBool, "enable-rebalance-monitoring", "ENABLE_REBALANCE_MONITORING", "enableRebalanceMonitoring", queueModeOnly),
		idle(kindBool, "enable-rebalance-draining", "ENABLE_REBALANCE_DRAINING", "enableRebalanceDraining", queueModeOnly),
	}
}

// idle is an option that changes nothing, for the reason why.
func idle(k kind, flag, env, helm, why string) option {
	return option{names: names{flag, env, helm}, group: groupNoEffect, value: noValue(k), noEffect: why}
}

// queueMode takes true alone.
func queueMode() value {
	var on bool
	v := boolean(&on)
	set := v.set
	v.allowed = "true"
	v.set = func(text string) error {
		if err := set(text); err != nil {
			return err
		}
		if !on {
			return errors.New("asks for another mode: " + queueModeOnly)
		}
		return nil
	}
	return v
}

// burst takes a number above zero; any negative number stands for no limit.
func burst(p *int) value {
	v := integer(p, -1, 100000)
	set := v.set
	v.allowed = "1 to 100000, or negative"
	v.schema = schema{"type": "integer", "maximum": 100000, "not": schema{"const": 0}}
	v.set = func(text string) error {
		if n, err := parseInteger(text); err == nil && n < 0 {
			text = "-1"
		} else if err == nil && n == 0 {
			return errors.New("is out of range")
		}
		return set(text)
	}
	return v
}

// parseMaxUnready parses a number of nodes, or a percentage of them.
func parseMaxUnready(text string) (intstr.IntOrString, error) {
	number, isPercent := strings.CutSuffix(text, "%")
	most := 100_000
	if isPercent {
		most = 100
	}
	n, err := parseInteger(number)
	switch {
	case err != nil && isPercent:
		return intstr.IntOrString{}, errors.New("is not a percentage")
	case err != nil:
		return intstr.IntOrString{}, err
	case n < 1 || n > most:
		return intstr.IntOrString{}, errors.New("is out of range")
	case isPercent:
		return intstr.FromString(strconv.Itoa(n) + "%"), nil
	}
	return intstr.FromInt(n), nil
}

// hookName is what Auto Scaling takes as the name of a lifecycle hook.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
var hookName = regexp.MustCompile(`^[A-Za-z0-9_/-]{1,255}$`)

// parseHookNames parses names separated by commas.
func parseHookNames(text string) ([]string, error) {
	var all []string
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if !hookName.MatchString(name) {
			return nil, fmt.Errorf("has %q, which is not the name of a lifecycle hook", name)
		}
		all = append(all, name)
	}
	return all, nil
}

// probesPath takes what http.ServeMux takes as a plain path, other than the
// paths that the handler serves itself.
func probesPath(p *string) value {
	plain := matching(`^(/[0-9A-Za-z._~-]+)+$`, "is not a path")
	return text(p, "a path, such as /healthz", func(text string) error {
		if err := plain(text); err != nil {
			return err
		}
		if text == "/readyz" || text == "/metrics" {
			return errors.New("is taken")
		}
		return nil
	})
}

// matching accepts what matches pattern.
func matching(pattern, why string) func(string) error {
	re := regexp.MustCompile(pattern)
	return func(text string) error {
		if !re.MatchString(text) {
			return errors.New(why)
		}
		return nil
	}
}

// valid accepts what one of Kubernetes' own checks has nothing to say about.
func valid(check func(string) []string) func(string) error {
	return func(text string) error {
		if len(check(text)) > 0 {
			return errors.New("is not valid")
		}
		return nil
	}
}

// checkTemplate accepts a template that works for an example of an interruption.
func checkTemplate(text string) error {
	if _, err := telemetry.ParseTemplate(text); err != nil {
		return fmt.Errorf("does not work: %w", err)
	}
	return nil
}

// parseHeaders parses a JSON object of strings. The error names the header that
// is wrong and says nothing of its value, which may be a secret.
func parseHeaders(text string) (map[string]string, error) {
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return nil, errors.New("is not a JSON object")
	}
	headers := make(map[string]string, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s, ok := object[name].(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("has a header %q that is not a string", name)
		case !httpguts.ValidHeaderFieldName(name):
			return nil, fmt.Errorf("has %q, which is not the name of a header", name)
		case !httpguts.ValidHeaderFieldValue(s):
			return nil, fmt.Errorf("has a header %q whose value no header can have", name)
		}
		headers[name] = s
	}
	return headers, nil
}
