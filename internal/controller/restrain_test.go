package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A fleet is a story of ten nodes, of which most may be out of use.
type fleet struct {
	*story
	ids [10]string
}

func tellOfFleet(t *testing.T, most string, run func(f *fleet)) {
	t.Helper()
	tell(t, func(s *story) {
		f := &fleet{story: s}
		s.edit = func(c *Config) { c.MaxUnready = intstr.Parse(most) }
		s.must(s.kube.CoreV1().Nodes().Delete(s.Context(), theNode, metav1.DeleteOptions{}))
		for k := range f.ids {
			f.ids[k] = fmt.Sprintf("i-%017x", k+1)
			_, err := s.kube.CoreV1().Nodes().Create(s.Context(), aNode(fmt.Sprintf("n%d", k), f.ids[k]), metav1.CreateOptions{})
			s.must(err)
			s.must(s.aws.PutInstance(awssim.Instance{Lifecycle: "spot", ID: f.ids[k], Tags: map[string]string{"managed": ""}}))
		}
		run(f)
	})
}

// nodes are the numbers of those for which is holds.
func (f *fleet) nodes(is func(*corev1.Node) bool) (numbers []int) {
	f.Helper()
	for k := range f.ids {
		if node, err := f.kube.CoreV1().Nodes().Get(f.Context(), fmt.Sprintf("n%d", k), metav1.GetOptions{}); err == nil && is(node) {
			numbers = append(numbers, k)
		}
	}
	return numbers
}

// wantUsersNamed checks that each node that is held back says so, and which nodes use up the limit.
func (f *fleet) wantUsersNamed(words string) {
	f.Helper()
	out := f.nodes(cordoned)
	for _, n := range f.c.Registry.Status(f.Context()) {
		if n.Stage != overview.HeldBack {
			continue
		}
		why := n.WaitsFor[0].Why
		named := slices.ContainsFunc(out, func(k int) bool { return strings.Contains(why, fmt.Sprintf("n%d", k)) })
		if !strings.Contains(why, words) || !named {
			f.Errorf("%s waits because %q, want %q and some of %v", n.Name, why, words, out)
		}
	}
}

func cordoned(n *corev1.Node) bool { return n.Spec.Unschedulable }

func waits(n *corev1.Node) bool { return n.Labels[cluster.StateLabel] == cluster.StateWaiting }

// want checks how many nodes are cordoned, and how many are held back.
func (f *fleet) want(out, heldBack int) {
	f.Helper()
	held, why := f.c.Registry.HeldBack()
	if c, w := f.nodes(cordoned), f.nodes(waits); len(c) != out || len(w) != heldBack || held != heldBack {
		f.Fatalf("cordoned %v, waiting %v, held back %d (%s); want %d cordoned, %d held back", c, w, held, why, out, heldBack)
	}
}

func (f *fleet) setReady(k int, ready corev1.ConditionStatus) {
	f.Helper()
	node, err := f.kube.CoreV1().Nodes().Get(f.Context(), fmt.Sprintf("n%d", k), metav1.GetOptions{})
	f.must(err)
	node.Status.Conditions[0].Status = ready
	_, err = f.kube.CoreV1().Nodes().UpdateStatus(f.Context(), node, metav1.UpdateOptions{})
	f.must(err)
}

// replace puts a new node in the place of one that was drained.
func (f *fleet) replace(k int) {
	f.Helper()
	name := fmt.Sprintf("n%d", k)
	f.must(f.kube.CoreV1().Nodes().Delete(f.Context(), name, metav1.DeleteOptions{}))
	_, err := f.kube.CoreV1().Nodes().Create(f.Context(), aNode("new-"+name, "i-0fedcba98765432"+name[1:]), metav1.CreateOptions{})
	f.must(err)
}

