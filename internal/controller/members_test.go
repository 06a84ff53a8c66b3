package controller

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/lookup"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

const theBlock = "cr-0123456789abcdef0"

// blockMember is the k-th instance of the block, and blockNode its Node.
func blockMember(k int) string { return fmt.Sprintf("i-%017x", 0xb10c0+k) }
func blockNode(k int) string   { return fmt.Sprintf("gpu-%d", k) }

// block puts instances with Nodes into the Capacity Block. The story's own node is not in it.
func (s *story) block(instanceType string, members int) {
	s.Helper()
	for k := range members {
		s.must(s.aws.PutInstance(awssim.Instance{
			ID: blockMember(k), Type: instanceType, Lifecycle: "capacity-block", Reservation: theBlock, Tags: map[string]string{"managed": ""},
		}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(blockNode(k), blockMember(k)), metav1.CreateOptions{})
		s.must(err)
	}
}

// expires is the warning of this moment that a Capacity Block ends in 40 minutes.
func (s *story) expires(edits ...string) string {
	s.Helper()
	now := time.Now().UTC()
	return s.body("capacity-block-expiration", theID, append(edits,
		"2026-11-20T10:50:00Z", now.Format(time.RFC3339), "2026-11-20T11:30:00Z", now.Add(40*time.Minute).Format(time.RFC3339))...)
}

func (s *story) intentOf(node string) intent.Intent {
	s.Helper()
	n, err := s.kube.CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
	s.must(err)
	i, _, err := cluster.ReadIntent(n)
	s.must(err)
	return i
}

func TestTheMessageOfABlockIsHeldUntilTheLastOfItsNodesIsDrained(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p5.48xlarge", 4)
		s.drain.byNode = map[string]time.Duration{blockNode(1): 3 * time.Minute, blockNode(2): 0, blockNode(3): -1}
		s.edit = func(c *Config) { c.MaxUnready, c.Workers = intstr.FromInt32(1), 1 }
		s.lead()
		begin := time.Now().Truncate(time.Second)
		s.send(s.expires())
		s.after(2 * time.Second)
		drains := s.drain.all()
		if len(drains) != 4 {
			t.Fatalf("%d drains, want one of each node at once", len(drains))
		}
		for _, d := range drains {
			if !d.terms.Deadline.Equal(begin.Add(10*time.Minute)) || d.terms.IgnoreBudgets || d.node == theNode {
				t.Errorf("%s: %+v, want the deadline 30 minutes before the end", d.node, d.terms)
			}
		}
		s.after(5 * time.Minute)
		if finished := s.intentOf(blockNode(1)).Finished(); s.left() != 1 || !finished || s.intentOf(blockNode(3)).Finished() {
			t.Errorf("%d messages, the node %s is finished: %t", s.left(), blockNode(1), finished)
		}
		s.after(5 * time.Minute)
		if i := s.intentOf(blockNode(3)); s.left() != 0 || i.Outcome != intent.Missed {
			t.Errorf("%d messages after the deadline, outcome %q", s.left(), i.Outcome)
		}
		if !asBefore(s.node()) {
			t.Error("a node that is not in the block was touched")
		}
		if n := s.calls("DescribeInstances"); n != 1 {
			t.Errorf("%d look-ups, want 1", n)
		}
	})
}

func TestABlockLosesNoneOfItsNodesWhenALeaderDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{
		"before the answer of EC2": 10 * time.Millisecond, "in the middle of the drains": 5 * time.Second, "between the drains": 50 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.block("p5.48xlarge", 3)
				s.drain.byNode = map[string]time.Duration{blockNode(2): 2 * time.Minute}
				stop := s.lead()
				s.send(s.expires())
				s.after(after)
				stop()
				if s.left() != 1 {
					t.Fatal("the message is gone")
				}
				done := s.drain.all()
				s.lead()
				s.after(4 * time.Minute)
				if s.left() != 0 {
					t.Errorf("%d messages left", s.left())
				}
				for k := range 3 {
					i := s.intentOf(blockNode(k))
					if !i.Finished() || i.Outcome != intent.Drained {
						t.Errorf("%s is not drained: %+v", blockNode(k), i)
					}
				}
				again := 0
				for _, d := range s.drain.all()[len(done):] {
					again++
					if after > 40*time.Second && d.node != blockNode(2) {
						t.Errorf("%s was drained twice", d.node)
					}
				}
				if again == 0 {
					t.Error("the next leader did nothing")
				}
			})
		})
	}
}

