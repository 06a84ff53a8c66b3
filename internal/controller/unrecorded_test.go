package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/kube"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
	"github.com/node-termination-handler/node-termination-handler/internal/retry"
)

// failPatches has a webhook refuse every patch of the Nodes with these names, or of all if there are none, until heal is
// called.
func (s *story) failPatches(names ...string) (heal func()) {
	var healed atomic.Bool
	s.beforePatch.Store(new(clienttesting.ReactionFunc(func(a clienttesting.Action) (bool, runtime.Object, error) {
		others := len(names) > 0 && !slices.Contains(names, a.(clienttesting.PatchAction).GetName())
		if healed.Load() || others {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(errors.New(`failed calling webhook "nodes.example.com": no endpoints available`))
	})))
	return func() { healed.Store(true) }
}

// slowPatches is a client whose patches of Nodes take a time. The fake clientset answers no other request while a reactor
// sleeps.
type slowPatches struct {
	kube.Client
	takes *atomic.Int64 // see story.patchTakes
}

type slowPatchesCore struct {
	typedcorev1.CoreV1Interface
	takes *atomic.Int64
}

type slowPatchesNodes struct {
	typedcorev1.NodeInterface
	takes *atomic.Int64
}

func (slowPatches) IsWatchListSemanticsUnSupported() bool { return true } // as the fake clientset, asked by reflectors

func (c slowPatches) CoreV1() typedcorev1.CoreV1Interface {
	return slowPatchesCore{c.Client.CoreV1(), c.takes}
}

func (c slowPatchesCore) Nodes() typedcorev1.NodeInterface {
	return slowPatchesNodes{c.CoreV1Interface.Nodes(), c.takes}
}

func (n slowPatchesNodes) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	switch takes := time.Duration(n.takes.Load()); {
	case takes < 0:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case takes > 0:
		if err := retry.Sleep(ctx, takes); err != nil {
			return nil, err
		}
	}
	return n.NodeInterface.Patch(ctx, name, pt, data, opts, subresources...)
}

// hangPatches leaves every patch of a Node without an answer until heal is called.
func (s *story) hangPatches(...string) (heal func()) {
	s.patchTakes.Store(-1)
	return func() { s.patchTakes.Store(0) }
}

// loseAnswer has the next patch applied, and its answer lost.
func (s *story) loseAnswer() {
	var lost atomic.Bool
	s.beforePatch.Store(new(clienttesting.ReactionFunc(func(a clienttesting.Action) (bool, runtime.Object, error) {
		if lost.Swap(true) {
			return false, nil, nil
		}
		if _, _, err := s.applyPatch(a); err != nil {
			return true, nil, err
		}
		return true, nil, apierrors.NewInternalError(errors.New("connection reset by peer"))
	})))
}

// wantUnwritten says that the node is shown as one that somebody should look at, since it cannot be cordoned.
func (s *story) wantUnwritten(when string) {
	s.Helper()
	got := s.status()
	if len(got) != 1 || !got[0].CordonedAt.IsZero() || !got[0].Stuck(time.Now()) || got[0].Kind != "spot-interruption" {
		s.Errorf("%s: %+v", when, got)
		return
	}
	const want = "the Node cannot be cordoned: "
	if w := got[0].WaitsFor[0]; w.Cause != overview.FailingWrite || !strings.HasPrefix(w.Why, want) || !strings.Contains(w.Why, "nodes.example.com") {
		s.Errorf("%s it waits for %+v, want %q and why", when, w, want)
	}
}

// recordings counts the notices that were recorded.
type recordings struct {
	report.Observers
	n atomic.Int32
}

func (r *recordings) Recorded(e intent.Entry) {
	r.n.Add(1)
	r.Observers.Recorded(e)
}

