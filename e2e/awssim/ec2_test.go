package awssim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

const (
	idA     = "i-0000000000000000a"
	idB     = "i-0000000000000000b"
	idC     = "i-0000000000000000c"
	unknown = "i-0000000000000dead"
)

func threeInstances(w *world) {
	w.Helper()
	w.ok(w.server.Apply(awssim.State{Instances: []awssim.Instance{
		{ID: idA, PrivateDNSName: "ip-10-0-0-1.ec2.internal", Tags: map[string]string{"managed": "", "team": "blue/green"}, Lifecycle: "spot", Reservation: "cr-0123456789abcdef0"},
		{ID: idB, State: "pending", Tags: map[string]string{"team": "red"}},
		{ID: idC, State: "stopped"},
	}}))
}

func (w *world) describe(input *ec2.DescribeInstancesInput) ([]string, error) {
	output, err := w.ec2.DescribeInstances(w.ctx, input)
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, reservation := range output.Reservations {
		for _, instance := range reservation.Instances {
			ids = append(ids, *instance.InstanceId)
		}
	}
	return ids, nil
}

// state returns the state of an instance, and "" for one that EC2 no longer knows.
func (w *world) state(id string) types.InstanceStateName {
	w.Helper()
	output, err := w.ec2.DescribeInstances(w.ctx, &ec2.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("instance-id"), Values: []string{id}}}})
	w.ok(err)
	if len(output.Reservations) == 0 {
		return ""
	}
	return output.Reservations[0].Instances[0].State.Name
}

func TestAnInstanceIsDescribedInFull(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		output, err := w.ec2.DescribeInstances(w.ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{idA}})
		w.ok(err)
		got := output.Reservations[0].Instances[0]
		want := awssim.Instance{
			ID: idA, State: "running", PrivateDNSName: "ip-10-0-0-1.ec2.internal", LaunchTime: w.start.UTC(),
			Zone: "us-east-1a", Type: "m5.large", Lifecycle: "spot", Tags: map[string]string{"managed": "", "team": "blue/green"},
			Reservation: "cr-0123456789abcdef0",
		}
		tags := map[string]string{}
		for _, tag := range got.Tags {
			tags[*tag.Key] = *tag.Value
		}
		diff := cmp.Diff(want, awssim.Instance{
			ID: *got.InstanceId, State: string(got.State.Name), PrivateDNSName: *got.PrivateDnsName, LaunchTime: *got.LaunchTime,
			Zone: *got.Placement.AvailabilityZone, Type: string(got.InstanceType), Lifecycle: string(got.InstanceLifecycle), Tags: tags, Reservation: *got.CapacityReservationId,
		})
		if diff != "" {
			t.Errorf("instance (-want +got):\n%s", diff)
		}
		if code := *got.State.Code; code != 16 {
			t.Errorf("state code = %d, want 16", code)
		}
	})
}

func TestDescribeInstancesSelects(t *testing.T) {
	t.Parallel()
	byFilter := func(name string, values ...string) *ec2.DescribeInstancesInput {
		return &ec2.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String(name), Values: values}}}
	}
	tooMany := make([]string, 201)
	for i := range tooMany {
		tooMany[i] = fmt.Sprintf("i-%017x", i)
	}
	for name, test := range map[string]struct {
		input *ec2.DescribeInstancesInput
		want  []string
		code  string
	}{
		"all":                              {input: &ec2.DescribeInstancesInput{}, want: []string{idA, idB, idC}},
		"by ids":                           {input: &ec2.DescribeInstancesInput{InstanceIds: []string{idC, idA}}, want: []string{idC, idA}},
		"by ids, one unknown fails all":    {input: &ec2.DescribeInstancesInput{InstanceIds: []string{idA, unknown}}, code: "InvalidInstanceID.NotFound"},
		"by ids, one malformed fails all":  {input: &ec2.DescribeInstancesInput{InstanceIds: []string{idA, "i-xyz"}}, code: "InvalidInstanceID.Malformed"},
		"by filter, unknown ones missing":  {input: byFilter("instance-id", idA, unknown, "i-xyz"), want: []string{idA}},
		"by filter, none":                  {input: byFilter("instance-id", unknown), want: []string{}},
		"by filter, with a wildcard":       {input: byFilter("private-dns-name", "ip-10-0-*"), want: []string{idA}},
		"by tag":                           {input: byFilter("tag:team", "red", "green"), want: []string{idB}},
		"by tag, a wildcard over a slash":  {input: byFilter("tag:team", "blue*"), want: []string{idA}},
		"by tag, the empty value":          {input: byFilter("tag:managed", ""), want: []string{idA}},
		"by tag key":                       {input: byFilter("tag-key", "managed"), want: []string{idA}},
		"by state":                         {input: byFilter("instance-state-name", "pending", "running"), want: []string{idA, idB}},
		"by Capacity Reservation":          {input: byFilter("capacity-reservation-id", "cr-0123456789abcdef0"), want: []string{idA}},
		"by any Capacity Reservation":      {input: byFilter("capacity-reservation-id", "*"), want: []string{idA}},
		"by a filter that does not exist":  {input: byFilter("colour", "red"), code: "InvalidParameterValue"},
		"by more than 200 values":          {input: byFilter("instance-id", tooMany...), code: "FilterLimitExceeded"},
		"by ids and page":                  {input: &ec2.DescribeInstancesInput{InstanceIds: []string{idA}, MaxResults: aws.Int32(5)}, code: "InvalidParameterCombination"},
		"by a page that is too small":      {input: &ec2.DescribeInstancesInput{MaxResults: aws.Int32(1)}, code: "InvalidParameterValue"},
		"by two filters, both must accept": {input: &ec2.DescribeInstancesInput{Filters: append(byFilter("tag-key", "team").Filters, byFilter("instance-state-name", "running").Filters...)}, want: []string{idA}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
				threeInstances(w)
				got, err := w.describe(test.input)
				if test.code != "" {
					wantError(t, err, test.code, 400)
					return
				}
				w.ok(err)
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("instances (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestDescribeInstancesComesInPages(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		for i := range 12 {
			w.ok(w.server.PutInstance(awssim.Instance{ID: fmt.Sprintf("i-%017x", i)}))
		}
		pages := ec2.NewDescribeInstancesPaginator(w.ec2, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(5)})
		var sizes []int
		for pages.HasMorePages() {
			page, err := pages.NextPage(w.ctx)
			w.ok(err)
			sizes = append(sizes, len(page.Reservations))
		}
		if diff := cmp.Diff([]int{5, 5, 2}, sizes); diff != "" {
			t.Errorf("sizes of the pages (-want +got):\n%s", diff)
		}
	})
}

