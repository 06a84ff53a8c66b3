package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/sandbox"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

func TestASpotDrainIsToldInEventsOfItsNodeAndItsPods(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(3)
	s.deployment("web", 6)
	h := s.alone("--node-name=host-1", "--kubernetes-events-extra-annotations=team=blue")
	when := time.Now().UTC().Truncate(time.Second)
	goes := when.Add(2 * time.Minute).Format(time.RFC3339)
	s.awaitDeleted(soon, s.send(s.bodyAt(when, "spot-interruption", nodes[0].instance)))

	var onNode []corev1.Event
	s.eventually("three Events are on the node", func() bool {
		onNode = s.told("default", "Node", nodes[0].name)
		return len(onNode) >= 3
	})
	want := map[string]string{
		"SpotInterruption": fmt.Sprintf("Spot interruption notice: instance %s will be terminated at %s", nodes[0].instance, goes),
		"Cordon":           "The node is cordoned: spot-interruption",
	}
	uid := s.getNode(nodes[0].name).UID
	for _, e := range onNode {
		if message, ok := want[e.Reason]; ok && message != e.Message {
			t.Errorf("%s says %q, want %q", e.Reason, e.Message, message)
		}
		if e.Type != corev1.EventTypeNormal || e.InvolvedObject.UID != uid || e.Source.Host != "host-1" {
			t.Errorf("Event %+v", e)
		}
		known := map[string]string{"account-id": account, "region": region, "instance-id": nodes[0].instance, "instance-life-cycle": "spot", "local-ipv4": "127.0.0.1", "team": "blue"}
		if e.Annotations["instance-life-cycle"] == "" && e.Reason == "Cordon" {
			delete(known, "instance-life-cycle") // the watch has not yet shown what was written
		}
		if diff := cmp.Diff(known, e.Annotations); diff != "" {
			t.Errorf("annotations of %s (-want +got):\n%s", e.Reason, diff)
		}
	}
	if diff := cmp.Diff([]string{"Cordon", "CordonAndDrain", "SpotInterruption"}, reasons(onNode)); diff != "" {
		t.Errorf("reasons on the node (-want +got):\n%s", diff)
	}

	evicted := s.evictions()
	if len(evicted) == 0 {
		t.Error("no pod was evicted")
	}
	for _, eviction := range evicted {
		s.eventually("an Event is on pod "+eviction.Name, func() bool { return len(s.told(s.name, "Pod", eviction.Name)) > 0 })
		if diff := cmp.Diff([]string{"PodEviction"}, reasons(s.told(s.name, "Pod", eviction.Name))); diff != "" {
			t.Errorf("reasons on pod %s (-want +got):\n%s", eviction.Name, diff)
		}
	}
	for _, n := range nodes[1:] {
		if events := s.told("default", "Node", n.name); len(events) > 0 {
			t.Errorf("Events are on node %s: %v", n.name, reasons(events))
		}
	}
	if failed := h.metric(`node_termination_handler_kubernetes_event_writes_total{status="error"}`); failed > 0 {
		t.Errorf("%v writes of Events failed", failed)
	}
}

// The API server's own words name the budget.
func TestWhatBlocksADrainIsNamedInEventsAndInTheLog(t *testing.T) {
	tier.Full(t, "75 s; internal/drain and internal/telemetry have it")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("db", 2)
	s.budget("db", "db", 2)
	s.pod("held", n.name, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/backup"} })
	h := s.alone("--json-logging")
	begin := time.Now()
	s.send(s.body("asg-terminate-lifecycle", n.instance))
	const budget = "needs 2 healthy pods and has 2"
	name := "PodDisruptionBudget " + s.name + "/db "
	var db string
	for _, p := range s.podsOn(n.name) {
		if p.Labels["app"] == "db" {
			db = p.Name
		}
	}
	for _, about := range []struct{ namespace, kind, name, what string }{
		{s.name, "Pod", db, name + budget},
		{"default", "Node", n.name, name + budget},
	} {
		s.within(2*soon, "an Event on "+about.kind+" "+about.name+" says "+about.what, func() bool {
			return slices.ContainsFunc(s.told(about.namespace, about.kind, about.name), func(e corev1.Event) bool {
				return e.Reason == "EvictionBlocked" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, about.what)
			})
		})
	}
	const line = "waiting for pods to leave"
	s.within(2*soon, "the log has a line", func() bool { return len(h.logged(line)) > 0 })
	if took := time.Since(begin); took < time.Minute {
		t.Errorf("the first line came after %s", took)
	}
	says := fmt.Sprint(h.logged(line)[0])
	for _, want := range []string{"pods:3", s.name + "/" + db + ": " + name + budget, "/held: it should have ended at ", "left:"} {
		if !strings.Contains(says, want) {
			t.Errorf("the line lacks %q: %s", want, says)
		}
	}
}

