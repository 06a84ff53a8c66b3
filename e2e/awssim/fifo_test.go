package awssim_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// fifo makes a FIFO queue the one of the world.
func (w *world) fifo(attributes map[string]string) {
	w.Helper()
	all := map[string]string{"FifoQueue": "true"}
	maps.Copy(all, attributes)
	output, err := w.sqs.CreateQueue(w.ctx, &sqs.CreateQueueInput{QueueName: aws.String("q.fifo"), Attributes: all})
	w.ok(err)
	w.url = output.QueueUrl
}

func (w *world) sendTo(group, dedup, body string) (*sqs.SendMessageOutput, error) {
	in := &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String(body)}
	if group != "" {
		in.MessageGroupId = aws.String(group)
	}
	if dedup != "" {
		in.MessageDeduplicationId = aws.String(dedup)
	}
	return w.sqs.SendMessage(w.ctx, in)
}

func (w *world) bodies(messages []types.Message) []string {
	bodies := []string{}
	for _, m := range messages {
		bodies = append(bodies, *m.Body)
	}
	return bodies
}

func TestAMessageGroupWaitsWhileOneOfItsMessagesIsInFlight(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.fifo(map[string]string{"ContentBasedDeduplication": "true"})
		for _, m := range []struct{ group, body string }{{"a", "1"}, {"b", "2"}, {"a", "3"}} {
			output, err := w.sendTo(m.group, "", m.body)
			w.ok(err)
			if len(aws.ToString(output.SequenceNumber)) != 20 {
				t.Errorf("sequence number %q", aws.ToString(output.SequenceNumber))
			}
		}
		one, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{QueueUrl: w.url, MaxNumberOfMessages: 1, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
		w.ok(err)
		if got := w.bodies(one.Messages); !cmp.Equal(got, []string{"1"}) || one.Messages[0].Attributes["MessageGroupId"] != "a" {
			t.Fatalf("received %q: %v", got, one.Messages[0].Attributes)
		}
		if got := w.bodies(w.receive(0)); !cmp.Equal(got, []string{"2"}) {
			t.Errorf("while 1 of group a is in flight: received %q, want 2 of group b alone", got)
		}
		w.delete(one.Messages[0])
		if got := w.bodies(w.receive(0)); !cmp.Equal(got, []string{"3"}) {
			t.Errorf("after 1 was deleted: received %q, want 3", got)
		}
	})
}

func TestADuplicateWithinFiveMinutesIsNotSent(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.fifo(nil)
		first, err := w.sendTo("a", "x", "1")
		w.ok(err)
		w.delete(w.receiveOne(0))
		time.Sleep(5*time.Minute - time.Second)
		again, err := w.sendTo("a", "x", "2")
		w.ok(err)
		if *again.MessageId != *first.MessageId {
			t.Errorf("the duplicate is message %s, want %s", *again.MessageId, *first.MessageId)
		}
		w.receiveNone()
		time.Sleep(time.Second)
		_, err = w.sendTo("a", "x", "2")
		w.ok(err)
		w.receiveOne(0)
	})
}

func TestFIFOQueuesAndStandardOnesAreNotMixed(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		for _, tt := range []struct {
			name       string
			attributes map[string]string
			code       string
		}{
			{"a.fifo", nil, "InvalidParameterValue"},
			{"a", map[string]string{"FifoQueue": "true"}, "InvalidParameterValue"},
			{"a", map[string]string{"FifoQueue": "false"}, "InvalidAttributeName"},
			{"a", map[string]string{"ContentBasedDeduplication": "true"}, "InvalidAttributeName"},
			{strings.Repeat("a", 76) + ".fifo", map[string]string{"FifoQueue": "true"}, "InvalidParameterValue"},
			{"a", map[string]string{"RedrivePolicy": `{"deadLetterTargetArn": "` + w.server.QueueARN("dead.fifo") + `", "maxReceiveCount": 3}`}, "InvalidParameterValue"},
			{"a", map[string]string{"Policy": "?"}, "InvalidAttributeValue"},
			{"a", map[string]string{"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}, "InvalidAttributeValue"},
		} {
			_, err := w.sqs.CreateQueue(w.ctx, &sqs.CreateQueueInput{QueueName: aws.String(tt.name), Attributes: tt.attributes})
			wantError(t, err, tt.code, 400)
		}
		_, err := w.sendTo("", "x", "to a standard queue")
		wantError(t, err, "InvalidParameterValue", 400)
		_, err = w.sqs.SetQueueAttributes(w.ctx, &sqs.SetQueueAttributesInput{QueueUrl: w.url, Attributes: map[string]string{"FifoQueue": "true"}})
		wantError(t, err, "InvalidAttributeName", 400)
		w.fifo(nil)
		_, err = w.sendTo("", "x", "without a group")
		wantError(t, err, "MissingParameter", 400)
		_, err = w.sendTo("a", "", "without a deduplication id")
		wantError(t, err, "InvalidParameterValue", 400)
		_, err = w.sqs.SendMessage(w.ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("late"), MessageGroupId: aws.String("a"), MessageDeduplicationId: aws.String("x"), DelaySeconds: 1})
		wantError(t, err, "InvalidParameterValue", 400)
		attributes, err := w.sqs.GetQueueAttributes(w.ctx, &sqs.GetQueueAttributesInput{QueueUrl: w.url, AttributeNames: []types.QueueAttributeName{"All"}})
		w.ok(err)
		if a := attributes.Attributes; a["FifoQueue"] != "true" || a["ContentBasedDeduplication"] != "false" {
			t.Errorf("attributes: %v", a)
		}
	})
}

