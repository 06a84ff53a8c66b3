// Package sample has overviews and histories for tests and pictures of what shows them. Nothing in it is random:
// the same arguments give the same values.
package sample

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// waits are what the nodes of a storm wait for, one after another.
func waits(i int, now time.Time) []overview.Wait {
	until := now.Add(time.Duration(20+i%60) * time.Second)
	pod := fmt.Sprintf("shop/web-7d9c5b6f4-%05d", i)
	all := []overview.Wait{
		{Cause: overview.Budget, Name: "shop/web", Why: "allows no disruption", Pods: 1 + i%4, Pod: pod, Until: until},
		{Cause: overview.Grace, Why: "pods are stopping", Pods: 2, Pod: pod, Until: until},
		{
			Cause: overview.TwoBudgets, Why: "two PodDisruptionBudgets cover the pod",
			Pods: 1, Pod: "data/kafka-0", Until: until,
		},
		{Cause: overview.Finalizer, Name: "example.com/backup", Why: "keeps a pod that has ended", Pods: 1, Pod: "data/db-1"},
		{Cause: overview.Volume, Name: "pvc-5f0b1d2c", Why: "is still attached"},
		{Cause: overview.Target, Name: "k8s-shop-web-0a1b2c3d4e", Why: "still sends requests to the machine"},
		{Cause: overview.FailingHook, Name: "workers/drain", Why: "is not completed yet: no answer in time"},
		{Cause: overview.Kubelet, Why: "does not say what became of the pods", Pods: 3},
	}
	first := all[(i/3)%len(all)]
	if i%5 == 0 {
		return []overview.Wait{first, all[(i/3+1)%len(all)]}
	}
	return []overview.Wait{first}
}

// Node is the name of the i-th node.
func Node(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i/62500, i/250%250, i%250)
}

var kinds = []string{
	"spot-interruption", "spot-interruption", "spot-interruption", "asg-terminate", "rebalance-recommendation",
	"scheduled-change", "state-change", "capacity-block-expiration",
}

// Storm is a storm of that many drains, seen a minute and a half after most of its notices, and a day of so many
// episodes before it.
func Storm(now time.Time, drains, episodes int) (overview.Overview, overview.History) {
	o := overview.Overview{
		At: now, Source: overview.Leader, Leader: "node-termination-handler-6c9f7d5b8-x2x7k",
		Queue: &overview.Queue{
			InFlight: drains, Oldest: now.Add(-96 * time.Second), LastReceive: now.Add(-800 * time.Millisecond),
		},
		Policy: &overview.Policy{Rules: 6},
	}
	var last []overview.Node // without a deadline
	for i := range drains {
		n := node(i, now)
		if n.Deadline.IsZero() {
			last = append(last, n)
		} else {
			o.Nodes = append(o.Nodes, n)
		}
		if n.Stage == overview.HeldBack {
			o.HeldBack = "drains wait, because max-unready-nodes (20%) are not ready or cordoned"
		}
	}
	slices.SortStableFunc(o.Nodes, func(a, b overview.Node) int { return a.Deadline.Compare(b.Deadline) })
	o.Nodes = append(o.Nodes, last...)
	return o, overview.History{At: now, Since: now.Add(-31 * time.Hour), Episodes: past(now, episodes)}
}

func node(i int, now time.Time) overview.Node {
	kind := kinds[i%len(kinds)]
	age := time.Duration(60+(i*7)%45) * time.Second
	left := 120*time.Second - age
	n := overview.Node{
		Name: Node(i), Instance: fmt.Sprintf("i-%017x", 0xabc0000+i), Kind: kind, Stage: overview.Draining,
		Since: now.Add(-age), CordonedAt: now.Add(-age + 400*time.Millisecond), Deadline: now.Add(left),
		Pods:      &overview.Pods{Left: 1 + i%9, Forced: i % 3 / 2, Gone: 12 + i%20},
		LastAsked: now.Add(-age + time.Duration(3+i%40)*time.Second),
		WaitsFor:  waits(i, now),
	}
	switch kind {
	case "asg-terminate":
		n.Since = now.Add(-20 * time.Minute)
		n.CordonedAt, n.LastAsked = n.Since.Add(time.Second), n.Since.Add(time.Minute)
		n.Deadline = now.Add(time.Duration(15+i%20) * time.Minute)
		n.Rule = "drain batch gently"
		n.Hooks = []overview.Hook{{Group: "workers", Name: "drain", Deadline: n.Deadline}}
	case "rebalance-recommendation":
		n.Since, n.CordonedAt, n.Deadline = now.Add(-35*time.Minute), now.Add(-34*time.Minute), time.Time{}
		n.LastAsked = now.Add(-30 * time.Minute)
	case "scheduled-change":
		n.Since, n.CordonedAt, n.LastAsked = now.Add(-50*time.Hour), time.Time{}, time.Time{}
		n.Deadline, n.NotBefore = now.Add(30*time.Hour), now.Add(7*time.Hour)
		n.Stage, n.Pods.Gone, n.Pods.Forced = overview.HeldBack, 0, 0
		n.WaitsFor = []overview.Wait{{
			Cause: overview.Window, Name: "nights", Why: "the rule lets it begin later", Until: n.NotBefore,
		}}
		if i%16 == 5 {
			n.WaitsFor = []overview.Wait{{Cause: overview.MaxUnready, Why: "20% of the nodes are not ready or cordoned"}}
		}
	case "state-change":
		if i%16 == 6 {
			n.Deadline = now.Add(-time.Duration(5+i%30) * time.Second)
		}
	case "capacity-block-expiration":
		n.PodsGone, n.Stage = now.Add(-5*time.Second), overview.Detaching
		n.Pods = &overview.Pods{Gone: 22}
	}
	return n
}

