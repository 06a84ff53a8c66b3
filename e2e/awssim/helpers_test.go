package awssim_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// world is a simulator with real SDK clients that do not retry, and one queue, in virtual time.
type world struct {
	*testing.T
	ctx         context.Context
	server      *awssim.Server
	sqs         *sqs.Client
	ec2         *ec2.Client
	autoscaling *autoscaling.Client
	url         *string // of the queue "q"
	start       time.Time
}

func inBubble(t *testing.T, opts awssim.Options, queue awssim.Queue, story func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := awssim.New(opts)
		defer server.Close()
		queue.Name = "q"
		if err := server.CreateQueue(queue); err != nil {
			t.Fatal(err)
		}
		config := server.Config()
		config.RetryMaxAttempts = 1
		story(&world{
			T: t, ctx: t.Context(), server: server,
			sqs: sqs.NewFromConfig(config), ec2: ec2.NewFromConfig(config), autoscaling: autoscaling.NewFromConfig(config),
			url: aws.String(server.QueueURL("q")), start: time.Now(),
		})
	})
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) send(body string) (messageID string) {
	w.Helper()
	id, err := w.server.SendMessage("q", body)
	w.ok(err)
	return id
}

// receive receives at most 10 messages with the queue's own visibility, waiting for so many seconds.
func (w *world) receive(wait int32) []types.Message {
	w.Helper()
	output, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{
		QueueUrl: w.url, MaxNumberOfMessages: 10, WaitTimeSeconds: wait,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	w.ok(err)
	return output.Messages
}

func (w *world) receiveOne(wait int32) types.Message {
	w.Helper()
	messages := w.receive(wait)
	if len(messages) != 1 {
		w.Fatalf("after %s: received %d messages, want 1", time.Since(w.start), len(messages))
	}
	return messages[0]
}

func (w *world) receiveNone() {
	w.Helper()
	if messages := w.receive(0); len(messages) != 0 {
		w.Fatalf("after %s: received %d messages, want none", time.Since(w.start), len(messages))
	}
}

func (w *world) delete(message types.Message) {
	w.Helper()
	_, err := w.sqs.DeleteMessage(w.ctx, &sqs.DeleteMessageInput{QueueUrl: w.url, ReceiptHandle: message.ReceiptHandle})
	w.ok(err)
}

func (w *world) changeVisibility(message types.Message, seconds int32) error {
	_, err := w.sqs.ChangeMessageVisibility(w.ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: w.url, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: seconds,
	})
	return err
}

// wantError checks the code and, if it is not zero, the HTTP status of an error.
func wantError(t testing.TB, err error, code string, status int) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code {
		t.Errorf("error = %v, want code %s", err, code)
		return
	}
	var answer *smithyhttp.ResponseError
	if status != 0 && (!errors.As(err, &answer) || answer.HTTPStatusCode() != status) {
		t.Errorf("error = %v, want HTTP status %d", err, status)
	}
}

// wantJSON compares two JSON objects; "ANY" in want stands for every string that is not empty.
func wantJSON(t testing.TB, got, want string) {
	t.Helper()
	var gotValue, wantValue any
	if err := json.Unmarshal([]byte(got), &gotValue); err != nil {
		t.Fatalf("%q: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &wantValue); err != nil {
		t.Fatal(err)
	}
	isAny := cmp.FilterValues(func(a, b string) bool { return a == "ANY" && b != "" || b == "ANY" && a != "" }, cmp.Ignore())
	if diff := cmp.Diff(wantValue, gotValue, isAny); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

// innerMessage takes SNS's envelope off.
func innerMessage(t testing.TB, body string) string {
	t.Helper()
	var envelope struct{ Message string }
	if err := json.Unmarshal([]byte(body), &envelope); err != nil {
		t.Fatal(err)
	}
	return envelope.Message
}
