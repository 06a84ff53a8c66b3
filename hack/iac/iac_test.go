package iac

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"go.yaml.in/yaml/v3"
)

const deploy = "../../deploy/"

var here = Account{ID: "123456789012", Partition: "aws", Region: "eu-central-1"}

// setting is one way to use both templates.
type setting struct {
	parameters map[string]any       // of CloudFormation
	variables  map[string]cty.Value // of Terraform; its tags are those of the stack
}

// fanOut reports whether the setting is one of the templates of the topic, which is of no cluster.
func (s setting) fanOut() bool {
	cluster, given := s.parameters["ClusterName"]
	return given && cluster == nil
}

func text(s string) cty.Value { return cty.StringVal(s) }

func texts(list ...string) cty.Value {
	var values []cty.Value
	for _, s := range list {
		values = append(values, text(s))
	}
	return cty.TupleVal(values)
}

var settings = map[string]setting{
	"as they are": {},
	"IRSA, another name": {
		map[string]any{"Identity": "IRSA", "OidcProvider": issuer, "Namespace": "kube-system", "ServiceAccount": "aws-node-termination-handler"},
		map[string]cty.Value{"identity": text("IRSA"), "oidc_provider": text(issuer), "namespace": text("kube-system"), "service_account": text("aws-node-termination-handler")},
	},
	"the least": {
		map[string]any{"StartChecks": "false", "TagCheck": "false", "StatusPoll": "false", "LoadBalancers": "false", "LifecycleHooks": "none", "Doctor": "false"},
		map[string]cty.Value{"start_checks": cty.False, "tag_check": cty.False, "status_poll": cty.False, "load_balancers": cty.False, "lifecycle_hooks": text("none"), "doctor": cty.False},
	},
	"without tag check": {
		map[string]any{"TagCheck": "false"},
		map[string]cty.Value{"tag_check": cty.False},
	},
	"without the poll": {
		map[string]any{"StatusPoll": "false"},
		map[string]cty.Value{"status_poll": cty.False},
	},
	"without load balancers": {
		map[string]any{"LoadBalancers": "false"},
		map[string]cty.Value{"load_balancers": cty.False},
	},
	"without doctor": {
		map[string]any{"Doctor": "false"},
		map[string]cty.Value{"doctor": cty.False},
	},
	"a replacement first": {
		map[string]any{"ReplacementFirst": "true", "Groups": "workers"},
		map[string]cty.Value{"replacement_first": cty.True, "groups": texts("workers")},
	},
	"a replacement first, two groups": {
		map[string]any{"ReplacementFirst": "true", "Groups": "workers,gpu.workers"},
		map[string]cty.Value{"replacement_first": cty.True, "groups": texts("workers", "gpu.workers")},
	},
	"an existing role": {
		map[string]any{"Identity": "Existing", "RoleName": "masters.prod.example.com"},
		map[string]cty.Value{"identity": text("Existing"), "role_name": text("masters.prod.example.com")},
	},
	"without hooks": {
		map[string]any{"LifecycleHooks": "none"},
		map[string]cty.Value{"lifecycle_hooks": text("none")},
	},
	"two groups": {
		map[string]any{"Groups": "workers,gpu.workers"},
		map[string]cty.Value{"groups": texts("workers", "gpu.workers")},
	},
	"hooks for two groups": {
		map[string]any{"Groups": "workers,gpu.workers", "LifecycleHooks": "create", "HookTimeout": 600},
		map[string]cty.Value{"groups": texts("workers", "gpu.workers"), "lifecycle_hooks": text("create"), "hook_timeout": cty.NumberIntVal(600)},
	},
	"rebalance recommendations only": {
		map[string]any{
			"SpotInterruption": "DISABLED", "StateChange": "DISABLED", "ScheduledChange": "DISABLED",
			"CapacityReservationInterruption": "DISABLED", "CapacityBlockExpiration": "DISABLED", "LifecycleHooks": "none", "TagCheck": "false",
		},
		map[string]cty.Value{
			"disabled_rules":  texts("SpotInterruption", "StateChange", "ScheduledChange", "CapacityReservationInterruption", "CapacityBlockExpiration"),
			"lifecycle_hooks": text("none"), "tag_check": cty.False,
		},
	},
	"alarms with a topic": {
		map[string]any{"AlarmTopic": "arn:aws:sns:eu-central-1:123456789012:oncall", "UnreadMinutes": 5},
		map[string]cty.Value{"alarm_topic": text("arn:aws:sns:eu-central-1:123456789012:oncall"), "unread_minutes": cty.NumberIntVal(5)},
	},
	"without capacity reservations": {
		map[string]any{"CapacityReservationInterruption": "DISABLED", "CapacityBlockExpiration": "DISABLED"},
		map[string]cty.Value{"disabled_rules": texts("CapacityReservationInterruption", "CapacityBlockExpiration")},
	},
	"a single rule": {
		map[string]any{"SingleRule": "true"},
		map[string]cty.Value{"single_rule": cty.True},
	},
	"a single rule, two groups": {
		map[string]any{"SingleRule": "true", "Groups": "workers,gpu.workers"},
		map[string]cty.Value{"single_rule": cty.True, "groups": texts("workers", "gpu.workers")},
	},
	"a single rule for rebalance recommendations": {
		map[string]any{
			"SingleRule": "true", "LifecycleHooks": "none", "SpotInterruption": "DISABLED", "StateChange": "DISABLED", "ScheduledChange": "DISABLED",
			"CapacityReservationInterruption": "DISABLED", "CapacityBlockExpiration": "DISABLED",
		},
		map[string]cty.Value{
			"single_rule": cty.True, "lifecycle_hooks": text("none"),
			"disabled_rules": texts("SpotInterruption", "StateChange", "ScheduledChange", "CapacityReservationInterruption", "CapacityBlockExpiration"),
		},
	},
	"tagged groups": {
		map[string]any{"GroupTag": groupTag},
		map[string]cty.Value{"group_tag": text(groupTag)},
	},
	"two tagged groups": {
		map[string]any{"GroupTag": groupTag, "Groups": "workers,gpu.workers"},
		map[string]cty.Value{"group_tag": text(groupTag), "groups": texts("workers", "gpu.workers")},
	},
	"a key": {
		map[string]any{"KeyArn": key},
		map[string]cty.Value{"key_arn": text(key)},
	},
	"a bounded role with a path": {
		map[string]any{"PermissionsBoundary": boundary, "RolePath": "/platform/eks/"},
		map[string]cty.Value{"permissions_boundary": text(boundary), "role_path": text("/platform/eks/")},
	},
	"a topic": {
		map[string]any{"OwnRules": "false", "TopicArn": topic},
		map[string]cty.Value{"own_rules": cty.False, "topic_arn": text(topic)},
	},
	"a topic, without rebalance recommendations and hooks": {
		map[string]any{"OwnRules": "false", "TopicArn": topic, "RebalanceRecommendation": "DISABLED", "LifecycleHooks": "none"},
		map[string]cty.Value{
			"own_rules": cty.False, "topic_arn": text(topic), "disabled_rules": texts("RebalanceRecommendation"), "lifecycle_hooks": text("none"),
		},
	},
	"a delivery role": {
		map[string]any{"OwnRules": "false", "DeliveryRoleArn": deliver},
		map[string]cty.Value{"own_rules": cty.False, "delivery_role_arn": text(deliver)},
	},
	"a delivery role of another account": {
		map[string]any{"OwnRules": "false", "DeliveryRoleArn": deliverElsewhere},
		map[string]cty.Value{"own_rules": cty.False, "delivery_role_arn": text(deliverElsewhere)},
	},
	"a delivery role beside a single rule and a topic": {
		map[string]any{"SingleRule": "true", "DeliveryRoleArn": deliver, "TopicArn": topic},
		map[string]cty.Value{"single_rule": cty.True, "delivery_role_arn": text(deliver), "topic_arn": text(topic)},
	},
	"a sender": {
		map[string]any{"SenderArn": platform},
		map[string]cty.Value{"sender_arn": text(platform)},
	},
	"a sender beside a delivery role": {
		map[string]any{"OwnRules": "false", "DeliveryRoleArn": deliver, "SenderArn": platform},
		map[string]cty.Value{"own_rules": cty.False, "delivery_role_arn": text(deliver), "sender_arn": text(platform)},
	},
	"the fan-out": {map[string]any{"ClusterName": nil}, nil},
	"the fan-out with an alarm": {
		map[string]any{"ClusterName": nil, "AlarmTopic": "arn:aws:sns:eu-central-1:123456789012:oncall"},
		map[string]cty.Value{"alarm_topic": text("arn:aws:sns:eu-central-1:123456789012:oncall")},
	},
	"the fan-out with tags": {
		map[string]any{"ClusterName": nil},
		map[string]cty.Value{"tags": cty.MapVal(map[string]cty.Value{"team": text("platform")})},
	},
	"tags": {
		nil,
		map[string]cty.Value{"tags": cty.MapVal(map[string]cty.Value{"team": text("platform"), "cost-center": text("17")})},
	},
}

