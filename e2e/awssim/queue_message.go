package awssim

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
)

type message struct {
	id, body  string
	sent      time.Time
	visibleAt time.Time
	// first and received are the times of the first and the last delivery.
	first, received time.Time
	receives        int
	gone            bool

	group, dedup, sequence string // of a FIFO queue
}

func (m *message) visible(now time.Time) bool { return !m.visibleAt.After(now) }

func (m *message) inFlight(now time.Time) bool {
	return !m.visible(now) && !m.received.IsZero()
}

func (q *queue) add(m *message) {
	q.messages[m.id] = m
	q.order = append(q.order, m)
}

// remove takes a message out; its place in the order goes when the queue is settled.
func (q *queue) remove(m *message) {
	m.gone = true
	delete(q.messages, m.id)
}

// settleQueue drops the messages whose retention has ended. A message in flight is dropped too, as
// in SQS.
func (s *Server) settleQueue(q *queue, now time.Time) {
	q.order = slices.DeleteFunc(q.order, func(m *message) bool {
		if end := m.sent.Add(q.retention); !m.gone && !end.After(now) {
			q.remove(m)
			s.effects.add(Effect{Time: end, Kind: MessageExpired, Queue: q.name, MessageID: m.id, ReceiveCount: m.receives})
		}
		return m.gone
	})
}

func (s *Server) send(q *queue, body string, delay time.Duration, now time.Time) *message {
	m := &message{id: s.uuid(), body: body, sent: now, visibleAt: now.Add(delay)}
	q.add(m)
	s.effects.add(Effect{Time: now, Kind: MessageSent, Queue: q.name, MessageID: m.id})
	s.wake()
	return m
}

// receive delivers up to most visible messages and hides them for a while. It begins with the
// oldest unless the queue is in disorder. A message that was delivered as often as the redrive
// policy allows goes to the dead-letter queue instead.
func (s *Server) receive(q *queue, most int, visibility time.Duration, now time.Time) []*message {
	s.settleQueue(q, now)
	order := q.order
	if q.disorder {
		order = slices.Clone(order)
		s.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	var delivered []*message
	blocked := q.blockedGroups(now)
	for _, m := range order {
		if len(delivered) == most {
			break
		}
		if blocked[m.group] || !m.visible(now) || s.deadLetter(q, m, now) {
			continue
		}
		m.receives++
		m.received = now
		if m.first.IsZero() {
			m.first = now
		}
		if !s.chance(q.duplicates) {
			m.visibleAt = now.Add(visibility)
		}
		s.effects.add(Effect{Time: now, Kind: MessageReceived, Queue: q.name, MessageID: m.id, ReceiveCount: m.receives})
		delivered = append(delivered, m)
	}
	return delivered
}

// deadLetter moves the message to the dead-letter queue if it is due, and reports whether it did.
// The message keeps its id, its age and its count: in SQS the retention of a message in a standard
// queue counts from its first sending.
func (s *Server) deadLetter(q *queue, m *message, now time.Time) bool {
	if q.redrive == nil || m.receives < int(q.redrive.MaxReceiveCount) {
		return false
	}
	i := strings.LastIndex(q.redrive.Target, ":")
	target, ok := s.queues[q.redrive.Target[i+1:]]
	if !ok {
		return false
	}
	q.remove(m)
	moved := *m
	moved.gone, moved.received, moved.visibleAt = false, time.Time{}, now
	target.add(&moved)
	s.effects.add(Effect{
		Time: now, Kind: MessageDeadLettered, Queue: target.name, MessageID: m.id,
		ReceiveCount: m.receives,
	})
	s.wake()
	return true
}

// nextVisible returns when the next hidden message can be received.
func (q *queue) nextVisible(now time.Time) (at time.Time, ok bool) {
	for _, m := range q.order {
		if !m.gone && !m.visible(now) && (!ok || m.visibleAt.Before(at)) {
			at, ok = m.visibleAt, true
		}
	}
	return at, ok
}

// delete removes the message of a receipt handle. An older handle than that of
// the last delivery succeeds and deletes nothing, as does a second deletion.
func (s *Server) delete(q *queue, handle string, now time.Time) (messageID string, problem *apiError) {
	id, receipt, problem := q.readHandle(handle)
	if problem != nil {
		return "", problem
	}
	m, ok := q.messages[id]
	if !ok || m.receives != receipt {
		return id, nil
	}
	s.effects.add(Effect{Time: now, Kind: MessageDeleted, Queue: q.name, MessageID: id, ReceiveCount: m.receives})
	if !s.chance(q.resurrections) {
		q.remove(m)
		q.deleted.add(m)
	}
	return id, nil
}

// changeVisibility hides a message that is in flight for a while from now on.
func (s *Server) changeVisibility(
	q *queue, handle string, seconds int, now time.Time,
) (messageID string, problem *apiError) {
	visibility := time.Duration(seconds) * time.Second
	if visibility < 0 || visibility > maxVisibility {
		return "", badRequest("InvalidParameterValue",
			"Value %d for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200.", seconds)
	}
	id, receipt, problem := q.readHandle(handle)
	if problem != nil {
		return "", problem
	}
	m, ok := q.messages[id]
	if !ok || m.receives != receipt {
		return id, badRequest("InvalidParameterValue",
			"Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "+
				"visibility timeout change.", handle)
	}
	if m.visible(now) {
		if s.opts.QuietStaleHandles {
			return id, nil
		}
		return id, badRequest("MessageNotInflight", "The message referred to isn't in flight.")
	}
	if now.Add(visibility).After(m.received.Add(maxVisibility)) {
		return id, badRequest("InvalidParameterValue",
			"Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond "+
				"the limit [43200 seconds]", seconds)
	}
	m.visibleAt = now.Add(visibility)
	s.wake()
	return id, nil
}

// handle returns the receipt handle of the message's last delivery. A handle contains all that is
// to be known about it, so that none need to be kept.
func (q *queue) handle(m *message) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s %s %d", q.arn, m.id, m.receives))
}

func (q *queue) readHandle(handle string) (messageID string, receipt int, problem *apiError) {
	text, err := base64.StdEncoding.DecodeString(handle)
	if err == nil {
		var arn string
		_, err = fmt.Sscanf(string(text), "%s %s %d", &arn, &messageID, &receipt)
		if err == nil && arn == q.arn {
			return messageID, receipt, nil
		}
	}
	return "", 0, &apiError{
		status: 404, code: "ReceiptHandleIsInvalid",
		message: fmt.Sprintf("The input receipt handle %q is not a valid receipt handle.", handle),
	}
}
