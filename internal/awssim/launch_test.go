package awssim_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"github.com/node-termination-handler/node-termination-handler/internal/awssim"
)

// launch launches one instance, and returns its id, or the code of the error of EC2.
func (w *world) launch(token, zone string) (id, code string, err error) {
	out, err := w.autoscaling.LaunchInstances(w.ctx, &autoscaling.LaunchInstancesInput{
		AutoScalingGroupName: aws.String("workers"), ClientToken: aws.String(token), RequestedCapacity: aws.Int32(1),
		AvailabilityZones: []string{zone}, RetryStrategy: types.RetryStrategyNone,
	})
	switch {
	case err != nil:
		return "", "", err
	case len(out.Errors) > 0:
		return "", *out.Errors[0].ErrorCode, nil
	}
	return out.Instances[0].InstanceIds[0], "", nil
}

func (w *world) setGroup(change func(*awssim.Group)) {
	w.Helper()
	group := w.server.Groups()[0]
	change(&group)
	w.ok(w.server.PutGroup(group))
}

func TestAnInstanceIsLaunchedOnceForEachToken(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		first, _, err := w.launch("one", "us-east-1b")
		w.ok(err)
		again, _, err := w.launch("one", "us-east-1b")
		w.ok(err)
		other, _, err := w.launch("two", "us-east-1b")
		w.ok(err)
		if first != again || first == other || w.server.Groups()[0].Desired != 5 {
			t.Errorf("launched %s, again %s, with another token %s, desired %d", first, again, other, w.server.Groups()[0].Desired)
		}
		if state := w.server.LifecycleState(first); state != "Pending:Wait" && state != "InService" {
			t.Errorf("it is %s", state)
		}
		_, _, err = w.launch("one", "us-east-1a")
		wantError(t, err, "IdempotentParameterMismatch", 400)
	})
}

func TestALaunchIsRefused(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		for what, change := range map[string]func(*awssim.Group){
			"the largest size":       func(g *awssim.Group) { g.Max = 3 },
			"no launch template":     func(g *awssim.Group) { g.LaunchConfiguration = true },
			"the process is stopped": func(g *awssim.Group) { g.Suspended = []string{"Launch"} },
		} {
			before := w.server.Groups()[0]
			w.setGroup(change)
			_, _, err := w.launch(what, "us-east-1a")
			wantError(t, err, "ValidationError", 400)
			w.ok(w.server.PutGroup(before))
		}
		w.setGroup(func(g *awssim.Group) { g.LaunchError = "InsufficientInstanceCapacity" })
		if _, code, err := w.launch("none", "us-east-1a"); err != nil || code != "InsufficientInstanceCapacity" || w.server.Groups()[0].Desired != 3 {
			t.Errorf("%s, %v, desired %d", code, err, w.server.Groups()[0].Desired)
		}
	})
}

func TestAnUnhealthyInstanceIsReplacedAsItsGroupSays(t *testing.T) {
	for _, first := range []bool{false, true} {
		withGroup(t, awssim.Hook{}, func(w *world) {
			if first {
				w.setGroup(func(g *awssim.Group) { g.Maintenance = awssim.Maintenance{MinHealthy: 100, MaxHealthy: 150} })
			}
			for range 2 {
				_, err := w.autoscaling.SetInstanceHealth(w.ctx, &autoscaling.SetInstanceHealthInput{
					InstanceId: aws.String(idA), HealthStatus: aws.String("Unhealthy"), ShouldRespectGracePeriod: aws.Bool(false),
				})
				w.ok(err)
			}
			group := w.server.Groups()[0]
			if len(group.Instances) != 4 {
				t.Errorf("the group has %v, want one more", group.Instances)
			}
			if goes := w.server.LifecycleState(idA) != "InService"; goes == first {
				t.Errorf("it launches first: %t; the instance is %s", first, w.server.LifecycleState(idA))
			}
		})
	}
}
