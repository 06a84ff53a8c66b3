package follow

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/demo/timeline"
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
			if diff := cmp.Diff(want, podEvents(c.before, c.now, at)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestANodeTellsWhatHappenedToIt(t *testing.T) {
	node := func(cordoned bool) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	}
	for name, c := range map[string]struct {
		before, now, news bool // cordoned
	}{
		"nothing":                           {},
		"it is cordoned":                    {now: true, news: true},
		"it was cordoned":                   {before: true, now: true},
		"it is uncordoned by somebody else": {before: true},
	} {
		var want []timeline.Event
		if c.news {
			want = []timeline.Event{{Kind: timeline.NodeCordoned, Node: "n"}}
		}
		if diff := cmp.Diff(want, nodeEvents(node(c.before), node(c.now), time.Time{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
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
	if diff := cmp.Diff(want, podChanges(pod("1", "a"), pod("2", "b"), at)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if events := podChanges(pod("1", "a"), pod("1", "a"), at); events != nil {
		t.Errorf("of one that stays: %+v", events)
	}
}
