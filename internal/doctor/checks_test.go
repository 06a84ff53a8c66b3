package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
)

const (
	testAccount = "123456789012"
	hubAccount  = "210987654321"
	queueARN    = "arn:aws:sqs:us-east-1:123456789012:nth"
	deadARN     = "arn:aws:sqs:us-east-1:123456789012:dead"
	queueURL    = "https://sqs.us-east-1.amazonaws.com/123456789012/nth"
	ruleARN     = "arn:aws:events:us-east-1:123456789012:rule/"
	tag         = "aws-node-termination-handler/managed"
	user        = "system:serviceaccount:nth:node-termination-handler"
)

const repository = "https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/doctor.md#"

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

// policyFor lets a service send, on a condition.
func policyFor(service, condition string) string {
	return fmt.Sprintf(`{"Statement": [{"Effect": "Allow", "Principal": {"Service": %q}, "Action": ["sqs:SendMessage", "kms:*"], "Resource": "*", "Condition": {%s}}]}`, service, condition)
}

// keyFor lets the rules use a key, and whom else the statement names.
func keyFor(who string) string {
	return fmt.Sprintf(`{"Statement": [%s, {"Effect": "Allow", "Principal": {"AWS": %s}, "Action": "kms:*", "Resource": "*"}]}`,
		strings.TrimSuffix(strings.TrimPrefix(policyFor(eventBridge, ownRules), `{"Statement": [`), "]}"), who)
}

const ownAccount = `"arn:aws:iam::123456789012:root"`

const ownRules = `"ArnLike": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/*"}`

func value[T any](v T) Answer[T] { return Answer[T]{Value: v} }

func testRule(name, source, detailType string) Rule {
	return Rule{
		Name: name, ARN: ruleARN + name, Enabled: true, Pattern: fmt.Sprintf(`{"source": [%q], "detail-type": [%q]}`, source, detailType),
		Targets: []Target{{}},
	}
}

