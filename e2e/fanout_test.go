package e2e

import (
	"os"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

// allowTopic is a policy of a queue that lets a topic send.
func allowTopic(arn string) string {
	return `{"Statement": {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*",
		"Condition": {"ArnEquals": {"aws:SourceArn": "` + arn + `"}}}}`
}

// Two clusters of one account, each with a control plane and a queue of its own. One rule and one
// topic fill both queues, as deploy/cloudformation/fan-out.yaml makes them. Each cluster drains its
// own node and deletes what is about the other's.
func TestClustersBehindOneTopicDrainEachItsOwnNode(t *testing.T) {
	tier.Full(t, "40 s and a control plane of its own")
	t.Parallel()
	elsewhere, err := sandbox.Start(t.Context(), sandbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := elsewhere.Stop(); err != nil {
			t.Error(err)
		}
	})
	one, two := newScenarioIn(t, shared), newScenarioIn(t, elsewhere)
	one.openAccount(awssim.Options{EnforcePolicies: true})
	two.aws, two.endpoint = one.aws, one.endpoint
	pattern, err := os.ReadFile("../deploy/eventbridge/single.json")
	one.must(err)
	topic := one.aws.TopicARN("notices")
	const theirQueue = "theirs"
	attributes := one.healthyQueue()
	attributes["Policy"] = allowTopic(topic)
	one.must(one.aws.Apply(awssim.State{
		Queues: []awssim.Queue{
			{Name: "dead", Attributes: map[string]string{"MessageRetentionPeriod": "1209600", "Policy": allowTopic(topic)}},
			{Name: queueName, Attributes: attributes},
			{Name: theirQueue, Attributes: attributes},
		},
		Rules: []awssim.Rule{{Name: "notices", Pattern: string(pattern), Topic: topic}},
		Topics: []awssim.Topic{{ARN: topic, Policy: `{"Statement": {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sns:Publish", "Resource": "*",
			"Condition": {"ArnEquals": {"aws:SourceArn": "` + one.aws.RuleARN("notices") + `"}}}}`}},
		Subscriptions: []awssim.Subscription{
			{TopicARN: topic, Queue: queueName, Raw: true, DeadLetters: "dead"},
			{TopicARN: topic, Queue: theirQueue, DeadLetters: "dead"}, // in SNS's envelope
		},
	}))
	ours, theirs := one.nodes(1)[0], two.nodes(1)[0]
	// The same tag would make each cluster wait for the Nodes of the other.
	const ourTag, theirTag = "kubernetes.io/cluster/one", "kubernetes.io/cluster/two"
	one.must(one.aws.PutInstance(awssim.Instance{ID: ours.instance, Tags: map[string]string{ourTag: "owned"}}))
	one.must(one.aws.PutInstance(awssim.Instance{ID: theirs.instance, Tags: map[string]string{theirTag: "owned"}}))
	one.pod("one", ours.name)
	two.pod("two", theirs.name)
	for _, f := range []string{"topic", "queue-policy", "rule-spot", "rule-state-change", "rule-health"} {
		if found := one.finding(f); found.Status != "ok" {
			t.Errorf("doctor says of %s: %+v", f, found)
		}
	}
	one.leader("--delete-sqs-msg-if-node-not-found", "--managed-tag="+ourTag)
	h := two.replica()
	h.queue = theirQueue
	h.run("--delete-sqs-msg-if-node-not-found", "--managed-tag="+theirTag)
	h.awaitReady()
	h.awaitLead()
	// settled waits until both have deleted as many messages.
	settled := func(deleted int) {
		t.Helper()
		one.eventually("both queues are empty", func() bool {
			return one.deletedFrom(queueName) == deleted && one.deletedFrom(theirQueue) == deleted
		})
	}

	before, elsewhereBefore := one.placement(), two.placement()
	one.must(one.aws.SetInstanceState(ours.instance, "stopping"))
	one.eventually("the node is drained", func() bool { return one.cordoned(ours.name) && len(one.podsOn(ours.name)) == 0 })
	settled(2) // that it stops, and that it has stopped
	one.finished(ours.name)
	one.drainedExactly(before, ours)
	two.drainedExactly(elsewhereBefore)
	two.wroteNothing()

	drained := len(one.writes())
	action := two.scaleIn(theirs)
	two.eventually("the node is drained", func() bool { return two.cordoned(theirs.name) && len(two.podsOn(theirs.name)) == 0 })
	settled(5) // the hook; that the instance shuts down, and that it is terminated
	two.completed(action)
	two.drainedExactly(elsewhereBefore, theirs)
	if now := len(one.writes()); now != drained {
		t.Errorf("the other cluster wrote %d times more", now-drained)
	}
	if left := one.aws.Messages("dead"); len(left) > 0 {
		t.Errorf("dead letters: %+v", left)
	}
}

// deletedFrom is the number of messages that were deleted from a queue.
func (s *scenario) deletedFrom(queue string) (deleted int) {
	for _, e := range s.aws.Effects() {
		if e.Kind == awssim.MessageDeleted && e.Queue == queue {
			deleted++
		}
	}
	return deleted
}
