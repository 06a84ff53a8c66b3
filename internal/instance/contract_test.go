package instance

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// region is an EC2 for tests. The stories of TestContract hold for each of
// them, which is what makes the stories about fakeEC2 alone worth believing.
type region interface {
	client() API
	put(t *testing.T, inst Instance)
	// deny takes the permission to describe instances away.
	deny(t *testing.T)
	count() int // of calls so far
}

func TestContract(t *testing.T) {
	regions := map[string]func() region{
		"fake":      func() region { return newFakeEC2() },
		"simulator": func() region { return simulator{awssim.New(awssim.Options{})} },
	}
	stories := map[string]func(t *testing.T, r region, d *Directory){
		"an instance is told as it is": func(t *testing.T, r region, d *Directory) {
			want := Instance{
				ID:             known,
				State:          "pending",
				Tags:           map[string]string{"aws:autoscaling:groupName": "workers", "empty": ""},
				Launched:       time.Date(2026, 3, 14, 15, 9, 26, 0, time.UTC),
				Type:           "m5.large",
				Lifecycle:      "spot",
				PrivateDNSName: "ip-10-0-0-1.ec2.internal",
			}
			r.put(t, want)
			if diff := cmp.Diff(want, mustFind(t, d, known, time.Minute)); diff != "" {
				t.Errorf("instance (-want +got):\n%s", diff)
			}
		},
		"unknown instances do not fail the known ones, in one call": func(t *testing.T, r region, d *Directory) {
			ids := instanceIDs(100)
			for _, id := range ids {
				r.put(t, Instance{ID: id, State: "running"})
			}
			var wg sync.WaitGroup
			wg.Go(func() { findAll(t, d, ids) })
			wg.Go(func() { mustMiss(t, d, unknown) })
			wg.Wait()
			mustMiss(t, d, unknown)
			if n := r.count(); n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
		},
		"a missing permission is named, and no miss": func(t *testing.T, r region, d *Directory) {
			r.put(t, Instance{ID: known, State: "running"})
			r.deny(t)
			_, found, err := d.Get(t.Context(), known, time.Minute, false)
			if found || err == nil || !strings.Contains(err.Error(), "permission ec2:DescribeInstances is missing") {
				t.Errorf("found = %v, err = %v; want an error that names the permission", found, err)
			}
		},
		"it can be told at start whether there is the permission": func(t *testing.T, r region, d *Directory) {
			if err := d.Allowed(t.Context()); err != nil {
				t.Errorf("Allowed = %v", err)
			}
			r.deny(t)
			if err := d.Allowed(t.Context()); err == nil || !strings.Contains(err.Error(), "permission ec2:DescribeInstances is missing") {
				t.Errorf("Allowed = %v, want an error that names the permission", err)
			}
		},
	}
	for where, build := range regions {
		for story, tell := range stories {
			t.Run(where+"/"+story, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := build()
					tell(t, r, NewDirectory(r.client()))
				})
			})
		}
	}
}

func (f *fakeEC2) client() API { return f.DescribeInstances }

func (f *fakeEC2) count() int { return len(f.made()) }

func (f *fakeEC2) put(_ *testing.T, inst Instance) {
	in := types.Instance{
		InstanceId:        aws.String(inst.ID),
		State:             &types.InstanceState{Name: types.InstanceStateName(inst.State)},
		LaunchTime:        aws.Time(inst.Launched),
		InstanceType:      types.InstanceType(inst.Type),
		InstanceLifecycle: types.InstanceLifecycleType(inst.Lifecycle),
		PrivateDnsName:    aws.String(inst.PrivateDNSName),
	}
	for key, value := range inst.Tags {
		in.Tags = append(in.Tags, types.Tag{Key: aws.String(key), Value: aws.String(value)})
	}
	f.launch(in)
}

func (f *fakeEC2) deny(*testing.T) {
	f.failNext(&smithy.GenericAPIError{Code: "UnauthorizedOperation", Message: "You are not authorized to perform this operation."})
}

// simulator is the account that e2e/awssim simulates, reached by the SDK's
// own client over its wire protocol.
type simulator struct{ server *awssim.Server }

func (s simulator) client() API { return ec2.NewFromConfig(s.server.Config()).DescribeInstances }

func (s simulator) count() int { return len(s.server.Calls()) }

func (s simulator) put(t *testing.T, inst Instance) {
	err := s.server.PutInstance(awssim.Instance{
		ID:             inst.ID,
		State:          inst.State,
		PrivateDNSName: inst.PrivateDNSName,
		Tags:           maps.Clone(inst.Tags),
		LaunchTime:     inst.Launched,
		Type:           inst.Type,
		Lifecycle:      inst.Lifecycle,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s simulator) deny(t *testing.T) {
	err := s.server.SetFault(awssim.Fault{ID: "deny", Service: "ec2", Action: "DescribeInstances", Status: 403, Code: "UnauthorizedOperation"})
	if err != nil {
		t.Fatal(err)
	}
}
