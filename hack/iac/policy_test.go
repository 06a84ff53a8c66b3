package iac

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

const (
	allowed = "Allowed"
	refused = "ImplicitlyDenied"
	denied  = "ExplicitlyDenied"

	// The simulator knows the keys of few issuers, EKS not among them.
	issuer = "accounts.google.com"
	role   = "arn:aws:iam::123456789012:role/Role"
	source = "arn:aws:events:eu-central-1:123456789012:rule/"
	queue  = "arn:aws:sqs:eu-central-1:123456789012:Queue"
	dead   = "arn:aws:sqs:eu-central-1:123456789012:DeadLetters"

	platform         = "arn:aws:iam::123456789012:role/platform"
	deliverElsewhere = "arn:aws:iam::210987654321:role/bus/deliver"
	group            = "arn:aws:autoscaling:eu-central-1:123456789012:autoScalingGroup:63f5b5c2-58b3-0574-b7d5-b3162d0268f0:autoScalingGroupName/"
)

// asked is a request to IAM and the answer that is due.
type asked struct {
	what     string
	setting  string
	who      string
	action   string
	resource string
	context  map[string]string
	want     string
}

var (
	tls   = map[string]string{"aws:SecureTransport": "true", "aws:RequestedRegion": here.Region}
	noTLS = map[string]string{"aws:SecureTransport": "false", "aws:RequestedRegion": here.Region}
)

// with is a context with one more key.
func with(context map[string]string, key, value string) map[string]string {
	context = maps.Clone(context)
	context[key] = value
	return context
}

func of(rule string) map[string]string { return with(tls, "aws:SourceArn", source+rule) }

// pod are the session tags of Pod Identity.
func pod(cluster, namespace, account string) map[string]string {
	return map[string]string{
		"aws:RequestTag/eks-cluster-arn":            "arn:aws:eks:eu-central-1:123456789012:cluster/" + cluster,
		"aws:RequestTag/kubernetes-namespace":       namespace,
		"aws:RequestTag/kubernetes-service-account": account,
	}
}

func token(audience, subject string) map[string]string {
	return map[string]string{issuer + ":aud": audience, issuer + ":sub": subject}
}

