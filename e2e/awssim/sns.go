package awssim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

var snsOperations = map[string]operation{
	"GetTopicAttributes":        getTopicAttributes,
	"ListSubscriptionsByTopic":  listSubscriptionsByTopic,
	"GetSubscriptionAttributes": getSubscriptionAttributes,
}

const snsService = "sns.amazonaws.com"

// Topic is a topic of SNS.
type Topic struct {
	ARN    string `json:"arn"`
	Policy string `json:"policy,omitempty"`
}

// Subscription is one queue of a topic.
type Subscription struct {
	TopicARN string `json:"topicARN"`
	Queue    string `json:"queue"`
	// Raw delivers bodies as they are, without SNS's envelope.
	Raw bool `json:"raw,omitempty"`
	// Filter is a filter policy about the body; empty: everything is handed on.
	Filter string `json:"filter,omitempty"`
	// DeadLetters is the queue for what may not go to Queue. Empty: it is dropped.
	DeadLetters string `json:"deadLetters,omitempty"`
	// Pending: nobody has confirmed it, and nothing is handed on.
	Pending bool `json:"pending,omitempty"`
}

// topic has the subscriptions of a Topic.
type topic struct {
	Topic

	put           bool // it was set up, and did not come about by a subscription
	subscriptions []Subscription
}

// TopicARN returns the ARN that a topic of this name has, or would have.
func (s *Server) TopicARN(name string) string { return s.arn("sns", name) }

// PutTopic adds a topic, or replaces the policy of the one of its ARN.
func (s *Server) PutTopic(t Topic) error {
	if t.ARN == "" {
		return errors.New("put topic: no ARN")
	}
	if _, err := iampolicy.Parse(t.Policy); err != nil {
		return fmt.Errorf("put topic %s: %w", t.ARN, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	made := s.topic(t.ARN)
	made.Topic, made.put = t, true
	return nil
}

// Topics returns what PutTopic was told, ordered by ARN.
func (s *Server) Topics() []Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Topic
	for _, arn := range slices.Sorted(maps.Keys(s.topics)) {
		if s.topics[arn].put {
			all = append(all, s.topics[arn].Topic)
		}
	}
	return all
}

// topic returns the topic of an ARN, which need not be there before.
func (s *Server) topic(arn string) *topic {
	if s.topics[arn] == nil {
		s.topics[arn] = &topic{Topic: Topic{ARN: arn}}
	}
	return s.topics[arn]
}

// Subscribe hands what is published to an SNS topic to a queue, in SNS's envelope.
func (s *Server) Subscribe(topicARN, queue string) {
	s.PutSubscription(Subscription{TopicARN: topicARN, Queue: queue})
}

// PutSubscription subscribes a queue to a topic, or replaces its subscription.
func (s *Server) PutSubscription(subscription Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topic(subscription.TopicARN)
	t.unsubscribe(subscription.Queue)
	t.subscriptions = append(t.subscriptions, subscription)
}

// RemoveSubscription ends the subscription of a queue. It reports whether there was one.
func (s *Server) RemoveSubscription(topicARN, queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topicARN]
	if t == nil {
		return false
	}
	return t.unsubscribe(queue)
}

func (t *topic) unsubscribe(queue string) bool {
	before := len(t.subscriptions)
	t.subscriptions = slices.DeleteFunc(t.subscriptions, func(old Subscription) bool { return old.Queue == queue })
	return len(t.subscriptions) < before
}

// Subscriptions returns what PutSubscription was told, ordered by topic.
func (s *Server) Subscriptions() []Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	subscriptions := []Subscription{}
	for _, arn := range slices.Sorted(maps.Keys(s.topics)) {
		subscriptions = append(subscriptions, s.topics[arn].subscriptions...)
	}
	return subscriptions
}

// mayPublish reports whether a rule may publish to its topic.
func (s *Server) mayPublish(rule Rule) bool {
	t := s.topics[rule.Topic]
	return t != nil && (!s.opts.EnforcePolicies || s.lets(t.Policy, s.sends(rule)("sns:Publish", rule.Topic)))
}

// takes reports whether the subscription hands a body on.
func (s Subscription) takes(body string) bool {
	if s.Pending || s.Filter == "" {
		return !s.Pending
	}
	p, err := eventpattern.Parse(s.Filter)
	if err != nil {
		return false
	}
	taken, err := p.Match(body)
	return err == nil && taken
}

