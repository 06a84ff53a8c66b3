package sample_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

const token = "f2a5c0a1-6d3f-4b6a-9b62-000000000001"

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func of(kind sample.Kind) sample.Notice {
	return sample.Notice{
		Kind: kind, ID: "7d5a1d4c", Time: now, Instance: "i-0123456789abcdef0",
		Partition: "aws-cn", Account: "123456789012", Region: "us-east-1", Zone: "us-east-1a",
		Group: `workers "a"`, Hook: "drain", Token: token, Start: now.Add(time.Hour),
		Reservation: "cr-0123456789abcdef0",
	}
}

func TestEveryBodyIsReadAsItsKind(t *testing.T) {
	leaving := notice.Hook{Group: `workers "a"`, Name: "drain", Token: token, Origin: "AutoScalingGroup", Destination: "EC2"}
	coming := notice.Hook{Group: `workers "a"`, Name: "drain", Token: token, Origin: "EC2", Destination: "AutoScalingGroup"}
	for kind, want := range map[sample.Kind]notice.Notice{
		sample.Spot:         {Kind: notice.SpotInterruption, Deadline: now.Add(2 * time.Minute), Detail: "terminate"},
		sample.Rebalance:    {Kind: notice.RebalanceRecommendation},
		sample.StateChange:  {Kind: notice.StateChange, Detail: "stopping"},
		sample.ASGTerminate: {Kind: notice.ASGTerminate, Hook: leaving},
		sample.ASGLaunch:    {Kind: notice.ASGLaunch, Hook: coming},
		sample.CapacityReservation: {
			Kind: notice.CapacityReservationInterruption, Deadline: now.Add(2 * time.Minute), Detail: "terminate",
		},
		sample.CapacityBlock: {
			Kind: notice.CapacityBlockExpiration, Deadline: now.Add(10 * time.Minute), Reservation: "cr-0123456789abcdef0",
		},
		sample.Health: {
			Kind: notice.ScheduledChange, Deadline: now.Add(time.Hour), Detail: "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
			Change: "arn:aws-cn:health:us-east-1::event/EC2/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED/AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED_7d5a1d4c",
		},
	} {
		want.ID, want.Account, want.Region, want.Time, want.Instances = "7d5a1d4c", "123456789012", "us-east-1", now, []string{"i-0123456789abcdef0"}
		if kind == sample.CapacityBlock {
			want.Instances = nil
		}
		got, err := notice.Parse(of(kind).Body())
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
	if body := of("other").Body(); body != "" {
		t.Errorf("a body for a kind that does not exist: %s", body)
	}
}

func TestEveryKindHasABodyWithoutGaps(t *testing.T) {
	for _, kind := range sample.Kinds {
		var body map[string]any
		text := of(kind).Body()
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Errorf("%s: %v\n%s", kind, err, text)
		}
		if body["source"] != kind.Source() {
			t.Errorf("%s: source %v", kind, body["source"])
		}
		for _, c := range text {
			if c == '<' || c == '>' {
				t.Errorf("%s: something was not filled in:\n%s", kind, text)
				break
			}
		}
	}
}
