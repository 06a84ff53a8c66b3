package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"
	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/doctor"
)

const (
	second    = "i-0123456789abcdef1"
	lonely    = "i-0123456789abcdef2" // in no group
	ownARN    = "arn:aws:sqs:us-east-1:123456789012:nth"
	patternOf = `{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]`
)

// An outcome is something that can be wrong with an installation, and what doctor has to
// say of it. Every check that is not listed is well, or unknown because of one that is.
type outcome struct {
	pitfall string
	// set is how it comes about: commands for the simulator's control API. A body has '
	// for the quotes of JSON, so that those within its strings need no escape.
	set []string
	// also changes what the simulator does not have: options, the cluster.
	also func(*site)
	want string // ids with their marks, as on the screen; empty: all is well
	says string // a part of the line of the first of them
	runs string // the beginning of the command that its remedy has
}

var outcomes = []outcome{
	// The role.
	{pitfall: "the role lacks sqs:ReceiveMessage", set: deny("sqs", "ReceiveMessage"), want: "permissions ×", says: "sqs:ReceiveMessage"},
	{pitfall: "the role lacks sqs:DeleteMessage", set: deny("sqs", "DeleteMessage"), want: "permissions ×", says: "sqs:DeleteMessage"},
	{pitfall: "the role lacks ec2:DescribeInstances", set: deny("ec2", "DescribeInstances"), want: "permissions × nodes ×", says: "ec2:DescribeInstances"},
	{pitfall: "the role lacks autoscaling:CompleteLifecycleAction", set: deny("autoscaling", "CompleteLifecycleAction"), want: "permissions ×", says: "autoscaling:CompleteLifecycleAction"},
	{pitfall: "the role lacks sqs:ChangeMessageVisibility", set: deny("sqs", "ChangeMessageVisibility"), want: "permissions ‼", says: "sqs:ChangeMessageVisibility"},
	{pitfall: "the role lacks sqs:GetQueueAttributes", set: deny("sqs", "GetQueueAttributes"), want: "permissions ‼ queue ?", says: "sqs:GetQueueAttributes"},
	{pitfall: "the role lacks autoscaling:DescribeLifecycleHooks", set: deny("autoscaling", "DescribeLifecycleHooks"), want: "permissions ‼ group-hook ?", says: "autoscaling:DescribeLifecycleHooks"},
	{pitfall: "the role lacks autoscaling:RecordLifecycleActionHeartbeat, which nobody uses", set: deny("autoscaling", "RecordLifecycleActionHeartbeat"), also: func(s *site) { s.Options.HeartbeatInterval = 0 }},
	{pitfall: "the role lacks autoscaling:RecordLifecycleActionHeartbeat, which the sweep needs", set: deny("autoscaling", "RecordLifecycleActionHeartbeat"), also: func(s *site) { s.Options.HeartbeatInterval, s.Options.Sweep = 0, true }, want: "permissions ‼", says: "autoscaling:RecordLifecycleActionHeartbeat"},
	{pitfall: "the role lacks ec2:DescribeInstanceStatus", set: deny("ec2", "DescribeInstanceStatus"), want: "permissions ‼", says: "ec2:DescribeInstanceStatus"},
	{pitfall: "the role lacks ec2:DescribeInstanceStatus, which nobody uses", set: deny("ec2", "DescribeInstanceStatus"), also: func(s *site) { s.Options.Poll = false }},
	{pitfall: "all of SQS is denied", set: deny("sqs", "*"), want: "permissions × queue ?", says: "sqs:ReceiveMessage"},
	{pitfall: "the role of releases before, which sees no rules", set: slices.Concat(deny("events", "*"), deny("kms", "*")), want: "rule-spot ? rule-asg-terminate ? queue-key ?", says: "events:ListRuleNamesByTarget"},
	{pitfall: "that role, and no rules", set: slices.Concat(deny("events", "*"), deny("kms", "*"), []string{"DELETE rules/all"}), want: "rule-spot ? rule-asg-terminate ?", says: "events:ListRuleNamesByTarget"},

	// Credentials.
	{pitfall: "no credentials", also: func(s *site) { s.credentials(errors.New("no EC2 IMDS role found")) }, want: "credentials ×", says: "no EC2 IMDS role found"},
	{pitfall: "the trust policy refuses", also: func(s *site) {
		s.credentials(errors.New("operation error STS: AssumeRoleWithWebIdentity, AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity"))
	}, want: "credentials ×", says: "AssumeRoleWithWebIdentity"},
	{pitfall: "the wrong region", set: []string{
		`PUT faults/region {'service': '*', 'code': 'SignatureDoesNotMatch', 'message': 'Credential should be scoped to a valid region.', 'status': 403}`,
	}, want: "credentials ×", says: "region"},
	{pitfall: "the wrong account in queue-url", also: func(s *site) {
		s.Options.Account, s.Options.EventAccounts = "111122223333", []string{"111122223333"}
		s.Options.QueueURL = strings.Replace(s.Options.QueueURL, "123456789012", "111122223333", 1)
	}, want: "account × event-accounts ×", says: "111122223333"},

	// The queue.
	{pitfall: "no queue", set: []string{"DELETE queues/nth"}, want: "queue ×", says: "there is no queue nth in"},
	{pitfall: "no queue, and a role that lacks autoscaling:CompleteLifecycleAction", set: append(deny("autoscaling", "CompleteLifecycleAction"), "DELETE queues/nth"), want: "permissions × queue ×", says: "the role lacks autoscaling:CompleteLifecycleAction"},
	{pitfall: "no queue, and a role that lacks ec2:DescribeInstances", set: append(deny("ec2", "DescribeInstances"), "DELETE queues/nth"), want: "permissions × queue × nodes ×", says: "the role lacks ec2:DescribeInstances"},
	{pitfall: "no queue, and a role that lacks ec2:DescribeInstanceStatus", set: append(deny("ec2", "DescribeInstanceStatus"), "DELETE queues/nth"), want: "permissions ? queue ×", says: "the role lacks ec2:DescribeInstanceStatus; of its other permissions some were not asked, see queue"},
	{pitfall: "no queue, and a handler without a right in the cluster", set: []string{"DELETE queues/nth"}, also: forbidden("selfsubjectaccessreviews"), want: "rbac × queue ×", says: "patch nodes"},
	{pitfall: "SQS hangs, and a role that lacks autoscaling:CompleteLifecycleAction", set: append(deny("autoscaling", "CompleteLifecycleAction"), `PUT faults/hang {'service': 'sqs', 'hang': true}`), want: "permissions × queue ×", says: "the role lacks autoscaling:CompleteLifecycleAction"},
	{pitfall: "SQS hangs", set: []string{`PUT faults/hang {'service': 'sqs', 'hang': true}`}, want: "queue ×", says: "no answer within"},
	{pitfall: "SQS is out of order", set: []string{`PUT faults/down {'service': 'sqs', 'code': 'ServiceUnavailable', 'status': 503}`}, want: "queue ×", says: "ServiceUnavailable"},
	{pitfall: "a FIFO queue", set: []string{
		`PUT queues/nth.fifo {'attributes': {'FifoQueue': 'true', 'ContentBasedDeduplication': 'true', 'MessageRetentionPeriod': '345600'}}`,
		`PUT queues/dead.fifo {'attributes': {'FifoQueue': 'true', 'MessageRetentionPeriod': '1209600'}}`,
		`PUT queues/nth.fifo {'attributes': {'RedrivePolicy': '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead.fifo", "maxReceiveCount": 10}'}}`,
		"PUT queues/nth.fifo/policy " + allowRules, rule("all", patternOf+"}", "nth.fifo", `, 'messageGroup': 'all'`),
	}, also: func(s *site) {
		s.Options.QueueName, s.Options.QueueURL = "nth.fifo", s.Options.QueueURL+".fifo"
	}, want: "queue-type ×", says: "FIFO"},
	{pitfall: "a FIFO queue, and no message group", set: []string{
		`PUT queues/nth.fifo {'attributes': {'FifoQueue': 'true', 'MessageRetentionPeriod': '345600'}}`,
		"PUT queues/nth.fifo/policy " + allowRules, rule("all", patternOf+"}", "nth.fifo", ""),
	}, also: func(s *site) {
		s.Options.QueueName, s.Options.QueueURL = "nth.fifo", s.Options.QueueURL+".fifo"
	}, want: "queue-type × queue-redrive ‼", says: "FIFO"},
	{pitfall: "a delay of 90 s", set: attribute("DelaySeconds", "90"), want: "queue-delay ×", runs: "aws sqs set-queue-attributes"},
	{pitfall: "a delay of 10 s", set: attribute("DelaySeconds", "10"), want: "queue-delay ‼", runs: "aws sqs set-queue-attributes"},
	{pitfall: "a retention of 5 minutes", set: attribute("MessageRetentionPeriod", "300"), want: "queue-retention ‼", says: "if no replica runs for longer", runs: "aws sqs set-queue-attributes"},
	{pitfall: "a retention of a minute", set: attribute("MessageRetentionPeriod", "60"), want: "queue-retention ×", runs: "aws sqs set-queue-attributes"},
	{pitfall: "messages of 2 KiB at most", set: attribute("MaximumMessageSize", "2048"), want: "queue-size ×", runs: "aws sqs set-queue-attributes"},
	{pitfall: "messages of 64 KiB at most", set: attribute("MaximumMessageSize", "65536"), want: "queue-size ‼", runs: "aws sqs set-queue-attributes"},
	{pitfall: "no dead-letter queue", set: attribute("RedrivePolicy", ""), want: "queue-redrive ‼", runs: "aws sqs create-queue"},
	{pitfall: "one receive", set: redrive(1), want: "queue-redrive ‼", says: "after 1 receive:", runs: "aws sqs set-queue-attributes"},
	{pitfall: "three receives", set: redrive(3), want: "queue-redrive ‼", says: "after 3 receives", runs: "aws sqs set-queue-attributes"},
	{pitfall: "the key that AWS manages", set: attribute("KmsMasterKeyId", "alias/aws/sqs"), want: "queue-key ×", says: "AWS manages", runs: "aws sqs set-queue-attributes"},
	{pitfall: "a key that EventBridge has no grant for", set: []string{"PUT keys/k-1/policy {'Statement': []}"}, want: "queue-key ×", says: "does not let EventBridge"},
	{pitfall: "a key that is disabled", set: []string{"PUT keys/k-1 {'alias': 'alias/queues', 'state': 'Disabled'}"}, want: "queue-key ×", says: "Disabled"},
	{pitfall: "a key that is gone", set: attribute("KmsMasterKeyId", "alias/none"), want: "queue-key ×", says: "does not exist"},
	{pitfall: "the role lacks kms:Decrypt", set: deny("kms", "Decrypt"), want: "queue-decrypt ?", says: "no message can be read"},
	{pitfall: "the right key", set: attribute("KmsMasterKeyId", "alias/queues")},
	{pitfall: "no policy", set: []string{"PUT queues/nth/policy"}, want: "queue-policy ×", says: "no policy", runs: "aws sqs set-queue-attributes"},
	{pitfall: "a policy for another rule", set: []string{"PUT queues/nth/policy " + strings.Replace(allowRules, "rule/*", "rule/other", 1)}, want: "queue-policy ×", says: "rule all"},
	{pitfall: "a policy for another queue", set: []string{"PUT queues/nth/policy " + strings.Replace(allowRules, `"Resource": "*"`, `"Resource": "`+ownARN+`-2"`, 1)}, want: "queue-policy ×", says: "rule all"},
	{pitfall: "a policy for sqs.amazonaws.com alone", set: []string{"PUT queues/nth/policy " + strings.Replace(allowRules, "events.amazonaws.com", "sqs.amazonaws.com", 1)}, want: "queue-policy ×", says: "rule all"},
	{pitfall: "a policy without a condition", set: []string{`PUT queues/nth/policy {'Statement': {'Effect': 'Allow', 'Principal': {'Service': 'events.amazonaws.com'}, 'Action': 'sqs:SendMessage', 'Resource': '*'}}`}, want: "queue-policy-open ‼", says: "any account"},
	{pitfall: "a policy for everybody", set: []string{`PUT queues/nth/policy {'Statement': {'Effect': 'Allow', 'Principal': '*', 'Action': 'sqs:SendMessage', 'Resource': '*'}}`}, want: "queue-policy-open ×", says: "everybody"},
	{pitfall: "the policy that NTH documents", set: []string{
		`PUT queues/nth/policy {'Version': '2012-10-17', 'Id': 'MyQueuePolicy', 'Statement': [{'Effect': 'Allow', 'Principal': {'Service': ['events.amazonaws.com', 'sqs.amazonaws.com']}, 'Action': 'sqs:SendMessage', 'Resource': ['` + ownARN + `']}]}`,
	}, want: "queue-policy-open ‼", says: "any account"},

	// Rules.
	{
		pitfall: "no rules, and a policy that is right for those to come", set: []string{"DELETE rules/all", "PUT queues/nth/policy " + strings.Replace(allowRules, "rule/*", "rule/nth-*", 1)},
		want: "rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼ queue-policy ?", says: "no rule sends spot", runs: "aws events put-rule",
	},
	{pitfall: "no rule for spot interruptions", set: []string{rule("all", `{"detail-type": [{"anything-but": "EC2 Spot Instance Interruption Warning"}]}`, "nth", "")}, want: "rule-spot ×", says: "no rule sends spot", runs: "aws events put-rule"},
	{
		pitfall: "a rule that is disabled", set: []string{rule("all", patternOf+"}", "nth", ", 'disabled': true")},
		want: "rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼", says: "the rule all is disabled", runs: "aws events enable-rule",
	},
	{pitfall: "a rule with a typo", set: []string{
		rule("all", `{"detail-type": [{"anything-but": "EC2 Spot Instance Interruption Warning"}]}`, "nth", ""),
		rule("spot", `{"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption"]}`, "nth", ""),
	}, want: "rule-spot ×", says: `spot {"source":["aws.ec2"],"detail-type":["EC2 Spot Instance Interruption"]}`, runs: "aws events put-rule"},
	{
		pitfall: "rules that fill another queue", set: []string{"PUT queues/other", rule("all", patternOf+"}", "other", "")},
		want: "rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼",
	},
	{pitfall: "a rule for state changes that come too late", set: []string{
		rule("all", `{"detail-type": [{"anything-but": "EC2 Instance State-change Notification"}]}`, "nth", ""),
		rule("state", `{"detail": {"state": ["terminated"]}}`, "nth", ""),
	}, want: "rule-state-change ‼", says: "state {"},
	{pitfall: "no rule for AWS Health", set: []string{rule("all", `{"source": ["aws.ec2", "aws.autoscaling"]}`, "nth", "")}, want: "rule-health ‼", runs: "aws events put-rule"},
	{pitfall: "no rule for rebalance recommendations", set: []string{rule("all", `{"detail-type": [{"anything-but": "EC2 Instance Rebalance Recommendation"}]}`, "nth", "")}, want: "rule-rebalance ‼"},
	{pitfall: "no rule for terminations", set: []string{rule("all", `{"source": ["aws.ec2", "aws.health"]}`, "nth", "")}, want: "rule-asg-terminate ×", says: "affected: workers", runs: "aws events put-rule"},
	{pitfall: "a rule for the terminations of another group", set: []string{
		rule("all", `{"source": ["aws.ec2", "aws.health"]}`, "nth", ""), rule("asg", `{"source": ["aws.autoscaling"], "detail": {"AutoScalingGroupName": ["others"]}}`, "nth", ""),
	}, want: "rule-asg-terminate ×", says: "affected: workers"},
	{pitfall: "a hook that tells another queue", set: []string{
		rule("all", `{"source": ["aws.ec2", "aws.health"]}`, "nth", ""), hook("drain", "TERMINATING", "5m", ", 'targetARN': '"+ownARN+"-2'"),
	}, want: "rule-asg-terminate ×", says: "affected: workers"},
	{pitfall: "a launch hook without a rule", set: []string{
		rule("all", `{"detail-type": [{"anything-but": "EC2 Instance-launch Lifecycle Action"}]}`, "nth", ""), hook("join", "LAUNCHING", "10m", ""),
	}, want: "rule-asg-launch ‼", says: "affected: workers"},
	{pitfall: "a rule that takes everything", set: []string{rule("all", `{"account": ["123456789012"]}`, "nth", "")}},
	{pitfall: "a rule for AWS Health of every category", set: []string{rule("all", `{"source": ["aws.ec2", "aws.autoscaling"]}`, "nth", ""), rule("health", `{"source": ["aws.health"]}`, "nth", "")}},

	// Other ways to the queue.
	{pitfall: "a topic between the rule and the queue", set: throughTopic("")},
	{pitfall: "a topic and raw delivery", set: throughTopic(", 'raw': true")},
	{pitfall: "a topic with a filter that takes all", set: throughTopic(`, 'filter': '{"source": ["aws.ec2", "aws.health", "aws.autoscaling"]}'`)},
	{pitfall: "a topic with a filter without spot interruptions", set: throughTopic(`, 'filter': '{"detail-type": [{"anything-but": "EC2 Spot Instance Interruption Warning"}]}'`), want: "rule-spot ×", says: "the filter of the subscription", runs: "aws sns set-subscription-attributes"},
	{pitfall: "a topic, and no right to read it", set: slices.Concat(throughTopic(""), deny("sns", "GetTopicAttributes")), want: "topic ? rule-spot ? rule-asg-terminate ?", says: "sns:GetTopicAttributes"},
	{pitfall: "a topic, and no right to list its subscriptions", set: slices.Concat(throughTopic(""), deny("sns", "ListSubscriptionsByTopic")), want: "topic ? rule-spot ? rule-asg-terminate ?", says: "sns:ListSubscriptionsByTopic"},
	{pitfall: "a topic, and no right to read the subscription", set: slices.Concat(throughTopic(""), deny("sns", "GetSubscriptionAttributes")), want: "topic ? rule-spot ? rule-asg-terminate ?", says: "sns:GetSubscriptionAttributes"},
	{
		pitfall: "a topic to which the queue is not subscribed", set: append(throughTopic(""), "DELETE subscriptions/"+topicARN+"/nth"),
		want: "topic × rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼", says: "not subscribed", runs: "aws sns subscribe",
	},
	{
		pitfall: "a topic that is not there", set: append(throughTopic(""), "PUT queues/nth/policy "+strings.Replace(allowTopic, topicARN, topicARN+"-2", 1), attribute("KmsMasterKeyId", "")[0]),
		want: "topic × rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼", says: "does not exist",
	},
	{pitfall: "a topic that the rule may not publish to", set: append(throughTopic(""), "POST topics {'arn': '"+topicARN+"'}"), want: "topic ×", says: "does not let rule all publish"},
	{pitfall: "a topic without a rule", set: append(throughTopic(""), "DELETE rules/all"), want: "rule-spot × rule-asg-terminate × rule-rebalance ‼ rule-state-change ‼ rule-health ‼", says: "no rule sends spot", runs: "aws events put-rule"},
	{pitfall: "a subscriber of a custom event bus", set: []string{
		rule("all", patternOf+"}", "nth", ", 'bus': true, 'withMetadata': true, 'roleARN': '"+deliverARN+"'"),
		"PUT queues/nth/policy " + allowRole, "PUT keys/k-1/policy " + allowRole,
	}, want: "rule-spot ? rule-asg-terminate ?", says: "cannot be seen from here"},
	{pitfall: "a rule with an execution role", set: []string{
		rule("all", patternOf+"}", "nth", ", 'roleARN': '"+deliverARN+"'"), "PUT queues/nth/policy " + allowRole, "PUT keys/k-1/policy " + allowRole,
	}},
	{pitfall: "a rule with an execution role that the queue does not let in", set: []string{
		rule("all", patternOf+"}", "nth", ", 'roleARN': '"+deliverARN+"-2'"), "PUT queues/nth/policy " + allowRole, attribute("KmsMasterKeyId", "")[0],
	}, want: "queue-policy ×", says: "does not let role " + deliverARN + "-2 in"},
	{pitfall: "a single rule for all kinds", set: []string{"PUT rules/all {'queue': 'nth', 'deadLetters': 'dead', 'pattern': '" + single + "'}"}},

	// Hooks.
	{pitfall: "a group without a hook", set: []string{"PUT groups/bare {'instances': ['" + second + "'], 'tags': {'" + tag + "': ''}}"}, want: "group-hook ‼", says: "bare", runs: "aws autoscaling put-lifecycle-hook"},
	{pitfall: "a hook of 30 s, and pods that stop at once", set: []string{hook("drain", "TERMINATING", "30s", "")}, also: func(s *site) {
		s.Options.HeartbeatInterval = 0
		s.pod("web", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(1)) })
	}, want: "hook-timeout ‼", says: "before another replica has taken over", runs: "aws autoscaling put-lifecycle-hook"},
	{pitfall: "a hook that is shorter than a pod's grace", set: []string{hook("drain", "TERMINATING", "1m", "")}, also: func(s *site) { s.Options.HeartbeatInterval = 0 }, want: "hook-timeout ‼", says: "pod default/web may take 1m", runs: "aws autoscaling put-lifecycle-hook"},
	{pitfall: "a hook of a minute, and an interval of 5 minutes", set: []string{hook("drain", "TERMINATING", "1m", "")}, also: func(s *site) { s.Options.HeartbeatInterval = 5 * time.Minute }},
	{pitfall: "a launch hook of 30 s", set: []string{hook("join", "LAUNCHING", "30s", ", 'defaultResult': 'ABANDON'")}, want: "hook-launch ‼", says: "join of workers (30s)", runs: "aws autoscaling put-lifecycle-hook"},
	{pitfall: "a hook that lifecycle-hook-names leaves out", also: func(s *site) { s.Options.HookNames = []string{"other"} }, want: "group-hook ‼", says: "lifecycle-hook-names=other leaves out"},

	// Nodes.
	{pitfall: "one instance without the tag", set: []string{"PUT instances/" + second + " {'tags': {'aws:autoscaling:groupName': 'workers'}}"}, want: "nodes ‼", says: "b (no tag", runs: "aws ec2 create-tags --resources " + second + " --tags Key=" + tag},
	{pitfall: "no instance with the tag", set: []string{"PUT instances/" + second, "PUT instances/" + instance}, want: "nodes ×", runs: "aws ec2 create-tags --resources " + instance + " " + second},
	{pitfall: "another tag than managed-tag", also: func(s *site) { s.Options.ManagedTag = "mine" }, want: "nodes × group-tag ‼", says: "no tag mine", runs: "aws ec2 create-tags"},
	{pitfall: "a group that does not pass the tag on", set: []string{"PUT groups/workers {'instances': ['" + instance + "', '" + second + "']}"}, want: "group-tag ‼", runs: "aws autoscaling create-or-update-tags"},
	{pitfall: "no groups", set: []string{"PUT instances/" + lonely + " {'tags': {'" + tag + "': ''}}"}, also: func(s *site) {
		s.must(s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "b"))
		s.node("a", func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-east-1a/" + lonely })
	}, want: "group-tag ?", says: "no node belongs to an Auto Scaling group"},
	{pitfall: "a node without a provider id, by its private DNS name", set: []string{"PUT instances/" + second + " {'privateDNSName': 'b', 'tags': {'" + tag + "': ''}}"}, also: func(s *site) { s.node("b", func(n *corev1.Node) { n.Spec.ProviderID = "" }) }},
	{pitfall: "a node without a provider id, and no such instance", also: func(s *site) { s.node("b", func(n *corev1.Node) { n.Spec.ProviderID = "" }) }, want: "nodes ‼", says: "no provider id, and no instance has its name"},
	{pitfall: "a node of k3s, by its private DNS name", set: []string{"PUT instances/" + second + " {'privateDNSName': 'b', 'tags': {'" + tag + "': ''}}"}, also: func(s *site) { s.node("b", func(n *corev1.Node) { n.Spec.ProviderID = "k3s://b" }) }},
	{pitfall: "a node of another cloud", also: func(s *site) { s.node("b", func(n *corev1.Node) { n.Spec.ProviderID = "gce://a/b/c" }) }, want: "nodes ‼", says: "gce://a/b/c is none of EC2"},
	{pitfall: "an instance of another account or region", set: []string{"DELETE instances/" + second}, want: "nodes ‼", says: "EC2 does not know " + second},

	// Others in the cluster.
	{pitfall: "NTH on the same queue", also: func(s *site) {
		s.pod("nth", labeled("aws-node-termination-handler", corev1.EnvVar{Name: "QUEUE_URL", Value: s.Options.QueueURL}))
	}, want: "other-handlers ×", says: "AWS Node Termination Handler"},
	{pitfall: "NTH without a queue beside", also: func(s *site) { s.pod("nth", labeled("aws-node-termination-handler")) }, want: "other-handlers ‼", says: "AWS Node Termination Handler"},
	{pitfall: "Karpenter on the same queue", also: func(s *site) {
		s.pod("k", labeled("karpenter", corev1.EnvVar{Name: "INTERRUPTION_QUEUE", Value: "nth"}))
	}, want: "other-handlers ×", says: "Karpenter"},
	{pitfall: "Karpenter as it is recommended: with a queue of its own, and nodes without the tag", set: []string{"PUT instances/" + second}, also: func(s *site) {
		s.pod("k", labeled("karpenter", corev1.EnvVar{Name: "INTERRUPTION_QUEUE", Value: "k"}))
		s.node("b", func(n *corev1.Node) { n.Labels = map[string]string{"karpenter.sh/nodepool": "default"} })
	}},
	{pitfall: "Karpenter with a queue of its own, and nodes that both drain", also: func(s *site) {
		s.pod("k", labeled("karpenter", corev1.EnvVar{Name: "INTERRUPTION_QUEUE", Value: "k"}))
		s.node("b", func(n *corev1.Node) { n.Labels = map[string]string{"karpenter.sh/nodepool": "default"} })
	}, want: "other-handlers ‼", says: "Karpenter"},
	{pitfall: "another release in another namespace", also: func(s *site) {
		s.pod("ours", labeled("node-termination-handler", corev1.EnvVar{Name: "QUEUE_URL", Value: s.Options.QueueURL}))
	}, want: "other-handlers ×", says: "another release"},
	{pitfall: "another release in the same namespace, with another Lease", also: func(s *site) {
		s.podIn("nth", "ours", labeled("node-termination-handler", corev1.EnvVar{Name: "QUEUE_URL", Value: s.Options.QueueURL}))
	}, want: "other-handlers ×", says: "another release"},

	// The handler.
	{pitfall: "a leader that is gone", also: func(s *site) {
		s.lease(func(l *coordinationv1.LeaseSpec) { l.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-time.Hour)} })
	}, want: "lease ×", says: "has not renewed"},
	{pitfall: "nobody ever led", also: func(s *site) {
		s.must(s.kube.Tracker().Delete(coordinationv1.SchemeGroupVersion.WithResource("leases"), "nth", "a-lease"))
	}, want: "lease ‼", says: "no replica has led"},
	{pitfall: "no handler", also: func(s *site) {
		s.must(s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "nth", "nth-1"))
	}, want: "handler ‼", says: "no handler for this queue is installed", runs: "helm upgrade --install"},
	{pitfall: "a handler that crashes", also: func(s *site) { s.podIn("nth", "nth-1", crashing) }, want: "handler ×", says: "queue-url: is required", runs: "kubectl -n nth logs nth-1 --previous"},
	{pitfall: "no leader election", also: func(s *site) { s.Options.LeaderElect = false }, want: "lease ‼", says: "leader election is off"},
	{pitfall: "no ClusterRoleBinding", also: forbidden("selfsubjectaccessreviews"), want: "rbac ×", says: "patch nodes"},
	{pitfall: "no ClusterRoleBinding, and an administrator asks", also: func(s *site) {
		s.user("an administrator")
		forbidden("subjectaccessreviews")(s)
	}, want: "rbac ×", says: "patch nodes"},
	{pitfall: "no API server", also: func(s *site) {
		s.Cluster = doctor.Cluster{Err: errors.New("dial tcp 127.0.0.1:1: connect: connection refused")}
	}, want: "api-server ×", says: "connection refused"},
}

