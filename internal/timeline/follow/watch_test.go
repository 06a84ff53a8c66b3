package follow

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/timeline"
)

func TestAPodTellsWhatHappenedToIt(t *testing.T) {
	at := time.Now()
	pod := func(edit ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{NodeName: "n"}}
		for _, e := range edit {
			e(p)
		}
		return p
	}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	}
	stopping := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at} }
	evicted := func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Reason: "EvictionByEvictionAPI"})
	}
	kept := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/audit"} }
	confirmed := func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64(0)) }
	if events := podGone(pod(stopping, kept, confirmed), at); events != nil {
		t.Errorf("it goes for the second time: %v", events)
	}
	for name, c := range map[string]struct {
		before, now *corev1.Pod
		want        timeline.Kind
	}{
		"nothing":                {pod(), pod(), timeline.None},
		"it gets ready":          {pod(), pod(ready), timeline.PodReady},
		"it stays ready":         {pod(ready), pod(ready), timeline.None},
		"it is evicted":          {pod(ready), pod(ready, evicted, stopping), timeline.PodEvicted},
		"it is about to be":      {pod(ready), pod(ready, evicted), timeline.None},
		"it is deleted":          {pod(ready), pod(ready, stopping), timeline.PodDeleted},
		"it goes on stopping":    {pod(stopping), pod(stopping), timeline.None},
		"it stops, unready":      {pod(ready, stopping), pod(stopping), timeline.None},
		"it is new and is ready": {&corev1.Pod{}, pod(ready), timeline.PodReady},
		"its kubelet has confirmed its end, and a finalizer keeps it": {pod(stopping, kept), pod(stopping, kept, confirmed), timeline.PodGone},
		"the finalizer keeps it on":                                   {pod(stopping, kept, confirmed), pod(stopping, kept, confirmed), timeline.None},
	} {
		t.Run(name, func(t *testing.T) {
			var want []timeline.Event
			if c.want != timeline.None {
				want = []timeline.Event{{Time: at, Kind: c.want, Node: "n", Pod: "p"}}
			}
			if diff := cmp.Diff(want, Watch{}.podEvents(c.before, c.now, at)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPodThatStandsInForNoneOfThoseThatLeaveIsNoNews(t *testing.T) {
	owned := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "other", OwnerReferences: []metav1.OwnerReference{{UID: uid, Controller: new(true)}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	controllers := Controllers([]*corev1.Pod{owned("a"), {}})
	w := Watch{Replaces: func(p *corev1.Pod) bool { return controllers[metav1.GetControllerOf(p).UID] }}
	if events := w.podEvents(&corev1.Pod{}, owned("b"), time.Now()); events != nil {
		t.Errorf("events of a stranger: %+v", events)
	}
	if events := w.podEvents(&corev1.Pod{}, owned("a"), time.Now()); len(events) != 1 || events[0].Pod != "other/p" {
		t.Errorf("events of a stand-in: %+v", events)
	}
}

func TestANodeTellsWhatHappenedToIt(t *testing.T) {
	at := time.Now()
	node := func(edit ...func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{}}}
		for _, e := range edit {
			e(n)
		}
		return n
	}
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	carries := func(event string, finished time.Time) func(*corev1.Node) {
		return func(n *corev1.Node) {
			i := intent.Intent{}.With(intent.Entry{Kind: notice.SpotInterruption, IDs: []string{event}}, nil, at)
			i.FinishedAt = finished
			text, err := json.Marshal(i)
			if err != nil {
				t.Fatal(err)
			}
			n.Annotations[cluster.IntentAnnotation] = string(text)
		}
	}
	heldBack := func(n *corev1.Node) {
		n.Annotations[cluster.IntentAnnotation] = strings.Replace(n.Annotations[cluster.IntentAnnotation], "{", `{"heldBack":true,`, 1)
	}
	broken := func(n *corev1.Node) { n.Annotations[cluster.IntentAnnotation] = "?" }
	for name, c := range map[string]struct {
		before, now *corev1.Node
		want        []timeline.Kind
	}{
		"nothing":                             {node(), node(), nil},
		"it is cordoned":                      {node(), node(cordoned), []timeline.Kind{timeline.NodeCordoned}},
		"it was cordoned":                     {node(cordoned), node(cordoned), nil},
		"it was, and takes the notice":        {node(cordoned), node(cordoned, carries("e", time.Time{})), []timeline.Kind{timeline.NodeCordoned}},
		"it was, and takes another":           {node(cordoned), node(cordoned, carries("f", time.Time{})), nil},
		"it takes the notice and has to wait": {node(), node(carries("e", time.Time{}), heldBack), []timeline.Kind{timeline.NodeHeldBack}},
		"its work is finished":                {node(), node(carries("e", at)), []timeline.Kind{timeline.WorkFinished}},
		"its work on another is finished":     {node(), node(carries("f", at)), nil},
		"it carries what nobody can read":     {node(), node(broken), nil},
		"it is uncordoned by somebody else":   {node(cordoned), node(), nil},
	} {
		var got []timeline.Kind
		for _, e := range (Watch{Event: func() string { return "e" }}).nodeEvents(c.before, c.now, at) {
			got = append(got, e.Kind)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// of is a story of two minutes about pod p of node a.
func of(moves int) Story {
	start := time.Now()
	return Story{
		Notice: timeline.Notice{Instance: "i-1", Node: "a", Pods: []string{"p"}, Moves: moves, Sent: start, Deadline: start.Add(2 * time.Minute)},
		Taken:  time.Minute, End: start.Add(2*time.Minute + 15*time.Second), Settle: 30 * time.Second,
	}
}

// story plays events to a Story and returns what it printed. It is called off after interrupt, if that is not zero.
func story(t *testing.T, moves int, interrupt time.Duration, events ...timeline.Event) (printed string, result Result, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		s := of(moves)
		start := time.Now()
		in := make(chan timeline.Event)
		go func() {
			for _, e := range events {
				e.Time = start.Add(e.Time.Sub(time.Time{}))
				select {
				case <-time.After(time.Until(e.Time)):
				case <-ctx.Done():
					return
				}
				select {
				case in <- e:
				case <-ctx.Done():
					return
				}
			}
		}()
		if interrupt > 0 {
			time.AfterFunc(interrupt, func() { stop(errors.New("interrupted")) })
		}
		var out strings.Builder
		s.Out = timeline.Printer{Out: &out}
		result, err = s.Follow(ctx, in)
		printed = out.String()
	})
	return printed, result, err
}

func after(seconds int, e timeline.Event) timeline.Event {
	e.Time, e.Node = time.Time{}.Add(time.Duration(seconds)*time.Second), or(e.Node, "a")
	return e
}

func or(text, other string) string {
	if text != "" {
		return text
	}
	return other
}

var (
	cordoned = after(1, timeline.Event{Kind: timeline.NodeCordoned})
	drained  = []timeline.Event{
		cordoned, after(70, timeline.Event{Kind: timeline.PodEvicted, Pod: "p"}),
		after(80, timeline.Event{Kind: timeline.PodGone, Pod: "p"}), after(85, timeline.Event{Kind: timeline.WorkFinished}),
	}
)

func TestAStoryIsToldToTheEnd(t *testing.T) {
	printed, result, err := story(t, 0, 0, drained...)
	if err != nil {
		t.Fatal(err)
	}
	if want := "1 notice, 1 node drained, 0 pods moved, 0 missed; left: 35 of 120 s\n"; !strings.HasSuffix(printed, want) {
		t.Errorf("no %q at the end of\n%s", want, printed)
	}
	// Nothing happens for 69 seconds.
	if want := "  16.0 s   104.0 s  still waiting    pod p is still on a                   and 1 more\n"; strings.Count(printed, "still waiting") != 4 || !strings.Contains(printed, want) {
		t.Errorf("not four times like %q in\n%s", want, printed)
	}
	if diff := cmp.Diff(Result{Tally: timeline.Tally{Notices: 1, Drained: 1}}, result); diff != "" {
		t.Errorf("for programs (-want +got):\n%s", diff)
	}
}

// A StatefulSet makes a pod anew, under the same name, when the old one is gone.
func TestAPodThatComesUpAfterTheWorkIsDoneIsCounted(t *testing.T) {
	for name, tt := range map[string]struct {
		up   []timeline.Event
		want string
	}{
		"in time":  {[]timeline.Event{after(100, timeline.Event{Kind: timeline.PodReady, Pod: "p", Node: "b"})}, "1 of 1 pod moved"},
		"too late": {[]timeline.Event{after(120, timeline.Event{Kind: timeline.PodReady, Pod: "p", Node: "b"})}, "Not ready elsewhere yet: 1 of the pods"},
	} {
		printed, _, err := story(t, 1, 0, append(slices.Clone(drained), tt.up...)...)
		if err != nil || !strings.Contains(printed, tt.want) {
			t.Errorf("%s: no %q in\n%s%v", name, tt.want, printed, err)
		}
	}
}

func TestAStoryThatDoesNotEndIsAnErrorThatSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct {
		events []timeline.Event
		want   string
	}{
		"nobody takes it":            {nil, "no handler has taken the notice within 60 s"},
		"the pod stays":              {[]timeline.Event{cordoned}, "this did not happen within 135 s:\n  pod p is still on a\n  the work on a is not finished"},
		"the pod leaves too late":    {[]timeline.Event{cordoned, after(125, timeline.Event{Kind: timeline.PodGone, Pod: "p"}), after(126, timeline.Event{Kind: timeline.WorkFinished})}, "a was empty after the deadline"},
		"the work is never finished": {[]timeline.Event{cordoned, after(5, timeline.Event{Kind: timeline.PodGone, Pod: "p"})}, "the work on a is not finished"},
	} {
		if _, _, err := story(t, 0, 0, tt.events...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
	if _, _, err := story(t, 0, 0); !errors.Is(err, ErrNotTaken) {
		t.Errorf("nobody takes it: %v", err)
	}
}

func TestAStoryThatIsCalledOffSaysThatTheDrainGoesOn(t *testing.T) {
	_, _, err := story(t, 0, 10*time.Second, cordoned)
	want := "is not followed any more (interrupted); the drain goes on: kubectl get node a -L node-termination-handler/state"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestAMissedDeadlineIsNotCalledTheEndOfTheWork(t *testing.T) {
	finished := timeline.Event{Kind: timeline.WorkFinished}
	for name, tt := range map[string]struct {
		events []timeline.Event
		want   string
	}{
		"with a pod there": {[]timeline.Event{cordoned, after(121, finished)}, "deadline missed  a                                     1 pod still there"},
		"with a pod that left late": {
			[]timeline.Event{cordoned, after(125, timeline.Event{Kind: timeline.PodGone, Pod: "p"}), after(126, finished)},
			"deadline missed  a                                     pods left after the deadline",
		},
	} {
		printed, _, err := story(t, 0, 0, tt.events...)
		if err == nil || !strings.Contains(printed, tt.want) || strings.Contains(printed, "work finished") {
			t.Errorf("%s: no %q in\n%s%v", name, tt.want, printed, err)
		}
	}
}

func TestTheNextPodOfAStatefulSetIsAnotherPodOfTheSameName(t *testing.T) {
	at := time.Now()
	pod := func(uid types.UID, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "default", UID: uid}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	want := []timeline.Event{{Time: at, Kind: timeline.PodGone, Node: "a", Pod: "db-0"}, {Time: at, Kind: timeline.PodReady, Node: "b", Pod: "db-0"}}
	if diff := cmp.Diff(want, Watch{}.podChanges(pod("1", "a"), pod("2", "b"), at)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if events := (Watch{}).podChanges(pod("1", "a"), pod("1", "a"), at); events != nil {
		t.Errorf("of one that stays: %+v", events)
	}
}
