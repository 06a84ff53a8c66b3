package instance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// ask runs a story about the statuses of instances in virtual time.
func ask(t *testing.T, story func(t *testing.T, aws *awssim.Server, s Statuses)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		t.Cleanup(aws.Close)
		story(t, aws, Statuses{Client: ec2.NewFromConfig(aws.Config()).DescribeInstanceStatus})
	})
}

func statusCalls(aws *awssim.Server) (n int) {
	for key, count := range aws.Counts() {
		if key.Action == "DescribeInstanceStatus" {
			n += count
		}
	}
	return n
}

func put(t *testing.T, aws *awssim.Server, instances ...awssim.Instance) {
	t.Helper()
	if err := aws.Apply(awssim.State{Instances: instances}); err != nil {
		t.Fatal(err)
	}
}

func TestTheScheduledEventsOfAllInstancesAreListed(t *testing.T) {
	ask(t, func(t *testing.T, aws *awssim.Server, s Statuses) {
		ids := instanceIDs(4)
		soon := time.Now().Add(time.Hour).UTC()
		put(
			t, aws,
			awssim.Instance{ID: ids[0], Events: []awssim.ScheduledEvent{
				{ID: "instance-event-0000000000000000a", Code: "system-reboot", Description: "scheduled reboot", NotBefore: soon},
				{ID: "instance-event-0000000000000000b", Code: "instance-reboot", Description: "[Completed] scheduled reboot", NotBefore: soon},
				{ID: "instance-event-0000000000000000c", Code: "system-maintenance", Description: "[Canceled] scheduled maintenance"},
				{ID: "instance-event-0000000000000000d", Code: "a-code-of-tomorrow"},
				{Code: "instance-stop"},
			}},
			awssim.Instance{ID: ids[1], State: "stopped", Events: []awssim.ScheduledEvent{{ID: "instance-event-0000000000000000e", Code: "instance-retirement"}}},
			awssim.Instance{ID: ids[2]},
			awssim.Instance{ID: ids[3], Events: []awssim.ScheduledEvent{{ID: "instance-event-0000000000000000f", Code: "a-code-of-tomorrow"}}},
		)
		got, err := s.Events(t.Context())
		want := []ScheduledEvent{
			{Instance: ids[0], ID: "instance-event-0000000000000000a", Code: "system-reboot", NotBefore: soon},
			{Instance: ids[0], ID: "instance-event-0000000000000000b", Code: "instance-reboot", NotBefore: soon, Over: true},
			{Instance: ids[0], ID: "instance-event-0000000000000000c", Code: "system-maintenance", Over: true},
			{Instance: ids[1], ID: "instance-event-0000000000000000e", Code: "instance-retirement"},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("error %v, events (-want +got):\n%s", err, diff)
		}
	})
}

func TestTheImpairedInstancesAreListedWithTheirFailedChecks(t *testing.T) {
	ask(t, func(t *testing.T, aws *awssim.Server, s Statuses) {
		ids := instanceIDs(5)
		now := time.Now().UTC()
		fails := func(since time.Time) awssim.StatusCheck {
			return awssim.StatusCheck{Status: "impaired", ImpairedSince: since}
		}
		put(
			t, aws,
			awssim.Instance{ID: ids[0], InstanceStatus: fails(now), SystemStatus: fails(now.Add(-time.Minute))},
			awssim.Instance{ID: ids[1], SystemStatus: fails(now)},
			awssim.Instance{ID: ids[2], InstanceStatus: fails(time.Time{})},
			awssim.Instance{ID: ids[3], InstanceStatus: awssim.StatusCheck{Status: "initializing"}},
			awssim.Instance{ID: ids[4], State: "stopped", InstanceStatus: fails(now)},
		)
		got, err := s.Impaired(t.Context())
		slices.SortFunc(got, func(a, b Impairment) int { return slices.Index(ids, a.Instance) - slices.Index(ids, b.Instance) })
		want := []Impairment{
			{Instance: ids[0], Checks: []string{"instance", "system"}, Since: now.Add(-time.Minute)},
			{Instance: ids[1], Checks: []string{"system"}, Since: now},
			{Instance: ids[2], Checks: []string{"instance"}},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("error %v, impaired (-want +got):\n%s", err, diff)
		}
	})
}

// A cluster of any size costs three calls while nothing is wrong, and one more for each thousand
// instances with events.
func TestStatusesCostACallForAThousandInstancesOfAnAnswer(t *testing.T) {
	for _, tt := range []struct{ instances, events, calls int }{{1000, 0, 3}, {10_000, 0, 3}, {10_000, 2500, 5}} {
		ask(t, func(t *testing.T, aws *awssim.Server, s Statuses) {
			for k, id := range instanceIDs(tt.instances) {
				i := awssim.Instance{ID: id}
				if k < tt.events {
					i.Events = []awssim.ScheduledEvent{{ID: fmt.Sprintf("instance-event-%017d", k), Code: "instance-stop"}}
				}
				put(t, aws, i)
			}
			events, err := s.Events(t.Context())
			_, impairedErr := s.Impaired(t.Context())
			if n := statusCalls(aws); n != tt.calls || len(events) != tt.events || err != nil || impairedErr != nil {
				t.Errorf("%d instances: %d calls, want %d; %d events, want %d; errors %v, %v",
					tt.instances, n, tt.calls, len(events), tt.events, err, impairedErr)
			}
		})
	}
}

func TestAStatusThatCannotBeReadIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		fault  awssim.Fault
		denied bool
		text   string
	}{
		"denied":       {awssim.Fault{Status: 403, Code: "UnauthorizedOperation"}, true, ": " + ErrStatusDenied.Error() + ": "},
		"no such call": {awssim.Fault{Status: 400, Code: "InvalidAction"}, true, ": the server does not have this call: "},
		"broken":       {awssim.Fault{Status: 503}, false, ""},
		"hangs":        {awssim.Fault{Hang: true}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ask(t, func(t *testing.T, aws *awssim.Server, s Statuses) {
				tt.fault.ID, tt.fault.Action = "f", "DescribeInstanceStatus"
				if err := aws.SetFault(tt.fault); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				_, err := s.Events(t.Context())
				_, impairedErr := s.Impaired(t.Context())
				for _, err := range []error{err, impairedErr} {
					if err == nil || errors.Is(err, ErrStatusDenied) != tt.denied || errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), tt.text) {
						t.Errorf("error %v, denied %t, want the text %q", err, tt.denied, tt.text)
					}
				}
				if took := time.Since(begin); took > 2*callTimeout {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}
