package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/race"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The answer that is kept for a second is one to another of them.
func TestTheWaitOfALimitEndsForEachThatWaits(t *testing.T) {
	t.Parallel()
	limited := decision.NodeRule{
		Name: "limited", Kinds: []notice.Kind{notice.RebalanceRecommendation}, Do: decision.Draining, Before: -1,
		Limit: decision.Limit{Nodes: "1", Wait: 2 * time.Hour},
	}
	zoned(t, func(f *fleet, _ *policyOf) {
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(500 * time.Millisecond)
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(2*time.Hour + time.Minute)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0, 1}) {
			t.Errorf("cordoned %v, waiting %v a minute after the wait of both", out, f.nodes(waits))
		}
		f.after(10 * time.Hour)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{0, 1}) {
			t.Errorf("cordoned %v, waiting %v ten hours after the wait of both", out, f.nodes(waits))
		}
	}, limited)
}

// Its machine runs on, and may get another Node.
func TestANodeThatIsDeletedWhileItWaitsTakesNoPlace(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(5 * time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(5 * time.Second)
		f.must(f.kube.CoreV1().Nodes().Delete(f.Context(), "n0", metav1.DeleteOptions{}))
		f.after(5 * time.Second)
		f.setReady(9, corev1.ConditionTrue)
		for _, d := range []time.Duration{5 * time.Second, 5 * time.Minute, 14 * time.Minute} {
			f.after(d)
			if out := f.nodes(cordoned); !slices.Equal(out, []int{1}) {
				_, why := f.c.Registry.HeldBack()
				t.Errorf("after %s more: cordoned %v, waiting %v: %s", d, out, f.nodes(waits), why)
			}
		}
	})
}

func TestASpotWarningJoinsADrainThatCannotBeCordoned(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.setReady(9, corev1.ConditionUnknown)
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(10 * time.Second)
		f.failPatches("n0")
		f.setReady(9, corev1.ConditionTrue)
		f.after(10 * time.Second)
		f.send(f.body("spot-interruption", f.ids[0]))
		f.after(2 * time.Minute)
		if n := len(f.drain.all()); n != 1 {
			t.Errorf("%d drains at the deadline of the spot interruption", n)
		}
	})
}

// Its message is deleted: the node carries the notice.
func TestWhatWaitsOnANodeThatCannotBeWrittenIsDrainedInTime(t *testing.T) {
	t.Parallel()
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.lead()
		s.send(s.reboot(3 * time.Hour))
		s.after(time.Hour)
		s.failPatches()
		s.after(2*time.Hour - 30*time.Second)
		if n := len(s.drain.all()); n != 1 {
			t.Errorf("%d drains 30 s before the reboot", n)
		}
	}, aReboot)
}

func TestTheCompletionDelayHoldsNoHookOfANodeThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.edit = func(c *Config) { c.CompletionDelay = 10 * time.Second }
		s.failPatches()
		s.lead()
		s.terminate(10 * time.Minute)
		s.after(9 * time.Minute)
		if n := len(s.drain.all()); n != 1 {
			t.Fatalf("%d drains", n)
		}
		s.wantHook(awssim.Completed)
	})
}

func TestAChangeThatIsCalledOffLeavesTheRestOfAnUnrecordedDrain(t *testing.T) {
	t.Parallel()
	for heal := range 24 {
		t.Run(fmt.Sprint(heal), func(t *testing.T) {
			tell(t, func(s *story) {
				mend := s.failPatches()
				s.drain.takes = 150 * time.Second
				s.lead()
				s.send(s.rebootOf(theID, 150*time.Second))
				s.terminate(5 * time.Minute)
				s.after(155 * time.Second)
				if n := len(s.drain.all()); n != 1 {
					t.Fatalf("%d drains", n)
				}
				s.send(s.body("health-maintenance-completed", theID))
				s.after(5*time.Second + time.Duration(heal)*700*time.Millisecond)
				mend()
				s.after(4 * time.Minute)
				s.wantHook(awssim.Completed)
				if i := s.intent(); !s.node().Spec.Unschedulable || len(i.Entries) != 1 || s.left() != 0 {
					t.Errorf("cordoned %t, %d messages, carries %+v", s.node().Spec.Unschedulable, s.left(), i)
				}
			})
		})
	}
}

func TestANodeThatCannotBeWrittenKeepsNoPlace(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.failPatches("n0")
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(5 * time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(3 * time.Hour)
		if out := f.nodes(cordoned); !slices.Equal(out, []int{1}) {
			_, why := f.c.Registry.HeldBack()
			t.Errorf("cordoned %v, waiting %v after 3 h: %s", out, f.nodes(waits), why)
		}
	})
}

