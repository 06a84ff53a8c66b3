package telemetry

import (
	"context"
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

	"github.com/node-termination-handler/node-termination-handler/e2e/reporttest"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/logging/logtest"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
	"github.com/node-termination-handler/node-termination-handler/internal/report"
)

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
		kept := &logtest.Log{}
		node := reporttest.Node(t)
		e := NewEvents(ctx, EventOptions{
			Client: kube.CoreV1(), Host: "host-1", Where: func() (account, region string) { return "123456789012", "us-east-1" },
			Annotations: map[string]string{"team": "blue"}, Metrics: New(), Log: kept.Logger(),
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
			if event.Source != (corev1.EventSource{Component: "aws-node-termination-handler", Host: "host-1"}) {
				t.Errorf("source %v", event.Source)
			}
		}
		cancel()
		synctest.Wait()
		log = strings.TrimSuffix(kept.String(), "\n")
	})
	return found, log
}

// known are the annotations of all that is known of theNode.
var known = map[string]string{
	"account-id": "123456789012", "availability-zone": "us-east-1a", "instance-id": reporttest.Instance, "instance-life-cycle": "spot",
	"instance-type": "m7g.large", "region": "us-east-1", "team": "blue",
	"local-hostname": "ip-10-0-0-1.ec2.internal", "local-ipv4": "10.0.0.1",
	"public-hostname": "ec2-192-0-2-1.compute-1.amazonaws.com", "public-ipv4": "192.0.2.1",
}

func TestANoticeIsAnEventOfItsNode(t *testing.T) {
	hook := notice.Hook{Group: "group-1", Name: "hook-1"}
	tests := []struct {
		name            string
		edit            func(*report.Decision)
		reason, message string
	}{
		{"spot", func(*report.Decision) {}, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be terminated at 2026-11-20T12:02:00Z"},
		{"hibernate", func(d *report.Decision) { d.Notice.Detail, d.Deadline = "hibernate", reporttest.Noon }, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be hibernated at 2026-11-20T12:00:00Z"},
		{"unheard-of", func(d *report.Decision) { d.Notice.Detail = "eat" }, "SpotInterruption", "Spot interruption notice: instance i-0123456789abcdef0 will be taken back at 2026-11-20T12:02:00Z"},
		{"rebalance", func(d *report.Decision) { d.Notice.Kind, d.Deadline = notice.RebalanceRecommendation, time.Time{} }, "RebalanceRecommendation", "Rebalance recommendation: instance i-0123456789abcdef0 is at an elevated risk of a spot interruption"},
		{"state", func(d *report.Decision) { d.Notice.Kind, d.Notice.Detail = notice.StateChange, "stopping" }, "StateChange", "State change: instance i-0123456789abcdef0 is stopping"},
		{"scheduled", func(d *report.Decision) { d.Notice.Kind, d.Notice.Detail = notice.ScheduledChange, "AWS_EC2_REBOOT" }, "ScheduledEvent", "Scheduled change AWS_EC2_REBOOT: instance i-0123456789abcdef0 is affected from 2026-11-20T12:02:00Z"},
		{"called off", func(d *report.Decision) {
			d.Notice.Kind, d.Notice.Detail, d.Notice.Ended, d.Action = notice.ScheduledChange, "AWS_EC2_REBOOT", true, decision.Undo
		}, "ScheduledEvent", "Scheduled change AWS_EC2_REBOOT of instance i-0123456789abcdef0 is over or was called off"},
		{"scale-in", func(d *report.Decision) {
			d.Notice.Kind, d.Notice.Hook, d.Action = notice.ASGTerminate, hook, decision.Cordon
		}, "ASGLifecycle", "Auto Scaling group group-1 terminates instance i-0123456789abcdef0: lifecycle hook hook-1 waits until 2026-11-20T12:02:00Z"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := reporttest.Spot()
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
		for _, action := range []decision.Action{
			decision.Leave, decision.Drop, decision.Hold, decision.Finish, decision.Complete, decision.Launch, decision.Reject,
		} {
			d := reporttest.Spot()
			d.Action = action
			e.Decided(d)
		}
		none := reporttest.Spot()
		none.Node = cluster.Ref{}
		e.Decided(none)
		dry := reporttest.Spot()
		dry.DryRun = true
		e.Decided(dry)
		ref := reporttest.Spot().Node
		e.Stepped(report.Step{Node: ref, Kind: "cordon", Why: "spot-interruption", Err: fmt.Errorf("patch: %w", cluster.ErrNodeGone)})
		e.Stepped(report.Step{Node: ref, Kind: "cordon", Why: "spot-interruption", Err: fmt.Errorf("patch: %w", context.Canceled)})
		e.Stepped(report.Step{Node: ref, Kind: "pre-drain", Why: "unheard-of"})
		e.Pod(evacuation.Answer{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}}, Err: errors.New("a budget allows no disruption")})
	})
	if len(got) > 0 {
		t.Errorf("Events: %v", got)
	}
}

