package iac

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// twins are the resources of the Terraform module, and the logical name that
// each has in CloudFormation; X stands for the key of for_each.
var twins = map[string]string{
	"aws_sqs_queue.queue":                          "Queue",
	"aws_sqs_queue.dead_letters":                   "DeadLetters",
	"aws_sqs_queue_policy.queue":                   "QueuePolicy",
	"aws_sqs_queue_policy.dead_letters":            "DeadLettersPolicy",
	"aws_cloudwatch_event_rule.rule":               "XRule",
	"aws_cloudwatch_event_target.queue":            "XRule", // a property of it
	"aws_autoscaling_lifecycle_hook.termination":   "TerminationHookX",
	"aws_iam_role.role":                            "Role",
	"aws_iam_role_policy.role":                     "RolePolicy",
	"aws_eks_pod_identity_association.association": "Association",
	"aws_cloudwatch_metric_alarm.undelivered":      "UndeliveredAlarm",
	"aws_cloudwatch_metric_alarm.oldest_message":   "OldestMessageAlarm",
}

// kinds are Terraform's types and the properties that we use, in the terms of CloudFormation.
var kinds = map[string]struct {
	kind       string
	properties map[string]string
}{
	"aws_sqs_queue": {"AWS::SQS::Queue", map[string]string{
		"name": "", "sqs_managed_sse_enabled": "SqsManagedSseEnabled", "message_retention_seconds": "MessageRetentionPeriod", "redrive_policy": "RedrivePolicy",
	}},
	"aws_sqs_queue_policy": {"AWS::SQS::QueuePolicy", map[string]string{"queue_url": "Queues", "policy": "PolicyDocument"}},
	"aws_cloudwatch_event_rule": {"AWS::Events::Rule", map[string]string{
		"name": "", "state": "State", "event_pattern": "EventPattern",
	}},
	"aws_cloudwatch_event_target": {"", map[string]string{
		"rule": "", "target_id": "Id", "arn": "Arn",
		"dead_letter_config": "DeadLetterConfig", "dead_letter_config.arn": "Arn",
		"retry_policy": "RetryPolicy", "retry_policy.maximum_event_age_in_seconds": "MaximumEventAgeInSeconds", "retry_policy.maximum_retry_attempts": "MaximumRetryAttempts",
	}},
	"aws_autoscaling_lifecycle_hook": {"AWS::AutoScaling::LifecycleHook", map[string]string{
		"autoscaling_group_name": "AutoScalingGroupName", "name": "LifecycleHookName", "lifecycle_transition": "LifecycleTransition",
		"heartbeat_timeout": "HeartbeatTimeout", "default_result": "DefaultResult",
	}},
	"aws_iam_role":        {"AWS::IAM::Role", map[string]string{"name": "", "description": "Description", "assume_role_policy": "AssumeRolePolicyDocument"}},
	"aws_iam_role_policy": {"AWS::IAM::RolePolicy", map[string]string{"name": "PolicyName", "role": "RoleName", "policy": "PolicyDocument"}},
	"aws_eks_pod_identity_association": {"AWS::EKS::PodIdentityAssociation", map[string]string{
		"cluster_name": "ClusterName", "namespace": "Namespace", "service_account": "ServiceAccount", "role_arn": "RoleArn",
	}},
	"aws_cloudwatch_metric_alarm": {"AWS::CloudWatch::Alarm", map[string]string{
		"alarm_name": "", "alarm_description": "AlarmDescription", "alarm_actions": "AlarmActions", "comparison_operator": "ComparisonOperator",
		"threshold": "Threshold", "evaluation_periods": "EvaluationPeriods", "treat_missing_data": "TreatMissingData",
		"namespace": "Namespace", "metric_name": "MetricName", "dimensions": "Dimensions", "statistic": "Statistic", "period": "Period",
		"metric_query": "Metrics", "metric_query.id": "Id", "metric_query.label": "Label", "metric_query.expression": "Expression",
		"metric_query.return_data": "ReturnData", "metric_query.metric": "MetricStat", "metric_query.metric.namespace": "Namespace",
		"metric_query.metric.metric_name": "MetricName", "metric_query.metric.dimensions": "Dimensions",
		"metric_query.metric.stat": "Stat", "metric_query.metric.period": "Period",
	}},
}

