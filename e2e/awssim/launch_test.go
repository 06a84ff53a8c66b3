package awssim_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

func (w *world) setGroup(change func(*awssim.Group)) {
	w.Helper()
	group := w.server.Groups()[0]
	change(&group)
	w.ok(w.server.PutGroup(group))
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