// The next try finds what the first one has written: the drain is its own all the same.
func TestADrainIsNotOfAnEarlierLeaderWhereTheAnswerToItsFirstWriteIsLost(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.loseAnswer()
		recorded := &recordings{}
		s.edit = func(c *Config) {
			recorded.Observers = report.Observers{c.Observer}
			c.Observer = recorded
		}
		episodes := s.ended()
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(2 * time.Minute)
		s.end(theID)
		s.send(s.body("state-change-terminated", theID))
		s.after(time.Minute)
		if n := recorded.n.Load(); n != 1 {
			t.Errorf("the notice was recorded %d times", n)
		}
		all := episodes()
		if len(all) == 0 || all[0].Known != overview.Everything {
			t.Errorf("the episodes are %+v", all)
		}
	})
}

func TestThePodsLeaveInTimeThoughEveryPatchOfTheNodeIsRefused(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.failPatches()
		episodes := s.ended()
		s.lead()
		begin := time.Now().Truncate(time.Second)
		s.send(s.body("spot-interruption", theID))
		s.after(10 * time.Second)
		s.wantUnwritten("soon after the notice")
		s.after(49 * time.Second)
		if n := len(s.drain.all()); n != 0 {
			t.Fatalf("%d drains while the node may still be cordoned in time", n)
		}
		s.wantUnwritten("when nearly half of the notice has passed")
		s.after(21 * time.Second)
		s.wantUnwritten("while the pods leave")
		drains := s.drain.all()
		if len(drains) != 1 || !drains[0].terms.Deadline.Equal(begin.Add(2*time.Minute)) {
			t.Fatalf("drains %+v 80 s after the notice, want one, with its deadline", drains)
		}
		s.send(s.body("spot-interruption", theID)) // its like joins
		s.after(2 * time.Minute)
		if s.left() != 2 {
			t.Errorf("%d messages left, want 2: nothing says that the drain has ended", s.left())
		}
		s.must(s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", theNode))
		s.end(theID)
		s.after(2 * time.Minute)
		if n := len(s.drain.all()); s.left() != 0 || n != 1 {
			t.Errorf("%d messages left and %d drains when the node is gone", s.left(), n)
		}
		if all := episodes(); len(all) != 1 || !all[0].CordonedAt.IsZero() || !strings.Contains(all[0].Uncordoned, "nodes.example.com") {
			t.Errorf("the episodes are %+v, want one of a node that was not cordoned, and why", all)
		}
	})
}

func TestADrainOfANodeThatCannotBeWrittenIsRecordedWhenItCan(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"while the pods leave": 75 * time.Second, "after the pods have left": 110 * time.Second} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				heal := s.failPatches()
				episodes := s.ended()
				s.lead()
				s.terminate(4 * time.Minute)
				s.send(s.body("spot-interruption", theID))
				s.after(70 * time.Second)
				if n := len(s.drain.all()); n != 1 {
					t.Errorf("%d drains when half of the nearer notice has passed; the other one is not to put it off", n)
				}
				s.after(after - 70*time.Second)
				s.wantUnwritten("until it can be written")
				healed := time.Now()
				heal()
				s.after(time.Minute)
				if got := s.status(); len(got) != 0 {
					t.Errorf("when it could be written: %+v", got)
				}
				if all := episodes(); len(all) != 1 || all[0].CordonedAt.Before(healed) || all[0].Uncordoned == "" {
					t.Errorf("the episodes are %+v, want one of a node that was cordoned late, and why", all)
				}
				i := s.intent()
				if !i.Finished() || i.Outcome != intent.Drained || len(i.Entries) != 2 || !s.node().Spec.Unschedulable {
					t.Errorf("the node carries %+v", i)
				}
				if n := len(s.drain.all()); n != 1 || s.left() != 0 {
					t.Errorf("%d drains, %d messages left", n, s.left())
				}
				s.wantHook(awssim.Completed)
			})
		})
	}
}