// publish hands a body to the queues of a topic.
func (s *Server) publish(topicARN, subject, body string, at time.Time) {
	asSNS := func(action, resource string) iampolicy.Request {
		return iampolicy.Request{Service: snsService, Action: action, Resource: resource, Context: map[string]string{
			"aws:sourcearn": topicARN, "aws:sourceaccount": iampolicy.AccountOf(topicARN), "aws:securetransport": "true",
		}}
	}
	t := s.topics[topicARN]
	if t == nil {
		return
	}
	for _, subscription := range t.subscriptions {
		if !subscription.takes(body) {
			continue
		}
		sent := body
		if !subscription.Raw {
			sent = marshal(snsEnvelope{
				Type:             "Notification",
				MessageID:        s.uuid(),
				TopicARN:         topicARN,
				Subject:          subject,
				Message:          body,
				Timestamp:        at.UTC().Format("2006-01-02T15:04:05.000Z"),
				SignatureVersion: "1",
				Signature:        "EXAMPLE",
				SigningCertURL:   "https://sns." + s.opts.Region + ".amazonaws.com/EXAMPLE.pem",
				UnsubscribeURL:   "https://sns." + s.opts.Region + ".amazonaws.com/EXAMPLE",
			})
		}
		for _, queue := range []string{subscription.Queue, subscription.DeadLetters} {
			if s.mayEnter(queue, sent, asSNS) {
				s.deliver(queue, "", sent, at)
				break
			}
		}
	}
}

// snsEnvelope is what a queue gets from a topic without raw delivery.
type snsEnvelope struct {
	Type             string
	MessageID        string `json:"MessageId"`
	TopicARN         string `json:"TopicArn"`
	Subject          string `json:",omitempty"`
	Message          string
	Timestamp        string
	SignatureVersion string
	Signature        string
	SigningCertURL   string
	UnsubscribeURL   string
}

// onTopic runs f with the topic that a call names.
func (s *Server) onTopic(req *request, f func(*topic)) *apiError {
	arn := req.form.Get("TopicArn")
	req.show("topic", arn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[arn] == nil {
		return &apiError{status: http.StatusNotFound, code: "NotFound", message: "Topic does not exist"}
	}
	f(s.topics[arn])
	return nil
}

// attributeMap is how SNS writes a map.
type attributeMap struct {
	Entries []attributeEntry `xml:"Attributes>entry"`
}

type attributeEntry struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func attributes(values map[string]string) attributeMap {
	var m attributeMap
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] != "" {
			m.Entries = append(m.Entries, attributeEntry{key, values[key]})
		}
	}
	return m
}

func getTopicAttributes(_ context.Context, s *Server, req *request) (any, *apiError) {
	var output attributeMap
	problem := s.onTopic(req, func(t *topic) {
		output = attributes(map[string]string{"TopicArn": t.ARN, "Owner": s.opts.Account, "Policy": t.Policy})
	})
	return output, problem
}

type subscriptionMember struct {
	TopicARN        string `xml:"TopicArn"`
	Protocol        string
	SubscriptionARN string `xml:"SubscriptionArn"`
	Owner           string
	Endpoint        string
}

// arn is that of the subscription: that of the topic, and an id.
func (s Subscription) arn() string {
	if s.Pending {
		return "PendingConfirmation"
	}
	return s.TopicARN + ":" + s.Queue
}

func listSubscriptionsByTopic(_ context.Context, s *Server, req *request) (any, *apiError) {
	var output struct {
		Subscriptions []subscriptionMember `xml:"Subscriptions>member"`
	}
	problem := s.onTopic(req, func(t *topic) {
		for _, subscription := range t.subscriptions {
			output.Subscriptions = append(output.Subscriptions, subscriptionMember{
				TopicARN: t.ARN, Protocol: "sqs", SubscriptionARN: subscription.arn(), Owner: s.opts.Account,
				Endpoint: s.arn("sqs", subscription.Queue),
			})
		}
		req.entries = len(t.subscriptions)
	})
	return output, problem
}

func getSubscriptionAttributes(_ context.Context, s *Server, req *request) (any, *apiError) {
	arn := req.form.Get("SubscriptionArn")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[arn[:max(0, strings.LastIndexByte(arn, ':'))]]; t != nil {
		for _, subscription := range t.subscriptions {
			if subscription.arn() == arn {
				return s.attributesOf(subscription), nil
			}
		}
	}
	return nil, &apiError{status: http.StatusNotFound, code: "NotFound", message: "Subscription does not exist"}
}

func (s *Server) attributesOf(subscription Subscription) attributeMap {
	values := map[string]string{
		"SubscriptionArn": subscription.arn(), "TopicArn": subscription.TopicARN, "Protocol": "sqs",
		"Endpoint": s.arn("sqs", subscription.Queue), "RawMessageDelivery": fmt.Sprint(subscription.Raw),
		"PendingConfirmation": "false", "FilterPolicy": subscription.Filter,
	}
	if subscription.Filter != "" {
		values["FilterPolicyScope"] = "MessageBody"
	}
	if subscription.DeadLetters != "" {
		values["RedrivePolicy"] = marshal(map[string]string{"deadLetterTargetArn": s.arn("sqs", subscription.DeadLetters)})
	}
	return attributes(values)
}
