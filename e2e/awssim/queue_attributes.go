package awssim

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

type redrivePolicy struct {
	Target          string  `json:"deadLetterTargetArn"`
	MaxReceiveCount flexInt `json:"maxReceiveCount"`
}

// flexInt is a number that tools write with or without quotes.
type flexInt int

func (n *flexInt) UnmarshalJSON(text []byte) error {
	value, err := strconv.Atoi(strings.Trim(string(text), `"`))
	*n = flexInt(value)
	return err
}

// set changes all attributes, or none if there is a problem.
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
		case "FifoQueue", "ContentBasedDeduplication":
			var problem *apiError
			if next.fifo, problem = next.setFIFO(name, value); problem != nil {
				return problem
			}
		case "Policy":
			if _, err := iampolicy.Parse(value); err != nil {
				return invalid
			}
		case "MaximumMessageSize":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1024 || n > maxMessageSize {
				return invalid
			}
			next.maxSize = n
		case "RedrivePolicy":
			var problem *apiError
			if next.redrive, problem = q.readRedrive(value); problem != nil {
				return problem
			}
		}
	}
	next.attributes = maps.Clone(q.attributes)
	maps.Copy(next.attributes, attributes)
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html
	if next.attributes["KmsMasterKeyId"] != "" && next.attributes["SqsManagedSseEnabled"] == "true" {
		return badRequest("InvalidAttributeValue",
			"You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.")
	}
	*q = next
	return nil
}

// readRedrive reads a RedrivePolicy; an empty one is none.
func (q *queue) readRedrive(value string) (*redrivePolicy, *apiError) {
	if value == "" {
		return nil, nil
	}
	invalid := func(reason string) (*redrivePolicy, *apiError) {
		return nil, badRequest("InvalidParameterValue", "Value %s for parameter RedrivePolicy is invalid. Reason: %s", value,
			reason)
	}
	var redrive redrivePolicy
	err := json.Unmarshal([]byte(value), &redrive)
	switch {
	case err != nil || redrive.MaxReceiveCount < 1 || redrive.MaxReceiveCount > 1000:
		return invalid("Invalid value for maxReceiveCount.")
	case !strings.HasPrefix(redrive.Target, "arn:"):
		return invalid("Invalid value for deadLetterTargetArn.")
	// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-dead-letter-queues.html
	case isFIFO(redrive.Target) != (q.fifo != nil):
		return invalid("Dead-letter queue must be same type of queue as the source.")
	}
	return &redrive, nil
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
