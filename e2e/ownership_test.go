package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
)

const (
	// brief makes a message that is left come back soon.
	brief = "--sqs-msg-visibility-timeout-sec=2"
	// short does so for one that is not extended; it leaves a busy machine the time to extend.
	short = "--sqs-msg-visibility-timeout-sec=20"
	// isHeld is longer than that.
	isHeld = 22 * time.Second
)

// foreign sends a notice for each way in which an instance can be somebody else's.
func (s *scenario) foreign(ours node) []string {
	s.Helper()
	untagged := s.id(90)
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: untagged}))
	return []string{
		s.send(s.body("spot-interruption", s.id(91))), // unknown to EC2
		s.send(s.body("state-change-stopping", untagged)),
		s.send(s.body("spot-interruption", ours.instance, account, "210987654321")),
		s.send(s.body("spot-interruption", ours.instance, region, "eu-west-1")),
		s.send(s.body("health-reboot-scheduled", ours.instance, `"affectedAccount": "`+account, `"affectedAccount": "210987654321`)),
	}
}

func TestMessagesOfForeignInstancesAreDeletedWhereThatIsWanted(t *testing.T) {
	tier.Full(t, "internal/decision has the table")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("one", n.name)
	s.alone("--delete-sqs-msg-if-node-not-found")
	before := s.placement()
	s.awaitDeleted(soon, s.foreign(n)...)
	s.drainedExactly(before)
	s.wroteNothing()
}

func TestMessagesOfForeignInstancesAreLeftToOthersWithoutAnotherLookUp(t *testing.T) {
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.pod("one", n.name)
	s.alone(brief)
	deletions := s.calls("sqs", "DeleteMessageBatch") // it asks at start whether it may
	before := s.placement()
	messages := s.foreign(n)
	s.eventually("all are received twice", func() bool { return s.received(messages) >= 2 })
	lookUps := s.calls("ec2", "DescribeInstances")
	s.eventually("all come back again and again", func() bool { return s.received(messages) >= 5 })
	if again := s.calls("ec2", "DescribeInstances") - lookUps; again > 0 {
		t.Errorf("%d more calls of DescribeInstances for messages that came back", again)
	}
	if n := s.calls("sqs", "DeleteMessageBatch") - deletions; n > 0 {
		t.Errorf("%d calls to delete messages", n)
	}
	s.drainedExactly(before)
	s.wroteNothing()
}

func TestOnlyInstancesWithTheManagedTagAreDrained(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	tagged, other := nodes[0], nodes[1]
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: tagged.instance, Tags: map[string]string{"example.com/drain": ""}}))
	s.deployment("web", 4)
	s.alone("--managed-tag=example.com/drain", brief)
	before := s.placement()
	left := s.send(s.body("spot-interruption", other.instance))
	message := s.send(s.body("spot-interruption", tagged.instance))
	s.awaitDeleted(soon, message)
	s.eventually("the message of the other is left", func() bool { return s.received([]string{left}) >= 3 })
	s.drainedExactly(before, tagged)
	if s.isDeleted(left) {
		t.Error("the message of the instance without the tag was deleted")
	}
}

// Of what must be held against what EC2 says, such as a stop, there is nothing among these.
func TestWithoutTheTagCheckNodesAreDrainedWithoutACallToEC2(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: nodes[0].instance})) // no tag
	s.aws.RemoveInstance(nodes[1].instance)                                              // EC2 does not know it at all
	s.deployment("web", 6)
	s.alone("--check-tag-before-draining=false")
	before := s.placement()
	var messages []string
	for _, event := range []string{"rebalance-recommendation", "spot-interruption"} {
		messages = append(messages, s.send(s.body(event, nodes[0].instance)), s.send(s.body(event, nodes[1].instance)))
	}
	s.awaitDeleted(soon, messages...)
	s.drainedExactly(before, nodes[:2]...)
	if n := s.calls("ec2", "DescribeInstances"); n > 0 {
		t.Errorf("%d calls of DescribeInstances, want none", n)
	}
}

