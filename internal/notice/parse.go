package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// spotNotice is how long before the interruption EC2 sends its warning.
const spotNotice = 2 * time.Minute

// nameLimit bounds what goes from a body into logs and onto the node. Auto
// Scaling's own limit for the names of groups and hooks is 255.
const nameLimit = 256

// envelope is the union of the outer forms a body can have: an EventBridge
// event, an SNS message around one, or what Auto Scaling sends by itself.
type envelope struct {
	// EventBridge
	ID         string          `json:"id"`
	Source     string          `json:"source"`
	DetailType string          `json:"detail-type"`
	Account    string          `json:"account"`
	Region     string          `json:"region"`
	Time       string          `json:"time"` // Auto Scaling writes Time
	Detail     json.RawMessage `json:"detail"`

	// SNS
	Type    string
	Message string

	// Auto Scaling, without EventBridge
	Service   string
	Event     string
	AccountID string `json:"AccountId"`
	RequestID string `json:"RequestId"`
	lifecycle
}

// lifecycle is the detail of a lifecycle action, with or without EventBridge.
type lifecycle struct {
	LifecycleTransition  string
	AutoScalingGroupName string
	LifecycleHookName    string
	LifecycleActionToken string
	EC2InstanceID        string `json:"EC2InstanceId"`
}

// Parse reads the body of an SQS message. An error means that the body can
// never be acted on: it is not JSON, or lacks what its type must have.
func Parse(body string) (Notice, error) {
	e, err := open(body)
	if err != nil {
		return Notice{}, err
	}
	switch e.Type {
	case "Notification":
		if e, err = open(e.Message); err != nil {
			return Notice{}, fmt.Errorf("the SNS notification's Message: %w", err)
		}
	case "SubscriptionConfirmation", "UnsubscribeConfirmation":
		return Notice{Ignored: Confirmation}, nil
	}
	if e.Source == "" {
		return parseDirect(e)
	}
	n, err := parseEvent(e)
	if err != nil {
		return Notice{}, fmt.Errorf("%q: %w", clip(e.DetailType), err)
	}
	return n, nil
}

func open(body string) (envelope, error) {
	var e envelope
	if strings.TrimSpace(body) == "" {
		return e, errors.New("the body is empty")
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return e, fmt.Errorf("the body is not the JSON of an event: %w", err)
	}
	return e, nil
}

// parseDirect reads what Auto Scaling sends to a queue or topic by itself.
func parseDirect(e envelope) (Notice, error) {
	n := Notice{ID: clip(e.RequestID), Account: clip(e.AccountID), Time: parseTime(time.RFC3339, e.Time)}
	switch e.LifecycleTransition {
	case "autoscaling:EC2_INSTANCE_TERMINATING":
		return parseHook(n, ASGTerminate, e.lifecycle)
	case "autoscaling:EC2_INSTANCE_LAUNCHING":
		return parseHook(n, ASGLaunch, e.lifecycle)
	}
	switch {
	case e.Event == "autoscaling:TEST_NOTIFICATION":
		return Notice{Ignored: TestNotification}, nil
	case strings.HasPrefix(e.Event, "autoscaling:"):
		return Notice{Ignored: OtherService}, nil
	}
	return Notice{}, errors.New("the body is neither an EventBridge event nor an Auto Scaling notification")
}

// SimulatedSource is the source of notices that somebody puts on the bus to see
// what happens: EventBridge keeps the names of AWS's services to these. A queue
// gets them only where a rule lets this source through.
const SimulatedSource = "node-termination-handler.simulate"

// sources are the services that send the events of a type; each has its own types.
var sources = map[string]string{
	"EC2 Spot Instance Interruption Warning":  "aws.ec2",
	"EC2 Instance Rebalance Recommendation":   "aws.ec2",
	"EC2 Instance State-change Notification":  "aws.ec2",
	"AWS Health Event":                        "aws.health",
	"EC2 Instance-terminate Lifecycle Action": "aws.autoscaling",
	"EC2 Instance-launch Lifecycle Action":    "aws.autoscaling",
}

func parseEvent(e envelope) (Notice, error) {
	if e.Source == SimulatedSource {
		e.Source = sources[e.DetailType]
	}
	n := Notice{ID: clip(e.ID), Account: clip(e.Account), Region: clip(e.Region), Time: parseTime(time.RFC3339, e.Time)}
	switch e.Source + "/" + e.DetailType {
	case "aws.ec2/EC2 Spot Instance Interruption Warning":
		return parseSpot(n, e.Detail)
	case "aws.ec2/EC2 Instance Rebalance Recommendation":
		var d struct {
			InstanceID string `json:"instance-id"`
		}
		if err := decode(e.Detail, &d); err != nil {
			return n, err
		}
		n.Kind = RebalanceRecommendation
		return withInstance(n, "detail.instance-id", d.InstanceID)
	case "aws.ec2/EC2 Instance State-change Notification":
		return parseState(n, e.Detail)
	case "aws.health/AWS Health Event":
		return parseHealth(n, e.Detail)
	case "aws.autoscaling/EC2 Instance-terminate Lifecycle Action":
		return parseLifecycle(n, ASGTerminate, e.Detail)
	case "aws.autoscaling/EC2 Instance-launch Lifecycle Action":
		return parseLifecycle(n, ASGLaunch, e.Detail)
	}
	return Notice{Ignored: OtherService}, nil
}

