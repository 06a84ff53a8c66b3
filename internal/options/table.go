package options

import (
	"errors"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

const (
	// Nothing waits longer than a week on purpose; milliseconds given for
	// seconds do.
	week = 7 * 24 * 60 * 60

	// The number of requests in flight follows the answers of the API server, which has priority and fairness. A rate
	// as well would be the limit in the largest storms: 5,000 nodes of ten pods are 70,000 requests.
	defaultQPS   = "-1"
	defaultBurst = "1000"
)

// Table returns all options, to be looked at: their values go nowhere.
func Table() []Option { return new(Options).table() }

// table has all options, each bound to its field of c. Flags,
// environment variables, --help and docs/options.md come from here. The names
// are those of AWS Node Termination Handler, where it has them.
func (c *Options) table() []Option {
	all := slices.Concat(c.drainOptions(), c.metadataOptions(), c.processOptions(), idleOptions())
	for k := range all {
		if all[k].Group == "" {
			all[k].Group = all[k-1].Group
		}
	}
	return all
}

// drainOptions say which nodes are drained, when and how.
func (c *Options) drainOptions() []Option {
	return []Option{
		{
			Group: groupQueue, Names: Names{"queue-url", "QUEUE_URL", "queueURL"}, Required: true, Mode: LeaderMode,
			value: parsed(&c.Queue, queueURLForm, ParseQueueURL),
			Help: "URL of the SQS queue that gets the notices. none: there is no queue, nothing in AWS is asked but for " +
				"sweep-interval, and " +
				"the notices are what pods in IMDS mode report.",
		},
		{
			Names: Names{"aws-region", "AWS_REGION", "awsRegion"}, Owner: OfReleaseFirst,
			DefaultText: "the region in queue-url",
			value:       text(&c.Region, "a region, such as us-east-1", matching(`^[a-z][a-z0-9-]{0,62}$`, "is not a region")),
			Help:        "Region of the queue and of the instances.",
		},
		{
			Names: Names{"event-accounts", "EVENT_ACCOUNTS", "eventAccounts"}, Mode: QueueMode,
			DefaultText: "the account in queue-url", value: accounts(&c.EventAccounts),
			Help: "AWS accounts whose notices are acted on; those of others are ignored. Set it if the instances " +
				"are in another account than the queue.",
		},
		{
			Names: Names{"aws-endpoint", "AWS_ENDPOINT", "awsEndpoint"}, Mode: HookMode, Owner: OfProcess,
			DefaultText: "the endpoints of the region", value: address(&c.AWSEndpoint),
			Help: "Endpoint for all AWS services, for tests and proxies. AWS_ENDPOINT_URL of the AWS SDK works too.",
		},
		{
			Names:   Names{"enable-sqs-termination-draining", "ENABLE_SQS_TERMINATION_DRAINING", "enableSqsTerminationDraining"},
			Default: "true", value: not(&c.IMDS),
			Help: "Read notices from the queue. false is the IMDS mode: read them from the metadata of the pod's " +
				"instance, and drain only its node. The chart without a queue is in IMDS mode.",
		},
		{
			Names: Names{"sqs-msg-visibility-timeout-sec", "SQS_MSG_VISIBILITY_TIMEOUT_SEC", "sqsMsgVisibilityTimeoutSec"},
			Mode:  QueueMode, Default: "20", value: seconds(&c.VisibilityTimeout, 1, 119),
			Help: "Visibility timeout of messages, in seconds. It is extended while they are processed.",
		},
		{
			Names: Names{"delete-sqs-msg-if-node-not-found", "DELETE_SQS_MSG_IF_NODE_NOT_FOUND", "deleteSqsMsgIfNodeNotFound"},
			Mode:  QueueMode, Default: "false", value: boolean(&c.DeleteIfNodeNotFound),
			Help: "Delete messages about instances that are not in this cluster, instead of returning them to other " +
				"readers.",
		},
		{
			Names: Names{"workers", "WORKERS", "workers"}, Mode: LeaderMode, Default: "0", DefaultText: "no limit",
			value: integer(&c.Workers, 0, 10000),
			Help: "Maximum number of nodes whose pods are asked to leave at the same time; the nodes are cordoned at once. A " +
				"drain that takes longer than node-termination-grace-period counts no more. Spot interruptions and stopping " +
				"instances never wait. What bounds the nodes out of use is max-unready-nodes.",
		},

		{
			Group: groupInstances,
			Names: Names{"check-tag-before-draining", "CHECK_TAG_BEFORE_DRAINING", "checkTagBeforeDraining"},
			Older: []Names{{"check-asg-tag-before-draining", "CHECK_ASG_TAG_BEFORE_DRAINING", "checkASGTagBeforeDraining"}},
			Mode:  QueueMode, Default: "true", value: boolean(&c.CheckTag),
			Help: "Act only on instances that have the tag named by managed-tag.",
		},
		{
			Names: Names{"managed-tag", "MANAGED_TAG", "managedTag"},
			Older: []Names{{"managed-asg-tag", "MANAGED_ASG_TAG", "managedAsgTag"}}, Mode: QueueMode,
			Default: "aws-node-termination-handler/managed",
			value: text(&c.ManagedTag, "the key of a tag, at most 128 characters", func(text string) error {
				if utf8.RuneCountInString(text) > 128 {
					return errors.New("is too long for a tag")
				}
				return nil
			}),
			Help: "Key of the tag that marks the instances to act on, with any value.",
		},
		{
			Names: Names{"cluster-name", "CLUSTER_NAME", "clusterName"}, Mode: QueueMode,
			value: text(&c.ClusterName, "at most 100 letters, digits, -, _ and .",
				matching(`^[0-9A-Za-z][0-9A-Za-z._-]{0,99}$`, "is not the name of a cluster")),
			Help: "Name of the cluster, as in the tag kubernetes.io/cluster/NAME, by which instances without a Node are " +
				"known.",
		},
		{
			Names: Names{"status-interval", "STATUS_INTERVAL", "statusInterval"}, Mode: QueueMode, Default: "60",
			value: secondsOr(&c.StatusInterval, 0, 10, 3600),
			Help: "Seconds between two polls of EC2, for scheduled events, which drain nodes, and for failing status " +
				"checks. Needs ec2:DescribeInstanceStatus. Negative: no polls.",
		},
		{
			Names: Names{"drain-impaired-instances", "DRAIN_IMPAIRED_INSTANCES", "drainImpairedInstances"}, Mode: QueueMode,
			Default: "false", value: boolean(&c.DrainImpaired),
			Help: "Drain the node of an instance whose instance status or system status is impaired for two " +
				"minutes, without asking PodDisruptionBudgets. Its deadline is node-termination-grace-period. When the " +
				"checks pass again, the node is uncordoned. If several nodes are impaired, and they are more than half " +
				"of all, or more than five and more than a fifth of all, none is drained. Needs status-interval. " +
				"false: the node gets an Event.",
		},

		{
			Group: groupNode, Names: Names{"dry-run", "DRY_RUN", "dryRun"}, Default: "false", value: boolean(&c.DryRun),
			Help: "Decide and log, but change neither node, pods, lifecycle hook nor message.",
		},
		{
			Names: Names{"cordon-only", "CORDON_ONLY", "cordonOnly"}, Default: "false", value: boolean(&c.CordonOnly),
			Help: "Cordon the node, but do not evict its pods.",
		},
		{
			Names: Names{"taint-node", "TAINT_NODE", "taintNode"}, Default: "false", value: boolean(&c.TaintNode),
			Help: "Taint the node as well, with a key that names the kind of the notice.",
		},
		{
			Names: Names{"taint-effect", "TAINT_EFFECT", "taintEffect"}, Default: string(corev1.TaintEffectNoSchedule),
			value: oneOf(&c.TaintEffect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
				corev1.TaintEffectNoExecute),
			Help: "Effect of the taint that taint-node adds. NoExecute evicts all pods that do not tolerate it, at " +
				"once and without asking PodDisruptionBudgets.",
		},
		{
			Names: Names{"enable-out-of-service-taint", "ENABLE_OUT_OF_SERVICE_TAINT", "enableOutOfServiceTaint"},
			Mode:  QueueMode, Default: "false", value: boolean(&c.OutOfServiceTaint),
			Help: "Add the taint node.kubernetes.io/out-of-service once the instance is known to be stopped or " +
				"terminated, so that its volumes are detached at once.",
		},
		{
			Names:   Names{"exclude-from-load-balancers", "EXCLUDE_FROM_LOAD_BALANCERS", "excludeFromLoadBalancers"},
			Default: "auto",
			value: booleanOr(&c.ExcludeFromLoadBalancers, "auto",
				decision.ExcludeEnding, decision.ExcludeAll, decision.ExcludeNone),
			Help: "Add the label node.kubernetes.io/exclude-from-external-load-balancers. true: to each node that is " +
				"cordoned; auto: to those whose machine ends (docs/load-balancers.md).",
		},
		{
			Names:   Names{"node-termination-grace-period", "NODE_TERMINATION_GRACE_PERIOD", "nodeTerminationGracePeriod"},
			Default: "120", value: seconds(&c.NodeGracePeriod, 1, week),
			Help: "Deadline of a drain, in seconds after the event, where AWS names none: of an instance that " +
				"stops, and of a lifecycle hook whose timeout cannot be read.",
		},
		{
			Names: Names{"max-unready-nodes", "MAX_UNREADY_NODES", "maxUnreadyNodes"}, Mode: LeaderMode,
			DefaultText: "no limit", value: parsed(&c.MaxUnready, "1 to 100000, or 1% to 100%", parseMaxUnready),
			Help: "Maximum number or percentage of nodes that are not ready or cordoned. While it is reached, drains " +
				"that can wait do not begin. Spot interruptions, stopping instances and deadlines within " +
				"node-termination-grace-period never wait.",
		},
		{
			Names: Names{"policy-file", "POLICY_FILE", "policy"}, value: text(&c.PolicyFile, "a path", nil),
			Help: "File with rules that say what is done with which node and which pod (docs/policy.md). A change " +
				"takes effect within five seconds; a file that is wrong changes nothing.",
		},

		{
			Group: groupPods, Names: Names{"delete-local-data", "DELETE_LOCAL_DATA", "deleteLocalData"}, Default: "true",
			value: boolean(&c.DeleteLocalData),
			Help:  "Also evict pods with emptyDir volumes, whose data is lost.",
		},
		{
			Names: Names{"ignore-daemon-sets", "IGNORE_DAEMON_SETS", "ignoreDaemonSets"}, Default: "true",
			value: boolean(&c.IgnoreDaemonSets),
			Help:  "DaemonSet pods are never evicted. false only logs each one that stays.",
		},
		{
			Names: Names{"pod-termination-grace-period", "POD_TERMINATION_GRACE_PERIOD", "podTerminationGracePeriod"},
			Older: []Names{{"grace-period", "GRACE_PERIOD", ""}}, Default: "-1", DefaultText: "the pod's own",
			value: secondsOr(&c.PodGracePeriod, -1, 0, week),
			Help:  "Grace period of an evicted pod, in seconds. Negative: the pod's own. A deadline can shorten either.",
		},
		{
			Names: Names{"surge-singletons", "SURGE_SINGLETONS", "surgeSingletons"}, Default: "false",
			value: boolean(&c.SurgeSingletons),
			Help: "Replace the only pod of a Deployment that asks for it, by a rollout, before it leaves (docs/policy.md). " +
				"Needs the rights to get ReplicaSets and to get and patch Deployments, which the chart grants.",
		},
		{
			Names: Names{"drain-by-karpenter", "DRAIN_BY_KARPENTER", "drainByKarpenter"}, Mode: LeaderMode, Default: "false",
			value: boolean(&c.DrainByKarpenter),
			Help: "Have Karpenter drain its own nodes, by its own rules for pods (docs/karpenter.md). Needs the rights " +
				"to get, patch and delete NodeClaims, which the chart grants.",
		},

		{
			Group: groupHooks, Names: Names{"heartbeat-interval", "HEARTBEAT_INTERVAL", "heartbeatInterval"}, Mode: HookMode,
			Default: "-1", DefaultText: "off", value: secondsOr(&c.HeartbeatInterval, 0, 30, 3600),
			Help: "Seconds between the heartbeats that keep a lifecycle hook from timing out: less than its " +
				"timeout. Negative: no heartbeats.",
		},
		{
			Names: Names{"heartbeat-until", "HEARTBEAT_UNTIL", "heartbeatUntil"}, Mode: HookMode, Default: "-1",
			DefaultText: "172800 if heartbeat-interval is set", value: secondsOr(&c.HeartbeatUntil, 0, 60, hookLimit),
			Help: "Seconds after the start of a lifecycle hook at which its heartbeats end. Needs heartbeat-interval.",
		},
		{
			Names: Names{
				"complete-lifecycle-action-delay-seconds", "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS",
				"completeLifecycleActionDelaySeconds",
			},
			Mode: HookMode, Default: "-1", DefaultText: "none", value: secondsOr(&c.CompletionDelay, 0, 0, hookLimit),
			Help: "Seconds to wait between the end of a drain and the completion of its lifecycle hook, for example " +
				"to ship logs. It is over before the hook times out, and by heartbeat-until.",
		},
		{
			Names: Names{"sweep-interval", "SWEEP_INTERVAL", "sweepInterval"}, Mode: LeaderMode, Default: "30",
			DefaultText: "none with queue-url none",
			value:       secondsOr(&c.SweepInterval, 0, 10, 3600),
			Help: "Seconds between two sweeps for lifecycle hooks whose notices were lost, with queue-url none for " +
				"all: their nodes are drained too. Needs autoscaling:DescribeAutoScalingGroups and " +
				"autoscaling:RecordLifecycleActionHeartbeat. " +
				"Without lifecycle-hook-names, hooks of EKS managed node groups and hooks with a notification target " +
				"are left to their owners. Negative: no sweeps.",
		},
		{
			Names: Names{"lifecycle-hook-names", "LIFECYCLE_HOOK_NAMES", "lifecycleHookNames"}, Mode: HookMode,
			DefaultText: "all",
			value: list(&c.HookNames, "names of hooks, separated by commas", "not the name of a lifecycle hook",
				"not names of lifecycle hooks", checked(hookName)),
			Help: "Names of the lifecycle hooks to keep open and to complete. Other hooks are left to their owners: " +
				"the node is drained, but nothing is forced.",
		},
		{
			Names: Names{"startup-taints", "STARTUP_TAINTS", "startupTaints"}, Mode: QueueMode, DefaultText: "none",
			value: list(&c.StartupTaints, "keys of taints, separated by commas", "not the key of a taint",
				"not keys of taints", checked(valid(validation.IsQualifiedName))),
			Help: "Keys of taints that a node loses when its startup is over. A launch hook is completed when the " +
				"node is ready without them, and without any that begins with readiness.k8s.io/.",
		},
	}
}