func TestThreePermissionsOfSQSAreEnoughWithoutTagCheckAndHooks(t *testing.T) {
	tier.Full(t, "20 s; an option")
	s := newScenario(t)
	n, late := s.nodes(1)[0], node{name: s.name + "-late", instance: s.id(1)}
	s.pod("one", n.name)
	for _, fault := range []awssim.Fault{
		{Service: "sqs", Action: "GetQueueAttributes", Code: "AccessDenied"},
		{Service: "ec2", Code: "UnauthorizedOperation"},
		{Service: "autoscaling", Code: "AccessDenied"},
	} {
		fault.ID, fault.Status = fault.Service, http.StatusForbidden
		s.must(s.aws.SetFault(fault))
	}
	s.alone("--check-tag-before-draining=false", "--delete-sqs-msg-if-node-not-found", brief)
	before := s.placement()
	unknown := s.send(s.body("spot-interruption", late.instance))
	message := s.send(s.body("spot-interruption", n.instance))
	s.awaitDeleted(soon, message)
	s.drainedExactly(before, n)
	s.eventually("the message about an instance without a Node is left", func() bool { return s.received([]string{unknown}) >= 3 })
	if s.isDeleted(unknown) {
		t.Error("the message about an instance without a Node was deleted")
	}
	if n := s.calls("ec2", "DescribeInstances"); n != 1 {
		t.Errorf("%d calls of DescribeInstances, want one that is refused", n)
	}
	s.join(late.name, late.instance)
	s.awaitDeleted(soon, unknown)
	s.finished(late.name)
}

func TestANodeWithoutAProviderIDIsFoundByThePrivateDNSNameOfItsInstance(t *testing.T) {
	tier.Full(t, "internal/cluster has the index")
	s := newScenario(t)
	other := s.nodes(1)[0]
	n := node{name: fmt.Sprintf("ip-10-0-0-%d.ec2.internal", s.number), instance: s.id(8)}
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: n.instance, PrivateDNSName: n.name, Tags: managed}))
	_, err := shared.AddNode(s.ctx, sandbox.NodeSpec{Name: n.name, Labels: map[string]string{"scenario": s.name}})
	s.must(err)
	s.pod("one", n.name)
	s.pod("two", other.name)
	s.alone()
	before := s.placement()
	message := s.send(s.body("spot-interruption", n.instance))
	s.awaitDeleted(soon, message)
	s.drainedExactly(before, n)
	s.deletedLast(message)
}

func TestAnInstanceWhoseNodeIsNotThereYetIsHeldAndItsNodeCordonedBeforeAPodLands(t *testing.T) {
	s := newScenario(t)
	n := node{name: s.name + "-late", instance: s.id(0)}
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: n.instance, State: "pending", Tags: managed}))
	s.alone(short)
	message := s.reserve(n)
	s.throughout(isHeld, "the message is held", func() bool { return !s.isDeleted(message) && s.received([]string{message}) <= 1 })
	s.wroteNothing()

	waiting := s.waitingPod("eager")
	// A kubelet registers its node some seconds before it is ready for pods.
	s.joinUnready(n)
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	s.must(shared.SetReady(s.ctx, n.name, true))
	s.awaitDeleted(soon, message)
	s.finished(n.name)
	if p := s.placement()[waiting.UID]; p.Spec.NodeName != "" {
		t.Errorf("the pod landed on %s", p.Spec.NodeName)
	}
}

func TestHeartbeatsHoldATerminationWhoseNodeIsNotThereYet(t *testing.T) {
	tier.Full(t, "90 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := node{name: s.name + "-late", instance: s.id(0)}
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: n.instance, Tags: managed}))
	s.alone("--heartbeat-interval=30") // or a third of the hook's timeout, if that is less
	action := s.scaleIn(n, func(h *awssim.Hook) { h.HeartbeatTimeout = time.Minute })
	message := s.send(s.hookBody("asg-terminate-lifecycle", action))
	s.eventually("heartbeats hold the hook beyond its timeout", func() bool { return s.action(action.Token).Heartbeats >= 3 })
	if s.isDeleted(message) {
		t.Error("the message was deleted before its node was there")
	}
	s.wroteNothing()

	s.join(n.name, n.instance)
	s.eventually("the node is cordoned", func() bool { return s.cordoned(n.name) })
	s.awaitDeleted(soon, message)
	s.completed(action)
	s.finished(n.name)
	heartbeats := s.calls("autoscaling", "RecordLifecycleActionHeartbeat")
	s.throughout(21*time.Second, "there are no heartbeats after the completion", func() bool {
		return s.calls("autoscaling", "RecordLifecycleActionHeartbeat") == heartbeats
	})
}

