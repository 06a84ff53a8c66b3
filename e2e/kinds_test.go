package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func TestASpotWarningDrainsItsNodeAndNoOther(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	s.deployment("web", 6)
	s.alone()
	sent := time.Now()
	message := s.send(s.body("spot-interruption", nodes[0].instance))
	s.awaitDeleted(soon, message)
	t.Logf("deleted after %s", s.deleted(message).Sub(sent))
	s.drainedBefore(message, nodes[0])
	s.untouched(nodes[1], 2)
	s.untouched(nodes[2], 2)
	s.eventually("all pods are ready elsewhere", func() bool { return s.readyReplicas("web") == 6 })
}

func TestEachKindOfNoticeDrainsExactlyItsNodes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		event string
		nodes int // that it is about
	}{
		{"spot-interruption-through-sns", 1},
		{"rebalance-recommendation", 1},
		{"state-change-stopping", 1},
		{"state-change-shutting-down", 1},
		{"capacity-reservation-interruption", 1},
		{"spot-interruption-from-a-custom-bus", 1},
		{"health-reboot-scheduled", 1},
		{"health-retirement-two-instances", 2},
	}
	for _, test := range tests {
		t.Run(test.event, func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(test.nodes + 2)
			s.deployment("web", int32(2*len(nodes)), grace(30, 2*time.Second))
			s.alone()
			before := s.placement()
			message := s.send(s.body(test.event, nodes[0].instance, second, nodes[1].instance, startTime, ahead(), termination, in(2*time.Minute)))
			s.awaitDeleted(soon, message)
			s.drainedExactly(before, nodes[:test.nodes]...)
			s.deletedLast(message)
			s.eventually("all pods are ready elsewhere", func() bool { return s.readyReplicas("web") == int32(2*len(nodes)) })
		})
	}
}

// block puts nodes' instances into a Capacity Block, and returns the warning that it ends.
func (s *scenario) block(nodes ...node) (body string) {
	s.Helper()
	id := "cr-" + strings.TrimPrefix(nodes[0].instance, "i-")
	for _, n := range nodes {
		s.must(s.aws.PutInstance(awssim.Instance{
			ID: n.instance, Tags: managed, Type: "p5.48xlarge", Lifecycle: "capacity-block", Reservation: id, LaunchTime: time.Now().Add(-time.Hour),
		}))
	}
	return s.body("capacity-block-expiration", nodes[0].instance, reservation, id, blockTime, in(0), blockEnd, in(40*time.Minute))
}

func TestABlockThatExpiresDrainsAllItsNodesAndNoOther(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(5)
	s.deployment("web", 10, grace(30, 2*time.Second))
	s.alone()
	before := s.placement()
	message := s.send(s.block(nodes[:3]...))
	s.awaitDeleted(soon, message)
	s.drainedExactly(before, nodes[:3]...)
	s.deletedLast(message)
	s.eventually("all pods are ready elsewhere", func() bool { return s.readyReplicas("web") == 10 })
}

