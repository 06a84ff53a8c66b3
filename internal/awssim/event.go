package awssim

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
)

// Rule is a rule of EventBridge on the default bus: events that match go to a
// queue, in EventBridge's envelope. Bodies that tests send themselves do not
// pass through rules.
type Rule struct {
	Name string `json:"name"`
	// Pattern is an event pattern. Empty, DetailType decides alone.
	Pattern string `json:"pattern,omitempty"`
	// DetailType is a pattern as of [path.Match] for the detail-type, such as
	// "EC2 Instance-terminate Lifecycle Action"; empty matches all.
	DetailType string `json:"detailType,omitempty"`
	// Disabled rules are there, and take nothing.
	Disabled bool   `json:"disabled,omitempty"`
	Queue    string `json:"queue"`
	// DeadLetters is the queue for events that may not go to Queue. Empty: they are dropped.
	DeadLetters string `json:"deadLetters,omitempty"`
}

// PutRule adds a rule, or replaces the one of its name.
func (s *Server) PutRule(rule Rule) error {
	if _, err := path.Match(rule.DetailType, ""); err != nil {
		return fmt.Errorf("put rule %s: pattern %q: %w", rule.Name, rule.DetailType, err)
	}
	if rule.Pattern != "" {
		if _, err := eventpattern.Parse(rule.Pattern); err != nil {
			return fmt.Errorf("put rule %s: %w", rule.Name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[rule.Name] = rule
	return nil
}

// takes reports whether the rule sends an event on.
func (r Rule) takes(detailType, event string) bool {
	if r.Disabled || !matches(r.DetailType, detailType) {
		return false
	}
	if r.Pattern == "" {
		return true
	}
	pattern, err := eventpattern.Parse(r.Pattern)
	if err != nil {
		return false // PutRule has not let it in
	}
	taken, err := pattern.Match(event)
	return err == nil && taken
}

// RemoveRule ends a rule. It reports whether there was one.
func (s *Server) RemoveRule(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.rules[name]
	delete(s.rules, name)
	return ok
}

// Rules returns the rules, ordered by name.
func (s *Server) Rules() []Rule {
	s.mu.Lock()
	defer s.mu.Unlock()
	rules := []Rule{}
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		rules = append(rules, s.rules[name])
	}
	return rules
}

// Subscribe hands what Auto Scaling publishes to an SNS topic to a queue, in
// SNS's envelope.
func (s *Server) Subscribe(topicARN, queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.topics[topicARN], queue) {
		s.topics[topicARN] = append(s.topics[topicARN], queue)
	}
}

// Subscription is one queue of a topic.
type Subscription struct {
	TopicARN string `json:"topicARN"`
	Queue    string `json:"queue"`
}

// Subscriptions returns what Subscribe was told, ordered by topic.
func (s *Server) Subscriptions() []Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	subscriptions := []Subscription{}
	for _, topic := range slices.Sorted(maps.Keys(s.topics)) {
		for _, queue := range s.topics[topic] {
			subscriptions = append(subscriptions, Subscription{topic, queue})
		}
	}
	return subscriptions
}

// event is EventBridge's envelope.
type event struct {
	Version    string   `json:"version"`
	ID         string   `json:"id"`
	DetailType string   `json:"detail-type"`
	Source     string   `json:"source"`
	Account    string   `json:"account"`
	Time       string   `json:"time"`
	Region     string   `json:"region"`
	Resources  []string `json:"resources"`
	Detail     any      `json:"detail"`
}

// lifecycleDetail is the detail of a lifecycle action's event.
type lifecycleDetail struct {
	LifecycleActionToken string
	AutoScalingGroupName string
	LifecycleHookName    string
	EC2InstanceID        string `json:"EC2InstanceId"`
	LifecycleTransition  Transition
	NotificationMetadata string `json:",omitempty"`
	Origin               string
	Destination          string
}

// lifecycleNotification is what Auto Scaling sends to a hook's own target.
type lifecycleNotification struct {
	lifecycleDetail
	AccountID string `json:"AccountId"`
	RequestID string `json:"RequestId"`
	Service   string
	Time      string
}