func TestTheWebhookIsCalledOnceWithWhatNTHSays(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 2)
	hook := s.webhook(nil)
	h := s.alone("--webhook-url="+hook.URL, `--webhook-headers={"X-Token":"hush","Content-type":"application/json"}`)
	when := time.Now().UTC().Truncate(time.Second)
	body := s.bodyAt(when, "spot-interruption", nodes[0].instance)
	// The second is another message about the same event.
	s.awaitDeleted(soon, s.send(body), s.send(body))
	s.eventually("the webhook is called", func() bool { return len(hook.calls()) > 0 })
	s.throughout(2*time.Second, "it was called once", func() bool { return len(hook.calls()) == 1 })
	var got struct{ Text string }
	call := hook.calls()[0]
	s.must(json.Unmarshal([]byte(call.body), &got))
	want := fmt.Sprintf("[NTH][Instance Interruption] EventID: %s - Kind: SPOT_ITN - Instance: %s - Node: %s - "+
		"Description: Spot interruption notice: instance %[2]s will be terminated at %[4]s - Start Time: %[5]s",
		eventID(body), nodes[0].instance, nodes[0].name, when.Add(2*time.Minute).Format(time.RFC3339), when)
	if diff := cmp.Diff(want, got.Text); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if call.header.Get("X-Token") != "hush" || call.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", call.header)
	}
	if sent := h.metric(`node_termination_handler_webhook_messages_total{result="sent"}`); sent != 1 {
		t.Errorf("%v messages were counted, want 1", sent)
	}
}