// notTried are pitfalls that no row can set up, and why.
var notTried = map[string]string{
	"a hop limit of 1 on the instance":  "it is between a pod's network and the metadata service of a real instance",
	"a VPC without an endpoint for STS": "it takes a network that drops what is sent; what doctor sees is a call that hangs, which is a row",
	"queue-url is an ARN, a name, a placeholder or in quotes, the region is another, heartbeats end before they begin": "mistakes in the options end doctor as they end the handler, with status 2: the tests of the options",
	"a warm pool without the launch tag": "EC2 describes instances of a warm pool like all others, and no Node tells of them",
}

func TestEachPitfallHasItsOutcome(t *testing.T) {
	for _, row := range outcomes {
		t.Run(row.pitfall, func(t *testing.T) {
			synctest.Test(t, row.try) // some pitfalls take time to be seen
		})
	}
	t.Logf("not tried: %d, %v", len(notTried), notTried)
}

// try sets the pitfall up and holds what doctor says against the row.
func (row outcome) try(t *testing.T) {
	s := newOutcomeSite(t)
	for _, command := range row.set {
		s.command(command)
	}
	if row.also != nil {
		row.also(s)
	}
	findings := doctor.Examine(s.Gather(s.Context()))
	sick := map[string]doctor.Finding{}
	for _, f := range findings {
		if f.Status != doctor.OK {
			sick[f.ID] = f
		}
		if f.Status == doctor.Unknown && f.Needed && doctor.Worst(findings) == doctor.OK {
			t.Errorf("%s is unknown, and all is said to be well", f.ID)
		}
	}
	want, order := marksOf(row.want)
	got := map[string]doctor.Status{}
	for id, f := range sick {
		if _, listed := want[id]; listed || f.Status != doctor.Unknown || len(want) == 0 {
			got[id] = f.Status
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not well (-want +got):\n%s\n%s", diff, lines(sick))
	}
	if len(order) == 0 {
		return
	}
	first := sick[order[0]]
	if !strings.Contains(first.What, row.says) {
		t.Errorf("%s does not say %q: %s", order[0], row.says, first.What)
	}
	if text := fmt.Sprintf("%+v", first); !strings.Contains(text, row.runs) {
		t.Errorf("%s has no command %q: %s", order[0], row.runs, text)
	} else if strings.HasPrefix(row.runs, "aws sqs set-queue-attributes") {
		s.setAttributes(setsAttributes.FindStringSubmatch(text)[1])
		if f, still := s.sick()[order[0]]; still {
			t.Errorf("after its command %s is still not well: %+v", order[0], f)
		}
	}
}

// setsAttributes finds what a command gives to the queue.
var setsAttributes = regexp.MustCompile(`aws sqs set-queue-attributes --queue-url \S+ --attributes ('[^']*'|[^\s\]]+)`)

// setAttributes does what the command does, with JSON in quotes or NAME=VALUE.
func (s *site) setAttributes(argument string) {
	s.Helper()
	attributes := map[string]string{}
	if text, isJSON := strings.CutPrefix(argument, "'"); isJSON {
		s.must(json.Unmarshal([]byte(strings.TrimSuffix(text, "'")), &attributes))
	} else {
		name, value, _ := strings.Cut(argument, "=")
		attributes[name] = value
	}
	_, err := sqs.NewFromConfig(s.aws.Config()).SetQueueAttributes(s.Context(), &sqs.SetQueueAttributesInput{QueueUrl: &s.Options.QueueURL, Attributes: attributes})
	s.must(err)
}

// marksOf reads what a row wants: ids, each with its mark.
func marksOf(text string) (want map[string]doctor.Status, order []string) {
	marks := map[string]doctor.Status{"×": doctor.Failed, "‼": doctor.Warning, "?": doctor.Unknown}
	want = map[string]doctor.Status{}
	words := strings.Fields(text)
	for k := 0; k+1 < len(words); k += 2 {
		want[words[k]] = marks[words[k+1]]
		order = append(order, words[k])
	}
	return want, order
}

func lines(sick map[string]doctor.Finding) string {
	text := ""
	for id, f := range sick {
		text += fmt.Sprintf("%s %s: %s\n\t%s\n", id, f.Status, f.What, f.Hint)
	}
	return text
}

// newOutcomeSite is a site with two nodes, in which all is well.
func newOutcomeSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.Patience = 10 * time.Second // virtual ones
	s.command("PUT instances/" + second + " {'tags': {'" + tag + "': ''}}")
	s.command("PUT groups/workers {'instances': ['" + instance + "', '" + second + "'], 'tags': {'" + tag + "': ''}}")
	s.must(s.kube.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + second}}))
	return s
}