func TestTheWorkOnANodeIsToldInEvents(t *testing.T) {
	ref := cluster.Ref{Name: "node-1", UID: "uid-1", Instance: reporttest.Instance}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
	strange := pod.DeepCopy()
	strange.Spec.NodeName = "node-2"
	deadline := reporttest.Noon.Add(2 * time.Minute)
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
			"cordoned", func(e *Events) { e.Stepped(report.Step{Node: ref, Kind: "cordon", Why: "spot-interruption"}) },
			onNode("Normal", "Cordon", "The node is cordoned: spot-interruption"),
		},
		{
			"not cordoned", func(e *Events) {
				e.Stepped(report.Step{Node: ref, Kind: "cordon", Why: "spot-interruption", Err: errors.New("no")})
			},
			onNode("Warning", "CordonError", "The node could not be cordoned: no"),
		},
		{
			"uncordoned", func(e *Events) { e.Stepped(report.Step{Node: ref, Kind: "uncordon", Why: "scheduled-change-ended"}) },
			onNode("Normal", "Uncordon", "The node is uncordoned: scheduled-change-ended"),
		},
		{
			"not uncordoned", func(e *Events) {
				e.Stepped(report.Step{Node: ref, Kind: "uncordon", Why: "scheduled-change-ended", Err: errors.New(strings.Repeat(long, 100))})
			},
			onNode("Warning", "UncordonError", ("The node could not be uncordoned: " + strings.Repeat(long, 100))[:1024]),
		},
		{
			"drained", func(e *Events) {
				e.Drained(ended(intent.Drained, evacuation.Result{Evicted: 7, Forced: 1}, 12*time.Second, deadline))
			},
			onNode("Normal", "CordonAndDrain", "The node is drained: 7 evicted, 1 deleted, in 12s; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{
			"drained, by a second leader", func(e *Events) {
				d := ended(intent.Drained, evacuation.Result{Evicted: 7}, 12*time.Second, time.Time{})
				d.Resumed = true
				e.Drained(d)
			},
			onNode("Normal", "CordonAndDrain", "The node is drained: 7 evicted, 0 deleted, in 12s since it was resumed"),
		},
		{
			"drained, without a deadline", func(e *Events) {
				e.Drained(ended(intent.Drained, evacuation.Result{Evicted: 7, Ended: 2}, 12*time.Second, time.Time{}))
			},
			onNode("Normal", "CordonAndDrain", "The node is drained: 7 evicted, 0 deleted, 2 ended, in 12s"),
		},
		{"not drained", func(e *Events) {
			e.Drained(ended(intent.Missed, evacuation.Result{Evicted: 7, Missed: names[:2]}, 2*time.Minute, deadline))
		}, onNode("Warning", "CordonAndDrainError", "Pods were still there at the deadline, 2026-11-20T12:02:00Z: shop/p0, shop/p1 (2 missed, 7 evicted, 0 deleted, in 2m0s)")},
		{
			"far from drained", func(e *Events) {
				e.Drained(ended(intent.Missed, evacuation.Result{Missed: names}, 2*time.Minute, deadline))
			},
			onNode("Warning", "CordonAndDrainError", "Pods were still there at the deadline, 2026-11-20T12:02:00Z: "+
				"shop/p0, shop/p1, shop/p2, shop/p3, shop/p4, shop/p5, shop/p6, shop/p7, shop/p8, shop/p9, and 2 more (12 missed, 0 evicted, 0 deleted, in 2m0s)"),
		},
		{
			"the machine went", func(e *Events) {
				e.Drained(ended(intent.Gone, evacuation.Result{Evicted: 2, Forced: 1, Lost: names[:1]}, 11*time.Second, deadline))
			},
			onNode("Warning", "InstanceGone", "The instance or its Node went away with pods on it: shop/p0 (1 lost, 2 evicted, 1 deleted, in 11s)"),
		},
		{
			"no kubelet", func(e *Events) {
				e.Drained(ended(intent.Unconfirmed, evacuation.Result{Evicted: 2, Unconfirmed: names[:1]}, 3*time.Minute, deadline))
			},
			onNode("Warning", "DrainUnconfirmed", "Pods should have ended, but no kubelet confirms it: shop/p0 (1 unconfirmed, 2 evicted, 0 deleted, in 3m0s)"),
		},
		{
			"a pod evicted", func(e *Events) { e.Pod(evacuation.Answer{Pod: pod}) },
			onPod("Normal", "Evicted from node node-1: rebalance-recommendation, spot-interruption; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{
			"a pod deleted", func(e *Events) { e.Pod(evacuation.Answer{Pod: pod, Forced: true, Grace: 20 * time.Second}) },
			onPod("Warning", "Deleted from node node-1 with a grace period of 20s: rebalance-recommendation, spot-interruption; the instance goes away at 2026-11-20T12:02:00Z"),
		},
		{"a pod of a node that is gone", func(e *Events) { e.Pod(evacuation.Answer{Pod: strange}) }, elsewhere},
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

func TestWhatBlocksADrainIsAWarningOnThePodAndOnTheNode(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "db-0", Namespace: "shop", UID: "pod-uid"},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
	}
	onNode := func(message string) entry {
		return entry{"default", "Node", "node-1", "uid-1", "Warning", "EvictionBlocked", message, known, 1}
	}
	onPod := entry{
		"shop", "Pod", "db-0", "pod-uid", "Warning", "EvictionBlocked",
		"Node node-1 is being drained: rebalance-recommendation, spot-interruption; the instance goes away at 2026-11-20T12:02:00Z. " +
			"The drain waits for this pod: PodDisruptionBudget shop/db needs 2 healthy pods and has 2", known, 1,
	}
	const why = "PodDisruptionBudget shop/db needs 2 healthy pods and has 2"
	for _, test := range []struct {
		name    string
		blocked evacuation.Blocked
		want    []entry
	}{
		{"the first pod", evacuation.Blocked{Node: "node-1", Pod: pod, Why: why, First: true}, []entry{onNode("The drain waits for pod shop/db-0: " + why), onPod}},
		{"another pod", evacuation.Blocked{Node: "node-1", Pod: pod, Why: why}, []entry{onPod}},
		{
			"a pod whose namespace is being deleted",
			evacuation.Blocked{Node: "node-1", Pod: pod, Cause: overview.Namespace, Why: "namespace shop is being deleted", First: true},
			[]entry{onNode("The drain waits for pod shop/db-0: namespace shop is being deleted")},
		},
		{
			"volumes",
			evacuation.Blocked{Node: "node-1", Why: "volumes are still attached to the node: pvc-1", First: true},
			[]entry{onNode("The drain waits: volumes are still attached to the node: pvc-1")},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, log := recorded(t, fake.NewClientset(), func(e *Events) { e.Blocked(test.blocked) })
			slices.SortFunc(got, func(a, b entry) int { return strings.Compare(a.Kind, b.Kind) })
			if diff := cmp.Diff(test.want, got); diff != "" || log != "" {
				t.Errorf("Events (-want +got):\n%s\nlog: %s", diff, log)
			}
		})
	}
}