func TestAnUltraServerEndsAnHourBeforeItsBlock(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p6e-gb200.36xlarge", 1)
		s.drain.takes = -1
		s.lead()
		now := time.Now().UTC().Truncate(time.Second)
		s.send(s.expires("2026-11-20T11:30:00Z", now.Add(70*time.Minute).Format(time.RFC3339)))
		s.after(2 * time.Second)
		if d := s.intentOf(blockNode(0)).Deadline(); !d.Equal(now.Add(10 * time.Minute)) {
			t.Errorf("deadline %s after the event, want 10 minutes", d.Sub(now))
		}
	})
}

// The warning comes 40 minutes before the end, by AWS's documents.
func TestAnUltraServerThatIsWarnedTooLateHasTheTimeOfOthers(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p6e-gb200.36xlarge", 1)
		s.lead()
		now := time.Now().UTC().Truncate(time.Second)
		s.send(s.expires())
		s.after(2 * time.Second)
		if d := s.intentOf(blockNode(0)).Deadline(); !d.Equal(now.Add(10 * time.Minute)) {
			t.Errorf("deadline %s after the event, want 10 minutes", d.Sub(now))
		}
	})
}

func TestABlockWithoutInstancesOfOursIsLeftToOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		delete bool
		edits  []string
		left   int
		most   int // calls
	}{
		"left":                            {left: 1, most: 6},
		"deleted, by option":              {delete: true, left: 0, most: 1},
		"of another account":              {edits: []string{"123456789012", "210987654321"}, left: 1},
		"of another account, by option":   {edits: []string{"123456789012", "210987654321"}, delete: true},
		"of another region":               {edits: []string{`"us-east-1"`, `"eu-west-1"`}, left: 1},
		"of an id that EC2 does not know": {edits: []string{theBlock, "cr-0fedcba9876543210"}, left: 1, most: 6},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.edit = func(c *Config) { c.DeleteForeign = tt.delete }
				s.lead()
				s.send(s.expires(tt.edits...))
				s.after(5 * time.Minute)
				if s.left() != tt.left || !asBefore(s.node()) {
					t.Errorf("%d messages left, want %d", s.left(), tt.left)
				}
				if n := s.calls("DescribeInstances"); n > tt.most || n == 0 && tt.most > 0 {
					t.Errorf("%d look-ups, want %d at most", n, tt.most)
				}
			})
		})
	}
}

// Whoever may write to the queue cannot drain all that runs in an ordinary reservation.
func TestTheExpirationOfAnotherSortOfReservationDrainsNothing(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: theID, Reservation: theBlock, Tags: map[string]string{"managed": ""}}))
		s.lead()
		s.send(s.expires())
		s.after(3 * time.Minute)
		if i := s.intent(); i.Version != 0 || s.node().Spec.Unschedulable || len(s.drain.all()) != 0 {
			t.Errorf("the node carries %+v", i)
		}
	})
}

func TestABlockThatIsSharedIsDrainedAndItsMessageLeftToTheOthers(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p5.48xlarge", 2)
		s.must(s.aws.PutInstance(awssim.Instance{ID: "i-0fedcba9876543210", Lifecycle: lookup.CapacityBlock, Reservation: theBlock}))
		s.lead()
		s.send(s.expires())
		s.after(3 * time.Minute)
		if s.left() != 1 || !s.intentOf(blockNode(0)).Finished() || !s.intentOf(blockNode(1)).Finished() {
			t.Errorf("%d messages left, intents %+v, %+v", s.left(), s.intentOf(blockNode(0)), s.intentOf(blockNode(1)))
		}
		if n := len(s.drain.all()); n != 2 {
			t.Errorf("%d drains, want 2, however often the message comes back", n)
		}
	})
}