// healthy are the facts of an installation in which all is well.
func healthy() *Facts {
	f := &Facts{
		Now:    now,
		Policy: Answer[Policy]{Err: ErrAbsent},
		Options: Options{
			QueueURL: queueURL, QueueName: "nth", Account: testAccount, Region: "us-east-1", Partition: "aws", EventAccounts: []string{testAccount}, CheckTag: true, ManagedTag: tag,
			Visibility: 20 * time.Second, LeaderElect: true, EmitEvents: true, Namespace: "nth", Lease: "node-termination-handler", Poll: true,
		},
		Caller: value(Caller{ARN: "arn:aws:sts::123456789012:assumed-role/nth/x", Account: testAccount, Source: SourcePodIdentity}),
		Queue: value(Queue{
			ARN: queueARN, Retention: 96 * time.Hour, MaxReceives: 10, DeadLetters: deadARN, MaxSize: 1 << 20, KeyID: "k-1",
			Policy: policyFor(eventBridge, ownRules),
		}),
		Key:     value(Key{ARN: "arn:aws:kms:us-east-1:123456789012:key/k-1", State: "Enabled", Policy: value(keyFor(ownAccount))}),
		Decrypt: value(true),
		Rules: value([]Rule{
			testRule("spot", "aws.ec2", "EC2 Spot Instance Interruption Warning"),
			testRule("rebalance", "aws.ec2", "EC2 Instance Rebalance Recommendation"),
			testRule("state", "aws.ec2", "EC2 Instance State-change Notification"),
			testRule("health", "aws.health", "AWS Health Event"),
			testRule("terminate", "aws.autoscaling", "EC2 Instance-terminate Lifecycle Action"),
			testRule("launch", "aws.autoscaling", "EC2 Instance-launch Lifecycle Action"),
			testRule("reservation", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
			testRule("block", "aws.ec2", "Capacity Block Expiration Warning"),
		}),
		Permissions: []Permission{{Action: "sqs:ReceiveMessage", Needed: true}, {Action: "sqs:ChangeMessageVisibility"}, {Action: "ec2:DescribeInstanceStatus"}},
		User:        value(User{Name: user, Version: "v1.36.3"}),
		Access:      map[kube.Access]Answer[bool]{},
		Lease:       value(Lease{Holder: "nth-1_x", Silent: time.Second, Duration: 15 * time.Second}),
		Nodes: value([]Node{
			{Name: "a", ProviderID: "aws:///us-east-1a/i-0000000a", InstanceID: "i-0000000a", Region: "us-east-1"},
			{Name: "ip-10-0-0-2.ec2.internal"},
			{Name: "f", ProviderID: "aws:///us-east-1a/fargate-x", Fargate: true},
		}),
		Instances: value([]Instance{
			{ID: "i-0000000a", Account: testAccount, Spot: true, Tags: map[string]string{tag: "", GroupTag: "workers"}},
			{ID: "i-0000000b", Account: testAccount, PrivateDNSName: "ip-10-0-0-2.ec2.internal", Tags: map[string]string{tag: "", GroupTag: "workers"}},
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
			{Namespace: "nth", Name: "self", Node: "a", Grace: time.Second, ServiceAccount: "node-termination-handler", Images: []string{"r/node-termination-handler:1"}, State: State{Ready: true}},
		}),
	}
	for _, a := range accesses(f.Options) {
		f.Access[a] = value(true)
	}
	return f
}

// Without a queue nothing in AWS matters, and each node needs a pod that reads its metadata.
func TestWithoutAQueueEachNodeNeedsAPodThatReadsItsMetadata(t *testing.T) {
	f := healthy()
	f.Options.NoQueue, f.Options.CheckTag, f.Options.QueueURL, f.Options.EventAccounts = true, false, "none", nil
	f.Caller = Answer[Caller]{Err: blocked("queue", errNoQueue)}
	f.Queue, f.Rules, f.Instances = Answer[Queue]{Err: f.Caller.Err}, Answer[[]Rule]{Err: f.Caller.Err}, Answer[[]Instance]{Err: f.Caller.Err}
	f.Groups = Answer[[]Group]{Err: f.Caller.Err}
	f.Nodes.Value = []Node{
		{Name: "a", ProviderID: "aws:///us-east-1a/i-0000000a", InstanceID: "i-0000000a"},
		{Name: "b", ProviderID: "aws:///us-east-1a/i-0000000b", InstanceID: "i-0000000b"},
		{Name: "f", ProviderID: "aws:///us-east-1a/fargate-x", Fargate: true},
	}
	reporter := func(node, lease string, ready bool) Pod {
		return Pod{
			Namespace: "nth", Name: "node-" + node, Node: node, DaemonSet: true, State: State{Ready: ready}, Images: []string{"r/node-termination-handler:1"},
			Env: map[string]string{"ENABLE_SQS_TERMINATION_DRAINING": "false", "LEADER_ELECT_RESOURCE_NAME": lease},
		}
	}
	pods := f.Pods.Value
	for name, tt := range map[string]struct {
		on   Pod // node b
		want string
		is   Status
		deaf bool
	}{
		"each node":         {reporter("b", f.Options.Lease, true), "2 of 2 nodes are covered; 1 on Fargate do not count", OK, false},
		"a pod that fails":  {reporter("b", f.Options.Lease, false), "1 of 2 nodes are covered; 1 on Fargate do not count, not: b (no pod on it reads the metadata)", Warning, false},
		"another handler's": {reporter("b", "other", true), "1 of 2 nodes are covered; 1 on Fargate do not count, not: b (no pod on it reads the metadata)", Warning, false},
		"a silent metadata": {reporter("b", f.Options.Lease, true), "1 of 2 nodes are covered; 1 on Fargate do not count, not: b (the pod on it gets no answer of the metadata)", Warning, true},
	} {
		f.Pods.Value, f.Nodes.Value[1].Deaf = append(slices.Clone(pods), reporter("a", f.Options.Lease, true), tt.on), tt.deaf
		var ids []string
		for _, finding := range Examine(f) {
			ids = append(ids, finding.ID)
			is := OK
			switch {
			case finding.ID == "nodes":
				is = tt.is
			case finding.ID == "other-handlers" && name == "another handler's":
				is = Warning
			}
			if finding.Status != is || finding.ID == "nodes" && finding.What != tt.want {
				t.Errorf("%s: %+v", name, finding)
			}
			if finding.ID == "queue" && !strings.Contains(finding.What, "A queue would add stops and terminations by hand") {
				t.Errorf("%s: it is not said what a queue would add: %s", name, finding.What)
			}
		}
		want := []string{"queue", "api-server", "handler", "rbac", "lease", "other-handlers", "policy", "nodes"}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Errorf("checks (-want +got):\n%s", diff)
		}
	}
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
	{"Pod Identity, and no way to STS", func(f *Facts) { f.Caller.Err = errSlow }, map[string]Status{"credentials": Unknown, "account": Unknown}, "who calls AWS: "},
	{"a left-over annotation", func(f *Facts) { f.Caller.Value.Source, f.Caller.Value.Shadowed = SourceIRSA, true }, map[string]Status{"credentials-source": Warning}, "Pod Identity"},
	{"the node's role", func(f *Facts) { f.Caller.Value.Source = SourceInstance }, map[string]Status{"credentials-source": Warning}, "node's role"},
	{"static keys", func(f *Facts) { f.Caller.Value.Source = SourceStatic }, map[string]Status{"credentials-source": Warning}, "static keys"},
	{"a caller of another account", func(f *Facts) { f.Caller.Value.Account = "111122223333" }, map[string]Status{"account": Failed}, "every notice would be ignored"},
	{"a person of another account, and a role that is not known", func(f *Facts) {
		f.Caller.Value.Account = "111122223333"
		f.Beside = errDenied
	}, map[string]Status{"account": Unknown, "permissions": Unknown, "queue-decrypt": Unknown}, "x:Y"},
	{
		"a role that STS refuses", func(f *Facts) {
			err := fmt.Errorf("find credentials: %w", &APIError{"AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity"})
			f.Caller = Answer[Caller]{Err: err, Value: Caller{Unusable: blocked("credentials", err)}}
		},
		map[string]Status{"credentials": Failed, "credentials-source": Unknown, "account": Unknown},
		"there are no credentials of AWS: find credentials: AccessDenied: Not authorized to perform sts:AssumeRoleWithWebIdentity",
	},
	{"keys that are over", func(f *Facts) {
		f.Caller.Err = &APIError{"ExpiredToken", "The security token included in the request is expired"}
		f.Caller.Value.Unusable = f.Caller.Err
	}, map[string]Status{"credentials": Failed, "account": Unknown}, "AWS does not accept the credentials"},
	{"another region", func(f *Facts) {
		f.Caller.Err = &APIError{"SignatureDoesNotMatch", "Credential should be scoped to a valid region."}
		f.Caller.Value.Unusable = f.Caller.Err
	}, map[string]Status{"credentials": Failed, "account": Unknown}, "region us-east-1 is not the region of the endpoint"},
	{"two accounts, and one role that looks instances up", func(f *Facts) { f.Options.EventAccounts = []string{testAccount, hubAccount} }, map[string]Status{"account": Warning}, "finds no instance of account 210987654321"},
	{"two accounts, and no instances to look up", func(f *Facts) {
		f.Options.EventAccounts, f.Options.CheckTag = []string{testAccount, hubAccount}, false
	}, nil, ""},
	{"a queue in a hub, filled by rules of the instances' account", func(f *Facts) { inHub(f, testAccount) }, nil, ""},
	{"a queue in a hub, filled by rules of its account, which cannot be seen", func(f *Facts) {
		inHub(f, testAccount)
		f.Rules.Value = nil
		f.Queue.Value.Policy = policyFor(eventBridge, `"ArnEquals": {"aws:SourceArn": "arn:aws:events:us-east-1:210987654321:rule/one"}`)
		f.Key.Value.Policy = value(f.Queue.Value.Policy)
	}, withoutRules("queue-policy", "queue-key"), "rules of account 210987654321 cannot be seen from account 123456789012"},
	{"a queue in a hub that lets in nobody", func(f *Facts) { inHub(f, testAccount); f.Rules.Value = nil; f.Queue.Value.Policy = "" }, map[string]Status{
		"queue-policy": Failed, "rule-spot": Unknown, "rule-rebalance": Unknown, "rule-state-change": Unknown, "rule-health": Unknown, "rule-asg-terminate": Unknown, "rule-asg-launch": Unknown,
	}, "the queue has no policy"},
	{"a caller of the hub, which does not see the instances", func(f *Facts) {
		inHub(f, testAccount)
		f.Options.CheckTag = false
		f.Caller.Value.Account, f.Rules.Value, f.Instances.Value, f.Groups.Value = hubAccount, nil, nil, nil
		f.Nodes.Value = f.Nodes.Value[:1]
	}, map[string]Status{
		"account": Warning, "event-accounts": Warning, "rule-spot": Unknown, "rule-rebalance": Unknown, "rule-state-change": Unknown, "rule-health": Unknown,
		"rule-asg-terminate": Unknown, "rule-asg-launch": Unknown, "group-hook": Unknown, "hook-timeout": Unknown, "hook-launch": Unknown,
		"rule-capacity-reservation": Unknown, "rule-capacity-block": Unknown,
	}, "rules of account 123456789012 cannot be seen from account 210987654321"},
	{"a queue in a hub, and the hub's notices alone", func(f *Facts) {
		inHub(f, hubAccount)
	}, map[string]Status{"account": Failed, "event-accounts": Failed}, "only notices of account 210987654321 are acted on, and the instances of these nodes are of others: a (123456789012), ip-10-0-0-2.ec2.internal (123456789012)"},
	{"no permission to receive", func(f *Facts) { f.Permissions[0].Err = errDenied; f.Permissions[1].Err = errDenied }, map[string]Status{"permissions": Failed}, "sqs:ChangeMessageVisibility, sqs:ReceiveMessage"},
	{"no permission to extend", func(f *Facts) { f.Permissions[1].Err = errDenied }, map[string]Status{"permissions": Warning}, "sqs:ChangeMessageVisibility"},
	{"permissions that could not be tried", func(f *Facts) { f.Permissions[1].Err = errSlow }, map[string]Status{"permissions": Unknown}, "no answer"},
	{"nothing tried", func(f *Facts) { f.Permissions = nil }, map[string]Status{"permissions": Unknown}, "not tried"},
	{"no permission to poll EC2", func(f *Facts) { f.Permissions[2].Err = errDenied }, map[string]Status{"permissions": Warning}, "the role lacks ec2:DescribeInstanceStatus: the rest works"},
	{"no permission to wait for load balancers", func(f *Facts) {
		f.Options.Excludes, f.TargetGroups = true, value([]string{"arn"})
		f.Permissions = append(f.Permissions, Permission{Action: "elasticloadbalancing:DescribeTargetHealth", Err: errDenied})
	}, map[string]Status{"permissions": Warning}, "the role lacks elasticloadbalancing:DescribeTargetHealth: the rest works"},
	{"a poll that could not be tried", func(f *Facts) { f.Permissions[2].Err = errSlow }, map[string]Status{"permissions": Unknown}, "whether the role has ec2:DescribeInstanceStatus (no answer within 30s)"},

	{"no queue", func(f *Facts) { f.Queue = Answer[Queue]{Err: errAbsent} }, ofTheQueue(Failed), "no queue nth in account 123456789012 and region us-east-1"},
	{"a queue that may not be read", func(f *Facts) { f.Queue = Answer[Queue]{Err: errDenied} }, ofTheQueue(Unknown), "x:Y"},
	{"a queue that does not answer", func(f *Facts) { f.Queue = Answer[Queue]{Err: errSlow} }, ofTheQueue(Failed), "no answer"},
	{"a FIFO queue", func(f *Facts) { f.Queue.Value.FIFO = true }, map[string]Status{"queue-type": Failed}, "FIFO"},
	{"a delay of 90 s", func(f *Facts) { f.Queue.Value.Delay = 90 * time.Second }, map[string]Status{"queue-delay": Failed}, "1m30s"},
	{"a delay of 5 s", func(f *Facts) { f.Queue.Value.Delay = 5 * time.Second }, map[string]Status{"queue-delay": Warning}, "5s"},
	{"a retention of a minute", func(f *Facts) { f.Queue.Value.Retention = time.Minute }, map[string]Status{"queue-retention": Failed}, "for 1m:"},
	{"a retention of five minutes", func(f *Facts) { f.Queue.Value.Retention = 5 * time.Minute }, map[string]Status{"queue-retention": Warning}, "scheduled changes and hooks are lost"},
	{"a retention of an hour", func(f *Facts) { f.Queue.Value.Retention = time.Hour }, nil, ""},
	{"a visibility timeout of ours as long as the retention", func(f *Facts) { f.Queue.Value.Retention = 2 * time.Minute; f.Options.Visibility = 2 * time.Minute }, map[string]Status{"queue-retention": Warning}, "if no replica runs for longer"},
	{"no dead-letter queue", func(f *Facts) { f.Queue.Value.MaxReceives = 0 }, map[string]Status{"queue-redrive": Warning}, "no dead-letter queue"},
	{"three receives", func(f *Facts) { f.Queue.Value.MaxReceives = 3 }, map[string]Status{"queue-redrive": Warning}, "after 3 receives"},
	{"more receives than the retention has time for", func(f *Facts) { f.Queue.Value.MaxReceives = 15; f.Queue.Value.Retention = 5 * time.Minute }, map[string]Status{"queue-retention": Warning, "queue-redrive": Warning}, "messages are kept for 5m"},
	{"a queue for small messages", func(f *Facts) { f.Queue.Value.MaxSize = 64 << 10 }, map[string]Status{"queue-size": Warning}, "64 KiB at most: AWS Health sends up to 256 KiB"},
	{"a queue for tiny messages", func(f *Facts) { f.Queue.Value.MaxSize = 2048 }, map[string]Status{"queue-size": Failed}, "2048 bytes at most"},
	{"a queue that does not say how large", func(f *Facts) { f.Queue.Value.MaxSize = 0 }, map[string]Status{"queue-size": Unknown}, "does not say"},
	{"no rules, and a policy for those that there will be", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy = policyFor(eventBridge, `"ArnLike": {"aws:SourceArn": "`+ruleARN+`nth-*"}`)
		f.Key.Value.Policy = value(f.Queue.Value.Policy)
	}, map[string]Status{
		"queue-policy": Unknown, "queue-key": Unknown, "rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning,
		"rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "whether the queue's policy lets your rules in: no rule has the queue as its target yet"},
	{"one receive", func(f *Facts) { f.Queue.Value.MaxReceives = 1 }, map[string]Status{"queue-redrive": Warning}, "after 1 receive"},
	{"no key", func(f *Facts) { f.Queue.Value.KeyID = "" }, nil, ""},
	{"AWS's key, by its alias", func(f *Facts) { f.Queue.Value.KeyID = "alias/aws/sqs"; f.Key.Err = errDenied }, map[string]Status{"queue-key": Failed}, "AWS manages"},
	{"AWS's key, by its id", func(f *Facts) { f.Key.Value.AWSManaged = true }, map[string]Status{"queue-key": Failed}, "AWS manages"},
	{"a key that is gone", func(f *Facts) { f.Key.Err = errAbsent }, map[string]Status{"queue-key": Failed, "queue-decrypt": Unknown}, "does not exist"},
	{"a key that is disabled", func(f *Facts) { f.Key.Value.State = "Disabled" }, map[string]Status{"queue-key": Failed, "queue-decrypt": Unknown}, "Disabled"},
	{"a key that the role cannot decrypt with", func(f *Facts) { f.Decrypt = value(false) }, map[string]Status{"queue-decrypt": Unknown}, "KMS refuses kms:Decrypt on the queue's key k-1 to the role"},
	{"a key that KMS says nothing about", func(f *Facts) { f.Decrypt.Err = errSlow }, map[string]Status{"queue-decrypt": Unknown}, "no answer within 30s"},
	{"no key, and no answer", func(f *Facts) { f.Queue.Value.KeyID = ""; f.Decrypt.Err = errSlow }, nil, ""},
	{"AWS's key, which KMS gives to SQS alone", func(f *Facts) { f.Key.Value.AWSManaged = true; f.Decrypt = value(false) }, map[string]Status{"queue-key": Failed}, "AWS manages"},
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
	{"a policy for the rules, and IAM's for everybody else", func(*Facts) {}, nil, "in its own account an IAM policy with sqs:SendMessage is enough, unless a Deny is added"},
	{"a policy that denies it to the account", func(f *Facts) { onlyServices(f, "") }, nil, "and no identity of its own account that it does not name"},
	{"a policy for everybody that denies it to all but services", func(f *Facts) {
		f.Queue.Value.Policy = strings.Replace(policyFor(eventBridge, ""), `{"Service": "events.amazonaws.com"}`, `"*"`, 1)
		onlyServices(f, "")
	}, map[string]Status{"queue-policy-open": Warning}, "any account"},
	{"rules with a role that a Deny does not name", func(f *Facts) { withRole(roleARN + "-2")(f); onlyServices(f, "") }, map[string]Status{"queue-policy": Failed}, "does not let role " + roleARN + "-2 in"},
	{"rules with a role that a Deny names", func(f *Facts) { withRole(roleARN)(f); onlyServices(f, roleARN) }, nil, "that it does not name; whoever has one of these can send: the role " + roleARN},

	{"rules that may not be read", func(f *Facts) { f.Rules = Answer[[]Rule]{Err: errDenied} }, withRules(Unknown), "x:Y"},
	{"a rule with a typo", func(f *Facts) {
		f.Rules.Value[0].Pattern = `{"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warnings"]}`
	}, map[string]Status{"rule-spot": Failed}, `maybe because of a mistake in the pattern: spot {"source":["aws.ec2"],"detail-type":["EC2 Spot Instance Interruption Warnings"]}`},
	{"a rule that is disabled", func(f *Facts) { f.Rules.Value[0].Enabled = false }, map[string]Status{"rule-spot": Failed}, "the rule spot is disabled"},
	{"a rule for one of two accounts", func(f *Facts) {
		f.Options.EventAccounts, f.Options.CheckTag = []string{testAccount, hubAccount}, false
		f.Rules.Value[0].Pattern = `{"source": ["aws.ec2"], "account": ["123456789012"]}`
	}, map[string]Status{"rule-spot": Unknown}, "rules of account 210987654321 cannot be seen"},
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
	{"no rules for capacity reservations, which nobody needs", func(f *Facts) { f.Rules.Value = f.Rules.Value[:6] }, nil, ""},
	{"no rule for an interruptible Capacity Reservation", func(f *Facts) { without(6)(f); f.Instances.Value[1].Interruptible = true }, map[string]Status{"rule-capacity-reservation": Failed}, "go away without a drain"},
	{"no rule for Capacity Blocks", func(f *Facts) { without(7)(f); f.Instances.Value[1].Block = true }, map[string]Status{"rule-capacity-block": Warning}, "minutes later"},
	{"no rules for a Capacity Block", func(f *Facts) { f.Rules.Value = f.Rules.Value[:6]; f.Instances.Value[1].Block = true }, map[string]Status{"rule-capacity-reservation": Failed, "rule-capacity-block": Warning}, "no rule"},
	{"a rule for an interruptible Capacity Reservation that is disabled", func(f *Facts) { f.Rules.Value[6].Enabled = false; f.Instances.Value[1].Interruptible = true }, map[string]Status{"rule-capacity-reservation": Failed}, "the rule reservation is disabled"},
	{"no rules for capacity reservations, and nobody knows whether they are needed", func(f *Facts) {
		f.Rules.Value, f.Instances, f.Options.CheckTag = f.Rules.Value[:6], Answer[[]Instance]{Err: errDenied}, false
		f.Nodes.Value = f.Nodes.Value[:1]
	}, map[string]Status{"rule-capacity-reservation": Unknown, "rule-capacity-block": Unknown, "event-accounts": Unknown}, "x:Y"},
	{"no rule for spot warnings, and no spot instance", func(f *Facts) { without(0)(f); f.Instances.Value[0].Spot = false }, nil, "no instance behind a node is a spot instance"},
	{"no rule for spot warnings, and Karpenter has the spot instance", func(f *Facts) {
		without(0)(f)
		karpenterBeside(f)
		f.Nodes.Value[0].Karpenter = true
		delete(f.Instances.Value[0].Tags, tag)
	}, nil, "no instance behind a node is a spot instance, but for those that are left to Karpenter"},
	{"a rule for the terminations of another hook", func(f *Facts) {
		f.Rules.Value[4].Pattern = `{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"], "detail": {"LifecycleHookName": ["drain"]}}`
		f.Groups.Value[0].Hooks.Value[0].Name = "evacuate"
	}, map[string]Status{"rule-asg-terminate": Failed}, "no rule sends terminations"},
	{"a rule for the terminations of the hook alone", func(f *Facts) {
		f.Rules.Value[4].Pattern = `{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"], "detail": {"LifecycleHookName": ["evacuate"]}}`
		f.Groups.Value[0].Hooks.Value[0].Name = "evacuate"
	}, nil, "terminations of Auto Scaling groups are sent to the queue"},
	{"no rule for terminations, which are searched for", func(f *Facts) { without(4)(f); f.Options.Sweep = true }, map[string]Status{"rule-asg-terminate": Warning}, "only the search for hooks finds them, up to a minute late"},
	{"a hook that notifies the topic of the queue", func(f *Facts) {
		byTopic(f)
		f.Rules.Value = slices.Delete(f.Rules.Value, 4, 5)
		f.Groups.Value[0].Hooks.Value[0].TargetARN = topicARN
	}, nil, "terminations of Auto Scaling groups are sent to the queue"},
	{"a policy for a rule of another bus", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy = policyFor(eventBridge, `"ArnEquals": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/mine/drain"}`)
		f.Key.Value.Policy = value(f.Queue.Value.Policy)
	}, withoutRules("queue-policy", "queue-key"), "the queue's policy names a rule of another bus, arn:aws:events:us-east-1:123456789012:rule/mine/drain"},
	{"a queue that may not be read, and no rules of EventBridge", func(f *Facts) {
		f.Queue, f.Rules.Value = Answer[Queue]{Err: errDenied}, nil
	}, func() map[string]Status {
		want := withoutRules()
		maps.Copy(want, ofTheQueue(Unknown))
		return want
	}(), "x:Y"},
	{"no rule for launches", without(5), map[string]Status{"rule-asg-launch": Warning}, "affected: workers"},
	{"no rule and no hook for launches", func(f *Facts) { without(5)(f); f.Groups.Value[0].Hooks.Value = f.Groups.Value[0].Hooks.Value[:1] }, nil, ""},
	{"SNS in between", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy = strings.Replace(policyFor(eventBridge, ownRules), `"events.amazonaws.com"`, `["events.amazonaws.com", "sns.amazonaws.com"]`, 1)
	}, withoutRules("topic"), "SNS may do so, and the queue's policy does not name its topic"},
	{"a topic in between", byTopic, nil, topicARN + " of SNS hands on what rules publish"},
	{"a topic in between, and a queue with no key", func(f *Facts) { byTopic(f); f.Queue.Value.KeyID = "" }, nil, "the queue's policy lets SNS in"},
	{"a topic that is gone", ofTopic(func(t *Answer[Topic]) { *t = Answer[Topic]{Err: errAbsent} }), map[string]Status{
		"topic": Failed, "rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning, "rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "it does not exist"},
	{"a topic that may not be read", func(f *Facts) {
		ofTopic(func(t *Answer[Topic]) { *t = Answer[Topic]{Err: errDenied} })(f)
		f.Rules.Value = nil // which nobody asks for then
	}, withoutRules("topic"), "x:Y"},
	{"a topic without the queue's subscription", func(f *Facts) {
		ofTopic(func(t *Answer[Topic]) { t.Value.Subscription = nil })(f)
		f.Rules.Value = nil
	}, map[string]Status{
		"topic": Failed, "rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning, "rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "the queue is not subscribed to it"},
	{"a subscription that nobody has confirmed", ofTopic(func(t *Answer[Topic]) { t.Value.Subscription.Pending = true }), map[string]Status{"topic": Failed}, "is not confirmed"},
	{"a topic that does not work, beside rules that do", func(f *Facts) {
		direct := f.Rules.Value
		ofTopic(func(t *Answer[Topic]) { t.Value.Subscription = nil })(f)
		f.Rules.Value, f.Queue.Value.KeyID = direct, ""
		for k := range direct {
			direct[k].Topic = ""
		}
		f.Queue.Value.Policy = strings.Replace(f.Queue.Value.Policy, `[{`, `[`+allowRule+`,{`, 1)
	}, map[string]Status{"topic": Warning}, "the queue is not subscribed to it"},
	{"a topic that EventBridge may not publish to", ofTopic(func(t *Answer[Topic]) { t.Value.Policy = "" }), map[string]Status{"topic": Failed}, "its policy does not let rule block, rule health, rule launch, rule rebalance, rule reservation and 3 more publish"},
	{"a topic with the key that AWS manages", ofTopic(func(t *Answer[Topic]) { t.Value.KeyID = "alias/aws/sns" }), map[string]Status{"topic": Failed}, "alias/aws/sns is one that AWS manages"},
	{"a topic with a strange policy", ofTopic(func(t *Answer[Topic]) { t.Value.Policy = publishTo(`"X": {"y": "z"}`) }), map[string]Status{"topic": Unknown}, "conditions"},
	{"a topic without a readable policy", ofTopic(func(t *Answer[Topic]) { t.Value.Policy = "?" }), map[string]Status{"topic": Unknown}, "read the policy"},
	{"a subscription that filters spot warnings out", ofTopic(func(t *Answer[Topic]) {
		t.Value.Subscription.Filter, t.Value.Subscription.FilterBody = `{"detail-type": [{"anything-but": "EC2 Spot Instance Interruption Warning"}]}`, true
	}), map[string]Status{"rule-spot": Failed}, "spot interruption warnings are not sent to the queue: the filter of the subscription to " + topicARN + " leaves them out"},
	{"a subscription that filters by attributes", ofTopic(func(t *Answer[Topic]) { t.Value.Subscription.Filter = `{"source": ["aws.ec2"]}` }), map[string]Status{
		"rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning, "rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "leaves them out; spot instances go away without a drain"},
	{"a subscription with a filter that cannot be read", ofTopic(func(t *Answer[Topic]) {
		t.Value.Subscription.Filter, t.Value.Subscription.FilterBody = `{"source": "aws.ec2"}`, true
	}), withoutRules("topic"), "the filter of the subscription to " + topicARN},
	{"a key that SNS may not use", func(f *Facts) { byTopic(f); f.Key.Value.Policy = value(policyFor(eventBridge, "")) }, map[string]Status{"queue-key": Failed}, "does not let SNS use it; SNS drops what it cannot deliver"},
	{"a topic of another account", func(f *Facts) {
		byTopic(f)
		other := strings.Replace(topicARN, testAccount, hubAccount, 1)
		f.Topics = topics{other: f.Topics[topicARN]}
		f.Rules.Value = nil
		f.Queue.Value.Policy = strings.Replace(f.Queue.Value.Policy, topicARN, other, 1)
		f.Key.Value.Policy = value(f.Queue.Value.Policy)
	}, withoutRules(), "rules of account 210987654321 cannot be seen"},

	{"a role that delivers, and no rules", byRole(roleARN), withoutRules(), "the role " + roleARN + " may send to it, and the filter of the subscriber, or the rule, cannot be seen from here"},
	{"a role of another account that delivers", byRole(strings.Replace(roleARN, testAccount, hubAccount, 1)), withoutRules(), "the queue's policy lets the role arn:aws:iam::210987654321:role/bus/deliver in"},
	{"another account that delivers", byRole("arn:aws:iam::210987654321:root"), withoutRules(), "whoever has one of these can send: the account 210987654321"},
	{"a role that delivers, by a condition", func(f *Facts) {
		byRole(roleARN)(f)
		f.Queue.Value.Policy = `{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*", "Condition": {"ArnEquals": {"aws:PrincipalArn": "` + roleARN + `"}}}]}`
	}, withoutRules(), "the queue's policy lets the role " + roleARN + " in"},
	{"a role that delivers beside a rule for one kind", func(f *Facts) {
		policy := f.Queue.Value.Policy
		spot := f.Rules.Value[:1]
		byRole(roleARN)(f)
		f.Rules.Value = spot
		f.Queue.Value.Policy = strings.Replace(policy, `[{`, `[{"Effect": "Allow", "Principal": {"AWS": "`+roleARN+`"}, "Action": "sqs:SendMessage", "Resource": "*"},{`, 1)
		f.Key.Value.Policy = value(policyFor(eventBridge, ownRules))
	}, func() map[string]Status { want := withoutRules(); delete(want, "rule-spot"); return want }(), "spot interruption warnings are sent to the queue by the rule spot"},
	{"a role that delivers, and a key that leaves it to the role", func(f *Facts) {
		byRole(roleARN)(f)
		f.Key.Value.Policy = value(rolePolicy("arn:aws:iam::123456789012:root"))
	}, withoutRules("queue-key"), "its policy leaves that to the policies of the role"},
	{"a role that delivers, and a key that does not know it", func(f *Facts) {
		byRole(roleARN)(f)
		f.Key.Value.Policy = value(rolePolicy("arn:aws:iam::999999999999:root"))
	}, func() map[string]Status { want := withoutRules(); want["queue-key"] = Failed; return want }(), "does not let the role " + roleARN + " use it"},
	{"the account's own statement, which names no role", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy, f.Queue.Value.KeyID = rolePolicy("arn:aws:iam::123456789012:root"), ""
	}, map[string]Status{
		"queue-policy": Failed, "rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning, "rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "does not let a rule of EventBridge in"},
	{"the handler's own role, which reads", func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy, f.Queue.Value.KeyID = rolePolicy("arn:aws:iam::123456789012:role/path/nth"), ""
	}, map[string]Status{
		"queue-policy": Failed, "rule-spot": Failed, "rule-rebalance": Warning, "rule-state-change": Warning, "rule-health": Warning, "rule-asg-terminate": Failed, "rule-asg-launch": Warning,
	}, "does not let a rule of EventBridge in"},
	{"rules with a role", withRole(roleARN), nil, "the queue's policy lets the role " + roleARN + " in"},
	{"rules with a role that the queue does not let in", func(f *Facts) {
		withRole(roleARN)(f)
		f.Queue.Value.Policy = policyFor(eventBridge, ownRules)
	}, map[string]Status{"queue-policy": Unknown}, "for role " + roleARN + " its policy leaves that to the policies of the role"},
	{"rules with a role of another account that the queue does not let in", func(f *Facts) {
		withRole("arn:aws:iam::999999999999:role/bus/deliver")(f)
		f.Queue.Value.Policy = policyFor(eventBridge, ownRules)
	}, map[string]Status{"queue-policy": Failed}, "does not let role arn:aws:iam::999999999999:role/bus/deliver in"},
	{"a disabled rule that the queue does not let in, and that changes events", func(f *Facts) {
		f.Rules.Value = append(f.Rules.Value, Rule{Name: "old", ARN: "arn:aws:events:us-east-1:123456789012:rule/elsewhere/old", Targets: []Target{{Changed: true}}})
	}, nil, "rules send events as they are"},
	{"a single rule", func(f *Facts) { f.Rules.Value = single(f.Rules.Value[0]) }, nil, "are sent to the queue by the rule single"},
	{"a target that changes events", func(f *Facts) { f.Rules.Value[0].Targets[0].Changed = true }, map[string]Status{"rule-targets": Failed}, "the rule spot changes"},

	{"no API server", func(f *Facts) { f.User = Answer[User]{Err: errSlow}; f.Access = nil }, map[string]Status{"api-server": Failed, "rbac": Unknown}, "no answer"},
	{"an API server that does not say who calls", func(f *Facts) { f.User.Err = errDenied }, map[string]Status{"api-server": Unknown}, "x:Y"},
	{
		"a handler that crashes", handlerPods(State{Waiting: "CrashLoopBackOff", Restarts: 7, Exit: Exit{2, "Error", "queue-url: is required"}}),
		map[string]Status{"handler": Failed},
		"crashing: 1 of 1 replica: pod self has ended 7 times, with status 2: queue-url: is required",
	},
	{"one of two that crashes", func(f *Facts) {
		pod(Pod{Namespace: "nth", Name: "other", Owner: "self", ServiceAccount: "node-termination-handler", State: State{Waiting: "CrashLoopBackOff", Restarts: 1, Exit: Exit{137, "OOMKilled", ""}}})(f)
		f.Pods.Value[1].Owner = "self"
	}, map[string]Status{"handler": Warning}, "crashing: 1 of 2 replicas: pod other has ended 1 time, with status 137 (OOMKilled)"},
	{"one of two that does not get ready", func(f *Facts) {
		twoReplicas("ip-10-0-0-2.ec2.internal")(f)
		f.Pods.Value[len(f.Pods.Value)-1].State = State{Since: now.Add(-time.Hour)}
	}, map[string]Status{"handler": Warning}, "1 of 2 replicas ready: pod second has not been for 1h"},
	{"one of two that has just begun", func(f *Facts) {
		twoReplicas("ip-10-0-0-2.ec2.internal")(f)
		f.Pods.Value[len(f.Pods.Value)-1].State = State{Since: now.Add(-time.Minute)}
	}, nil, "1 of 2 replicas ready"},
	{"one that is leaving", func(f *Facts) {
		twoReplicas("ip-10-0-0-2.ec2.internal")(f)
		f.Pods.Value[len(f.Pods.Value)-1].State = State{Since: now.Add(-time.Hour), Leaving: true}
	}, nil, "1 of 1 replica ready"},
	{"one of two that was never created", func(f *Facts) {
		f.Deployments = value([]Deployment{{2, f.Pods.Value[1]}})
	}, map[string]Status{"handler": Warning}, "nth/self has 1 of 2 replicas"},
	{"two on one node of several", twoReplicas("a"), map[string]Status{"handler": Warning}, "nth/self: all ready replicas are on one node, a"},
	{"two on the one node that is not cordoned", func(f *Facts) { twoReplicas("a")(f); f.Nodes.Value[1].Full = true }, nil, "2 of 2 replicas ready"},
	{"two on two nodes", twoReplicas("ip-10-0-0-2.ec2.internal"), nil, "2 of 2 replicas ready"},
	{"two on the only node that could take them", func(f *Facts) {
		twoReplicas("a")(f)
		f.Nodes.Value[1].Labels = map[string]string{"kubernetes.io/os": "windows"}
	}, nil, "2 of 2 replicas ready"},
	{"an image that cannot be pulled", handlerPods(State{Waiting: "ImagePullBackOff", Message: "Back-off pulling image"}), map[string]Status{"handler": Failed}, "pod self: ImagePullBackOff: Back-off pulling image"},
	{"a pod that no node has room for", handlerPods(State{Waiting: "Unschedulable", Message: "0/3 nodes are available"}), map[string]Status{"handler": Failed}, "0/3 nodes are available"},
	{"a handler that starts", handlerPods(State{}), map[string]Status{"handler": Warning}, "no replica of nth/self is ready"},
	{"a handler that does not get ready", handlerPods(State{Since: now.Add(-3 * time.Minute)}), map[string]Status{"handler": Failed}, "no replica of nth/self is ready"},
	{"a handler that is scaled to nothing", func(f *Facts) { f.Pods.Value = f.Pods.Value[:1]; deployed(0)(f) }, map[string]Status{"handler": Failed}, "scaled to 0"},
	{"a handler without pods", func(f *Facts) { f.Pods.Value = f.Pods.Value[:1]; deployed(2)(f) }, map[string]Status{"handler": Failed}, "has no pod"},
	{"Deployments that may not be listed", func(f *Facts) { f.Deployments.Err = errDenied }, nil, ""},

	{"no right to evict", func(f *Facts) {
		f.Access[kube.Access{Resource: "pods", Subresource: "eviction", Verb: "create"}] = value(false)
	}, map[string]Status{"rbac": Failed}, "create pods/eviction"},
	{"no right to write events", func(f *Facts) { f.Access[kube.Access{Resource: "events", Verb: "patch"}] = value(false) }, map[string]Status{"rbac": Warning}, "patch events"},
	{"no right to say of a pod that it is disrupted", func(f *Facts) { f.Access[kube.Disrupting()[0]] = value(false) }, map[string]Status{"rbac": Warning}, "patch pods/status"},
	{"no right to say on a node how far its drain is", func(f *Facts) { f.Access[kube.Conditions()[0]] = value(false) }, map[string]Status{"rbac": Warning}, "patch nodes/status"},
	{"rights that may not be asked for", func(f *Facts) { f.Access[kube.Access{Resource: "nodes", Verb: "get"}] = Answer[bool]{Err: errDenied} }, map[string]Status{"rbac": Unknown}, "x:Y"},
	{"no leader election", func(f *Facts) { f.Options.LeaderElect = false }, map[string]Status{"lease": Warning}, "off"},
	{"no Lease yet", func(f *Facts) { f.Lease = Answer[Lease]{Err: errAbsent} }, map[string]Status{"lease": Warning}, "no replica has led in namespace nth so far"},
	{"a Lease that may not be read", func(f *Facts) { f.Lease = Answer[Lease]{Err: errDenied} }, map[string]Status{"lease": Unknown}, "x:Y"},
	{"a handler that only logs", func(f *Facts) { f.Options.DryRun, f.Options.LeaderElect = true, false }, map[string]Status{"lease": Failed}, "dry-run is on: no node is drained"},
	{"a Lease that pauses the handler", func(f *Facts) { f.Lease.Value.Paused = new("a bad rule") }, map[string]Status{"lease": Failed}, "paused (a bad rule): no node is drained"},
	{"a Lease that was given away", func(f *Facts) { f.Lease.Value.Holder = "" }, map[string]Status{"lease": Warning}, "nobody leads"},
	{"a leader that is gone", func(f *Facts) { f.Lease.Value.Silent = time.Minute }, map[string]Status{"lease": Failed}, "for 1m"},

	{"pods that may not be listed", func(f *Facts) { f.Pods = Answer[[]Pod]{Err: errDenied} }, map[string]Status{"handler": Unknown, "other-handlers": Unknown, "hook-timeout": Unknown}, "x:Y"},
	{"a policy file that is wrong", func(f *Facts) {
		f.Policy.Err = &PolicyError{"ConfigMap nth/policy", errors.New("line 3: nodes[0].do: is missing")}
	}, map[string]Status{"policy": Failed}, "line 3: nodes[0].do"},
	{"a policy with a warning", func(f *Facts) {
		f.Policy = value(Policy{From: "p.yaml", Warnings: []string{"line 7: no rule uses it"}})
	}, map[string]Status{"policy": Warning}, "the policy of p.yaml: line 7"},
	{"NTH on the same queue", pod(Pod{Namespace: "kube-system", Labels: map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL}}), map[string]Status{"other-handlers": Failed}, "AWS Node Termination Handler (a Deployment in namespace kube-system)"},
	{"NTH as a DaemonSet", pod(Pod{Namespace: "kube-system", DaemonSet: true, Labels: map[string]string{"k8s-app": "aws-node-termination-handler"}}), map[string]Status{"other-handlers": Warning}, "a DaemonSet"},
	{"NTH under another name", pod(Pod{Images: []string{"public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25"}}), map[string]Status{"other-handlers": Warning}, "AWS Node Termination Handler"},
	{"us under NTH's name", pod(Pod{Namespace: "nth", ServiceAccount: "node-termination-handler", Labels: map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL}, State: State{Ready: true}}), nil, ""},
	{"us under NTH's name, from a mirror", func(f *Facts) {
		f.Pods.Value[1].Images = []string{"r/drainer:1"}
		f.Pods.Value[1].Labels = map[string]string{"app.kubernetes.io/name": "aws-node-termination-handler"}
		f.Pods.Value[1].Env = map[string]string{"QUEUE_URL": queueURL, "LEADER_ELECT_RESOURCE_NAME": "nth"}
		pod(Pod{
			Namespace: "nth", DaemonSet: true, Images: []string{"r/drainer:1"}, Labels: f.Pods.Value[1].Labels,
			Env: map[string]string{"ENABLE_SQS_TERMINATION_DRAINING": "false", "LEADER_ELECT_RESOURCE_NAME": f.Options.Lease},
		})(f)
	}, nil, ""},
	{"another release of ours in the namespace, with a Lease of its own", func(f *Facts) {
		f.User.Value.Name = "admin"
		f.Pods.Value[1].Owner, f.Pods.Value[1].Env = "one", map[string]string{"QUEUE_URL": queueURL}
		pod(Pod{Namespace: "nth", Owner: "two", Images: []string{"r/node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL, "LEADER_ELECT_RESOURCE_NAME": "two"}})(f)
	}, map[string]Status{"other-handlers": Failed}, "another release of this program, nth/two"},
	{"another release of ours with the queue", pod(Pod{Namespace: "b", Images: []string{"r/node-termination-handler@sha256:0"}, Env: map[string]string{"QUEUE_URL": queueURL}}), map[string]Status{"other-handlers": Failed}, "another release"},
	{"another release of ours with its own queue in the region", pod(Pod{Namespace: "b", Owner: "two", Images: []string{"r/node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL + "-2"}}), map[string]Status{"other-handlers": Warning}, "another release of this program, b/two"},
	{"another release of ours for nodes with another tag", pod(Pod{Namespace: "b", Images: []string{"r/node-termination-handler"}, Env: map[string]string{"QUEUE_URL": queueURL + "-2", "MANAGED_TAG": "team-b"}}), nil, ""},
	{"another release of ours that reads the metadata", pod(Pod{Namespace: "b", Owner: "on-node", DaemonSet: true, Images: []string{"r/node-termination-handler"}, Env: map[string]string{"ENABLE_SQS_TERMINATION_DRAINING": "false", "LEADER_ELECT_RESOURCE_NAME": "node-termination-handler"}}), map[string]Status{"other-handlers": Warning}, "another release of this program, b/on-node"},
	{"another release of ours with its own queue", pod(Pod{Namespace: "b", Images: []string{"r/node-termination-handler"}, Env: map[string]string{"QUEUE_URL": "x"}}), nil, ""},
	{"Karpenter with the queue", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}, Env: map[string]string{"INTERRUPTION_QUEUE": "nth"}}), map[string]Status{"other-handlers": Failed}, "Karpenter, by its interruption queue nth"},
	{"Karpenter with a queue of its own", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}, Args: []string{"--interruption-queue=k"}}), nil, "interruption queue k, drains nodes that this handler ignores"},
	{"Karpenter with a queue of its own, and a node of its that we drain as well", func(f *Facts) {
		karpenterBeside(f)
		f.Nodes.Value[0].Karpenter = true
	}, map[string]Status{"other-handlers": Warning}, "interruption queue k"},
	{"Karpenter with a queue of its own, and a node that is left to it", func(f *Facts) {
		karpenterBeside(f)
		f.Nodes.Value[0].Karpenter = true
		delete(f.Instances.Value[0].Tags, tag)
	}, nil, "1 of 1 node are covered; 1 on Fargate do not count; 1 node without the tag are left to Karpenter"},
	{"nothing but Karpenter's nodes, which are left to it", func(f *Facts) {
		karpenterBeside(f)
		f.Nodes.Value = f.Nodes.Value[:1]
		f.Nodes.Value[0].Karpenter = true
		delete(f.Instances.Value[0].Tags, tag)
	}, map[string]Status{"nodes": Warning}, "no node is covered; 1 node without the tag are left to Karpenter"},
	{"rebalance recommendations alone beside Karpenter", func(f *Facts) {
		karpenterBeside(f)
		f.Options.CheckTag = false
		f.Nodes.Value = f.Nodes.Value[:1]
		f.Nodes.Value[0].Karpenter = true
		f.Rules.Value, f.Groups.Value = f.Rules.Value[1:2], nil
	}, nil, "spot interruption warnings are left to Karpenter"},
	{"Karpenter is to drain, and may not be asked", func(f *Facts) { f.Options.ByKarpenter = true; notDelegating(f) }, map[string]Status{"rbac": Failed}, "delete nodeclaims.karpenter.sh"},
	{"Karpenter without a queue", pod(Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}}), nil, ""},

	{"nodes that may not be listed", func(f *Facts) {
		f.Nodes, f.Instances, f.Groups = Answer[[]Node]{Err: errDenied}, Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, ofTheNodes(Unknown), "x:Y"},
	{"instances that may not be looked up", func(f *Facts) {
		f.Instances, f.Groups = Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, ofTheNodes(Failed), "no node is covered"},
	{"instances that whoever runs doctor may not look up", func(f *Facts) {
		f.Beside = errBeside
		f.Instances, f.Groups = Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, func() map[string]Status {
		want := ofTheNodes(Unknown)
		want["permissions"], want["queue-decrypt"] = Unknown, Unknown
		return want
	}(), "which instances are behind the nodes"},
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
	{"a node that is not of EC2", func(f *Facts) { f.Nodes.Value[1].Name, f.Nodes.Value[1].ProviderID = "b", "eks-hybrid:///x" }, map[string]Status{"nodes": Warning}, "b (its provider id eks-hybrid:///x is none of EC2, and no instance has its name)"},
	{"a node that is not of EC2, and no tag check", func(f *Facts) {
		f.Options.CheckTag = false
		f.Nodes.Value[1].Name, f.Nodes.Value[1].ProviderID = "b", "eks-hybrid:///x"
	}, map[string]Status{"nodes": Warning}, "eks-hybrid:///x is none of EC2"},
	{"a node of k3s", func(f *Facts) { f.Nodes.Value[1].ProviderID = "k3s://ip-10-0-0-2.ec2.internal" }, nil, "2 of 2 nodes are covered"},
	{"nodes of k3s alone", func(f *Facts) {
		f.Nodes.Value, f.Nodes.Value[1].ProviderID = f.Nodes.Value[1:2], "k3s://ip-10-0-0-2.ec2.internal"
	}, nil, "1 of 1 node are covered"},
	{"a node of k3s, and an instance of its name in another cluster", func(f *Facts) {
		f.Options.ClusterName = "ours"
		f.Nodes.Value[1].ProviderID = "k3s://ip-10-0-0-2.ec2.internal"
		stranger := f.Instances.Value[1]
		stranger.ID, stranger.Account, stranger.Tags = "i-0000000c", hubAccount, map[string]string{"kubernetes.io/cluster/theirs": "owned"}
		f.Instances.Value = append(f.Instances.Value, stranger)
	}, nil, "2 of 2 nodes are covered"},
	{"no node covered", func(f *Facts) { f.Instances.Value = nil }, map[string]Status{"nodes": Failed, "event-accounts": Warning}, "0 of 2 nodes are covered"},
	{"Fargate alone", func(f *Facts) { f.Nodes.Value = f.Nodes.Value[2:] }, map[string]Status{"nodes": Warning}, "no nodes on EC2; 1 on Fargate"},
	{"an instance of another account", func(f *Facts) { f.Instances.Value[1].Account = hubAccount }, map[string]Status{"event-accounts": Warning}, "of others: ip-10-0-0-2.ec2.internal (210987654321)"},
	{"instances of several accounts", func(f *Facts) {
		f.Options.EventAccounts, f.Options.CheckTag = []string{testAccount, hubAccount}, false
		f.Instances.Value[1].Account = hubAccount
	}, nil, ""},
	{"instances that EC2 does not know, and no tag check", func(f *Facts) {
		f.Options.CheckTag = false
		f.Instances.Value = f.Instances.Value[1:]
	}, map[string]Status{"event-accounts": Warning}, "does not know the instances of these nodes in the caller's account: a;"},
	{"instances that may not be looked up, and a caller of another account", func(f *Facts) {
		f.Options.CheckTag = false
		f.Nodes.Value = f.Nodes.Value[:1]
		f.Caller.Value.Account = hubAccount
		f.Instances, f.Groups = Answer[[]Instance]{Err: errDenied}, Answer[[]Group]{Err: errDenied}
	}, map[string]Status{
		"account": Warning, "event-accounts": Warning, "group-hook": Unknown, "hook-timeout": Unknown, "hook-launch": Unknown,
		"rule-asg-terminate": Unknown, "rule-asg-launch": Unknown,
	}, "the caller is of 210987654321, and EC2 does not say"},
	{"a node in another region", func(f *Facts) { f.Nodes.Value[0].Region = "eu-west-1" }, map[string]Status{"event-accounts": Warning}, "only notices of region us-east-1 are acted on, and these nodes are in others: a (eu-west-1)"},
	{"all nodes in another region", func(f *Facts) { f.Nodes.Value[0].Region = "eu-west-1"; f.Nodes.Value = f.Nodes.Value[:1] }, map[string]Status{"event-accounts": Failed}, "a (eu-west-1)"},
	{"a group without the tag", func(f *Facts) { f.Groups.Value[0].Tags = value(map[string]string{}) }, map[string]Status{"group-tag": Warning}, "group workers"},
	{"groups that may not be described", func(f *Facts) { f.Groups.Value[0].Tags = Answer[map[string]string]{Err: errDenied} }, map[string]Status{"group-tag": Unknown}, "x:Y"},
	{"a group without its hook", func(f *Facts) { f.Groups.Value[0].Hooks = value([]Hook(nil)) }, map[string]Status{"group-hook": Warning}, "no termination hook on the Auto Scaling group workers"},
	{"hooks that may not be described", func(f *Facts) { f.Groups.Value[0].Hooks = Answer[[]Hook]{Err: errDenied} }, map[string]Status{"rule-asg-terminate": Unknown, "rule-asg-launch": Unknown, "group-hook": Unknown, "hook-timeout": Unknown, "hook-launch": Unknown}, "x:Y"},
	{"no groups", func(f *Facts) { f.Groups.Value = nil }, map[string]Status{"group-tag": Unknown}, "no node belongs to an Auto Scaling group that would tag them"},
	{"no groups, and no tag check", func(f *Facts) { f.Groups.Value, f.Options.CheckTag = nil, false }, nil, ""},
	{"groups that nobody knows, since EC2 does not know the instances", func(f *Facts) {
		f.Groups.Value, f.Instances.Value = nil, f.Instances.Value[1:]
	}, map[string]Status{
		"nodes": Warning, "group-tag": Unknown, "group-hook": Unknown, "hook-timeout": Unknown, "hook-launch": Unknown, "rule-asg-terminate": Unknown, "rule-asg-launch": Unknown,
	}, "EC2 does not know the instances of 1 node, and so their Auto Scaling groups"},
	{"a hook that is left to others", func(f *Facts) {
		f.Options.HookNames = []string{"other"}
		f.Groups.Value[0].Hooks, f.Groups.Value[0].OtherHooks = value([]Hook(nil)), []string{"drain"}
	}, map[string]Status{"group-hook": Warning}, "lifecycle-hook-names=other leaves out the termination hooks of the Auto Scaling group workers (drain)"},
	{"a hook that is over before a failover is", func(f *Facts) {
		f.Groups.Value[0].Hooks.Value[0].Timeout = 30 * time.Second
		f.Pods.Value = f.Pods.Value[1:]
	}, map[string]Status{"hook-timeout": Warning}, "before another replica has taken over from a leader that dies, and drained the node: drain of workers (30s)"},
	{"a hook of 30 s with heartbeats", func(f *Facts) {
		f.Groups.Value[0].Hooks.Value[0].Timeout = 30 * time.Second
		f.Options.HeartbeatInterval, f.Options.HeartbeatUntil = 30*time.Second, time.Hour
	}, nil, ""},
	{"a launch hook that is too short", func(f *Facts) {
		f.Groups.Value[0].Hooks.Value[1].Timeout, f.Groups.Value[0].Hooks.Value[1].Abandons = 30*time.Second, true
	}, map[string]Status{"hook-launch": Warning}, "launch of workers (30s)"},
	{"a short launch hook that lets the instance in", func(f *Facts) { f.Groups.Value[0].Hooks.Value[1].Timeout = 30 * time.Second }, nil, ""},
	{"a pod that takes longer than the hook", func(f *Facts) { f.Pods.Value[0].Grace = 10 * time.Minute }, map[string]Status{"hook-timeout": Warning}, "drain of workers (5m, pod default/web may take 10m)"},
	{"a pod that takes longer, and heartbeats", func(f *Facts) {
		f.Pods.Value[0].Grace, f.Options.HeartbeatInterval, f.Options.HeartbeatUntil = 10*time.Minute, time.Minute, 30*time.Minute
	}, nil, ""},
	{"a pod on a node that has no group", func(f *Facts) { f.Pods.Value[0].Grace = 10 * time.Minute; f.Pods.Value[0].Node = "f" }, nil, ""},
}

// inHub puts the queue into another account than all else, and has notices of an
// account acted on.
func inHub(f *Facts, eventAccount string) {
	f.Options.Account, f.Options.EventAccounts = hubAccount, []string{eventAccount}
	f.Queue.Value.ARN = strings.Replace(queueARN, testAccount, hubAccount, 1)
	f.Queue.Value.Policy = policyFor(eventBridge, `"ArnLike": {"aws:SourceArn": "arn:aws:events:us-east-1:210987654321:rule/*"}`)
	f.Key.Value.Policy = value(f.Queue.Value.Policy)
}

// single is the rule of the template for all kinds.
func single(like Rule) []Rule {
	pattern, err := os.ReadFile("../../deploy/eventbridge/single.json")
	if err != nil {
		panic(err)
	}
	like.Name, like.ARN, like.Pattern = "single", ruleARN+"single", string(pattern)
	return []Rule{like}
}

const (
	topicARN  = "arn:aws:sns:us-east-1:123456789012:notices"
	roleARN   = "arn:aws:iam::123456789012:role/bus/deliver"
	allowRule = `{"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*", "Condition": {` + ownRules + `}}`
)

// publishTo is a topic's policy for EventBridge, on a condition.
func publishTo(condition string) string {
	return strings.Replace(policyFor(eventBridge, condition), `["sqs:SendMessage", "kms:*"]`, `"sns:Publish"`, 1)
}

// byTopic has all rules send to a topic that hands on to the queue.
func byTopic(f *Facts) {
	policy := policyFor(snsService, `"ArnEquals": {"aws:SourceArn": "`+topicARN+`"}`)
	f.Queue.Value.Policy, f.Key.Value.Policy = policy, value(policy)
	f.Topics = topics{topicARN: value(Topic{Policy: publishTo(ownRules), Subscription: &Subscription{ARN: topicARN + ":1"}})}
	for k := range f.Rules.Value {
		f.Rules.Value[k].Topic = topicARN
	}
}

func ofTopic(change func(*Answer[Topic])) func(*Facts) {
	return func(f *Facts) {
		byTopic(f)
		t := f.Topics[topicARN]
		change(&t)
		f.Topics[topicARN] = t
	}
}

// rolePolicy lets an identity send and use a key.
func rolePolicy(who string) string {
	return strings.Replace(policyFor(eventBridge, ""), `{"Service": "events.amazonaws.com"}`, `{"AWS": "`+who+`"}`, 1)
}

// byRole has an identity deliver, as that of a subscriber of a custom event bus.
func byRole(who string) func(*Facts) {
	return func(f *Facts) {
		f.Rules.Value = nil
		f.Queue.Value.Policy, f.Key.Value.Policy = rolePolicy(who), value(rolePolicy(who))
	}
}

// onlyServices adds the Deny of the templates to the policy of the queue. One identity may be named.
func onlyServices(f *Facts, named string) {
	f.Queue.Value.Policy = strings.Replace(f.Queue.Value.Policy, "[{", `[{"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*",
		"Condition": {"BoolIfExists": {"aws:PrincipalIsAWSService": "false"}, "ArnNotEquals": {"aws:PrincipalArn": ["`+named+`"]}}}, {`, 1)
}

// withRole has rules deliver with a role.
func withRole(who string) func(*Facts) {
	return func(f *Facts) {
		f.Queue.Value.Policy, f.Key.Value.Policy = rolePolicy(who), value(rolePolicy(who))
		for k := range f.Rules.Value {
			f.Rules.Value[k].Targets[0].RoleARN = who
		}
	}
}

// handlerPods has the one replica in a state.
func handlerPods(s State) func(*Facts) { return func(f *Facts) { f.Pods.Value[1].State = s } }

// twoReplicas has a second one, on that node; the first is on node a.
func twoReplicas(node string) func(*Facts) {
	return func(f *Facts) {
		f.Pods.Value[1].Owner = "self"
		second := f.Pods.Value[1]
		second.Name, second.Node = "second", node
		f.Pods.Value = append(f.Pods.Value, second)
	}
}

func deployed(replicas int) func(*Facts) {
	return func(f *Facts) {
		f.Deployments = value([]Deployment{{replicas, Pod{Namespace: "nth", Name: "x", Owner: "x", ServiceAccount: "node-termination-handler"}}})
	}
}

func notDelegating(f *Facts) {
	for _, a := range kube.Delegating() {
		f.Access[a] = value(false)
	}
}

func pod(p Pod) func(*Facts) {
	return func(f *Facts) { f.Pods.Value = append(f.Pods.Value, p) }
}

func karpenterBeside(f *Facts) {
	f.Pods.Value = append(f.Pods.Value, Pod{Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}, Args: []string{"--interruption-queue", "k"}})
}

func without(rule int) func(*Facts) {
	return func(f *Facts) { f.Rules.Value = append(f.Rules.Value[:rule:rule], f.Rules.Value[rule+1:]...) }
}

// ofTheQueue is what a queue that cannot be read leaves unknown.
func ofTheQueue(itself Status) map[string]Status {
	want := map[string]Status{"queue": itself, "topic": Unknown}
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
		if strings.HasPrefix(id, "rule-") && !strings.HasPrefix(id, "rule-capacity-") { // no instance needs these
			want[id] = s
		}
	}
	for _, id := range more {
		want[id] = s
	}
	return want
}