// The limit lets the second drain begin two minutes before its deadline, and the node cannot be written then.
func TestADrainThatIsHeldBackBeginsInTimeThoughItsNodeCannotBeWritten(t *testing.T) {
	t.Parallel()
	tellOfFleet(t, "1", func(f *fleet) {
		limit, told := f.edit, &steps{}
		f.edit = func(c *Config) {
			limit(c)
			told.Observer, c.Observer = c.Observer, told
		}
		f.drain.takes = 20 * time.Minute
		f.lead()
		f.send(f.body("rebalance-recommendation", f.ids[0]))
		f.after(time.Second)
		f.must(f.aws.PutGroup(awssim.Group{Name: "workers", Instances: []string{f.ids[1]}}))
		f.must(f.aws.PutHook(awssim.Hook{Group: "workers", Name: "drain", Transition: awssim.Terminating, HeartbeatTimeout: 10 * time.Minute}))
		f.must(f.aws.PutRule(awssim.Rule{Name: "lifecycle", DetailType: "*Lifecycle Action", Queue: queueName}))
		_, err := f.aws.StartTransition(f.ids[1], awssim.Terminating)
		f.must(err)
		f.after(5 * time.Minute)
		f.want(1, 1)
		heal := f.failPatches("n1")
		f.drain.take(time.Minute)
		f.after(3*time.Minute + 30*time.Second)
		if n := len(f.drain.all()); n != 1 {
			t.Fatalf("%d drains while the node may still be cordoned in time", n)
		}
		f.after(time.Minute)
		if n := len(f.drain.all()); n != 2 {
			t.Fatalf("%d drains half a minute before the deadline, want that of n1 too", n)
		}
		if told.cordons("n1") != 0 {
			t.Error("it is said that n1 is cordoned")
		}
		heal()
		f.after(15 * time.Second)
		if n := told.cordons("n1"); !f.isCordoned("n1") || n != 1 {
			t.Errorf("soon after n1 can be written: it is cordoned: %t, which is said %d times", f.isCordoned("n1"), n)
		}
		f.after(5 * time.Minute)
		f.want(2, 0)
		f.wantHook(awssim.Completed)
	})
}

// A patch that is written late is applied, and its answer is lost: the cordon is ours all the same.
func TestACordonWhoseAnswerIsLostIsTakenBackThoughItsPodsLeftWithoutIt(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.failPatches()
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.maintenance(4 * time.Minute))
		s.after(150 * time.Second)
		if n := len(s.drain.all()); n != 1 || s.isCordoned(theNode) {
			t.Fatalf("%d drains; is the node cordoned: %t", n, s.isCordoned(theNode))
		}
		s.loseAnswer()
		s.after(30 * time.Second)
		if !s.isCordoned(theNode) {
			t.Error("the node is not cordoned")
		}
		s.send(s.maintenance(4*time.Minute, "upcoming", "closed"))
		s.after(time.Minute)
		if s.isCordoned(theNode) {
			t.Error("the change is called off, and the node is cordoned")
		}
	})
}

func TestTheNextLeaderDrainsANodeThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.failPatches()
		s.drain.takes = time.Minute
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(75 * time.Second)
		s.kill()
		s.lead()
		s.after(40 * time.Second)
		if n := len(s.drain.all()); n != 2 || s.left() != 1 {
			t.Errorf("%d drains, %d messages left", n, s.left())
		}
	})
}

func TestANodeThatIsCordonedAndCannotBeWrittenAnyMoreIsNotSaidToTakePods(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		episodes := s.ended()
		s.lead()
		s.send(s.body("rebalance-recommendation", theID))
		s.after(10 * time.Second)
		s.failPatches()
		s.send(s.body("spot-interruption", theID))
		for _, after := range []time.Duration{10 * time.Second, 65 * time.Second} { // the second is in the unrecorded drain
			s.after(after)
			got := s.status()
			if len(got) != 1 || got[0].CordonedAt.IsZero() || len(got[0].WaitsFor) == 0 || !strings.HasPrefix(got[0].WaitsFor[0].Why, "the Node cannot be written: ") {
				t.Errorf("%+v", got)
			}
		}
		s.end(theID)
		s.remove(theNode)
		s.after(2 * time.Minute)
		if all := episodes(); len(all) != 1 || all[0].CordonedAt.IsZero() || all[0].Uncordoned != "" {
			t.Errorf("episodes %+v", all)
		}
	})
}

