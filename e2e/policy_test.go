package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/e2e/awssim"
	"github.com/node-termination-handler/node-termination-handler/e2e/tier"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A policyOnDisk is a policy file that a scenario writes, in the way of the kubelet: whoever reads
// finds the one content or the other.
type policyOnDisk struct {
	*scenario
	path string
}

func (s *scenario) policy(lines ...string) policyOnDisk {
	s.Helper()
	p := policyOnDisk{s, filepath.Join(s.TempDir(), "policy.yaml")}
	p.write(lines...)
	return p
}

func (p policyOnDisk) write(lines ...string) {
	p.Helper()
	p.must(os.WriteFile(p.path+".new", []byte(strings.Join(append([]string{"version: 1"}, lines...), "\n")+"\n"), 0o600))
	p.must(os.Rename(p.path+".new", p.path))
}

// awaitEvent waits for an Event about a node whose message has the text.
func (s *scenario) awaitEvent(n node, text string) {
	s.Helper()
	s.eventually("an Event about the node says "+text, func() bool {
		return slices.ContainsFunc(s.told("default", "Node", n.name), func(e corev1.Event) bool { return strings.Contains(e.Message, text) })
	})
}

// policiesRead is how many contents of the policy file have come into force.
func (h *handler) policiesRead() int {
	return strings.Count(h.log.String(), "the policy file is in force")
}

func TestAPolicyFileDecidesAndIsReadAgain(t *testing.T) {
	s := newScenario(t)
	nodes := s.nodes(4)
	s.deployment("web", 4)
	for _, n := range nodes[:3] {
		s.patchNode(n.name, map[string]any{"metadata": map[string]any{"labels": map[string]any{"team": "batch"}}})
	}
	file := s.policy("nodes:", "- {name: batch, kinds: [rebalance], nodes: team=batch, do: ignore}")
	h := s.alone("--policy-file="+file.path, "--emit-kubernetes-events=true")
	recommend := func(n node) string { return s.send(s.body("rebalance-recommendation", n.instance)) }
	const valid = "node_termination_handler_policy_valid"
	byRule := func(rule string, action decision.Action) float64 {
		return h.metric(`node_termination_handler_rule_decisions_total{action="` + action.String() + `",rule="` + rule + `"}`)
	}

	ignored, drained := recommend(nodes[0]), recommend(nodes[3])
	s.awaitDeleted(soon, ignored, drained)
	s.untouched(nodes[0], 1)
	s.eventually("the node without the label is drained", func() bool { return s.state(nodes[3]) == cluster.StateDrained })
	if n, m := byRule("batch", decision.Drop), byRule(decision.RuleDrain, decision.Drain); n < 1 || m < 1 || h.metric(valid) != 1 {
		t.Errorf("%v and %v decisions, valid %v", n, m, h.metric(valid))
	}

	// Another content counts.
	file.write("nodes:", "- {name: batch-cordons, kinds: [rebalance], nodes: team=batch, do: cordon}")
	s.eventually("the changed file is in force", func() bool { return h.policiesRead() == 2 })
	s.awaitDeleted(soon, recommend(nodes[1]))
	s.eventually("the node is cordoned, and that is all", func() bool { return s.cordoned(nodes[1].name) && s.state(nodes[1]) == string(intent.Cordoned) })
	if on := s.podsOn(nodes[1].name); len(on) == 0 {
		t.Error("the node lost its pods")
	}
	if i := s.intent(nodes[1]); len(i.Entries) != 1 || i.Entries[0].Rule != "batch-cordons" {
		t.Errorf("intent %+v", i)
	}
	s.awaitEvent(nodes[1], "by rule batch-cordons")

	// A mistake changes nothing, and is told.
	file.write("nodes:", "- {name: batch, kinds: [rebalance], nodes: team=batch, do: remove}")
	s.eventually("the mistake is told", func() bool { return h.metric(valid) == 0 && strings.Contains(h.log.String(), "line 3") })
	s.awaitDeleted(soon, recommend(nodes[2]))
	s.eventually("the rules of before are in force", func() bool { return s.state(nodes[2]) == string(intent.Cordoned) })
	if h.get(h.probes, "/readyz") != 200 {
		t.Error("a mistake in the file makes the handler not ready")
	}

	// Who starts with a mistake does not start.
	second := s.replica()
	second.run("--policy-file=" + file.path)
	s.eventually("a handler that starts with it ends", second.isExited)
	if log := second.log.String(); !strings.Contains(log, "line 3") || !strings.Contains(log, "remove") {
		t.Errorf("it says %s", log)
	}
}