func TestEventBridgeSendsToAFIFOQueueWithAMessageGroupAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		group, byContent string
		want             int
	}{{"", "true", 0}, {"all", "false", 0}, {"all", "true", 1}} {
		inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
			w.fifo(map[string]string{"ContentBasedDeduplication": tt.byContent})
			w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q.fifo", MessageGroup: tt.group, DeadLetters: "q"}))
			w.put("mine", `{}`)
			if got, dead := len(w.server.Messages("q.fifo")), len(w.server.Messages("q")); got != tt.want || dead != 1-tt.want {
				t.Errorf("%+v: %d in the queue, %d in the dead-letter queue", tt, got, dead)
			}
			targets, err := w.events().ListTargetsByRule(w.ctx, &eventbridge.ListTargetsByRuleInput{Rule: aws.String("all")})
			w.ok(err)
			if p := targets.Targets[0].SqsParameters; (p == nil) != (tt.group == "") || p != nil && *p.MessageGroupId != tt.group {
				t.Errorf("the target's parameters: %+v", p)
			}
		})
	}
}

func TestWhatIsTooLargeForTheQueueIsADeadLetter(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: map[string]string{"MaximumMessageSize": "1024"}}, func(w *world) {
		w.ok(w.server.CreateQueue(awssim.Queue{Name: "dead"}))
		w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q", DeadLetters: "dead"}))
		w.put("mine", `{}`)
		w.put("mine", `{"text": "`+strings.Repeat("x", 1024)+`"}`)
		if got, dead := len(w.server.Messages("q")), len(w.server.Messages("dead")); got != 1 || dead != 1 {
			t.Errorf("%d in the queue, %d in the dead-letter queue; want one each", got, dead)
		}
	})
}

func TestPoliciesAreSetAndQueuesEndByTheControlAPI(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	const document = `{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}`
	for _, step := range []struct {
		method, path, body string
		want               int
	}{
		{"PUT", "queues/q", "", http.StatusOK},
		{"PUT", "keys/k", "", http.StatusOK},
		{"PUT", "queues/q/policy", document, http.StatusOK},
		{"PUT", "keys/k/policy", document, http.StatusOK},
		{"PUT", "queues/q/policy", "?", http.StatusBadRequest},
		{"PUT", "keys/k/policy", "?", http.StatusBadRequest},
		{"PUT", "queues/none/policy", document, http.StatusBadRequest},
		{"PUT", "keys/none/policy", document, http.StatusBadRequest},
		{"PUT", "queues/end", "", http.StatusOK},
		{"DELETE", "queues/end", "", http.StatusNoContent},
		{"DELETE", "queues/end", "", http.StatusNotFound},
	} {
		if status, answer := control(t, server, step.method, step.path, step.body); status != step.want {
			t.Errorf("%s %s: status %d, want %d: %s", step.method, step.path, status, step.want, answer)
		}
	}
	want := awssim.State{
		Queues: []awssim.Queue{{Name: "q", Attributes: map[string]string{"Policy": document}}},
		Keys:   []awssim.Key{{ID: "k", Manager: "CUSTOMER", State: "Enabled", Policy: document}},
	}
	got := server.State()
	if diff := cmp.Diff(want.Queues, got.Queues) + cmp.Diff(want.Keys, got.Keys); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
}
