package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// polling is short for a test; the default is a minute.
const polling = "--status-interval=10"

// listed makes EC2 say this of an instance.
func (s *scenario) listed(n node, instance awssim.StatusCheck, events ...awssim.ScheduledEvent) {
	s.Helper()
	s.must(s.aws.SetInstanceStatus(n.instance, events, instance, awssim.StatusCheck{}))
}

func TestAScheduledEventThatNoMessageTellsOfIsDrainedForUntilItIsOver(t *testing.T) {
	tier.Full(t, "80 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 4, grace(30, 2*time.Second))
	s.alone(polling, "--taint-node")
	before := s.placement()
	event := awssim.ScheduledEvent{
		ID: "instance-event-0123456789abcdef0", Code: "instance-reboot", Description: "scheduled reboot",
		NotBefore: time.Now().Add(24 * time.Hour).UTC().Truncate(time.Second),
	}
	s.listed(nodes[0], awssim.StatusCheck{}, event)
	s.eventually("the node is drained", func() bool { return s.state(nodes[0]) == cluster.StateDrained })
	s.drainedExactly(before, nodes[0])
	i := s.intent(nodes[0])
	if len(i.Entries) != 1 || i.Entries[0].Kind != notice.ScheduledChange || !i.Deadline().Equal(event.NotBefore) {
		t.Errorf("intent %+v, want one change at %s", i, event.NotBefore)
	}
	s.hasMarks(nodes[0].name, marks{cordoned: true, taints: []string{
		"aws-node-termination-handler/scheduled-maintenance=" + event.ID + event.NotBefore.Format("-20060102T150405Z") + ":NoSchedule",
	}})
	s.says(conditionTold, nodes[0], "Drained=True ScheduledChange") // the last that is written
	written := s.getNode(nodes[0].name).ResourceVersion
	s.throughout(25*time.Second, "the event is handled once", func() bool { return s.getNode(nodes[0].name).ResourceVersion == written })

	event.Description = "[Completed] " + event.Description
	s.listed(nodes[0], awssim.StatusCheck{}, event)
	s.eventually("the node takes pods again", func() bool { return !s.cordoned(nodes[0].name) })
	s.hasMarks(nodes[0].name, marks{})
	s.hasNoIntent(nodes[0].name)
	if n := len(s.sent()); n > 0 {
		t.Errorf("%d messages told of it", n)
	}
}

func TestAnImpairedInstanceGetsAnEventAndIsDrainedOnlyIfThatIsAskedFor(t *testing.T) {
	tier.Full(t, "45 s; internal/status plays it in virtual time")
	t.Parallel()
	broken := awssim.StatusCheck{Status: "impaired", ImpairedSince: time.Now().Add(-10 * time.Minute)}
	tell := func(t *testing.T, args ...string) (*scenario, node) {
		s := newScenario(t)
		n := s.nodes(2)[0]
		s.deployment("web", 4, grace(30, time.Second))
		s.budget("all", "web", 4)
		s.alone(append(args, polling)...)
		s.listed(n, broken)
		s.eventually("there is an Event", func() bool { return slices.Contains(reasons(s.told("default", "Node", n.name)), "InstanceImpaired") })
		return s, n
	}
	t.Run("by default", func(t *testing.T) {
		s, n := tell(t)
		s.throughout(15*time.Second, "the node is left alone", func() bool { return !s.cordoned(n.name) })
		s.untouched(n, 0)
	})
	t.Run("with the option", func(t *testing.T) {
		s, n := tell(t, "--drain-impaired-instances", "--node-termination-grace-period=120")
		pulse, began := s.feel(), time.Now()
		s.eventually("its pods leave, in spite of their budget", func() bool { return s.state(n) == cluster.StateDrained })
		pulse.atMost(time.Since(began), 60*time.Second, "the drain")
		if requests := s.requests(""); slices.ContainsFunc(requests, func(r request) bool { return r.evicts }) {
			t.Errorf("requests %v, want deletions: the budget was asked", requests)
		}
		s.listed(n, awssim.StatusCheck{})
		s.eventually("the node takes pods again", func() bool { return !s.cordoned(n.name) })
		s.hasNoIntent(n.name)
	})
}

func TestWithoutThePermissionToAskForStatusesAllElseWorks(t *testing.T) {
	tier.Full(t, "40 s; internal/status has the refusal")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.must(s.aws.SetFault(awssim.Fault{ID: "status", Service: "ec2", Action: "DescribeInstanceStatus", Status: http.StatusForbidden, Code: "UnauthorizedOperation"}))
	leader := s.alone(polling)
	denied := func() float64 { return leader.metric(`node_termination_handler_status_polls_total{result="denied"}`) }
	s.eventually("a poll is denied", func() bool { return denied() > 0 })
	s.throughout(15*time.Second, "EC2 is not asked again", func() bool { return s.calls("ec2", "DescribeInstanceStatus") == 1 && denied() == 1 })
	s.awaitDeleted(soon, s.send(s.body("spot-interruption", n.instance)))
	s.finished(n.name)
}

// What is asked for beside the queue cannot be had: no notice tells that it is missing, so status does.
func TestStatusSaysWhatCannotBeSeen(t *testing.T) {
	s := newScenario(t)
	s.nodes(1)
	s.must(s.aws.SetFault(awssim.Fault{
		ID: "status", Service: "ec2", Action: "DescribeInstanceStatus", Status: http.StatusForbidden, Code: "UnauthorizedOperation",
	}))
	s.must(s.aws.SetFault(awssim.Fault{ID: "groups", Service: "autoscaling", Status: http.StatusForbidden, Code: "AccessDenied"}))
	leader := s.leader(polling, "--sweep-interval=10")
	for _, what := range []string{"scheduled events without a notice", "lifecycle hooks whose notices are lost"} {
		s.eventually("status says that nobody sees "+what, func() bool {
			return slices.ContainsFunc(leader.overview().Unseen, func(text string) bool { return strings.HasPrefix(text, what) })
		})
	}
}