var address = regexp.MustCompile(`^([a-z_]+\.[a-z_]+)(?:\["(.*)"\])?$`)

// twin is the CloudFormation type and logical name of a resource in Terraform.
func twin(resource string) (kind, name string) {
	parts := address.FindStringSubmatch(resource)
	terraformKind, _, _ := strings.Cut(resource, ".")
	return kinds[terraformKind].kind, strings.Replace(twins[parts[1]], "X", notAlphanumeric.ReplaceAllString(parts[2], ""), 1)
}

// translated are resources of Terraform in the terms of CloudFormation.
func translated(t *testing.T, resources map[string]Resource) map[string]Resource {
	t.Helper()
	made := map[string]Resource{}
	targets := map[string]any{}
	for resource, r := range resources {
		kind, name := twin(resource)
		if name == "" {
			t.Fatalf("%s: what is that in CloudFormation?", resource)
		}
		properties := renamed(t, r.Type, "", r.Properties)
		if r.Type == "aws_cloudwatch_event_target" {
			properties["DeadLetterConfig"] = properties["DeadLetterConfig"].([]any)[0]
			properties["RetryPolicy"] = properties["RetryPolicy"].([]any)[0]
			targets[name] = []any{properties}
			continue
		}
		made[name] = Resource{Type: kind, Properties: properties}
	}
	for rule, target := range targets {
		made[rule].Properties["Targets"] = target
	}
	return made
}

// renamed gives properties the names, and the few other forms, of CloudFormation.
func renamed(t *testing.T, kind, path string, properties map[string]any) map[string]any {
	t.Helper()
	made := map[string]any{}
	for name, value := range properties {
		inner := path + name
		to, ok := kinds[kind].properties[inner]
		if !ok {
			t.Fatalf("%s: what is %s in CloudFormation?", kind, inner)
		}
		if list, ok := value.([]any); ok && len(list) == 0 {
			continue // nothing is none
		}
		switch to {
		case "":
		case "Queues":
			made[to] = []any{value}
		case "Dimensions":
			var dimensions []any
			for name, value := range value.(map[string]any) {
				dimensions = append(dimensions, map[string]any{"Name": name, "Value": value})
			}
			made[to] = dimensions
		case "RedrivePolicy", "PolicyDocument", "EventPattern", "AssumeRolePolicyDocument":
			var document any
			if err := json.Unmarshal([]byte(value.(string)), &document); err != nil {
				t.Fatal(err)
			}
			made[to] = document
		case "Metrics", "DeadLetterConfig", "RetryPolicy":
			var blocks []any
			for _, block := range value.([]any) {
				blocks = append(blocks, renamed(t, kind, inner+".", block.(map[string]any)))
			}
			made[to] = blocks
		case "MetricStat":
			metric := renamed(t, kind, inner+".", value.([]any)[0].(map[string]any))
			stat := map[string]any{"Stat": metric["Stat"], "Period": metric["Period"], "Metric": metric}
			delete(metric, "Stat")
			delete(metric, "Period")
			made[to] = stat
		default:
			made[to] = value
		}
	}
	return made
}

// normal brings resources into a form in which equal ones are the same: the
// order of a list has no meaning in any of them.
func normal(t *testing.T, resources map[string]Resource) map[string]Resource {
	t.Helper()
	text, err := json.Marshal(resources)
	if err != nil {
		t.Fatal(err)
	}
	var made map[string]Resource
	if err := json.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}
	for _, r := range made {
		if document, ok := r.Properties["AssumeRolePolicyDocument"].(string); ok {
			var parsed any
			if err := json.Unmarshal([]byte(document), &parsed); err != nil {
				t.Fatal(err)
			}
			r.Properties["AssumeRolePolicyDocument"] = parsed
		}
		sorted(r.Properties)
	}
	return made
}

func sorted(value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, field := range value {
			sorted(field)
		}
	case []any:
		for _, element := range value {
			sorted(element)
		}
		slices.SortFunc(value, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
}
