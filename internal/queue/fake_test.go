package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

// fakeQueue is a standard SQS queue in memory with the semantics that matter
// here; testContract holds it to them.
type fakeQueue struct {
	mu       sync.Mutex
	arrived  chan struct{} // closed and renewed when a message may have become visible
	messages []*fakeMessage
	sent     int
	receipts int
	calls    []fakeCall

	latency    map[string]time.Duration // by call; "" is every other
	attributes map[string]string
	// fail makes a whole call fail, failEntry one entry of a batch; they are
	// called with mu held.
	fail      func(call string) error
	failEntry func(call, messageID string) *types.BatchResultErrorEntry
}

type fakeMessage struct {
	id, body string
	sent     time.Time
	visible  time.Time
	received time.Time // with the newest receipt
	receives int
	receipts []string
}

type fakeCall struct {
	name    string
	at      time.Time
	entries int
	wait    time.Duration
}

// maxInvisible is how long after a receive a message can be kept invisible.
const maxInvisible = 12 * time.Hour

func newFakeQueue() *fakeQueue {
	return &fakeQueue{arrived: make(chan struct{}), attributes: map[string]string{"VisibilityTimeout": "30"}}
}

func (q *fakeQueue) url() string {
	return "https://sqs.eu-central-1.amazonaws.com/123456789012/notices"
}

func (q *fakeQueue) send(bodies ...string) (ids []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, body := range bodies {
		q.sent++
		m := &fakeMessage{id: fmt.Sprintf("message-%d", q.sent), body: body, sent: time.Now(), visible: time.Now()}
		q.messages = append(q.messages, m)
		ids = append(ids, m.id)
	}
	q.announce()
	return ids
}

// expire removes a message as the end of its retention does.
func (q *fakeQueue) expire(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.messages = slices.DeleteFunc(q.messages, func(m *fakeMessage) bool { return m.id == id })
}

// redeliver makes a message visible, as SQS may do at any time.
func (q *fakeQueue) redeliver(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.messages {
		if m.id == id {
			m.visible = time.Now()
		}
	}
	q.announce()
}

func (q *fakeQueue) left() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var ids []string
	for _, m := range q.messages {
		ids = append(ids, m.id)
	}
	return ids
}

// hidden returns for how long a message is still hidden.
func (q *fakeQueue) hidden(id string) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.messages {
		if m.id == id {
			return time.Until(m.visible)
		}
	}
	return 0
}

// made returns the calls of one kind since the last forget.
func (q *fakeQueue) made(call string) (made []fakeCall) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range q.calls {
		if c.name == call {
			made = append(made, c)
		}
	}
	return made
}

// counts returns how many calls of each kind were made since the last forget.
func (q *fakeQueue) counts() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	counts := map[string]int{}
	for _, c := range q.calls {
		counts[c.name]++
	}
	return counts
}

func (q *fakeQueue) forget() { q.set(func() { q.calls = nil }) }

