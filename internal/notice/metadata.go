package notice

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What the instance metadata service says of its own instance becomes notices here. The
// documents have no ids: a notice gets one that is made from what it announces, so that
// whoever reads the same document again makes the same notice.

// metadataID is what the id of a notice of the metadata begins with.
const metadataID = "imds-"

// OfMetadata reports whether a notice with this id is from the instance metadata.
func OfMetadata(id string) bool { return strings.HasPrefix(id, metadataID) }

// Hibernate is the Detail of a spot interruption that begins with its notice: there are no two minutes.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const Hibernate = "hibernate"

// metadataEvents bounds the scheduled changes of one document. AWS plans a handful for an
// instance at most.
const metadataEvents = 32

// OfSpotAction reads the metadata item spot/instance-action of an instance. The deadline is the
// time of the action; a hibernation begins at once.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
func OfSpotAction(body, instance string) (Notice, error) {
	var d struct {
		Action string `json:"action"`
		Time   string `json:"time"`
	}
	if err := decodeItem(body, &d); err != nil {
		return Notice{}, err
	}
	action := identifier(d.Action)
	if action == "" {
		return Notice{}, errors.New("it names no action")
	}
	n := Notice{Kind: SpotInterruption, Detail: action, ID: metadataID + "spot-" + action}
	if at := parseTime(d.Time, time.RFC3339); !at.IsZero() {
		n.ID += "-" + compact(at)
		n.Deadline, n.Time = at, at.Add(-spotNotice)
		if action == Hibernate {
			n.Time = at
		}
	}
	return withInstance(n, "the instance", instance)
}

// OfRebalance reads the metadata item events/recommendations/rebalance of an instance.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
func OfRebalance(body, instance string) (Notice, error) {
	var d struct {
		NoticeTime string `json:"noticeTime"`
	}
	if err := decodeItem(body, &d); err != nil {
		return Notice{}, err
	}
	n := Notice{Kind: RebalanceRecommendation, ID: metadataID + "rebalance"}
	if n.Time = parseTime(d.NoticeTime, time.RFC3339); !n.Time.IsZero() {
		n.ID += "-" + compact(n.Time)
	}
	return withInstance(n, "the instance", instance)
}

// Terminated reports whether the metadata item autoscaling/target-lifecycle-state says that
// Auto Scaling is about to terminate the instance.
//
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
func Terminated(body string) bool {
	state := strings.TrimSpace(body)
	return state == "Terminated" || state == "Warmed:Terminated"
}

// OfTermination is the notice that Auto Scaling is about to terminate the instance. It has no
// hook: the metadata does not name the ones that wait. life tells one life of the instance from
// another; it can be empty.
func OfTermination(instance, life string) (Notice, error) {
	n := Notice{Kind: ASGTerminate, ID: metadataID + "asg-terminated", Detail: "Terminated"}
	if life = identifier(life); life != "" {
		n.ID += "-" + life[:min(len(life), 8)]
	}
	return withInstance(n, "the instance", instance)
}

// OfScheduled reads the metadata items events/maintenance/scheduled and history of an instance,
// at a time: the documents do not say when a change was announced. Notices that can be read are
// returned with the error too. [Notice.Change] is the id of the change.
func OfScheduled(body, instance string, read time.Time) ([]Notice, error) {
	var list []struct {
		NotBefore   string
		Code        string
		Description string
		EventID     string `json:"EventId"`
		State       string
	}
	if err := decodeItem(body, &list); err != nil {
		return nil, err
	}
	if len(list) > metadataEvents {
		return nil, fmt.Errorf("it has %d scheduled changes, and no instance has more than %d", len(list), metadataEvents)
	}
	var notices []Notice
	var errs []error
	for _, d := range list {
		n := Notice{
			Kind: ScheduledChange, Change: identifier(d.EventID), Time: read.UTC().Truncate(time.Second),
			Detail: identifier(d.Code), Ended: isOver(d.State, d.Description),
		}
		if n.Change == "" {
			errs = append(errs, errors.New("a scheduled change has no EventId"))
			continue
		}
		at := parseTime(d.NotBefore, "2 Jan 2006 15:04:05 MST", time.RFC3339)
		switch n.ID = metadataID + n.Change; {
		case n.Ended:
			n.ID += "-ended"
		case !at.IsZero(): // a change that is moved is news
			n.Deadline = at
			n.ID += "-" + compact(at)
		}
		n, err := withInstance(n, "the instance", instance)
		if err != nil {
			return nil, err
		}
		notices = append(notices, n)
	}
	return notices, errors.Join(errs...)
}

// isOver reports whether a scheduled change has taken place or was called off. Its description
// says so too, and by some of AWS's documents only that does.
func isOver(state, description string) bool {
	switch strings.ToLower(state) {
	case "completed", "canceled", "cancelled":
		return true
	}
	return strings.HasPrefix(description, "[Completed]") || strings.HasPrefix(description, "[Canceled]")
}

func decodeItem(body string, into any) error {
	if err := json.Unmarshal([]byte(body), into); err != nil {
		return fmt.Errorf("it is not the JSON that AWS documents: %w", err)
	}
	return nil
}

// compact is a time in an id. A colon would not be part of the value of a taint.
func compact(t time.Time) string { return t.UTC().Format("20060102T150405Z") }
