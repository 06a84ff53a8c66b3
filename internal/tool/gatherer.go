package tool

import (
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/node-termination-handler/node-termination-handler/internal/app"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/loadbalancer"
	"github.com/node-termination-handler/node-termination-handler/internal/options"
)

// NewGatherer returns what asks AWS and the cluster for the facts that doctor judges,
// with the options c and the credentials of cfg. version is that of this program.
func NewGatherer(cfg aws.Config, c *options.Options, version string) *doctor.Gatherer {
	const timeout = 30 * time.Second
	klog.SetLogger(logr.Discard()) // what they say is in the answers
	queue, instances, groups := app.SQSClient(cfg, c), ec2.NewFromConfig(cfg), autoscaling.NewFromConfig(cfg)
	keys, events, topics := kms.NewFromConfig(cfg), eventbridge.NewFromConfig(cfg), sns.NewFromConfig(cfg)
	g := &doctor.Gatherer{
		Patience: timeout,
		Options: doctor.Options{
			QueueURL: c.Queue.Text, QueueName: c.Queue.Name, Account: c.Queue.Account,
			Region: c.Region, Partition: partitionOf(c.Region), EventAccounts: c.EventAccounts, NoQueue: c.Queue.None(),
			CheckTag: c.CheckTag, ManagedTag: c.ManagedTag, Visibility: c.VisibilityTimeout,
			HeartbeatInterval: c.HeartbeatInterval, HeartbeatUntil: c.HeartbeatUntil, HookNames: c.HookNames,
			Poll: c.StatusInterval > 0, Excludes: c.ExcludeFromLoadBalancers != decision.ExcludeNone,
			LeaderElect: c.LeaderElect, EmitEvents: c.EmitEvents, Conditions: c.NodeConditions,
			Surge: c.SurgeSingletons, ByKarpenter: c.DrainByKarpenter,
			Lease: c.LeaseName, Version: version,
		},
		AWS: doctor.AWS{
			Credentials:       cfg.Credentials,
			GetCallerIdentity: sts.NewFromConfig(cfg).GetCallerIdentity,

			GetQueueAttributes: queue.GetQueueAttributes, ReceiveMessage: queue.ReceiveMessage,
			DeleteMessage: queue.DeleteMessage, ChangeMessageVisibility: queue.ChangeMessageVisibility,

			DescribeKey: keys.DescribeKey, GetKeyPolicy: keys.GetKeyPolicy, Decrypt: keys.Decrypt,

			ListRuleNamesByTarget: events.ListRuleNamesByTarget, DescribeRule: events.DescribeRule,
			ListTargetsByRule: events.ListTargetsByRule,

			GetTopicAttributes: topics.GetTopicAttributes, ListSubscriptionsByTopic: topics.ListSubscriptionsByTopic,
			GetSubscriptionAttributes: topics.GetSubscriptionAttributes,

			DescribeInstances: instances.DescribeInstances, DescribeInstanceStatus: instances.DescribeInstanceStatus,

			DescribeTargetHealth: elb.NewFromConfig(cfg).DescribeTargetHealth,

			DescribeAutoScalingGroups: groups.DescribeAutoScalingGroups,
			DescribeLifecycleHooks:    groups.DescribeLifecycleHooks,
			CompleteLifecycleAction:   groups.CompleteLifecycleAction,

			RecordLifecycleActionHeartbeat: groups.RecordLifecycleActionHeartbeat,
		},
	}
	if _, g.Options.Namespace, g.Cluster.Err = app.RESTConfig(c); g.Cluster.Err == nil {
		var clients *kube.Clients
		clients, g.Cluster.Err = connect(c, requestTimeout)
		g.Cluster.Client, g.Cluster.Version = clients, clients.Version
		if clients != nil {
			g.Cluster.Bindings = loadbalancer.OfCluster(clients.CoreV1().RESTClient())
		}
	}
	return g
}

// partitionOf returns the partition of a region.
// https://docs.aws.amazon.com/general/latest/gr/rande.html
func partitionOf(region string) string {
	for _, p := range []struct{ prefix, partition string }{
		{"cn-", "aws-cn"},
		{"us-gov-", "aws-us-gov"},
		{"us-iso-", "aws-iso"},
		{"us-isob-", "aws-iso-b"},
		{"eu-isoe-", "aws-iso-e"},
		{"us-isof-", "aws-iso-f"},
		{"eusc-", "aws-eusc"},
	} {
		if strings.HasPrefix(region, p.prefix) {
			return p.partition
		}
	}
	return "aws"
}