// taggable are the types that can have tags.
var taggable = map[string]bool{
	"AWS::SQS::Queue": true, "AWS::Events::Rule": true, "AWS::IAM::Role": true, "AWS::EKS::PodIdentityAssociation": true, "AWS::CloudWatch::Alarm": true,
	"AWS::SNS::Topic": true, "AWS::SNS::TopicPolicy": false, "AWS::SNS::Subscription": false,
	"AWS::SQS::QueuePolicy": false, "AWS::IAM::RolePolicy": false, "AWS::AutoScaling::LifecycleHook": false,
}

const (
	groupTag = "kubernetes.io/cluster/prod"
	key      = "arn:aws:kms:eu-central-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"
	topic    = "arn:aws:sns:eu-central-1:123456789012:Topic"
	deliver  = "arn:aws:iam::123456789012:role/bus/deliver"
	boundary = "arn:aws:iam::123456789012:policy/platform/boundary"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// stacks are what both templates make of a setting, in the terms of CloudFormation.
func stacks(t *testing.T, a Account, s setting) map[string]map[string]Resource {
	t.Helper()
	cloudFormation, err := cloudFormation(t, a, s.parameters)
	if s.fanOut() {
		parameters := maps.Clone(s.parameters)
		delete(parameters, "ClusterName")
		cloudFormation, err = CloudFormation(read(t, deploy+"cloudformation/fan-out.yaml"), a, parameters)
	}
	if err != nil {
		t.Fatal(err)
	}
	if tags, ok := s.variables["tags"]; ok {
		tagged, err := decoded(tags)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range cloudFormation {
			if taggable[r.Type] { // CloudFormation gives them the tags of the stack
				r.Properties["Tags"] = tagList(tagged.(map[string]any))
			}
		}
	}
	terraform, err := terraform(t, a, s.variables)
	if s.fanOut() {
		terraform, err = Terraform(modules(t, "terraform/fan-out/"), a, s.variables, twin)
	}
	if err != nil {
		t.Fatal(err)
	}
	return map[string]map[string]Resource{"CloudFormation": normal(t, cloudFormation), "Terraform": normal(t, translated(t, terraform))}
}

func cloudFormation(t *testing.T, a Account, parameters map[string]any) (map[string]Resource, error) {
	t.Helper()
	all := map[string]any{"ClusterName": "prod"}
	maps.Copy(all, parameters)
	return CloudFormation(read(t, deploy+"cloudformation/node-termination-handler.yaml"), a, all)
}

func terraform(t *testing.T, a Account, variables map[string]cty.Value) (map[string]Resource, error) {
	t.Helper()
	all := map[string]cty.Value{"cluster_name": text("prod")}
	maps.Copy(all, variables)
	return Terraform(modules(t, "terraform/"), a, all, twin)
}

func modules(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(deploy + dir + "*.tf")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		files[path] = read(t, path)
	}
	return files
}

