package awssim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

const topic = "arn:aws:sns:us-east-1:123456789012:workers"

// withGroup makes the group "workers" of three instances with the hooks "drain"
// (terminating, 60 s) and "ready" (launching, 60 s). Events go to no queue yet.
func withGroup(t *testing.T, drain awssim.Hook, story func(w *world)) {
	t.Helper()
	inBubble(t, awssim.Options{}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		drain.Group, drain.Name, drain.Transition = "workers", "drain", awssim.Terminating
		if drain.HeartbeatTimeout == 0 {
			drain.HeartbeatTimeout = time.Minute
		}
		w.ok(w.server.Apply(awssim.State{
			Groups: []awssim.Group{{Name: "workers", Desired: 3, Instances: []string{idA, idB, idC}, Tags: map[string]string{"team": "red"}}},
			Hooks:  []awssim.Hook{drain, {Group: "workers", Name: "ready", Transition: awssim.Launching, HeartbeatTimeout: time.Minute}},
		}))
		story(w)
	})
}

func (w *world) begin(id string, transition awssim.Transition) (token string) {
	w.Helper()
	actions, err := w.server.StartTransition(id, transition)
	w.ok(err)
	if len(actions) != 1 {
		w.Fatalf("%d actions began, want 1", len(actions))
	}
	return actions[0].Token
}

func (w *world) heartbeat(token string) error {
	_, err := w.autoscaling.RecordLifecycleActionHeartbeat(w.ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("drain"), LifecycleActionToken: aws.String(token),
	})
	return err
}

func (w *world) complete(hook, token, result string) error {
	_, err := w.autoscaling.CompleteLifecycleAction(w.ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String(hook), LifecycleActionToken: aws.String(token), LifecycleActionResult: aws.String(result),
	})
	return err
}

func (w *world) completeByInstance(hook, id string) error {
	_, err := w.autoscaling.CompleteLifecycleAction(w.ctx, &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String(hook), InstanceId: aws.String(id), LifecycleActionResult: aws.String("CONTINUE"),
	})
	return err
}

// wantNoAction checks for the error of an action that ended.
func wantNoAction(t *testing.T, err error, of string) {
	t.Helper()
	wantError(t, err, "ValidationError", 400)
	if want := "No active Lifecycle Action found with " + of; err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want it to say %q", err, want)
	}
}

func (w *world) wantInstance(id, lifecycle string, state ec2types.InstanceStateName) {
	w.Helper()
	if got := w.server.LifecycleState(id); got != lifecycle {
		w.Errorf("after %s: lifecycle state = %q, want %q", time.Since(w.start), got, lifecycle)
	}
	if got := w.state(id); got != state {
		w.Errorf("after %s: EC2 state = %q, want %q", time.Since(w.start), got, state)
	}
}

func TestATerminationWaitsForItsHookAndIsCompletedOnce(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		output, err := w.autoscaling.TerminateInstanceInAutoScalingGroup(w.ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
			InstanceId: aws.String(idA), ShouldDecrementDesiredCapacity: aws.Bool(true),
		})
		w.ok(err)
		if group := *output.Activity.AutoScalingGroupName; group != "workers" {
			t.Errorf("activity of group %q", group)
		}
		token := w.server.LifecycleActions()[0].Token
		time.Sleep(59 * time.Second)
		w.wantInstance(idA, "Terminating:Wait", "running")
		w.ok(w.complete("drain", token, "CONTINUE"))
		w.wantInstance(idA, "Terminating:Proceed", "shutting-down")
		wantNoAction(t, w.complete("drain", token, "CONTINUE"), "token "+token)
		wantNoAction(t, w.heartbeat(token), "token "+token)
		wantNoAction(t, w.completeByInstance("drain", idA), "instance ID "+idA)
		time.Sleep(5 * time.Second)
		w.wantInstance(idA, "", "terminated")
		if group := w.server.Groups()[0]; group.Desired != 2 || len(group.Instances) != 2 {
			t.Errorf("group = %+v, want two instances, as desired", group)
		}
	})
}