func past(now time.Time, episodes int) []overview.Episode {
	all := make([]overview.Episode, 0, episodes)
	for i := range episodes {
		ended := now.Add(-time.Duration(i) * 24 * time.Hour / time.Duration(episodes))
		slack := float64(15 + (i*37)%90)
		e := overview.Episode{
			Node: Node(5000 + i), Instance: fmt.Sprintf("i-%017x", 0xdef0000+i), Kind: kinds[i%len(kinds)],
			Outcome: "drained", Known: overview.Everything, Began: ended.Add(-70 * time.Second), Ended: ended,
			CordonedAt: ended.Add(-69 * time.Second), FirstAsked: ended.Add(-68 * time.Second),
			LastAsked: ended.Add(-20 * time.Second), PodsGone: ended,
			Pods: &overview.Counts{Evicted: 20 + i%9, Forced: i % 13 / 12},
		}
		switch e.Kind {
		case "rebalance-recommendation":
			slack = -1
		case "scheduled-change":
			slack = float64(7200 + (i*997)%80000)
		case "asg-terminate":
			slack = float64(300 + (i*91)%2400)
		}
		if i%29 == 3 {
			slack, e.Outcome = -float64(3+i%25), "missed"
			e.Pods.Missed = 1 + i%3
			e.Refused = []overview.Refusal{{Cause: overview.Budget, Name: "shop/web", Why: "allows no disruption", Pods: 2}}
		}
		if e.Kind != "rebalance-recommendation" || e.Outcome == "missed" {
			e.Slack, e.Deadline = &slack, ended.Add(time.Duration(slack*float64(time.Second)))
		}
		all = append(all, e)
	}
	return all
}

// Attacks are names that would do harm on a page that trusts them.
var Attacks = []string{
	`<script>window.harmed=1</script>`,
	`"><img src=x onerror="window.harmed=1">`,
	`' onmouseover='window.harmed=1' x='`,
	`</title></style></script><svg onload=window.harmed=1>`,
	`<!--`, `-->`, `]]>`, `{{.}}`, `${window.harmed=1}`,
	`javascript:window.harmed=1`,
	`<a href="javascript:window.harmed=1">x</a>`,
	`<iframe src="https://example.com/"></iframe><link rel=stylesheet href=https://example.com/x.css>`,
	`<base href="https://example.com/"><form action="https://example.com/">`,
	`<meta http-equiv=refresh content="0;url=https://example.com/">`,
	"a\u202egpj.exe\u2066\u2067\u200f", "nul\x00esc\x1b[31m\r\n\tbad\xff\xfeutf8",
	strings.Repeat("w", 253), strings.Repeat("long name ", 400), "k9\" class=\"late",
}

// Hostile is an overview and a history that have the Attacks everywhere where somebody else chooses the text.
func Hostile(now time.Time) (overview.Overview, overview.History) {
	o, h := Storm(now, len(Attacks)*2, len(Attacks)*2)
	text := func(i int) string { return Attacks[i%len(Attacks)] }
	o.Leader, o.HeldBack, o.Missing, o.Policy.Problem = text(0), text(1), text(2), text(3)
	for i := range Attacks {
		o.Unscheduled = append(o.Unscheduled, overview.Unscheduled{Node: text(i), Pods: i, Why: text(i + 1)})
	}
	for i := range o.Nodes {
		n := &o.Nodes[i]
		n.Name, n.Instance, n.Kind, n.Rule = text(i), text(i+1), text(i+2), text(i+3)
		n.Stage = overview.Stage(text(i + 4))
		n.Hooks = []overview.Hook{{Group: text(i), Name: text(i + 1)}}
		n.WaitsFor = []overview.Wait{{
			Cause: overview.Cause(text(i)), Name: text(i + 1), Why: text(i + 2), Pods: 1, Pod: text(i + 3),
		}}
	}
	for i := range h.Episodes {
		e := &h.Episodes[i]
		e.Node, e.Instance, e.Kind, e.Rule, e.Outcome = text(i), text(i+1), text(i+2), text(i+3), text(i+4)
		e.Refused = []overview.Refusal{{Cause: overview.Cause(text(i)), Name: text(i + 1), Why: text(i + 2)}}
	}
	return o, h
}
