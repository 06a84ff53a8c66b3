package notice

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// spotNotice is how long before the interruption EC2 sends its warning.
const spotNotice = 2 * time.Minute

const (
	// bodyLimit is twice what EventBridge takes, 256 KB, and AWS Health makes its
	// pages for that limit. An event is larger than what the limit counts: names,
	// quotes and commas come on top, and SNS escapes each quote. Nothing from AWS
	// comes near; SQS itself takes 1 MiB.
	// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevent-size.html
	// https://docs.aws.amazon.com/health/latest/ug/pagnation-of-health-events.html
	bodyLimit = 512 << 10

	// instanceLimit bounds the instances of one body, which are all kept and all
	// looked up. On a page of 256 KB there is no room for more: the shortest entity
	// with its resource, {"entityValue":"i-0123456789abcdef0"} and
	// "i-0123456789abcdef0", takes 64 bytes with its commas.
	instanceLimit = 256 << 10 / 64

	// hostLimit bounds the Dedicated Hosts of one body: EC2 is asked about them in one call,
	// and a filter takes 200 values.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html
	hostLimit = 200

	// identifierLimit bounds the ids, codes and ARNs that go from a body into logs
	// and onto the node. The longest, the ARN of a Health event, has some 200.
	identifierLimit = 256

	// nameLimit is Auto Scaling's own limit for the names of groups and hooks, in
	// characters.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
	nameLimit = 255
)

// envelope is the union of the outer forms a body can have: an EventBridge
// event, an SNS message around one, or what Auto Scaling sends by itself.
type envelope struct {
	// EventBridge
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	DetailType      string          `json:"detail-type"`
	DetailTypeAlias string          `json:"detail_type"` // so in AWS's examples of events about Capacity Blocks
	Account         string          `json:"account"`
	Region          string          `json:"region"`
	Time            string          `json:"time"` // Auto Scaling writes Time
	Resources       json.RawMessage `json:"resources"`
	Detail          json.RawMessage `json:"detail"`

	// A custom event bus of EventBridge
	Data           json.RawMessage
	SystemMetadata json.RawMessage

	// SNS
	Type    string
	Message string

	// Auto Scaling, without EventBridge
	Event     string
	AccountID string `json:"AccountId"`
	RequestID string `json:"RequestId"`
	lifecycle
}

