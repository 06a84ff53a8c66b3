package awssim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestALongPollWithoutMessagesEndsAfter20Seconds(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		if messages := w.receive(20); len(messages) != 0 {
			t.Errorf("received %d messages, want none", len(messages))
		}
		if took := time.Since(w.start); took != 20*time.Second {
			t.Errorf("the poll took %s, want 20s", took)
		}
	})
}

func TestALongPollWakesAtOnceForAMessage(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		time.AfterFunc(7*time.Second, func() { w.send("hello") })
		message := w.receiveOne(20)
		if took := time.Since(w.start); took != 7*time.Second {
			t.Errorf("the poll took %s, want 7s", took)
		}
		if *message.Body != "hello" {
			t.Errorf("body = %q", *message.Body)
		}
	})
}

func TestALongPollWakesForAMessageThatBecomesVisibleAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.send("hello")
		w.receiveOne(0)
		w.receiveNone()
		if messages := w.receive(20); len(messages) != 0 {
			t.Errorf("received %d messages within the visibility timeout", len(messages))
		}
		w.receiveOne(20)
		if took := time.Since(w.start); took != 30*time.Second {
			t.Errorf("the message came again after %s, want 30s", took)
		}
	})
}

func TestALongPollEndsWhenItsClientLeavesAndTakesNoMessageAlong(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		ctx, cancel := context.WithTimeout(w.ctx, 3*time.Second)
		defer cancel()
		_, err := w.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: w.url, WaitTimeSeconds: 20})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ReceiveMessage = %v, want the deadline", err)
		}
		if took := time.Since(w.start); took != 3*time.Second {
			t.Errorf("the poll took %s, want 3s", took)
		}
		w.send("hello")
		if count := w.receiveOne(0).Attributes["ApproximateReceiveCount"]; count != "1" {
			t.Errorf("receive count = %s, want 1", count)
		}
		if calls := w.server.Calls(); calls[0].Code != "ClientGone" {
			t.Errorf("recorded code = %q, want ClientGone", calls[0].Code)
		}
	})
}

func TestCloseEndsLongPolls(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		time.AfterFunc(time.Second, w.server.Close)
		w.receive(20)
		if took := time.Since(w.start); took != time.Second {
			t.Errorf("the poll took %s, want 1s", took)
		}
		_, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{QueueUrl: w.url})
		wantError(t, err, "ServiceUnavailable", 503)
	})
}

func TestTheQueuesWaitTimeIsTheDefaultOfAPoll(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: map[string]string{"ReceiveMessageWaitTimeSeconds": "9"}}, func(w *world) {
		// The SDK leaves a wait time of zero out.
		w.receive(0)
		if took := time.Since(w.start); took != 9*time.Second {
			t.Errorf("the poll took %s, want 9s", took)
		}
	})
}

func TestEachMessageGoesToOneOfSeveralLongPolls(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		got := make(chan int, 3)
		for range cap(got) {
			go func() { got <- len(w.receive(20)) }()
		}
		synctest.Wait()
		w.send("hello")
		total := 0
		for range cap(got) {
			total += <-got
		}
		if total != 1 {
			t.Errorf("three polls received %d messages, want 1", total)
		}
	})
}

func TestAReceivedMessageShowsItsAgeAndItsCount(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		sent := strconv.FormatInt(time.Now().UnixMilli(), 10)
		id := w.send("hello")
		time.Sleep(5 * time.Second)
		first := strconv.FormatInt(time.Now().UnixMilli(), 10)
		w.receiveOne(0)
		time.Sleep(30 * time.Second)
		message := w.receiveOne(0)
		if *message.MessageId != id {
			t.Errorf("message id = %s, want %s", *message.MessageId, id)
		}
		want := map[string]string{
			"ApproximateReceiveCount": "2", "SentTimestamp": sent,
			"ApproximateFirstReceiveTimestamp": first, "SenderId": "123456789012",
		}
		if diff := cmp.Diff(want, message.Attributes); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
	})
}

func TestAttributesComeByTheOlderParameterAndOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: map[string]string{"VisibilityTimeout": "0"}}, func(w *world) {
		w.send("hello")
		for _, names := range [][]types.QueueAttributeName{nil, {"ApproximateReceiveCount"}} {
			output, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{QueueUrl: w.url, AttributeNames: names}) //nolint:staticcheck // what older clients send
			w.ok(err)
			if got := len(output.Messages[0].Attributes); got != len(names) {
				t.Errorf("asked for %v, got %d attributes", names, got)
			}
		}
	})
}

func TestVisibilityCountsFromTheLastChange(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.send("hello")
		message := w.receiveOne(0)
		time.Sleep(20 * time.Second)
		w.ok(w.changeVisibility(message, 30))
		time.Sleep(30*time.Second - 1)
		w.receiveNone()
		time.Sleep(time.Nanosecond)
		w.receiveOne(0)
	})
}

func TestAVisibilityOfZeroGivesTheMessageBack(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.send("hello")
		w.ok(w.changeVisibility(w.receiveOne(0), 0))
		w.receiveOne(0)
	})
}

func TestVisibilityEndsTwelveHoursAfterTheReceive(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: map[string]string{"VisibilityTimeout": "43000"}}, func(w *world) {
		w.send("hello")
		message := w.receiveOne(0)
		time.Sleep(time.Hour)
		w.ok(w.changeVisibility(message, 11*3600))
		err := w.changeVisibility(message, 11*3600+1)
		wantError(t, err, "InvalidParameterValue", 400)
		if want := "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"; !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to say %q", err, want)
		}
		time.Sleep(11 * time.Hour)
		w.ok(w.changeVisibility(w.receiveOne(0), 43200)) // the next receive starts anew
	})
}

// TestStaleReceiptHandles tells what becomes of a message when somebody uses a handle that is out of date.
func TestStaleReceiptHandles(t *testing.T) {
	t.Parallel()
	visibleAgain := func(w *world) types.Message {
		w.send("hello")
		message := w.receiveOne(0)
		time.Sleep(30 * time.Second)
		return message
	}
	receivedAgain := func(w *world) types.Message {
		message := visibleAgain(w)
		w.receiveOne(0)
		return message
	}
	deleted := func(w *world) types.Message {
		w.send("hello")
		message := w.receiveOne(0)
		w.delete(message)
		return message
	}
	retired := func(w *world) types.Message {
		w.send("hello")
		message := w.receiveOne(0)
		time.Sleep(96 * time.Hour)
		return message
	}
	for name, test := range map[string]struct {
		opts   awssim.Options
		become func(w *world) types.Message
		change string // code of changing the visibility
		left   int    // messages after deleting
	}{
		"visible again":           {become: visibleAgain, change: "AWS.SimpleQueueService.MessageNotInflight", left: 0},
		"visible again, as found": {opts: awssim.Options{QuietStaleHandles: true}, become: visibleAgain, left: 0},
		"received again":          {become: receivedAgain, change: "InvalidParameterValue", left: 1},
		"deleted":                 {become: deleted, change: "InvalidParameterValue", left: 0},
		"past its retention":      {become: retired, change: "InvalidParameterValue", left: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, test.opts, awssim.Queue{}, func(w *world) {
				message := test.become(w)
				before := w.server.Messages("q")
				err := w.changeVisibility(message, 60)
				if test.change == "" {
					w.ok(err)
				} else {
					wantError(t, err, test.change, 400)
				}
				if diff := cmp.Diff(before, w.server.Messages("q")); diff != "" {
					t.Errorf("the refused change changed the queue (-before +after):\n%s", diff)
				}
				w.delete(message)
				if left := len(w.server.Messages("q")); left != test.left {
					t.Errorf("%d messages left after deleting, want %d", left, test.left)
				}
			})
		})
	}
}

func TestAMessageThatIsNotInFlightHasATypedError(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.send("hello")
		message := w.receiveOne(0)
		time.Sleep(time.Minute)
		if err := w.changeVisibility(message, 60); !errors.As(err, new(*types.MessageNotInflight)) {
			t.Errorf("error = %v, want *types.MessageNotInflight", err)
		}
	})
}

