package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
)

// testContract holds a queue to what the server relies on. newQueue is called in
// a bubble of virtual time; the queue it returns is empty.
func testContract(t *testing.T, newQueue func(t *testing.T) (API, control)) {
	story := func(name string, tell func(t *testing.T, c consumer, q control)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, q := newQueue(t)
				tell(t, consumer{t, api, q.url()}, q)
			})
		})
	}

	story("a received message is hidden until its visibility has passed", func(t *testing.T, c consumer, q control) {
		ids := q.send("body")
		first := c.receiveOne(20*time.Second, 0)
		if got := aws.ToString(first.MessageId); got != ids[0] {
			t.Errorf("message id = %q, want %q", got, ids[0])
		}
		if got := aws.ToString(first.Body); got != "body" {
			t.Errorf("body = %q", got)
		}
		time.Sleep(19 * time.Second)
		c.receiveNone(0)
		time.Sleep(2 * time.Second)
		if again := c.receiveOne(20*time.Second, 0); aws.ToString(again.ReceiptHandle) == aws.ToString(first.ReceiptHandle) {
			t.Error("the second delivery has the receipt of the first")
		}
	})

	story("deliveries are counted and sent times kept", func(t *testing.T, c consumer, q control) {
		sent := time.Now().Truncate(time.Millisecond)
		q.send("body")
		c.receiveOne(time.Second, 0)
		time.Sleep(2 * time.Second)
		m := messageOf(c.receiveOne(time.Second, 0))
		if m.ReceiveCount != 2 || !m.Sent.Equal(sent) {
			t.Errorf("receives = %d, sent %v, want 2, %v", m.ReceiveCount, m.Sent, sent)
		}
	})

	story("a receive returns ten messages at most", func(t *testing.T, c consumer, q control) {
		q.send(make([]string, 12)...)
		if got := len(c.receive(time.Minute, 0)); got != 10 {
			t.Errorf("received %d messages, want 10", got)
		}
		if got := len(c.receive(time.Minute, 0)); got != 2 {
			t.Errorf("then received %d messages, want 2", got)
		}
	})

	story("a long poll waits for a message, and no longer than asked", func(t *testing.T, c consumer, q control) {
		start := time.Now()
		c.receiveNone(20 * time.Second)
		if took := time.Since(start); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("an empty long poll took %v", took)
		}
		time.AfterFunc(5*time.Second, func() { q.send("late") })
		start = time.Now()
		c.receiveOne(time.Minute, 20*time.Second)
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("the long poll returned after %v, want 5s", took)
		}
	})

	story("a long poll sees a message whose visibility ends meanwhile", func(t *testing.T, c consumer, q control) {
		q.send("body")
		c.receiveOne(3*time.Second, 0)
		c.receiveOne(time.Minute, 20*time.Second)
	})

	story("a long poll ends with its context", func(t *testing.T, c consumer, q control) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.api.ReceiveMessage(ctx, c.receiveInput(time.Minute, 20*time.Second)); err == nil {
			t.Error("no error from a receive whose context ended")
		}
	})

	story("visibility can be extended, and ended at once", func(t *testing.T, c consumer, q control) {
		q.send("body")
		m := c.receiveOne(20*time.Second, 0)
		time.Sleep(10 * time.Second)
		c.change(m, 40*time.Second, "")
		time.Sleep(39 * time.Second)
		c.receiveNone(0)
		c.change(m, 0, "")
		c.receiveOne(time.Minute, 0)
	})

	story("a delete with an old receipt succeeds and deletes nothing", func(t *testing.T, c consumer, q control) {
		ids := q.send("body")
		old := c.receiveOne(time.Second, 0)
		time.Sleep(2 * time.Second)
		newest := c.receiveOne(time.Minute, 0)
		c.remove(old)
		if diff := cmp.Diff(ids, q.left()); diff != "" {
			t.Errorf("left after a delete with the old receipt (-want +got):\n%s", diff)
		}
		c.remove(newest)
		if left := q.left(); len(left) != 0 {
			t.Errorf("left after a delete with the newest receipt: %v", left)
		}
	})

	story("visibility of a deleted message cannot be changed, by fault of the sender", func(t *testing.T, c consumer, q control) {
		q.send("body")
		m := c.receiveOne(time.Minute, 0)
		c.remove(m)
		c.change(m, time.Minute, "sender")
	})

	story("visibility of a visible message cannot be changed, by fault of the sender", func(t *testing.T, c consumer, q control) {
		q.send("body")
		m := c.receiveOne(time.Second, 0)
		time.Sleep(2 * time.Second)
		c.change(m, time.Minute, "sender")
	})

	story("no message stays invisible for more than twelve hours", func(t *testing.T, c consumer, q control) {
		q.send("body")
		m := c.receiveOne(time.Minute, 0)
		c.change(m, 11*time.Hour, "")
		time.Sleep(10 * time.Hour)
		c.change(m, 3*time.Hour, "sender")
		c.change(m, time.Hour, "")
	})

	story("entries of a batch fail one by one", func(t *testing.T, c consumer, q control) {
		q.send("a", "b")
		a := c.receive(time.Minute, 0)
		c.remove(a[0])
		ctx, cancel := c.context()
		defer cancel()
		out, err := c.api.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
			QueueUrl: aws.String(c.url),
			Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
				{Id: aws.String("gone"), ReceiptHandle: a[0].ReceiptHandle, VisibilityTimeout: 60},
				{Id: aws.String("here"), ReceiptHandle: a[1].ReceiptHandle, VisibilityTimeout: 60},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Failed) != 1 || aws.ToString(out.Failed[0].Id) != "gone" || len(out.Successful) != 1 || aws.ToString(out.Successful[0].Id) != "here" {
			t.Errorf("failed %v, successful %v", out.Failed, out.Successful)
		}
	})
}

