package report

// A Delivery is the outcome of a message of the webhook. It is a metric label, so the set is closed.
type Delivery string

// The outcomes of a message.
const (
	Sent    Delivery = "sent"
	Failed  Delivery = "failed"
	Dropped Delivery = "dropped" // too many messages waited
)