// command carries out METHOD PATH BODY on the simulator's control API.
func (s *site) command(text string) {
	s.Helper()
	method, rest, _ := strings.Cut(text, " ")
	path, body, _ := strings.Cut(rest, " ")
	if !strings.HasPrefix(body, `{"Statement"`) { // a document that is copied as it is has its quotes
		body = strings.NewReplacer(`"`, `\"`, `'`, `"`).Replace(body)
	}
	answer := httptest.NewRecorder()
	s.aws.ServeHTTP(answer, httptest.NewRequestWithContext(s.Context(), method, "/_awssim/"+path, strings.NewReader(body)))
	if answer.Code >= http.StatusBadRequest {
		s.Fatalf("%s: status %d: %s", text, answer.Code, answer.Body)
	}
}

// What rows of outcomes are made of: commands.

func deny(service, action string) []string {
	code := map[string]string{"ec2": "UnauthorizedOperation", "events": "AccessDeniedException", "kms": "AccessDeniedException"}[service]
	if code == "" {
		code = "AccessDenied"
	}
	return []string{fmt.Sprintf("PUT faults/%s {'service': '%s', 'action': '%s', 'code': '%s', 'status': 403}", service, service, action, code)}
}

func attribute(name, value string) []string {
	return []string{fmt.Sprintf("PUT queues/nth {'attributes': {'%s': '%s'}}", name, value)}
}