// withoutRules is what rules leave unknown that may be there and are not seen.
func withoutRules(more ...string) map[string]Status {
	want := withRules(Unknown, more...)
	delete(want, "rule-targets") // of those that are seen
	return want
}

func ofTheNodes(itself Status) map[string]Status {
	return map[string]Status{
		"nodes": itself, "event-accounts": Unknown, "group-tag": Unknown, "group-hook": Unknown, "hook-timeout": Unknown, "hook-launch": Unknown,
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
					if finding.Hint == "" && len(finding.Commands) == 0 {
						t.Errorf("%s says nothing to do", finding.ID)
					}
				}
				if finding.Link != repository+finding.ID {
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
		if !red[id] && id != "queue-decrypt" { // a policy may let the role decrypt by way of SQS alone
			t.Errorf("nothing turns %s red", id)
		}
	}
}

func TestTheAccountsThatAreMissingCanBeCopiedFromTheHint(t *testing.T) {
	f := healthy()
	f.Options.Account, f.Options.EventAccounts = hubAccount, []string{hubAccount}
	for _, want := range []string{"set event-accounts=123456789012", "set event-accounts=111122223333,123456789012"} {
		if got := eventAccounts(f).Hint; got != want {
			t.Errorf("hint %q, want %q", got, want)
		}
		f.Instances.Value[1].Account = "111122223333"
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

func TestTheFilterThatIsAdvisedIsThatOfTheDocs(t *testing.T) {
	f := healthy()
	byRole(roleARN)(f)
	_, filter, _ := strings.Cut(ruleSpot(f).Hint, "filter configuration ")
	filter, retries, _ := strings.Cut(filter, " and the retry policy ")
	page, err := os.ReadFile("../../docs/fan-out.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{filter, retries} {
		if want == "" || !strings.Contains(string(page), "`"+want+"`") {
			t.Errorf("docs/fan-out.md has no %q", want)
		}
	}
	var configuration struct {
		Filters []struct{ Scope, Pattern string }
	}
	if err := json.Unmarshal([]byte(filter), &configuration); err != nil || len(configuration.Filters) != 1 {
		t.Fatalf("%v in %s", err, filter)
	}
	p, err := eventpattern.Parse(configuration.Filters[0].Pattern)
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]bool{"aws.ec2": true, "aws.health": true, "aws.autoscaling": true, "mine": false} {
		if taken, err := p.Match(`{"aws:Source": "` + source + `"}`); err != nil || taken != want {
			t.Errorf("%s is taken: %v, %v", source, taken, err)
		}
	}
}

func TestTheWorstDecides(t *testing.T) {
	for _, tt := range []struct {
		name string
		all  []Finding
		want Status
	}{
		{"nothing", nil, OK},
		{"something that does not matter is unknown", []Finding{{Status: OK}, {Status: Unknown}}, OK},
		{"a warning", []Finding{{Status: OK}, {Status: Warning}, {Status: Unknown}}, Warning},
		{"something that matters is unknown", []Finding{{Status: Warning}, {Status: Unknown, Needed: true}}, Unknown},
		{"a failure", []Finding{{Status: Warning}, {Status: Unknown, Needed: true}, {Status: Failed}, {Status: OK}}, Failed},
		{"a warning that is accepted", []Finding{{Status: OK}, {Status: Warning, Accepted: true}}, OK},
	} {
		if got := Worst(tt.all); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestWarningsCanBeAcceptedAndFailuresCannot(t *testing.T) {
	f := healthy()
	without(1)(f) // rebalance recommendations
	if got := Worst(Examine(f)); got != Warning {
		t.Errorf("as it is: %s", got)
	}
	if got := Worst(Examine(f, "rule-rebalance")); got != OK {
		t.Errorf("accepted: %s", got)
	}
	f.Rules.Value[0].Enabled = false // spot
	if got := Worst(Examine(f, "rule-rebalance", "rule-spot")); got != Failed {
		t.Errorf("a failure: %s", got)
	}
}

func TestWhoRunsDoctorBeforeInstallingAcceptsThatThereIsNoHandler(t *testing.T) {
	f := healthy()
	f.User.Value.Name = "admin"
	f.Pods.Value = f.Pods.Value[:1]
	f.Lease = Answer[Lease]{Err: errAbsent}
	f.Rights = Rights{Err: blocked("handler", errAbsent)}
	f.Beside = blocked("handler", errAbsent)
	got := map[string]Status{}
	for _, finding := range Examine(f) {
		if finding.Status != OK {
			got[finding.ID] = finding.Status
		}
	}
	want := map[string]Status{"handler": Warning, "lease": Unknown, "rbac": Unknown, "permissions": Unknown, "queue-decrypt": Unknown}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not well (-want +got):\n%s", diff)
	}
	if worst := Worst(Examine(f)); worst != Unknown {
		t.Errorf("as it is: %s", worst)
	}
	if worst := Worst(Examine(f, "handler")); worst != OK {
		t.Errorf("accepted: %s", worst)
	}
}

func TestLinksAreOfTheVersion(t *testing.T) {
	for version, want := range map[string]string{"1.2.3": "blob/v1.2.3/docs/doctor.md#x", "": "blob/main/", "0.0.0-gabc": "blob/main/", "v2.0.0": "blob/v2.0.0/"} {
		if got := link(version, "x"); !strings.HasPrefix(got, "https://github.com/") || !strings.Contains(got, want) {
			t.Errorf("link of %q: %s", version, got)
		}
	}
}

func TestFindingsArePrintedForPeopleAndForPrograms(t *testing.T) {
	findings := []Finding{
		{ID: "a", Group: "one", Status: OK, What: "all is well"},
		{ID: "b", Group: "one", Status: Failed, What: "it is \x1b[31mbroken", Hint: "mend it", Commands: []string{"aws mend it"}, Link: repository + "b"},
		{ID: "c", Group: "two", Status: Unknown, What: "nobody knows", Link: repository + "c"},
		{ID: "d", Group: "two", Status: Warning, What: "that is wanted", Hint: "change it", Link: repository + "d", Accepted: true},
	}
	var people, programs strings.Builder
	if err := errors.Join(Print(&people, findings, Style{}), PrintJSON(&programs, findings[3:])); err != nil {
		t.Fatal(err)
	}
	want := `one
---
√ a: all is well
× b: it is  [31mbroken
    mend it
    aws mend it
    see https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/doctor.md#b

two
---
? c: nobody knows
    see https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/doctor.md#c
‼ d, accepted: that is wanted

× 1 of 4 checks passed, 1 failed, 1 unknown, 1 accepted
`
	if diff := cmp.Diff(want, people.String()); diff != "" {
		t.Errorf("for people (-want +got):\n%s", diff)
	}
	want = `{
  "status": "ok",
  "checks": [
    {
      "id": "d",
      "group": "two",
      "status": "warning",
      "what": "that is wanted",
      "needed": false,
      "accepted": true,
      "hint": "change it",
      "link": "https://github.com/node-termination-handler/node-termination-handler/blob/main/docs/doctor.md#d"
    }
  ]
}
`
	if diff := cmp.Diff(want, programs.String()); diff != "" {
		t.Errorf("for programs (-want +got):\n%s", diff)
	}
}

func TestMarksHaveColoursWhereTheyAreWanted(t *testing.T) {
	var out strings.Builder
	if err := Print(&out, []Finding{{ID: "a", Status: OK, What: "well"}}, Style{Colour: true}); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[32m√\x1b[0m a: well\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in %q", want, out.String())
	}
}

func TestWhatOneCauseLeavesUnknownIsOneLine(t *testing.T) {
	f := healthy()
	f.Rules = Answer[[]Rule]{Err: errDenied}
	var brief, all strings.Builder
	if err := errors.Join(Print(&brief, Examine(f), Style{}), Print(&all, Examine(f), Style{Verbose: true})); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(brief.String(), "x:Y"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, brief.String())
	}
	unknown := 0
	for _, finding := range Examine(f) {
		if finding.Status == Unknown {
			unknown++
		}
	}
	for _, want := range []string{
		fmt.Sprintf("? permission x:Y is missing: %d checks are unknown: rule-spot, rule-asg-terminate, rule-targets, ", unknown),
		fmt.Sprintf("and %d more (--verbose has them all)\n", unknown-5),
		fmt.Sprintf("\n? %d of %d checks passed, %d unknown: it is unknown whether nodes are drained in time\n", len(IDs())-unknown, len(IDs()), unknown),
	} {
		if !strings.Contains(brief.String(), want) {
			t.Errorf("no %q in\n%s", want, brief.String())
		}
	}
	if n := strings.Count(all.String(), "permission x:Y is missing\n"); n != unknown {
		t.Errorf("with --verbose it is said %d times:\n%s", n, all.String())
	}
}

// What the rest works for is not known where a right that is needed has no answer: the
// missing right to write Events makes a warning of it, which is one that people accept.
func TestAUsefulRightThatIsMissingDoesNotHideANeededOneThatIsUnknown(t *testing.T) {
	slow := errors.New("no answer within 10s")
	for name, test := range map[string]struct {
		id   string
		edit func(*Facts)
	}{
		"in the cluster": {"rbac", func(f *Facts) {
			f.Access[kube.Access{Resource: "events", Verb: "patch"}] = value(false)
			f.Access[kube.Access{Resource: "nodes", Verb: "patch"}] = Answer[bool]{Err: slow}
		}},
		"in AWS": {"permissions", func(f *Facts) {
			f.Permissions = []Permission{
				{Action: "sqs:ChangeMessageVisibility", Err: &DeniedError{Permission: "sqs:ChangeMessageVisibility"}},
				{Action: "sqs:DeleteMessage", Needed: true, Err: slow},
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			test.edit(f)
			findings := Examine(f, test.id)
			for _, finding := range findings {
				if finding.ID == test.id && finding.Status != Unknown {
					t.Errorf("%s: %s; with --accept %s all is %v", finding.Status, finding.What, test.id, Worst(findings))
				}
			}
		})
	}
}

func TestTheRightsForLoadBalancersMatterWhereThereAreTargetGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		groups Answer[[]string]
		want   Status
	}{
		"a target group":                    {value([]string{"arn"}), Warning},
		"none":                              {value([]string(nil)), OK},
		"no controller":                     {Answer[[]string]{Err: errAbsent}, OK},
		"target groups that cannot be read": {Answer[[]string]{Err: errDenied}, Warning},
	} {
		f := healthy()
		f.TargetGroups = tt.groups
		for _, a := range kube.LoadBalancers() {
			f.Access[a] = value(false)
		}
		if got := rbac(f); got.Status != tt.want {
			t.Errorf("%s: %+v, want %v", name, got, tt.want)
		}
	}
}

func TestCommandsNameTheRegion(t *testing.T) {
	for command, want := range map[string]string{
		"aws sqs create-queue --queue-name a && aws sqs list-queues --region eu-west-1": "aws sqs create-queue --queue-name a --region us-east-1 && aws sqs list-queues --region eu-west-1",
		"aws sns subscribe --topic-arn arn:aws:sns:eu-west-1:1:t":                       "aws sns subscribe --topic-arn arn:aws:sns:eu-west-1:1:t --region eu-west-1",
		"aws events put-targets --rule r --targets Id=q,Arn=arn:aws:sns:eu-west-1:1:t":  "aws events put-targets --rule r --targets Id=q,Arn=arn:aws:sns:eu-west-1:1:t --region us-east-1",
		"kubectl get nodes": "kubectl get nodes",
	} {
		if got := inRegion(command, "us-east-1"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f := healthy()
	f.Queue.Value.Delay = time.Minute
	for _, found := range Examine(f) {
		for _, command := range found.Commands {
			if !strings.HasSuffix(command, " --region us-east-1") {
				t.Errorf("%s: %s", found.ID, command)
			}
		}
	}
}