func TestWhatWaitsForItsRuleStandsOnTheNode(t *testing.T) {
	tier.Full(t, "30 s; internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 1)
	file := s.policy("nodes:", "- {name: late, kinds: [scheduled-change], do: drain, at: start-30m}")
	h := s.leader("--policy-file="+file.path, "--node-termination-grace-period=5")
	change := s.send(s.body("health-reboot-scheduled", n.instance, "Fri, 27 Nov 2026 06:00:00 GMT", startIn(10*time.Hour)))
	s.awaitDeleted(soon, change)
	s.eventually("the node waits", func() bool { return s.state(n) == cluster.StateWaiting })
	s.untouchedButWaiting(n)
	h.awaitWait(n, overview.Window, "rule late lets the drain begin at")
	if !strings.Contains(h.body(h.probes, "/readyz"), "drains held back: 1 as their rules say") {
		t.Errorf("readyz: %s", h.body(h.probes, "/readyz"))
	}
	h.kill()
	s.leader("--policy-file=" + file.path)
	s.throughout(3*time.Second, "the next leader waits too", func() bool { return !s.cordoned(n.name) && s.state(n) == cluster.StateWaiting })

	// Another rule lets it begin at once.
	file.write("nodes:", "- {name: now, kinds: [scheduled-change], do: drain}")
	s.eventually("it begins", func() bool { return s.cordoned(n.name) })
	s.eventually("it is drained", func() bool { return s.state(n) == cluster.StateDrained })
	if i := s.intent(n); i.Entries[0].Rule != "now" {
		t.Errorf("intent %+v", i)
	}
}

// untouchedButWaiting checks that a node carries what it waits for, and that nothing else happened to it.
func (s *scenario) untouchedButWaiting(n node) {
	s.Helper()
	i := s.intent(n)
	if got := s.getNode(n.name); got.Spec.Unschedulable || len(got.Spec.Taints) > 0 || len(s.podsOn(n.name)) == 0 {
		s.Errorf("node %s was touched: %+v", n.name, got.Spec)
	}
	if len(i.Entries) != 1 || i.Entries[0].Rule != "late" || i.Entries[0].NotBefore.IsZero() || i.Entries[0].Code == "" {
		s.Errorf("node %s carries %+v", n.name, i)
	}
}

func TestPodsLeaveInTheOrderOfTheirRules(t *testing.T) {
	tier.Full(t, "50 s; internal/drain plays the turns in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	with := func(key, value string, grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = map[string]string{key: value}
			p.Spec.TerminationGracePeriodSeconds = &grace
		}
	}
	annotated := func(p *corev1.Pod) { p.Annotations = map[string]string{"node-termination-handler/leave": "last"} }
	const grace = 2
	s.pod("lobby", n.name, with("role", "lobby", grace))
	s.pod("web", n.name, with("role", "web", grace))
	s.pod("db", n.name, with("role", "db", grace))
	s.pod("job", n.name, with("batch.kubernetes.io/job-name", "nightly", grace))
	s.pod("owners", n.name, with("role", "web", grace), annotated)
	agents := s.daemonSet("agent", func(t *corev1.PodTemplateSpec) {
		t.Labels["role"] = "shipper"
		t.Spec.TerminationGracePeriodSeconds = new(int64(grace)) // else its last moment comes first on a slow machine
	})
	file := s.policy(
		"pods:",
		"- {name: lobby, pods: role=lobby, leave: first}",
		"- {name: databases, pods: role=db, namespaces: ["+s.name+"], leave: after, order: 5}",
		"- {name: jobs, pods: batch.kubernetes.io/job-name, leave: last}",
		"- {name: shippers, daemonsets: true, pods: role=shipper, leave: end}",
	)
	s.alone("--policy-file=" + file.path)
	// A pod of a DaemonSet that is made in the second of the cordon is taken for one that came after it.
	s.throughout(2*time.Second, "the agent runs", func() bool { return s.podExists(agents[0]) })
	pulse := s.feel()
	message, deadline := s.warn(n, 80*time.Second)
	s.awaitDeleted(soon, message)
	asked := func(pod string) time.Time {
		requests := s.requests(pod)
		if len(requests) == 0 {
			t.Fatalf("pod %s was never asked to leave", pod)
		}
		return requests[0].at
	}
	if first, gone := asked("web"), s.gone("lobby"); first.Before(gone) {
		t.Errorf("web was asked at %s, the pod that leaves first was gone at %s", first, gone)
	}
	if first, gone := asked("db"), s.gone("web"); first.Before(gone) {
		t.Errorf("db was asked at %s, web was gone at %s", first, gone)
	}
	if first, gone := asked(agents[0]), s.gone("db"); first.Before(gone) {
		t.Errorf("the agent was asked at %s, db was gone at %s", first, gone)
	}
	for _, pod := range []string{"job", "owners"} {
		left := deadline.Sub(asked(pod))
		if left > (grace+8)*time.Second {
			t.Errorf("%s was asked %s before the deadline, want about %d s", pod, left, grace+5)
		}
		pulse.before(asked(pod), deadline.Add(-grace*time.Second), "what is left was its grace: %s was asked", pod)
		if r := s.requests(pod)[0]; !r.evicts {
			t.Errorf("%s was deleted, not evicted", pod)
		}
	}
}