func TestABlockLosesNoNodeWhenItsLeaderIsKilledInTheMiddle(t *testing.T) {
	tier.Full(t, "25 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(5)
	s.deployment("web", 10, grace(30, 5*time.Second))
	leader := s.leader()
	before := s.placement()
	message := s.send(s.block(nodes[:3]...))
	s.eventually("a node of the block is cordoned", func() bool {
		return slices.ContainsFunc(nodes[:3], func(n node) bool { return s.cordoned(n.name) })
	})
	leader.kill()
	if s.isDeleted(message) {
		t.Error("the message was deleted in the middle of the drains")
	}
	s.leader()
	s.eventually("the nodes of the block are cordoned", func() bool {
		return !slices.ContainsFunc(nodes[:3], func(n node) bool { return !s.cordoned(n.name) })
	})
	maps.Copy(before, s.placement()) // pods of those that were cordoned first came to the others
	s.awaitDeleted(2*soon, message)
	s.drainedExactly(before, nodes[:3]...)
	s.deletedLast(message)
}

func TestAReplayOfACustomBusDrainsNothing(t *testing.T) {
	tier.Full(t, "internal/notice and internal/controller have it")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("one", n.name)
	s.alone()
	before := s.placement()
	s.awaitDeleted(soon, s.send(s.body("spot-interruption-replayed-by-a-custom-bus", n.instance)))
	s.drainedExactly(before)
	s.wroteNothing()
}

func TestATerminationHookIsCompletedWhenThePodsAreGoneAndBeforeItsMessageIsDeleted(t *testing.T) {
	t.Parallel()
	for _, event := range []string{"asg-terminate-lifecycle", "asg-terminate-direct-to-sqs", "asg-terminate-through-sns"} {
		t.Run(event, func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(3)
			s.deployment("web", 6, grace(30, 2*time.Second))
			s.alone()
			before := s.placement()
			action := s.scaleIn(nodes[0])
			message := s.send(s.hookBody(event, action))
			s.awaitDeleted(soon, message)
			s.drainedExactly(before, nodes[0])
			s.deletedLast(message)
			completed := s.completed(action)
			for pod, stopped := range s.stopped() {
				if completed.Before(stopped) {
					t.Errorf("the hook was completed at %s, pod %s stopped at %s", completed, pod, stopped)
				}
			}
			if deleted := s.deleted(message); deleted.Before(completed) {
				t.Errorf("the message was deleted at %s, the hook completed at %s", deleted, completed)
			}
			s.eventually("all pods are ready elsewhere", func() bool { return s.readyReplicas("web") == 6 })
		})
	}
}

func TestAStoppedInstanceIsAcknowledgedAndNothingIsEvicted(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 4)
	s.alone()
	before := s.placement()
	s.must(s.aws.SetInstanceState(nodes[0].instance, "stopped"))
	s.must(s.aws.SetInstanceState(nodes[1].instance, "terminated"))
	stopped := s.send(s.body("state-change-stopped", nodes[0].instance))
	terminated := s.send(s.body("state-change-terminated", nodes[1].instance))
	s.awaitDeleted(soon, stopped, terminated)
	s.drainedExactly(before)
	s.wroteNothing()
}

func TestAnInstanceThatHasStoppedEndsItsDrain(t *testing.T) {
	t.Parallel()
	for _, event := range []string{"state-change-stopped", "state-change-terminated"} {
		t.Run(event, func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(2)
			s.deployment("web", 2)
			s.budget("all", "web", 2)
			s.alone()
			before := s.placement()
			action := s.scaleIn(nodes[0])
			messages := []string{
				s.send(s.body("rebalance-recommendation", nodes[0].instance)),
				s.send(s.hookBody("asg-terminate-lifecycle", action)),
			}
			s.eventually("the drain has both notices, and the budget refuses an eviction", func() bool {
				return s.refusals() > 0 && len(s.intent(nodes[0]).Entries) == 2
			})
			s.must(s.aws.SetInstanceState(nodes[0].instance, "stopped")) // terminated, it would wait for no hook
			ended := s.send(s.body(event, nodes[0].instance))
			s.awaitDeleted(soon, append(messages, ended)...)
			s.completed(action)
			s.ended(nodes[0].name, intent.Gone)
			for uid, p := range before {
				if !s.lives(uid, p) {
					t.Errorf("pod %s was evicted", p.Name)
				}
			}
		})
	}
}

// maintenance are the options under which a scheduled change leaves all its marks.
var maintenance = []string{"--taint-node", "--exclude-from-load-balancers"}