func TestHeartbeatsHoldAnActionAndItsTimeoutEndsIt(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{HeartbeatTimeout: 10 * time.Second}, func(w *world) {
		token := w.begin(idA, awssim.Terminating)
		for range 3 {
			time.Sleep(9 * time.Second)
			w.ok(w.heartbeat(token))
		}
		time.Sleep(10*time.Second - 1)
		w.wantInstance(idA, "Terminating:Wait", "running")
		time.Sleep(time.Nanosecond)
		w.wantInstance(idA, "Terminating:Proceed", "shutting-down")
		wantNoAction(t, w.heartbeat(token), "token "+token)

		end := w.start.Add(37 * time.Second)
		want := []awssim.LifecycleAction{{
			Token: token, Group: "workers", Hook: "drain", InstanceID: idA, Transition: awssim.Terminating,
			Started: w.start, Deadline: end, GlobalDeadline: w.start.Add(1000 * time.Second),
			Heartbeats: 3, Outcome: awssim.TimedOut, Result: awssim.Abandon, Ended: end,
		}}
		if diff := cmp.Diff(want, w.server.LifecycleActions()); diff != "" {
			t.Errorf("actions (-want +got):\n%s", diff)
		}
	})
}

func TestTheGlobalTimeoutEndsAnActionInSpiteOfHeartbeats(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ timeout, global time.Duration }{
		"a hundred timeouts": {10 * time.Second, 1000 * time.Second},
		"48 hours":           {time.Hour, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withGroup(t, awssim.Hook{HeartbeatTimeout: test.timeout}, func(w *world) {
				token := w.begin(idA, awssim.Terminating)
				for time.Since(w.start) < test.global-test.timeout {
					time.Sleep(test.timeout / 2)
					w.ok(w.heartbeat(token))
				}
				time.Sleep(time.Until(w.start.Add(test.global - 1)))
				w.ok(w.heartbeat(token))
				time.Sleep(time.Nanosecond)
				wantNoAction(t, w.heartbeat(token), "token "+token)
				if ended := w.server.LifecycleActions()[0].Ended.Sub(w.start); ended != test.global {
					t.Errorf("the action ended after %s, want %s", ended, test.global)
				}
			})
		})
	}
}

func TestALaunchIsCompletedOrAbandoned(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end       func(w *world, token string) error
		lifecycle string
		state     ec2types.InstanceStateName
	}{
		"continue": {func(w *world, token string) error { return w.complete("ready", token, "CONTINUE") }, "InService", "running"},
		"abandon":  {func(w *world, token string) error { return w.complete("ready", token, "ABANDON") }, "Terminating:Proceed", "shutting-down"},
		"of an instance that is gone": {func(w *world, token string) error {
			w.ok(w.server.SetInstanceState(idB, "shutting-down"))
			return w.complete("ready", token, "CONTINUE")
		}, "InService", "shutting-down"},
		"of an instance that stops": {func(w *world, token string) error {
			w.ok(w.server.SetInstanceState(idB, "stopping"))
			return w.complete("ready", token, "CONTINUE")
		}, "InService", "stopping"},
		"by id":    {func(w *world, _ string) error { return w.completeByInstance("ready", idB) }, "InService", "running"},
		"time out": {func(*world, string) error { time.Sleep(time.Minute); return nil }, "Terminating:Proceed", "shutting-down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withGroup(t, awssim.Hook{}, func(w *world) {
				w.wantInstance(idB, "Pending", "pending")
				token := w.begin(idB, awssim.Launching)
				w.wantInstance(idB, "Pending:Wait", "pending")
				w.ok(test.end(w, token))
				w.wantInstance(idB, test.lifecycle, test.state)
			})
		})
	}
}

func TestAnInstanceWaitsForAllHooksUnlessOneAbandons(t *testing.T) {
	t.Parallel()
	for result, waits := range map[string]bool{"CONTINUE": true, "ABANDON": false} {
		t.Run(result, func(t *testing.T) {
			t.Parallel()
			withGroup(t, awssim.Hook{}, func(w *world) {
				w.ok(w.server.PutHook(awssim.Hook{Group: "workers", Name: "logs", Transition: awssim.Terminating}))
				actions, err := w.server.StartTransition(idA, awssim.Terminating)
				w.ok(err)
				w.ok(w.complete("drain", actions[0].Token, result))
				if waits {
					w.wantInstance(idA, "Terminating:Wait", "running")
					w.ok(w.complete("logs", actions[1].Token, "CONTINUE"))
				} else {
					wantNoAction(t, w.complete("logs", actions[1].Token, "CONTINUE"), "token "+actions[1].Token)
				}
				w.wantInstance(idA, "Terminating:Proceed", "shutting-down")
			})
		})
	}
}

