package unscheduled

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

// A scene is a cluster whose scheduler finds no nodes.
type scene struct {
	*testing.T
	pods *Pods
	kube *fake.Clientset

	mu      sync.Mutex
	lists   int
	fails   error
	log     logtest.Log
	steps   []string
	gauge   []int
	endless bool // the pods of others come first in lists, more than are read
}

func (s *scene) Decided(report.Decision) {}
func (s *scene) Recorded(intent.Entry)   {}
func (s *scene) Drained(report.Drain)    {}
func (s *scene) Stepped(r report.Step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = append(s.steps, r.Node.Name+" "+string(r.Node.UID)+" "+string(r.Kind)+": "+r.Reason())
}

func (s *scene) Unscheduled(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gauge = append(s.gauge, n)
}

// after lets time pass, and what it brings.
func (s *scene) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// play runs Pods in virtual time, until run returns.
func play(t *testing.T, run func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, kube: fake.NewClientset()}
		s.kube.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			if got := action.(clienttesting.ListAction).GetListRestrictions().Fields.String(); got != waiting {
				t.Errorf("pods are listed by %q", got)
			}
			if s.endless {
				return true, &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}}, nil
			}
			return s.fails != nil, nil, s.fails
		})
		s.pods = &Pods{
			Client: s.kube, Observer: s, Metrics: s, Log: s.log.Logger(),
			Node: func(name string) *corev1.Node {
				if name == "gone" {
					return nil
				}
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { s.pods.Run(ctx) })
		run(s)
		stop()
		all.Wait()
		if s.last() != 0 {
			t.Errorf("%d pods wait for a replica that leads no more", s.last())
		}
		const over = "waits for another one any more"
		said := strings.Count(s.log.String(), over)
		next, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if s.pods.Run(next); strings.Count(s.log.String(), over) != said {
			t.Errorf("the next term says what it cannot know:\n%s", s.log.String())
		}
	})
}

func pod(name, owner, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second)),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: node},
	}
}

// leave has pods of the workload web leave a node.
func (s *scene) leave(node string, pods int) {
	for k := range pods {
		s.pods.Left(evacuation.Answer{Pod: pod(fmt.Sprintf("old-%d", k), "web", node), First: true})
	}
}

// waits adds a pod that the scheduler finds no node for.
func (s *scene) waits(name, owner string, edit ...func(*corev1.Pod)) {
	s.Helper()
	p := pod(name, owner, "")
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/5 nodes are available",
	}}}
	for _, e := range edit {
		e(p)
	}
	if err := s.kube.Tracker().Add(p); err != nil {
		s.Fatal(err)
	}
}

// scheduled takes a pod away from those that wait.
func (s *scene) scheduled(name string) {
	s.Helper()
	if err := s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "shop", name); err != nil {
		s.Fatal(err)
	}
}

// last is what the gauge shows.
func (s *scene) last() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gauge[len(s.gauge)-1]
}

// listed is how often pods were listed.
func (s *scene) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

// remembers is how many departures are remembered.
func (s *scene) remembers() int {
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	return len(s.pods.left)
}

// told are the steps so far.
func (s *scene) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.steps))
}

func TestWhatWaitsIsCountedAgainstItsNodeAndToldOnce(t *testing.T) {
	play(t, func(s *scene) {
		s.after(time.Hour)
		if s.listed() > 0 {
			t.Errorf("%d lists before anything has left a node", s.listed())
		}
		s.leave("a", 2)
		s.leave("b", 1)
		s.waits("web-7", "web")
		s.waits("web-8", "web")
		s.waits("web-9", "web")
		s.waits("db-1", "db") // nothing of it has left a node
		s.after(30 * time.Second)
		want := []string{
			"a uid-a unscheduled: 2 pods that left the node wait for another one, such as shop/web-7: 0/5 nodes are available",
			"b uid-b unscheduled: a pod that left the node waits for another one, shop/web-9: 0/5 nodes are available",
		}
		if diff := cmp.Diff(want, s.told()); diff != "" || s.last() != 3 {
			t.Errorf("%d pods wait; told (-want +got):\n%s", s.last(), diff)
		}
		s.scheduled("web-7")
		s.scheduled("web-8")
		s.scheduled("web-9")
		s.after(30 * time.Second)
		if s.last() != 0 || len(s.told()) != 2 {
			t.Errorf("%d pods wait; told %q", s.last(), s.told())
		}
		warned, over := strings.Count(s.log.String(), "the scheduler finds no other node"), strings.Count(s.log.String(), "waits for another one any more")
		if warned != 1 || over != 1 {
			t.Errorf("the log warns %d times, and says %d times that it is over:\n%s", warned, over, s.log.String())
		}
		s.waits("web-10", "web")
		s.after(30 * time.Second)
		if s.last() != 1 {
			t.Errorf("%d pods wait", s.last())
		}
		s.after(2 * remembered)
		if s.last() != 1 {
			t.Errorf("%d pods wait half an hour later", s.last())
		}
		s.scheduled("web-10")
		s.after(time.Minute)
		lists := s.listed()
		s.after(time.Hour)
		if s.listed() != lists || s.last() != 0 || s.remembers() != 0 {
			t.Errorf("an hour later it still looks: %d lists, %d pods wait, and it remembers %d departures", s.listed()-lists, s.last(), s.remembers())
		}
	})
}

