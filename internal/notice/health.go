package notice

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// healthEvent is the detail of an AWS Health event.
// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
type healthEvent struct {
	EventArn          string         `json:"eventArn"`
	Service           string         `json:"service"`
	EventTypeCode     string         `json:"eventTypeCode"`
	EventTypeCategory string         `json:"eventTypeCategory"`
	CommunicationID   string         `json:"communicationId"`
	EventRegion       string         `json:"eventRegion"`
	StartTime         string         `json:"startTime"`
	StatusCode        string         `json:"statusCode"`
	AffectedAccount   string         `json:"affectedAccount"`
	AffectedEntities  []healthEntity `json:"affectedEntities"`
	Page              scalar         `json:"page"`
	BackupEvent       scalar         `json:"backupEvent"`
}

type healthEntity struct {
	EntityValue string `json:"entityValue"` // an id, or its ARN
	Status      string `json:"status"`
	StatusCode  string `json:"statusCode"` // the same, as the API of Health spells it
}

// over reports whether the event has nothing more to do with the entity, though it
// may go on for others.
func (e healthEntity) over() bool {
	status := cmp.Or(e.Status, e.StatusCode)
	return status == "RESOLVED" || status == "UNIMPAIRED"
}

func parseHealth(n Notice, e envelope) (Notice, error) {
	var d healthEvent
	if err := decode(e.Detail, &d); err != nil {
		return n, err
	}
	if d.Service != "EC2" || d.EventTypeCategory != "scheduledChange" {
		return Notice{Ignored: NotScheduled}, nil
	}
	n.Kind, n.Detail, n.Change = ScheduledChange, identifier(d.EventTypeCode), identifier(d.EventArn)
	if IsPolled(n.Change) { // only EC2 names changes so
		return n, fmt.Errorf("eventArn is %q, not the ARN of an event of AWS Health", clip(d.EventArn))
	}
	n.ID = d.id(n.ID)
	// By its name that of an UltraServer is over, though AWS documents no status for it.
	n.Ended = d.StatusCode == "closed" || strings.HasSuffix(d.EventTypeCode, "_MAINTENANCE_COMPLETED")
	// Health repeats an event in a second region and through an organization's
	// account: the detail says where it happens, the envelope where it was sent.
	n.Region = cmp.Or(identifier(d.region()), n.Region)
	n.Account = cmp.Or(identifier(d.AffectedAccount), n.Account)
	if !n.Ended {
		// AWS's own examples have days of one digit, which time.RFC1123 does not take.
		n.Deadline = parseTime(d.StartTime, "Mon, 2 Jan 2006 15:04:05 MST", time.RFC3339)
	}
	if err := n.addEntities(d.AffectedEntities); err != nil {
		return n, err
	}
	if len(n.Instances)+len(n.Hosts) == 0 {
		if err := n.addEntities(entitiesOf(e.Resources)); err != nil {
			return n, err
		}
	}
	if len(n.Instances)+len(n.Hosts) == 0 {
		return Notice{Ignored: NoInstance}, nil
	}
	return n, nil
}

// id names one page of one communication. The copy that Health sends to a backup
// Region has the communicationId of the original, and an envelope of its own. By
// one page of the documentation the communicationId ends with the number of the
// page, by another all pages share it: either way each page gets an id of its own.
func (d healthEvent) id(envelope string) string {
	id := cmp.Or(eventID(d.CommunicationID), envelope)
	page, err := strconv.Atoi(string(d.Page))
	suffix := "-" + strconv.Itoa(page)
	if err != nil || page <= 1 || strings.HasSuffix(id, suffix) {
		return id
	}
	return id[:min(len(id), identifierLimit-len(suffix))] + suffix
}

// region is where the event happens; empty where the envelope's Region is that. A
// backup copy without a Region of its own has that of the event's ARN.
func (d healthEvent) region() string {
	if d.EventRegion == "" && d.BackupEvent == "true" {
		if arn := strings.SplitN(d.EventArn, ":", 5); len(arn) == 5 {
			return arn[3]
		}
	}
	return d.EventRegion
}

// addEntities adds the instances and the Dedicated Hosts among the entities, each once. One that
// is named more than once is resolved when all of its entities are.
func (n *Notice) addEntities(entities []healthEntity) error {
	over := map[string]bool{}
	for _, entity := range entities {
		ids, limit, things := &n.Instances, instanceLimit, "instances"
		id, ok := instanceOf(entity.EntityValue)
		if !ok {
			ids, limit, things = &n.Hosts, hostLimit, "Dedicated Hosts"
			id, ok = hostOf(entity.EntityValue)
		}
		if !ok {
			continue
		}
		was, seen := over[id]
		over[id] = entity.over() && (was || !seen)
		if seen {
			continue
		}
		if len(*ids) == limit {
			return fmt.Errorf("the event names more than %d %s: AWS Health splits such an event into pages", limit, things)
		}
		*ids = append(*ids, id)
	}
	for _, id := range slices.Concat(n.Instances, n.Hosts) {
		if over[id] && !n.Ended {
			n.Resolved = append(n.Resolved, id)
		}
	}
	return nil
}

// entitiesOf are the resources of an envelope as entities.
func entitiesOf(resources json.RawMessage) []healthEntity {
	list := resourcesOf(resources)
	entities := make([]healthEntity, len(list))
	for k, value := range list {
		entities[k].EntityValue = value
	}
	return entities
}

// resourcesOf reads the resources of an envelope: a list, or a single one in some
// of AWS's examples. Anything else names nothing.
func resourcesOf(resources json.RawMessage) []string {
	var list []string
	if json.Unmarshal(resources, &list) == nil {
		return list
	}
	var one string
	if json.Unmarshal(resources, &one) != nil {
		return nil
	}
	return []string{one}
}

// instanceOf is the instance that an entity or a resource names, by its id or by
// its ARN.
func instanceOf(value string) (id string, ok bool) {
	if strings.HasPrefix(value, "arn:") {
		_, value, _ = strings.Cut(value, ":instance/")
	}
	return strings.Clone(value), IsInstanceID(value)
}

// hostOf is the Dedicated Host that an entity or a resource names, by its id or by its ARN.
func hostOf(value string) (id string, ok bool) {
	if strings.HasPrefix(value, "arn:") {
		_, value, _ = strings.Cut(value, ":dedicated-host/")
	}
	return strings.Clone(value), IsID(value, "h-")
}

// scalar is a string, a number or a boolean: AWS writes them as strings, but has
// no schema that promises it.
type scalar string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *scalar) UnmarshalJSON(text []byte) error {
	var quoted string
	if json.Unmarshal(text, &quoted) == nil {
		*s = scalar(quoted)
	} else {
		*s = scalar(text)
	}
	return nil
}
