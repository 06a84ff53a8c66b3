package conditions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/pace"
)

const queue = "https://sqs.us-east-1.amazonaws.com/1/q"

// A scene is a cluster, its watch, and a Writer.
type scene struct {
	*testing.T
	kube  *fake.Clientset
	nodes *cluster.Cluster
	stop  context.CancelFunc
	ran   chan struct{}

	mu     sync.Mutex
	fails  error
	writes []string // the nodes that were written to
	log    logtest.Log
}

// written is how many writes there were.
func (s *scene) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writes)
}

// fail has writes fail with err from now on; nil: they succeed.
func (s *scene) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

// play runs a Writer in virtual time.
func play(t *testing.T, run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, kube: fake.NewClientset()}
		s.kube.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "status" {
				return false, nil, nil
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.writes = append(s.writes, action.(clienttesting.PatchAction).GetName())
			return s.fails != nil, nil, s.fails
		})
		var err error
		s.nodes, err = cluster.New(s.kube, pace.NewGate(10, 10), queue, cluster.CordonOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			s.nodes.Run(ctx)
		}()
		if err := s.nodes.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		s.lead()
		run(s)
		s.end()
		stop()
		<-watched
	})
}

// lead begins the term of a leader that knows nothing.
func (s *scene) lead() {
	ctx, stop := context.WithCancel(s.Context())
	w := &Writer{Client: s.kube.CoreV1(), Nodes: s.nodes, Log: s.log.Logger()}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		w.Run(ctx)
	}()
	s.stop, s.ran = stop, ran
	synctest.Wait()
}

func (s *scene) end() {
	s.stop()
	<-s.ran
}

func (s *scene) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// node adds a node with a condition of somebody else.
func (s *scene) node(name string) cluster.Ref {
	s.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: "example.com/Disk", Status: corev1.ConditionTrue, Reason: "Mine"}, {Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}
	_, err := s.kube.CoreV1().Nodes().Create(s.Context(), node, metav1.CreateOptions{})
	s.must(err)
	synctest.Wait()
	return cluster.RefOf(node)
}

// record lets the node carry an intent, as the controller does.
func (s *scene) record(ref cluster.Ref, change func(i intent.Intent) intent.Intent) {
	s.Helper()
	_, err := s.nodes.Record(s.Context(), ref, change)
	s.must(err)
	synctest.Wait()
}

func (s *scene) warn(ref cluster.Ref) {
	s.Helper()
	s.record(ref, func(i intent.Intent) intent.Intent {
		e := intent.Entry{Kind: notice.SpotInterruption, IDs: []string{ref.Name}, Time: time.Now(), Deadline: time.Now().Add(2 * time.Minute)}
		return i.With(e, nil, time.Now())
	})
}

func (s *scene) finish(ref cluster.Ref, o intent.Outcome) {
	s.Helper()
	s.record(ref, func(i intent.Intent) intent.Intent {
		i.FinishedAt, i.Outcome = time.Now(), o
		return i
	})
}

// says are the conditions of a node that are not the kubelet's, without the time in their texts.
func (s *scene) says(name string) (all []string) {
	s.Helper()
	node, err := s.kube.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			continue
		}
		message, _, _ := strings.Cut(c.Message, ";")
		all = append(all, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, message))
	}
	return all
}

func (s *scene) want(name string, want ...string) {
	s.Helper()
	got := map[string]bool{}
	for _, c := range s.says(name) {
		got[c] = true
	}
	wanted := map[string]bool{"example.com/Disk=True Mine ": true}
	for _, c := range want {
		wanted[c] = true
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		s.Errorf("%s says (-want +got):\n%s", name, diff)
	}
}

const (
	begun   = "DrainInProgress=True SpotInterruption The pods leave the node"
	notYet  = "Drained=False SpotInterruption The drain has not ended"
	over    = "DrainInProgress=False SpotInterruption The drain has ended"
	nothing = "=False DrainOver No notice asks for a drain"
)

func TestADrainIsToldFromItsBeginToItsUndoing(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		s.warn(a)
		s.after(interval)
		s.want("a", begun, notYet)
		s.after(10 * time.Second)
		s.finish(a, intent.Drained)
		s.after(interval)
		s.want("a", over, "Drained=True SpotInterruption The pods have left the node")
		s.after(10 * interval)
		if s.written() != 2 {
			t.Errorf("%d writes", s.written())
		}
		_, err := s.nodes.Undo(t.Context(), a, func(i intent.Intent) intent.Intent {
			return i.Forget(func(intent.Entry) bool { return true })
		})
		s.must(err)
		s.after(interval)
		s.want("a", "DrainInProgress"+nothing, "Drained"+nothing)
	})
}

func TestADrainThatMissesItsDeadlineIsNotDrained(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		s.warn(a)
		s.after(2 * time.Minute)
		s.finish(a, intent.Missed)
		s.after(interval)
		s.want("a", over, "Drained=False SpotInterruption Pods were still there at the deadline")
	})
}

func TestADrainOfAMomentIsOneWrite(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		s.warn(a)
		s.finish(a, intent.Drained)
		s.after(interval)
		s.want("a", over, "Drained=True SpotInterruption The pods have left the node")
		if s.written() != 1 {
			t.Errorf("%d writes", s.written())
		}
	})
}