func TestAnActionEndsWithItsInstance(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		token := w.begin(idA, awssim.Terminating)
		w.ok(w.server.SetInstanceState(idA, "terminated"))
		w.server.RemoveInstance(idA)
		wantNoAction(t, w.complete("drain", token, "CONTINUE"), "token "+token)
		if outcome := w.server.LifecycleActions()[0].Outcome; outcome != awssim.Dropped {
			t.Errorf("outcome = %q, want %q", outcome, awssim.Dropped)
		}
	})
}

func TestAStartedActionIsTold(t *testing.T) {
	t.Parallel()
	detail := func(id, token, hook, transition, from, to string) string {
		return `"LifecycleActionToken": "` + token + `", "AutoScalingGroupName": "workers", "LifecycleHookName": "` + hook + `",
			"EC2InstanceId": "` + id + `", "LifecycleTransition": "` + transition + `", "Origin": "` + from + `", "Destination": "` + to + `"`
	}
	envelope := func(kind, detail string) string {
		return `{"version": "0", "id": "ANY", "detail-type": "` + kind + `", "source": "aws.autoscaling",
			"account": "123456789012", "time": "2000-01-01T00:00:00Z", "region": "us-east-1",
			"resources": ["arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:63f5b5c2-58b3-0574-b7d5-b3162d0268f0:autoScalingGroupName/workers"],
			"detail": {` + detail + `}}`
	}
	direct := func(token string) string {
		return `{"AccountId": "123456789012", "RequestId": "ANY", "Service": "AWS Auto Scaling", "Time": "2000-01-01T00:00:00.000Z", ` +
			detail(idA, token, "drain", string(awssim.Terminating), "AutoScalingGroup", "EC2") + `}`
	}
	t.Run("a termination, by EventBridge", func(t *testing.T) {
		t.Parallel()
		withGroup(t, awssim.Hook{Metadata: "note"}, func(w *world) {
			w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q"}))
			token := w.begin(idA, awssim.Terminating)
			wantJSON(t, *w.receiveOne(0).Body, envelope("EC2 Instance-terminate Lifecycle Action",
				detail(idA, token, "drain", string(awssim.Terminating), "AutoScalingGroup", "EC2")+`, "NotificationMetadata": "note"`))
		})
	})
	t.Run("a launch, by EventBridge", func(t *testing.T) {
		t.Parallel()
		withGroup(t, awssim.Hook{}, func(w *world) {
			w.ok(w.server.PutRule(awssim.Rule{Name: "launches", DetailType: "*-launch *", Queue: "q"}))
			token := w.begin(idB, awssim.Launching)
			w.begin(idA, awssim.Terminating) // which the rule does not match
			wantJSON(t, *w.receiveOne(0).Body, envelope("EC2 Instance-launch Lifecycle Action",
				detail(idB, token, "ready", string(awssim.Launching), "EC2", "AutoScalingGroup")))
		})
	})
	t.Run("straight to a queue", func(t *testing.T) {
		t.Parallel()
		withGroup(t, awssim.Hook{TargetARN: "arn:aws:sqs:us-east-1:123456789012:q"}, func(w *world) {
			token := w.begin(idA, awssim.Terminating)
			wantJSON(t, *w.receiveOne(0).Body, direct(token))
		})
	})
	t.Run("through a topic", func(t *testing.T) {
		t.Parallel()
		withGroup(t, awssim.Hook{TargetARN: topic}, func(w *world) {
			w.server.Subscribe(topic, "q")
			token := w.begin(idA, awssim.Terminating)
			body := *w.receiveOne(0).Body
			wantJSON(t, body, `{"Type": "Notification", "MessageId": "ANY", "TopicArn": "`+topic+`",
				"Subject": "Auto Scaling: Lifecycle action 'TERMINATING' in progress.", "Message": "ANY", "Timestamp": "2000-01-01T00:00:00.000Z",
				"SignatureVersion": "1", "Signature": "EXAMPLE",
				"SigningCertURL": "https://sns.us-east-1.amazonaws.com/EXAMPLE.pem", "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/EXAMPLE"}`)
			wantJSON(t, innerMessage(t, body), direct(token))
		})
	})
}

