package notice

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// When EC2 begins to terminate the instances of a Capacity Block, before the block ends.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
const (
	blockLead       = 30 * time.Minute
	ultraServerLead = 60 * time.Minute
)

// isUltraServer reports whether an UltraServer consists of instances of this type. Neither
// the event nor the instance says so.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-ultraservers.html
func isUltraServer(instanceType string) bool {
	return strings.HasPrefix(instanceType, "p6e-") || strings.HasPrefix(instanceType, "trn2u.")
}

// parseReservationInterruption leaves Deadline zero where the body does not say when the
// instance is terminated.
func parseReservationInterruption(n Notice, e envelope) (Notice, error) {
	var d struct {
		InstanceID  string `json:"instance-id"`
		Action      string `json:"instance-action"`
		Termination string `json:"instance-termination-time"`
	}
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	n.Kind, n.Detail = CapacityReservationInterruption, identifier(d.Action)
	n.Deadline = parseTime(d.Termination, time.RFC3339)
	return withInstance(n, "detail.instance-id", d.InstanceID)
}

// parseBlockExpiration takes the block for one of instances; see [Notice.OnType].
func parseBlockExpiration(n Notice, e envelope) (Notice, error) {
	var d struct {
		Reservation string `json:"capacity-reservation-id"`
		End         string `json:"end-date"`
	}
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	id := cmp.Or(d.Reservation, reservationOf(e.Resources))
	if !IsID(id, "cr-") {
		return n, fmt.Errorf("detail.capacity-reservation-id is %q, not the id of a Capacity Reservation", clip(id))
	}
	n.Kind, n.Reservation = CapacityBlockExpiration, strings.Clone(id)
	if n.ID == "" { // as in AWS's examples; a block that was extended has another end
		n.ID = identifier(id + "-" + d.End)
	}
	if end := parseTime(d.End, time.RFC3339); !end.IsZero() {
		n.Deadline = end.Add(-blockLead)
	}
	return n, nil
}

// reservationOf is the Capacity Reservation among the resources of an envelope.
func reservationOf(resources json.RawMessage) string {
	for _, arn := range resourcesOf(resources) {
		if _, id, ok := strings.Cut(arn, ":capacity-reservation/"); ok {
			return id
		}
	}
	return ""
}

// OnType is a CapacityBlockExpiration for instances of a type. Those of UltraServers are
// terminated earlier than others, and by AWS's documents before the warning comes: then the
// deadline stays that of other instances. A notice of another kind does not depend on the type.
func (n Notice) OnType(instanceType string) Notice {
	if n.Kind != CapacityBlockExpiration || n.Deadline.IsZero() || !isUltraServer(instanceType) {
		return n
	}
	if earlier := n.Deadline.Add(blockLead - ultraServerLead); earlier.After(n.Time) {
		n.Deadline = earlier
	}
	return n
}