func TestTheNextLeaderCorrectsWhatTheOneBeforeHasLeft(t *testing.T) {
	play(t, func(s *scene) {
		ended, undone, fresh, removed := s.node("ended"), s.node("undone"), s.node("fresh"), s.node("removed")
		for _, ref := range []cluster.Ref{ended, undone, removed} {
			s.warn(ref)
		}
		s.after(2 * interval)
		s.end()
		s.finish(ended, intent.Drained)
		s.record(fresh, func(i intent.Intent) intent.Intent {
			return i.With(intent.Entry{Kind: notice.SpotInterruption, Time: time.Now(), Deadline: time.Now().Add(time.Minute)}, nil, time.Now())
		})
		_, err := s.nodes.Undo(t.Context(), undone, func(i intent.Intent) intent.Intent {
			return i.Forget(func(intent.Entry) bool { return true })
		})
		s.must(err)
		_, err = s.kube.CoreV1().Nodes().Patch(t.Context(), "removed", types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+cluster.IntentAnnotation+`":null}}}`), metav1.PatchOptions{})
		s.must(err)
		s.after(time.Hour)
		s.want("ended", begun, notYet)

		s.lead()
		s.after(interval)
		s.want("ended", over, "Drained=True SpotInterruption The pods have left the node")
		s.want("undone", "DrainInProgress"+nothing, "Drained"+nothing)
		s.want("fresh", begun, notYet)
		s.want("removed", "DrainInProgress"+nothing, "Drained"+nothing)
	})
}

func TestAPlannedChangeIsToldUntilItBegins(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		s.record(a, func(i intent.Intent) intent.Intent {
			i = i.With(intent.Entry{
				Kind: notice.ScheduledChange, Code: "system-reboot", Time: time.Now(), Deadline: time.Now().Add(time.Hour),
			}, nil, time.Now())
			i.HeldBack = true
			return i
		})
		s.after(interval)
		s.want("a", "MaintenancePlanned=True ScheduledChange system-reboot begins at 2000-01-01T01:00:00Z")
		s.after(time.Hour + interval) // nobody reports that time passes
		s.want("a", "MaintenancePlanned=False NoMaintenancePlanned No scheduled change is ahead that the node is to be drained for")
	})
}

func TestNodesOfAnotherQueueAreLeftToIt(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		others, err := cluster.New(s.kube, pace.NewGate(1, 1), "another", cluster.CordonOptions{})
		s.must(err)
		_, err = others.Record(t.Context(), a, func(i intent.Intent) intent.Intent {
			return i.With(intent.Entry{Kind: notice.SpotInterruption, Time: time.Now()}, nil, time.Now())
		})
		s.must(err)
		s.after(2 * interval)
		s.want("a")
	})
}

func TestAStormIsToldAtAPace(t *testing.T) {
	play(t, func(s *scene) {
		const storm = 60
		for n := range storm {
			s.warn(s.node(fmt.Sprintf("n%d", n)))
		}
		s.after(interval + time.Second)
		if got, most := s.written(), int(time.Second/writePause)+1; got != most {
			t.Errorf("%d writes in a second, want %d", got, most)
		}
		s.after(storm * writePause)
		for n := range storm {
			if got := s.says(fmt.Sprintf("n%d", n)); len(got) != 3 {
				t.Fatalf("n%d says %q", n, got)
			}
		}
		if s.written() != storm {
			t.Errorf("%d writes for %d nodes", s.written(), storm)
		}
	})
}

func TestWithoutTheRightItIsSaidOnceAndTriedAgainLater(t *testing.T) {
	play(t, func(s *scene) {
		s.fail(apierrors.NewForbidden(corev1.Resource("nodes"), "a", errors.New("no")))
		a, b := s.node("a"), s.node("b")
		s.warn(a)
		s.warn(b)
		s.after(deniedPause)
		if s.written() != 1 {
			t.Errorf("%d writes", s.written())
		}
		s.after(interval)
		if s.written() != 2 || len(s.log.Entries("", "level", "warn")) != 1 || !strings.Contains(s.log.String(), "nodes/status") {
			t.Errorf("%d writes; the log:\n%s", s.written(), s.log.String())
		}
		s.fail(nil)
		s.after(deniedPause + interval)
		s.want("b", begun, notYet)
	})
}

func TestAWriteThatFailsIsTriedAgain(t *testing.T) {
	play(t, func(s *scene) {
		s.fail(apierrors.NewInternalError(errors.New("down")))
		a := s.node("a")
		s.warn(a)
		s.after(interval)
		s.fail(nil)
		s.want("a")
		s.after(interval + writePause)
		s.want("a", begun, notYet)
	})
}

func TestANodeThatIsGoneOrReplacedIsNotWritten(t *testing.T) {
	play(t, func(s *scene) {
		a := s.node("a")
		s.warn(a)
		s.must(s.kube.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
		s.after(interval)
		s.after(interval)
		if s.written() != 0 {
			t.Errorf("%d writes", s.written())
		}
	})
}
