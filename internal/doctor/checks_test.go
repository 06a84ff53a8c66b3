package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	testAccount = "123456789012"
	queueARN    = "arn:aws:sqs:us-east-1:123456789012:nth"
	queueURL    = "https://sqs.us-east-1.amazonaws.com/123456789012/nth"
	ruleARN     = "arn:aws:events:us-east-1:123456789012:rule/"
	tag         = "aws-node-termination-handler/managed"
	user        = "system:serviceaccount:nth:node-termination-handler"
)

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

// policyFor lets a service send, on a condition.
func policyFor(service, condition string) string {
	return fmt.Sprintf(`{"Statement": [{"Effect": "Allow", "Principal": {"Service": %q}, "Action": ["sqs:SendMessage", "kms:*"], "Resource": "*", "Condition": {%s}}]}`, service, condition)
}

const ownRules = `"ArnLike": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/*"}`

func value[T any](v T) Answer[T] { return Answer[T]{Value: v} }

func testRule(name, source, detailType string) Rule {
	return Rule{
		Name: name, ARN: ruleARN + name, Enabled: true, Pattern: fmt.Sprintf(`{"source": [%q], "detail-type": [%q]}`, source, detailType),
		Targets: []Target{{ID: "queue", DeadLetters: "arn:aws:sqs:us-east-1:123456789012:dead"}},
	}
}

// healthy are the facts of an installation in which all is well.
func healthy() *Facts {
	f := &Facts{
		Now: now,
		Options: Options{
			QueueURL: queueURL, QueueName: "nth", Account: testAccount, Region: "us-east-1", CheckTag: true, ManagedTag: tag,
			Visibility: 20 * time.Second, LeaderElect: true, EmitEvents: true, Namespace: "nth", Lease: "node-termination-handler",
		},
		Caller: value(Caller{ARN: "arn:aws:sts::123456789012:assumed-role/nth/x", Account: testAccount, Source: SourcePodIdentity}),
		Queue: value(Queue{
			ARN: queueARN, Retention: 5 * time.Minute, Visibility: 30 * time.Second, MaxReceives: 10, KeyID: "k-1",
			Policy: policyFor(eventBridge, ownRules),
		}),
		Key: value(Key{ARN: "arn:aws:kms:us-east-1:123456789012:key/k-1", State: "Enabled", Policy: value(policyFor(eventBridge, ownRules))}),
		Rules: value([]Rule{
			testRule("spot", "aws.ec2", "EC2 Spot Instance Interruption Warning"),
			testRule("rebalance", "aws.ec2", "EC2 Instance Rebalance Recommendation"),
			testRule("state", "aws.ec2", "EC2 Instance State-change Notification"),
			testRule("health", "aws.health", "AWS Health Event"),
			testRule("terminate", "aws.autoscaling", "EC2 Instance-terminate Lifecycle Action"),
			testRule("launch", "aws.autoscaling", "EC2 Instance-launch Lifecycle Action"),
		}),
		Permissions: []Permission{{Action: "sqs:ReceiveMessage", Needed: true}, {Action: "sqs:ChangeMessageVisibility"}},
		User:        value(User{Name: user, Version: "v1.36.3"}),
		Access:      map[Access]Answer[bool]{},
		Lease:       value(Lease{Holder: "nth-1_x", Renewed: now.Add(-time.Second), Duration: 15 * time.Second}),
		Nodes: value([]Node{
			{Name: "a", ProviderID: "aws:///us-east-1a/i-0000000a", InstanceID: "i-0000000a"},
			{Name: "ip-10-0-0-2.ec2.internal"},
			{Name: "f", ProviderID: "aws:///us-east-1a/fargate-x", Fargate: true},
		}),
		Instances: value([]Instance{
			{ID: "i-0000000a", Tags: map[string]string{tag: "", GroupTag: "workers"}},
			{ID: "i-0000000b", PrivateDNSName: "ip-10-0-0-2.ec2.internal", Tags: map[string]string{tag: "", GroupTag: "workers"}},
		}),
		Groups: value([]Group{{
			Name: "workers", Tags: value(map[string]string{tag: ""}),
			Hooks: value([]Hook{
				{Name: "drain", Terminating: true, Timeout: 5 * time.Minute, Global: time.Hour},
				{Name: "launch", Timeout: 5 * time.Minute, Global: time.Hour},
			}),
		}}),
		Pods: value([]Pod{
			{Namespace: "default", Name: "web", Node: "a", Grace: time.Minute, Images: []string{"nginx:1"}},
			{Namespace: "nth", Name: "self", Node: "a", Grace: time.Second, ServiceAccount: "node-termination-handler", Images: []string{"r/node-termination-handler:1"}},
		}),
	}
	for _, a := range Accesses(f.Options) {
		f.Access[a] = value(true)
	}
	return f
}

