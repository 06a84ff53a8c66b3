package awssim

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SQS limits, from the Amazon SQS quotas and API reference.
const (
	maxVisibility  = 12 * time.Hour
	maxLongPoll    = 20 * time.Second
	maxBatch       = 10
	maxMessageSize = 1 << 20
)

// Queue is a standard queue to create.
type Queue struct {
	Name string `json:"name"`
	// Attributes are those of CreateQueue: VisibilityTimeout (default 30),
	// MessageRetentionPeriod (345600), DelaySeconds (0),
	// ReceiveMessageWaitTimeSeconds (0), MaximumMessageSize, RedrivePolicy.
	// Others are kept and shown, without effect.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Duplicates is the share of deliveries after which the message stays
	// visible, so that it is delivered again at once.
	Duplicates float64 `json:"duplicates,omitempty"`
	// Resurrections is the share of deletions that SQS forgets: the message
	// comes again when its visibility timeout is over.
	Resurrections float64 `json:"resurrections,omitempty"`
	// Disorder delivers messages in any order, instead of the oldest first.
	Disorder bool `json:"disorder,omitempty"`
}

// Message is a message as it stands in a queue.
type Message struct {
	ID           string    `json:"id"`
	Body         string    `json:"body"`
	Sent         time.Time `json:"sent"`
	ReceiveCount int       `json:"receiveCount"`
	// VisibleAt is when the message can be received; a time that has passed means now.
	VisibleAt time.Time `json:"visibleAt"`
	// InFlight says that a receiver holds the message.
	InFlight bool `json:"inFlight"`
}

// CreateQueue adds a queue or, if there is one of that name, changes its
// attributes and chances and keeps its messages.
func (s *Server) CreateQueue(config Queue) error {
	if config.Name == "" {
		return fmt.Errorf("create queue: no name")
	}
	var problem *apiError
	s.locked(func(now time.Time) {
		q, ok := s.queues[config.Name]
		if !ok {
			q = s.newQueue(config.Name, now)
		}
		if problem = q.set(config.Attributes); problem != nil {
			return
		}
		q.duplicates, q.resurrections, q.disorder, q.modified = config.Duplicates, config.Resurrections, config.Disorder, now
		s.queues[config.Name] = q
		s.wake()
	})
	if problem != nil {
		return fmt.Errorf("create queue %s: %s: %s", config.Name, problem.code, problem.message)
	}
	return nil
}

// Queues returns the queues, ordered by name, as CreateQueue would take them.
func (s *Server) Queues() []Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := []Queue{}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		q := s.queues[name]
		queues = append(queues, Queue{
			Name: name, Attributes: maps.Clone(q.attributes),
			Duplicates: q.duplicates, Resurrections: q.resurrections, Disorder: q.disorder,
		})
	}
	return queues
}

// QueueURL returns the URL of a queue at the endpoint of the Server.
func (s *Server) QueueURL(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoint + "/" + s.opts.Account + "/" + name
}

// QueueARN returns the ARN that a queue of this name has, or would have.
func (s *Server) QueueARN(name string) string { return s.arn("sqs", name) }

// SendMessage puts a body of any kind into a queue, as a service of AWS does.
// The queue's size limit does not hold, nor does SQS's choice of characters; but
// what is not UTF-8 cannot travel, and is replaced.
func (s *Server) SendMessage(queue, body string) (messageID string, err error) {
	err = fmt.Errorf("send message: no queue %q", queue)
	s.locked(func(now time.Time) {
		if q, ok := s.queues[queue]; ok {
			messageID, err = s.send(q, strings.ToValidUTF8(body, "\uFFFD"), q.delay, now).id, nil
		}
	})
	return messageID, err
}

// Messages returns what is in a queue, oldest first; nothing for an unknown one.
func (s *Server) Messages(queue string) []Message {
	messages := []Message{}
	s.locked(func(now time.Time) {
		q, ok := s.queues[queue]
		if !ok {
			return
		}
		s.settleQueue(q, now)
		for _, m := range q.order {
			messages = append(messages, Message{
				ID: m.id, Body: m.body, Sent: m.sent, ReceiveCount: m.receives,
				VisibleAt: m.visibleAt, InFlight: m.inFlight(now),
			})
		}
	})
	return messages
}

