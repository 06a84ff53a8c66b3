package notice

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Report is what the pod on a node has read from the metadata of its instance, for the leader to act on. It stands in
// an annotation of the Node, which the kubelet can write, too.
type Report struct {
	// To is the Lease of the leader that is to act on it, as namespace/name: a cluster may have several.
	To      string
	Notices []Notice
	// Answered are the ids of those that the leader has decided about and that no intent tells of, as where a rule
	// ignores them.
	Answered []string
	// Deaf is since when the metadata gives the pod no answer, so that it misses what comes; zero: it does.
	Deaf time.Time
}

const (
	// reportLimit bounds the text of a report, in bytes.
	reportLimit = 16 << 10
	// MostReported bounds the notices of a report: an instance has a handful.
	MostReported = 16
)

type reportText struct {
	To       string           `json:"to"`
	Notices  []reportedNotice `json:"notices"`
	Answered []string         `json:"answered,omitempty"`
	Deaf     time.Time        `json:"deaf,omitzero"`
}

type reportedNotice struct {
	Kind     Kind      `json:"kind"`
	ID       string    `json:"id"`
	Time     time.Time `json:"time,omitzero"`
	Deadline time.Time `json:"deadline,omitzero"`
	Change   string    `json:"change,omitempty"`
	Ended    bool      `json:"ended,omitempty"`
	Detail   string    `json:"detail,omitempty"`
}

// Encode is the text of a report. Of more notices than a report may have, it has the last ones.
func (r Report) Encode() (string, error) {
	text := reportText{To: r.To, Answered: r.Answered, Deaf: r.Deaf}
	for _, n := range r.Notices[max(0, len(r.Notices)-MostReported):] {
		text.Notices = append(text.Notices, reportedNotice{
			n.Kind, n.ID, n.Time, n.Deadline, n.Change, n.Ended, n.Detail,
		})
	}
	b, err := json.Marshal(text)
	return string(b), err
}

// DecodeReport reads the report about an instance, at a time. A notice in it is one that the metadata can have: of its
// kinds, with its ids, of no hook, of no other instance, and of the past.
func DecodeReport(text, instance string, now time.Time) (Report, error) {
	if len(text) > reportLimit {
		return Report{}, fmt.Errorf("it has %d bytes, and may have %d", len(text), reportLimit)
	}
	var raw reportText
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return Report{}, fmt.Errorf("decode: %w", err)
	}
	if len(raw.Notices) > MostReported || len(raw.Answered) > MostReported {
		return Report{}, fmt.Errorf("it has more than %d notices", MostReported)
	}
	if !isWritable(raw.Deaf.UTC()) {
		return Report{}, fmt.Errorf("deaf since a time that no calendar has")
	}
	r := Report{To: raw.To, Answered: raw.Answered, Deaf: raw.Deaf.UTC()}
	for _, d := range raw.Notices {
		n := Notice{
			Kind: d.Kind, ID: identifier(d.ID), Time: d.Time.UTC(), Deadline: d.Deadline.UTC(), Change: identifier(d.Change),
			Ended: d.Ended, Detail: identifier(d.Detail), Reported: true,
		}
		switch d.Kind {
		case SpotInterruption, RebalanceRecommendation, ASGTerminate:
			n.Change, n.Ended = "", false
		case ScheduledChange:
			if n.Change == "" {
				return Report{}, fmt.Errorf("%s names no change", n.ID)
			}
		case Ignored, StateChange, ASGLaunch, CapacityReservationInterruption, CapacityBlockExpiration, InstanceImpaired:
			return Report{}, fmt.Errorf("%s is of the kind %s, which the metadata does not have", n.ID, d.Kind)
		}
		if !strings.HasPrefix(n.ID, metadataID) {
			return Report{}, fmt.Errorf("%q is no id of a notice of the metadata", n.ID)
		}
		if !isWritable(n.Deadline) || !isWritable(n.Time) {
			return Report{}, fmt.Errorf("%s has a time that no calendar has", n.ID)
		}
		if n.Time.After(now) {
			n.Time = now.UTC()
		}
		n, err := withInstance(n, "the instance", instance)
		if err != nil {
			return Report{}, err
		}
		r.Notices = append(r.Notices, n)
	}
	return r, nil
}

// isWritable reports whether a time can be written in JSON, also where clocks are ahead.
func isWritable(t time.Time) bool { return t.Year() >= 1 && t.Year() < 9999 }

// Telling is the report with other notices, to a leader. The answers stay: what the next process of the pod reads in
// the metadata has the same ids. deaf: see Report.
func (r Report) Telling(to string, notices []Notice, deaf time.Time) Report {
	r.To, r.Notices, r.Deaf = to, notices, deaf
	return r
}

// IsEmpty reports whether it tells the leader nothing.
func (r Report) IsEmpty() bool { return len(r.Notices)+len(r.Answered) == 0 && r.Deaf.IsZero() }

// Answering is the report with the leader's answer to a notice.
func (r Report) Answering(id string) Report {
	if r.has(id) && !slices.Contains(r.Answered, id) {
		r.Answered = append(slices.Clone(r.Answered), id)
		r.Answered = r.Answered[max(0, len(r.Answered)-MostReported):]
	}
	return r
}

func (r Report) has(id string) bool {
	return slices.ContainsFunc(r.Notices, func(n Notice) bool { return n.ID == id })
}