func TestHooksArePutAndDescribed(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{TargetARN: topic, Metadata: "note"}, func(w *world) {
		_, err := w.autoscaling.PutLifecycleHook(w.ctx, &autoscaling.PutLifecycleHookInput{
			AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("drain"),
			HeartbeatTimeout: aws.Int32(7200), DefaultResult: aws.String("CONTINUE"), NotificationTargetARN: aws.String(topic),
		})
		w.ok(err)
		output, err := w.autoscaling.DescribeLifecycleHooks(w.ctx, &autoscaling.DescribeLifecycleHooksInput{
			AutoScalingGroupName: aws.String("workers"), LifecycleHookNames: []string{"drain"},
		})
		w.ok(err)
		if len(output.LifecycleHooks) != 1 {
			t.Fatalf("described %d hooks, want 1", len(output.LifecycleHooks))
		}
		hook := output.LifecycleHooks[0]
		got := []any{*hook.LifecycleHookName, *hook.AutoScalingGroupName, *hook.LifecycleTransition, *hook.HeartbeatTimeout, *hook.GlobalTimeout, *hook.DefaultResult, *hook.NotificationTargetARN}
		want := []any{"drain", "workers", string(awssim.Terminating), int32(7200), int32(172800), "CONTINUE", topic}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("hook (-want +got):\n%s", diff)
		}
	})
}

func TestGroupsAndTheirInstancesAreDescribed(t *testing.T) {
	t.Parallel()
	withGroup(t, awssim.Hook{}, func(w *world) {
		groups, err := w.autoscaling.DescribeAutoScalingGroups(w.ctx, &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{"workers", "nobody"}})
		w.ok(err)
		if len(groups.AutoScalingGroups) != 1 {
			t.Fatalf("described %d groups, want 1", len(groups.AutoScalingGroups))
		}
		group := groups.AutoScalingGroups[0]
		var got []string
		for _, instance := range group.Instances {
			got = append(got, *instance.InstanceId+" "+string(instance.LifecycleState))
		}
		if diff := cmp.Diff([]string{idA + " InService", idB + " Pending", idC + " InService"}, got); diff != "" {
			t.Errorf("instances (-want +got):\n%s", diff)
		}
		if *group.DesiredCapacity != 3 || *group.Tags[0].Key != "team" || *group.Tags[0].Value != "red" {
			t.Errorf("group = %+v", group)
		}
		instances, err := w.autoscaling.DescribeAutoScalingInstances(w.ctx, &autoscaling.DescribeAutoScalingInstancesInput{InstanceIds: []string{idA, unknown}})
		w.ok(err)
		if len(instances.AutoScalingInstances) != 1 || *instances.AutoScalingInstances[0].AutoScalingGroupName != "workers" {
			t.Errorf("instances = %+v, want the one of the group", instances.AutoScalingInstances)
		}
	})
}

func TestAutoScalingErrors(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(w *world) error{
		"an unknown group": func(w *world) error {
			_, err := w.autoscaling.DescribeLifecycleHooks(w.ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: aws.String("nobody")})
			return err
		},
		"an unknown result": func(w *world) error {
			return w.complete("drain", w.begin(idA, awssim.Terminating), "MAYBE")
		},
		"the hook of another action": func(w *world) error {
			return w.complete("ready", w.begin(idA, awssim.Terminating), "CONTINUE")
		},
		"an instance in no group": func(w *world) error {
			w.ok(w.server.PutInstance(awssim.Instance{ID: unknown}))
			_, err := w.autoscaling.TerminateInstanceInAutoScalingGroup(w.ctx, &autoscaling.TerminateInstanceInAutoScalingGroupInput{
				InstanceId: aws.String(unknown), ShouldDecrementDesiredCapacity: aws.Bool(false),
			})
			return err
		},
		"a hook without a transition": func(w *world) error {
			_, err := w.autoscaling.PutLifecycleHook(w.ctx, &autoscaling.PutLifecycleHookInput{AutoScalingGroupName: aws.String("workers"), LifecycleHookName: aws.String("new")})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withGroup(t, awssim.Hook{}, func(w *world) { wantError(t, call(w), "ValidationError", 400) })
		})
	}
}