func TestBothTemplatesMakeTheSame(t *testing.T) {
	for name, s := range settings {
		t.Run(name, func(t *testing.T) {
			both := stacks(t, here, s)
			if diff := cmp.Diff(narrowed(t, both["CloudFormation"]), both["Terraform"]); diff != "" {
				t.Errorf("CloudFormation (-), Terraform (+):\n%s", diff)
			}
		})
	}
}

func TestTheTemplatesFitEveryPartition(t *testing.T) {
	for name, s := range settings {
		if strings.Contains(fmt.Sprint(s.parameters), "arn:") {
			continue // the user gives it
		}
		for template, resources := range stacks(t, Account{ID: "123456789012", Partition: "aws-cn", Region: "cn-north-1"}, s) {
			made, err := json.Marshal(resources)
			if err != nil {
				t.Fatal(err)
			}
			for _, not := range []string{"arn:aws:", "amazonaws.com.cn", here.Region + ":"} {
				if strings.Contains(string(made), not) {
					t.Errorf("%s, %s: %s in another partition", template, name, not)
				}
			}
		}
	}
}

func TestTheTemplatesRefuseWhatCannotBe(t *testing.T) {
	for name, test := range map[string]struct {
		setting
		want string // by both
	}{
		"hooks for all groups": {setting{
			map[string]any{"LifecycleHooks": "create"},
			map[string]cty.Value{"lifecycle_hooks": text("create")},
		}, "must name the groups"},
		"replacements for all groups": {setting{
			map[string]any{"ReplacementFirst": "true"},
			map[string]cty.Value{"replacement_first": cty.True},
		}, "must name the groups"},
		"replacements for all groups beside a named one": {setting{
			map[string]any{"ReplacementFirst": "true", "Groups": "workers,*"},
			map[string]cty.Value{"replacement_first": cty.True, "groups": texts("workers", "*")},
		}, "must name the groups"},
		"IRSA without its issuer": {setting{
			map[string]any{"Identity": "IRSA"},
			map[string]cty.Value{"identity": text("IRSA")},
		}, "IRSA needs"},
		"an existing role without its name": {setting{
			map[string]any{"Identity": "Existing"},
			map[string]cty.Value{"identity": text("Existing")},
		}, "Existing needs"},
		"an existing role by its ARN": {setting{
			map[string]any{"Identity": "Existing", "RoleName": "arn:aws:iam::123456789012:role/r"},
			map[string]cty.Value{"identity": text("Existing"), "role_name": text("arn:aws:iam::123456789012:role/r")},
		}, "arn:aws:iam::123456789012:role/r"},
		"another identity": {setting{
			map[string]any{"Identity": "kiam"},
			map[string]cty.Value{"identity": text("kiam")},
		}, "dentity"},
		"a queue that nothing fills": {setting{
			map[string]any{"OwnRules": "false"},
			map[string]cty.Value{"own_rules": cty.False},
		}, "the queue needs"},
		"a topic by its name": {setting{
			map[string]any{"TopicArn": "notices"},
			map[string]cty.Value{"topic_arn": text("notices")},
		}, "opic"},
		"an account in place of a role": {setting{
			map[string]any{"DeliveryRoleArn": "arn:aws:iam::123456789012:root"},
			map[string]cty.Value{"delivery_role_arn": text("arn:aws:iam::123456789012:root")},
		}, "ole"},
		"an account in place of a sender": {setting{
			map[string]any{"SenderArn": "arn:aws:iam::123456789012:root"},
			map[string]cty.Value{"sender_arn": text("arn:aws:iam::123456789012:root")},
		}, "ender"},
		"a key by its alias": {setting{
			map[string]any{"KeyArn": "alias/queues"},
			map[string]cty.Value{"key_arn": text("alias/queues")},
		}, "ey"},
		"a path without its end": {setting{
			map[string]any{"RolePath": "/platform"},
			map[string]cty.Value{"role_path": text("/platform")},
		}, "ath"},
		"a boundary by its name": {setting{
			map[string]any{"PermissionsBoundary": "boundary"},
			map[string]cty.Value{"permissions_boundary": text("boundary")},
		}, "oundary"},
		"a tag that would end the text of the policy": {setting{
			map[string]any{"GroupTag": `x": "false"}`},
			map[string]cty.Value{"group_tag": text(`x": "false"}`)},
		}, "ag"},
		"an issuer with its scheme": {setting{
			map[string]any{"Identity": "IRSA", "OidcProvider": "https://oidc.example.com/id/1"},
			map[string]cty.Value{"identity": text("IRSA"), "oidc_provider": text("https://oidc.example.com/id/1")},
		}, "rovider"},
		"a hook for a day": {setting{
			map[string]any{"LifecycleHooks": "create", "Groups": "a", "HookTimeout": 86400},
			map[string]cty.Value{"lifecycle_hooks": text("create"), "groups": texts("a"), "hook_timeout": cty.NumberIntVal(86400)},
		}, "imeout"},
		"an alarm at once": {setting{
			map[string]any{"UnreadMinutes": 0},
			map[string]cty.Value{"unread_minutes": cty.NumberIntVal(0)},
		}, "inutes"},
		"another name for a rule": {setting{
			map[string]any{"SpotInterruptions": "DISABLED"},
			map[string]cty.Value{"disabled_rules": texts("SpotInterruptions")},
		}, "no "},
		"neither yes nor no": {setting{
			map[string]any{"LoadBalancers": "maybe"},
			map[string]cty.Value{"load_balancers": text("maybe")},
		}, "oad"},
		"an ARN in place of a name": {setting{
			map[string]any{"ClusterName": "arn:aws:eks:us-east-1:123456789012:cluster/prod"},
			map[string]cty.Value{"cluster_name": text("arn:aws:eks:us-east-1:123456789012:cluster/prod")},
		}, "luster"},
		"no such parameter": {setting{
			map[string]any{"TagsCheck": "false"},
			map[string]cty.Value{"tags_check": cty.False},
		}, "no "},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cloudFormation(t, here, test.parameters); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("CloudFormation says %v, want %q", err, test.want)
			}
			if _, err := terraform(t, here, test.variables); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Terraform says %v, want %q", err, test.want)
			}
		})
	}
	long := map[string]cty.Value{"cluster_name": text(strings.Repeat("x", 40))}
	if _, err := terraform(t, here, long); err == nil || !strings.Contains(err.Error(), "longer than 40") {
		t.Errorf("Terraform says %v to a long name", err)
	}
}

