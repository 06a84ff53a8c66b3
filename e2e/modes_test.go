package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
)

func TestCordonOnlyCordonsAndCompletesHooksAndEvictsNothing(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	for _, n := range nodes {
		s.pod("on-"+n.name, n.name)
	}
	s.leader("--cordon-only")
	before := s.placement()
	action := s.scaleIn(nodes[1])
	s.awaitDeleted(soon,
		s.send(s.body("spot-interruption", nodes[0].instance)),
		s.send(s.hookBody("asg-terminate-lifecycle", action)))
	s.completed(action)
	for _, n := range nodes[:2] {
		if !s.cordoned(n.name) {
			t.Errorf("node %s is not cordoned", n.name)
		}
		s.ended(n.name, intent.Cordoned)
	}
	s.untouched(nodes[2], 1)
	for uid, p := range before {
		if !s.lives(uid, p) {
			t.Errorf("pod %s was stopped", p.Name)
		}
	}
	for _, e := range s.writes() {
		if e.Resource != "nodes" {
			t.Errorf("%s of %s %s", e.Verb, e.Resource, e.Name)
		}
	}
}

func TestADryRunWritesNothingAndLeavesEveryMessage(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	for _, n := range nodes {
		s.pod("on-"+n.name, n.name)
	}
	// Everything that could write more is on.
	h := s.leader("--dry-run", brief, "--taint-node", "--exclude-from-load-balancers", "--enable-out-of-service-taint",
		"--delete-sqs-msg-if-node-not-found", "--heartbeat-interval=30")
	before := s.placement()
	action := s.scaleIn(nodes[0])
	events, err := filepath.Glob(filepath.Join("testdata", "events", "*.json"))
	s.must(err)
	var messages []string
	for _, file := range events {
		event := strings.TrimSuffix(filepath.Base(file), ".json")
		messages = append(messages, s.send(s.body(event, nodes[0].instance, second, nodes[1].instance, token, action.Token)))
	}
	messages = append(messages, s.send(s.body("spot-interruption", s.id(77)))) // of nobody
	for _, body := range bad() {
		messages = append(messages, s.send(body))
	}
	s.eventually("all messages come back again and again", func() bool { return s.received(messages) >= 3 })
	if n := h.decisions("SpotInterruption", "drain", "spot-interruption"); n < 3 {
		t.Errorf("%d decisions about the spot warning, want one for each delivery", n)
	}
	if n := len(s.aws.Messages(queueName)); n != len(messages) {
		t.Errorf("%d messages are in the queue, want all %d", n, len(messages))
	}
	if o := h.overview(); !strings.HasPrefix(o.Deaf(), "dry-run is on") {
		t.Errorf("the status says %q", o.Deaf())
	}
	for _, call := range []string{"CompleteLifecycleAction", "RecordLifecycleActionHeartbeat"} {
		if n := s.calls("autoscaling", call); n > 0 {
			t.Errorf("%d calls of %s", n, call)
		}
	}
	s.wroteNothing()
	s.drainedExactly(before)
	// The Lease is written all the same: of two replicas one decides.
	if leases := s.audit(func(e sandbox.AuditEvent) bool { return e.Resource == "leases" && e.Verb != "get" }); len(leases) == 0 {
		t.Error("the Lease was not written")
	}
}

func TestANodeGetsTheTaintOfEachKindOfNotice(t *testing.T) {
	s := newScenario(t)
	tests := []struct {
		event, taint string
		ends         bool // the machine does, so that its load balancers leave it
	}{
		{"spot-interruption", "spot-itn", true},
		{"health-reboot-scheduled", "scheduled-maintenance", false},
		{"asg-terminate-direct-to-sqs", "asg-lifecycle-termination", true},
		{"rebalance-recommendation", "rebalance-recommendation", false},
		{"state-change-stopping", "", true},
	}
	nodes := s.nodes(len(tests))
	s.leader("--taint-node")
	var messages []string
	wanted := make([]marks, len(tests))
	for k, test := range tests {
		body := s.body(test.event, nodes[k].instance, startTime, ahead())
		messages = append(messages, s.send(body))
		wanted[k].cordoned = true
		if test.ends {
			wanted[k].excluded = excludedByUs
		}
		if test.taint != "" {
			wanted[k].taints = []string{"aws-node-termination-handler/" + test.taint + "=" + eventID(body) + ":NoSchedule"}
		}
	}
	s.awaitDeleted(soon, messages...)
	for k, want := range wanted {
		s.hasMarks(nodes[k].name, want)
	}

	// A second kind brings a second taint; an id that is too long for a taint is cut.
	long := strings.Repeat("0123456789", 8)
	body := s.body("rebalance-recommendation", nodes[0].instance)
	s.awaitDeleted(soon, s.send(strings.ReplaceAll(body, eventID(body), long)))
	wanted[0].taints = append(wanted[0].taints, "aws-node-termination-handler/rebalance-recommendation="+long[:63]+":NoSchedule")
	s.hasMarks(nodes[0].name, wanted[0])
}

func TestTheTaintHasTheEffectThatIsAskedFor(t *testing.T) {
	tier.Full(t, "internal/cluster has the patches")
	t.Parallel()
	for _, effect := range []string{"PreferNoSchedule", "NoExecute"} {
		t.Run(effect, func(t *testing.T) {
			s := newScenario(t)
			n := s.nodes(1)[0]
			s.leader("--taint-node", "--taint-effect="+effect)
			body := s.body("spot-interruption", n.instance)
			s.awaitDeleted(soon, s.send(body))
			s.hasMarks(n.name, marks{cordoned: true, excluded: excludedByUs, taints: []string{"aws-node-termination-handler/spot-itn=" + eventID(body) + ":" + effect}})
		})
	}
}

func TestTheClusterNameTellsWhoseAnInstanceWithoutANodeIs(t *testing.T) {
	tier.Full(t, "internal/decision has the table")
	s := newScenario(t)
	n := node{name: s.name + "-late", instance: s.id(0)}
	other := s.id(1)
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: n.instance, Tags: map[string]string{"kubernetes.io/cluster/blue": "owned"}}))
	s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: other, Tags: map[string]string{"kubernetes.io/cluster/green": "owned"}}))
	s.leader("--check-tag-before-draining=false", "--cluster-name=blue", "--delete-sqs-msg-if-node-not-found")
	message := s.send(s.body("spot-interruption", n.instance))
	s.awaitDeleted(soon, s.send(s.body("spot-interruption", other)))
	s.throughout(3*time.Second, "the message is held", func() bool { return !s.isDeleted(message) })
	s.join(n.name, n.instance)
	s.awaitDeleted(soon, message)
	if !s.cordoned(n.name) {
		t.Errorf("node %s is not cordoned", n.name)
	}
	s.finished(n.name)
}