// Redeliver makes a message visible at once, be it in flight or among the last
// 100 deleted ones: at-least-once delivery at its worst.
func (s *Server) Redeliver(queue, messageID string) error {
	err := fmt.Errorf("redeliver %s: not in queue %q, nor lately deleted from it", messageID, queue)
	s.locked(func(now time.Time) {
		q, ok := s.queues[queue]
		if !ok {
			return
		}
		s.settleQueue(q, now)
		m, ok := q.messages[messageID]
		if !ok {
			i := slices.IndexFunc(q.deleted.values, func(m *message) bool { return m.id == messageID })
			if i < 0 {
				return
			}
			m = q.deleted.values[i]
			m.gone, m.sent = false, now // a deleted message would outlive its retention otherwise
			q.add(m)
		}
		m.visibleAt = now
		s.effects.add(Effect{Time: now, Kind: MessageRedelivered, Queue: queue, MessageID: messageID})
		s.wake()
		err = nil
	})
	return err
}

// queue is a standard queue at work.
type queue struct {
	name       string
	arn        string
	created    time.Time
	modified   time.Time
	purged     time.Time
	attributes map[string]string // as they were set

	visibility time.Duration
	retention  time.Duration
	delay      time.Duration
	longPoll   time.Duration
	maxSize    int
	redrive    *redrivePolicy

	duplicates    float64
	resurrections float64
	disorder      bool

	messages map[string]*message
	order    []*message // by age; holds the deleted ones until the queue is settled
	deleted  ring[*message]
}

type redrivePolicy struct {
	Target          string  `json:"deadLetterTargetArn"`
	MaxReceiveCount flexInt `json:"maxReceiveCount"`
}

// flexInt is a number that tools write with and without quotes.
type flexInt int

func (n *flexInt) UnmarshalJSON(text []byte) error {
	value, err := strconv.Atoi(strings.Trim(string(text), `"`))
	*n = flexInt(value)
	return err
}

type message struct {
	id, body  string
	sent      time.Time
	visibleAt time.Time
	// first and received are the times of the first and the last delivery.
	first, received time.Time
	receives        int
	gone            bool
}

func (m *message) visible(now time.Time) bool { return !m.visibleAt.After(now) }

func (m *message) inFlight(now time.Time) bool {
	return !m.visible(now) && !m.received.IsZero()
}

func (s *Server) newQueue(name string, now time.Time) *queue {
	return &queue{
		name: name, arn: s.arn("sqs", name), created: now, modified: now,
		attributes: map[string]string{},
		visibility: 30 * time.Second, retention: 4 * 24 * time.Hour, maxSize: maxMessageSize,
		messages: map[string]*message{}, deleted: ring[*message]{size: 100},
	}
}