// Groups and the cluster may be created by the same plan.
func TestTheModuleCanBePlannedWithWhatIsNotCreatedYet(t *testing.T) {
	addresses, err := Unplanned(modules(t, "terraform/"), here, map[string]cty.Value{
		"cluster_name": cty.UnknownVal(cty.String), "lifecycle_hooks": text("create"),
		"groups": cty.ListVal([]cty.Value{cty.UnknownVal(cty.String), text("a")}),
	})
	if err != nil || len(addresses) > 0 {
		t.Errorf("not known before they are created: %v, %v", addresses, err)
	}
	addresses, err = Unplanned(modules(t, "terraform/"), here, map[string]cty.Value{
		"cluster_name": text("prod"), "topic_arn": cty.UnknownVal(cty.String),
	})
	if err != nil || !slices.Equal(addresses, []string{"aws_sns_topic_subscription.queue"}) {
		t.Errorf("with a new topic these are not known: %v, %v; the variable's description says so", addresses, err)
	}
}

// kOps calls a cluster by its domain.
func TestAClusterMayHaveDotsInItsName(t *testing.T) {
	resources, err := terraform(t, here, map[string]cty.Value{"cluster_name": text("k.example.com")})
	if err != nil {
		t.Fatal(err)
	}
	if name := resources["aws_sqs_queue.queue"].Properties["name"]; name != "nth-k-example-com" {
		t.Errorf("the queue is %v", name)
	}
	if _, err := cloudFormation(t, here, map[string]any{"ClusterName": "k.example.com"}); err != nil {
		t.Error(err)
	}
}

func TestTheTerraformModuleIsFormatted(t *testing.T) {
	for _, dir := range []string{"terraform/", "terraform/fan-out/"} {
		for path, content := range modules(t, dir) {
			if diff := cmp.Diff(string(content), string(hclwrite.Format(content))); diff != "" {
				t.Errorf("terraform fmt %s:\n%s", path, diff)
			}
		}
	}
}

// Which events these patterns take is seen in internal/eventpattern.
func TestTheRulesHaveTheDocumentedPatterns(t *testing.T) {
	var documented map[string]any
	if err := json.Unmarshal(read(t, deploy+"eventbridge/patterns.json"), &documented); err != nil {
		t.Fatal(err)
	}
	for name, s := range settings {
		if s.parameters["SingleRule"] != nil || s.parameters["OwnRules"] != nil || s.fanOut() {
			continue
		}
		for template, resources := range stacks(t, here, s) {
			patterns := map[string]any{}
			for resource, r := range resources {
				if rule, ok := strings.CutSuffix(resource, "Rule"); ok {
					patterns[rule] = r.Properties["EventPattern"]
				}
			}
			want := maps.Clone(documented)
			if named, ok := s.parameters["Groups"].(string); ok {
				var groups []any
				for group := range strings.SplitSeq(named, ",") {
					groups = append(groups, group)
				}
				filtered := maps.Clone(documented["LifecycleAction"].(map[string]any))
				filtered["detail"] = map[string]any{"AutoScalingGroupName": groups}
				want["LifecycleAction"] = filtered
			}
			sorted(want)
			if diff := cmp.Diff(want, patterns); diff != "" {
				t.Errorf("patterns.json (-), %s, %s (+):\n%s", template, name, diff)
			}
		}
	}
}