// Parse reads the body of an SQS message. An error means that the body can
// never be acted on: it is not JSON, is larger than any that AWS sends, or lacks
// what its type must have.
//
// The notice shares no memory with the body: a notice may be kept for hours, and
// a body can have a megabyte.
func Parse(body string) (Notice, error) {
	if len(body) > bodyLimit {
		return Notice{}, fmt.Errorf("the body has %d bytes: no event of AWS has more than %d", len(body), bodyLimit)
	}
	e, err := open(body)
	if err != nil {
		return Notice{}, err
	}
	switch {
	case e.Type == "Notification", e.Type == "" && e.Message != "" && !e.isEvent():
		if e, err = open(e.Message); err != nil {
			return Notice{}, fmt.Errorf("the SNS notification's Message: %w", err)
		}
	case e.Type == "SubscriptionConfirmation", e.Type == "UnsubscribeConfirmation":
		return Notice{Ignored: Confirmation}, nil
	}
	if e.isFromBus() {
		why := Reason("")
		if e, why, err = openBus(e); err != nil || why != "" {
			return Notice{Ignored: why}, err
		}
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

// isEvent reports whether e is an event itself, not a message around one.
func (e envelope) isEvent() bool {
	return e.Source != "" || e.LifecycleTransition != "" || e.Event != ""
}

// live is the aws:DeliveryType of an event that is delivered for the first time.
const live = "LIVE"

// isFromBus reports whether e is what a subscriber of a custom event bus delivers with
// metadata, around an event.
// https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-custom-bus-addressing.html
func (e envelope) isFromBus() bool {
	return len(e.Data) > 0 && len(e.SystemMetadata) > 0 && !e.isEvent()
}

// openBus returns the event within, or why it is ignored. Everybody who may publish to the
// bus can write any source into an event. aws:Source is written by EventBridge, so it is
// the source that counts. A replay tells of the past.
func openBus(e envelope) (event envelope, why Reason, err error) {
	var system struct {
		Source       string `json:"aws:Source"`
		DeliveryType string `json:"aws:DeliveryType"`
	}
	if err := json.Unmarshal(e.SystemMetadata, &system); err != nil {
		return e, "", fmt.Errorf("the SystemMetadata of the event bus: %w", err)
	}
	switch {
	case system.DeliveryType != live && system.DeliveryType != "":
		return e, Replayed, nil
	case system.Source == "":
		return e, OtherPublisher, nil
	}
	if event, err = open(string(e.Data)); err != nil {
		return e, "", fmt.Errorf("the Data of the event bus: %w", err)
	}
	if event.Source != system.Source && strings.HasPrefix(event.Source, "aws.") {
		return e, OtherPublisher, nil
	}
	event.Source = system.Source
	return event, "", nil
}

func open(body string) (envelope, error) {
	var e envelope
	if strings.TrimSpace(body) == "" {
		return e, errors.New("the body is empty")
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return e, fmt.Errorf("the body is not the JSON of an event: %w", err)
	}
	e.DetailType = cmp.Or(e.DetailType, e.DetailTypeAlias)
	return e, nil
}

// parseDirect reads what Auto Scaling sends to a queue or topic by itself.
func parseDirect(e envelope) (Notice, error) {
	n := Notice{ID: eventID(e.RequestID), Account: accountOf(e.AccountID), Time: parseTime(e.Time, time.RFC3339)}
	switch e.LifecycleTransition {
	case "autoscaling:EC2_INSTANCE_TERMINATING":
		return parseHook(n, ASGTerminate, e.lifecycle)
	case "autoscaling:EC2_INSTANCE_LAUNCHING":
		return parseHook(n, ASGLaunch, e.lifecycle)
	}
	switch {
	case e.Event == testNotification, e.LifecycleTransition == testNotification:
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

// events are the types of events that are acted on; each is sent by one service.
var events = map[string]struct {
	source string
	parse  func(Notice, envelope) (Notice, error)
}{
	"EC2 Spot Instance Interruption Warning":                 {"aws.ec2", parseSpot},
	"EC2 Instance Rebalance Recommendation":                  {"aws.ec2", parseRebalance},
	"EC2 Instance State-change Notification":                 {"aws.ec2", parseState},
	"EC2 Capacity Reservation Instance Interruption Warning": {"aws.ec2", parseReservationInterruption},
	// Its name until 2026.
	"EC2 Interruptible Capacity Reservation Instance Interruption Warning": {"aws.ec2", parseReservationInterruption},

	"Capacity Block Expiration Warning":             {"aws.ec2", parseBlockExpiration},
	"Capacity Block Reservation Expiration Warning": {"aws.ec2", parseBlockExpiration}, // its older name

	"AWS Health Event":                        {"aws.health", parseHealth},
	"EC2 Instance-terminate Lifecycle Action": {"aws.autoscaling", parseTerminate},
	"EC2 Instance-launch Lifecycle Action":    {"aws.autoscaling", parseLaunch},
}

func parseEvent(e envelope) (Notice, error) {
	of, known := events[e.DetailType]
	if !known || e.Source != of.source && e.Source != SimulatedSource {
		return Notice{Ignored: OtherService}, nil
	}
	return of.parse(Notice{
		ID: eventID(e.ID), Account: accountOf(e.Account), Region: identifier(e.Region),
		Time: parseTime(e.Time, time.RFC3339),
	}, e)
}

func parseRebalance(n Notice, e envelope) (Notice, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
	}
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	n.Kind = RebalanceRecommendation
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

func parseSpot(n Notice, e envelope) (Notice, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
		Action     string `json:"instance-action"`
	}
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	n.Kind, n.Detail = SpotInterruption, identifier(d.Action)
	if !n.Time.IsZero() {
		n.Deadline = n.Time.Add(spotNotice)
		if n.Detail == Hibernate {
			n.Deadline = n.Time
		}
	}
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

func parseState(n Notice, e envelope) (Notice, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
		State      string `json:"state"`
	}
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	state := strings.ToLower(identifier(d.State))
	switch state {
	case "stopping", "shutting-down":
	case "stopped", "terminated":
		n.Gone = true
	case "running":
		n.Runs = true
	default:
		return Notice{Ignored: OtherState}, nil
	}
	n.Kind, n.Detail = StateChange, state
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

// The names of hooks and the tokens of actions as Auto Scaling takes them.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
var (
	hookName  = regexp.MustCompile(`^[A-Za-z0-9_/-]{1,255}$`)
	hookToken = regexp.MustCompile(`^[0-9A-Fa-f-]{36}$`)
)

// accountOf is the account that a message names.
func accountOf(text string) string { return cmp.Or(identifier(text), NoAccount) }