func TestALifecycleHookDoesNotWaitForWhatARuleIgnores(t *testing.T) {
	tier.Full(t, "internal/controller plays it in virtual time")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 1)
	file := s.policy("nodes:", "- {name: hands-off, kinds: [asg-terminate], do: notify}")
	h := s.alone("--policy-file="+file.path, "--emit-kubernetes-events=true")
	action := s.scaleIn(n)
	s.send(s.hookBody("asg-terminate-lifecycle", action))
	s.eventually("the hook is completed", func() bool { return s.action(action.Token).Outcome == awssim.Completed })
	s.untouched(n, 1)
	s.awaitEvent(n, "rule hands-off leaves the node as it is")
	if got := h.metric(`node_termination_handler_rule_decisions_total{action="complete",rule="hands-off"}`); got != 1 {
		t.Errorf("%v decisions", got)
	}
}

func TestExplainNamesTheRuleThatDecides(t *testing.T) {
	tier.Full(t, "internal/tool has it")
	s := newScenario(t)
	n := s.nodes(1)[0]
	s.deployment("web", 1)
	file := s.policy(
		"nodes:",
		"- {name: batch, kinds: [rebalance], nodes: team="+s.name+", do: ignore}",
		`- {name: reboots, kinds: [scheduled-change], codes: ["*_REBOOT_*"], do: drain, at: start-30m}`,
		"- {name: gpu, kinds: [rebalance], do: cordon}",
		`- {name: one-by-one, kinds: [scheduled-change], codes: ["*_STOP_*"], do: drain, limit: {nodes: 1}}`,
	)
	with := "--policy-file=" + file.path
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"a rule that cordons": {[]string{"rebalance"}, []string{
			"batch    does not match: another node", "reboots  does not match: another kind", "gpu      decides: cordon",
			"the node would be cordoned, and its pods would stay (gpu)",
		}},
		"a rule that waits": {[]string{"health", "--code=AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", "--start=10h"}, []string{
			"decides: drain at start-30m", "the drain would begin at 2", "by rule reboots", "evicted",
		}},
		"a rule with a limit": {[]string{"health", "--code=AWS_EC2_INSTANCE_STOP_SCHEDULED"}, []string{
			"one-by-one  decides: drain, limit 1", "limit of one-by-one: nodes that are out of use now: ", " of at most 1", // of all scenarios
		}},
		"another code": {[]string{"health", "--code=AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"}, []string{
			"reboots     does not match: another code", "drain       decides: drain",
		}},
	} {
		status, out, errOut := s.run("", slices.Concat([]string{"explain"}, tt.args, []string{"--node", n.name, with})...)
		if status != 0 {
			t.Errorf("%s: exit status %d, %s", name, status, errOut)
		}
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
	}
	if finding := s.findingWith("policy", with); finding.Status != "warning" || !strings.Contains(finding.What, "rule batch selects none") {
		t.Errorf("doctor: %+v", finding)
	}
	file.write("nodes:", "- {name: batch}")
	if finding := s.findingWith("policy", with); finding.Status != "failed" || !strings.Contains(finding.What, "nodes[0].do: is missing") {
		t.Errorf("doctor: %+v", finding)
	}
	if status, _, errOut := s.run("", "explain", "--node", n.name, with); status != 1 || !strings.Contains(errOut, "line 3") {
		t.Errorf("explain with a wrong file: exit status %d, %s", status, errOut)
	}
}

// findingWith is one check of doctor with further arguments.
func (s *scenario) findingWith(id string, args ...string) finding {
	s.Helper()
	all, _ := s.findings(args...)
	at := slices.IndexFunc(all, func(f finding) bool { return f.ID == id })
	if at < 0 {
		s.Fatalf("doctor has no check %s", id)
	}
	return all[at]
}