func TestRetentionTakesAMessageInFlight(t *testing.T) {
	t.Parallel()
	attributes := map[string]string{"MessageRetentionPeriod": "300", "VisibilityTimeout": "600"}
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: attributes}, func(w *world) {
		id := w.send("hello")
		w.receiveOne(0)
		time.Sleep(400 * time.Second)
		if left := w.server.Messages("q"); len(left) != 0 {
			t.Errorf("%d messages left, want none", len(left))
		}
		effects := w.server.Effects()
		want := awssim.Effect{Time: w.start.Add(300 * time.Second), Kind: awssim.MessageExpired, Queue: "q", MessageID: id, ReceiveCount: 1}
		if diff := cmp.Diff(want, effects[len(effects)-1]); diff != "" {
			t.Errorf("last effect (-want +got):\n%s", diff)
		}
	})
}

func TestADelayedMessageIsHiddenAtFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Attributes: map[string]string{"DelaySeconds": "3"}}, func(w *world) {
		_, err := w.sqs.SendMessage(w.ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("by itself"), DelaySeconds: 8})
		w.ok(err)
		w.send("by the queue")
		for _, want := range []struct {
			body  string
			after time.Duration
		}{{"by the queue", 3 * time.Second}, {"by itself", 8 * time.Second}} {
			if message := w.receiveOne(20); *message.Body != want.body || time.Since(w.start) != want.after {
				t.Errorf("received %q after %s, want %q after %s", *message.Body, time.Since(w.start), want.body, want.after)
			}
		}
	})
}

func TestRedriveMovesAMessageThatCameTooOften(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		w.ok(w.server.CreateQueue(awssim.Queue{Name: "dead"}))
		_, err := w.sqs.SetQueueAttributes(w.ctx, &sqs.SetQueueAttributesInput{QueueUrl: w.url, Attributes: map[string]string{
			"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"2"}`, w.server.QueueARN("dead")),
		}})
		w.ok(err)
		id := w.send("poison")
		for range 2 {
			w.receiveOne(20)
			time.Sleep(30 * time.Second)
		}
		w.receiveNone()
		dead := w.server.Messages("dead")
		if len(dead) != 1 || dead[0].ID != id || dead[0].Body != "poison" || !dead[0].Sent.Equal(w.start) {
			t.Errorf("dead letters = %+v, want the message with its id and its age", dead)
		}
		if left := w.server.Messages("q"); len(left) != 0 {
			t.Errorf("%d messages left in the queue, want none", len(left))
		}
	})
}

func TestADeletedMessageCanComeAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		id := w.send("hello")
		w.delete(w.receiveOne(0))
		w.receiveNone()
		w.ok(w.server.Redeliver("q", id))
		w.delete(w.receiveOne(0))
		if err := w.server.Redeliver("q", "nonsense"); err == nil {
			t.Error("Redeliver took an id that does not exist")
		}
	})
}

func TestForgottenDeletionsAndDuplicateDeliveries(t *testing.T) {
	t.Parallel()
	t.Run("a deletion that SQS forgets", func(t *testing.T) {
		t.Parallel()
		inBubble(t, awssim.Options{}, awssim.Queue{Resurrections: 1}, func(w *world) {
			w.send("hello")
			w.delete(w.receiveOne(0))
			w.receiveNone()
			time.Sleep(30 * time.Second)
			w.receiveOne(0)
		})
	})
	t.Run("a message delivered twice", func(t *testing.T) {
		t.Parallel()
		inBubble(t, awssim.Options{}, awssim.Queue{Duplicates: 1}, func(w *world) {
			w.send("hello")
			first, second := w.receiveOne(0), w.receiveOne(0)
			if *first.MessageId != *second.MessageId || *first.ReceiptHandle == *second.ReceiptHandle {
				t.Errorf("deliveries %s and %s, want one id and two handles", *first.MessageId, *second.MessageId)
			}
		})
	})
}

