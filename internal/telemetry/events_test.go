package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"github.com/node-termination-handler/node-termination-handler/internal/drain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// theNode is the node of the stories, as it is while it drains.
func theNode(t *testing.T) *corev1.Node {
	t.Helper()
	intent, err := json.Marshal(cluster.Intent{Version: 1, Entries: []cluster.Entry{
		{Kind: notice.RebalanceRecommendation},
		{Kind: notice.SpotInterruption, Deadline: noon.Add(2 * time.Minute)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1", UID: "uid-1", Annotations: map[string]string{cluster.IntentAnnotation: string(intent)},
			Labels: map[string]string{corev1.LabelInstanceTypeStable: "m7g.large", corev1.LabelTopologyZone: "us-east-1a"},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-east-1a/" + testInstance},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, // of another interface
			{Type: corev1.NodeInternalDNS, Address: "ip-10-0-0-1.ec2.internal"},
			{Type: corev1.NodeHostName, Address: "node-1"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeExternalDNS, Address: "ec2-192-0-2-1.compute-1.amazonaws.com"},
		}},
	}
}

// An entry is what people see of an Event.
type entry struct {
	Namespace, Kind, Name string
	UID                   types.UID
	Type, Reason, Message string
	Annotations           map[string]string
	Count                 int32
}

// recorded runs a story in virtual time and returns the Events it leaves, in the
// order of their creation, and the log.
func recorded(t *testing.T, kube *fake.Clientset, story func(e *Events)) (found []entry, log string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kept := &lines{}
		node := theNode(t)
		e := NewEvents(ctx, EventOptions{
			Client: kube.CoreV1(), Component: "node-termination-handler", Host: "host-1", Account: "123456789012", Region: "us-east-1",
			Annotations: map[string]string{"team": "blue"}, Metrics: New(), Log: kept.logger(),
			Node: func(name string) *corev1.Node {
				if name == node.Name {
					return node
				}
				return nil
			},
		})
		story(e)
		<-time.After(10 * time.Minute) // failed writes are tried again for that long at most
		list, err := kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return strings.Compare(a.Reason, b.Reason) })
		for _, event := range list.Items {
			about := event.InvolvedObject
			found = append(found, entry{event.Namespace, about.Kind, about.Name, about.UID, event.Type, event.Reason, event.Message, event.Annotations, event.Count})
			if event.Source != (corev1.EventSource{Component: "node-termination-handler", Host: "host-1"}) {
				t.Errorf("source %v", event.Source)
			}
		}
		cancel()
		synctest.Wait()
		log = kept.all()
	})
	return found, log
}

// known are the annotations of all that is known of theNode.
var known = map[string]string{
	"account-id": "123456789012", "availability-zone": "us-east-1a", "instance-id": testInstance, "instance-life-cycle": "spot",
	"instance-type": "m7g.large", "region": "us-east-1", "team": "blue",
	"local-hostname": "ip-10-0-0-1.ec2.internal", "local-ipv4": "10.0.0.1",
	"public-hostname": "ec2-192-0-2-1.compute-1.amazonaws.com", "public-ipv4": "192.0.2.1",
}

