package awssim_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestCallsAreRecordedWithWhatMatters(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		id := w.send("hello")
		message := w.receiveOne(0)
		w.ok(w.changeVisibility(message, 60))
		_, err := w.sqs.DeleteMessageBatch(w.ctx, &sqs.DeleteMessageBatchInput{QueueUrl: w.url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: aws.String("a"), ReceiptHandle: message.ReceiptHandle},
		}})
		w.ok(err)
		_, err = w.describe(&ec2.DescribeInstancesInput{InstanceIds: []string{unknown}})
		wantError(t, err, "InvalidInstanceID.NotFound", 400)
		_, err = w.describe(&ec2.DescribeInstancesInput{Filters: []ec2types.Filter{{Name: aws.String("instance-id"), Values: []string{idA, idB}}}})
		w.ok(err)
		token := w.begin(idA, awssim.Terminating)
		w.ok(w.heartbeat(token))
		w.ok(w.complete("drain", token, "CONTINUE"))
		w.receive(20)

		call := func(service, action string, entries, status int, code string, params map[string][]string) awssim.Call {
			return awssim.Call{
				Start: w.start, End: w.start, Service: service, Action: action, Entries: entries, Status: status, Code: code,
				Params: params, AccessKeyID: "AKIASIMULATED", Region: "us-east-1",
			}
		}
		poll := call("sqs", "ReceiveMessage", 0, 200, "", map[string][]string{"queue": {"q"}})
		poll.End = w.start.Add(20 * time.Second)
		want := []awssim.Call{
			call("sqs", "ReceiveMessage", 1, 200, "", map[string][]string{"queue": {"q"}, "message": {id}}),
			call("sqs", "ChangeMessageVisibility", 0, 200, "", map[string][]string{"queue": {"q"}, "message": {id}, "timeout": {"60"}}),
			call("sqs", "DeleteMessageBatch", 1, 200, "", map[string][]string{"queue": {"q"}, "message": {id}}),
			call("ec2", "DescribeInstances", 0, 400, "InvalidInstanceID.NotFound", map[string][]string{"instance": {unknown}}),
			call("ec2", "DescribeInstances", 2, 200, "", map[string][]string{"filter": {"instance-id=" + idA + "," + idB}}),
			call("autoscaling", "RecordLifecycleActionHeartbeat", 0, 200, "", map[string][]string{"group": {"workers"}, "hook": {"drain"}, "token": {token}}),
			call("autoscaling", "CompleteLifecycleAction", 0, 200, "", map[string][]string{"group": {"workers"}, "hook": {"drain"}, "token": {token}, "result": {"CONTINUE"}}),
			poll,
		}
		if diff := cmp.Diff(want, w.server.Calls()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestEffectsTellTheStoryInItsOrder(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		w.ok(w.server.PutRule(awssim.Rule{Name: "terminations", DetailType: "* Lifecycle Action", Queue: "q"}))
		token := w.begin(idA, awssim.Terminating)
		message := w.receiveOne(0)
		id := *message.MessageId
		time.Sleep(10 * time.Second)
		w.ok(w.heartbeat(token))
		time.Sleep(10 * time.Second)
		w.ok(w.complete("drain", token, "CONTINUE"))
		w.delete(message)
		time.Sleep(time.Minute)

		at := func(seconds int, effect awssim.Effect) awssim.Effect {
			effect.Time = w.start.Add(time.Duration(seconds) * time.Second)
			return effect
		}
		action := func(kind awssim.EffectKind, result string) awssim.Effect {
			return awssim.Effect{Kind: kind, InstanceID: idA, Group: "workers", Hook: "drain", Token: token, Result: result}
		}
		want := []awssim.Effect{
			at(0, action(awssim.ActionStarted, "")),
			at(0, awssim.Effect{Kind: awssim.MessageSent, Queue: "q", MessageID: id}),
			at(0, awssim.Effect{Kind: awssim.MessageReceived, Queue: "q", MessageID: id, ReceiveCount: 1}),
			at(10, action(awssim.ActionHeartbeat, "")),
			at(20, action(awssim.ActionCompleted, "CONTINUE")),
			at(20, awssim.Effect{Kind: awssim.InstanceState, InstanceID: idA, Result: "shutting-down"}),
			at(20, awssim.Effect{Kind: awssim.MessageDeleted, Queue: "q", MessageID: id, ReceiveCount: 1}),
			at(25, awssim.Effect{Kind: awssim.InstanceState, InstanceID: idA, Result: "terminated"}),
		}
		if diff := cmp.Diff(want, w.server.Effects()); diff != "" {
			t.Errorf("effects (-want +got):\n%s", diff)
		}
	})
}

func TestRecordsAreBoundedAndCountsAreNot(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{CallsKept: 10, EffectsKept: 10}, awssim.Queue{}, func(w *world) {
		for range 25 {
			w.ok(w.sendBySDK())
		}
		_ = w.describeAll()
		wantError(t, w.describeInvalid(), "InvalidInstanceID.Malformed", 400)
		calls := w.server.Calls()
		if len(calls) != 10 || calls[9].Code != "InvalidInstanceID.Malformed" || calls[7].Action != "SendMessage" {
			t.Errorf("kept %d calls, the last %+v", len(calls), calls[len(calls)-1])
		}
		if effects := w.server.Effects(); len(effects) != 10 {
			t.Errorf("kept %d effects, want 10", len(effects))
		}
		want := map[awssim.CallKey]int{
			{Service: "sqs", Action: "SendMessage"}:                                            25,
			{Service: "ec2", Action: "DescribeInstances"}:                                      1,
			{Service: "ec2", Action: "DescribeInstances", Code: "InvalidInstanceID.Malformed"}: 1,
		}
		if diff := cmp.Diff(want, w.server.Counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})
}

func (w *world) describeInvalid() error {
	_, err := w.describe(&ec2.DescribeInstancesInput{InstanceIds: []string{"x"}})
	return err
}