func TestATerminatedInstanceIsShownForAnHour(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{ShutdownTime: 40 * time.Second}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		output, err := w.ec2.TerminateInstances(w.ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{idA}})
		w.ok(err)
		if change := output.TerminatingInstances[0]; change.PreviousState.Name != "running" || change.CurrentState.Name != "shutting-down" {
			t.Errorf("change = %s to %s", change.PreviousState.Name, change.CurrentState.Name)
		}
		for _, step := range []struct {
			wait time.Duration
			want types.InstanceStateName
		}{
			{40*time.Second - 1, types.InstanceStateNameShuttingDown},
			{1, types.InstanceStateNameTerminated},
			{time.Hour - 1, types.InstanceStateNameTerminated},
			{1, ""},
		} {
			time.Sleep(step.wait)
			if got := w.state(idA); got != step.want {
				t.Errorf("after %s: state = %q, want %q", time.Since(w.start), got, step.want)
			}
		}
	})
}

func TestAStoppedInstanceStays(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		_, err := w.ec2.StopInstances(w.ctx, &ec2.StopInstancesInput{InstanceIds: []string{idA}})
		w.ok(err)
		if got := w.state(idA); got != types.InstanceStateNameStopping {
			t.Errorf("state = %q, want stopping", got)
		}
		time.Sleep(48 * time.Hour)
		if got := w.state(idA); got != types.InstanceStateNameStopped {
			t.Errorf("state = %q, want stopped", got)
		}
	})
}

func TestALongPollSeesTheEventsOfAnInstancesEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{ShutdownTime: 15 * time.Second}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		w.ok(w.server.PutRule(awssim.Rule{Name: "states", DetailType: "EC2 Instance State-change Notification", Queue: "q"}))
		w.ok(w.server.SetInstanceState(idA, "shutting-down"))
		for _, want := range []struct {
			state string
			after time.Duration
		}{{"shutting-down", 0}, {"terminated", 15 * time.Second}} {
			message := w.receiveOne(20)
			w.delete(message)
			if took := time.Since(w.start); took != want.after {
				t.Errorf("%s was told after %s, want %s", want.state, took, want.after)
			}
			wantJSON(t, *message.Body, `{
				"version": "0", "id": "ANY", "detail-type": "EC2 Instance State-change Notification", "source": "aws.ec2",
				"account": "123456789012", "time": "`+time.Now().UTC().Format(time.RFC3339)+`", "region": "us-east-1",
				"resources": ["arn:aws:ec2:us-east-1:123456789012:instance/`+idA+`"],
				"detail": {"instance-id": "`+idA+`", "state": "`+want.state+`"}
			}`)
		}
	})
}

func TestTagsAreCreatedAndDescribed(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		_, err := w.ec2.CreateTags(w.ctx, &ec2.CreateTagsInput{Resources: []string{idB}, Tags: []types.Tag{{Key: aws.String("managed"), Value: aws.String("yes")}}})
		w.ok(err)
		output, err := w.ec2.DescribeTags(w.ctx, &ec2.DescribeTagsInput{Filters: []types.Filter{{Name: aws.String("key"), Values: []string{"managed"}}}})
		w.ok(err)
		var got []string
		for _, tag := range output.Tags {
			got = append(got, *tag.ResourceId+" "+*tag.Key+"="+*tag.Value)
		}
		if diff := cmp.Diff([]string{idA + " managed=", idB + " managed=yes"}, got); diff != "" {
			t.Errorf("tags (-want +got):\n%s", diff)
		}
	})
}

func TestPutInstanceRefusesWhatEC2DoesNotHave(t *testing.T) {
	t.Parallel()
	server := awssim.New(awssim.Options{})
	for _, instance := range []awssim.Instance{{ID: "i-xyz"}, {ID: idA, State: "tired"}} {
		if err := server.PutInstance(instance); err == nil {
			t.Errorf("PutInstance took %+v", instance)
		}
	}
}