// The node carries a change that is called off. A warning could not be recorded on it so far.
func TestAChangeThatIsCalledOffDoesNotComeBackWithAWarningThatIsRecordedLate(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = time.Hour
		s.lead()
		s.send(s.maintenance(24 * time.Hour))
		s.after(10 * time.Second)
		s.refusePatches("SpotInterruption")
		s.send(s.body("spot-interruption", theID))
		s.after(75 * time.Second)
		s.send(s.maintenance(24*time.Hour, "upcoming", "closed"))
		s.after(10 * time.Second)
		s.beforePatch.Store(nil)
		s.after(15 * time.Second)
		if i := s.intent(); len(i.Entries) != 1 || !i.Has(notice.SpotInterruption) || !s.node().Spec.Unschedulable {
			t.Errorf("the node carries %+v", i)
		}
	})
}

// A webhook refuses every patch of the Node, and the hook has heartbeats for hours: these may cease to be accepted.
func TestAHookOfANodeThatCannotBeWrittenIsHeldOpenAndItsPodsLeave(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.interval = 30 * time.Second
		s.edit = func(c *Config) { c.HeartbeatUntil = 48 * time.Hour }
		s.failPatches()
		s.lead()
		s.terminate(time.Minute)
		s.after(4 * time.Minute)
		if drains := len(s.drain.all()); drains != 1 {
			t.Errorf("%d drains after four minutes, want one", drains)
		}
		s.wantHook(awssim.Completed)
	})
}

// The drain for the spot warning has ended, and its Node cannot be written any more.
func TestAHookDoesNotWaitForANoteOnItsNode(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.lead()
		s.send(s.body("spot-interruption", theID))
		s.after(time.Minute)
		s.failPatches()
		s.terminate(time.Hour)
		s.after(2 * time.Minute)
		s.wantHook(awssim.Completed)
	})
}

// The rebalance recommendation can wait, and so its drain is called off when somebody uncordons the node; the spot
// interruption cannot.
func TestANoticeDoesNotWaitForACallingOffThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	fails, hangs := (*story).failPatches, (*story).hangPatches
	spot := func(s *story) { s.send(s.body("spot-interruption", theID)) }
	for name, tt := range map[string]struct {
		disturb func(*story, ...string) (heal func())
		waits   time.Duration // from the uncordon to the notice
		notify  func(s *story)
		half    time.Duration
	}{
		"refused":                  {fails, 5 * time.Second, spot, time.Minute},
		"no answer":                {hangs, 5 * time.Second, spot, time.Minute},
		"no answer, later":         {hangs, 15 * time.Second, spot, time.Minute},
		"a hook that is held open": {fails, 5 * time.Second, func(s *story) { s.terminate(time.Hour) }, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			tell(t, func(s *story) {
				s.interval = 10 * time.Minute
				s.drain.takes = -1
				s.lead()
				s.send(s.maintenance(24 * time.Hour))
				s.after(10 * time.Second)
				heal := tt.disturb(s)
				s.change(theNode, uncordon)
				s.after(tt.waits)
				tt.notify(s)
				s.after(tt.half - 10*time.Second)
				if n := len(s.drain.all()); n != 1 {
					t.Errorf("%d drains before half of the notice has passed, want the first", n)
				}
				s.after(30 * time.Second)
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains after half of the notice has passed, want another one", n)
				}
				heal()
				s.after(time.Minute)
				if i := s.intent(); !s.isCordoned(theNode) || i.Has(notice.ScheduledChange) || len(i.Entries) != 1 {
					t.Errorf("the node is cordoned: %t, and carries %+v", s.isCordoned(theNode), i)
				}
			})
		})
	}
}