func TestTheEndOfAScheduledChangeUndoesWhatWeDidAndNothingElse(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(4)
	ours, theirs, twice := nodes[0], nodes[1], nodes[2]
	foreign := map[string]any{"key": "example.com/dedicated", "value": "batch", "effect": "PreferNoSchedule"}
	s.patchNode(ours.name, map[string]any{"spec": map[string]any{"taints": []any{foreign}}})
	// Somebody has cordoned this one, has it out of the load balancers, and has NTH's own taint on it.
	const key = "aws-node-termination-handler/scheduled-maintenance"
	s.patchNode(theirs.name, map[string]any{
		"metadata": map[string]any{"labels": map[string]any{corev1.LabelNodeExcludeBalancers: "theirs"}},
		"spec": map[string]any{
			"unschedulable": true,
			"taints":        []any{foreign, map[string]any{"key": key, "value": "theirs", "effect": "NoSchedule"}},
		},
	})
	s.pod("one", ours.name)
	s.pod("two", theirs.name)
	s.pod("three", twice.name)
	s.alone(maintenance...)

	opening := s.body("health-retirement-two-instances", ours.instance, second, theirs.instance, startTime, ahead())
	other := s.body("health-reboot-scheduled", twice.instance, startTime, ahead())
	warning := s.body("spot-interruption", twice.instance)
	s.awaitDeleted(soon, s.send(opening), s.send(other), s.send(warning))
	for _, n := range []node{ours, theirs, twice} {
		if on := s.podsOn(n.name); len(on) > 0 {
			t.Errorf("%d pods are left on %s", len(on), n.name)
		}
		s.finished(n.name)
	}
	s.hasMarks(ours.name, marks{
		cordoned: true, excluded: excludedByUs,
		taints: []string{"example.com/dedicated=batch:PreferNoSchedule", key + "=" + eventID(opening) + ":NoSchedule"},
	})
	asBefore := marks{
		cordoned: true, excluded: "theirs",
		taints: []string{key + "=theirs:NoSchedule", "example.com/dedicated=batch:PreferNoSchedule"},
	}
	s.hasMarks(theirs.name, asBefore)

	s.awaitDeleted(soon,
		s.send(s.body("health-retirement-two-instances", ours.instance, second, theirs.instance, "upcoming", "closed")),
		s.send(s.body("health-reboot-scheduled", twice.instance, "upcoming", "closed")))
	s.hasMarks(ours.name, marks{taints: []string{"example.com/dedicated=batch:PreferNoSchedule"}})
	s.hasMarks(theirs.name, asBefore)
	for _, n := range []node{ours, theirs} {
		s.hasNoIntent(n.name)
	}
	if !s.cordoned(twice.name) {
		t.Errorf("node %s has a spot warning and was uncordoned all the same", twice.name)
	}
	s.untouched(nodes[3], 0)
}