func TestASingleRuleHasTheDocumentedPattern(t *testing.T) {
	const most = 2048 // characters, by default: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-quota.html
	for name, change := range map[string]func(pattern, detail map[string]any){
		"a single rule": func(_, _ map[string]any) {},
		"a single rule, two groups": func(_, detail map[string]any) {
			detail["$or"] = []any{
				map[string]any{"AutoScalingGroupName": []any{map[string]any{"exists": false}}},
				map[string]any{"AutoScalingGroupName": []any{"gpu.workers", "workers"}},
			}
		},
		"the fan-out": func(_, _ map[string]any) {},
		"a single rule for rebalance recommendations": func(pattern, _ map[string]any) {
			pattern["detail-type"] = []any{"EC2 Instance Rebalance Recommendation"}
		},
	} {
		for template, resources := range stacks(t, here, settings[name]) {
			var want map[string]any
			if err := json.Unmarshal(read(t, deploy+"eventbridge/single.json"), &want); err != nil {
				t.Fatal(err)
			}
			change(want, want["detail"].(map[string]any))
			sorted(want)
			got := map[string]any{}
			for resource, r := range resources {
				if r.Type == "AWS::Events::Rule" {
					got[resource] = r.Properties["EventPattern"]
				}
			}
			if diff := cmp.Diff(map[string]any{"NoticesRule": want}, got); diff != "" {
				t.Errorf("single.json (-), %s, %s (+):\n%s", template, name, diff)
			}
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > most {
				t.Errorf("%s, %s: a pattern of %d characters", template, name, len(text))
			}
		}
	}
}

// What a subscription filters is what the cluster wants of what the rule for all clusters takes.
func TestASubscriptionLeavesOutTheKindsThatAreSwitchedOff(t *testing.T) {
	var single struct {
		DetailTypes []any `json:"detail-type"`
	}
	if err := json.Unmarshal(read(t, deploy+"eventbridge/single.json"), &single); err != nil {
		t.Fatal(err)
	}
	for name, without := range map[string][]string{
		"a topic": nil,
		"a topic, without rebalance recommendations and hooks": {
			"EC2 Instance Rebalance Recommendation", "EC2 Instance-terminate Lifecycle Action", "EC2 Instance-launch Lifecycle Action",
		},
	} {
		want := slices.DeleteFunc(slices.Clone(single.DetailTypes), func(d any) bool { return slices.Contains(without, d.(string)) })
		sorted(want)
		for template, resources := range stacks(t, here, settings[name]) {
			got := resources["Subscription"].Properties
			if diff := cmp.Diff(map[string]any{
				"TopicArn": topic, "Protocol": "sqs", "Endpoint": queue, "RawMessageDelivery": true, "RedrivePolicy": map[string]any{"deadLetterTargetArn": dead},
				"FilterPolicyScope": "MessageBody", "FilterPolicy": map[string]any{"detail-type": want},
			}, got); diff != "" {
				t.Errorf("%s, %s:\n%s", template, name, diff)
			}
		}
	}
}

func TestRulesAreSwitchedOffByKind(t *testing.T) {
	others := []string{"RebalanceRecommendationRule", "ScheduledChangeRule", "SpotInterruptionRule", "StateChangeRule"}
	reservations := []string{"CapacityBlockExpirationRule", "CapacityReservationInterruptionRule"}
	for name, want := range map[string][]string{
		"as they are":                    slices.Concat(reservations, []string{"LifecycleActionRule"}, others),
		"without hooks":                  slices.Concat(reservations, others),
		"without capacity reservations":  slices.Concat([]string{"LifecycleActionRule"}, others),
		"rebalance recommendations only": {"RebalanceRecommendationRule"},
		"a single rule":                  {"NoticesRule"},
		"a topic":                        nil,
		"a delivery role":                nil,
		"the fan-out":                    {"NoticesRule"},
	} {
		for template, resources := range stacks(t, here, settings[name]) {
			var on []string
			for resource, r := range resources {
				if r.Properties["State"] == "ENABLED" {
					on = append(on, resource)
				}
			}
			slices.Sort(on)
			if diff := cmp.Diff(want, on); diff != "" {
				t.Errorf("%s, %s:\n%s", template, name, diff)
			}
		}
	}
}

func TestEveryEventEndsInTheQueueOrAmongTheDeadLetters(t *testing.T) {
	queue, dead := here.ARN("AWS::SQS::Queue", "Queue"), here.ARN("AWS::SQS::Queue", "DeadLetters")
	for name, want := range map[string]int{"as they are": 7, "a single rule": 1, "a topic": 0, "a delivery role": 0} {
		for template, resources := range stacks(t, here, settings[name]) {
			rules := 0
			for name, r := range resources {
				if r.Type != "AWS::Events::Rule" {
					continue
				}
				rules++
				var targets []struct {
					ID               string `json:"Id"`
					Arn, RoleArn     string
					DeadLetterConfig struct{ Arn string }
					RetryPolicy      struct{ MaximumEventAgeInSeconds, MaximumRetryAttempts int }
				}
				into(t, r.Properties["Targets"], &targets)
				if len(targets) != 1 || targets[0].Arn != queue || targets[0].RoleArn != "" || targets[0].DeadLetterConfig.Arn != dead {
					t.Errorf("%s: the targets of %s are %+v", template, name, targets)
					continue
				}
				// https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_RetryPolicy.html
				if p := targets[0].RetryPolicy; p.MaximumEventAgeInSeconds < 60 || p.MaximumEventAgeInSeconds > 86400 || p.MaximumRetryAttempts < 1 || p.MaximumRetryAttempts > 185 {
					t.Errorf("%s: the retry policy of %s is %+v", template, name, p)
				}
			}
			if rules != want {
				t.Errorf("%s, %s: %d rules, want %d", template, name, rules, want)
			}
		}
	}
	for name, encryption := range map[string]map[string]any{
		"as they are": {"SqsManagedSseEnabled": true},
		"a key":       {"KmsMasterKeyId": key},
	} {
		wantQueue := map[string]any{
			"QueueName": "nth-prod", "MessageRetentionPeriod": 345600.0,
			"RedrivePolicy": map[string]any{"deadLetterTargetArn": dead, "maxReceiveCount": 10.0},
		}
		wantDead := map[string]any{
			"QueueName": "nth-prod-dead-letters", "MessageRetentionPeriod": 1209600.0,
			"RedriveAllowPolicy": map[string]any{"redrivePermission": "byQueue", "sourceQueueArns": []any{queue}},
		}
		maps.Copy(wantQueue, encryption)
		maps.Copy(wantDead, encryption)
		for template, resources := range stacks(t, here, settings[name]) {
			if diff := cmp.Diff(wantQueue, resources["Queue"].Properties); diff != "" {
				t.Errorf("%s, %s: the queue:\n%s", template, name, diff)
			}
			if diff := cmp.Diff(wantDead, resources["DeadLetters"].Properties); diff != "" {
				t.Errorf("%s, %s: the dead-letter queue:\n%s", template, name, diff)
			}
		}
	}
}