func TestBatchEntriesFailOneByOne(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		sent, err := w.sqs.SendMessageBatch(w.ctx, &sqs.SendMessageBatchInput{QueueUrl: w.url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("good"), MessageBody: aws.String("hello")},
			{Id: aws.String("bad"), MessageBody: aws.String("bell \a")},
		}})
		w.ok(err)
		wantBatch(t, "SendMessageBatch", len(sent.Successful), sent.Failed, "bad InvalidMessageContents")

		handle := w.receiveOne(0).ReceiptHandle
		changed, err := w.sqs.ChangeMessageVisibilityBatch(w.ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: w.url, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("good"), ReceiptHandle: handle, VisibilityTimeout: 60},
			{Id: aws.String("bad"), ReceiptHandle: aws.String("nonsense"), VisibilityTimeout: 60},
			{Id: aws.String("long"), ReceiptHandle: handle, VisibilityTimeout: 43201},
		}})
		w.ok(err)
		wantBatch(t, "ChangeMessageVisibilityBatch", len(changed.Successful), changed.Failed, "bad ReceiptHandleIsInvalid", "long InvalidParameterValue")

		removed, err := w.sqs.DeleteMessageBatch(w.ctx, &sqs.DeleteMessageBatchInput{QueueUrl: w.url, Entries: []types.DeleteMessageBatchRequestEntry{
			{Id: aws.String("good"), ReceiptHandle: handle},
			{Id: aws.String("bad"), ReceiptHandle: aws.String("nonsense")},
		}})
		w.ok(err)
		wantBatch(t, "DeleteMessageBatch", len(removed.Successful), removed.Failed, "bad ReceiptHandleIsInvalid")
		if left := w.server.Messages("q"); len(left) != 0 {
			t.Errorf("%d messages left, want none", len(left))
		}
	})
}