func TestTheEndOfAScheduledChangeStopsADrainThatABudgetBlocks(t *testing.T) {
	tier.Full(t, "20 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 2)
	s.budget("all", "web", 2)
	s.alone(maintenance...)
	before := s.placement()
	opening := s.send(s.body("health-reboot-scheduled", n.instance, startTime, ahead()))
	s.eventually("the budget refuses an eviction", func() bool { return s.refusals() > 0 })
	if s.isDeleted(opening) {
		t.Error("the message was deleted in the middle of the drain")
	}
	closing := s.send(s.body("health-reboot-scheduled", n.instance, "upcoming", "closed"))
	s.awaitDeleted(soon, opening, closing)
	s.hasMarks(n.name, marks{})
	s.hasNoIntent(n.name)

	// With the budget gone nothing would hold back an eviction that is still tried;
	// after so few refusals that would be within a second or two.
	s.must(s.kube.PolicyV1().PodDisruptionBudgets(s.name).Delete(s.ctx, "all", metav1.DeleteOptions{}))
	s.throughout(6*time.Second, "the pods stay", func() bool {
		for uid, p := range before {
			if !s.lives(uid, p) {
				return false
			}
		}
		return true
	})
}

func TestAScheduledChangeWhoseEndCameFirstDoesNothing(t *testing.T) {
	tier.Full(t, "internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("one", n.name)
	s.alone(maintenance...)
	before := s.placement()
	now := time.Now()
	at := func(age time.Duration, status string) string {
		return s.bodyAt(now.Add(-age), "health-reboot-scheduled", n.instance, startTime, ahead(), "upcoming", status)
	}
	s.awaitDeleted(soon, s.send(at(2*time.Minute, "closed")))
	s.awaitDeleted(soon, s.send(at(3*time.Minute, "upcoming")))
	s.drainedExactly(before)
	s.hasMarks(n.name, marks{})
	s.hasNoIntent(n.name)
	// Health announces it anew: that is no straggler.
	s.awaitDeleted(soon, s.send(at(time.Minute, "upcoming")))
	s.drainedExactly(before, n)
}

func TestAllNoticesOfANodeJoinOneDrain(t *testing.T) {
	t.Parallel()
	const (
		rebalance, spot, stopping = "rebalance-recommendation", "spot-interruption", "state-change-stopping"
		hook                      = "asg-terminate-lifecycle"
	)
	for _, order := range [][]string{
		{rebalance, spot, hook, stopping},
		{hook, stopping, spot, rebalance},
		{spot, rebalance, stopping, hook},
		{stopping, hook, rebalance, spot},
	} {
		t.Run(strings.Join(order, ","), func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(2)
			s.deployment("web", 4, grace(20, 4*time.Second))
			s.alone()
			before := s.placement()
			action := s.scaleIn(nodes[0])
			var messages []string
			for k, event := range order {
				body := s.hookBody(event, action)
				messages = append(messages, s.send(body), s.send(body))
				if k == 0 {
					s.eventually("the first one cordons the node", func() bool { return s.cordoned(nodes[0].name) })
				}
			}
			s.awaitDeleted(soon, messages...)
			s.completed(action)
			s.drainedExactly(before, nodes[0])
			s.finished(nodes[0].name)
			drained := len(s.writes())

			// SQS may deliver again what was deleted.
			for _, m := range messages {
				s.must(s.aws.Redeliver(queueName, m))
			}
			s.eventually("all are deleted again", func() bool { return len(s.aws.Messages(queueName)) == 0 })
			s.completed(action)
			if again := s.writes()[drained:]; len(again) > 0 {
				t.Errorf("the second delivery wrote to Kubernetes: %+v", again)
			}
		})
	}
}

// What edits replace in the bodies of testdata/events.
const (
	second    = "i-0fedcba9876543210"
	startTime = "Fri, 27 Nov 2026 06:00:00 GMT"
	// Of a Capacity Reservation, and of a Capacity Block.
	termination = "2026-11-20T10:17:25Z"
	blockTime   = "2026-11-20T10:50:00Z"
	blockEnd    = "2026-11-20T11:30:00Z"
	reservation = "cr-0123456789abcdef0"

	token = "f2a5c0a1-6d3f-4b6a-9b62-000000000001"
	group = "workers"
	hook  = "drain"
)

// kubelets is what the simulated kubelets are called in the audit log.
const kubelets = "kwok"

// in is a moment from now, as EC2 writes it.
func in(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }

// ahead is a start time of a scheduled change that leaves all the time in the world.
func ahead() string { return startIn(7 * 24 * time.Hour) }

// startIn is a start time of a scheduled change.
func startIn(d time.Duration) string {
	return time.Now().Add(d).UTC().Format(time.RFC1123[:len(time.RFC1123)-3]) + "GMT"
}

// scaleIn puts the node's instance into a group with a termination hook, and
// begins to terminate it. The message about it is the scenario's to send.
func (s *scenario) scaleIn(n node, edit ...func(*awssim.Hook)) awssim.LifecycleAction {
	s.Helper()
	s.must(s.aws.PutGroup(awssim.Group{Name: group, Instances: []string{n.instance}}))
	h := awssim.Hook{Group: group, Name: hook, Transition: awssim.Terminating}
	for _, e := range edit {
		e(&h)
	}
	s.must(s.aws.PutHook(h))
	actions, err := s.aws.StartTransition(n.instance, awssim.Terminating)
	s.must(err)
	return actions[0]
}

// hookBody is a body about the action's instance, with the action's token if it has one.
func (s *scenario) hookBody(event string, action awssim.LifecycleAction) string {
	s.Helper()
	return s.body(event, action.InstanceID, token, action.Token)
}

// completed checks that the action was ended by the one call that was made for
// it, and returns when.
func (s *scenario) completed(action awssim.LifecycleAction) time.Time {
	s.Helper()
	s.completedOnce(action.Token)
	if n := s.calls("autoscaling", "CompleteLifecycleAction"); n != 1 {
		s.Errorf("%d calls to complete the lifecycle action, want 1", n)
	}
	return s.action(action.Token).Ended
}

// placement is where the scenario's pods are, by UID.
func (s *scenario) placement() map[types.UID]corev1.Pod {
	s.Helper()
	list, err := s.kube.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	pods := map[types.UID]corev1.Pod{}
	for _, p := range list.Items {
		pods[p.UID] = p
	}
	return pods
}

// lives reports whether the pod is still the same, and nobody has asked it to stop.
func (s *scenario) lives(uid types.UID, p corev1.Pod) bool {
	s.Helper()
	now, err := s.kube.CoreV1().Pods(p.Namespace).Get(s.ctx, p.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false
	}
	s.must(err)
	return now.UID == uid && now.DeletionTimestamp == nil
}

// drainedExactly checks that the nodes are cordoned, that all pods which were on
// them, and no others, were asked to leave, once, and that nothing has happened
// to the scenario's other nodes.
func (s *scenario) drainedExactly(before map[types.UID]corev1.Pod, nodes ...node) {
	s.Helper()
	isOurs := func(name string) bool { return slices.ContainsFunc(nodes, func(n node) bool { return n.name == name }) }
	want := map[types.UID]int{}
	for uid, p := range before {
		if isOurs(p.Spec.NodeName) {
			want[uid] = 1
		} else if !s.lives(uid, p) {
			s.Errorf("pod %s on %s was stopped", p.Name, p.Spec.NodeName)
		}
	}
	if diff := cmp.Diff(want, s.asked()); diff != "" {
		s.Errorf("pods that were asked to leave, by UID (-want +got):\n%s", diff)
	}
	list, err := s.kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: "scenario=" + s.name})
	s.must(err)
	for _, n := range list.Items {
		if !isOurs(n.Name) {
			s.untouched(node{name: n.Name}, 0)
		} else if !n.Spec.Unschedulable {
			s.Errorf("node %s is not cordoned", n.Name)
		}
	}
	for _, n := range nodes {
		if on := s.podsOn(n.name); len(on) > 0 {
			s.Errorf("%d pods are left on node %s", len(on), n.name)
		}
	}
}

