package awssim

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
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

// Queue is a queue to create.
type Queue struct {
	Name string `json:"name"`
	// Attributes are those of CreateQueue: VisibilityTimeout (default 30),
	// MessageRetentionPeriod (345600), DelaySeconds (0),
	// ReceiveMessageWaitTimeSeconds (0), MaximumMessageSize, RedrivePolicy, Policy,
	// FifoQueue and ContentBasedDeduplication (for names that end with .fifo alone),
	// KmsMasterKeyId, SqsManagedSseEnabled. Others are kept and shown, without effect.
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
			if problem = checkName(config.Name, config.Attributes); problem != nil {
				return
			}
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

// RemoveQueue deletes a queue with its messages. It reports whether there was one.
func (s *Server) RemoveQueue(name string) bool {
	var ok bool
	s.locked(func(time.Time) {
		_, ok = s.queues[name]
		delete(s.queues, name)
		s.wake()
	})
	return ok
}

// SetQueuePolicy replaces the policy of a queue; empty, there is none.
func (s *Server) SetQueuePolicy(name, document string) error {
	problem := badRequest("QueueDoesNotExist", "The specified queue does not exist.")
	s.locked(func(now time.Time) {
		if q, ok := s.queues[name]; ok {
			problem = q.set(map[string]string{"Policy": document})
			q.modified = now
		}
	})
	if problem != nil {
		return fmt.Errorf("set the policy of queue %s: %s: %s", name, problem.code, problem.message)
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

// SendMessage puts a body of any kind into a queue, as a service of AWS does. Neither the queue's
// size limit nor SQS's limits on characters apply. Bytes that are not UTF-8 cannot be transported,
// and are replaced.
func (s *Server) SendMessage(queue, body string) (messageID string, err error) {
	err = fmt.Errorf("send message: no queue %q", queue)
	s.locked(func(now time.Time) {
		if q, ok := s.queues[queue]; ok {
			m := s.send(q, strings.ToValidUTF8(body, "\uFFFD"), q.delay, now)
			m.group = "awssim" // which counts in FIFO queues alone
			messageID, err = m.id, nil
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

// queue is a queue at work.
type queue struct {
	name       string
	fifo       *fifo // nil: a standard queue
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

func (s *Server) newQueue(name string, now time.Time) *queue {
	q := &queue{
		name: name, arn: s.arn("sqs", name), created: now, modified: now,
		attributes: map[string]string{},
		visibility: 30 * time.Second, retention: 4 * 24 * time.Hour, maxSize: maxMessageSize,
		messages: map[string]*message{}, deleted: ring[*message]{size: 100},
	}
	if isFIFO(name) {
		q.fifo = &fifo{sent: map[string]*message{}}
		q.attributes["FifoQueue"], q.attributes["ContentBasedDeduplication"] = "true", "false"
	}
	return q
}

// queueNamed finds the queue of a URL by the last part of its path. The host does not matter,
// because clients reach the simulator under many names.
func (s *Server) queueNamed(queueURL string) (*queue, *apiError) {
	if parsed, err := url.Parse(queueURL); err == nil {
		i := strings.LastIndex(parsed.Path, "/")
		if q, ok := s.queues[parsed.Path[i+1:]]; ok {
			return q, nil
		}
	}
	return nil, badRequest("QueueDoesNotExist", "The specified queue does not exist.")
}