// set changes attributes: all of them, or none if there is a problem.
func (q *queue) set(attributes map[string]string) *apiError {
	next := *q
	seconds := map[string]struct {
		field    *time.Duration
		min, max int
	}{
		"VisibilityTimeout":             {&next.visibility, 0, 43200},
		"MessageRetentionPeriod":        {&next.retention, 1, 1209600}, // SQS wants 60 at least; tests want less
		"DelaySeconds":                  {&next.delay, 0, 900},
		"ReceiveMessageWaitTimeSeconds": {&next.longPoll, 0, 20},
	}
	for name, value := range attributes {
		invalid := badRequest("InvalidAttributeValue", "Invalid value for the parameter %s.", name)
		if rule, ok := seconds[name]; ok {
			n, err := strconv.Atoi(value)
			if err != nil || n < rule.min || n > rule.max {
				return invalid
			}
			*rule.field = time.Duration(n) * time.Second
			continue
		}
		switch name {
		case "MaximumMessageSize":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1024 || n > maxMessageSize {
				return invalid
			}
			next.maxSize = n
		case "RedrivePolicy":
			next.redrive = nil
			if value == "" {
				continue
			}
			var policy redrivePolicy
			if err := json.Unmarshal([]byte(value), &policy); err != nil || policy.MaxReceiveCount < 1 || policy.MaxReceiveCount > 1000 {
				return badRequest("InvalidParameterValue", "Value %s for parameter RedrivePolicy is invalid. Reason: Invalid value for maxReceiveCount.", value)
			}
			if !strings.HasPrefix(policy.Target, "arn:") {
				return badRequest("InvalidParameterValue", "Value %s for parameter RedrivePolicy is invalid. Reason: Invalid value for deadLetterTargetArn.", value)
			}
			next.redrive = &policy
		}
	}
	next.attributes = maps.Clone(q.attributes)
	maps.Copy(next.attributes, attributes)
	*q = next
	return nil
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

// settleQueue drops what retention ended until now. A message in flight is not
// spared, as in SQS.
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

// receive delivers up to most visible messages, oldest first unless the queue is
// in disorder, and hides them for a while. A message that was delivered as often as the redrive policy
// allows goes to the dead-letter queue in its stead.
func (s *Server) receive(q *queue, most int, visibility time.Duration, now time.Time) []*message {
	s.settleQueue(q, now)
	order := q.order
	if q.disorder {
		order = slices.Clone(order)
		s.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	var delivered []*message
	for _, m := range order {
		if len(delivered) == most {
			break
		}
		if !m.visible(now) || s.deadLetter(q, m, now) {
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

// deadLetter moves the message if it is due. It keeps its id, its age and its
// count: in SQS the retention of a standard queue counts from the first sending.
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
	s.effects.add(Effect{Time: now, Kind: MessageDeadLettered, Queue: target.name, MessageID: m.id, ReceiveCount: m.receives})
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
func (s *Server) changeVisibility(q *queue, handle string, seconds int, now time.Time) (messageID string, problem *apiError) {
	visibility := time.Duration(seconds) * time.Second
	if visibility < 0 || visibility > maxVisibility {
		return "", badRequest("InvalidParameterValue", "Value %d for parameter VisibilityTimeout is invalid. Reason: Must be between 0 and 43200.", seconds)
	}
	id, receipt, problem := q.readHandle(handle)
	if problem != nil {
		return "", problem
	}
	m, ok := q.messages[id]
	if !ok || m.receives != receipt {
		return id, badRequest("InvalidParameterValue", "Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", handle)
	}
	if m.visible(now) {
		if s.opts.QuietStaleHandles {
			return id, nil
		}
		return id, badRequest("MessageNotInflight", "The message referred to isn't in flight.")
	}
	if now.Add(visibility).After(m.received.Add(maxVisibility)) {
		return id, badRequest("InvalidParameterValue", "Value %d for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]", seconds)
	}
	m.visibleAt = now.Add(visibility)
	s.wake()
	return id, nil
}

// handle returns the receipt handle of the message's last delivery. All that
// is to know about it is in it: handles need not be kept.
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
	return "", 0, &apiError{status: 404, code: "ReceiptHandleIsInvalid", message: fmt.Sprintf("The input receipt handle %q is not a valid receipt handle.", handle)}
}

// allAttributes returns what GetQueueAttributes knows.
func (q *queue) allAttributes(now time.Time) map[string]string {
	var visible, inFlight, delayed int
	for _, m := range q.order {
		switch {
		case m.visible(now):
			visible++
		case m.inFlight(now):
			inFlight++
		default:
			delayed++
		}
	}
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
	attributes := maps.Clone(q.attributes)
	maps.Copy(attributes, map[string]string{
		"QueueArn":                              q.arn,
		"ApproximateNumberOfMessages":           strconv.Itoa(visible),
		"ApproximateNumberOfMessagesNotVisible": strconv.Itoa(inFlight),
		"ApproximateNumberOfMessagesDelayed":    strconv.Itoa(delayed),
		"CreatedTimestamp":                      strconv.FormatInt(q.created.Unix(), 10),
		"LastModifiedTimestamp":                 strconv.FormatInt(q.modified.Unix(), 10),
		"VisibilityTimeout":                     seconds(q.visibility),
		"MessageRetentionPeriod":                seconds(q.retention),
		"DelaySeconds":                          seconds(q.delay),
		"ReceiveMessageWaitTimeSeconds":         seconds(q.longPoll),
		"MaximumMessageSize":                    strconv.Itoa(q.maxSize),
	})
	if q.redrive == nil {
		delete(attributes, "RedrivePolicy")
	}
	return attributes
}

// queueNamed finds the queue of a URL by the last part of its path, whatever
// the host: clients reach the simulator under many names.
func (s *Server) queueNamed(queueURL string) (*queue, *apiError) {
	if parsed, err := url.Parse(queueURL); err == nil {
		i := strings.LastIndex(parsed.Path, "/")
		if q, ok := s.queues[parsed.Path[i+1:]]; ok {
			return q, nil
		}
	}
	return nil, badRequest("QueueDoesNotExist", "The specified queue does not exist.")
}
