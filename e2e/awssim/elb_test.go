package awssim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

const machine, neighbour = "i-0000000000000000a", "i-0000000000000000b"

// targets is a target group "web" with a client, and two instances.
func targets(w *world) (client *elb.Client, arn *string, health func(...types.TargetDescription) map[string]string) {
	config := w.server.Config()
	config.RetryMaxAttempts = 1
	client = elb.NewFromConfig(config)
	for _, id := range []string{machine, neighbour} {
		w.ok(w.server.PutInstance(awssim.Instance{ID: id}))
	}
	w.ok(w.server.PutTargetGroup(awssim.TargetGroup{Name: "web", DeregistrationDelay: 30 * time.Second, RegistrationTime: 3 * time.Second}))
	arn = aws.String(w.server.TargetGroupARN("web"))
	return client, arn, func(asked ...types.TargetDescription) map[string]string {
		w.Helper()
		out, err := client.DescribeTargetHealth(w.ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: arn, Targets: asked})
		w.ok(err)
		states := map[string]string{}
		for _, d := range out.TargetHealthDescriptions {
			states[*d.Target.Id] = strings.TrimSuffix(string(d.TargetHealth.State)+" "+string(d.TargetHealth.Reason), " ")
		}
		return states
	}
}

func TestATargetIsInitialHealthyDrainingAndGone(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		client, arn, health := targets(w)
		see := func(want map[string]string) {
			w.Helper()
			if diff := cmp.Diff(want, health()); diff != "" {
				w.Errorf("after %v (-want +got):\n%s", time.Since(w.start), diff)
			}
		}
		see(map[string]string{})
		_, err := client.RegisterTargets(w.ctx, &elb.RegisterTargetsInput{
			TargetGroupArn: arn, Targets: []types.TargetDescription{{Id: aws.String(machine), Port: aws.Int32(30080)}, {Id: aws.String(neighbour)}},
		})
		w.ok(err)
		see(map[string]string{machine: "initial Elb.RegistrationInProgress", neighbour: "initial Elb.RegistrationInProgress"})
		time.Sleep(3 * time.Second)
		see(map[string]string{machine: "healthy", neighbour: "healthy"})
		w.ok(w.server.DeregisterTarget("web", machine))
		see(map[string]string{machine: "draining Target.DeregistrationInProgress", neighbour: "healthy"})
		time.Sleep(30*time.Second - time.Nanosecond)
		see(map[string]string{machine: "draining Target.DeregistrationInProgress", neighbour: "healthy"})
		time.Sleep(time.Nanosecond)
		see(map[string]string{neighbour: "healthy"})
		w.ok(w.server.SetInstanceState(neighbour, "stopped"))
		see(map[string]string{neighbour: "unused Target.InvalidState"})
		_, err = client.DeregisterTargets(w.ctx, &elb.DeregisterTargetsInput{
			TargetGroupArn: arn, Targets: []types.TargetDescription{{Id: aws.String(neighbour)}, {Id: aws.String(machine)}},
		})
		w.ok(err)
		time.Sleep(30 * time.Second)
		see(map[string]string{})
	})
}

func TestATargetThatIsNamedIsUnusedWhereItIsNotRegistered(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		client, arn, health := targets(w)
		w.ok(w.server.RegisterTarget("web", machine, 30080))
		time.Sleep(3 * time.Second)
		for port, want := range map[int32]string{30080: "healthy", 80: "unused Target.NotRegistered"} {
			if got := health(types.TargetDescription{Id: aws.String(machine), Port: aws.Int32(port)}); got[machine] != want {
				t.Errorf("port %d: %v", port, got)
			}
		}
		if got := health(types.TargetDescription{Id: aws.String(machine)}); got[machine] != "unused Target.NotRegistered" {
			t.Errorf("without a port that of the group counts: %v", got)
		}
		for code, in := range map[string]*elb.DescribeTargetHealthInput{
			"InvalidTarget":       {TargetGroupArn: arn, Targets: []types.TargetDescription{{Id: aws.String("i-0000000000000000c")}}},
			"TargetGroupNotFound": {TargetGroupArn: aws.String(w.server.TargetGroupARN("other"))},
			"ValidationError":     {TargetGroupArn: aws.String("web")},
		} {
			_, err := client.DescribeTargetHealth(w.ctx, in)
			wantError(t, err, code, 0)
		}
	})
}

func TestTargetGroupsHaveFaultsAndPermissions(t *testing.T) {
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		client, arn, _ := targets(w)
		w.ok(w.server.SetFault(awssim.Fault{ID: "slow", Service: "elasticloadbalancing", Rate: 1}))
		in := &elb.DescribeTargetHealthInput{TargetGroupArn: arn}
		_, err := client.DescribeTargetHealth(w.ctx, in)
		w.ok(err)
		_, err = client.DescribeTargetHealth(w.ctx, in)
		wantError(t, err, "Throttling", 0)
		time.Sleep(time.Second)
		w.ok(w.server.PutRole(awssim.Role{Name: "r", AccessKeyID: "AKIASIMULATED", Policy: `{"Statement":[{"Effect":"Allow","Action":"ec2:*","Resource":"*"}]}`}))
		_, err = client.DescribeTargetHealth(w.ctx, in)
		wantError(t, err, "AccessDenied", 0)
		w.ok(w.server.PutRole(awssim.Role{
			Name: "r", AccessKeyID: "AKIASIMULATED",
			Policy: `{"Statement":[{"Effect":"Allow","Action":"elasticloadbalancing:DescribeTargetHealth","Resource":"*"}]}`,
		}))
		time.Sleep(time.Second)
		_, err = client.DescribeTargetHealth(w.ctx, in)
		w.ok(err)
	})
}
