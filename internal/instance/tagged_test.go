package instance

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func TestTheRunningInstancesWithATagAreListedPageByPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aws := awssim.New(awssim.Options{})
		t.Cleanup(aws.Close)
		ids := instanceIDs(2*batchSize + 50)
		for k, id := range ids {
			i := awssim.Instance{ID: id, Tags: map[string]string{"managed": ""}}
			switch k {
			case 0:
				i.State = "stopped"
			case 1:
				i.Tags = map[string]string{"other": "managed"}
			}
			if err := aws.PutInstance(i); err != nil {
				t.Fatal(err)
			}
		}
		directory := NewDirectory(ec2.NewFromConfig(aws.Config()).DescribeInstances)
		tagged, err := directory.Tagged(t.Context(), "managed")
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(tagged)
		if diff := cmp.Diff(ids[2:], tagged); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if calls := aws.Counts()[awssim.CallKey{Service: "ec2", Action: "DescribeInstances"}]; calls != 3 {
			t.Errorf("%d calls, want 3", calls)
		}
		if _, known, _ := directory.Known(ids[2]); !known { // a notice is acted on though EC2 does not answer
			t.Error("the answers are forgotten")
		}
		if _, found, err := directory.Get(t.Context(), ids[2], time.Minute, false); err != nil || !found {
			t.Errorf("Get = %t, %v", found, err)
		}
		if calls := aws.Counts()[awssim.CallKey{Service: "ec2", Action: "DescribeInstances"}]; calls != 3 {
			t.Errorf("%d calls with a look-up, want 3", calls)
		}
	})
}