// wantBatch checks that one entry succeeded and the others failed, given as "id code".
func wantBatch(t *testing.T, call string, successful int, failed []types.BatchResultErrorEntry, want ...string) {
	t.Helper()
	var got []string
	for _, entry := range failed {
		got = append(got, *entry.Id+" "+*entry.Code)
		if !entry.SenderFault {
			t.Errorf("%s: entry %s is not the sender's fault", call, *entry.Id)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || successful != 1 {
		t.Errorf("%s: %d successful, failed (-want +got):\n%s", call, successful, diff)
	}
}

func TestSQSErrors(t *testing.T) {
	t.Parallel()
	deleteBatch := func(ids ...string) func(w *world) error {
		return func(w *world) error {
			input := &sqs.DeleteMessageBatchInput{QueueUrl: w.url, Entries: []types.DeleteMessageBatchRequestEntry{}}
			for _, id := range ids {
				input.Entries = append(input.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(id), ReceiptHandle: aws.String("x")})
			}
			_, err := w.sqs.DeleteMessageBatch(w.ctx, input)
			return err
		}
	}
	send := func(body string) func(w *world) error {
		return func(w *world) error {
			_, err := w.sqs.SendMessage(w.ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String(body)})
			return err
		}
	}
	receive := func(input sqs.ReceiveMessageInput) func(w *world) error {
		return func(w *world) error {
			input.QueueUrl = w.url
			_, err := w.sqs.ReceiveMessage(w.ctx, &input)
			return err
		}
	}
	set := func(name, value string) func(w *world) error {
		return func(w *world) error {
			_, err := w.sqs.SetQueueAttributes(w.ctx, &sqs.SetQueueAttributesInput{QueueUrl: w.url, Attributes: map[string]string{name: value}})
			return err
		}
	}
	for name, test := range map[string]struct {
		call   func(w *world) error
		code   string
		status int
		typed  any // the SDK's type, where it has one
	}{
		"no queue of that URL": {
			call: func(w *world) error {
				_, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(w.server.QueueURL("nobody"))})
				return err
			},
			code: "AWS.SimpleQueueService.NonExistentQueue", status: 400, typed: new(*types.QueueDoesNotExist),
		},
		"no queue of that name": {
			call: func(w *world) error {
				_, err := w.sqs.GetQueueUrl(w.ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("nobody")})
				return err
			},
			code: "AWS.SimpleQueueService.NonExistentQueue", status: 400, typed: new(*types.QueueDoesNotExist),
		},
		"another queue of that name": {
			call: func(w *world) error {
				_, err := w.sqs.CreateQueue(w.ctx, &sqs.CreateQueueInput{QueueName: aws.String("q"), Attributes: map[string]string{"DelaySeconds": "9"}})
				return err
			},
			code: "QueueAlreadyExists", status: 400, typed: new(*types.QueueNameExists),
		},
		"a receipt handle of nothing": {
			call: func(w *world) error {
				_, err := w.sqs.DeleteMessage(w.ctx, &sqs.DeleteMessageInput{QueueUrl: w.url, ReceiptHandle: aws.String("nonsense")})
				return err
			},
			code: "ReceiptHandleIsInvalid", status: 404, typed: new(*types.ReceiptHandleIsInvalid),
		},
		"a receipt handle of another queue": {
			call: func(w *world) error {
				w.send("hello")
				handle := w.receiveOne(0).ReceiptHandle
				w.ok(w.server.CreateQueue(awssim.Queue{Name: "other"}))
				_, err := w.sqs.DeleteMessage(w.ctx, &sqs.DeleteMessageInput{QueueUrl: aws.String(w.server.QueueURL("other")), ReceiptHandle: handle})
				return err
			},
			code: "ReceiptHandleIsInvalid", status: 404, typed: new(*types.ReceiptHandleIsInvalid),
		},
		"an empty batch":                {deleteBatch(), "AWS.SimpleQueueService.EmptyBatchRequest", 400, new(*types.EmptyBatchRequest)},
		"a batch of eleven":             {deleteBatch(strings.Split("abcdefghijk", "")...), "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400, new(*types.TooManyEntriesInBatchRequest)},
		"a batch with an id twice":      {deleteBatch("a", "b", "a"), "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400, new(*types.BatchEntryIdsNotDistinct)},
		"a batch with an id of a kind":  {deleteBatch("a:b"), "AWS.SimpleQueueService.InvalidBatchEntryId", 400, new(*types.InvalidBatchEntryId)},
		"an empty body":                 {send(""), "MissingParameter", 400, nil},
		"a body that is too long":       {send(strings.Repeat("x", 1<<20+1)), "InvalidParameterValue", 400, nil},
		"a body of control characters":  {send("bell \a"), "InvalidMessageContents", 400, new(*types.InvalidMessageContents)},
		"eleven messages at once":       {receive(sqs.ReceiveMessageInput{MaxNumberOfMessages: 11}), "InvalidParameterValue", 400, nil},
		"a poll of 21 seconds":          {receive(sqs.ReceiveMessageInput{WaitTimeSeconds: 21}), "InvalidParameterValue", 400, nil},
		"a visibility above 12 hours":   {receive(sqs.ReceiveMessageInput{VisibilityTimeout: 43201}), "InvalidParameterValue", 400, nil},
		"an attribute out of range":     {set("VisibilityTimeout", "43201"), "InvalidAttributeValue", 400, new(*types.InvalidAttributeValue)},
		"a redrive policy to no ARN":    {set("RedrivePolicy", `{"deadLetterTargetArn":"dead","maxReceiveCount":3}`), "InvalidParameterValue", 400, nil},
		"a redrive policy that is text": {set("RedrivePolicy", "often"), "InvalidParameterValue", 400, nil},
		"a second purge within a minute": {
			call: func(w *world) error {
				_, err := w.sqs.PurgeQueue(w.ctx, &sqs.PurgeQueueInput{QueueUrl: w.url})
				w.ok(err)
				time.Sleep(59 * time.Second)
				_, err = w.sqs.PurgeQueue(w.ctx, &sqs.PurgeQueueInput{QueueUrl: w.url})
				return err
			},
			code: "AWS.SimpleQueueService.PurgeQueueInProgress", status: 403, typed: new(*types.PurgeQueueInProgress),
		},
		"an action that is not simulated": {
			call: func(w *world) error {
				_, err := w.sqs.ListQueues(w.ctx, &sqs.ListQueuesInput{})
				return err
			},
			code: "InvalidAction", status: 400,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				err := test.call(w)
				wantError(t, err, test.code, test.status)
				if test.typed != nil && !errors.As(err, test.typed) {
					t.Errorf("error = %v, want a %T", err, test.typed)
				}
			})
		})
	}
}

