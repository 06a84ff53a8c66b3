package awssim

import (
	"context"
	"encoding/xml"
	"slices"
	"time"
)

// ScheduledEvent is a change that AWS plans for an instance.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceStatusEvent.html
type ScheduledEvent struct {
	ID string `json:"id"`
	// Code is instance-reboot, system-reboot, system-maintenance, instance-retirement or
	// instance-stop.
	Code string `json:"code"`
	// Description begins with [Completed] or [Canceled] when the event is over.
	Description       string    `json:"description,omitempty"`
	NotBefore         time.Time `json:"notBefore,omitzero"`
	NotAfter          time.Time `json:"notAfter,omitzero"`
	NotBeforeDeadline time.Time `json:"notBeforeDeadline,omitzero"`
}

// StatusCheck is the result of the checks of one sort.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceStatusSummary.html
type StatusCheck struct {
	// Status is ok (the default), impaired, initializing, insufficient-data or not-applicable.
	Status string `json:"status,omitempty"`
	// ImpairedSince is when the check failed; zero: EC2 does not say.
	ImpairedSince time.Time `json:"impairedSince,omitzero"`
}

// statusesAPage are the most that EC2 returns in one answer.
const statusesAPage = 1000

type describeInstanceStatusResult struct {
	XMLName   xml.Name            `xml:"http://ec2.amazonaws.com/doc/2016-11-15/ DescribeInstanceStatusResponse"`
	RequestID string              `xml:"requestId"`
	Statuses  []ec2InstanceStatus `xml:"instanceStatusSet>item"`
	NextToken string              `xml:"nextToken,omitempty"`
}

type ec2InstanceStatus struct {
	InstanceID string     `xml:"instanceId"`
	Zone       string     `xml:"availabilityZone"`
	State      ec2State   `xml:"instanceState"`
	System     ec2Status  `xml:"systemStatus"`
	Instance   ec2Status  `xml:"instanceStatus"`
	Events     []ec2Event `xml:"eventsSet>item"`
}

type ec2Status struct {
	Status  string            `xml:"status"`
	Details []ec2StatusDetail `xml:"details>item"`
}

type ec2StatusDetail struct {
	Name          string `xml:"name"`
	Status        string `xml:"status"`
	ImpairedSince string `xml:"impairedSince,omitempty"`
}

type ec2Event struct {
	ID                string `xml:"instanceEventId"`
	Code              string `xml:"code"`
	Description       string `xml:"description"`
	NotBefore         string `xml:"notBefore,omitempty"`
	NotAfter          string `xml:"notAfter,omitempty"`
	NotBeforeDeadline string `xml:"notBeforeDeadline,omitempty"`
}

// describeInstanceStatus lists running instances, unless all are asked for.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html
func describeInstanceStatus(_ context.Context, s *Server, req *request) (any, *apiError) {
	ids := req.list("InstanceId.")
	req.note("instance", ids...)
	filters, problem := req.filters()
	if problem != nil {
		return nil, problem
	}
	if most := 100; len(ids) > most {
		return nil, badRequest("InvalidParameterValue", "At most %d instances can be named", most)
	}
	size, problem := req.pageSize(ids)
	if problem != nil {
		return nil, problem
	}
	if size == 0 {
		size = statusesAPage
	}
	if req.form.Get("DryRun") == "true" {
		return nil, dryRun()
	}
	all := req.form.Get("IncludeAllInstances") == "true"
	output := describeInstanceStatusResult{RequestID: requestID}
	s.locked(func(time.Time) {
		candidates := s.sortedInstances()
		if len(ids) > 0 {
			if candidates, problem = s.named(ids); problem != nil {
				return
			}
		}
		after := req.form.Get("NextToken")
		for _, i := range candidates {
			if !all && i.State != "running" || after != "" && i.ID <= after {
				continue
			}
			status := i.status()
			var ok bool
			if ok, problem = status.passes(filters); problem != nil {
				return
			}
			if !ok {
				continue
			}
			if len(output.Statuses) == size {
				output.NextToken = output.Statuses[size-1].InstanceID
				return
			}
			output.Statuses = append(output.Statuses, status)
		}
	})
	req.entries = len(output.Statuses)
	return output, problem
}

func (i *instance) status() ec2InstanceStatus {
	status := ec2InstanceStatus{
		InstanceID: i.ID, Zone: i.Zone, State: ec2State{Code: ec2States[i.State], Name: i.State},
		System: i.SystemStatus.wire(i.State), Instance: i.InstanceStatus.wire(i.State),
	}
	for _, e := range i.Events {
		status.Events = append(status.Events, ec2Event{
			e.ID, e.Code, e.Description, ec2Time(e.NotBefore), ec2Time(e.NotAfter), ec2Time(e.NotBeforeDeadline),
		})
	}
	return status
}

// wire is the check of an instance in a state. Only running instances are checked.
func (c StatusCheck) wire(state string) ec2Status {
	if state != "running" {
		return ec2Status{Status: "not-applicable"}
	}
	setDefault(&c.Status, "ok")
	detail := ec2StatusDetail{Name: "reachability", Status: "passed"}
	switch c.Status {
	case "ok":
	case "impaired":
		detail.Status, detail.ImpairedSince = "failed", ec2Time(c.ImpairedSince)
	default:
		detail.Status = c.Status
	}
	return ec2Status{Status: c.Status, Details: []ec2StatusDetail{detail}}
}

// passes reports whether the status passes all filters. A filter of events passes if it does for
// one of them.
func (s ec2InstanceStatus) passes(filters []filter) (bool, *apiError) {
	for _, f := range filters {
		event := func(field func(ec2Event) string) bool {
			return slices.ContainsFunc(s.Events, func(e ec2Event) bool { return f.accepts(field(e)) })
		}
		var ok bool
		switch f.name {
		case "event.code":
			ok = event(func(e ec2Event) string { return e.Code })
		case "event.description":
			ok = event(func(e ec2Event) string { return e.Description })
		case "event.instance-event-id":
			ok = event(func(e ec2Event) string { return e.ID })
		case "instance-state-name":
			ok = f.accepts(s.State.Name)
		case "instance-status.status":
			ok = f.accepts(s.Instance.Status)
		case "system-status.status":
			ok = f.accepts(s.System.Status)
		default:
			return false, badRequest("InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// ec2Time is a time as EC2 writes it; empty for none.
func ec2Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
