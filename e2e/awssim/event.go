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
	// A Disabled rule exists and matches nothing.
	Disabled bool   `json:"disabled,omitempty"`
	Queue    string `json:"queue"`
	// Topic is the ARN of an SNS topic that gets the events too, for the queues that are
	// subscribed to it.
	Topic string `json:"topic,omitempty"`
	// WithMetadata delivers events as a subscriber of a custom event bus does that asks for
	// metadata; they are LIVE.
	WithMetadata bool `json:"withMetadata,omitempty"`
	// Bus makes it a subscriber of a custom event bus, which calls about rules do not show.
	Bus bool `json:"bus,omitempty"`
	// RoleARN is the role that delivers. Empty: EventBridge does, as a service.
	RoleARN string `json:"roleARN,omitempty"`
	// DeadLetters is the queue for events that may not go to Queue or Topic. Empty: they are dropped.
	DeadLetters string `json:"deadLetters,omitempty"`
	// MessageGroup is that of the target, for a Queue that is a FIFO queue.
	MessageGroup string `json:"messageGroup,omitempty"`
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

// takes reports whether the rule matches an event.
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
	Action               string `json:",omitempty"`
}

// lifecycleNotification is what Auto Scaling sends to a hook's own target.
type lifecycleNotification struct {
	lifecycleDetail
	AccountID string `json:"AccountId"`
	RequestID string `json:"RequestId"`
	Service   string
	Time      string
}

// detailTypes are the detail-types of the events of a lifecycle action.
var detailTypes = map[Transition]string{
	Launching:   "EC2 Instance-launch Lifecycle Action",
	Terminating: "EC2 Instance-terminate Lifecycle Action",
}

// notify sends the event of a new action, and the notification to the target of its hook.
func (s *Server) notify(action *lifecycleAction, hook Hook, at time.Time) {
	detail := lifecycleDetail{
		LifecycleActionToken: action.Token,
		AutoScalingGroupName: action.Group,
		LifecycleHookName:    action.Hook,
		EC2InstanceID:        action.InstanceID,
		LifecycleTransition:  action.Transition,
		NotificationMetadata: hook.Metadata,
		Origin:               action.outside(),
		Action:               action.action(),
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
		s.deliver(hook.TargetARN[strings.LastIndex(hook.TargetARN, ":")+1:], "", body, at)
		return
	}
	s.publish(hook.TargetARN, "Auto Scaling: Lifecycle action '"+
		strings.TrimPrefix(string(action.Transition), "autoscaling:EC2_INSTANCE_")+"' in progress.", body, at)
}

// busEnvelope is what a subscriber of a custom event bus delivers with metadata.
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-custom-bus-addressing.html
type busEnvelope struct {
	Data           event
	Metadata       struct{}
	SystemMetadata map[string]string
}

// withMetadata is the body of an event on a custom event bus.
func (s *Server) withMetadata(e event, at time.Time) string {
	return marshal(busEnvelope{Data: e, SystemMetadata: map[string]string{
		"ContentType":       "application/eventbridge+json",
		"aws:EventId":       s.uuid(),
		"aws:IngestionTime": at.UTC().Format("2006-01-02T15:04:05.000Z"),
		"aws:DeliveryType":  "LIVE",
		"aws:Source":        e.Source,
		"aws:DetailType":    e.DetailType,
	}})
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

// emit sends an event to the queues of the rules that match it, and returns its id.
func (s *Server) emit(e event, at time.Time) (id string) {
	e.Version, e.ID, e.Account, e.Region = "0", s.uuid(), s.opts.Account, s.opts.Region
	if e.Time == "" {
		e.Time = at.UTC().Format(time.RFC3339)
	}
	plain := marshal(e)
	for _, name := range slices.Sorted(maps.Keys(s.rules)) {
		rule := s.rules[name]
		if !rule.takes(e.DetailType, plain) {
			continue
		}
		body := plain
		if rule.WithMetadata {
			body = s.withMetadata(e, at)
		}
		if !s.carry(rule, body, at) && rule.DeadLetters != "" && !isFIFO(rule.DeadLetters) &&
			s.mayDeliver(rule, rule.DeadLetters, body) {
			s.deliver(rule.DeadLetters, "", body, at)
		}
	}
	return e.ID
}

// carry delivers a body to the targets of a rule. It reports whether all of them took it.
func (s *Server) carry(rule Rule, body string, at time.Time) bool {
	all := true
	if rule.Topic != "" {
		if all = s.mayPublish(rule); all {
			s.publish(rule.Topic, "", body, at)
		}
	}
	if rule.Queue == "" && rule.Topic != "" {
		return all
	}
	if !s.mayDeliver(rule, rule.Queue, body) {
		return false
	}
	s.deliver(rule.Queue, rule.MessageGroup, body, at)
	return all
}

// deliver puts a body into a queue; like EventBridge, it says nothing when there is none,
// or when it is a FIFO queue and there is no message group.
func (s *Server) deliver(queue, messageGroup, body string, at time.Time) {
	q, ok := s.queues[queue]
	if !ok || q.fifo != nil && messageGroup == "" {
		return
	}
	times := []time.Duration{0}
	if s.opts.Delivery != nil {
		times = s.opts.Delivery(body)
	}
	for _, after := range times {
		if q.fifo != nil {
			s.sendFIFO(q, sendEntry{MessageBody: body, MessageGroupID: messageGroup}, q.delay+after, at)
		} else {
			s.send(q, body, q.delay+after, at)
		}
	}
}

// marshal encodes values of this package, which can always be encoded.
func marshal(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
