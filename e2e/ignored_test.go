package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
)

// ignored are the bodies that ask for nothing, with the reason that is counted.
var ignored = map[string]string{
	"asg-terminate-successful":       "other-service",
	"asg-test-notification":          "test-notification",
	"fis-experiment-state-change":    "other-service",
	"health-issue-not-scheduled":     "not-scheduled",
	"health-other-service":           "not-scheduled",
	"sns-subscription-confirmation":  "sns-confirmation",
	"state-change-pending":           "other-state",
	"an-unknown-state":               "other-state",
	"a-scheduled-change-of-a-volume": "no-instance",
}

// ignoredBody is the body of a name of ignored, about a node where it can be.
func (s *scenario) ignoredBody(name string, n node) string {
	s.Helper()
	switch name {
	case "an-unknown-state": // that begins like one which drains
		return s.body("state-change-stopping", n.instance, `"stopping"`, `"stop"`)
	case "a-scheduled-change-of-a-volume":
		return s.body("health-reboot-scheduled", "vol-0123456789abcdef0")
	}
	return s.body(name, n.instance)
}

// bad are the bodies that nobody can read. SQS takes no empty one; blanks are the nearest.
func bad() []string {
	const size = 256 << 10
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, size)
	for k := range noise {
		noise[k] = byte(random.IntN(256))
	}
	return []string{
		" \n ",
		string(noise),
		strings.Repeat("[", size),
		`{"source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning", "detail": []}`,
	}
}

func TestBodiesThatAskForNothingAreCountedAndOutOfTheWay(t *testing.T) {
	t.Parallel()
	const parked = "parked"
	tests := []struct {
		name       string
		redrive    bool
		deliveries int // of a body that cannot be read
	}{
		{"without a redrive policy they are deleted", false, 1},
		{"with one those that cannot be read are parked", true, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScenario(t)
			nodes := s.nodes(2)
			s.deployment("web", 4)
			s.must(s.aws.CreateQueue(awssim.Queue{Name: parked}))
			if test.redrive {
				s.must(s.aws.CreateQueue(awssim.Queue{Name: queueName, Attributes: map[string]string{
					"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, s.aws.QueueARN(parked), test.deliveries),
				}}))
			}
			h := s.alone(short)
			before := s.placement()

			var good []string
			want := map[string]int{}
			for name, why := range ignored {
				good = append(good, s.send(s.ignoredBody(name, nodes[0])))
				want[why]++
			}
			var unreadable []string
			for _, body := range bad() {
				unreadable = append(unreadable, s.send(body))
			}
			strange := s.send(s.body("spot-interruption", "i-*"))
			good = append(good, s.send(s.body("spot-interruption", nodes[1].instance)))

			s.awaitDeleted(soon, good...)
			s.drainedExactly(before, nodes[1])
			if test.redrive {
				s.eventually("what cannot be read is parked", func() bool { return len(s.aws.Messages(parked)) == len(unreadable)+1 })
			} else {
				s.awaitDeleted(soon, unreadable...)
			}
			// What is about an id that is no instance's is for somebody else, perhaps.
			if left := s.aws.Messages(queueName); test.redrive != (len(left) == 0) || len(left) > 1 || len(left) == 1 && left[0].ID != strange {
				t.Errorf("%d messages are left in the queue", len(left))
			}
			if got := h.decisions("Ignored", "leave", "no-instance-id"); got < test.deliveries {
				t.Errorf("the message about no instance was left %d times", got)
			}
			for why, n := range want {
				if got := h.decisions("Ignored", "drop", why); got != n {
					t.Errorf("%d messages were dropped for %s, want %d", got, why, n)
				}
			}
			// What comes before the queue's redrive policy is known is delivered once more.
			rejected, least := h.decisions("Ignored", "reject", "undecodable"), test.deliveries*len(unreadable)
			if rejected < least || rejected > least+len(unreadable) {
				t.Errorf("%d messages were rejected, want %d, or some more", rejected, least)
			}
			if h.isExited() {
				t.Error("the handler has exited")
			}
		})
	}
}

// decisions is how often the handler has decided so.
func (h *handler) decisions(kind, action, why string) int {
	return int(h.metric(fmt.Sprintf("node_termination_handler_decisions_total{action=%q,kind=%q,why=%q}", action, kind, why)))
}