func TestAllIsWellWhereItIs(t *testing.T) {
	for _, finding := range Examine(healthy()) {
		if finding.Status != OK || finding.Hint != "" || finding.Link != "" {
			t.Errorf("%s: %+v", finding.ID, finding)
		}
	}
}

var (
	errDenied = &DeniedError{Permission: "x:Y"}
	errSlow   = errors.New("no answer within 30s")
	errAbsent = fmt.Errorf("x: %w", ErrAbsent)
)

// ailments are installations in which one thing is not well. Each check has one
// at least that turns it red, and none turns another check from well to failed
// without being listed.
var ailments = []struct {
	name string
	ail  func(*Facts)
	want map[string]Status // the checks that are not OK
	says string            // a part of what the first of them says
}{
	{"no credentials", func(f *Facts) { f.Caller = Answer[Caller]{Err: errSlow} }, map[string]Status{"credentials": Failed, "credentials-source": Unknown, "account": Unknown}, "no answer"},
	{"credentials that may not ask", func(f *Facts) { f.Caller.Err = errDenied }, map[string]Status{"credentials": Unknown, "account": Unknown}, "x:Y"},
	{"a left-over annotation", func(f *Facts) { f.Caller.Value.Source, f.Caller.Value.Shadowed = SourceIRSA, true }, map[string]Status{"credentials-source": Warning}, "Pod Identity"},
	{"the node's role", func(f *Facts) { f.Caller.Value.Source = SourceInstance }, map[string]Status{"credentials-source": Warning}, "node's role"},
	{"static keys", func(f *Facts) { f.Caller.Value.Source = SourceStatic }, map[string]Status{"credentials-source": Warning}, "static keys"},
	{"a queue of another account", func(f *Facts) { f.Caller.Value.Account = "210987654321" }, map[string]Status{"account": Warning}, "210987654321"},
	{"no permission to receive", func(f *Facts) { f.Permissions[0].Err = errDenied; f.Permissions[1].Err = errDenied }, map[string]Status{"permissions": Failed}, "sqs:ChangeMessageVisibility, sqs:ReceiveMessage"},
	{"no permission to extend", func(f *Facts) { f.Permissions[1].Err = errDenied }, map[string]Status{"permissions": Warning}, "sqs:ChangeMessageVisibility"},
	{"permissions that could not be tried", func(f *Facts) { f.Permissions[1].Err = errSlow }, map[string]Status{"permissions": Unknown}, "no answer"},
	{"nothing tried", func(f *Facts) { f.Permissions = nil }, map[string]Status{"permissions": Unknown}, "not tried"},

	{"no queue", func(f *Facts) { f.Queue = Answer[Queue]{Err: errAbsent} }, ofTheQueue(Failed), "no queue nth in us-east-1"},
	{"a queue that may not be read", func(f *Facts) { f.Queue = Answer[Queue]{Err: errDenied} }, ofTheQueue(Unknown), "x:Y"},
	{"a queue that does not answer", func(f *Facts) { f.Queue = Answer[Queue]{Err: errSlow} }, ofTheQueue(Failed), "no answer"},
	{"a FIFO queue", func(f *Facts) { f.Queue.Value.FIFO = true }, map[string]Status{"queue-type": Failed, "rule-targets": Failed}, "FIFO"},
	{"a delay of 90 s", func(f *Facts) { f.Queue.Value.Delay = 90 * time.Second }, map[string]Status{"queue-delay": Failed}, "1m30s"},
	{"a delay of 5 s", func(f *Facts) { f.Queue.Value.Delay = 5 * time.Second }, map[string]Status{"queue-delay": Warning}, "5s"},
	{"a retention of a minute", func(f *Facts) { f.Queue.Value.Retention = time.Minute }, map[string]Status{"queue-retention": Failed}, "1m0s"},
	{"a retention of days", func(f *Facts) { f.Queue.Value.Retention = 96 * time.Hour }, map[string]Status{"queue-retention": Warning}, "96h"},
	{"a retention of days, and foreign messages are deleted", func(f *Facts) { f.Queue.Value.Retention = 96 * time.Hour; f.Options.DeleteForeign = true }, nil, ""},
	{"a long visibility timeout", func(f *Facts) { f.Queue.Value.Visibility = time.Hour }, map[string]Status{"queue-visibility": Warning}, "1h0m0s"},
	{"a visibility timeout of ours as long as the retention", func(f *Facts) { f.Queue.Value.Retention = 2 * time.Minute; f.Options.Visibility = 2 * time.Minute }, map[string]Status{"queue-visibility": Warning}, "does not come back"},
	{"no dead-letter queue", func(f *Facts) { f.Queue.Value.MaxReceives = 0 }, map[string]Status{"queue-redrive": Warning}, "no dead-letter queue"},
	{"one receive", func(f *Facts) { f.Queue.Value.MaxReceives = 1 }, map[string]Status{"queue-redrive": Warning}, "after 1 receive"},
	{"no key", func(f *Facts) { f.Queue.Value.KeyID = "" }, nil, ""},
	{"AWS's key, by its alias", func(f *Facts) { f.Queue.Value.KeyID = "alias/aws/sqs"; f.Key.Err = errDenied }, map[string]Status{"queue-key": Failed}, "AWS manages"},
	{"AWS's key, by its id", func(f *Facts) { f.Key.Value.AWSManaged = true }, map[string]Status{"queue-key": Failed}, "AWS manages"},
	{"a key that is gone", func(f *Facts) { f.Key.Err = errAbsent }, map[string]Status{"queue-key": Failed}, "does not exist"},
	{"a key that is disabled", func(f *Facts) { f.Key.Value.State = "Disabled" }, map[string]Status{"queue-key": Failed}, "Disabled"},
	{"a key that may not be read", func(f *Facts) { f.Key.Err = errDenied }, map[string]Status{"queue-key": Unknown}, "x:Y"},
	{"a key whose policy may not be read", func(f *Facts) { f.Key.Value.Policy.Err = errDenied }, map[string]Status{"queue-key": Unknown}, "x:Y"},
	{"a key that EventBridge may not use", func(f *Facts) { f.Key.Value.Policy = value(policyFor("s3.amazonaws.com", "")) }, map[string]Status{"queue-key": Failed}, "does not let EventBridge"},
	{"a key with a strange policy", func(f *Facts) { f.Key.Value.Policy = value(policyFor(eventBridge, `"X": {"y": "z"}`)) }, map[string]Status{"queue-key": Unknown}, "conditions"},
	{"a key without a readable policy", func(f *Facts) { f.Key.Value.Policy = value("?") }, map[string]Status{"queue-key": Unknown}, "read the policy"},
	{"no policy", func(f *Facts) { f.Queue.Value.Policy = "" }, map[string]Status{"queue-policy": Failed}, "no policy"},
	{"a policy for another rule", func(f *Facts) {
		f.Queue.Value.Policy = policyFor(eventBridge, `"ArnEquals": {"aws:SourceArn": "`+ruleARN+`spot"}`)
	}, map[string]Status{"queue-policy": Failed}, "rule health, rule launch"},
	{"a policy for one rule, and rules that may not be read", func(f *Facts) {
		f.Queue.Value.Policy = policyFor(eventBridge, `"ArnEquals": {"aws:SourceArn": "`+ruleARN+`spot"}`)
		f.Rules = Answer[[]Rule]{Err: errDenied}
	}, withRules(Unknown, "queue-policy"), "x:Y"},
	{"a strange policy", func(f *Facts) { f.Queue.Value.Policy = policyFor(eventBridge, `"X": {"y": "z"}`) }, map[string]Status{"queue-policy": Unknown}, "conditions"},
	{"no readable policy", func(f *Facts) { f.Queue.Value.Policy = "?" }, map[string]Status{"queue-policy": Unknown, "queue-policy-open": Unknown}, "read the policy"},
	{"a policy for rules of all accounts", func(f *Facts) { f.Queue.Value.Policy = policyFor(eventBridge, "") }, map[string]Status{"queue-policy-open": Warning}, "any account"},
	{"a policy for everybody", func(f *Facts) {
		f.Queue.Value.Policy = strings.Replace(policyFor(eventBridge, ""), `{"Service": "events.amazonaws.com"}`, `"*"`, 1)
	}, map[string]Status{"queue-policy-open": Failed}, "everybody"},

	{"rules that may not be read", func(f *Facts) { f.Rules = Answer[[]Rule]{Err: errDenied} }, withRules(Unknown), "x:Y"},
	{"a rule with a typo", func(f *Facts) {
		f.Rules.Value[0].Pattern = `{"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warnings"]}`
	}, map[string]Status{"rule-spot": Failed}, "no rule sends spot"},
	{"a rule that is disabled", func(f *Facts) { f.Rules.Value[0].Enabled = false }, map[string]Status{"rule-spot": Failed}, "the rule spot is disabled"},
	{"no rule for rebalance recommendations", without(1), map[string]Status{"rule-rebalance": Warning}, "no rule"},
	{"no rule for state changes", without(2), map[string]Status{"rule-state-change": Warning}, "no rule"},
	{"a rule for states that come too late", func(f *Facts) {
		f.Rules.Value[2].Pattern = `{"source": ["aws.ec2"], "detail": {"state": ["terminated"]}}`
	}, map[string]Status{"rule-state-change": Warning}, "no rule"},
	{"no rule for AWS Health", without(3), map[string]Status{"rule-health": Warning}, "no rule"},
	{"no rule for terminations", without(4), map[string]Status{"rule-asg-terminate": Failed}, "affected: workers"},
	{"a rule for terminations of another group", func(f *Facts) {
		f.Rules.Value[4].Pattern = `{"detail": {"AutoScalingGroupName": ["others"], "LifecycleTransition": ["autoscaling:EC2_INSTANCE_TERMINATING"]}}`
	}, map[string]Status{"rule-asg-terminate": Failed}, "affected: workers"},
	{"a hook that tells the queue itself", func(f *Facts) { without(4)(f); f.Groups.Value[0].Hooks.Value[0].TargetARN = queueARN }, nil, ""},
	{"no rule for launches", without(5), map[string]Status{"rule-asg-launch": Failed}, "affected: workers"},
	{"no rule and no hook for launches", func(f *Facts) { without(5)(f); f.Groups.Value[0].Hooks.Value = f.Groups.Value[0].Hooks.Value[:1] }, nil, ""},
	{"SNS in between", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy = strings.Replace(policyFor(eventBridge, ownRules), `"events.amazonaws.com"`, `["events.amazonaws.com", "sns.amazonaws.com"]`, 1)
	}, map[string]Status{"rule-spot": Unknown, "rule-rebalance": Unknown, "rule-state-change": Unknown, "rule-health": Unknown, "rule-asg-terminate": Unknown, "rule-asg-launch": Unknown}, "SNS"},
	{"a target that changes events", func(f *Facts) { f.Rules.Value[0].Targets[0].Changed = true }, map[string]Status{"rule-targets": Failed}, "the rule spot changes"},
	{"a target without a dead-letter queue", func(f *Facts) { f.Rules.Value[0].Targets[0].DeadLetters = "" }, map[string]Status{"rule-dead-letters": Warning}, "the rule spot"},

	{"no API server", func(f *Facts) { f.User = Answer[User]{Err: errSlow}; f.Access = nil }, map[string]Status{"api-server": Failed, "rbac": Unknown}, "no answer"},
	{"an API server that does not say who calls", func(f *Facts) { f.User.Err = errDenied }, map[string]Status{"api-server": Unknown}, "x:Y"},
	{"no right to evict", func(f *Facts) {
		f.Access[Access{Resource: "pods", Subresource: "eviction", Verb: "create"}] = value(false)
	}, map[string]Status{"rbac": Failed}, "create pods/eviction"},
	{"no right to write events", func(f *Facts) { f.Access[Access{Resource: "events", Verb: "patch"}] = value(false) }, map[string]Status{"rbac": Warning}, "patch events"},
	{"rights that may not be asked for", func(f *Facts) { f.Access[Access{Resource: "nodes", Verb: "get"}] = Answer[bool]{Err: errDenied} }, map[string]Status{"rbac": Unknown}, "x:Y"},
	{"no leader election", func(f *Facts) { f.Options.LeaderElect = false }, map[string]Status{"lease": Warning}, "off"},
	{"no Lease yet", func(f *Facts) { f.Lease = Answer[Lease]{Err: errAbsent} }, nil, ""},
	{"a Lease that may not be read", func(f *Facts) { f.Lease = Answer[Lease]{Err: errDenied} }, map[string]Status{"lease": Unknown}, "x:Y"},
	{"a Lease that was given away", func(f *Facts) { f.Lease.Value.Holder = "" }, map[string]Status{"lease": Warning}, "nobody leads"},
	{"a leader that is gone", func(f *Facts) { f.Lease.Value.Renewed = now.Add(-time.Minute) }, map[string]Status{"lease": Warning}, "for 1m0s"},

	{"pods that may not be listed", func(f *Facts) { f.Pods = Answer[[]Pod]{Err: errDenied} }, map[string]Status{"other-handlers": Unknown, "hook-timeout": Unknown}, "x:Y"},
	{"NTH on the same queue", pod(Pod{Namespace: "kube-system", Labels: map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL}}), map[string]Status{"other-handlers": Failed}, "AWS Node Termination Handler (a Deployment in namespace kube-system)"},
	{"NTH as a DaemonSet", pod(Pod{Namespace: "kube-system", DaemonSet: true, Labels: map[string]string{"k8s-app": "aws-node-termination-handler"}}), map[string]Status{"other-handlers": Warning}, "a DaemonSet"},
	{"NTH under another name", pod(Pod{Images: []string{"public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25"}}), map[string]Status{"other-handlers": Warning}, "AWS Node Termination Handler"},
	{"us under NTH's name", pod(Pod{Namespace: "nth", ServiceAccount: "node-termination-handler", Labels: map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL}}), nil, ""},
	{"another release of ours with the queue", pod(Pod{Namespace: "b", Images: []string{"r/node-termination-handler@sha256:0"}, Env: map[string]string{"QUEUE_URL": queueURL}}), map[string]Status{"other-handlers": Failed}, "another release"},
	{"another release of ours with its own queue", pod(Pod{Namespace: "b", Images: []string{"r/node-termination-handler"}, Env: map[string]string{"QUEUE_URL": "x"}}), nil, ""},
	{"Karpenter with the queue", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}, Env: map[string]string{"INTERRUPTION_QUEUE": "nth"}}), map[string]Status{"other-handlers": Failed}, "Karpenter, by its interruption queue nth"},
	{"Karpenter with a queue of its own", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}, Args: []string{"--interruption-queue=k"}}), map[string]Status{"other-handlers": Warning}, "interruption queue k"},
	{"Karpenter without a queue", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}}), nil, ""},

	{"nodes that may not be listed", func(f *Facts) {
		f.Nodes, f.Instances, f.Groups = Answer[[]Node]{Err: errDenied}, Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, ofTheNodes(Unknown), "x:Y"},
	{"instances that may not be looked up", func(f *Facts) {
		f.Instances, f.Groups = Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, ofTheNodes(Failed), "no node is covered"},
	{"instances that nobody told of", func(f *Facts) {
		f.Instances, f.Groups = Answer[[]Instance]{Err: errSlow}, Answer[[]Group]{Err: errSlow}
	}, ofTheNodes(Unknown), "no answer"},
	{"an instance without the tag", func(f *Facts) { delete(f.Instances.Value[0].Tags, tag) }, map[string]Status{"nodes": Warning}, "1 of 2 nodes are covered; 1 on Fargate do not count, not: a (no tag aws-node-termination-handler/managed)"},
	{"no tags anywhere, without the tag check", func(f *Facts) {
		f.Options.CheckTag = false
		f.Instances.Value[0].Tags = nil
		f.Groups.Value[0].Tags = value(map[string]string{})
	}, nil, ""},
	{"an instance of another region", func(f *Facts) { f.Instances.Value = f.Instances.Value[1:] }, map[string]Status{"nodes": Warning}, "EC2 does not know i-0000000a in us-east-1"},
	{"a name that no instance has", func(f *Facts) { f.Nodes.Value[1].Name = "b" }, map[string]Status{"nodes": Warning}, "b (no provider id, and no instance has its name)"},
	{"a node that is not of EC2", func(f *Facts) { f.Nodes.Value[1].ProviderID = "eks-hybrid:///x" }, map[string]Status{"nodes": Warning}, "eks-hybrid:///x is none of EC2"},
	{"no node covered", func(f *Facts) { f.Instances.Value = nil }, map[string]Status{"nodes": Failed}, "0 of 2 nodes are covered"},
	{"Fargate alone", func(f *Facts) { f.Nodes.Value = f.Nodes.Value[2:] }, map[string]Status{"nodes": Warning}, "no nodes on EC2; 1 on Fargate"},
	{"a group without the tag", func(f *Facts) { f.Groups.Value[0].Tags = value(map[string]string{}) }, map[string]Status{"group-tag": Warning}, "group workers"},
	{"groups that may not be described", func(f *Facts) { f.Groups.Value[0].Tags = Answer[map[string]string]{Err: errDenied} }, map[string]Status{"group-tag": Unknown}, "x:Y"},
	{"a group without its hook", func(f *Facts) { f.Groups.Value[0].Hooks = value([]Hook(nil)) }, map[string]Status{"group-hook": Warning}, "no termination hook on the group workers"},
	{"hooks that may not be described", func(f *Facts) { f.Groups.Value[0].Hooks = Answer[[]Hook]{Err: errDenied} }, map[string]Status{"rule-asg-terminate": Unknown, "rule-asg-launch": Unknown, "group-hook": Unknown, "hook-timeout": Unknown}, "x:Y"},
	{"no groups", func(f *Facts) { f.Groups.Value = nil }, nil, ""},
	{"a pod that takes longer than the hook", func(f *Facts) { f.Pods.Value[0].Grace = 10 * time.Minute }, map[string]Status{"hook-timeout": Warning}, "drain of workers (5m0s, pod default/web may take 10m0s)"},
	{"a pod that takes longer, and heartbeats", func(f *Facts) {
		f.Pods.Value[0].Grace, f.Options.HeartbeatInterval, f.Options.HeartbeatUntil = 10*time.Minute, time.Minute, 30*time.Minute
	}, nil, ""},
	{"a pod on a node that has no group", func(f *Facts) { f.Pods.Value[0].Grace = 10 * time.Minute; f.Pods.Value[0].Node = "f" }, nil, ""},
}

func pod(p Pod) func(*Facts) {
	return func(f *Facts) { f.Pods.Value = append(f.Pods.Value, p) }
}

func without(rule int) func(*Facts) {
	return func(f *Facts) { f.Rules.Value = append(f.Rules.Value[:rule:rule], f.Rules.Value[rule+1:]...) }
}

// ofTheQueue is what a queue that cannot be read leaves unknown.
func ofTheQueue(itself Status) map[string]Status {
	want := map[string]Status{"queue": itself}
	for _, id := range IDs() {
		if strings.HasPrefix(id, "queue-") {
			want[id] = Unknown
		}
	}
	return want
}

func withRules(s Status, more ...string) map[string]Status {
	want := map[string]Status{}
	for _, id := range IDs() {
		if strings.HasPrefix(id, "rule-") {
			want[id] = s
		}
	}
	for _, id := range more {
		want[id] = s
	}
	return want
}

func ofTheNodes(itself Status) map[string]Status {
	return map[string]Status{
		"nodes": itself, "group-tag": Unknown, "group-hook": Unknown, "hook-timeout": Unknown,
		"rule-asg-terminate": Unknown, "rule-asg-launch": Unknown,
	}
}

func TestEachAilmentIsFound(t *testing.T) {
	red := map[string]bool{}
	for _, tt := range ailments {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy()
			tt.ail(f)
			got := map[string]Status{}
			said := ""
			for _, finding := range Examine(f) {
				if finding.Status == OK {
					continue
				}
				if said == "" {
					said = finding.What
				}
				got[finding.ID] = finding.Status
				if finding.Status != Unknown {
					red[finding.ID] = true
					if finding.Hint == "" {
						t.Errorf("%s says nothing to do", finding.ID)
					}
				}
				if finding.Link != Page+"#"+finding.ID {
					t.Errorf("%s: link %q", finding.ID, finding.Link)
				}
			}
			want := tt.want
			if want == nil {
				want = map[string]Status{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("checks that are not well (-want +got):\n%s", diff)
			}
			all := ""
			for _, finding := range Examine(f) {
				all += finding.What + "\n"
			}
			if !strings.Contains(all, tt.says) {
				t.Errorf("nothing says %q in\n%s", tt.says, all)
			}
		})
	}
	for _, id := range IDs() {
		if !red[id] {
			t.Errorf("nothing turns %s red", id)
		}
	}
}

func TestEveryCheckHasAnEntryInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../" + Page)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range IDs() {
		if !strings.Contains(string(page), "\n### "+id+"\n") {
			t.Errorf("%s has no entry for %s", Page, id)
		}
	}
}

func TestTheRightsThatAreCheckedAreThoseThatDeployGrants(t *testing.T) {
	file, err := os.ReadFile("../../deploy/manifests/node-termination-handler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for document := range strings.SplitSeq(string(file), "\n---\n") {
		var role rbacv1.Role // a ClusterRole has its rules in the same place
		if err := yaml.Unmarshal([]byte(document), &role); err != nil || !strings.HasSuffix(role.Kind, "Role") {
			continue
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				name, subresource, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					granted[Access{Group: rule.APIGroups[0], Resource: name, Subresource: subresource, Verb: verb}.String()] = true
				}
			}
		}
	}
	checked := map[string]bool{}
	for _, a := range Accesses(Options{LeaderElect: true, EmitEvents: true}) {
		checked[a.String()] = true
	}
	if diff := cmp.Diff(granted, checked); diff != "" {
		t.Errorf("rights (-granted +checked):\n%s", diff)
	}
}

func TestTheWorstDecides(t *testing.T) {
	for _, tt := range []struct {
		all  []Status
		want Status
	}{
		{nil, OK},
		{[]Status{OK, Unknown}, OK},
		{[]Status{OK, Warning, Unknown}, Warning},
		{[]Status{Warning, Failed, OK}, Failed},
	} {
		var findings []Finding
		for _, s := range tt.all {
			findings = append(findings, Finding{Status: s})
		}
		if got := Worst(findings); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.all, got, tt.want)
		}
	}
}