var requests = []asked{
	{"our rule sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, of("SpotInterruptionRule"), allowed},
	{"another of our rules sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, of("LifecycleActionRule"), allowed},
	{"the rule for Capacity Reservations sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, of("CapacityReservationInterruptionRule"), allowed},
	{"the rule for Capacity Blocks sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, of("CapacityBlockExpirationRule"), allowed},
	{"the rule for Capacity Blocks gives up", "as they are", "events.amazonaws.com", "sqs:SendMessage", dead, of("CapacityBlockExpirationRule"), allowed},
	{"the single rule sends", "a single rule", "events.amazonaws.com", "sqs:SendMessage", queue, of("NoticesRule"), allowed},
	{"the single rule gives up", "a single rule", "events.amazonaws.com", "sqs:SendMessage", dead, of("NoticesRule"), allowed},
	{"a rule beside the single one sends", "a single rule", "events.amazonaws.com", "sqs:SendMessage", queue, of("SpotInterruptionRule"), refused},
	{"our rule gives up", "as they are", "events.amazonaws.com", "sqs:SendMessage", dead, of("StateChangeRule"), allowed},
	{"another rule of the account sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, of("Other"), refused},
	{"another rule of the account gives up", "as they are", "events.amazonaws.com", "sqs:SendMessage", dead, of("Other"), refused},
	{"a rule of another account sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", strings.Replace(source, here.ID, "210987654321", 1)+"SpotInterruptionRule"), refused},
	{"no rule sends", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, tls, refused},
	{"our rule sends without TLS", "as they are", "events.amazonaws.com", "sqs:SendMessage", queue, with(noTLS, "aws:SourceArn", source+"SpotInterruptionRule"), denied},
	{"our rule receives", "as they are", "events.amazonaws.com", "sqs:ReceiveMessage", queue, of("SpotInterruptionRule"), refused},
	{"another service sends in the name of our rule", "as they are", "sns.amazonaws.com", "sqs:SendMessage", queue, of("SpotInterruptionRule"), refused},
	{"Auto Scaling sends by itself", "as they are", "autoscaling.amazonaws.com", "sqs:SendMessage", queue, tls, refused},
	{"another account sends", "as they are", "arn:aws:iam::210987654321:role/Other", "sqs:SendMessage", queue, tls, denied},
	{"a role of the account that may do everything sends", "as they are", platform, "sqs:SendMessage", queue, tls, denied},
	{"a role of the account that may do everything receives", "as they are", platform, "sqs:ReceiveMessage", queue, tls, allowed},
	{"the sender sends", "a sender", platform, "sqs:SendMessage", queue, tls, allowed},
	{"the sender sends without TLS", "a sender", platform, "sqs:SendMessage", queue, noTLS, denied},
	{"a user beside the sender sends", "a sender", platform + "2", "sqs:SendMessage", queue, tls, denied},
	{"our rule sends beside the sender", "a sender", "events.amazonaws.com", "sqs:SendMessage", queue, of("SpotInterruptionRule"), allowed},
	{"the sender sends beside the role", "a sender beside a delivery role", platform, "sqs:SendMessage", queue, tls, allowed},
	{"the role delivers beside the sender", "a sender beside a delivery role", deliver, "sqs:SendMessage", queue, tls, allowed},
	{"the role with which Auto Scaling notifies sends", "a delivery role", deliver, "sqs:SendMessage", queue, tls, allowed},
	{"a role that may do everything sends past the delivery role", "a delivery role", platform, "sqs:SendMessage", queue, tls, denied},
	{"another account receives", "as they are", "arn:aws:iam::210987654321:role/Other", "sqs:ReceiveMessage", queue, tls, refused},

	{"the topic hands on", "a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", topic), allowed},
	{"the topic gives up", "a topic", "sns.amazonaws.com", "sqs:SendMessage", dead, with(tls, "aws:SourceArn", topic), allowed},
	{"another topic hands on", "a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", topic+"2"), refused},
	{"the topic of another account hands on", "a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", strings.Replace(topic, here.ID, "210987654321", 1)), refused},
	{"no topic hands on", "a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, tls, refused},
	{"the topic hands on without TLS", "a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, with(noTLS, "aws:SourceArn", topic), denied},
	{"the topic receives", "a topic", "sns.amazonaws.com", "sqs:ReceiveMessage", queue, with(tls, "aws:SourceArn", topic), refused},
	{"a rule sends past the topic", "a topic", "events.amazonaws.com", "sqs:SendMessage", queue, of("NoticesRule"), refused},
	{"EventBridge in the name of the topic", "a topic", "events.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", topic), refused},

	{"the role delivers", "a delivery role", deliver, "sqs:SendMessage", queue, tls, allowed},
	{"the role gives up", "a delivery role", deliver, "sqs:SendMessage", dead, tls, allowed},
	{"the role delivers without TLS", "a delivery role", deliver, "sqs:SendMessage", queue, noTLS, denied},
	{"the role receives", "a delivery role", deliver, "sqs:ReceiveMessage", queue, tls, refused},
	{"the role purges", "a delivery role", deliver, "sqs:PurgeQueue", queue, tls, refused},
	{"another role of its account delivers", "a delivery role of another account", deliverElsewhere + "2", "sqs:SendMessage", queue, tls, denied},
	{"the role of another account delivers", "a delivery role of another account", deliverElsewhere, "sqs:SendMessage", queue, tls, allowed},
	{"the role of another account receives", "a delivery role of another account", deliverElsewhere, "sqs:ReceiveMessage", queue, tls, refused},
	{"a rule sends past the role", "a delivery role", "events.amazonaws.com", "sqs:SendMessage", queue, of("NoticesRule"), refused},
	{"the role delivers", "a delivery role beside a single rule and a topic", deliver, "sqs:SendMessage", queue, tls, allowed},
	{"the rule sends beside the role", "a delivery role beside a single rule and a topic", "events.amazonaws.com", "sqs:SendMessage", queue, of("NoticesRule"), allowed},
	{"the topic hands on beside the role", "a delivery role beside a single rule and a topic", "sns.amazonaws.com", "sqs:SendMessage", queue, with(tls, "aws:SourceArn", topic), allowed},
	{"the role where none is named", "as they are", deliverElsewhere, "sqs:SendMessage", queue, tls, denied},

	{"the rule publishes", "the fan-out", "events.amazonaws.com", "sns:Publish", topic, of("NoticesRule"), allowed},
	{"the rule gives up", "the fan-out", "events.amazonaws.com", "sqs:SendMessage", dead, of("NoticesRule"), allowed},
	{"another rule publishes", "the fan-out", "events.amazonaws.com", "sns:Publish", topic, of("Other"), refused},
	{"a rule of another account publishes", "the fan-out", "events.amazonaws.com", "sns:Publish", topic, with(tls, "aws:SourceArn", strings.Replace(source, here.ID, "210987654321", 1)+"NoticesRule"), refused},
	{"the rule publishes without TLS", "the fan-out", "events.amazonaws.com", "sns:Publish", topic, with(noTLS, "aws:SourceArn", source+"NoticesRule"), denied},
	{"another account publishes", "the fan-out", deliverElsewhere, "sns:Publish", topic, tls, refused},
	{"another account subscribes", "the fan-out", deliverElsewhere, "sns:Subscribe", topic, tls, refused},
	{"a role of the account that may subscribes", "the fan-out", platform, "sns:Subscribe", topic, tls, allowed},
	{"the role with which Auto Scaling notifies publishes", "the fan-out", platform, "sns:Publish", topic, tls, allowed},
	{"Auto Scaling publishes by itself", "the fan-out", "autoscaling.amazonaws.com", "sns:Publish", topic, tls, refused},

	{"read a topic", "a topic", role, "sns:GetTopicAttributes", topic, tls, allowed},
	{"list a topic's subscriptions", "a topic", role, "sns:ListSubscriptionsByTopic", topic, tls, allowed},
	{"read a subscription", "a topic", role, "sns:GetSubscriptionAttributes", topic, tls, allowed},
	{"read a topic, without doctor", "without doctor", role, "sns:GetTopicAttributes", topic, tls, refused},
	{"publish", "a topic", role, "sns:Publish", topic, tls, refused},
	{"subscribe", "a topic", role, "sns:Subscribe", topic, tls, refused},

	{"receive", "the least", role, "sqs:ReceiveMessage", queue, tls, allowed},
	{"delete", "the least", role, "sqs:DeleteMessage", queue, tls, allowed},
	{"hold", "the least", role, "sqs:ChangeMessageVisibility", queue, tls, allowed},
	{"check the queue, with the least", "the least", role, "sqs:GetQueueAttributes", queue, tls, refused},
	{"check the queue", "as they are", role, "sqs:GetQueueAttributes", queue, tls, allowed},
	{"receive without TLS", "as they are", role, "sqs:ReceiveMessage", queue, noTLS, denied},
	{"receive dead letters", "as they are", role, "sqs:ReceiveMessage", dead, tls, refused},
	{"receive from another queue", "as they are", role, "sqs:ReceiveMessage", queue + "2", tls, refused},
	{"send", "as they are", role, "sqs:SendMessage", queue, tls, denied},
	{"purge", "as they are", role, "sqs:PurgeQueue", queue, tls, refused},
	{"change the queue", "as they are", role, "sqs:SetQueueAttributes", queue, tls, refused},

	{"look instances up", "as they are", role, "ec2:DescribeInstances", "*", tls, allowed},
	{"look instances up, with the least", "the least", role, "ec2:DescribeInstances", "*", tls, refused},
	{"look instances up in another region", "as they are", role, "ec2:DescribeInstances", "*", with(tls, "aws:RequestedRegion", "us-east-1"), refused},
	{"terminate an instance", "as they are", role, "ec2:TerminateInstances", "arn:aws:ec2:eu-central-1:123456789012:instance/i-0123456789abcdef0", tls, refused},

	{"ask for statuses", "as they are", role, "ec2:DescribeInstanceStatus", "*", tls, allowed},
	{"ask for statuses, with the least", "the least", role, "ec2:DescribeInstanceStatus", "*", tls, refused},
	{"ask for statuses in another region", "as they are", role, "ec2:DescribeInstanceStatus", "*", with(tls, "aws:RequestedRegion", "us-east-1"), refused},

	{"read target health", "as they are", role, "elasticloadbalancing:DescribeTargetHealth", "*", tls, allowed},
	{"read target health, with the least", "the least", role, "elasticloadbalancing:DescribeTargetHealth", "*", tls, refused},
	{"deregister targets", "as they are", role, "elasticloadbalancing:DeregisterTargets", "*", tls, refused},

	{"read a hook", "as they are", role, "autoscaling:DescribeLifecycleHooks", "*", tls, allowed},
	{"read a hook in another region", "as they are", role, "autoscaling:DescribeLifecycleHooks", "*", with(tls, "aws:RequestedRegion", "us-east-1"), refused},
	{"read a hook, with the least", "the least", role, "autoscaling:DescribeLifecycleHooks", "*", tls, refused},
	{"complete a hook", "as they are", role, "autoscaling:CompleteLifecycleAction", group + "workers", tls, allowed},
	{"prolong a hook", "as they are", role, "autoscaling:RecordLifecycleActionHeartbeat", group + "workers", tls, allowed},
	{"complete a hook, without hooks", "without hooks", role, "autoscaling:CompleteLifecycleAction", group + "workers", tls, refused},
	{"complete a hook of a named group", "two groups", role, "autoscaling:CompleteLifecycleAction", group + "gpu.workers", tls, allowed},
	{"complete a hook of a group that is not named", "two groups", role, "autoscaling:CompleteLifecycleAction", group + "others", tls, refused},
	{"prolong a hook of a group that is not named", "two groups", role, "autoscaling:RecordLifecycleActionHeartbeat", group + "workers2", tls, refused},
	{"complete a hook in another region", "as they are", role, "autoscaling:CompleteLifecycleAction", strings.Replace(group, here.Region, "us-east-1", 1) + "workers", with(tls, "aws:RequestedRegion", "us-east-1"), refused},
	{"complete a hook of a named group in another region", "two groups", role, "autoscaling:CompleteLifecycleAction", strings.Replace(group, here.Region, "us-east-1", 1) + "workers", with(tls, "aws:RequestedRegion", "us-east-1"), refused},
	{"complete a hook of another account", "as they are", role, "autoscaling:CompleteLifecycleAction", strings.Replace(group, here.ID, "210987654321", 1) + "workers", tls, refused},
	{"complete a hook of a named group of another account", "two groups", role, "autoscaling:CompleteLifecycleAction", strings.Replace(group, here.ID, "210987654321", 1) + "workers", tls, refused},
	{"complete a hook of a group with the tag", "tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "workers", with(tls, "aws:ResourceTag/"+groupTag, "owned"), allowed},
	{"prolong a hook of a group with the tag", "tagged groups", role, "autoscaling:RecordLifecycleActionHeartbeat", group + "workers", with(tls, "aws:ResourceTag/"+groupTag, ""), allowed},
	{"complete a hook of a group without the tag", "tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "workers", tls, refused},
	{"complete a hook of a group with another cluster's tag", "tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "workers", with(tls, "aws:ResourceTag/kubernetes.io/cluster/test", "owned"), refused},
	{"prolong a hook of a group without the tag", "tagged groups", role, "autoscaling:RecordLifecycleActionHeartbeat", group + "workers", tls, refused},
	{"complete a hook of a named group with the tag", "two tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "workers", with(tls, "aws:ResourceTag/"+groupTag, "owned"), allowed},
	{"complete a hook of a named group without the tag", "two tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "workers", tls, refused},
	{"complete a hook of a group with the tag that is not named", "two tagged groups", role, "autoscaling:CompleteLifecycleAction", group + "others", with(tls, "aws:ResourceTag/"+groupTag, "owned"), refused},
	{"read a hook, with tagged groups", "tagged groups", role, "autoscaling:DescribeLifecycleHooks", "*", tls, allowed},
	{"change a hook", "as they are", role, "autoscaling:PutLifecycleHook", group + "workers", tls, refused},
	{"terminate an instance of a group", "as they are", role, "autoscaling:TerminateInstanceInAutoScalingGroup", group + "workers", tls, refused},

	{"launch an instance of a group", "as they are", role, "autoscaling:LaunchInstances", group + "workers", tls, refused},
	{"say that an instance of a group is unhealthy", "as they are", role, "autoscaling:SetInstanceHealth", group + "workers", tls, refused},
	{"have a group replace an instance", "a replacement first", role, "autoscaling:SetInstanceHealth", group + "workers", tls, allowed},
	{"have a group replace one that is not named", "a replacement first, two groups", role, "autoscaling:SetInstanceHealth", group + "others", tls, refused},
	{"launch for a replacement", "a replacement first", role, "autoscaling:LaunchInstances", group + "workers", tls, refused},
	{"terminate after a replacement", "a replacement first", role, "autoscaling:TerminateInstanceInAutoScalingGroup", group + "workers", tls, refused},
	{"look at an instance of a group", "a replacement first", role, "autoscaling:DescribeAutoScalingInstances", "*", tls, allowed},
	{"launch past the group", "a replacement first", role, "ec2:RunInstances", "arn:aws:ec2:eu-central-1:123456789012:instance/i-0123456789abcdef0", tls, refused},
	{"terminate past the group", "a replacement first", role, "ec2:TerminateInstances", "arn:aws:ec2:eu-central-1:123456789012:instance/i-0123456789abcdef0", tls, refused},

	{"read a rule", "as they are", role, "events:DescribeRule", source + "SpotInterruptionRule", tls, allowed},
	{"read a rule of another region", "as they are", role, "events:DescribeRule", strings.Replace(source, here.Region, "us-east-1", 1) + "Other", with(tls, "aws:RequestedRegion", "us-east-1"), refused},
	{"read a rule, without doctor", "without doctor", role, "events:DescribeRule", source + "SpotInterruptionRule", tls, refused},
	{"change a rule", "as they are", role, "events:PutRule", source + "SpotInterruptionRule", tls, refused},
	{"send an event", "as they are", role, "events:PutEvents", "arn:aws:events:eu-central-1:123456789012:event-bus/default", tls, refused},
	{"read the queue of dead letters", "as they are", role, "sqs:GetQueueAttributes", dead, tls, refused},
	{"use a key", "as they are", role, "kms:Decrypt", "arn:aws:kms:eu-central-1:123456789012:key/k", tls, refused},

	{"decrypt messages", "a key", role, "kms:Decrypt", key, tls, allowed},
	{"encrypt", "a key", role, "kms:GenerateDataKey", key, tls, refused},
	{"decrypt with the key of others", "a key", role, "kms:Decrypt", key + "2", tls, refused},
	{"change the key's policy", "a key", role, "kms:PutKeyPolicy", key, tls, refused},
	{"our rule encrypts", "a key", "events.amazonaws.com", "kms:GenerateDataKey", key, of("SpotInterruptionRule"), allowed},
	{"our rule decrypts", "a key", "events.amazonaws.com", "kms:Decrypt", key, of("SpotInterruptionRule"), allowed},
	{"our rule changes the key's policy", "a key", "events.amazonaws.com", "kms:PutKeyPolicy", key, of("SpotInterruptionRule"), refused},
	{"another service encrypts", "a key", "sns.amazonaws.com", "kms:GenerateDataKey", key, tls, refused},

	{"our pod takes the role", "as they are", "pods.eks.amazonaws.com", "sts:AssumeRole", role, pod("prod", "node-termination-handler", "node-termination-handler"), allowed},
	{"our pod tags its session", "as they are", "pods.eks.amazonaws.com", "sts:TagSession", role, pod("prod", "node-termination-handler", "node-termination-handler"), allowed},
	{"a pod of another cluster takes the role", "as they are", "pods.eks.amazonaws.com", "sts:AssumeRole", role, pod("test", "node-termination-handler", "node-termination-handler"), refused},
	{"a pod of another namespace takes the role", "as they are", "pods.eks.amazonaws.com", "sts:AssumeRole", role, pod("prod", "default", "node-termination-handler"), refused},
	{"a pod with another ServiceAccount takes the role", "as they are", "pods.eks.amazonaws.com", "sts:AssumeRole", role, pod("prod", "node-termination-handler", "default"), refused},
	{"an instance takes the role", "as they are", "ec2.amazonaws.com", "sts:AssumeRole", role, pod("prod", "node-termination-handler", "node-termination-handler"), refused},

	{"our pod takes the role", "IRSA, another name", "arn:aws:iam::123456789012:oidc-provider/" + issuer, "sts:AssumeRoleWithWebIdentity", role, token("sts.amazonaws.com", "system:serviceaccount:kube-system:aws-node-termination-handler"), allowed},
	{"another pod takes the role", "IRSA, another name", "arn:aws:iam::123456789012:oidc-provider/" + issuer, "sts:AssumeRoleWithWebIdentity", role, token("sts.amazonaws.com", "system:serviceaccount:kube-system:default"), refused},
	{"a token for others takes the role", "IRSA, another name", "arn:aws:iam::123456789012:oidc-provider/" + issuer, "sts:AssumeRoleWithWebIdentity", role, token("vault", "system:serviceaccount:kube-system:aws-node-termination-handler"), refused},
	{"a pod of another cluster takes the role", "IRSA, another name", "arn:aws:iam::123456789012:oidc-provider/" + issuer + "2", "sts:AssumeRoleWithWebIdentity", role, token("sts.amazonaws.com", "system:serviceaccount:kube-system:aws-node-termination-handler"), refused},
	{"a pod takes the role by Pod Identity", "IRSA, another name", "pods.eks.amazonaws.com", "sts:AssumeRole", role, pod("prod", "kube-system", "aws-node-termination-handler"), refused},
}

// keyPolicy is the policy that KMS gives a new key, with the statement that the docs show.
func keyPolicy(t *testing.T) map[string]any {
	t.Helper()
	_, section, _ := strings.Cut(string(read(t, "../../docs/security.md")), "## A key of your own\n")
	_, block, _ := strings.Cut(section, "```json\n")
	block, _, _ = strings.Cut(block, "```")
	var shown any
	if err := json.Unmarshal([]byte(block), &shown); err != nil {
		t.Fatalf("%v in %q", err, block)
	}
	return map[string]any{"Version": "2012-10-17", "Statement": []any{
		map[string]any{"Effect": "Allow", "Principal": map[string]any{"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*", "Resource": "*"},
		shown,
	}}
}

// identified is the context of a request with what AWS itself adds about the principal.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
func identified(a asked) map[string]string {
	if strings.HasPrefix(a.who, "arn:") {
		return with(with(a.context, "aws:PrincipalIsAWSService", "false"), "aws:PrincipalArn", a.who)
	}
	return with(a.context, "aws:PrincipalIsAWSService", "true")
}

func TestIAMAllowsWhatIsNeededAndNothingElse(t *testing.T) {
	n := node(t)
	var names []string
	var all []Request
	for _, a := range requests {
		for template, resources := range stacks(t, here, settings[a.setting]) {
			r := Request{IdentityPolicies: []NamedPolicy{}, ServiceControlPolicies: []any{}, ResourceControlPolicies: []any{}}
			r.Request.Principal, r.Request.Action, r.Request.Context = a.who, a.action, identified(a)
			r.Request.Resource.Resource, r.Request.Resource.AccountID = a.resource, here.ID
			if strings.Contains(a.resource, ":210987654321:") {
				r.Request.Resource.AccountID = "210987654321"
			}
			if a.who == role {
				r.IdentityPolicies = []NamedPolicy{{"role", resources["RolePolicy"].Properties["PolicyDocument"]}}
			}
			if strings.HasPrefix(a.who, platform) || a.who == deliverElsewhere { // with a policy of its own that lets it do everything
				r.IdentityPolicies = []NamedPolicy{{"all", map[string]any{"Version": "2012-10-17", "Statement": []any{
					map[string]any{"Effect": "Allow", "Action": "*", "Resource": "*"},
				}}}}
			}
			switch a.resource {
			case topic:
				if made, ok := resources["TopicPolicy"]; ok {
					r.ResourcePolicy = made.Properties["PolicyDocument"]
				}
			case queue:
				r.ResourcePolicy = resources["QueuePolicy"].Properties["PolicyDocument"]
			case dead:
				r.ResourcePolicy = resources["DeadLettersPolicy"].Properties["PolicyDocument"]
			case key, key + "2":
				r.ResourcePolicy = keyPolicy(t)
			case role:
				r.ResourcePolicy = resources["Role"].Properties["AssumeRolePolicyDocument"]
			}
			names = append(names, template+", "+a.setting+": "+a.what)
			all = append(all, r)
		}
	}
	verdicts, err := n.Simulate(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != len(all) {
		t.Fatalf("%d answers to %d requests", len(verdicts), len(all))
	}
	for i, verdict := range verdicts {
		if want := requests[i/2].want; verdict != want { // each was asked of both templates
			t.Errorf("%s: %s, want %s", names[i], verdict, want)
		}
	}
}