func TestTheWebhookTellsHowADrainEnded(t *testing.T) {
	tier.Full(t, "20 s; internal/webhook has it")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.pod("leaves", nodes[0].name)
	s.pod("stays", nodes[1].name, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/for-ever"} })
	hook := s.webhook(nil)
	s.alone("--webhook-url="+hook.URL, "--webhook-phases=received,drained,missed",
		`--webhook-template={{ .Phase }} {{ .EventID }} {{ .NodeName }} {{ .LocalIP }} {{ .Missed }}`)
	const left = 15 * time.Second // of the two minutes
	leaves := s.body("spot-interruption", nodes[0].instance)
	stays := s.bodyAt(time.Now().Add(left-2*time.Minute), "spot-interruption", nodes[1].instance)
	s.awaitDeleted(soon, s.send(leaves), s.send(stays))
	want := []string{
		"drained " + eventID(leaves) + " " + nodes[0].name + " 127.0.0.1 []",
		"missed " + eventID(stays) + " " + nodes[1].name + " 127.0.0.1 [" + s.name + "/stays]",
		"received " + eventID(leaves) + " " + nodes[0].name + " 127.0.0.1 []",
		"received " + eventID(stays) + " " + nodes[1].name + " 127.0.0.1 []",
	}
	s.eventually("the webhook is called for each phase", func() bool { return len(hook.calls()) >= len(want) })
	var got []string
	for _, c := range hook.calls() {
		got = append(got, c.body)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// One pod runs on beyond the deadline, another one's machine is terminated
// under it: whoever listens to log, Events, labels, metrics or webhook hears of both, by
// name, and of neither that its node was drained.
func TestADrainThatDoesNotEndWellSaysSoEverywhere(t *testing.T) {
	tier.Full(t, "a minute; internal/controller plays each outcome in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	held := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/for-ever"} }
	s.pod("stuck", nodes[0].name, held)
	s.pod("leaves", nodes[1].name)
	s.pod("lost", nodes[1].name, held)
	hook := s.webhook(nil)
	h := s.alone("--json-logging", "--webhook-url="+hook.URL, "--webhook-phases=drained,missed,gone,unconfirmed",
		`--webhook-template={{ .Phase }} {{ .NodeName }} {{ .Missed }} {{ .Lost }}`)
	const left = 45 * time.Second // of the two minutes: more than the grace period of the pod
	stuck := s.send(s.bodyAt(time.Now().Add(left-2*time.Minute), "spot-interruption", nodes[0].instance))
	lost := s.send(s.body("spot-interruption", nodes[1].instance))
	// The notice about the end must not come before the handler has heard that the pod has left: another stream brings that.
	s.eventually("one pod has left, as the handler knows, and the other node is cordoned", func() bool {
		return slices.ContainsFunc(h.overview().Nodes, func(n overview.Node) bool {
			return n.Name == nodes[1].name && n.Pods != nil && n.Pods.Left == 1 && n.Pods.Gone == 1
		}) && s.cordoned(nodes[0].name)
	})
	s.must(s.aws.SetInstanceState(nodes[1].instance, "terminated"))
	s.awaitDeleted(soon, stuck, lost, s.send(s.body("state-change-terminated", nodes[1].instance)))

	s.ended(nodes[0].name, intent.Missed)
	s.ended(nodes[1].name, intent.Gone)
	for n, want := range map[node]overview.Episode{
		nodes[0]: {Outcome: "missed", Pods: &overview.Counts{Evicted: 0, Missed: 1, Remaining: []string{s.name + "/stuck"}}},
		nodes[1]: {Outcome: "gone", Pods: &overview.Counts{Evicted: 1, Lost: 1, Remaining: []string{s.name + "/lost"}}},
	} {
		var e overview.Episode
		s.eventually("the history has the episode", func() bool {
			e = h.episode(n)
			return e.Node != ""
		})
		e.Pods.Ended = 0
		if e.Outcome != want.Outcome || e.Known != overview.Everything || !reflect.DeepEqual(e.Pods, want.Pods) || e.Slack == nil || *e.Slack > 0 ||
			len(e.Notices) == 0 || e.FirstAsked.IsZero() || e.CordonedAt.IsZero() || len(h.logged("episode", "node", n.name)) != 1 {
			t.Errorf("the history has %+v, with %+v", e, e.Pods)
		}
		if n == nodes[0] && !slices.ContainsFunc(e.Refused, func(r overview.Refusal) bool { return r.Cause == overview.Kubelet }) {
			t.Errorf("kept by %+v", e.Refused)
		}
	}
	for n, want := range map[node]map[string]any{
		nodes[0]: {"level": "error", "msg": "the drain has missed its deadline: pods are still on the node", "missed": []any{s.name + "/stuck"}},
		nodes[1]: {"level": "warn", "msg": "the instance or its Node went away with pods on it", "evicted": 1.0, "forced": 0.0, "lost": []any{s.name + "/lost"}},
	} {
		loud := slices.DeleteFunc(h.logged("", "node", n.name), func(e map[string]any) bool {
			return e["level"] == "info" || e["level"] == "debug"
		})
		if len(loud) != 1 {
			t.Errorf("entries about the end of node %s that are more than information, want one: %v", n.name, loud)
			continue
		}
		for key, value := range want {
			if !reflect.DeepEqual(loud[0][key], value) {
				t.Errorf("the entry about the end of node %s has %s %v, want %v", n.name, key, loud[0][key], value)
			}
		}
	}
	for n, want := range map[node][2]string{
		nodes[0]: {"CordonAndDrainError", s.name + "/stuck"}, nodes[1]: {"InstanceGone", s.name + "/lost"},
	} {
		s.eventually("a Warning names the pod on "+n.name, func() bool {
			return slices.ContainsFunc(s.told("default", "Node", n.name), func(e corev1.Event) bool {
				return e.Type == corev1.EventTypeWarning && e.Reason == want[0] && strings.Contains(e.Message, want[1])
			})
		})
		if told := reasons(s.told("default", "Node", n.name)); slices.Contains(told, "CordonAndDrain") {
			t.Errorf("the Events say that node %s is drained: %v", n.name, told)
		}
	}
	for series, want := range map[string]float64{
		`drains_total{kind="SpotInterruption",outcome="in-time"}`: 0,
		`drains_total{kind="SpotInterruption",outcome="missed"}`:  1,
		`drains_total{kind="SpotInterruption",outcome="gone"}`:    1,
		`drains_total{kind="StateChange",outcome="gone"}`:         0,
		`pods_total{how="evicted",kind="SpotInterruption"}`:       1,
		`pods_total{how="forced",kind="SpotInterruption"}`:        0,
		`pods_total{how="missed",kind="SpotInterruption"}`:        1,
		`pods_total{how="lost",kind="SpotInterruption"}`:          1,
	} {
		if got := h.metric("node_termination_handler_" + series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	s.eventually("the webhook is called for both", func() bool { return len(hook.calls()) >= 2 })
	var posted []string
	for _, c := range hook.calls() {
		posted = append(posted, c.body)
	}
	slices.Sort(posted)
	want := []string{"gone " + nodes[1].name + " [] [" + s.name + "/lost]", "missed " + nodes[0].name + " [" + s.name + "/stuck] []"}
	if diff := cmp.Diff(want, posted); diff != "" {
		t.Errorf("messages of the webhook (-want +got):\n%s", diff)
	}
}

func TestAWebhookThatHangsDelaysNoDrainAndIsCalledAgainWhenItIsBack(t *testing.T) {
	tier.Full(t, "internal/webhook plays it in virtual time")
	s := newScenario(t)
	nodes := s.nodes(2)
	s.deployment("web", 2)
	back := make(chan struct{})
	hook := s.webhook(func(r *http.Request) {
		select {
		case <-back:
		case <-r.Context().Done():
		}
	})
	h := s.alone("--webhook-url=" + hook.URL)
	message := s.send(s.body("spot-interruption", nodes[0].instance))
	s.awaitDeleted(soon, message)
	s.drainedBefore(message, nodes[0])
	s.eventually("the webhook is called", func() bool { return len(hook.calls()) > 0 })
	const sent = `node_termination_handler_webhook_messages_total{result="sent"}`
	if n := h.metric(sent); n > 0 {
		t.Errorf("%v messages were sent to a server that hangs", n)
	}
	close(back)
	s.eventually("the message is sent", func() bool { return h.metric(sent) == 1 })
	if status := h.stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

func TestADryRunIsToldToNobody(t *testing.T) {
	tier.Full(t, "TestADryRunWritesNothing has the rest")
	s := newScenario(t)
	nodes := s.nodes(1)
	hook := s.webhook(nil)
	h := s.alone("--dry-run", "--webhook-url="+hook.URL)
	s.send(s.body("spot-interruption", nodes[0].instance))
	s.eventually("the warning is decided about", func() bool { return h.decisions("SpotInterruption", "drain", "spot-interruption") > 0 })
	s.throughout(2*time.Second, "nobody is told", func() bool {
		return len(hook.calls()) == 0 && len(s.told("default", "Node", nodes[0].name)) == 0
	})
	if events := s.audit(func(e sandbox.AuditEvent) bool { return e.Resource == "events" }); len(events) > 0 {
		t.Errorf("%d requests about Events", len(events))
	}
}

// The cluster has no other node.
func TestPodsThatFindNoOtherNodeAreToldOf(t *testing.T) {
	tier.Full(t, "45 s; internal/unscheduled plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 2)
	h := s.alone()
	s.awaitDeleted(soon, s.send(s.body("spot-interruption", n.instance)))
	const series = "node_termination_handler_pods_unscheduled"
	s.eventually("the metric counts them", func() bool { return h.metric(series) == 2 })
	s.awaitEvent(n, "2 pods that left the node wait for another one, such as "+s.name+"/web-")
	if waiting := h.overview().Unscheduled; len(waiting) != 1 || waiting[0].Node != n.name || waiting[0].Pods != 2 {
		t.Errorf("the status has %+v", waiting)
	}
	s.node(s.name+"-z", s.id(25))
	s.eventually("none waits any more", func() bool { return h.metric(series) == 0 })
}

// told are the handlers' Events about an object.
func (s *scenario) told(namespace, kind, name string) []corev1.Event {
	s.Helper()
	list, err := s.kube.CoreV1().Events(namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	s.must(err)
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Source.Component != "aws-node-termination-handler" })
}

// reasons are those of events, sorted.
func reasons(events []corev1.Event) []string {
	var all []string
	for _, e := range events {
		all = append(all, e.Reason)
	}
	slices.Sort(all)
	return all
}

// A webhook is the server that messages are posted to.
type webhook struct {
	URL string

	mu   sync.Mutex
	seen []call
}

type call struct {
	header http.Header
	body   string
}

// webhook starts a server that takes every message, after delay (nil: at once).
func (s *scenario) webhook(delay func(*http.Request)) *webhook {
	s.Helper()
	hook := &webhook{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		hook.mu.Lock()
		hook.seen = append(hook.seen, call{r.Header, string(body)})
		hook.mu.Unlock()
		if delay != nil {
			delay(r)
		}
	}))
	s.Cleanup(server.Close)
	hook.URL = server.URL + "/services/secret"
	return hook
}

func (w *webhook) calls() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}
