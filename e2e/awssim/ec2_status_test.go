package awssim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// threeStatuses are those of a running instance with a reboot ahead, of one whose checks fail,
// and of one that is stopped.
func threeStatuses(w *world) {
	w.Helper()
	w.ok(w.server.Apply(awssim.State{Instances: []awssim.Instance{
		{ID: idA, Events: []awssim.ScheduledEvent{
			{ID: "instance-event-000000000000000a1", Code: "system-reboot", Description: "scheduled reboot", NotBefore: w.start.Add(time.Hour), NotAfter: w.start.Add(2 * time.Hour), NotBeforeDeadline: w.start.Add(3 * time.Hour)},
			{ID: "instance-event-000000000000000a2", Code: "instance-stop", Description: "[Completed] stopped"},
		}},
		{ID: idB, InstanceStatus: awssim.StatusCheck{Status: "impaired", ImpairedSince: w.start}, SystemStatus: awssim.StatusCheck{Status: "initializing"}},
		{ID: idC, State: "stopped", Events: []awssim.ScheduledEvent{{ID: "instance-event-0000000000000000c", Code: "instance-retirement"}}, SystemStatus: awssim.StatusCheck{Status: "impaired"}},
	}}))
}

func TestAnInstanceStatusIsDescribedInFull(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeStatuses(w)
		got, err := w.ec2.DescribeInstanceStatus(w.ctx, &ec2.DescribeInstanceStatusInput{IncludeAllInstances: aws.Bool(true)})
		w.ok(err)
		start := w.start.UTC()
		ok := &types.InstanceStatusSummary{Status: "ok", Details: []types.InstanceStatusDetails{{Name: "reachability", Status: "passed"}}}
		none := &types.InstanceStatusSummary{Status: "not-applicable"}
		want := []types.InstanceStatus{
			{
				InstanceId: aws.String(idA), AvailabilityZone: aws.String("us-east-1a"), InstanceState: &types.InstanceState{Code: aws.Int32(16), Name: "running"},
				InstanceStatus: ok, SystemStatus: ok,
				Events: []types.InstanceStatusEvent{
					{InstanceEventId: aws.String("instance-event-000000000000000a1"), Code: "system-reboot", Description: aws.String("scheduled reboot"), NotBefore: aws.Time(start.Add(time.Hour)), NotAfter: aws.Time(start.Add(2 * time.Hour)), NotBeforeDeadline: aws.Time(start.Add(3 * time.Hour))},
					{InstanceEventId: aws.String("instance-event-000000000000000a2"), Code: "instance-stop", Description: aws.String("[Completed] stopped")},
				},
			},
			{
				InstanceId: aws.String(idB), AvailabilityZone: aws.String("us-east-1a"), InstanceState: &types.InstanceState{Code: aws.Int32(16), Name: "running"},
				InstanceStatus: &types.InstanceStatusSummary{Status: "impaired", Details: []types.InstanceStatusDetails{{Name: "reachability", Status: "failed", ImpairedSince: aws.Time(start)}}},
				SystemStatus:   &types.InstanceStatusSummary{Status: "initializing", Details: []types.InstanceStatusDetails{{Name: "reachability", Status: "initializing"}}},
			},
			{
				InstanceId: aws.String(idC), AvailabilityZone: aws.String("us-east-1a"), InstanceState: &types.InstanceState{Code: aws.Int32(80), Name: "stopped"},
				InstanceStatus: none, SystemStatus: none,
				Events: []types.InstanceStatusEvent{{InstanceEventId: aws.String("instance-event-0000000000000000c"), Code: "instance-retirement", Description: aws.String("")}},
			},
		}
		ignored := cmp.Options{
			cmpopts.EquateEmpty(),
			cmpopts.IgnoreUnexported(types.InstanceStatus{}, types.InstanceState{}, types.InstanceStatusSummary{}, types.InstanceStatusDetails{}, types.InstanceStatusEvent{}),
		}
		if diff := cmp.Diff(want, got.InstanceStatuses, ignored); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
	})
}