func TestFindingsArePrintedForPeopleAndForPrograms(t *testing.T) {
	findings := []Finding{
		{ID: "a", Group: "one", Status: OK, What: "all is well"},
		{ID: "b", Group: "one", Status: Failed, What: "it is broken", Hint: "mend it", Link: Page + "#b"},
		{ID: "c", Group: "two", Status: Unknown, What: "nobody knows", Link: Page + "#c"},
	}
	var people, programs strings.Builder
	if err := errors.Join(Print(&people, findings), PrintJSON(&programs, findings[1:2])); err != nil {
		t.Fatal(err)
	}
	want := `one
---
√ all is well
× it is broken
    mend it
    see docs/troubleshooting.md#b

two
---
? nobody knows
    see docs/troubleshooting.md#c

× 1 of 3 checks are well, 1 failed, 1 unknown
`
	if diff := cmp.Diff(want, people.String()); diff != "" {
		t.Errorf("for people (-want +got):\n%s", diff)
	}
	want = `{
  "status": "failed",
  "checks": [
    {
      "id": "b",
      "group": "one",
      "status": "failed",
      "what": "it is broken",
      "hint": "mend it",
      "link": "docs/troubleshooting.md#b"
    }
  ]
}
`
	if diff := cmp.Diff(want, programs.String()); diff != "" {
		t.Errorf("for programs (-want +got):\n%s", diff)
	}
}