func TestAStormThatMeetsABudgetDoesNotWriteThousandsOfEvents(t *testing.T) {
	kube := fake.NewClientset()
	recorded(t, kube, func(e *Events) {
		for k := range 5000 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", k), Namespace: "shop", UID: types.UID(fmt.Sprint(k))}}
			e.Blocked(evacuation.Blocked{Node: "node-1", Pod: pod, Why: "PodDisruptionBudget shop/web needs 2 healthy pods and has 2", First: k == 0})
		}
	})
	count := map[string]int{}
	for _, a := range kube.Actions() {
		if create, ok := a.(clienttesting.CreateAction); ok {
			count[create.GetObject().(*corev1.Event).InvolvedObject.Kind]++
		}
	}
	if diff := cmp.Diff(map[string]int{"Node": 1, "Pod": blockedBurst}, count); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
}

// Each of them is told of by the node, where the recorder merges what is alike and drops what is too much.
func TestManyBlockedPodsDoNotDisplaceHowADrainHasEnded(t *testing.T) {
	missed := ended(intent.Missed, evacuation.Result{Missed: []string{"shop/web-1"}}, time.Minute, time.Time{})
	got, _ := recorded(t, fake.NewClientset(), func(e *Events) {
		for k := range 100 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", k), Namespace: "shop", UID: types.UID(fmt.Sprint(k))}}
			why := fmt.Sprintf("namespace shop is being deleted, and the pod with it: pods %q is forbidden", pod.Name)
			e.Blocked(evacuation.Blocked{Node: "node-1", Pod: pod, Cause: overview.Namespace, Why: why, First: true})
			time.Sleep(time.Millisecond) // an Event's name has the time
		}
		e.Drained(missed)
	})
	if !slices.ContainsFunc(got, func(e entry) bool { return e.Reason == "CordonAndDrainError" }) {
		t.Errorf("no Event says that the drain has missed its deadline: %v", got)
	}
	if len(got) > 11 {
		t.Errorf("%d Events", len(got))
	}
}