func TestNoticesOfAnInstanceThatIsGoneAreAcknowledgedAndItsHookIsCompleted(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	gone, stays := nodes[0], nodes[1]
	s.pod("one", stays.name)
	s.alone()
	before := s.placement()
	s.must(s.kube.CoreV1().Nodes().Delete(s.ctx, gone.name, metav1.DeleteOptions{}))
	action := s.scaleIn(gone)
	s.must(s.aws.SetInstanceState(gone.instance, "terminated"))
	never := s.id(50) // its Node was never seen here
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: never, State: "terminated", Tags: managed}))
	s.awaitDeleted(soon,
		s.send(s.body("spot-interruption", gone.instance)),
		s.send(s.body("state-change-terminated", gone.instance)),
		s.send(s.hookBody("asg-terminate-lifecycle", action)),
		s.send(s.body("rebalance-recommendation", never)),
	)
	s.completed(action)
	s.drainedExactly(before)
	s.wroteNothing()
}

func TestANodeThatIsDeletedDuringItsDrainEndsIt(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 2)
	s.budget("all", "web", 2)
	s.alone()
	action := s.scaleIn(nodes[0])
	message := s.send(s.hookBody("asg-terminate-lifecycle", action))
	s.eventually("the budget refuses an eviction", func() bool { return s.refusals() > 0 })
	if s.isDeleted(message) {
		t.Error("the message was deleted in the middle of the drain")
	}
	s.must(s.aws.SetInstanceState(nodes[0].instance, "stopped")) // while it runs its next Node is waited for
	s.must(s.kube.CoreV1().Nodes().Delete(s.ctx, nodes[0].name, metav1.DeleteOptions{}))
	s.awaitDeleted(soon, message)
	s.completed(action)
}

func TestWhileEC2FailsAMessageIsNeitherDeletedNorItsNodeMissed(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]awssim.Fault{
		"it is down":    {Status: http.StatusServiceUnavailable},
		"it throttles":  {Code: "RequestLimitExceeded", Status: http.StatusServiceUnavailable},
		"it refuses us": {Code: "UnauthorizedOperation", Status: http.StatusForbidden},
		"it resets":     {Reset: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScenario(t)
			s.alone("--delete-sqs-msg-if-node-not-found", short)
			s.eventually("the instances with the tag are listed", func() bool { return s.calls("ec2", "DescribeInstances") > 1 })
			n := s.nodes(1)[0] // it is not among them
			s.pod("one", n.name)
			before := s.placement()
			asked := s.calls("ec2", "DescribeInstances")
			fault.ID, fault.Service = "ec2", "ec2"
			s.must(s.aws.SetFault(fault))
			message := s.send(s.body("spot-interruption", n.instance))
			s.eventually("EC2 is asked", func() bool { return s.received([]string{message}) == 1 && s.calls("ec2", "DescribeInstances") > asked })
			s.throughout(isHeld, "the message is held", func() bool {
				return !s.isDeleted(message) && s.received([]string{message}) == 1
			})
			s.wroteNothing()
			s.aws.RemoveFault("ec2")
			s.awaitDeleted(soon, message)
			s.drainedExactly(before, n)
		})
	}
}

// received is how often that one of the messages was delivered which was delivered the least.
func (s *scenario) received(messages []string) int {
	deliveries := map[string]int{}
	for _, e := range s.aws.Effects() {
		if e.Kind == awssim.MessageReceived {
			deliveries[e.MessageID]++
		}
	}
	least := deliveries[messages[0]]
	for _, m := range messages {
		least = min(least, deliveries[m])
	}
	return least
}

// waitingPod creates a pod for any node of the scenario, and does not wait until there is one.
func (s *scenario) waitingPod(name string) *corev1.Pod {
	s.Helper()
	p, err := s.kube.CoreV1().Pods(s.name).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"scenario": s.name},
			Containers:   []corev1.Container{{Name: "c", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return p
}