func TestDrainsThatCanWaitLeaveEnoughNodesInUse(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "30%", func(f *fleet) {
		f.lead()
		for _, id := range f.ids {
			f.send(f.body("rebalance-recommendation", id))
		}
		f.after(5 * time.Second)
		f.want(3, 7)
		if _, why := f.c.Registry.HeldBack(); why != "7, because 3 of 10 nodes are not ready, cordoned or about to be; max-unready-nodes is 30%" {
			t.Errorf("why: %s", why)
		}
		f.wantUsersNamed("drains held back: ")
		f.after(2 * time.Minute) // drained, and still out of use
		f.want(3, 7)
		if f.left() != 0 {
			t.Errorf("%d messages left: the nodes carry what they ask for", f.left())
		}
		// Nothing is asked of anybody meanwhile.
		before := len(f.kube.Actions())
		f.after(time.Hour)
		for _, call := range f.kube.Actions()[before:] {
			t.Errorf("a call to the API server: %s %s", call.GetVerb(), call.GetResource().Resource)
		}
		f.want(3, 7)
		for _, k := range f.nodes(cordoned) {
			f.replace(k)
		}
		f.after(3 * time.Second)
		f.want(3, 4)
		f.after(time.Minute)
		if n := len(f.drain.all()); n != 6 || f.drain.most != 3 {
			t.Errorf("%d drains, %d of them at once; want 6 and 3", n, f.drain.most)
		}
	})
}

func TestNodesThatAreNotReadyHoldBackToo(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "3", func(f *fleet) {
		for k := range 3 {
			f.setReady(k, corev1.ConditionUnknown)
		}
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[5]))
		f.after(5 * time.Second)
		f.want(0, 1)
		f.send(f.body("rebalance-recommendation", f.ids[0])) // out of use already
		f.after(2 * time.Second)
		f.want(1, 1)
		f.setReady(1, corev1.ConditionTrue)
		f.after(2 * time.Second)
		f.want(2, 0)
	})
}

func TestWhatIsUrgentIsNeverHeldBack(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.send(f.body("rebalance-recommendation", f.ids[2]))
		f.after(time.Second)
		f.want(1, 2)
		before := time.Now()
		f.send(f.body("spot-interruption", f.ids[1])) // of one that is held back
		f.send(f.body("state-change-stopping", f.ids[2]))
		f.send(f.body("spot-interruption", f.ids[3])) // and of one that is not
		f.after(time.Second)
		f.want(4, 0)
		for k := 1; k <= 2; k++ {
			node, err := f.kube.CoreV1().Nodes().Get(f.Context(), fmt.Sprintf("n%d", k), metav1.GetOptions{})
			f.must(err)
			if i, _, err := cluster.ReadIntent(node); err != nil || i.HeldBack || i.CordonedAt.Before(before) {
				t.Errorf("intent of n%d: %+v, %v; want it cordoned after %s", k, i, err, before)
			}
		}
		f.after(time.Minute)
		if f.left() != 0 || len(f.drain.all()) != 4 {
			t.Errorf("%d messages left after %d drains", f.left(), len(f.drain.all()))
		}
	})
}

func TestADrainIsHeldBackUntilItsDeadlineIsNear(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.interval = time.Minute
		edit := f.edit
		f.edit = func(c *Config) {
			edit(c)
			c.HeartbeatUntil = 10 * time.Minute
		}
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Second)
		f.must(f.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{f.ids[1]}}))
		f.must(f.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 2 * time.Minute}))
		f.must(f.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
		_, err := f.aws.StartTransition(f.ids[1], awssim.Terminating)
		f.must(err)
		f.after(7*time.Minute + 50*time.Second)
		f.want(1, 1)
		if f.left() != 1 {
			t.Errorf("%d messages, want the hook's alone", f.left())
		}
		if action := f.wantHook(awssim.Active); action.Heartbeats < 6 {
			t.Errorf("%d heartbeats in 8 minutes", action.Heartbeats)
		}
		f.after(20 * time.Second) // 8 minutes are 2 before the end of the heartbeats
		f.want(2, 0)
		f.after(30 * time.Second)
		f.wantHook(awssim.Completed)
		if f.left() != 0 {
			t.Errorf("%d messages left", f.left())
		}
	})
}

func TestTheNextLeaderGoesOnWithWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "2", func(f *fleet) {
		f.drain.takes = 10 * time.Minute
		stop := f.lead()
		for _, id := range f.ids[:5] {
			f.send(f.body("rebalance-recommendation", id))
		}
		f.after(3 * time.Minute)
		f.want(2, 3)
		if f.left() != 0 {
			t.Fatalf("%d messages left", f.left())
		}
		stop()
		f.lead()
		f.after(5 * time.Second)
		f.want(2, 3)
		f.after(11 * time.Minute)
		for _, k := range f.nodes(cordoned) {
			f.replace(k)
		}
		f.after(3 * time.Second)
		f.want(2, 1)
	})
}

func TestAChangeThatIsCalledOffWhileItsDrainIsHeldBackLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Second)
		f.send(f.body("health-reboot-scheduled", f.ids[1]))
		f.after(time.Second)
		f.want(1, 1)
		f.send(f.body("health-maintenance-completed", f.ids[1]))
		f.after(2 * time.Second)
		f.want(1, 0)
		node, err := f.kube.CoreV1().Nodes().Get(f.Context(), "n1", metav1.GetOptions{})
		f.must(err)
		if !asBefore(node) {
			t.Errorf("left behind: %v %v", node.Annotations, node.Labels)
		}
	})
}

func TestAnInstanceThatGoesWhileItsDrainIsHeldBackEndsIt(t *testing.T) {
	t.Parallel()
	end := map[string]func(*fleet){
		"by its state": func(f *fleet) {
			f.end(f.ids[1])
			f.send(f.body("state-change-terminated", f.ids[1]))
		},
		"by its Node": func(f *fleet) {
			f.end(f.ids[1])
			f.must(f.kube.CoreV1().Nodes().Delete(f.Context(), "n1", metav1.DeleteOptions{}))
		},
	}
	for name, ends := range end {
		t.Run(name, func(t *testing.T) {
			tellOfFleet(t, "1", func(f *fleet) {
				f.lead()
				f.send(f.body("rebalance-recommendation", f.ids[0]))
				f.after(3 * time.Minute)
				f.must(f.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{f.ids[1]}}))
				f.must(f.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: time.Hour}))
				f.must(f.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
				_, err := f.aws.StartTransition(f.ids[1], awssim.Terminating)
				f.must(err)
				f.after(time.Second)
				f.want(1, 1)
				ends(f)
				f.after(3 * time.Second)
				f.wantHook(awssim.Completed)
				if held, _ := f.c.Registry.HeldBack(); held != 0 || f.left() != 0 {
					t.Errorf("%d held back, %d messages left", held, f.left())
				}
			})
		})
	}
}

// Of those that are held back the one with the nearest deadline goes first.
func TestNearDeadlinesComeForwardFirst(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Second)
		f.send(f.body("rebalance-recommendation", f.ids[1]))
		f.after(time.Second)
		soon := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC1123)
		f.send(f.body("health-reboot-scheduled", f.ids[2], "Fri, 27 Nov 2026 06:00:00 GMT", soon))
		f.after(time.Minute)
		f.want(1, 2)
		f.replace(0)
		f.after(3 * time.Second)
		if out := f.nodes(cordoned); len(out) != 1 || out[0] != 2 {
			t.Errorf("cordoned %v, want node 2", out)
		}
	})
}

// A node that was drained is to be drained again, and that is held back.
func TestACordonOnANodeThatIsHeldBackIsSomebodyElses(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "2", func(f *fleet) {
		f.lead()
		reboot := func(k int, in time.Duration) {
			f.send(f.body("health-reboot-scheduled", f.ids[k], "Fri, 27 Nov 2026 06:00:00 GMT", gmt(time.Now().Add(in))))
			f.after(time.Minute)
		}
		reboot(0, 24*time.Hour)
		reboot(1, 24*time.Hour)
		f.change("n2", recordon)
		f.want(3, 0)
		reboot(0, 48*time.Hour)
		f.want(3, 1)
		f.change("n0", uncordon)
		f.after(time.Millisecond)
		f.change("n0", recordon) // for a broken disk
		f.after(time.Minute)
		f.send(f.body("health-maintenance-completed", f.ids[0]))
		f.after(time.Minute)
		f.want(3, 0)
	})
}
