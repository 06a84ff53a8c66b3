package awssim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// allowTo is a policy that lets a principal, in the terms of JSON, do something.
func allowTo(principal, action, condition string) string {
	return fmt.Sprintf(`{"Statement": [{"Effect": "Allow", "Principal": %s, "Action": %q, "Resource": "*", "Condition": {%s}}]}`, principal, action, condition)
}

const (
	byRule    = `"ArnEquals": {"aws:SourceArn": "arn:aws:events:us-east-1:123456789012:rule/all"}`
	byTopic   = `"ArnEquals": {"aws:SourceArn": "` + topic + `"}`
	events    = `{"Service": "events.amazonaws.com"}`
	snsItself = `{"Service": "sns.amazonaws.com"}`
)

func TestATopicHandsOnWhatItsPolicyAndThatOfTheQueueLet(t *testing.T) {
	publish, send := allowTo(events, "sns:Publish", byRule), allowTo(snsItself, "sqs:SendMessage", byTopic)
	for name, tt := range map[string]struct {
		topic, queue, dead string // policies
		subscription       awssim.Subscription
		want               string // the queue that gets the event
	}{
		"all is well":                    {publish, send, send, awssim.Subscription{}, "q"},
		"as it is":                       {publish, send, send, awssim.Subscription{Raw: true}, "q"},
		"a topic for another rule":       {strings.Replace(publish, "rule/all", "rule/other", 1), send, send, awssim.Subscription{}, "undelivered"},
		"a queue for another topic":      {publish, strings.Replace(send, topic, topic+"2", 1), send, awssim.Subscription{DeadLetters: "dead"}, "dead"},
		"a queue for no topic":           {publish, "", send, awssim.Subscription{}, ""},
		"and dead letters for no topic":  {publish, "", "", awssim.Subscription{DeadLetters: "dead"}, ""},
		"a filter that takes it":         {publish, send, send, awssim.Subscription{Filter: `{"source": ["mine"]}`}, "q"},
		"a filter that does not":         {publish, send, send, awssim.Subscription{Filter: `{"source": ["other"]}`}, ""},
		"a subscription that is pending": {publish, send, send, awssim.Subscription{Pending: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, awssim.Options{EnforcePolicies: true}, awssim.Queue{Attributes: map[string]string{"Policy": tt.queue}}, func(w *world) {
				tt.subscription.TopicARN, tt.subscription.Queue = topic, "q"
				w.ok(w.server.Apply(awssim.State{
					Queues: []awssim.Queue{
						{Name: "dead", Attributes: map[string]string{"Policy": tt.dead}},
						{Name: "undelivered", Attributes: map[string]string{"Policy": allowTo(events, "sqs:SendMessage", byRule)}},
					},
					Topics: []awssim.Topic{{ARN: topic, Policy: tt.topic}}, Subscriptions: []awssim.Subscription{tt.subscription},
					Rules: []awssim.Rule{{Name: "all", Topic: topic, DeadLetters: "undelivered"}},
				}))
				w.put("mine", `{}`)
				for _, queue := range []string{"q", "dead", "undelivered"} {
					got, want := len(w.server.Messages(queue)), 0
					if queue == tt.want {
						want = 1
					}
					if got != want {
						t.Errorf("%d messages in %s, want %d", got, queue, want)
					}
				}
				if tt.want == "q" {
					if body := *w.receiveOne(0).Body; strings.Contains(body, `"Type":"Notification"`) == tt.subscription.Raw {
						t.Errorf("raw is %v: %s", tt.subscription.Raw, body)
					}
				}
			})
		})
	}
}