func TestQueueAttributes(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		created, err := w.sqs.CreateQueue(w.ctx, &sqs.CreateQueueInput{QueueName: aws.String("made"), Attributes: map[string]string{"VisibilityTimeout": "20"}})
		w.ok(err)
		found, err := w.sqs.GetQueueUrl(w.ctx, &sqs.GetQueueUrlInput{QueueName: aws.String("made")})
		w.ok(err)
		if *created.QueueUrl != *found.QueueUrl || *found.QueueUrl != awssim.MemoryEndpoint+"/123456789012/made" {
			t.Errorf("created %s, found %s", *created.QueueUrl, *found.QueueUrl)
		}
		w.url = created.QueueUrl
		for i := range 3 {
			_, err := w.sqs.SendMessage(w.ctx, &sqs.SendMessageInput{QueueUrl: w.url, MessageBody: aws.String("hello"), DelaySeconds: int32(i)})
			w.ok(err)
		}
		w.receiveOne(0)
		time.Sleep(time.Second)
		output, err := w.sqs.GetQueueAttributes(w.ctx, &sqs.GetQueueAttributesInput{QueueUrl: w.url, AttributeNames: []types.QueueAttributeName{
			"QueueArn", "VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy",
			"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed",
		}})
		w.ok(err)
		want := map[string]string{
			"QueueArn": "arn:aws:sqs:us-east-1:123456789012:made", "VisibilityTimeout": "20", "MessageRetentionPeriod": "345600",
			"ApproximateNumberOfMessages": "1", "ApproximateNumberOfMessagesNotVisible": "1", "ApproximateNumberOfMessagesDelayed": "1",
		}
		if diff := cmp.Diff(want, output.Attributes); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		_, err = w.sqs.PurgeQueue(w.ctx, &sqs.PurgeQueueInput{QueueUrl: w.url})
		w.ok(err)
		if left := w.server.Messages("made"); len(left) != 0 {
			t.Errorf("%d messages left after the purge", len(left))
		}
	})
}

func TestABodyOfAnyKindArrives(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		for sent, want := range map[string]string{
			"": "", "<&>\u2028\"": "<&>\u2028\"", "bell \a": "bell \a", "\xff\xfe": "\uFFFD",
			strings.Repeat("\U0001F4A5", 64<<10): strings.Repeat("\U0001F4A5", 64<<10),
		} {
			w.send(sent)
			message := w.receiveOne(0) // the SDK checks the MD5
			w.delete(message)
			if *message.Body != want {
				t.Errorf("sent %.20q, received %.20q", sent, *message.Body)
			}
		}
	})
}

func TestAQueueInDisorderDeliversInAnyOrder(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{Disorder: true}, func(w *world) {
		var sent, received []string
		for k := range 10 {
			sent = append(sent, w.send(strconv.Itoa(k)))
		}
		for _, m := range w.receive(1) {
			received = append(received, *m.MessageId)
		}
		if slices.Equal(sent, received) {
			t.Error("they came in the order in which they were sent")
		}
		slices.Sort(sent)
		slices.Sort(received)
		if !slices.Equal(sent, received) {
			t.Errorf("received %v, want %v", received, sent)
		}
	})
}

func TestASignatureForAnotherRegionIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		_, err := w.sqs.ReceiveMessage(w.ctx, &sqs.ReceiveMessageInput{QueueUrl: w.url}, func(o *sqs.Options) { o.Region = "eu-west-1" })
		wantError(t, err, "InvalidSignatureException", 403)
	})
}