// consumer uses a queue by its API alone.
type consumer struct {
	t   *testing.T
	api API
	url string
}

// context returns the context of one call.
func (c consumer) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.t.Context(), time.Minute)
}

func (c consumer) receiveInput(visibility, wait time.Duration) *sqs.ReceiveMessageInput {
	return &sqs.ReceiveMessageInput{
		QueueUrl:            aws.String(c.url),
		MaxNumberOfMessages: 10,
		VisibilityTimeout:   seconds(visibility),
		WaitTimeSeconds:     seconds(wait),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameApproximateReceiveCount,
		},
	}
}

func (c consumer) receive(visibility, wait time.Duration) []types.Message {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	out, err := c.api.ReceiveMessage(ctx, c.receiveInput(visibility, wait))
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return out.Messages
}

func (c consumer) receiveOne(visibility, wait time.Duration) types.Message {
	c.t.Helper()
	got := c.receive(visibility, wait)
	if len(got) != 1 {
		c.t.Fatalf("received %d messages, want 1", len(got))
	}
	return got[0]
}

func (c consumer) receiveNone(wait time.Duration) {
	c.t.Helper()
	if got := c.receive(time.Second, wait); len(got) != 0 {
		c.t.Fatalf("received %d messages, want none", len(got))
	}
}

func (c consumer) remove(m types.Message) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	out, err := c.api.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{
		QueueUrl: aws.String(c.url),
		Entries:  []types.DeleteMessageBatchRequestEntry{{Id: aws.String("0"), ReceiptHandle: m.ReceiptHandle}},
	})
	if err != nil || len(out.Failed) != 0 {
		c.t.Fatalf("delete: %v, %v", err, out)
	}
}

// change sets the visibility of a message. fault says whose fault the entry's
// failure must be; empty means that it must not fail.
func (c consumer) change(m types.Message, visibility time.Duration, fault string) {
	c.t.Helper()
	ctx, cancel := c.context()
	defer cancel()
	out, err := c.api.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: aws.String(c.url),
		Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: aws.String("0"), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds(visibility)},
		},
	})
	if err != nil {
		c.t.Fatalf("change visibility: %v", err)
	}
	got := ""
	for _, f := range out.Failed {
		got = "server"
		if f.SenderFault {
			got = "sender"
		}
	}
	if got != fault {
		c.t.Fatalf("change visibility to %v: fault %q, want %q (%v)", visibility, got, fault, out.Failed)
	}
}