func (q *fakeQueue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

func (q *fakeQueue) announce() {
	close(q.arrived)
	q.arrived = make(chan struct{})
}

// call records a call, takes its time, and fails if it is to fail.
func (q *fakeQueue) call(ctx context.Context, name string, entries int, wait time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, bounded := ctx.Deadline(); !bounded {
		panic(name + " without a deadline")
	}
	q.mu.Lock()
	q.calls = append(q.calls, fakeCall{name, time.Now(), entries, wait})
	latency, ok := q.latency[name]
	if !ok {
		latency = q.latency[""]
	}
	var err error
	if q.fail != nil {
		err = q.fail(name)
	}
	q.mu.Unlock()
	if errors.Is(err, errHang) {
		<-ctx.Done()
		return ctx.Err()
	}
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (q *fakeQueue) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	wait := time.Duration(in.WaitTimeSeconds) * time.Second
	if err := q.call(ctx, "ReceiveMessage", int(in.MaxNumberOfMessages), wait); err != nil {
		return nil, err
	}
	until := time.Now().Add(wait)
	for {
		q.mu.Lock()
		out, next, arrived := q.take(in), q.next(), q.arrived
		q.mu.Unlock()
		now := time.Now()
		if len(out) > 0 || !now.Before(until) {
			return &sqs.ReceiveMessageOutput{Messages: out}, nil
		}
		if next.IsZero() || next.After(until) {
			next = until
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-arrived:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// take hides and returns what is visible.
func (q *fakeQueue) take(in *sqs.ReceiveMessageInput) (out []types.Message) {
	now := time.Now()
	for _, m := range q.messages {
		if len(out) == int(in.MaxNumberOfMessages) {
			break
		}
		if m.visible.After(now) {
			continue
		}
		q.receipts++
		m.receives++
		m.receipts = append(m.receipts, "receipt-"+strconv.Itoa(q.receipts))
		m.received = now
		m.visible = now.Add(time.Duration(in.VisibilityTimeout) * time.Second)
		attributes := map[string]string{}
		for _, name := range in.MessageSystemAttributeNames {
			switch name {
			case types.MessageSystemAttributeNameSentTimestamp:
				attributes[string(name)] = strconv.FormatInt(m.sent.UnixMilli(), 10)
			case types.MessageSystemAttributeNameApproximateReceiveCount:
				attributes[string(name)] = strconv.Itoa(m.receives)
			}
		}
		out = append(out, types.Message{
			MessageId:     aws.String(m.id),
			Body:          aws.String(m.body),
			ReceiptHandle: aws.String(m.receipts[len(m.receipts)-1]),
			Attributes:    attributes,
		})
	}
	return out
}

// next is when a hidden message becomes visible; zero if there is none.
func (q *fakeQueue) next() (next time.Time) {
	for _, m := range q.messages {
		if next.IsZero() || m.visible.Before(next) {
			next = m.visible
		}
	}
	return next
}

func (q *fakeQueue) DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	if err := q.call(ctx, "DeleteMessageBatch", len(in.Entries), 0); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	out := &sqs.DeleteMessageBatchOutput{}
	for _, e := range in.Entries {
		m, newest := q.find(*e.ReceiptHandle)
		if failed := q.entryFails("DeleteMessageBatch", m, *e.Id); failed != nil {
			out.Failed = append(out.Failed, *failed)
			continue
		}
		if newest { // with an older receipt SQS says yes and may do nothing
			q.messages = slices.DeleteFunc(q.messages, func(other *fakeMessage) bool { return other == m })
		}
		out.Successful = append(out.Successful, types.DeleteMessageBatchResultEntry{Id: e.Id})
	}
	return out, nil
}

func (q *fakeQueue) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	if err := q.call(ctx, "ChangeMessageVisibilityBatch", len(in.Entries), 0); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	out := &sqs.ChangeMessageVisibilityBatchOutput{}
	for _, e := range in.Entries {
		refuse := func(code string) {
			out.Failed = append(out.Failed, types.BatchResultErrorEntry{Id: e.Id, Code: aws.String(code), SenderFault: true})
		}
		visible := now.Add(time.Duration(e.VisibilityTimeout) * time.Second)
		m, newest := q.find(*e.ReceiptHandle)
		if failed := q.entryFails("ChangeMessageVisibilityBatch", m, *e.Id); failed != nil {
			out.Failed = append(out.Failed, *failed)
			continue
		}
		switch {
		case m == nil:
			refuse("InvalidParameterValue")
			continue
		case !m.visible.After(now):
			refuse("AWS.SimpleQueueService.MessageNotInflight")
			continue
		case visible.After(m.received.Add(maxInvisible)):
			refuse("InvalidParameterValue")
			continue
		case newest:
			m.visible = visible
		}
		out.Successful = append(out.Successful, types.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
	}
	q.announce()
	return out, nil
}

func (q *fakeQueue) GetQueueAttributes(ctx context.Context, _ *sqs.GetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	if err := q.call(ctx, "GetQueueAttributes", 0, 0); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return &sqs.GetQueueAttributesOutput{Attributes: maps.Clone(q.attributes)}, nil
}

// find returns the message that was delivered with a receipt, and whether that
// was its newest.
func (q *fakeQueue) find(receipt string) (m *fakeMessage, newest bool) {
	for _, m := range q.messages {
		if i := slices.Index(m.receipts, receipt); i >= 0 {
			return m, i == len(m.receipts)-1
		}
	}
	return nil, false
}

func (q *fakeQueue) entryFails(call string, m *fakeMessage, entry string) *types.BatchResultErrorEntry {
	if q.failEntry == nil || m == nil {
		return nil
	}
	failed := q.failEntry(call, m.id)
	if failed != nil {
		failed.Id = aws.String(entry)
	}
	return failed
}

// errHang makes a call of the fake give no answer until its context ends.
var errHang = fmt.Errorf("no answer")

var errAccessDenied = &smithy.GenericAPIError{Code: "AccessDenied", Message: "not authorized", Fault: smithy.FaultClient}

// failing makes one kind of call fail.
func failing(call string, err error) func(string) error {
	return func(name string) error {
		if name == call {
			return err
		}
		return nil
	}
}

// lateQueue is a queue to which a message comes at the moment in which the
// context of a receive ends.
type lateQueue struct{ *fakeQueue }

func (q lateQueue) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	out, err := q.fakeQueue.ReceiveMessage(ctx, in, opts...)
	if err == nil {
		return out, nil
	}
	q.send("late")
	q.mu.Lock()
	defer q.mu.Unlock()
	return &sqs.ReceiveMessageOutput{Messages: q.take(in)}, nil
}

// control is what the contract needs of a queue besides the API.
type control interface {
	// url is the queue's.
	url() string
	// send puts messages into the queue and returns their ids.
	send(bodies ...string) []string
	// left returns the ids of all messages that are not deleted, hidden or not.
	left() []string
}

func TestFakeQueueKeepsTheContract(t *testing.T) {
	testContract(t, func(*testing.T) (API, control) {
		q := newFakeQueue()
		return q, q
	})
}