func TestABlockWaitsForTheAnswerOfEC2(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p5.48xlarge", 2)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 503}))
		s.lead()
		s.send(s.expires())
		s.after(time.Minute)
		if s.left() != 1 {
			t.Fatal("the message is gone, and nobody knew which instances it is about")
		}
		s.aws.RemoveFault("ec2")
		s.after(90 * time.Second)
		if s.left() != 0 || len(s.drain.all()) != 2 {
			t.Errorf("%d messages left after %d drains", s.left(), len(s.drain.all()))
		}
	})
}

func TestABlockIsLeftWhereTheRoleMayNotAskForItsInstances(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p5.48xlarge", 2)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
		s.edit = func(c *Config) { c.ManagedTag, c.DeleteForeign = "", true }
		s.lead()
		s.send(s.expires())
		s.after(5 * time.Minute)
		if s.left() != 1 || s.calls("DescribeInstances") > 1 {
			t.Errorf("%d messages left after %d look-ups", s.left(), s.calls("DescribeInstances"))
		}
		s.aws.RemoveFault("ec2") // the permission is there now
		s.after(11 * time.Minute)
		if s.left() != 0 || len(s.drain.all()) != 2 {
			t.Errorf("%d messages left after %d drains", s.left(), len(s.drain.all()))
		}
	})
}

func TestADryRunOfABlockWritesNothing(t *testing.T) {
	t.Parallel()
	for _, members := range []int{0, 2} {
		tell(t, func(s *story) {
			s.block("p5.48xlarge", members)
			s.edit = func(c *Config) { c.DryRun = true }
			s.lead()
			s.send(s.expires())
			s.after(5 * time.Minute)
			for k := range members {
				if i := s.intentOf(blockNode(k)); i.Version != 0 {
					t.Errorf("%s carries %+v", blockNode(k), i)
				}
			}
			if s.left() != 1 || len(s.drain.all()) != 0 {
				t.Errorf("%d messages left, %d drains", s.left(), len(s.drain.all()))
			}
		})
	}
}

// What runs in a block ends with it, whenever it was started.
func TestAnInstanceThatWasStartedAfterTheWarningEndsWithItsBlock(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.block("p5.48xlarge", 1)
		s.lead()
		warning := s.expires()
		s.after(90 * time.Second)
		s.must(s.aws.SetInstanceState(blockMember(0), "stopped"))
		s.must(s.aws.SetInstanceState(blockMember(0), "running"))
		s.send(warning)
		s.after(time.Minute)
		if i := s.intentOf(blockNode(0)); s.left() != 0 || !i.Finished() || i.Deadline().IsZero() {
			t.Errorf("%d messages left, intent %+v", s.left(), i)
		}
	})
}

func TestAnInterruptedReservationIsAsUrgentAsASpotInterruption(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = -1
		s.edit = func(c *Config) { c.MaxUnready = intstr.FromInt32(1) }
		other := aNode("broken", "i-0fedcba9876543210")
		other.Status.Conditions = nil
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), other, metav1.CreateOptions{})
		s.must(err)
		s.lead()
		begin := time.Now().UTC().Truncate(time.Second)
		s.send(s.body("capacity-reservation-interruption", theID, "2026-11-20T10:17:25Z", begin.Add(115*time.Second).Format(time.RFC3339)))
		s.after(time.Second)
		drains := s.drain.all()
		if len(drains) != 1 || !drains[0].terms.Deadline.Equal(begin.Add(115*time.Second)) || drains[0].terms.IgnoreBudgets {
			t.Fatalf("drains %+v, want one with the deadline of the notice", drains)
		}
		s.after(2 * time.Minute)
		if s.left() != 0 || s.intent().Outcome != intent.Missed {
			t.Errorf("%d messages left, outcome %q", s.left(), s.intent().Outcome)
		}
	})
}