// AWS cancels a change while nobody can write that the drain for it, or for another one as well, is called off.
func TestANoticeDoesNotWaitForAnotherToBeTakenBack(t *testing.T) {
	t.Parallel()
	for _, changes := range []int{1, 2} {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			tell(t, func(s *story) {
				s.drain.takes = -1
				s.lead()
				for k := range changes {
					s.send(s.maintenance(24*time.Hour, "90353408594353980", fmt.Sprint("change-", k)))
				}
				s.after(10 * time.Second)
				heal := s.hangPatches()
				s.change(theNode, uncordon)
				s.after(5 * time.Second)
				s.send(s.maintenance(24*time.Hour, "90353408594353980", "change-0", "upcoming", "closed"))
				s.after(9 * time.Second)
				s.send(s.body("spot-interruption", theID))
				s.after(80 * time.Second)
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains 40 s before the interruption, want another one", n)
				}
				heal()
				s.after(30 * time.Second)
				i := s.intent()
				if !s.isCordoned(theNode) || i.Has(notice.ScheduledChange) || len(i.Entries) != 1 || len(s.drain.all()) != 2 {
					t.Errorf("%d drains; the node is cordoned: %t, and carries %+v", len(s.drain.all()), s.isCordoned(theNode), i)
				}
				if left := s.left(); left != 1 {
					t.Errorf("%d messages are left, want that of the interruption", left)
				}
			})
		})
	}
}

// The change is moved after somebody has uncordoned the node: the newer announcement is not what they wanted the node back
// from.
func TestAChangeThatIsMovedDoesNotGoWithTheCallingOffOfItsEarlierDate(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{250 * time.Second, 1210 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			tell(t, func(s *story) {
				told := &steps{}
				s.edit = func(c *Config) { told.Observer, c.Observer = c.Observer, told }
				s.drain.takes = -1
				s.lead()
				s.send(s.maintenance(24 * time.Hour))
				s.after(10 * time.Second)
				heal := s.failPatches()
				s.change(theNode, uncordon)
				s.after(5 * time.Second)
				s.send(s.maintenance(ahead))
				s.after(ahead/2 + 25*time.Second)
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains after half of the notice has passed, want another one", n)
				}
				heal()
				s.after(time.Minute)
				if i := s.intent(); !s.isCordoned(theNode) || !i.Has(notice.ScheduledChange) {
					t.Errorf("the node is cordoned: %t, and carries %+v", s.isCordoned(theNode), i)
				}
				if n := len(s.drain.all()); n != 2 {
					t.Errorf("%d drains, want two", n)
				}
				if n := told.cordons(theNode); n != 2 {
					t.Errorf("it is said %d times that the node is cordoned, want twice", n)
				}
			})
		})
	}
}

// SQS delivers the message again whose drain somebody has called off by an uncordon.
func TestANoticeDoesNotTakeOverFromItsOwnCallingOff(t *testing.T) {
	t.Parallel()
	tell(t, func(s *story) {
		s.drain.takes = -1
		s.lead()
		body := s.maintenance(30 * time.Minute)
		s.send(body)
		s.after(10 * time.Second)
		heal := s.failPatches()
		s.change(theNode, uncordon)
		s.after(5 * time.Second)
		s.send(body)
		s.after(16 * time.Minute)
		heal()
		s.after(time.Minute)
		if n := len(s.drain.all()); n != 1 || s.isCordoned(theNode) || len(s.intent().Entries) > 0 || s.left() != 0 {
			t.Errorf("%d drains, %d messages left; the node is cordoned: %t, and carries %+v", n, s.left(), s.isCordoned(theNode), s.intent())
		}
	})
}