// snsEnvelope is what a queue gets from a topic without raw delivery.
type snsEnvelope struct {
	Type             string
	MessageID        string `json:"MessageId"`
	TopicARN         string `json:"TopicArn"`
	Subject          string
	Message          string
	Timestamp        string
	SignatureVersion string
	Signature        string
	SigningCertURL   string
	UnsubscribeURL   string
}

// detailTypes are those of the events of a lifecycle action.
var detailTypes = map[Transition]string{
	Launching:   "EC2 Instance-launch Lifecycle Action",
	Terminating: "EC2 Instance-terminate Lifecycle Action",
}

// notify tells of a new action: by an event, and to the hook's target.
func (s *Server) notify(action *lifecycleAction, hook Hook, at time.Time) {
	detail := lifecycleDetail{
		LifecycleActionToken: action.Token,
		AutoScalingGroupName: action.Group,
		LifecycleHookName:    action.Hook,
		EC2InstanceID:        action.InstanceID,
		LifecycleTransition:  action.Transition,
		NotificationMetadata: hook.Metadata,
		Origin:               "EC2",
		Destination:          "AutoScalingGroup",
	}
	if action.Transition == Terminating {
		detail.Origin, detail.Destination = detail.Destination, detail.Origin
	}
	s.emit(event{
		DetailType: detailTypes[action.Transition],
		Source:     "aws.autoscaling",
		Resources:  []string{s.groupARN(action.Group)},
		Detail:     detail,
	}, at)
	if hook.TargetARN == "" {
		return
	}
	body := marshal(lifecycleNotification{
		lifecycleDetail: detail,
		AccountID:       s.opts.Account,
		RequestID:       s.uuid(),
		Service:         "AWS Auto Scaling",
		Time:            at.UTC().Format("2006-01-02T15:04:05.000Z"),
	})
	if !strings.Contains(hook.TargetARN, ":sns:") {
		s.deliver(hook.TargetARN[strings.LastIndex(hook.TargetARN, ":")+1:], body, at)
		return
	}
	for _, queue := range s.topics[hook.TargetARN] {
		s.deliver(queue, marshal(snsEnvelope{
			Type:             "Notification",
			MessageID:        s.uuid(),
			TopicARN:         hook.TargetARN,
			Subject:          "Auto Scaling: Lifecycle action '" + strings.TrimPrefix(string(action.Transition), "autoscaling:EC2_INSTANCE_") + "' in progress.",
			Message:          body,
			Timestamp:        at.UTC().Format("2006-01-02T15:04:05.000Z"),
			SignatureVersion: "1",
			Signature:        "EXAMPLE",
			SigningCertURL:   "https://sns." + s.opts.Region + ".amazonaws.com/EXAMPLE.pem",
			UnsubscribeURL:   "https://sns." + s.opts.Region + ".amazonaws.com/EXAMPLE",
		}), at)
	}
}

// stateChange is the event of an instance's new state.
func (s *Server) stateChange(i *instance) event {
	return event{
		DetailType: "EC2 Instance State-change Notification",
		Source:     "aws.ec2",
		Resources:  []string{s.arn("ec2", "instance/"+i.ID)},
		Detail: struct {
			InstanceID string `json:"instance-id"`
			State      string `json:"state"`
		}{i.ID, i.State},
	}
}

// emit sends an event to the queues of the rules that take it, and returns its id.
func (s *Server) emit(e event, at time.Time) (id string) {
	e.Version, e.ID, e.Account, e.Region = "0", s.uuid(), s.opts.Account, s.opts.Region
	if e.Time == "" {
		e.Time = at.UTC().Format(time.RFC3339)
	}
	body := marshal(e)
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		rule := s.rules[name]
		switch {
		case !rule.takes(e.DetailType, body):
		case s.mayDeliver(rule.Name, rule.Queue):
			s.deliver(rule.Queue, body, at)
		case rule.DeadLetters != "" && s.mayDeliver(rule.Name, rule.DeadLetters):
			s.deliver(rule.DeadLetters, body, at)
		}
	}
	return e.ID
}

// deliver puts a body into a queue; like EventBridge, it says nothing when there is none.
func (s *Server) deliver(queue, body string, at time.Time) {
	if q, ok := s.queues[queue]; ok {
		s.send(q, body, q.delay, at)
	}
}

// marshal is for values of this package, which can be marshaled.
func marshal(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
