package awssim

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

var sqsOperations = map[string]operation{
	"CreateQueue":                  createQueue,
	"GetQueueUrl":                  getQueueURL,
	"GetQueueAttributes":           getQueueAttributes,
	"SetQueueAttributes":           setQueueAttributes,
	"SendMessage":                  sendMessage,
	"SendMessageBatch":             sendMessageBatch,
	"ReceiveMessage":               receiveMessage,
	"DeleteMessage":                deleteMessage,
	"DeleteMessageBatch":           deleteMessageBatch,
	"ChangeMessageVisibility":      changeMessageVisibility,
	"ChangeMessageVisibilityBatch": changeMessageVisibilityBatch,
	"PurgeQueue":                   purgeQueue,
}

// onQueue runs f with the queue that a call names, settled.
func (s *Server) onQueue(req *request, queueURL string, f func(q *queue, now time.Time) *apiError) (problem *apiError) {
	s.locked(func(now time.Time) {
		q, missing := s.queueNamed(queueURL)
		if missing != nil {
			req.show("queue", queueURL)
			problem = missing
			return
		}
		req.show("queue", q.name)
		s.settleQueue(q, now)
		problem = f(q, now)
	})
	return problem
}

func createQueue(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueName  string
		Attributes map[string]string
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	req.note("queue", input.QueueName)
	if problem := checkName(input.QueueName, input.Attributes); problem != nil {
		return nil, problem
	}
	var problem *apiError
	s.locked(func(now time.Time) {
		if q, ok := s.queues[input.QueueName]; ok {
			current := q.allAttributes(now)
			for name, value := range input.Attributes {
				if current[name] != value {
					problem = badRequest("QueueNameExists",
						"A queue already exists with the same name and a different value for attribute %s", name)
				}
			}
			return
		}
		q := s.newQueue(input.QueueName, now)
		if problem = q.set(input.Attributes); problem == nil {
			s.queues[q.name] = q
		}
	})
	return map[string]string{"QueueUrl": s.urlFor(req, input.QueueName)}, problem
}

// urlFor makes the URL of a queue from the host that the client used.
func (s *Server) urlFor(req *request, name string) string {
	return "http://" + req.host + "/" + s.opts.Account + "/" + name
}

func getQueueURL(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct{ QueueName string }
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	problem := s.onQueue(req, input.QueueName, func(*queue, time.Time) *apiError { return nil })
	return map[string]string{"QueueUrl": s.urlFor(req, input.QueueName)}, problem
}

func getQueueAttributes(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueURL       string `json:"QueueUrl"`
		AttributeNames []string
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	attributes := map[string]string{}
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
		all := q.allAttributes(now)
		for _, name := range input.AttributeNames {
			if name == "All" {
				attributes = all
				return nil
			}
			if value, ok := all[name]; ok {
				attributes[name] = value
			}
		}
		return nil
	})
	return map[string]any{"Attributes": attributes}, problem
}

func setQueueAttributes(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueURL   string `json:"QueueUrl"`
		Attributes map[string]string
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
		if problem := q.set(input.Attributes); problem != nil {
			return problem
		}
		q.modified = now
		s.wake()
		return nil
	})
	return struct{}{}, problem
}

type sendEntry struct {
	ID           string `json:"Id"`
	MessageBody  string
	DelaySeconds *int

	MessageGroupID         string `json:"MessageGroupId"`
	MessageDeduplicationID string `json:"MessageDeduplicationId"`
}

type sendResult struct {
	ID               string `json:"Id,omitempty"`
	MessageID        string `json:"MessageId"`
	MD5OfMessageBody string
	SequenceNumber   string `json:",omitempty"`
}

func sendMessage(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueURL string `json:"QueueUrl"`
		sendEntry
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var output sendResult
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) (problem *apiError) {
		output, problem = s.sendOne(req, q, input.sendEntry, now)
		return problem
	})
	return output, problem
}

func (s *Server) sendOne(req *request, q *queue, entry sendEntry, now time.Time) (sendResult, *apiError) {
	switch {
	case entry.MessageBody == "":
		return sendResult{}, badRequest("MissingParameter", "The request must contain the parameter MessageBody.")
	case len(entry.MessageBody) > q.maxSize:
		return sendResult{}, badRequest("InvalidParameterValue",
			"One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", q.maxSize)
	case !allowed(entry.MessageBody):
		return sendResult{}, badRequest("InvalidMessageContents",
			"Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "+
				"#x10000 to #x10FFFF")
	}
	if problem := q.checkFIFO(entry); problem != nil {
		return sendResult{}, problem
	}
	delay := q.delay
	if entry.DelaySeconds != nil {
		if *entry.DelaySeconds < 0 || *entry.DelaySeconds > 900 {
			return sendResult{}, badRequest("InvalidParameterValue",
				"Value %d for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
				*entry.DelaySeconds)
		}
		delay = time.Duration(*entry.DelaySeconds) * time.Second
	}
	var m *message
	if q.fifo != nil {
		m = s.sendFIFO(q, entry, delay, now)
	} else {
		m = s.send(q, entry.MessageBody, delay, now)
	}
	req.note("message", m.id)
	return sendResult{
		ID: entry.ID, MessageID: m.id, MD5OfMessageBody: md5Hex(entry.MessageBody),
		SequenceNumber: m.sequence,
	}, nil
}

