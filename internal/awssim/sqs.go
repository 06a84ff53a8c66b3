package awssim

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
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
	if !queueName.MatchString(input.QueueName) {
		return nil, badRequest("InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	var problem *apiError
	s.locked(func(now time.Time) {
		if q, ok := s.queues[input.QueueName]; ok {
			current := q.allAttributes(now)
			for name, value := range input.Attributes {
				if current[name] != value {
					problem = badRequest("QueueNameExists", "A queue already exists with the same name and a different value for attribute %s", name)
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

var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

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
}

type sendResult struct {
	ID               string `json:"Id,omitempty"`
	MessageID        string `json:"MessageId"`
	MD5OfMessageBody string
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
		return sendResult{}, badRequest("InvalidParameterValue", "One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", q.maxSize)
	case !allowed(entry.MessageBody):
		return sendResult{}, badRequest("InvalidMessageContents", "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF")
	}
	delay := q.delay
	if entry.DelaySeconds != nil {
		if *entry.DelaySeconds < 0 || *entry.DelaySeconds > 900 {
			return sendResult{}, badRequest("InvalidParameterValue", "Value %d for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.", *entry.DelaySeconds)
		}
		delay = time.Duration(*entry.DelaySeconds) * time.Second
	}
	m := s.send(q, entry.MessageBody, delay, now)
	req.note("message", m.id)
	return sendResult{ID: entry.ID, MessageID: m.id, MD5OfMessageBody: md5Hex(m.body)}, nil
}

// allowed says whether SQS takes the text as a body: the characters of XML 1.0.
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

// batchFailure is an entry of a batch that failed by itself.
type batchFailure struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

type batchResult[T any] struct {
	Successful []T            `json:",omitempty"`
	Failed     []batchFailure `json:",omitempty"`
}

// batchID is the form of a batch entry's id.
var batchID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// runBatch checks what holds for all batches and does the entries one by one.
func runBatch[E, R any](req *request, action string, entries []E, id func(E) string, one func(E) (R, *apiError)) (batchResult[R], *apiError) {
	var result batchResult[R]
	req.entries = len(entries)
	switch {
	case len(entries) == 0:
		return result, badRequest("EmptyBatchRequest", "There should be at least one %sRequestEntry in the request.", action)
	case len(entries) > maxBatch:
		return result, badRequest("TooManyEntriesInBatchRequest", "Maximum number of entries per request are %d. You have sent %d.", maxBatch, len(entries))
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		switch id := id(entry); {
		case !batchID.MatchString(id):
			return result, badRequest("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")
		case seen[id]:
			return result, badRequest("BatchEntryIdsNotDistinct", "Id %s repeated.", id)
		default:
			seen[id] = true
		}
	}
	for _, entry := range entries {
		done, problem := one(entry)
		if problem != nil {
			result.Failed = append(result.Failed, batchFailure{
				ID: id(entry), Code: sqsQueryCode(problem.code), Message: problem.message, SenderFault: problem.senderFault(),
			})
			continue
		}
		result.Successful = append(result.Successful, done)
	}
	return result, nil
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
			return badRequest("BatchRequestTooLong", "Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxMessageSize, total)
		}
		output, problem = runBatch(req, "SendMessageBatch", input.Entries, func(e sendEntry) string { return e.ID },
			func(e sendEntry) (sendResult, *apiError) { return s.sendOne(req, q, e, now) })
		return problem
	})
	return output, problem
}

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

// receiveMessage waits, in a long poll, until there is a message: sent, visible
// again, or caused by something else that time brings.
func receiveMessage(ctx context.Context, s *Server, req *request) (any, *apiError) {
	var input receiveInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	most := valueOr(input.MaxNumberOfMessages, 1)
	if most < 1 || most > maxBatch {
		return nil, badRequest("InvalidParameterValue", "Value %d for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.", most)
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
			if problem := overrideSeconds("VisibilityTimeout", input.VisibilityTimeout, maxVisibility, &visibility); problem != nil {
				return problem
			}
			if problem := overrideSeconds("WaitTimeSeconds", input.WaitTimeSeconds, maxLongPoll, &longPoll); problem != nil {
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
	names := append(slices.Clone(input.AttributeNames), input.MessageSystemAttributeNames...)
	attributes := map[string]string{}
	for name, value := range all {
		if slices.Contains(names, name) || slices.Contains(names, "All") {
			attributes[name] = value
		}
	}
	return receivedMessage{MessageID: m.id, ReceiptHandle: q.handle(m), Body: m.body, MD5OfBody: md5Hex(m.body), Attributes: attributes}
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// overrideSeconds takes a parameter in the place of the queue's value.
func overrideSeconds(name string, value *int, limit time.Duration, field *time.Duration) *apiError {
	if value == nil {
		return nil
	}
	seconds := time.Duration(*value) * time.Second
	if seconds < 0 || seconds > limit {
		return badRequest("InvalidParameterValue", "Value %d for parameter %s is invalid. Reason: Must be >= 0 and <= %d, if provided.", *value, name, limit/time.Second)
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

type handleEntry struct {
	ID                string `json:"Id"`
	ReceiptHandle     string
	VisibilityTimeout *int
}

type handleResult struct {
	ID string `json:"Id"`
}

type handleInput struct {
	QueueURL string `json:"QueueUrl"`
	handleEntry
}

type handleBatchInput struct {
	QueueURL string `json:"QueueUrl"`
	Entries  []handleEntry
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

// onHandle does something with the message of one receipt handle.
func (s *Server) onHandle(req *request, one func(*request, *queue, handleEntry, time.Time) *apiError) (any, *apiError) {
	var input handleInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
		return one(req, q, input.handleEntry, now)
	})
	return struct{}{}, problem
}

// onHandles does the same with a batch of them.
func (s *Server) onHandles(req *request, one func(*request, *queue, handleEntry, time.Time) *apiError) (any, *apiError) {
	var input handleBatchInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var output batchResult[handleResult]
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) (problem *apiError) {
		output, problem = runBatch(req, req.action, input.Entries, func(e handleEntry) string { return e.ID },
			func(e handleEntry) (handleResult, *apiError) {
				return handleResult{ID: e.ID}, one(req, q, e, now)
			})
		return problem
	})
	return output, problem
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
			return &apiError{status: http.StatusForbidden, code: "PurgeQueueInProgress", message: "Only one PurgeQueue operation on " + q.name + " is allowed every 60 seconds."}
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
