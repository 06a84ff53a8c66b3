package instance

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

const block = "cr-0123456789abcdef0"

func TestTheInstancesOfAReservationAreListedPageByPageAndRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		t.Cleanup(aws.Close)
		ids := instanceIDs(pageSize + 50)
		for k, id := range ids {
			i := awssim.Instance{ID: id, Type: "p5.48xlarge", Lifecycle: "capacity-block", Reservation: block}
			switch k {
			case 0:
				i.State = "terminated"
			case 1:
				i.State = "shutting-down"
			case 2:
				i.Reservation = "cr-0fedcba9876543210"
			case 3:
				i.Reservation = ""
			case 4:
				i.State = "stopped"
			}
			if err := aws.PutInstance(i); err != nil {
				t.Fatal(err)
			}
		}
		d := NewDirectory(ec2.NewFromConfig(aws.Config()).DescribeInstances)
		all, err := d.Members(t.Context(), block, nil, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, i := range all {
			got = append(got, i.ID)
			if i.Type != "p5.48xlarge" || i.Lifecycle != "capacity-block" {
				t.Errorf("%+v", i)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(ids[4:], got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, id := range got {
			if i, found, err := d.Get(t.Context(), id, time.Minute, false); !found || err != nil || i.ID != id {
				t.Errorf("Get(%s) = %+v, %v, %v", id, i, found, err)
			}
		}
		again, err := d.Members(t.Context(), block, nil, time.Minute)
		if err != nil || len(again) != len(all) {
			t.Errorf("asked again: %d instances, %v; want %d", len(again), err, len(all))
		}
		if calls := aws.Counts()[awssim.CallKey{Service: "ec2", Action: "DescribeInstances"}]; calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}

func TestAReservationThatCannotBeAskedAboutIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		t.Cleanup(aws.Close)
		d := NewDirectory(ec2.NewFromConfig(aws.Config()).DescribeInstances)
		if all, err := d.Members(t.Context(), block, nil, time.Minute); err != nil || len(all) > 0 {
			t.Errorf("the instances of a reservation without any: %v, %v", all, err)
		}
		for _, id := range []string{"", "cr-*", "cr-0123456789abcdef0,cr-0fedcba9876543210", "i-0123456789abcdef0"} {
			if _, err := d.Members(t.Context(), id, nil, time.Minute); err == nil || !strings.Contains(err.Error(), "not the id of a Capacity Reservation") {
				t.Errorf("%q: %v", id, err)
			}
		}
		if err := aws.SetFault(awssim.Fault{ID: "denied", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Members(t.Context(), block, nil, 0); !errors.Is(err, ErrDenied) {
			t.Errorf("without the permission: %v", err)
		}
		if all, err := d.Members(t.Context(), block, nil, time.Minute); err != nil || len(all) > 0 {
			t.Errorf("the answer of before: %v, %v", all, err)
		}
		// The count is of calls that succeeded.
		if calls := aws.Counts()[awssim.CallKey{Service: "ec2", Action: "DescribeInstances"}]; calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
	})
}

func TestTheInstancesOnDedicatedHostsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		t.Cleanup(aws.Close)
		hosts := []string{"h-0123456789abcdef0", "h-0fedcba9876543210"}
		ids := instanceIDs(4)
		for k, host := range []string{hosts[0], hosts[1], "h-00000000000000001", ""} {
			if err := aws.PutInstance(awssim.Instance{ID: ids[k], Host: host}); err != nil {
				t.Fatal(err)
			}
		}
		d := NewDirectory(ec2.NewFromConfig(aws.Config()).DescribeInstances)
		for range 2 { // the second answer is remembered
			all, err := d.Members(t.Context(), "", hosts, time.Minute)
			if err != nil || len(all) != 2 || all[0].Host != hosts[0] || all[1].ID != ids[1] {
				t.Errorf("%+v, %v", all, err)
			}
		}
		if calls := aws.Counts()[awssim.CallKey{Service: "ec2", Action: "DescribeInstances"}]; calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
		if _, err := d.Members(t.Context(), "", []string{hosts[0], "h-*"}, 0); err == nil || !strings.Contains(err.Error(), "not the id of a Dedicated Host") {
			t.Errorf("with a wildcard: %v", err)
		}
	})
}
