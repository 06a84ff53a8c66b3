package e2e

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

func TestHeartbeatsHoldAHookOpenUntilItsNodeIsDrainedAndEndWithIt(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 30*time.Second, n)
	s.pod("slow", n.name, stopping(2*time.Minute, 55*time.Second))
	s.alone("--heartbeat-interval=30", "--heartbeat-until=180")
	pulse := s.feel()
	action, message := s.transition(n, awssim.Terminating)
	s.awaitDeleted(soon, message)
	if s.action(action).Heartbeats == 0 {
		t.Error("no heartbeat was sent")
	}
	if pulse.timedOut(action) {
		return
	}
	s.drainedBefore(message, n)
	s.completedOnce(action)
	if ended := s.action(action); !ended.Ended.After(s.gone("slow")) || ended.Heartbeats < 3 {
		t.Errorf("completed at %s after %d heartbeats, the pod was gone at %s", ended.Ended, ended.Heartbeats, s.gone("slow"))
	}
	beats := s.calls("autoscaling", "RecordLifecycleActionHeartbeat")
	s.throughout(16*time.Second, "there are no heartbeats after the completion", func() bool {
		return s.calls("autoscaling", "RecordLifecycleActionHeartbeat") == beats
	})
}

func TestWithoutHeartbeatsPodsAreForcedInTimeForTheHook(t *testing.T) {
	tier.Full(t, "30 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 25*time.Second, n)
	s.pod("kept", n.name, app("kept"), stopping(10*time.Second, 3*time.Second))
	s.pod("slow", n.name, stopping(time.Minute, 5*time.Second))
	s.budget("kept", "kept", 1)
	s.alone()
	pulse := s.feel()
	action, message := s.transition(n, awssim.Terminating)
	s.awaitDeleted(soon, message)
	if pulse.timedOut(action) {
		return
	}
	s.drainedBefore(message, n)
	s.completedOnce(action)

	// Five seconds before the hook's end, so that it is completed in time.
	end := s.action(action).Started.Add((25 - 5) * time.Second).Truncate(time.Second)
	kept := s.requests("kept")
	forced := kept[len(kept)-1]
	if forced.evicts || !forced.accepted() || forced.at.Before(end.Add(-10*time.Second-margin)) {
		t.Errorf("the last request is %v, want a deletion 15 s before %s", forced, end)
	}
	slow := s.requests("slow")
	if len(slow) != 1 {
		t.Fatalf("requests for the slow pod: %v, want one", slow)
	}
	pulse.cut(slow[0], end)
	if beats := s.calls("autoscaling", "RecordLifecycleActionHeartbeat"); beats > 0 {
		t.Errorf("%d heartbeats", beats)
	}
}

func TestTheCompletionWaitsForItsDelayWhichSurvivesItsLeader(t *testing.T) {
	tier.Full(t, "30 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	s.pod("plain", n.name, stopping(20*time.Second, time.Second))
	const delay = 10 * time.Second
	first := s.leader("--complete-lifecycle-action-delay-seconds=10")
	second := s.start("--complete-lifecycle-action-delay-seconds=10")
	action, message := s.transition(n, awssim.Terminating)
	s.eventually("the drain has ended", func() bool { return !s.intent(n).DrainedAt.IsZero() })
	drained := s.intent(n).DrainedAt
	again := s.send(s.aws.Messages(queueName)[0].Body) // EventBridge delivers at least once
	s.throughout(3*time.Second, "the completion waits, from the same moment", func() bool {
		return s.calls("autoscaling", "CompleteLifecycleAction") == 0 && s.intent(n).DrainedAt.Equal(drained)
	})
	first.kill()
	s.awaitDeleted(soon, message, again)
	s.completedOnce(action)
	if after := s.action(action).Ended.Sub(drained); after < delay {
		t.Errorf("completed %s after the drain, want at least %s", after, delay)
	}
	for _, c := range s.aws.Calls() {
		if c.Action == "CompleteLifecycleAction" && c.AccessKeyID != second.key {
			t.Errorf("completed by %s, which was killed", c.AccessKeyID)
		}
	}
	if requests := s.requests(""); len(requests) != 1 {
		t.Errorf("requests for pods: %v, want one", requests)
	}
}

func TestACompletionThatFailsIsTriedUntilItWorks(t *testing.T) {
	t.Parallel()
	for _, fault := range []awssim.Fault{
		{ID: "throttled", Code: "Throttling", Status: http.StatusBadRequest},
		{ID: "down", Status: http.StatusInternalServerError},
		{ID: "reset", Reset: true},
	} {
		t.Run(fault.ID, func(t *testing.T) {
			s := newScenario(t)
			n := s.nodes(1)[0]
			s.hook(awssim.Terminating, 10*time.Minute, n)
			s.pod("plain", n.name)
			fault.Service, fault.Action, fault.Count = "autoscaling", "CompleteLifecycleAction", 7
			s.must(s.aws.SetFault(fault))
			s.alone()
			action, message := s.transition(n, awssim.Terminating)
			s.awaitDeleted(soon, message)
			s.completedOnce(action)
			if s.deleted(message).Before(s.action(action).Ended) {
				t.Error("the message was deleted before the hook was completed")
			}
			if calls := s.calls("autoscaling", "CompleteLifecycleAction"); calls != 8 {
				t.Errorf("%d calls, want 7 that fail and one that does not", calls)
			}
		})
	}
}

func TestAHookIsCompletedAfterItsDrainWithTheRoleOfNTH(t *testing.T) {
	tier.Full(t, "40 s; internal/asg has the answers of that role")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	// The pod takes longer than a message is hidden, which that role cannot extend.
	s.pod("slow", n.name, stopping(40*time.Second, 25*time.Second))
	for service, actions := range map[string][]string{
		"autoscaling": {"DescribeLifecycleHooks", "RecordLifecycleActionHeartbeat"},
		"sqs":         {"ChangeMessageVisibility*", "GetQueueAttributes"},
	} {
		for _, action := range actions {
			s.must(s.aws.SetFault(awssim.Fault{ID: action, Service: service, Action: action, Status: http.StatusForbidden, Code: "AccessDenied"}))
		}
	}
	s.alone("--heartbeat-interval=30")
	action, message := s.transition(n, awssim.Terminating)
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, n)
	s.completedOnce(action)
	if requests := s.requests(""); len(requests) != 1 {
		t.Errorf("requests for pods: %v, want one", requests)
	}
}

func TestAHookWhoseEventNeverArrivedIsCompletedAfterItsDrain(t *testing.T) {
	tier.Full(t, "a sweep takes a minute; internal/sweep plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.hook(awssim.Terminating, 10*time.Minute, n)
	s.aws.RemoveRule("lifecycle")
	s.pod("plain", n.name)
	s.alone()
	pulse := s.feel()
	actions, err := s.aws.StartTransition(n.instance, awssim.Terminating)
	s.must(err)
	if sent := s.sent(); len(sent) > 0 || len(actions) != 1 {
		t.Fatalf("%d messages and %d actions, want none and one", len(sent), len(actions))
	}
	s.eventually("the hook is completed", func() bool { return !s.action(actions[0].Token).Ended.IsZero() })
	ended := s.action(actions[0].Token)
	pulse.atMost(ended.Ended.Sub(actions[0].Started), 90*time.Second, "the completion")
	if ended.Outcome != awssim.Completed || ended.Result != awssim.Continue || s.calls("autoscaling", "CompleteLifecycleAction") != 1 {
		t.Errorf("the action ended %s with %s, after %d calls", ended.Outcome, ended.Result, s.calls("autoscaling", "CompleteLifecycleAction"))
	}
	if evicted := s.evictions(); len(evicted) != 1 || evicted[0].Received.After(ended.Ended) {
		t.Errorf("evictions %v, want one before the completion at %s", evicted, ended.Ended)
	}
	t.Logf("completed %s after the action began, with %d calls to describe the groups",
		s.action(actions[0].Token).Ended.Sub(actions[0].Started), s.calls("autoscaling", "DescribeAutoScalingGroups"))
}

func TestALaunchHookIsCompletedWhenItsNodeIsReadyAndNotBefore(t *testing.T) {
	s := newScenario(t)
	n := node{s.name + "-a", s.id(0)}
	s.must(s.aws.PutInstance(awssim.Instance{ID: n.instance, State: "pending", Tags: managed}))
	s.hook(awssim.Launching, 5*time.Minute, n)
	s.alone()
	action, message := s.transition(n, awssim.Launching)
	waits := func() bool { return s.action(action).Outcome == awssim.Active && !s.isDeleted(message) }
	s.throughout(3*time.Second, "the hook waits for the Node", waits)
	s.joinUnready(n)
	s.throughout(4*time.Second, "the hook waits for the Node to be ready", waits)
	ready := time.Now()
	s.must(shared.SetReady(s.ctx, n.name, true))
	s.awaitDeleted(soon, message)
	s.completedOnce(action)
	if s.action(action).Ended.Before(ready) {
		t.Error("completed before the node was ready")
	}
	s.untouched(n, 0)
}

func TestALaunchHookOfAnInstanceThatEC2DoesNotShowYetWaitsForItsNode(t *testing.T) {
	tier.Full(t, "20 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := node{s.name + "-a", s.id(0)}
	s.alone()
	// Without a token the instance's current action is meant, which the simulator has no instance for so far.
	message := s.send(s.body("asg-launch-lifecycle", n.instance, `"LifecycleHookName": "ready"`, `"LifecycleHookName": "hook"`,
		`"LifecycleActionToken": "f2a5c0a1-6d3f-4b6a-9b62-000000000001",`, ""))
	s.throughout(4*time.Second, "the hook waits for the instance", func() bool {
		return !s.isDeleted(message) && s.calls("autoscaling", "CompleteLifecycleAction") == 0
	})
	s.must(s.aws.PutInstance(awssim.Instance{ID: n.instance, State: "pending", Tags: managed}))
	s.hook(awssim.Launching, 5*time.Minute, n)
	s.aws.RemoveRule("lifecycle") // its event was sent above
	actions, err := s.aws.StartTransition(n.instance, awssim.Launching)
	s.must(err)
	s.joinUnready(n)
	s.throughout(4*time.Second, "the hook waits for the Node to be ready", func() bool {
		return s.action(actions[0].Token).Outcome == awssim.Active && !s.isDeleted(message)
	})
	ready := time.Now()
	s.must(shared.SetReady(s.ctx, n.name, true))
	s.awaitDeleted(soon, message)
	if a := s.action(actions[0].Token); a.Outcome != awssim.Completed || a.Result != awssim.Continue || a.Ended.Before(ready) {
		t.Errorf("the action is %+v, want it completed when the node was ready", a)
	}
}

// hook makes a group of the node, with a lifecycle hook whose events go to the scenario's queue.
func (s *scenario) hook(transition awssim.Transition, timeout time.Duration, n node) {
	s.Helper()
	s.must(s.aws.Apply(awssim.State{
		Groups: []awssim.Group{{Name: "workers", Desired: 1, Instances: []string{n.instance}}},
		Hooks:  []awssim.Hook{{Group: "workers", Name: "hook", Transition: transition, HeartbeatTimeout: timeout}},
		Rules:  []awssim.Rule{{Name: "lifecycle", DetailType: "EC2 Instance-* Lifecycle Action", Queue: queueName}},
	}))
}

// transition begins to launch or to terminate a node's instance. It returns the
// token of the action, which its hook waits for, and the message that tells of it.
func (s *scenario) transition(n node, t awssim.Transition) (action, message string) {
	s.Helper()
	before := s.sent()
	actions, err := s.aws.StartTransition(n.instance, t)
	s.must(err)
	sent := s.sent()[len(before):]
	if len(actions) != 1 || len(sent) != 1 {
		s.Fatalf("%d actions and %d messages, want one of each", len(actions), len(sent))
	}
	return actions[0].Token, sent[0]
}

// sent are the ids of all messages so far, oldest first.
func (s *scenario) sent() (messages []string) {
	for _, e := range s.aws.Effects() {
		if e.Kind == awssim.MessageSent {
			messages = append(messages, e.MessageID)
		}
	}
	return messages
}

func (s *scenario) action(token string) awssim.LifecycleAction {
	s.Helper()
	actions := s.aws.LifecycleActions()
	at := slices.IndexFunc(actions, func(a awssim.LifecycleAction) bool { return a.Token == token })
	if at < 0 {
		s.Fatalf("no lifecycle action %s", token)
	}
	return actions[at]
}

// timedOut judges an action whose hook has ended by itself: what follows from that is none of ours.
func (p *pulse) timedOut(action string) bool {
	p.s.Helper()
	if p.s.action(action).Outcome != awssim.TimedOut {
		return false
	}
	p.judge("the hook has timed out")
	return true
}

// completedOnce checks that an action was ended by the one completion that it
// got, and that the scenario's pods had been asked to leave before.
func (s *scenario) completedOnce(token string) {
	s.Helper()
	s.acceptedOnce(token)
	ended := s.action(token).Ended
	for _, e := range s.evictions() {
		if e.Received.After(ended) {
			s.Errorf("%s of pod %s after the completion", e.Verb, e.Name)
		}
	}
}

// acceptedOnce checks that an action was ended by the one completion that it got.
func (s *scenario) acceptedOnce(token string) {
	s.Helper()
	a := s.action(token)
	if a.Outcome != awssim.Completed || a.Result != awssim.Continue {
		s.Errorf("the action was %s with %s, want a completion with %s", a.Outcome, a.Result, awssim.Continue)
	}
	accepted := 0
	for _, c := range s.aws.Calls() {
		if c.Action == "CompleteLifecycleAction" && c.Status == http.StatusOK && slices.Contains(c.Params["token"], token) {
			accepted++
		}
	}
	if accepted != 1 {
		s.Errorf("%d completions were accepted, want one", accepted)
	}
}

// joinUnready adds the Node of an instance as it registers, before it is ready.
func (s *scenario) joinUnready(n node) {
	s.Helper()
	_, err := shared.AddNode(s.ctx, sandbox.NodeSpec{
		Name: n.name, ProviderID: "aws:///us-east-1a/" + n.instance, Labels: map[string]string{"scenario": s.name}, NotReady: true,
	})
	s.must(err)
}

// Auto Scaling terminates the instance when its hook is completed, and EC2 tells of that:
// the node is empty by then, and its drain was told of and counted.
func TestAScaleInIsOneDrain(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 4)
	h := s.alone()
	action := s.scaleIn(nodes[0])
	s.awaitDeleted(soon, s.send(s.hookBody("asg-terminate-lifecycle", action)))
	s.completed(action)
	s.finished(nodes[0].name)
	told := func() []string { return reasons(s.told("default", "Node", nodes[0].name)) }
	want := []string{"ASGLifecycle", "Cordon", "CordonAndDrain"}
	s.eventually("the drain is told", func() bool { return slices.Equal(want, told()) })
	accepted := func() (n int) {
		for _, e := range s.writes() {
			if e.Code < http.StatusMultipleChoices { // the kubelet may have written in between
				n++
			}
		}
		return n
	}
	writes := accepted()

	s.must(s.aws.SetInstanceState(nodes[0].instance, "shutting-down"))
	s.awaitDeleted(soon, s.send(s.body("state-change-stopping", nodes[0].instance, `"stopping"`, `"shutting-down"`)))
	s.must(s.aws.SetInstanceState(nodes[0].instance, "terminated"))
	s.awaitDeleted(soon, s.send(s.body("state-change-terminated", nodes[0].instance)))
	s.throughout(2*time.Second, "nothing more is told", func() bool { return slices.Equal(want, told()) })
	s.finished(nodes[0].name)
	if n := accepted(); n > writes+2 { // that its instance ends is noted, and that it has
		t.Errorf("%d writes after the drain", n-writes)
	}
	for series, want := range map[string]float64{
		`actions_total{node_action="cordon",node_status="success"}`:                                                      1,
		`actions_total{node_action="cordon-and-drain",node_status="success"}`:                                            1,
		`node_termination_handler_drains_total{kind="ASGTerminate",outcome="in-time"}`:                                   1,
		`node_termination_handler_drains_total{kind="StateChange",outcome="in-time"}`:                                    0,
		`node_termination_handler_decisions_total{action="drop",kind="StateChange",why="consequence-of-finished-drain"}`: 1,
	} {
		if got := h.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}