// asked counts the accepted requests for a pod to leave, by the UID that they name.
func (s *scenario) asked() map[types.UID]int {
	s.Helper()
	asked := map[types.UID]int{}
	for _, e := range s.evictions() {
		type options struct{ Preconditions metav1.Preconditions }
		var body struct {
			options               // of DeleteOptions
			DeleteOptions options // of an Eviction
		}
		s.must(json.Unmarshal(e.Request, &body))
		uid := body.Preconditions.UID
		if uid == nil {
			uid = body.DeleteOptions.Preconditions.UID
		}
		if uid == nil {
			s.Fatalf("%s of pod %s does not name its UID: %s", e.Verb, e.Name, e.Request)
		}
		asked[*uid]++
	}
	return asked
}

// stopped is when the kubelets have reported the end of the scenario's pods, by name.
func (s *scenario) stopped() map[string]time.Time {
	s.Helper()
	events, err := s.cluster.Audit(func(e sandbox.AuditEvent) bool {
		return e.User == kubelets && e.Namespace == s.name && e.Resource == "pods" && e.Verb == "delete" && e.Code < 300
	})
	s.must(err)
	stopped := map[string]time.Time{}
	for _, e := range events {
		stopped[e.Name] = e.Received
	}
	return stopped
}

// deletedLast checks that the message was there until all was done: every
// request to Kubernetes answered, every pod that had to leave stopped.
func (s *scenario) deletedLast(message string) {
	s.Helper()
	deleted := s.deleted(message)
	for _, e := range s.writes() {
		if e.Received.After(deleted) {
			s.Errorf("%s of %s %s at %s, after the message was deleted at %s", e.Verb, e.Resource, e.Name, e.Received, deleted)
		}
	}
	stopped := s.stopped()
	for _, e := range s.evictions() {
		if at, ok := stopped[e.Name]; !ok || at.After(deleted) {
			s.Errorf("pod %s stopped at %s, after the message was deleted at %s", e.Name, at, deleted)
		}
	}
}