func TestDescribeInstanceStatusSelects(t *testing.T) {
	t.Parallel()
	by := func(all bool, name string, values ...string) *ec2.DescribeInstanceStatusInput {
		return &ec2.DescribeInstanceStatusInput{IncludeAllInstances: aws.Bool(all), Filters: []types.Filter{{Name: aws.String(name), Values: values}}}
	}
	tooMany := make([]string, 101)
	for i := range tooMany {
		tooMany[i] = fmt.Sprintf("i-%017x", i)
	}
	for name, test := range map[string]struct {
		input *ec2.DescribeInstanceStatusInput
		want  []string
		code  string
	}{
		"those that run":                  {input: &ec2.DescribeInstanceStatusInput{}, want: []string{idA, idB}},
		"all":                             {input: &ec2.DescribeInstanceStatusInput{IncludeAllInstances: aws.Bool(true)}, want: []string{idA, idB, idC}},
		"by ids":                          {input: &ec2.DescribeInstanceStatusInput{InstanceIds: []string{idB}}, want: []string{idB}},
		"by an unknown id":                {input: &ec2.DescribeInstanceStatusInput{InstanceIds: []string{unknown}}, code: "InvalidInstanceID.NotFound"},
		"by too many ids":                 {input: &ec2.DescribeInstanceStatusInput{InstanceIds: tooMany}, code: "InvalidParameterValue"},
		"by ids and page":                 {input: &ec2.DescribeInstanceStatusInput{InstanceIds: []string{idA}, MaxResults: aws.Int32(5)}, code: "InvalidParameterCombination"},
		"by a page that is too large":     {input: &ec2.DescribeInstanceStatusInput{MaxResults: aws.Int32(1001)}, code: "InvalidParameterValue"},
		"by the code of an event":         {input: by(false, "event.code", "system-reboot", "instance-retirement"), want: []string{idA}},
		"by the code, all":                {input: by(true, "event.code", "system-reboot", "instance-retirement"), want: []string{idA, idC}},
		"by the description of an event":  {input: by(false, "event.description", "[Completed]*"), want: []string{idA}},
		"by the id of an event":           {input: by(true, "event.instance-event-id", "instance-event-0000000000000000c"), want: []string{idC}},
		"by the status of the instance":   {input: by(false, "instance-status.status", "impaired"), want: []string{idB}},
		"by that of the system":           {input: by(false, "system-status.status", "impaired"), want: []string{}},
		"by a state":                      {input: by(true, "instance-state-name", "stopped"), want: []string{idC}},
		"by a filter that does not exist": {input: by(true, "colour", "red"), code: "InvalidParameterValue"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				threeStatuses(w)
				output, err := w.ec2.DescribeInstanceStatus(w.ctx, test.input)
				if test.code != "" {
					wantError(t, err, test.code, 400)
					return
				}
				w.ok(err)
				got := []string{}
				for _, status := range output.InstanceStatuses {
					got = append(got, *status.InstanceId)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("instances (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestInstanceStatusesComeInPages(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		for k := range 12 {
			w.ok(w.server.PutInstance(awssim.Instance{ID: fmt.Sprintf("i-%017x", k)}))
		}
		pages := ec2.NewDescribeInstanceStatusPaginator(w.ec2, &ec2.DescribeInstanceStatusInput{MaxResults: aws.Int32(5)})
		var sizes []int
		seen := map[string]bool{}
		for pages.HasMorePages() {
			page, err := pages.NextPage(w.ctx)
			w.ok(err)
			sizes = append(sizes, len(page.InstanceStatuses))
			for _, status := range page.InstanceStatuses {
				seen[*status.InstanceId] = true
			}
		}
		if diff := cmp.Diff([]int{5, 5, 2}, sizes); diff != "" || len(seen) != 12 {
			t.Errorf("%d instances, pages (-want +got):\n%s", len(seen), diff)
		}
	})
}

func TestAStatusThatIsSetIsDescribed(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeStatuses(w)
		w.ok(w.server.SetInstanceStatus(idB, nil, awssim.StatusCheck{}, awssim.StatusCheck{Status: "impaired"}))
		output, err := w.ec2.DescribeInstanceStatus(w.ctx, &ec2.DescribeInstanceStatusInput{InstanceIds: []string{idB}})
		w.ok(err)
		got := output.InstanceStatuses[0]
		if got.InstanceStatus.Status != "ok" || got.SystemStatus.Status != "impaired" || got.SystemStatus.Details[0].ImpairedSince != nil {
			t.Errorf("status %+v, %+v", got.InstanceStatus, got.SystemStatus)
		}
		if err := w.server.SetInstanceStatus(unknown, nil, awssim.StatusCheck{}, awssim.StatusCheck{}); err == nil {
			t.Error("an unknown instance has a status")
		}
	})
}
