package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A drain that is told of: how it ended, and what became of its pods.
type told struct {
	Outcome string
	Pods    string // each of them
}

// Six drains end in five ways, under four leaders, three of which are killed. The commands status and report, page, log,
// metrics, Events, webhook and the nodes say the same of each. It plays alone: a pod whose grace is cut short is killed
// two seconds before its deadline, and has to be gone then.
func TestAllTellTheSameOfDrainsUnderFourLeaders(t *testing.T) {
	tier.Full(t, "three minutes")
	s, egress := newReachableScenario(t)
	nodes := s.nodes(7)
	quick, slow, lost, off, missed, cut := nodes[0], nodes[1], nodes[2], nodes[3], nodes[4], nodes[5]
	home := nodes[6]
	held := func(p *corev1.Pod) { p.Finalizers = []string{"example.com/for-ever"} }
	s.pod("quick", quick.name)
	s.pod("slow", slow.name, held)
	s.pod("lost", lost.name, held)
	s.pod("kept", off.name, app("kept"))
	s.budget("kept", "kept", 1)
	s.pod("missed", missed.name, held)
	s.pod("cut", cut.name, stopping(10*time.Minute, 5*time.Minute))
	want := map[string]told{
		quick.name: {"drained", "1 evicted"}, slow.name: {"drained", "1 evicted"}, lost.name: {"gone", "1 lost"},
		off.name: {"called-off", ""}, missed.name: {"missed", "1 missed"}, cut.name: {"drained", "1 cut"},
	}
	hook := s.webhook(nil)
	args := append(slices.Clone(maintenance), "--json-logging", "--emit-kubernetes-events", "--webhook-url="+hook.URL,
		"--webhook-phases=drained,missed,gone,unconfirmed", `--webhook-template={{ .Phase }} {{ .NodeName }}`)

	var leaders []*handler
	counted := map[string]float64{} // by all leaders
	next := func() (h *handler) {
		pod := fmt.Sprintf("leader-%d", len(leaders))
		h = s.leaderIn(pod, home, args...)
		s.route(egress, pod, h)
		leaders = append(leaders, h)
		return h
	}
	anna := &onlooker{person: s.person("anna"), reported: map[string]told{}}
	anna.grant("Role", "ClusterRole")
	// The Events about the end of a node. A leader that is killed loses those that it has not written.
	ends := map[string]string{"drained": "CordonAndDrain", "missed": "CordonAndDrainError", "gone": "InstanceGone", "called-off": "Uncordon"}
	endsOf := func(name string) (of []string) {
		for _, e := range s.told("default", "Node", name) {
			if slices.Contains(slices.Collect(maps.Values(ends)), e.Reason) {
				of = append(of, e.Reason)
			}
		}
		return of
	}
	// Nothing ends between what a leader says and its end: what is left waits for the test.
	count := func(h *handler) {
		for series, n := range h.totals("drains_total", "pods_total", "pods_cut_short_total") {
			counted[series] += n
		}
	}

	first := next()
	s.reserve(slow)
	s.reserve(lost)
	s.send(s.body("health-reboot-scheduled", off.instance, startTime, ahead()))
	s.warn(quick, 2*time.Minute)
	s.eventually("one drain has ended, and three have begun", func() bool {
		return first.episode(quick).Node != "" && len(endsOf(quick.name)) > 0 && len(s.requests("slow")) > 0 && len(s.requests("lost")) > 0 && len(s.requests("kept")) > 0
	})
	anna.reads(first, 0, slow, lost, off)
	count(first)
	first.kill()
	second := next()
	_, err := s.kube.CoreV1().Pods(s.name).Patch(s.ctx, "slow", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually("the second drain has ended", func() bool { return second.episode(slow).Outcome != "" && len(endsOf(slow.name)) > 0 })
	anna.reads(second, exitUnknown, lost, off)
	count(second)
	second.kill()
	third := next()
	s.must(s.aws.SetInstanceState(lost.instance, "terminated"))
	s.send(s.body("state-change-terminated", lost.instance))
	s.send(s.body("health-reboot-scheduled", off.instance, "upcoming", "closed"))
	s.eventually("two more have ended", func() bool {
		return third.episode(lost).Outcome != "" && third.episode(off).Outcome != "" && len(endsOf(lost.name)) > 0 && len(endsOf(off.name)) > 0
	})
	s.warn(missed, 110*time.Second)
	s.warn(cut, 110*time.Second)
	s.eventually("two have begun", func() bool { return len(s.requests("missed")) > 0 && len(s.requests("cut")) > 0 })
	anna.reads(third, exitLost, missed, cut)
	count(third)
	third.kill()
	last := next()
	s.eventually("all have ended", func() bool { return last.episode(missed).Outcome != "" && last.episode(cut).Outcome != "" })
	s.eventually("no message is left", func() bool { return len(s.aws.Messages(queueName)) == 0 })
	outcomes := anna.reads(last, exitLost)
	count(last)

	// What the log says when an episode ends, once in all logs.
	logged := map[string]told{}
	for _, h := range leaders {
		for _, line := range h.logged("episode") {
			number := func(key string) int {
				n, _ := line[key].(float64)
				return int(n)
			}
			cut, _ := line["cutShort"].([]any)
			name, outcome := fmt.Sprint(line["node"]), fmt.Sprint(line["outcome"])
			if _, twice := logged[name]; twice {
				t.Errorf("the episode of node %s is logged twice", name)
			}
			logged[name] = told{outcome, podsOf(&overview.Counts{
				Evicted: number("evicted"), Forced: number("forced"), Ended: number("ended"), Missed: number("missed"), Lost: number("lost"),
				Unconfirmed: number("unconfirmed"), Cut: len(cut),
			})}
		}
	}
	if diff := cmp.Diff(want, logged); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
	// What report has said under the leader of each end, and what the last report says of all.
	if diff := cmp.Diff(want, anna.reported); diff != "" {
		t.Errorf("the reports of all leaders together (-want +got):\n%s", diff)
	}
	for name, is := range want {
		if outcomes[name] != is.Outcome {
			t.Errorf("the last report says %q of node %s, want %q", outcomes[name], name, is.Outcome)
		}
	}
	_, each, _ := strings.Cut(last.body(last.metrics, "/"), `id="each"`)
	for name, is := range want {
		_, row, _ := strings.Cut(each, "<bdi>"+name+"</bdi>")
		if row, _, _ = strings.Cut(row, "</tr>"); !strings.Contains(row, ">"+is.Outcome+"</td>") {
			t.Errorf("the page does not say that node %s is %s: %s", name, is.Outcome, row)
		}
	}
	// The nodes, the Events and the webhook.
	posted := map[string][]string{}
	s.eventually("the webhook is called for each end", func() bool { return len(hook.calls()) >= 5 })
	for _, c := range hook.calls() {
		phase, name, _ := strings.Cut(strings.TrimSpace(c.body), " ")
		posted[name] = append(posted[name], phase)
	}
	for name, is := range want {
		state, phases := is.Outcome, []string{is.Outcome}
		if is.Outcome == "called-off" {
			state, phases = "", nil
		}
		if got := s.getNode(name).Labels["node-termination-handler/state"]; got != state {
			t.Errorf("the state of node %s is %q, want %q", name, got, state)
		}
		if diff := cmp.Diff(phases, posted[name]); diff != "" {
			t.Errorf("the webhook about node %s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{ends[is.Outcome]}, endsOf(name)); diff != "" {
			t.Errorf("the Events about the end of node %s (-want +got):\n%s", name, diff)
		}
	}
	wantCounted := map[string]float64{
		"drains_total in-time": 3, "drains_total missed": 1, "drains_total gone": 1, "drains_total called-off": 1, "pods_total evicted": 3, "pods_total missed": 1, "pods_total lost": 1,
		"pods_cut_short_total": 1,
	}
	if diff := cmp.Diff(wantCounted, counted); diff != "" {
		t.Errorf("the metrics of all leaders together (-want +got):\n%s", diff)
	}
}

// The exit statuses of report that docs/status.md names.
const (
	exitLost    = 3
	exitUnknown = 4
)

// An onlooker is a person who runs status and report under each leader.
type onlooker struct {
	*person
	leaders  int             // so far
	reported map[string]told // by the leader under which each drain has ended
}

// reads compares what status says with the drains that are in progress, each with one pod left, and adds to what was
// reported. exit is the exit status of report; outcomes are how it says that all drains have ended.
func (p *onlooker) reads(h *handler, exit int, left ...node) (outcomes map[string]string) {
	s := p.s
	s.Helper()
	s.eventually(fmt.Sprintf("the leader knows the pods of %d drains", len(left)), func() bool {
		shown := h.overview().Nodes
		return len(shown) == len(left) && !slices.ContainsFunc(shown, func(n overview.Node) bool { return n.Pods == nil })
	})
	o, _ := p.status()
	got, want := map[string]int{}, map[string]int{}
	for _, n := range left {
		want[n.name] = 1
	}
	for _, n := range o.Nodes {
		if got[n.Name] = -1; n.Pods != nil {
			got[n.Name] = n.Pods.Left
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("the pods that are left, by status (-want +got):\n%s", diff)
	}
	if n := h.metric("node_termination_handler_drains_in_progress"); int(n) != len(o.Nodes) {
		s.Errorf("%v drains are in progress by the metrics, %d by status", n, len(o.Nodes))
	}
	if leader := fmt.Sprintf("leader-%d", p.leaders); o.Source != overview.Leader || o.Leader != leader || o.Transitions != p.leaders {
		s.Errorf("status: %q leads, after %d others, by the %s; want %s", o.Leader, o.Transitions, o.Source, leader)
	}
	p.leaders++

	code, out, errOut := p.run("report", "--since", "1h", "-o", "json")
	var report overview.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exit {
		s.Errorf("report: status %d, want %d: %v, %s%s", code, exit, err, out, errOut)
	}
	outcomes = map[string]string{}
	for _, e := range report.Episodes {
		outcomes[e.Node] = e.Outcome
		if e.Known == overview.AsCarried { // an earlier leader has told of it
			if got, want := (told{e.Outcome, podsOf(e.Pods)}), p.reported[e.Node]; got != want {
				s.Errorf("report: node %s carries %+v, and its leader has told of %+v", e.Node, got, want)
			}
			continue
		}
		if _, twice := p.reported[e.Node]; twice {
			s.Errorf("report: the drain of node %s has ended twice", e.Node)
		}
		p.reported[e.Node] = told{e.Outcome, podsOf(e.Pods)}
	}
	return outcomes
}

// podsOf says what became of pods.
func podsOf(c *overview.Counts) string {
	if c == nil {
		return ""
	}
	var all []string
	for _, is := range []struct {
		n    int
		what string
	}{{c.Evicted - c.Cut, "evicted"}, {c.Forced, "forced"}, {c.Ended, "ended"}, {c.Missed, "missed"}, {c.Lost, "lost"}, {c.Unconfirmed, "unconfirmed"}, {c.Cut, "cut"}} {
		if is.n > 0 {
			all = append(all, fmt.Sprint(is.n, " ", is.what))
		}
	}
	return strings.Join(all, ", ")
}

// totals are the counters of some names, summed by their label outcome or how; those at zero are left out.
func (h *handler) totals(names ...string) map[string]float64 {
	all := map[string]float64{}
	label := regexp.MustCompile(`(?:outcome|how)="([^"]*)"`)
	for line := range strings.Lines(h.body(h.metrics, "/metrics")) {
		for _, name := range names {
			rest, ok := strings.CutPrefix(line, "node_termination_handler_"+name+"{")
			if !ok {
				continue
			}
			labels, value, _ := strings.Cut(rest, "} ")
			var n float64
			if _, err := fmt.Sscan(value, &n); err != nil || n == 0 {
				continue
			}
			if match := label.FindStringSubmatch(labels); match != nil {
				name += " " + match[1]
			}
			all[name] += n
		}
	}
	return all
}