// refusals counts the evictions that a budget has refused.
func (s *scenario) refusals() int {
	s.Helper()
	return len(s.audit(func(e sandbox.AuditEvent) bool {
		return e.Subresource == "eviction" && e.Code == http.StatusTooManyRequests
	}))
}

// wroteNothing checks that the handlers have tried to change nothing but their
// Lease, and what is no longer there: they may not have heard of its end.
func (s *scenario) wroteNothing() {
	s.Helper()
	for _, e := range s.writes() {
		if e.Code != http.StatusNotFound {
			s.Errorf("unexpected %s of %s %s %s", e.Verb, e.Resource, e.Name, e.Subresource)
		}
	}
}

// finished checks that the node says that it is drained, and nothing is left to do.
func (s *scenario) finished(name string) {
	s.Helper()
	s.ended(name, intent.Drained)
}

// ended checks that the node says that nothing is left to do, and how its drain ended.
func (s *scenario) ended(name string, want intent.Outcome) {
	s.Helper()
	if state := s.getNode(name).Labels[cluster.StateLabel]; state != string(want) {
		s.Errorf("node %s has the state %q, want %q", name, state, want)
	}
}

// hasNoIntent checks that nothing is asked of the node; what is over may be remembered.
func (s *scenario) hasNoIntent(name string) {
	s.Helper()
	n := s.getNode(name)
	if i, ok, err := cluster.ReadIntent(n); err != nil || ok && (len(i.Entries) > 0 || i.Cordoned || n.Labels[cluster.StateLabel] != "") {
		s.Errorf("node %s still carries %+v, %v", name, i, err)
	}
	for _, label := range []string{cluster.StateLabel, cluster.KindLabel} {
		if value, ok := n.Labels[label]; ok {
			s.Errorf("node %s still has the label %s=%s", name, label, value)
		}
	}
}

// marks are what a notice can leave on a node.
type marks struct {
	cordoned bool
	excluded string   // value of the label; empty: it is not there
	taints   []string // without those of Kubernetes itself; in order
}

// excludedByUs is the value of the label that takes a node out of its load balancers.
const excludedByUs = "aws-node-termination-handler"

func (s *scenario) hasMarks(name string, want marks) {
	s.Helper()
	n := s.getNode(name)
	got := marks{cordoned: n.Spec.Unschedulable, excluded: n.Labels[corev1.LabelNodeExcludeBalancers]}
	for _, taint := range n.Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			got.taints = append(got.taints, taint.ToString())
		}
	}
	slices.Sort(got.taints)
	want.taints = slices.Sorted(slices.Values(want.taints))
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(marks{})); diff != "" {
		s.Errorf("marks on node %s (-want +got):\n%s", name, diff)
	}
}

// eventID is the id of the event in a body of EventBridge, or of the request in one of Auto Scaling.
func eventID(body string) string {
	n, err := notice.Parse(body)
	if err != nil {
		return err.Error()
	}
	return n.ID
}