func into(t *testing.T, from, to any) {
	t.Helper()
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatal(err)
	}
}

// actions are those of a policy document's statements.
func actions(t *testing.T, document any) []string {
	t.Helper()
	var all []string
	for _, statement := range document.(map[string]any)["Statement"].([]any) {
		switch action := statement.(map[string]any)["Action"].(type) {
		case string:
			all = append(all, action)
		case []any:
			for _, a := range action {
				all = append(all, a.(string))
			}
		}
	}
	slices.Sort(all)
	return all
}

func TestEachFeatureAddsItsPermissionsToThreeOfSQS(t *testing.T) {
	least := []string{"sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:ReceiveMessage"}
	checks := []string{"sqs:GetQueueAttributes"}
	tags := []string{"ec2:DescribeInstances"}
	poll := []string{"ec2:DescribeInstanceStatus"}
	lb := []string{"elasticloadbalancing:DescribeTargetHealth"}
	hooks := []string{"autoscaling:CompleteLifecycleAction", "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeLifecycleHooks", "autoscaling:RecordLifecycleActionHeartbeat"}
	doctor := []string{
		"autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeLifecycleHooks", "ec2:DescribeInstances",
		"events:DescribeRule", "events:ListRuleNamesByTarget", "events:ListTargetsByRule", "kms:DescribeKey", "kms:GetKeyPolicy", "sqs:GetQueueAttributes",
		"sns:GetSubscriptionAttributes", "sns:GetTopicAttributes", "sns:ListSubscriptionsByTopic",
	}
	replacement := []string{
		"autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeAutoScalingInstances", "autoscaling:DescribeLifecycleHooks",
		"autoscaling:SetInstanceHealth",
	}
	for name, want := range map[string][]string{
		"a replacement first":    slices.Concat(least, checks, tags, poll, lb, hooks, replacement, doctor),
		"a key":                  slices.Concat(least, checks, tags, poll, lb, hooks, doctor, []string{"kms:Decrypt"}),
		"the least":              least,
		"without doctor":         slices.Concat(least, checks, tags, poll, lb, hooks),
		"without tag check":      slices.Concat(least, checks, poll, lb, hooks, doctor),
		"without the poll":       slices.Concat(least, checks, tags, lb, hooks, doctor),
		"without hooks":          slices.Concat(least, checks, tags, poll, lb, doctor),
		"as they are":            slices.Concat(least, checks, tags, poll, lb, hooks, doctor),
		"without load balancers": slices.Concat(least, checks, tags, poll, hooks, doctor),
	} {
		slices.Sort(want)
		for template, resources := range stacks(t, here, settings[name]) {
			if diff := cmp.Diff(want, actions(t, resources["RolePolicy"].Properties["PolicyDocument"])); diff != "" {
				t.Errorf("%s, %s:\n%s", template, name, diff)
			}
		}
	}
}

// documented is a policy of deploy/iam for our account.
func documented(t *testing.T, name string) map[string]any {
	t.Helper()
	written := strings.NewReplacer(
		"PARTITION", here.Partition, "REGION", here.Region, "ACCOUNT", here.ID, "QUEUE", "Queue", "DEAD_LETTERS", "DeadLetters", "ROLE", "Role",
	).Replace(string(read(t, deploy+"iam/"+name)))
	var policy map[string]any
	if err := json.Unmarshal([]byte(written), &policy); err != nil {
		t.Fatal(err)
	}
	sorted(policy)
	return policy
}

// Whoever runs doctor outside of the cluster needs what the role has for it.
func TestThePolicyForDoctorIsThatOfTheRole(t *testing.T) {
	byID := func(policy map[string]any) map[string]any {
		statements := map[string]any{}
		for _, statement := range policy["Statement"].([]any) {
			statements[statement.(map[string]any)["Sid"].(string)] = statement
		}
		return statements
	}
	role, doctor := byID(documented(t, "policy.json")), byID(documented(t, "doctor.json"))
	want := map[string]any{"DoctorReads": role["DoctorReads"], "DoctorReadsQueues": role["DoctorReadsQueues"]}
	if diff := cmp.Diff(want, doctor); diff != "" {
		t.Error(diff)
	}
}