func TestAHookThatWaitsForAnotherDrainIsHeldOpen(t *testing.T) {
	t.Parallel()
	ignore := decision.NodeRule{Name: "no-scale-in", Kinds: []notice.Kind{notice.ASGTerminate}, Do: decision.Ignoring, Before: -1}
	tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
		s.interval = time.Minute
		s.drain.takes = 10 * time.Minute
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(5 * time.Second)
		s.terminate(2 * time.Minute)
		s.after(12 * time.Minute)
		s.wantHook(awssim.Completed)
	}, ignore)
}

// The event names an instance beside it.
func TestAHostThatCannotBeAskedAboutLeavesItsMessage(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const host = "h-0123456789abcdef0"
		s.must(s.aws.PutInstance(awssim.Instance{ID: blockMember(0), Host: host, Tags: map[string]string{"managed": ""}}))
		_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(blockNode(0), blockMember(0)), metav1.CreateOptions{})
		s.must(err)
		s.must(s.aws.SetFault(awssim.Fault{ID: "ec2", Service: "ec2", Status: 403, Code: "UnauthorizedOperation"}))
		s.edit = func(c *Config) { c.ManagedTag = "" }
		s.lead()
		b := s.body("health-dedicated-host-retirement", theID, "Fri, 4 Dec 2026 06:00:00 GMT", gmt(time.Now().Add(time.Hour)))
		b = strings.Replace(b, `"affectedEntities": [`, `"affectedEntities": [{"entityValue":"`+theID+`","status":"PENDING"},`, 1)
		s.send(b)
		s.after(5 * time.Minute)
		if i := s.intent(); !i.Finished() || s.left() != 1 {
			t.Errorf("%d messages left; the named one: %+v; of the host: %+v", s.left(), i, s.intentOf(blockNode(0)))
		}
	})
}

// The event names the instance twice.
func TestAHostWithAnInstanceThatIsResolved(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		const host = "h-0123456789abcdef0"
		for k := range 2 {
			s.must(s.aws.PutInstance(awssim.Instance{ID: blockMember(k), Host: host, Tags: map[string]string{"managed": ""}}))
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(blockNode(k), blockMember(k)), metav1.CreateOptions{})
			s.must(err)
		}
		s.lead()
		b := s.body("health-dedicated-host-retirement", theID, "Fri, 4 Dec 2026 06:00:00 GMT", gmt(time.Now().Add(time.Hour)))
		e := `{"entityValue":"` + blockMember(0) + `","status":"RESOLVED"},`
		b = strings.Replace(b, `"affectedEntities": [`, `"affectedEntities": [`+e+e, 1)
		s.send(b)
		s.after(5 * time.Minute)
		if n := len(s.drain.all()); n != 1 || s.left() != 0 || !s.intentOf(blockNode(1)).Finished() || len(s.intentOf(blockNode(0)).Entries) != 0 {
			t.Errorf("%d drains, %d messages left; %+v; %+v", n, s.left(), s.intentOf(blockNode(0)), s.intentOf(blockNode(1)))
		}
	})
}

func TestWhatIsPutOffLeavesAPersonsCordon(t *testing.T) {
	race.Long(t)
	t.Parallel()
	for _, drained := range []bool{true, false} {
		t.Run(fmt.Sprint(drained), func(t *testing.T) {
			t.Parallel()
			tellWithRules(t, func(s *story, _ *policyOf, _ *steps) {
				if !drained {
					s.drain.takes = time.Hour
				}
				n := s.node()
				n.Spec.Unschedulable = true
				_, err := s.kube.CoreV1().Nodes().Update(s.Context(), n, metav1.UpdateOptions{})
				s.must(err)
				s.lead()
				later := time.Now().Add(300 * time.Hour)
				s.send(s.reboot(time.Hour))
				s.send(s.body("health-reboot-scheduled", theID, "Fri, 27 Nov 2026 06:00:00 GMT", gmt(later), "90353408594353980", "90353408594353981"))
				s.after(45 * time.Minute)
				s.send(s.body("health-maintenance-completed", theID))
				s.after(time.Minute)
				if i := s.intent(); !i.HeldBack || !s.node().Spec.Unschedulable {
					t.Errorf("cordoned %t: %+v", s.node().Spec.Unschedulable, i)
				}
				before := len(s.drain.all())
				s.after(time.Until(later.Add(-29 * time.Minute)))
				if n := len(s.drain.all()); n != before+1 {
					t.Errorf("%d drains, before %d", n, before)
				}
			}, aReboot)
		})
	}
}