// The message of a custom event bus is as good as that of a rule.
func TestACustomBusDrainsForWhatAWSSaysNow(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption-replayed-by-a-custom-bus", theID))
		s.send(s.body("spot-interruption-of-another-publisher", theID))
		s.after(10 * time.Second)
		if !asBefore(s.node()) || s.left() != 0 {
			t.Fatalf("the node is %+v, %d messages left", s.node().Spec, s.left())
		}
		s.send(s.body("spot-interruption-from-a-custom-bus", theID))
		s.send(s.body("spot-interruption-from-a-custom-bus-through-sns", theID))
		s.after(40 * time.Second)
		if i := s.intent(); s.left() != 0 || !i.Finished() || len(s.drain.all()) != 1 {
			t.Errorf("%d messages left, %d drains, intent %+v", s.left(), len(s.drain.all()), i)
		}
	})
}

// The reason of a decision about a scheduled change says what becomes of the machine.
func TestTheReasonOfAScheduledChangeNamesItsEffect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ code, want string }{
		{"AWS_EC2_INSTANCE_STOP_SCHEDULED", "scheduled-stop"},
		{"AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", "scheduled-reboot"},
		{"AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED", "scheduled-network-maintenance"},
		{"AWS_EC2_NEW", "scheduled-change"},
	} {
		tell(t, func(s *story) {
			watch := &whys{}
			s.edit = func(c *Config) { watch.Observer, c.Observer = c.Observer, watch }
			s.lead()
			s.send(s.body("health-reboot-scheduled", theID, "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED", tt.code))
			s.after(5 * time.Second)
			if got := watch.all(); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("%s: %v, want %s", tt.code, got, tt.want)
			}
		})
	}
}

// whys writes down the reasons of all decisions.
type whys struct {
	report.Observer

	mu   sync.Mutex
	said []string
}

func (w *whys) Decided(d report.Decision) {
	w.Observer.Decided(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, string(d.Why))
}

func (w *whys) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

// A change of a Dedicated Host is one of each instance that runs on it.
func TestAChangeOfADedicatedHostDrainsTheNodesOnIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const host = "h-0123456789abcdef0"
		for k := range 3 {
			on := host
			if k == 2 {
				on = "h-0fedcba9876543210"
			}
			s.must(s.aws.PutInstance(awssim.Instance{ID: blockMember(k), Host: on, Tags: map[string]string{"managed": ""}}))
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(blockNode(k), blockMember(k)), metav1.CreateOptions{})
			s.must(err)
		}
		s.lead()
		start := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
		body := func(edits ...string) string {
			return s.body("health-dedicated-host-retirement", theID, append(edits, "Fri, 4 Dec 2026 06:00:00 GMT", gmt(start))...)
		}
		s.send(body())
		s.after(time.Minute)
		for k := range 2 {
			i := s.intentOf(blockNode(k))
			if !i.Finished() || i.Outcome != intent.Drained || len(i.Entries) != 1 || !i.Entries[0].Deadline.Equal(start) {
				t.Errorf("%s: %+v, want it drained before %s", blockNode(k), i, start)
			}
		}
		if n := len(s.drain.all()); n != 2 || s.left() != 0 {
			t.Errorf("%d drains, %d messages left; want 2 and none", n, s.left())
		}
		s.send(body("PENDING", "RESOLVED"))
		s.after(time.Minute)
		for k := range 2 {
			if i := s.intentOf(blockNode(k)); len(i.Entries) != 0 {
				t.Errorf("%s: %+v, want nothing left after the change is over", blockNode(k), i)
			}
		}
		if s.left() != 0 {
			t.Errorf("%d messages left", s.left())
		}
	})
}