func TestWithEverythingTheRoleHasTheDocumentedPolicy(t *testing.T) {
	documented := documented(t, "policy.json")
	for template, resources := range stacks(t, here, setting{}) {
		if diff := cmp.Diff(any(documented), resources["RolePolicy"].Properties["PolicyDocument"]); diff != "" {
			t.Errorf("policy.json (-), %s (+):\n%s", template, diff)
		}
	}
}

// Roles are global, and so are their names: the same cluster name may be in use in another region.
// What CloudFormation names is listed; it makes up all other names itself.
func TestNamesDoNotCollide(t *testing.T) {
	// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html and those of the other services
	longest := map[string]int{"aws_sqs_queue": 80, "aws_cloudwatch_event_rule": 64, "aws_iam_role": 64, "aws_cloudwatch_metric_alarm": 255}
	regional := func(region, cluster string) map[string]string {
		a := here
		a.Region = region
		resources, err := terraform(t, a, map[string]cty.Value{"cluster_name": text(cluster)})
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for address, r := range resources {
			most, ok := longest[r.Type]
			if !ok {
				continue
			}
			name, ok := r.Properties["name"].(string)
			if !ok {
				name, _ = r.Properties["alarm_name"].(string)
			}
			if name == "" || len(name) > most {
				t.Errorf("%s of a cluster with %d characters has the name %q", address, len(cluster), name)
			}
			if other, ok := names[r.Type+" "+name]; ok {
				t.Errorf("%s and %s are both %q", address, other, name)
			}
			names[r.Type+" "+name] = address
		}
		return names
	}
	one := regional("eu-central-1", "prod")
	for name := range regional("ap-southeast-2", "prod") {
		if _, ok := one[name]; ok && strings.HasPrefix(name, "aws_iam_role ") {
			t.Errorf("%s is in use in another region", name)
		}
	}
	for name := range regional("eu-central-1", "test") {
		if _, ok := one[name]; ok {
			t.Errorf("%s is in use for another cluster", name)
		}
	}
	regional("ap-southeast-2", strings.Repeat("x", 36)) // the longest that needs no name of its own

	named := map[string]bool{}
	resources, err := cloudFormation(t, here, settings["hooks for two groups"].parameters)
	if err != nil {
		t.Fatal(err)
	}
	for resource, r := range resources {
		for _, property := range []string{"QueueName", "Name", "RoleName", "AlarmName"} {
			if _, ok := r.Properties[property]; ok && r.Type != "AWS::IAM::RolePolicy" {
				named[resource+"."+property] = true
			}
		}
	}
	if diff := cmp.Diff(map[string]bool{"Queue.QueueName": true, "DeadLetters.QueueName": true}, named); diff != "" {
		t.Errorf("what has a name in CloudFormation:\n%s", diff)
	}
}

func TestResourcesThatNeedEachOtherAreRefused(t *testing.T) {
	const template = `
Parameters: {ClusterName: {Type: String}}
Conditions: {}
Rules: {}
Outputs: {}
Resources:
  Queue: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt DeadLetters.Arn}}}
  DeadLetters: {Type: AWS::SQS::Queue, Properties: {RedriveAllowPolicy: {sourceQueueArns: [!GetAtt Queue.Arn]}}}
`
	if _, err := CloudFormation([]byte(template), here, map[string]any{"ClusterName": "prod"}); err == nil || !strings.Contains(err.Error(), "circular") {
		t.Errorf("CloudFormation says %v", err)
	}
}

var installed struct {
	sync.Once
	node Node
	err  error
}

// node is skipped where there is no npm, but not in CI.
func node(t *testing.T) Node {
	t.Helper()
	installed.Do(func() { installed.node, installed.err = NewNode(t.Context()) })
	if errors.Is(installed.err, ErrNoNode) && os.Getenv("CI") == "" {
		t.Skip(installed.err)
	}
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	return installed.node
}

func TestCloudFormationKnowsEveryTypeAndProperty(t *testing.T) {
	n := node(t)
	all := map[string]Resource{}
	for name, s := range settings {
		for template, resources := range stacks(t, here, s) {
			for resource, r := range resources {
				all[strings.Join([]string{template, name, resource}, ", ")] = r
			}
		}
	}
	problems, err := n.Validate(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Error(strings.Join(problems, "\n"))
	}
}

func TestWhatCanHaveTagsHasThem(t *testing.T) {
	n := node(t)
	types := slices.Sorted(maps.Keys(taggable))
	can, err := n.Taggable(t.Context(), types)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range types {
		if taggable[kind] != slices.Contains(can, kind) {
			t.Errorf("%s can have tags: %v", kind, !taggable[kind])
		}
	}
	for template, resources := range stacks(t, here, settings["tags"]) {
		for name, r := range resources {
			can, known := taggable[r.Type]
			if _, has := r.Properties["Tags"]; !known || has != can {
				t.Errorf("%s: %s has tags: %v", template, name, has)
			}
		}
	}
}

