package awssim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// What FIFO queues have beyond standard ones: message groups, of which each is
// delivered in order and one receiver at a time, and deduplication.
//
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/FIFO-queues-understanding-logic.html
type fifo struct {
	byContent bool // ContentBasedDeduplication
	sent      map[string]*message
	sequence  int64
}

const (
	fifoSuffix = ".fifo"
	// dedupInterval is how long SQS remembers a deduplication id.
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/using-messagededuplicationid-property.html
	dedupInterval = 5 * time.Minute
)

var (
	queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)
	fifoName  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}\.fifo$`)
)

// checkName is the answer of CreateQueue to the name of a queue with these attributes.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
func checkName(name string, attributes map[string]string) *apiError {
	value, given := attributes["FifoQueue"]
	switch {
	case given && value != "true":
		return badRequest("InvalidAttributeName", "Unknown Attribute FifoQueue.")
	case given && !fifoName.MatchString(name):
		return badRequest("InvalidParameterValue",
			"The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo "+
				"suffix and be 1 to 80 in length.")
	case !given && !queueName.MatchString(name):
		return badRequest("InvalidParameterValue",
			"Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	return nil
}

// setFIFO sets an attribute of the type of the queue. The type cannot change, and standard queues
// have no such attributes.
func (q *queue) setFIFO(name, value string) (next *fifo, problem *apiError) {
	if q.fifo == nil || name == "FifoQueue" && value != "true" {
		return nil, badRequest("InvalidAttributeName", "Unknown Attribute %s.", name)
	}
	changed := *q.fifo
	if name == "ContentBasedDeduplication" {
		if value != "true" && value != "false" {
			return nil, badRequest("InvalidAttributeValue", "Invalid value for the parameter %s.", name)
		}
		changed.byContent = value == "true"
	}
	return &changed, nil
}

// checkFIFO is the answer of SendMessage to an entry that does not fit the queue's type.
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
func (q *queue) checkFIFO(entry sendEntry) *apiError {
	const wrongType = "Value %v for parameter %s is invalid. Reason: The request include parameter that is not valid " +
		"for this queue type"
	switch {
	case q.fifo == nil && entry.MessageDeduplicationID != "":
		return badRequest("InvalidParameterValue", wrongType, entry.MessageDeduplicationID, "MessageDeduplicationId")
	case q.fifo == nil:
		return nil
	case entry.MessageGroupID == "":
		return badRequest("MissingParameter", "The request must contain the parameter MessageGroupId.")
	case entry.MessageDeduplicationID == "" && !q.fifo.byContent:
		return badRequest("InvalidParameterValue",
			"The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")
	case entry.DelaySeconds != nil:
		return badRequest("InvalidParameterValue", wrongType, *entry.DelaySeconds, "DelaySeconds")
	}
	return nil
}

// sendFIFO adds a message to its group. If a message with the same deduplication id was sent
// within dedupInterval, it returns that one, as SQS does. Without an id the body is the id.
func (s *Server) sendFIFO(q *queue, entry sendEntry, delay time.Duration, now time.Time) *message {
	dedup := entry.MessageDeduplicationID
	if dedup == "" {
		sum := sha256.Sum256([]byte(entry.MessageBody))
		dedup = hex.EncodeToString(sum[:])
	}
	if before, ok := q.fifo.sent[dedup]; ok && now.Sub(before.sent) < dedupInterval {
		return before
	}
	m := s.send(q, entry.MessageBody, delay, now)
	q.fifo.sequence++
	m.group, m.dedup, m.sequence = entry.MessageGroupID, dedup, fmt.Sprintf("%020d", q.fifo.sequence)
	q.fifo.sent[dedup] = m
	return m
}

// blockedGroups returns the groups that have a message in flight. In standard queues no message
// waits for another.
func (q *queue) blockedGroups(now time.Time) map[string]bool {
	blocked := map[string]bool{}
	if q.fifo == nil {
		return blocked
	}
	for _, m := range q.order {
		if !m.gone && m.inFlight(now) {
			blocked[m.group] = true
		}
	}
	return blocked
}

// takesFrom reports whether EventBridge can send to the queue for a rule, whatever the policies
// say. To a FIFO queue it can only with a message group, and if the queue finds duplicates by
// content.
// https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_Target.html
func (q *queue) takesFrom(rule Rule) bool {
	return q.fifo == nil || rule.MessageGroup != "" && q.fifo.byContent
}

func isFIFO(arnOrName string) bool { return strings.HasSuffix(arnOrName, fifoSuffix) }