func redrive(receives int) []string {
	return attribute("RedrivePolicy", fmt.Sprintf(`{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:dead", "maxReceiveCount": %d}`, receives))
}

// What lets a topic in, and a role.
const (
	topicARN   = "arn:aws:sns:us-east-1:123456789012:notices"
	deliverARN = "arn:aws:iam::210987654321:role/deliver"
	allowTopic = `{"Statement": {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": ["sqs:SendMessage", "kms:GenerateDataKey", "kms:Decrypt"],
	"Resource": "*", "Condition": {"ArnEquals": {"aws:SourceArn": "` + topicARN + `"}}}}`
	allowRole = `{"Statement": {"Effect": "Allow", "Principal": {"AWS": "` + deliverARN + `"}, "Action": ["sqs:SendMessage", "kms:GenerateDataKey", "kms:Decrypt"], "Resource": "*"}}`
)

// single is the pattern of the template for one rule.
var single = func() string {
	pattern, err := os.ReadFile("../../deploy/eventbridge/single.json")
	if err != nil {
		panic(err)
	}
	return string(bytes.ReplaceAll(pattern, []byte("\n"), nil))
}()

// throughTopic has the rule send to a topic, to which the queue is subscribed; more are further
// fields of the subscription.
func throughTopic(more string) []string {
	return []string{
		"PUT rules/all {'topic': '" + topicARN + `', 'deadLetters': 'dead', 'pattern': '` + patternOf + "}'}",
		`POST topics {'arn': '` + topicARN + `', 'policy': '{"Statement": [{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sns:Publish", "Resource": "*"}]}'}`,
		"POST subscriptions {'topicARN': '" + topicARN + "', 'queue': 'nth', 'deadLetters': 'dead'" + more + "}",
		"PUT queues/nth/policy " + allowTopic, "PUT queues/dead/policy " + `{"Statement": [{"Effect": "Allow", "Principal": {"Service": ["events.amazonaws.com", "sns.amazonaws.com"]}, "Action": "sqs:SendMessage", "Resource": "*"}]}`, "PUT keys/k-1/policy " + allowTopic,
	}
}

