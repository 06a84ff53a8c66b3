package awssim

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"
)

type receiveInput struct {
	QueueURL                    string `json:"QueueUrl"`
	MaxNumberOfMessages         *int
	VisibilityTimeout           *int
	WaitTimeSeconds             *int
	AttributeNames              []string // the older name of the next
	MessageSystemAttributeNames []string
}

type receivedMessage struct {
	MessageID     string `json:"MessageId"`
	ReceiptHandle string
	Body          string
	MD5OfBody     string
	Attributes    map[string]string `json:",omitempty"`
}

type receiveOutput struct {
	Messages []receivedMessage `json:",omitempty"`
}

// receiveMessage answers when there is a message, or when the time of a long poll is over. A
// message may be sent meanwhile, become visible again, or be caused by something else that is due.
func receiveMessage(ctx context.Context, s *Server, req *request) (any, *apiError) {
	var input receiveInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	most := valueOr(input.MaxNumberOfMessages, 1)
	if most < 1 || most > maxBatch {
		return nil, badRequest("InvalidParameterValue",
			"Value %d for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.", most)
	}
	start := time.Now()
	for {
		var (
			output   receiveOutput
			changed  <-chan struct{}
			deadline time.Time
			look     time.Time
		)
		problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
			visibility, longPoll := q.visibility, q.longPoll
			problem := cmp.Or(
				overrideSeconds("VisibilityTimeout", input.VisibilityTimeout, maxVisibility, &visibility),
				overrideSeconds("WaitTimeSeconds", input.WaitTimeSeconds, maxLongPoll, &longPoll),
			)
			if problem != nil {
				return problem
			}
			if ctx.Err() != nil {
				return nil // nobody would see the message
			}
			for _, m := range s.receive(q, most, visibility, now) {
				req.note("message", m.id)
				output.Messages = append(output.Messages, q.received(m, s.opts.Account, input))
			}
			changed, deadline = s.changed, start.Add(longPoll)
			look = s.nextLook(q, deadline, now)
			return nil
		})
		req.entries = len(output.Messages)
		if problem != nil || req.entries > 0 || ctx.Err() != nil || !time.Now().Before(deadline) {
			return output, problem
		}
		timer := time.NewTimer(time.Until(look))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		case <-s.closed:
			timer.Stop()
			return output, nil
		}
		timer.Stop()
	}
}

// nextLook returns when a long poll should look again if nothing wakes it.
func (s *Server) nextLook(q *queue, deadline, now time.Time) time.Time {
	look := deadline
	if at, ok := q.nextVisible(now); ok && at.Before(look) {
		look = at
	}
	if at, apply := s.nextEvent(); apply != nil && at.Before(look) {
		look = at
	}
	return look
}

func (q *queue) received(m *message, sender string, input receiveInput) receivedMessage {
	all := map[string]string{
		"SenderId":                         sender,
		"SentTimestamp":                    millis(m.sent),
		"ApproximateReceiveCount":          strconv.Itoa(m.receives),
		"ApproximateFirstReceiveTimestamp": millis(m.first),
	}
	if q.fifo != nil {
		all["MessageGroupId"], all["MessageDeduplicationId"], all["SequenceNumber"] = m.group, m.dedup, m.sequence
	}
	names := append(slices.Clone(input.AttributeNames), input.MessageSystemAttributeNames...)
	attributes := map[string]string{}
	for name, value := range all {
		if slices.Contains(names, name) || slices.Contains(names, "All") {
			attributes[name] = value
		}
	}
	return receivedMessage{
		MessageID: m.id, ReceiptHandle: q.handle(m), Body: m.body, MD5OfBody: md5Hex(m.body),
		Attributes: attributes,
	}
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// overrideSeconds replaces the queue's value by a parameter.
func overrideSeconds(name string, value *int, limit time.Duration, field *time.Duration) *apiError {
	if value == nil {
		return nil
	}
	seconds := time.Duration(*value) * time.Second
	if seconds < 0 || seconds > limit {
		return badRequest("InvalidParameterValue",
			"Value %d for parameter %s is invalid. Reason: Must be >= 0 and <= %d, if provided.", *value, name,
			limit/time.Second)
	}
	*field = seconds
	return nil
}

func valueOr[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}
