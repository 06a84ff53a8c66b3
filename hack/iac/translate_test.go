package iac

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// twins are the resources of the Terraform module, and the logical name that
// each has in CloudFormation; X stands for the key of for_each.
var twins = map[string]string{
	"aws_sqs_queue.queue":                             "Queue",
	"aws_sqs_queue.dead_letters":                      "DeadLetters",
	"aws_sqs_queue_redrive_allow_policy.dead_letters": "DeadLetters", // a property of it
	"aws_sqs_queue_policy.queue":                      "QueuePolicy",
	"aws_sqs_queue_policy.dead_letters":               "DeadLettersPolicy",
	"aws_cloudwatch_event_rule.rule":                  "XRule",
	"aws_cloudwatch_event_target.queue":               "XRule", // a property of it
	"aws_sns_topic_subscription.queue":                "Subscription",
	"aws_autoscaling_lifecycle_hook.termination":      "TerminationHook", // and the name of its group
	"aws_iam_role.role":                               "Role",
	"aws_iam_role_policy.role":                        "RolePolicy",
	"aws_eks_pod_identity_association.association":    "Association",
	"aws_cloudwatch_metric_alarm.undelivered":         "UndeliveredAlarm",
	"aws_cloudwatch_metric_alarm.unread":              "UnreadAlarm",
	// of the fan-out
	"aws_sns_topic.notices":             "Topic",
	"aws_sns_topic_policy.notices":      "TopicPolicy",
	"aws_cloudwatch_event_rule.notices": "NoticesRule",
	"aws_cloudwatch_event_target.topic": "NoticesRule", // a property of it
}

// kinds are Terraform's types and the properties that we use, in the terms of CloudFormation.
var kinds = map[string]struct {
	kind       string
	properties map[string]string
}{
	"aws_sqs_queue": {"AWS::SQS::Queue", map[string]string{
		"name": "QueueName", "sqs_managed_sse_enabled": "SqsManagedSseEnabled", "kms_master_key_id": "KmsMasterKeyId",
		"message_retention_seconds": "MessageRetentionPeriod", "redrive_policy": "RedrivePolicy", "tags": "Tags",
	}},
	"aws_sqs_queue_redrive_allow_policy": {"", map[string]string{"queue_url": "", "redrive_allow_policy": "RedriveAllowPolicy"}},
	"aws_sqs_queue_policy":               {"AWS::SQS::QueuePolicy", map[string]string{"queue_url": "Queues", "policy": "PolicyDocument"}},
	"aws_cloudwatch_event_rule": {"AWS::Events::Rule", map[string]string{
		"name": "", "state": "State", "event_pattern": "EventPattern", "tags": "Tags",
	}},
	"aws_cloudwatch_event_target": {"", map[string]string{
		"rule": "", "target_id": "Id", "arn": "Arn",
		"dead_letter_config": "DeadLetterConfig", "dead_letter_config.arn": "Arn",
		"retry_policy": "RetryPolicy", "retry_policy.maximum_event_age_in_seconds": "MaximumEventAgeInSeconds", "retry_policy.maximum_retry_attempts": "MaximumRetryAttempts",
	}},
	"aws_sns_topic":        {"AWS::SNS::Topic", map[string]string{"name": "", "tags": "Tags"}},
	"aws_sns_topic_policy": {"AWS::SNS::TopicPolicy", map[string]string{"arn": "Topics", "policy": "PolicyDocument"}},
	"aws_sns_topic_subscription": {"AWS::SNS::Subscription", map[string]string{
		"topic_arn": "TopicArn", "protocol": "Protocol", "endpoint": "Endpoint", "raw_message_delivery": "RawMessageDelivery",
		"redrive_policy": "RedrivePolicy", "filter_policy": "FilterPolicy", "filter_policy_scope": "FilterPolicyScope",
	}},
	"aws_autoscaling_lifecycle_hook": {"AWS::AutoScaling::LifecycleHook", map[string]string{
		"autoscaling_group_name": "AutoScalingGroupName", "name": "LifecycleHookName", "lifecycle_transition": "LifecycleTransition",
		"heartbeat_timeout": "HeartbeatTimeout", "default_result": "DefaultResult",
	}},
	"aws_iam_role": {"AWS::IAM::Role", map[string]string{
		"name": "", "description": "Description", "assume_role_policy": "AssumeRolePolicyDocument", "path": "Path",
		"permissions_boundary": "PermissionsBoundary", "tags": "Tags",
	}},
	"aws_iam_role_policy": {"AWS::IAM::RolePolicy", map[string]string{"name": "PolicyName", "role": "RoleName", "policy": "PolicyDocument"}},
	"aws_eks_pod_identity_association": {"AWS::EKS::PodIdentityAssociation", map[string]string{
		"cluster_name": "ClusterName", "namespace": "Namespace", "service_account": "ServiceAccount", "role_arn": "RoleArn", "tags": "Tags",
	}},
	"aws_cloudwatch_metric_alarm": {"AWS::CloudWatch::Alarm", map[string]string{
		"tags": "Tags", "alarm_name": "", "alarm_description": "AlarmDescription", "alarm_actions": "AlarmActions", "comparison_operator": "ComparisonOperator",
		"threshold": "Threshold", "evaluation_periods": "EvaluationPeriods", "treat_missing_data": "TreatMissingData",
		"namespace": "Namespace", "metric_name": "MetricName", "dimensions": "Dimensions", "statistic": "Statistic", "period": "Period",
		"metric_query": "Metrics", "metric_query.id": "Id", "metric_query.label": "Label", "metric_query.expression": "Expression",
		"metric_query.return_data": "ReturnData", "metric_query.metric": "MetricStat", "metric_query.metric.namespace": "Namespace",
		"metric_query.metric.metric_name": "MetricName", "metric_query.metric.dimensions": "Dimensions",
		"metric_query.metric.stat": "Stat", "metric_query.metric.period": "Period",
	}},
}