// allowed reports whether SQS accepts the text as a body: it may have the characters of XML 1.0.
func allowed(body string) bool {
	for _, r := range body {
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff {
			return false
		}
	}
	return utf8.ValidString(body)
}

func md5Hex(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

func sendMessageBatch(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueURL string `json:"QueueUrl"`
		Entries  []sendEntry
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var output batchResult[sendResult]
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) (problem *apiError) {
		total := 0
		for _, entry := range input.Entries {
			total += len(entry.MessageBody)
		}
		if total > maxMessageSize {
			return badRequest("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.",
				maxMessageSize, total)
		}
		output, problem = runBatch(req, "SendMessageBatch", input.Entries, func(e sendEntry) string { return e.ID },
			func(e sendEntry) (sendResult, *apiError) { return s.sendOne(req, q, e, now) })
		return problem
	})
	return output, problem
}

func deleteMessage(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.onHandle(req, s.deleteOne)
}

func deleteMessageBatch(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.onHandles(req, s.deleteOne)
}

func changeMessageVisibility(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.onHandle(req, s.changeOne)
}

func changeMessageVisibilityBatch(_ context.Context, s *Server, req *request) (any, *apiError) {
	return s.onHandles(req, s.changeOne)
}

func (s *Server) deleteOne(req *request, q *queue, entry handleEntry, now time.Time) *apiError {
	id, problem := s.delete(q, entry.ReceiptHandle, now)
	req.note("message", id)
	return problem
}

func (s *Server) changeOne(req *request, q *queue, entry handleEntry, now time.Time) *apiError {
	if entry.VisibilityTimeout == nil {
		return badRequest("MissingParameter", "The request must contain the parameter VisibilityTimeout.")
	}
	id, problem := s.changeVisibility(q, entry.ReceiptHandle, *entry.VisibilityTimeout, now)
	req.note("message", id)
	req.note("timeout", strconv.Itoa(*entry.VisibilityTimeout))
	return problem
}

func purgeQueue(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		QueueURL string `json:"QueueUrl"`
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
		if !q.purged.IsZero() && now.Sub(q.purged) < time.Minute {
			return &apiError{
				status: http.StatusForbidden, code: "PurgeQueueInProgress",
				message: "Only one PurgeQueue operation on " + q.name + " is allowed every 60 seconds.",
			}
		}
		q.purged = now
		for _, m := range q.order {
			q.remove(m)
			s.effects.add(Effect{Time: now, Kind: MessageDeleted, Queue: q.name, MessageID: m.id, ReceiveCount: m.receives})
		}
		return nil
	})
	return struct{}{}, problem
}

// sqsQueryCodes are the codes of the Query protocol that SQS still sends beside
// those of its model; the SDK gives these to callers.
var sqsQueryCodes = map[string]string{
	"BatchEntryIdsNotDistinct":     "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
	"BatchRequestTooLong":          "AWS.SimpleQueueService.BatchRequestTooLong",
	"EmptyBatchRequest":            "AWS.SimpleQueueService.EmptyBatchRequest",
	"InvalidBatchEntryId":          "AWS.SimpleQueueService.InvalidBatchEntryId",
	"MessageNotInflight":           "AWS.SimpleQueueService.MessageNotInflight",
	"PurgeQueueInProgress":         "AWS.SimpleQueueService.PurgeQueueInProgress",
	"QueueDoesNotExist":            "AWS.SimpleQueueService.NonExistentQueue",
	"QueueNameExists":              "QueueAlreadyExists",
	"TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
}

func sqsQueryCode(code string) string {
	if query, ok := sqsQueryCodes[code]; ok {
		return query
	}
	return code
}

// sqsErrorResponse encodes an error as the JSON protocol does with @awsQueryCompatible.
func sqsErrorResponse(problem *apiError) response {
	answer := jsonResponse(problem.status, map[string]string{
		"__type":  "com.amazonaws.sqs#" + problem.code,
		"message": problem.message,
	})
	fault := "Receiver"
	if problem.senderFault() {
		fault = "Sender"
	}
	answer.header["X-Amzn-Query-Error"] = sqsQueryCode(problem.code) + ";" + fault
	return answer
}