// rule has a dead-letter queue; more are further fields.
func rule(name, pattern, queue, more string) string {
	return fmt.Sprintf("PUT rules/%s {'queue': '%s', 'deadLetters': 'dead', 'pattern': '%s'%s}", name, queue, pattern, more)
}

func hook(name, transition, timeout, more string) string {
	return fmt.Sprintf("PUT groups/workers/hooks/%s {'transition': 'autoscaling:EC2_INSTANCE_%s', 'heartbeatTimeout': '%s'%s}", name, transition, timeout, more)
}

// And what happens beside the simulator.

// credentials are none, for this reason.
func (s *site) credentials(err error) {
	s.AWS.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, err })
}

func (s *site) node(name string, change func(*corev1.Node)) {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	change(n)
	_, err = s.kube.CoreV1().Nodes().Update(s.Context(), n, metav1.UpdateOptions{})
	s.must(err)
}

// user is who calls the API server.
func (s *site) user(name string) {
	s.kube.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authnv1.SelfSubjectReview{Status: authnv1.SelfSubjectReviewStatus{UserInfo: authnv1.UserInfo{Username: name}}}, nil
	})
}

func (s *site) lease(change func(*coordinationv1.LeaseSpec)) {
	s.Helper()
	l, err := s.kube.CoordinationV1().Leases("nth").Get(s.Context(), "a-lease", metav1.GetOptions{})
	s.must(err)
	change(&l.Spec)
	_, err = s.kube.CoordinationV1().Leases("nth").Update(s.Context(), l, metav1.UpdateOptions{})
	s.must(err)
}