func TestARepetitionIsCountedInTheEventThatIsThere(t *testing.T) {
	got, _ := recorded(t, fake.NewClientset(), func(e *Events) {
		for range 3 {
			e.Decided(reporttest.Spot())
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
			e.Pod(evacuation.Answer{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", k), Namespace: "shop", UID: types.UID(fmt.Sprint(k))}}})
		}
		for k := range nodes {
			e.Stepped(report.Step{Node: cluster.Ref{Name: fmt.Sprint("node-", k), UID: types.UID(fmt.Sprint(k))}, Kind: "cordon", Why: "spot-interruption"})
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
			e.Stepped(report.Step{Node: cluster.Ref{Name: name, UID: types.UID(name)}, Kind: "cordon", Why: "spot-interruption"})
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
	for name, failure := range map[string]error{
		"the API server is away": errors.New("connection refused"),
		// The admission plugin EventRateLimit does not say when to try again.
		"there are too many Events": apierrors.NewTooManyRequestsError("limit reached on type Namespace for key default"),
	} {
		kube := fake.NewClientset()
		tries := 0
		kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries++
			if tries < 4 {
				return true, nil, failure
			}
			return false, nil, nil
		})
		got, log := recorded(t, kube, func(e *Events) { e.Decided(reporttest.Spot()) })
		if len(got) != 1 {
			t.Errorf("%s: Events %v after %d tries, want one", name, got, tries)
		}
		if strings.Count(log, "\n") > 0 {
			t.Errorf("%s: the log repeats itself:\n%s", name, log)
		}
	}
}

// ended is the end of a drain of node-1.
func ended(o intent.Outcome, r evacuation.Result, took time.Duration, deadline time.Time) report.Drain {
	return report.Drain{
		Node: cluster.Ref{Name: "node-1", UID: "uid-1", Instance: reporttest.Instance}, Intent: intent.Intent{Entries: []intent.Entry{{Kind: notice.SpotInterruption, Deadline: deadline}}}, Outcome: o, Result: r, Took: took,
	}
}
