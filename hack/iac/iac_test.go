package iac

import (
	"encoding/json"
	"errors"
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
)

const deploy = "../../deploy/"

var here = Account{ID: "123456789012", Partition: "aws", Region: "eu-central-1"}

// setting is one way to use both templates.
type setting struct {
	parameters map[string]any       // of CloudFormation
	variables  map[string]cty.Value // of Terraform
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
		map[string]any{"StartChecks": "false", "TagCheck": "false", "LifecycleHooks": "none"},
		map[string]cty.Value{"start_checks": cty.False, "tag_check": cty.False, "lifecycle_hooks": text("none")},
	},
	"without tag check": {
		map[string]any{"TagCheck": "false"},
		map[string]cty.Value{"tag_check": cty.False},
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
		map[string]any{"SpotInterruption": "DISABLED", "StateChange": "DISABLED", "ScheduledChange": "DISABLED", "LifecycleHooks": "none", "TagCheck": "false"},
		map[string]cty.Value{"disabled_rules": texts("SpotInterruption", "StateChange", "ScheduledChange"), "lifecycle_hooks": text("none"), "tag_check": cty.False},
	},
	"alarms with a topic": {
		map[string]any{"AlarmTopic": "arn:aws:sns:eu-central-1:123456789012:oncall", "OldestMessageSeconds": 120},
		map[string]cty.Value{"alarm_topic": text("arn:aws:sns:eu-central-1:123456789012:oncall"), "oldest_message_seconds": cty.NumberIntVal(120)},
	},
}

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
	if err != nil {
		t.Fatal(err)
	}
	terraform, err := terraform(t, a, s.variables)
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
	return Terraform(modules(t), a, all, twin)
}

func modules(t *testing.T) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(deploy + "terraform/*.tf")
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
			if diff := cmp.Diff(both["CloudFormation"], both["Terraform"]); diff != "" {
				t.Errorf("CloudFormation (-), Terraform (+):\n%s", diff)
			}
		})
	}
}

func TestTheTemplatesFitEveryPartition(t *testing.T) {
	for name, s := range settings {
		if s.parameters["AlarmTopic"] != nil {
			continue // an ARN that the user gives
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
		}, "has to name the groups"},
		"IRSA without its issuer": {setting{
			map[string]any{"Identity": "IRSA"},
			map[string]cty.Value{"identity": text("IRSA")},
		}, "IRSA needs"},
		"another identity": {setting{
			map[string]any{"Identity": "kiam"},
			map[string]cty.Value{"identity": text("kiam")},
		}, "dentity"},
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

func TestTheTerraformModuleIsFormatted(t *testing.T) {
	for path, content := range modules(t) {
		if diff := cmp.Diff(string(content), string(hclwrite.Format(content))); diff != "" {
			t.Errorf("terraform fmt %s:\n%s", path, diff)
		}
	}
}

// Which events these patterns take is seen in internal/eventpattern.
func TestTheRulesHaveTheDocumentedPatterns(t *testing.T) {
	var documented map[string]any
	if err := json.Unmarshal(read(t, deploy+"eventbridge/patterns.json"), &documented); err != nil {
		t.Fatal(err)
	}
	groups := []any{"gpu.workers", "workers"}
	for name, s := range settings {
		for template, resources := range stacks(t, here, s) {
			patterns := map[string]any{}
			for resource, r := range resources {
				if rule, ok := strings.CutSuffix(resource, "Rule"); ok {
					patterns[rule] = r.Properties["EventPattern"]
				}
			}
			want := maps.Clone(documented)
			if strings.HasSuffix(name, "two groups") {
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

func TestRulesAreSwitchedOffByKind(t *testing.T) {
	for name, want := range map[string][]string{
		"as they are":                    {"LifecycleActionRule", "RebalanceRecommendationRule", "ScheduledChangeRule", "SpotInterruptionRule", "StateChangeRule"},
		"without hooks":                  {"RebalanceRecommendationRule", "ScheduledChangeRule", "SpotInterruptionRule", "StateChangeRule"},
		"rebalance recommendations only": {"RebalanceRecommendationRule"},
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
	for template, resources := range stacks(t, here, setting{}) {
		for name, r := range resources {
			if r.Type != "AWS::Events::Rule" {
				continue
			}
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
		want := map[string]any{
			"SqsManagedSseEnabled": true, "MessageRetentionPeriod": 300.0,
			"RedrivePolicy": map[string]any{"deadLetterTargetArn": dead, "maxReceiveCount": 10.0},
		}
		if diff := cmp.Diff(want, resources["Queue"].Properties); diff != "" {
			t.Errorf("%s: the queue:\n%s", template, diff)
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
	hooks := []string{"autoscaling:CompleteLifecycleAction", "autoscaling:DescribeLifecycleHooks", "autoscaling:RecordLifecycleActionHeartbeat"}
	for name, want := range map[string][]string{
		"the least":         least,
		"without tag check": slices.Concat(least, checks, hooks),
		"without hooks":     slices.Concat(least, checks, tags),
		"as they are":       slices.Concat(least, checks, tags, hooks),
	} {
		slices.Sort(want)
		for template, resources := range stacks(t, here, settings[name]) {
			if diff := cmp.Diff(want, actions(t, resources["RolePolicy"].Properties["PolicyDocument"])); diff != "" {
				t.Errorf("%s, %s:\n%s", template, name, diff)
			}
		}
	}
}

func TestWithEverythingTheRoleHasTheDocumentedPolicy(t *testing.T) {
	written := strings.NewReplacer("PARTITION", here.Partition, "REGION", here.Region, "ACCOUNT", here.ID, "QUEUE", "Queue").
		Replace(string(read(t, deploy+"iam/policy.json")))
	var documented map[string]any
	if err := json.Unmarshal([]byte(written), &documented); err != nil {
		t.Fatal(err)
	}
	sorted(documented)
	for template, resources := range stacks(t, here, setting{}) {
		if diff := cmp.Diff(any(documented), resources["RolePolicy"].Properties["PolicyDocument"]); diff != "" {
			t.Errorf("policy.json (-), %s (+):\n%s", template, diff)
		}
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
		for _, match := range overrides.FindAllStringSubmatch(page, -1) {
			parameters := map[string]any{}
			for _, parameter := range strings.Fields(strings.ReplaceAll(match[1], "\\\n", " ")) {
				name, value, _ := strings.Cut(parameter, "=")
				parameters[name] = value
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
			variables := map[string]cty.Value{}
			for name, attribute := range file.Body.(*hclsyntax.Body).Blocks[0].Body.Attributes {
				if variables[name], problems = attribute.Expr.Value(nil); problems.HasErrors() {
					t.Fatal(problems)
				}
			}
			if source := variables["source"].AsString(); source != "./deploy/terraform" {
				t.Errorf("%s: the module is at %s", path, source)
			}
			delete(variables, "source")
			if _, err := terraform(t, here, variables); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			shown++
		}
	}
	if shown < 5 {
		t.Errorf("%d examples found, which is too few", shown)
	}
}