func TestWhatIsNoSuccessorIsNotCounted(t *testing.T) {
	play(t, func(s *scene) {
		s.waits("older", "web")
		s.after(time.Minute)
		s.pods.Left(evacuation.Answer{Pod: pod("refused", "web", "a"), Err: errors.New("refused"), First: true})
		s.pods.Left(evacuation.Answer{Pod: pod("again", "web", "a")})
		s.pods.Left(evacuation.Answer{Pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}}, First: true})
		s.after(time.Minute)
		if s.listed() > 0 {
			t.Errorf("%d lists", s.listed())
		}
		s.leave("a", 2)
		s.waits("starts", "web", func(p *corev1.Pod) { p.Status.Conditions = nil })
		s.waits("gated", "web", func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated })
		s.waits("placed", "web", func(p *corev1.Pod) { p.Spec.NodeName = "b" })
		s.waits("stops", "web", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		s.waits("nobodys", "web", func(p *corev1.Pod) { p.OwnerReferences = nil })
		s.after(time.Minute)
		if s.last() != 0 {
			t.Errorf("%d pods wait: %q", s.last(), s.told())
		}
		s.waits("web-1", "web")
		s.waits("web-2", "web")
		s.waits("scaled-up", "web")
		s.after(time.Minute)
		if s.last() != 2 {
			t.Errorf("%d pods wait, want those of the two that have left: %q", s.last(), s.told())
		}
	})
}

func TestAListThatFailsChangesNothing(t *testing.T) {
	play(t, func(s *scene) {
		s.leave("gone", 1)
		s.waits("web-1", "web")
		s.after(Interval * 2)
		s.mu.Lock()
		s.fails = apierrors.NewTooManyRequests("busy", 1)
		s.mu.Unlock()
		s.after(Interval * 3)
		if diff := cmp.Diff([]string{"gone  unscheduled: a pod that left the node waits for another one, shop/web-1: 0/5 nodes are available"}, s.told()); diff != "" || s.last() != 1 {
			t.Errorf("%d pods wait; steps (-want +got):\n%s", s.last(), diff)
		}
	})
}

// A batch of thousands waits in a namespace that comes first.
func TestWhatWasNotSeenIsNotSaidToHaveANode(t *testing.T) {
	play(t, func(s *scene) {
		s.leave("node", 1)
		s.waits("web-1", "web")
		s.after(Interval * 2)
		s.mu.Lock()
		s.endless = true
		s.mu.Unlock()
		s.after(Interval * 3)
		if s.last() != 1 {
			t.Errorf("%d pods are said to wait", s.last())
		}
		s.mu.Lock()
		s.endless = false
		s.mu.Unlock()
		s.scheduled("web-1")
		s.after(Interval * 2)
		if s.last() != 0 {
			t.Errorf("%d pods wait", s.last())
		}
	})
}

// Each pod that has left has one successor, the newest pods those of the newest departures.
func TestPodsAreMatchedWithDepartures(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1_800_000_000+int64(seconds), 0) }
	node := func(name string) cluster.Ref { return cluster.Ref{Name: name} }
	found := match([]pending{
		{name: "p1", owner: "web", created: at(1)},
		{name: "p2", owner: "web", created: at(30)},
		{name: "p3", owner: "web", created: at(31)},
		{name: "p4", owner: "web", created: at(-9)},
		{name: "p5", owner: "web", created: at(31)},
		{name: "p6", owner: "web", created: at(31 + 15*60 + 1)}, // of a workload that grows
	}, map[types.UID][]departure{"web": {
		{node: node("a"), first: at(0), last: at(1), pods: 2}, {node: node("b"), first: at(30), last: at(31), pods: 2},
	}})
	got := map[string]string{}
	for n, b := range found {
		got[n.Name] = strings.Join(b.pods, " ")
	}
	if diff := cmp.Diff(map[string]string{"a": "p2 p1", "b": "p3 p5"}, got); diff != "" {
		t.Errorf("pods by node (-want +got):\n%s", diff)
	}
}
