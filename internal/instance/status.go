package instance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// StatusAPI is the call of EC2 that Statuses makes; see [API].
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html
type StatusAPI func(
	context.Context, *ec2.DescribeInstanceStatusInput, ...func(*ec2.Options),
) (*ec2.DescribeInstanceStatusOutput, error)

// ErrStatusDenied is wrapped by the error of Statuses if the role lacks the permission.
var ErrStatusDenied = errors.New("permission ec2:DescribeInstanceStatus is missing on all resources")

// Statuses reads what EC2 says of all instances of the account in the region: the events that
// AWS has scheduled for them, and the status checks that fail. It makes one call for each
// thousand instances of an answer. Its methods may be called concurrently.
type Statuses struct{ Client StatusAPI }

// A ScheduledEvent is a change that AWS plans for an instance. It is plain data.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html
type ScheduledEvent struct {
	Instance string
	ID       string // InstanceEventId, which stays the same when the event is moved
	Code     string // one of the event codes that EC2 documents
	// NotBefore is when the event begins at the earliest; zero: EC2 does not say.
	NotBefore time.Time
	// Over: the event is completed or cancelled. EC2 lists it for up to a week more.
	Over bool
}

// An Impairment is an instance whose status checks fail. It is plain data.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
type Impairment struct {
	Instance string
	// Checks are those that fail: instance, system or both, in this order.
	Checks []string
	// Since is when the first of them failed; zero: EC2 does not say.
	Since time.Time
}

// eventCodes are all codes of scheduled events.
var eventCodes = []string{
	string(types.EventCodeInstanceReboot), string(types.EventCodeSystemReboot), string(types.EventCodeSystemMaintenance),
	string(types.EventCodeInstanceRetirement), string(types.EventCodeInstanceStop),
}

// Events returns the scheduled events of all instances, also of those that are stopped. The
// error wraps ErrStatusDenied if the role lacks the permission.
func (s Statuses) Events(ctx context.Context) ([]ScheduledEvent, error) {
	var events []ScheduledEvent
	err := s.pages(ctx, "event.code", eventCodes, true, func(status types.InstanceStatus) {
		for _, e := range status.Events {
			id, description := aws.ToString(e.InstanceEventId), aws.ToString(e.Description)
			// An event without such an id cannot be told from another one.
			if !notice.IsPolled(id) || !slices.Contains(eventCodes, string(e.Code)) {
				continue
			}
			events = append(events, ScheduledEvent{
				Instance: aws.ToString(status.InstanceId), ID: id, Code: string(e.Code), NotBefore: aws.ToTime(e.NotBefore),
				Over: strings.HasPrefix(description, "[Completed]") || strings.HasPrefix(description, "[Canceled]"),
			})
		}
	})
	return events, err
}

// Impaired returns the running instances whose instance status or system status is impaired. The
// error wraps ErrStatusDenied if the role lacks the permission.
func (s Statuses) Impaired(ctx context.Context) ([]Impairment, error) {
	var impaired []Impairment
	at := map[string]int{} // by instance
	for _, check := range []string{"instance", "system"} {
		failed := []string{string(types.SummaryStatusImpaired)}
		err := s.pages(ctx, check+"-status.status", failed, false, func(status types.InstanceStatus) {
			id, summary := aws.ToString(status.InstanceId), status.InstanceStatus
			if check == "system" {
				summary = status.SystemStatus
			}
			k, known := at[id]
			if !known {
				k, at[id] = len(impaired), len(impaired)
				impaired = append(impaired, Impairment{Instance: id})
			}
			i := &impaired[k]
			i.Checks = append(i.Checks, check)
			if summary == nil {
				return
			}
			for _, detail := range summary.Details {
				i.Since = intent.Earlier(i.Since, aws.ToTime(detail.ImpairedSince))
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return impaired, nil
}

// pages calls visit for each status that passes the filter. all: also for instances that do not run.
func (s Statuses) pages(
	ctx context.Context, filter string, values []string, all bool, visit func(types.InstanceStatus),
) error {
	in := &ec2.DescribeInstanceStatusInput{
		Filters:             []types.Filter{{Name: aws.String(filter), Values: values}},
		IncludeAllInstances: aws.Bool(all), MaxResults: aws.Int32(pageSize),
	}
	for {
		page, err := bounded(ctx, "ec2 DescribeInstanceStatus, filter "+filter, ErrStatusDenied, s.Client, in)
		if err != nil {
			return err
		}
		for _, status := range page.InstanceStatuses {
			visit(status)
		}
		if in.NextToken = page.NextToken; aws.ToString(in.NextToken) == "" {
			return nil
		}
	}
}