func TestSTSKnowsTheCaller(t *testing.T) {
	t.Parallel()
	inBubble(t, awssim.Options{Account: "210987654321"}, awssim.Queue{}, func(w *world) {
		output, err := sts.NewFromConfig(w.server.Config()).GetCallerIdentity(w.ctx, &sts.GetCallerIdentityInput{})
		w.ok(err)
		if *output.Account != "210987654321" || *output.Arn != "arn:aws:iam::210987654321:user/AKIASIMULATED" {
			t.Errorf("caller = %s in %s", *output.Arn, *output.Account)
		}
	})
}

func TestAnInstanceGoesToTheWarmPoolAndComesBackWithANewLaunchTime(t *testing.T) {
	withGroup(t, awssim.Hook{}, func(w *world) {
		w.ok(w.server.PutRule(awssim.Rule{Name: "all", DetailType: "*Lifecycle Action", Queue: "q"}))
		launched := w.server.Instances()[0].LaunchTime
		state := func() string { return w.server.LifecycleState(idA) + ", " + w.server.Instances()[0].State }

		actions, err := w.server.ReturnToWarmPool(idA, awssim.WarmedStopped)
		w.ok(err)
		w.ok(w.complete("drain", actions[0].Token, awssim.Continue))
		time.Sleep(time.Minute)
		if got := state(); got != "Warmed:Stopped, stopped" {
			t.Errorf("in the pool it is %s", got)
		}
		actions, err = w.server.LaunchFromWarmPool(idA)
		w.ok(err)
		if got := state(); got != "Pending:Wait, pending" {
			t.Errorf("on its way back it is %s", got)
		}
		w.ok(w.complete("ready", actions[0].Token, awssim.Continue))
		if got := state(); got != "InService, running" || !w.server.Instances()[0].LaunchTime.After(launched) {
			t.Errorf("back it is %s, launched %s after the first time", got, w.server.Instances()[0].LaunchTime.Sub(launched))
		}
		var ways []string
		for _, m := range w.server.Messages("q") {
			for _, way := range []string{`"Origin":"AutoScalingGroup","Destination":"WarmPool"`, `"Origin":"WarmPool","Destination":"AutoScalingGroup"`} {
				if strings.Contains(m.Body, way) {
					ways = append(ways, way)
				}
			}
		}
		if len(ways) != 2 || ways[0] == ways[1] {
			t.Errorf("the events tell of %v", ways)
		}
	})
}

// A spot interruption has stopped it while its termination hook was open.
func TestAnInstanceThatIsStoppedAlreadyStaysSoInTheWarmPool(t *testing.T) {
	withGroup(t, awssim.Hook{}, func(w *world) {
		actions, err := w.server.ReturnToWarmPool(idA, awssim.WarmedStopped)
		w.ok(err)
		w.ok(w.server.SetInstanceState(idA, "stopped"))
		w.ok(w.complete("drain", actions[0].Token, awssim.Continue))
		if got := w.server.LifecycleState(idA) + ", " + w.server.Instances()[0].State; got != "Warmed:Stopped, stopped" {
			t.Errorf("in the pool it is %s", got)
		}
	})
}

func TestEventsComeLateTwiceOrNever(t *testing.T) {
	var times []time.Duration
	inBubble(t, awssim.Options{Delivery: func(string) []time.Duration { return times }}, awssim.Queue{}, func(w *world) {
		threeInstances(w)
		w.ok(w.server.PutRule(awssim.Rule{Name: "all", Queue: "q"}))
		times = []time.Duration{time.Minute, time.Hour}
		w.ok(w.server.SetInstanceState(idA, "stopped"))
		times = nil
		w.ok(w.server.SetInstanceState(idA, "running"))
		var got []time.Duration
		for _, m := range w.server.Messages("q") {
			got = append(got, m.VisibleAt.Sub(w.start))
		}
		if diff := cmp.Diff([]time.Duration{time.Minute, time.Hour}, got); diff != "" {
			t.Errorf("messages come (-want +got):\n%s", diff)
		}
	})
}