func TestTopicsAndTheirRulesAreDescribed(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		const filter = `{"source": ["aws.ec2"]}`
		w.ok(w.server.PutTopic(awssim.Topic{ARN: topic, Policy: "{}"}))
		w.server.PutSubscription(awssim.Subscription{TopicARN: topic, Queue: "q", Raw: true, Filter: filter, DeadLetters: "dead"})
		w.server.PutSubscription(awssim.Subscription{TopicARN: topic, Queue: "later", Pending: true})
		w.ok(w.server.PutRule(awssim.Rule{Name: "a", Topic: topic, RoleARN: "a role"}))
		w.ok(w.server.PutRule(awssim.Rule{Name: "b", Topic: topic, Bus: true}))
		client := sns.NewFromConfig(w.server.Config())
		got, err := client.GetTopicAttributes(w.ctx, &sns.GetTopicAttributesInput{TopicArn: aws.String(topic)})
		w.ok(err)
		if diff := cmp.Diff(map[string]string{"TopicArn": topic, "Owner": "123456789012", "Policy": "{}"}, got.Attributes); diff != "" {
			t.Errorf("topic (-want +got):\n%s", diff)
		}
		list, err := client.ListSubscriptionsByTopic(w.ctx, &sns.ListSubscriptionsByTopicInput{TopicArn: aws.String(topic)})
		w.ok(err)
		if len(list.Subscriptions) != 2 || *list.Subscriptions[0].Endpoint != w.server.QueueARN("q") || *list.Subscriptions[1].SubscriptionArn != "PendingConfirmation" {
			t.Fatalf("subscriptions: %+v", list.Subscriptions)
		}
		one, err := client.GetSubscriptionAttributes(w.ctx, &sns.GetSubscriptionAttributesInput{SubscriptionArn: list.Subscriptions[0].SubscriptionArn})
		w.ok(err)
		if a := one.Attributes; a["FilterPolicy"] != filter || a["FilterPolicyScope"] != "MessageBody" || a["RawMessageDelivery"] != "true" ||
			a["RedrivePolicy"] != `{"deadLetterTargetArn":"`+w.server.QueueARN("dead")+`"}` {
			t.Errorf("attributes: %v", a)
		}
		_, err = client.GetTopicAttributes(w.ctx, &sns.GetTopicAttributesInput{TopicArn: aws.String(topic + "2")})
		wantError(t, err, "NotFound", 404)
		_, err = client.GetSubscriptionAttributes(w.ctx, &sns.GetSubscriptionAttributesInput{SubscriptionArn: aws.String(topic + ":none")})
		wantError(t, err, "NotFound", 404)
		rules, err := w.events().ListRuleNamesByTarget(w.ctx, &eventbridge.ListRuleNamesByTargetInput{TargetArn: aws.String(topic)})
		w.ok(err)
		if diff := cmp.Diff([]string{"a"}, rules.RuleNames); diff != "" {
			t.Errorf("rules (-want +got):\n%s", diff)
		}
		targets, err := w.events().ListTargetsByRule(w.ctx, &eventbridge.ListTargetsByRuleInput{Rule: aws.String("a")})
		w.ok(err)
		if len(targets.Targets) != 1 || *targets.Targets[0].Arn != topic || *targets.Targets[0].RoleArn != "a role" {
			t.Errorf("targets: %+v", targets.Targets)
		}
		_, err = w.events().DescribeRule(w.ctx, &eventbridge.DescribeRuleInput{Name: aws.String("b")})
		wantError(t, err, "ResourceNotFoundException", 400)
		if !w.server.RemoveSubscription(topic, "q") || w.server.RemoveSubscription(topic, "q") || w.server.RemoveSubscription(topic+"2", "q") {
			t.Error("a subscription was removed twice, or not at all")
		}
	})
}

func TestARoleDeliversWhereThePolicyOrItsOwnLetsIt(t *testing.T) {
	const ours, theirs = "arn:aws:iam::123456789012:role/deliver", "arn:aws:iam::210987654321:role/deliver"
	send := `{"Statement": [{"Effect": "Allow", "Action": ["sqs:SendMessage", "kms:*"], "Resource": "*"}]}`
	to := func(role string) string { return allowTo(`{"AWS": "`+role+`"}`, "sqs:SendMessage", "") }
	keyTo := func(principal string) string { return allowTo(`{"AWS": "`+principal+`"}`, "kms:*", "") }
	for name, tt := range map[string]struct {
		role, policy, own, key string
		want                   int
	}{
		"one that the queue names":                      {ours, to(ours), "", "", 1},
		"one of another account that the queue names":   {theirs, to(theirs), "", "", 1},
		"one of another account that it does not":       {theirs, to(ours), send, "", 0},
		"one that its own policy lets":                  {ours, "", send, "", 1},
		"one that nothing lets":                         {ours, "", "", "", 0},
		"one that is denied":                            {ours, strings.Replace(to(ours), "Allow", "Deny", 1), send, "", 0},
		"with a key that names it":                      {ours, to(ours), "", keyTo(ours), 1},
		"with a key that leaves it to the account":      {ours, to(ours), send, keyTo("123456789012"), 1},
		"with a key that does, and a role that may not": {ours, to(ours), "", keyTo("123456789012"), 0},
		"with a key that does not":                      {ours, to(ours), send, keyTo(theirs), 0},
		"the service, in place of the role":             {"", to(ours), send, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			attributes := map[string]string{"Policy": tt.policy}
			if tt.key != "" {
				attributes["KmsMasterKeyId"] = "k-1"
			}
			inBubble(t, awssim.Options{EnforcePolicies: true}, awssim.Queue{Attributes: attributes}, func(w *world) {
				w.ok(w.server.PutKey(awssim.Key{ID: "k-1", Policy: tt.key}))
				w.ok(w.server.PutRole(awssim.Role{Name: "deliver", Policy: tt.own}))
				w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q", RoleARN: tt.role, Bus: true}))
				w.put("mine", `{}`)
				if got := len(w.server.Messages("q")); got != tt.want {
					t.Errorf("%d messages, want %d", got, tt.want)
				}
			})
		})
	}
}