var address = regexp.MustCompile(`^([a-z_]+\.[a-z_]+)(?:\["(.*)"\])?$`)

// numbered is the end of names of hooks that have a number in Terraform.
var numbered = regexp.MustCompile(`-[0-9]+$`)

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
	parts := map[string]map[string]any{} // properties of others in CloudFormation
	for resource, r := range resources {
		kind, name := twin(resource)
		if name == "" {
			t.Fatalf("%s: what is that in CloudFormation?", resource)
		}
		properties := renamed(t, r.Type, "", r.Properties)
		if r.Type == "aws_autoscaling_lifecycle_hook" {
			name += notAlphanumeric.ReplaceAllString(r.Properties["autoscaling_group_name"].(string), "")
			properties["LifecycleHookName"] = numbered.ReplaceAllString(properties["LifecycleHookName"].(string), "")
		}
		if r.Type == "aws_cloudwatch_event_target" {
			properties["DeadLetterConfig"] = properties["DeadLetterConfig"].([]any)[0]
			properties["RetryPolicy"] = properties["RetryPolicy"].([]any)[0]
			properties = map[string]any{"Targets": []any{properties}}
		}
		if kind == "" {
			parts[name] = properties
			continue
		}
		made[name] = Resource{Type: kind, Properties: properties}
	}
	for name, properties := range parts {
		maps.Copy(made[name].Properties, properties)
	}
	return made
}

// renamed gives properties the names, and the few other forms, of CloudFormation.
func renamed(t *testing.T, kind, path string, properties map[string]any) map[string]any {
	t.Helper()
	made := map[string]any{}
	for name, value := range properties {
		if name == "depends_on" { // CloudFormation updates all there is before it deletes
			continue
		}
		inner := path + name
		to, ok := kinds[kind].properties[inner]
		if !ok {
			t.Fatalf("%s: what is %s in CloudFormation?", kind, inner)
		}
		if list, ok := value.([]any); ok && len(list) == 0 {
			continue // nothing is none
		}
		if fields, ok := value.(map[string]any); ok && len(fields) == 0 {
			continue
		}
		switch to {
		case "":
		case "Queues", "Topics":
			made[to] = []any{value}
		case "Dimensions":
			var dimensions []any
			for name, value := range value.(map[string]any) {
				dimensions = append(dimensions, map[string]any{"Name": name, "Value": value})
			}
			made[to] = dimensions
		case "Tags":
			made[to] = tagList(value.(map[string]any))
		case "RedrivePolicy", "RedriveAllowPolicy", "PolicyDocument", "EventPattern", "FilterPolicy", "AssumeRolePolicyDocument":
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

func tagList(tags map[string]any) []any {
	var list []any
	for key, value := range tags {
		list = append(list, map[string]any{"Key": key, "Value": value})
	}
	return list
}

// wide is how CloudFormation begins the ARNs of groups that are named: it cannot put functions before
// each name. It widens nothing, as the requests of the policy test show.
const wide = "arn:*:autoscaling:*:*:"

// narrowed is normal's form with the ARNs of groups as Terraform has them.
func narrowed(t *testing.T, resources map[string]Resource) map[string]Resource {
	t.Helper()
	text, err := json.Marshal(resources)
	if err != nil {
		t.Fatal(err)
	}
	exact := strings.Join([]string{"arn", here.Partition, "autoscaling", here.Region, here.ID, ""}, ":")
	var made map[string]Resource
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(wide), []byte(exact)), &made); err != nil {
		t.Fatal(err)
	}
	return normal(t, made)
}

// normal brings resources into a form in which equal ones are the same: the
// order of a list has no meaning in any of them, and the policies of a role are
// as good as one with all their statements.
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
		for _, name := range []string{"AssumeRolePolicyDocument", "PolicyDocument"} {
			if document, ok := r.Properties[name].(string); ok {
				var parsed any
				if err := json.Unmarshal([]byte(document), &parsed); err != nil {
					t.Fatalf("%v in %s", err, document)
				}
				r.Properties[name] = parsed
			}
		}
	}
	if more, ok := made["HooksPolicy"]; ok {
		all := made["RolePolicy"].Properties
		if more.Properties["PolicyName"] == all["PolicyName"] || more.Properties["RoleName"] != all["RoleName"] {
			t.Errorf("the role's policies are %v and %v", all, more.Properties)
		}
		document := all["PolicyDocument"].(map[string]any)
		document["Statement"] = slices.Concat(document["Statement"].([]any), more.Properties["PolicyDocument"].(map[string]any)["Statement"].([]any))
		delete(made, "HooksPolicy")
	}
	for _, r := range made {
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