func TestANoticeIsAnEventOfItsNode(t *testing.T) {
	hook := notice.Hook{Group: "group-1", Name: "hook-1"}
	tests := []struct {
		name            string
		edit            func(*Decision)
		reason, message string
	}{
		{"spot", func(*Decision) {}, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T12:02:00Z"},
		{"hibernate", func(d *Decision) { d.Notice.Detail, d.Deadline = "hibernate", noon }, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be hibernated at 2026-11-20T12:00:00Z"},
		{"unheard-of", func(d *Decision) { d.Notice.Detail = "eat" }, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be taken back at 2026-11-20T12:02:00Z"},
		{"rebalance", func(d *Decision) { d.Notice.Kind, d.Deadline = notice.RebalanceRecommendation, time.Time{} }, "RebalanceRecommendation", "Rebalance recommendation: instance i-0123456789abcdef0 is at an elevated risk of a spot interruption"},
		{"state", func(d *Decision) { d.Notice.Kind, d.Notice.Detail = notice.StateChange, "stopping" }, "StateChange", "State change: instance i-0123456789abcdef0 is stopping"},
		{"scheduled", func(d *Decision) { d.Notice.Kind, d.Notice.Detail = notice.ScheduledChange, "AWS_EC2_REBOOT" }, "ScheduledEvent", "Scheduled change AWS_EC2_REBOOT: instance i-0123456789abcdef0 is affected from 2026-11-20T12:02:00Z"},
		{"called off", func(d *Decision) {
			d.Notice.Kind, d.Notice.Detail, d.Notice.Ended, d.Action = notice.ScheduledChange, "AWS_EC2_REBOOT", true, "undo"
		}, "ScheduledEvent", "Scheduled change AWS_EC2_REBOOT of instance i-0123456789abcdef0 is over or was called off"},
		{"scale-in", func(d *Decision) { d.Notice.Kind, d.Notice.Hook, d.Action = notice.ASGTerminate, hook, "cordon" }, "ASGLifecycle", "Auto Scaling group group-1 terminates instance i-0123456789abcdef0: lifecycle hook hook-1 waits until 2026-11-20T12:02:00Z"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := spot()
			test.edit(&d)
			got, log := recorded(t, fake.NewClientset(), func(e *Events) { e.Decided(d) })
			want := []entry{{"default", "Node", "node-1", "uid-1", "Normal", test.reason, test.message, known, 1}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if log != "" {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestWhatTouchesNoNodeIsNoEvent(t *testing.T) {
	got, _ := recorded(t, fake.NewClientset(), func(e *Events) {
		for _, action := range []string{"leave", "drop", "hold", "finish", "complete", "launch", "reject"} {
			d := spot()
			d.Action = action
			e.Decided(d)
		}
		none := spot()
		none.Node = cluster.Ref{}
		e.Decided(none)
		dry := spot()
		dry.DryRun = true
		e.Decided(dry)
		ref := spot().Node
		e.Node(ref, "cordon", "spot-interruption", fmt.Errorf("patch: %w", cluster.ErrNodeGone))
		e.Node(ref, "cordon", "spot-interruption", fmt.Errorf("patch: %w", context.Canceled))
		e.Node(ref, "pre-drain", "unheard-of", nil)
		e.Pod(drain.Step{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}}, Err: errors.New("a budget allows no disruption")})
	})
	if len(got) > 0 {
		t.Errorf("Events: %v", got)
	}
}

func TestTheWorkOnANodeIsToldInEvents(t *testing.T) {
	ref := cluster.Ref{Name: "node-1", UID: "uid-1", Instance: testInstance}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
	strange := pod.DeepCopy()
	strange.Spec.NodeName = "node-2"
	deadline := noon.Add(2 * time.Minute)
	onNode := func(kind, reason, message string) entry {
		return entry{"default", "Node", "node-1", "uid-1", kind, reason, message, known, 1}
	}
	onPod := func(kind, message string) entry {
		return entry{"shop", "Pod", "web-0", "pod-uid", kind, "PodEviction", message, known, 1}
	}
	elsewhere := onPod("Normal", "Evicted from node node-2")
	elsewhere.Annotations = map[string]string{"account-id": "123456789012", "region": "us-east-1", "team": "blue"}
	var names []string
	for k := range 12 {
		names = append(names, fmt.Sprintf("shop/p%d", k))
	}
	const long = "a very long error "
	tests := []struct {
		name  string
		story func(e *Events)
		want  entry
	}{
		{
			"cordoned", func(e *Events) { e.Node(ref, "cordon", "spot-interruption", nil) },
			onNode("Normal", "Cordon", "The node is cordoned: spot-interruption"),
		},
		{
			"not cordoned", func(e *Events) { e.Node(ref, "cordon", "spot-interruption", errors.New("no")) },
			onNode("Warning", "CordonError", "The node could not be cordoned: no"),
		},
		{
			"uncordoned", func(e *Events) { e.Node(ref, "uncordon", "scheduled-change-ended", nil) },
			onNode("Normal", "Uncordon", "The node is uncordoned: scheduled-change-ended"),
		},
		{
			"not uncordoned", func(e *Events) {
				e.Node(ref, "uncordon", "scheduled-change-ended", errors.New(strings.Repeat(long, 100)))
			},
			onNode("Warning", "UncordonError", ("The node could not be uncordoned: " + strings.Repeat(long, 100))[:1024]),
		},
		{
			"drained", func(e *Events) { e.Drained(ref, drain.Result{Evicted: 7, Forced: 1}, 12*time.Second, deadline) },
			onNode("Normal", "CordonAndDrain", "The node is drained: 7 evicted, 1 deleted, in 12s; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{
			"drained, without a deadline", func(e *Events) { e.Drained(ref, drain.Result{Evicted: 7}, 12*time.Second, time.Time{}) },
			onNode("Normal", "CordonAndDrain", "The node is drained: 7 evicted, 0 deleted, in 12s"),
		},
		{"not drained", func(e *Events) {
			e.Drained(ref, drain.Result{Evicted: 7, Missed: names[:2]}, 2*time.Minute, deadline)
		}, onNode("Warning", "CordonAndDrainError", "Pods were still there at the deadline, 2026-11-20T12:02:00Z: shop/p0, shop/p1 (2 missed, 7 evicted, 0 deleted, in 2m0s)")},
		{
			"far from drained", func(e *Events) { e.Drained(ref, drain.Result{Missed: names}, 2*time.Minute, deadline) },
			onNode("Warning", "CordonAndDrainError", "Pods were still there at the deadline, 2026-11-20T12:02:00Z: "+
				"shop/p0, shop/p1, shop/p2, shop/p3, shop/p4, shop/p5, shop/p6, shop/p7, shop/p8, shop/p9 and 2 more (12 missed, 0 evicted, 0 deleted, in 2m0s)"),
		},
		{
			"a pod evicted", func(e *Events) { e.Pod(drain.Step{Pod: pod}) },
			onPod("Normal", "Evicted from node node-1: RebalanceRecommendation, SpotInterruption; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{
			"a pod deleted", func(e *Events) { e.Pod(drain.Step{Pod: pod, Forced: true, Grace: 20 * time.Second}) },
			onPod("Warning", "Deleted from node node-1 with a grace period of 20s: RebalanceRecommendation, SpotInterruption; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{"a pod of a node that is gone", func(e *Events) { e.Pod(drain.Step{Pod: strange}) }, elsewhere},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, log := recorded(t, fake.NewClientset(), test.story)
			if diff := cmp.Diff([]entry{test.want}, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if log != "" {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestARepetitionIsCountedInTheEventThatIsThere(t *testing.T) {
	got, _ := recorded(t, fake.NewClientset(), func(e *Events) {
		for range 3 {
			e.Decided(spot())
			synctest.Wait()
		}
	})
	if len(got) != 1 || got[0].Count != 3 {
		t.Errorf("Events %v, want one with the count 3", got)
	}
}

func TestEventsNeverWaitForTheAPIServerAndPodsDoNotPushOutNodes(t *testing.T) {
	kube := fake.NewClientset()
	var open chan struct{}
	count := map[string]int{}
	kube.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		<-open
		event := a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		count[event.InvolvedObject.Kind]++
		return true, event, nil
	})
	const pods, nodes = 5000, 100
	recorded(t, kube, func(e *Events) {
		open = make(chan struct{})
		begin := time.Now()
		for k := range pods {
			e.Pod(drain.Step{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", k), Namespace: "shop", UID: types.UID(fmt.Sprint(k))}}})
		}
		for k := range nodes {
			e.Node(cluster.Ref{Name: fmt.Sprint("node-", k), UID: types.UID(fmt.Sprint(k))}, "cordon", "spot-interruption", nil)
		}
		if took := time.Since(begin); took > 0 {
			t.Errorf("telling took %s", took)
		}
		close(open)
	})
	if count["Node"] != nodes {
		t.Errorf("%d Events of nodes, want all %d", count["Node"], nodes)
	}
	if n := count["Pod"]; n == 0 || n == pods {
		t.Errorf("%d Events of %d pods, want those that fit into the buffer", n, pods)
	}
}

func TestEventsThatCannotBeWrittenAreOneLineOfTheLog(t *testing.T) {
	kube := fake.NewClientset()
	forbidden, works := 0, false
	kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		if works {
			return false, nil, nil
		}
		forbidden++
		return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no rule"))
	})
	var e *Events
	_, log := recorded(t, kube, func(events *Events) {
		e = events
		tell := func(name string) {
			e.Node(cluster.Ref{Name: name, UID: types.UID(name)}, "cordon", "spot-interruption", nil)
			synctest.Wait()
		}
		for k := range 10 {
			tell(fmt.Sprint("node-", k))
		}
		works = true
		tell("node-10")
		works = false
		tell("node-11")
	})
	if forbidden != 11 {
		t.Errorf("%d tries, want each once: 11", forbidden)
	}
	if n := strings.Count(log, "\n") + 1; n != 2 || !strings.Contains(log, "create and patch of events") {
		t.Errorf("the log has %d lines, want one for each time that it began to fail:\n%s", n, log)
	}
	const series = "node_termination_handler_kubernetes_event_writes_total"
	if ok, failed := e.options.Metrics.value(series, "success"), e.options.Metrics.value(series, "error"); ok != 1 || failed != 11 {
		t.Errorf("%d writes and %d failures were counted, want 1 and 11", ok, failed)
	}
}

func TestAnEventIsWrittenWhenTheAPIServerIsBack(t *testing.T) {
	kube := fake.NewClientset()
	tries := 0
	kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		if tries < 4 {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	got, log := recorded(t, kube, func(e *Events) { e.Decided(spot()) })
	if len(got) != 1 {
		t.Errorf("Events %v after %d tries, want one", got, tries)
	}
	if strings.Count(log, "\n") > 0 {
		t.Errorf("the log repeats itself:\n%s", log)
	}
}