func (s *site) pod(name string, change func(*corev1.Pod)) { s.podIn("default", name, change) }

// podIn adds a pod on node a, or replaces the one of its name.
func (s *site) podIn(namespace, name string, change func(*corev1.Pod)) {
	s.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: "a", TerminationGracePeriodSeconds: new(int64(30)), Containers: []corev1.Container{{Image: "nginx"}}},
	}
	change(p)
	_ = s.kube.CoreV1().Pods(namespace).Delete(s.Context(), name, metav1.DeleteOptions{}) // there may be none
	s.must(s.kube.Tracker().Add(p))
}

func labeled(app string, env ...corev1.EnvVar) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": app}
		p.Spec.Containers[0].Env = env
	}
}

func crashing(p *corev1.Pod) {
	p.Labels = map[string]string{"app.kubernetes.io/name": "node-termination-handler"}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "queue-url: is required"}},
		RestartCount:         7,
	}}
}

// forbidden takes the right to patch nodes away, as the reviews say.
func forbidden(reviews string) func(*site) {
	return func(s *site) {
		s.kube.PrependReactor("create", reviews, func(action clienttesting.Action) (bool, runtime.Object, error) {
			may := func(a *authzv1.ResourceAttributes) authzv1.SubjectAccessReviewStatus {
				return authzv1.SubjectAccessReviewStatus{Allowed: a.Resource != "nodes" || a.Verb != "patch"}
			}
			switch review := action.(clienttesting.CreateAction).GetObject().(type) {
			case *authzv1.SelfSubjectAccessReview:
				review.Status = may(review.Spec.ResourceAttributes)
				return true, review, nil
			case *authzv1.SubjectAccessReview:
				review.Status = may(review.Spec.ResourceAttributes)
				return true, review, nil
			}
			return false, nil, nil
		})
	}
}