func TestCloudFormationSaysWhatIsWrong(t *testing.T) {
	n := node(t)
	problems, err := n.Validate(t.Context(), map[string]Resource{
		"Unknown": {"AWS::SQS::Topic", map[string]any{}},
		"Typo":    {"AWS::SQS::Queue", map[string]any{"MessageRetention": 300}},
		"Missing": {"AWS::SQS::QueuePolicy", map[string]any{"Queues": []string{"Queue"}}},
		"Type":    {"AWS::SQS::Queue", map[string]any{"MessageRetentionPeriod": "long"}},
		"Nested":  {"AWS::Events::Rule", map[string]any{"State": "ON", "Targets": []any{map[string]any{"Id": "queue", "RetryPolicy": map[string]any{"Attempts": 3}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(problems)
	want := []string{
		"Missing.PolicyDocument is missing",
		"Nested.State: \"ON\" is not of the type string",
		"Nested.Targets[0].Arn is missing",
		"Nested.Targets[0].RetryPolicy.Attempts: no such property",
		"Type.MessageRetentionPeriod: \"long\" is not of the type integer",
		"Typo.MessageRetention: no such property",
		"Unknown: no resource has the type AWS::SQS::Topic",
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
}

var (
	overrides = regexp.MustCompile(`(?s)--parameter-overrides (.*?[^\\])\n`)
	exports   = regexp.MustCompile(`(?m)^export .*`)
	literal   = regexp.MustCompile(`\b([A-Z_]+)=([\w-]+)`)
	moduleHCL = regexp.MustCompile("(?s)```hcl\n(.*?)```")
)

func TestWhatTheDocsShowWorks(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, path := range paths {
		page := string(read(t, path))
		shell := map[string]string{"TOPIC": topic}
		for _, line := range exports.FindAllString(page, -1) {
			for _, match := range literal.FindAllStringSubmatch(line, -1) {
				shell[match[1]] = match[2]
			}
		}
		ofShell := func(name string) string {
			if value, is := shell[name]; is {
				return value
			}
			return "a-variable-of-the-shell"
		}
		for _, match := range overrides.FindAllStringSubmatch(page, -1) {
			parameters := map[string]any{}
			for parameter := range strings.FieldsSeq(strings.ReplaceAll(match[1], "\\\n", " ")) {
				name, value, _ := strings.Cut(parameter, "=")
				parameters[name] = os.Expand(strings.Trim(value, `"`), ofShell)
			}
			if _, err := cloudFormation(t, here, parameters); err != nil {
				t.Errorf("%s: %v: %v", path, parameters, err)
			}
			shown++
		}
		for _, match := range moduleHCL.FindAllStringSubmatch(page, -1) {
			indented := strings.ReplaceAll("\n"+match[1], "\n   ", "\n")
			file, problems := hclsyntax.ParseConfig([]byte(indented), path, hcl.InitialPos)
			if problems.HasErrors() {
				t.Fatal(problems)
			}
			shown++
			for _, block := range file.Body.(*hclsyntax.Body).Blocks {
				switch {
				case block.Type == "module":
					moduleOf(t, path, block)
				case block.Labels[0] == "helm_release":
					helmRelease(t, path, block)
				}
			}
		}
	}
	if shown < 5 {
		t.Errorf("%d examples found, which is too few", shown)
	}
}

// moduleOf expects one of our modules with variables that it takes.
func moduleOf(t *testing.T, path string, block *hclsyntax.Block) {
	t.Helper()
	variables := map[string]cty.Value{}
	for name, attribute := range block.Body.Attributes {
		value, problems := attribute.Expr.Value(nil)
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		variables[name] = value
	}
	source := variables["source"].AsString()
	delete(variables, "source")
	var err error
	switch strings.TrimPrefix(strings.TrimSuffix(source, "?ref=COMMIT"), ofRepository) {
	case "./deploy/terraform", "deploy/terraform":
		_, err = terraform(t, here, variables)
	case "./deploy/terraform/fan-out":
		_, err = Terraform(modules(t, "terraform/fan-out/"), here, variables, twin)
	default:
		t.Errorf("%s: the module is at %s", path, source)
	}
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

const ofRepository = "git::https://github.com/node-termination-handler/node-termination-handler.git//"

// helmRelease expects a release of our chart with values that the chart has; what
// it takes from our module is one of its outputs.
func helmRelease(t *testing.T, path string, block *hclsyntax.Block) {
	t.Helper()
	outputs := map[string]cty.Value{}
	for _, match := range regexp.MustCompile(`(?m)^output "(\w+)"`).FindAllStringSubmatch(string(read(t, deploy+"terraform/outputs.tf")), -1) {
		outputs[match[1]] = text("of the module")
	}
	identity := function.New(&function.Spec{
		Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType}},
		Type:   func(args []cty.Value) (cty.Type, error) { return args[0].Type(), nil },
		Impl:   func(args []cty.Value, _ cty.Type) (cty.Value, error) { return args[0], nil },
	})
	in := &hcl.EvalContext{
		Variables: map[string]cty.Value{"module": cty.ObjectVal(map[string]cty.Value{"node_termination_handler": cty.ObjectVal(outputs)})},
		Functions: map[string]function.Function{"yamlencode": identity},
	}
	arguments := map[string]cty.Value{}
	for name, attribute := range block.Body.Attributes {
		if name == "depends_on" {
			continue
		}
		value, problems := attribute.Expr.Value(in)
		if problems.HasErrors() {
			t.Fatalf("%s: %v", path, problems)
		}
		arguments[name] = value
	}
	chart := deploy + "../" + arguments["chart"].AsString() + "/"
	var known map[string]any
	if err := yaml.Unmarshal(read(t, chart+"values.yaml"), &known); err != nil {
		t.Fatal(err)
	}
	for _, values := range arguments["values"].AsValueSlice() {
		for name := range values.AsValueMap() {
			if _, ok := known[name]; !ok {
				t.Errorf("%s: the chart has no value %s", path, name)
			}
		}
	}
}
