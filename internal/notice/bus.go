package notice

import (
	"encoding/json"
	"fmt"
	"strings"
)

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