func parseSpot(n Notice, detail json.RawMessage) (Notice, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
		Action     string `json:"instance-action"`
	}
	if err := decode(detail, &d); err != nil {
		return n, err
	}
	n.Kind, n.Detail = SpotInterruption, clip(d.Action)
	if !n.Time.IsZero() {
		n.Deadline = n.Time.Add(spotNotice)
		if d.Action == "hibernate" { // hibernation begins with the warning
			n.Deadline = n.Time
		}
	}
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

func parseState(n Notice, detail json.RawMessage) (Notice, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
		State      string `json:"state"`
	}
	if err := decode(detail, &d); err != nil {
		return n, err
	}
	switch d.State {
	case "stopping", "shutting-down":
	case "stopped", "terminated":
		n.Gone = true
	default:
		return Notice{Ignored: OtherState}, nil
	}
	n.Kind, n.Detail = StateChange, d.State
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

func parseHealth(n Notice, detail json.RawMessage) (Notice, error) {
	var d struct {
		EventArn          string `json:"eventArn"`
		Service           string `json:"service"`
		EventTypeCode     string `json:"eventTypeCode"`
		EventTypeCategory string `json:"eventTypeCategory"`
		EventRegion       string `json:"eventRegion"`
		StartTime         string `json:"startTime"`
		StatusCode        string `json:"statusCode"`
		AffectedAccount   string `json:"affectedAccount"`
		AffectedEntities  []struct {
			EntityValue string `json:"entityValue"`
		} `json:"affectedEntities"`
	}
	if err := decode(detail, &d); err != nil {
		return n, err
	}
	if d.Service != "EC2" || d.EventTypeCategory != "scheduledChange" {
		return Notice{Ignored: NotScheduled}, nil
	}
	n.Kind, n.Detail, n.Change = ScheduledChange, clip(d.EventTypeCode), clip(d.EventArn)
	n.Ended = d.StatusCode == "closed"
	// Health repeats an event in a second region and through an organization's
	// account: the detail says where it happens, the envelope where it was sent.
	if d.EventRegion != "" {
		n.Region = clip(d.EventRegion)
	}
	if d.AffectedAccount != "" {
		n.Account = clip(d.AffectedAccount)
	}
	if !n.Ended {
		n.Deadline = parseTime(time.RFC1123, d.StartTime)
	}
	seen := map[string]bool{}
	for _, entity := range d.AffectedEntities {
		if id := entity.EntityValue; isInstanceID(id) && !seen[id] {
			seen[id] = true
			n.Instances = append(n.Instances, id)
		}
	}
	if len(n.Instances) == 0 {
		return Notice{Ignored: NoInstance}, nil
	}
	return n, nil
}

func parseLifecycle(n Notice, kind Kind, detail json.RawMessage) (Notice, error) {
	var d lifecycle
	if err := decode(detail, &d); err != nil {
		return n, err
	}
	return parseHook(n, kind, d)
}

func parseHook(n Notice, kind Kind, d lifecycle) (Notice, error) {
	if d.AutoScalingGroupName == "" || d.LifecycleHookName == "" {
		return n, errors.New("AutoScalingGroupName or LifecycleHookName is missing")
	}
	for _, name := range []string{d.AutoScalingGroupName, d.LifecycleHookName, d.LifecycleActionToken} {
		switch {
		case len(name) > nameLimit:
			return n, fmt.Errorf("AutoScalingGroupName, LifecycleHookName or LifecycleActionToken is longer than %d bytes", nameLimit)
		case strings.ContainsFunc(name, unicode.IsControl): // Auto Scaling has none of these
			return n, errors.New("AutoScalingGroupName, LifecycleHookName or LifecycleActionToken has a control character")
		}
	}
	n.Kind = kind
	n.Hook = Hook{Group: d.AutoScalingGroupName, Name: d.LifecycleHookName, Token: d.LifecycleActionToken}
	return withInstance(n, "EC2InstanceId", d.EC2InstanceID)
}

func decode(detail json.RawMessage, into any) error {
	if len(detail) == 0 {
		return errors.New("detail is missing")
	}
	if err := json.Unmarshal(detail, into); err != nil {
		return fmt.Errorf("detail: %w", err)
	}
	return nil
}

func withInstance(n Notice, field, id string) (Notice, error) {
	if !isInstanceID(id) {
		return n, fmt.Errorf("%s is %q, not an instance id", field, clip(id))
	}
	n.Instances = []string{id}
	return n, nil
}

// isInstanceID reports whether id is i- and 8 to 17 lower-case hex digits.
func isInstanceID(id string) bool {
	digits, ok := strings.CutPrefix(id, "i-")
	return ok && len(digits) >= 8 && len(digits) <= 17 && strings.Trim(digits, "0123456789abcdef") == ""
}

// parseTime is zero for what it cannot read: a notice without a time is still a
// notice. So is one near the ends of the years from 0 to 9999, which are all that
// JSON can hold: a zone or a deadline moves it beyond.
func parseTime(layout, value string) time.Time {
	t, err := time.Parse(layout, value)
	if t = t.UTC(); err != nil || t.Year() < 1 || t.Year() > 9998 {
		return time.Time{}
	}
	return t
}

// clip cuts s to nameLimit and drops what cannot be printed: what people read in
// logs and Events must not steer their terminals.
func clip(s string) string {
	if len(s) > nameLimit {
		s = s[:nameLimit]
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}
