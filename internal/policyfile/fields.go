package policyfile

import (
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// written is a file as it is written down.
type written struct {
	File
	windows []*decision.Window
}

func (w *written) value() value {
	var version int
	return object("",
		required("version", integer(&version, 1, "1"), "The version of the format."),
		optional("windows", windows(&w.windows), "Times of the day at which drains may begin. Rules name them."),
		optional("nodes", objects(&w.Rules.Nodes, maxRules, nodeRule),
			"What is done with a node that gets a notice: the first rule that matches decides. If none does, the options "+
				"decide."),
		optional("pods", objects(&w.Rules.Pods, maxRules, podRule),
			"When the pods of a node leave: the first rule that matches decides. If none does, the pod leaves with most "+
				"others."),
		optional("tests", objects(&w.Tests, maxTests, test),
			"What is expected of the rules: node-termination-handler policy test runs them."),
	)
}

func window(w *decision.Window, days *[]string) value {
	return object("A time of the day, on some days of the week.",
		optional("days", texts(days, weekday), "The days on which it opens. Default: all."),
		required("from", clock(&w.From, 24*60-1), "When it opens, by the clock of its zone: HH:MM."),
		required("to", clock(&w.To, 24*60),
			"When it closes: HH:MM, or 24:00. If that is not later than from, it closes on the next day."),
		optional("zone", zone(&w.Zone), "The time zone, as the IANA names it. Default: UTC."),
	)
}

func nodeRule(rule *decision.NodeRule) value {
	rule.Before = -1 // now, unless at says otherwise
	var within, force, first string
	return object("A rule for nodes.",
		required("name", name(&rule.Name, "stands for an option or a label", decision.ReservedRules...),
			"Its name, which no other rule for nodes has."),
		optional("kinds", texts(&rule.Kinds, kind), "The kinds of notice that the rule is about. Default: all but launches."),
		optional("codes", texts(&rule.Codes, pattern),
			"Patterns for the code of a scheduled change, such as *_REBOOT_*, or for the status checks that fail: instance, "+
				"system, or both: instance, system. * stands for any characters. A change that EC2 or the metadata lists, such "+
				"as instance-reboot, matches by the codes of AWS Health for it too, but for a system-maintenance, of which "+
				"nobody knows more. Needs kinds that have codes: "+
				kindsThat(hasCode)+". Default: any."),
		optional("nodes", texts(&rule.Nodes, labelSelector),
			"Label selectors of nodes: one of them has to match. Default: all nodes."),
		required("do", oneOf(&rule.Do, efforts...),
			"What is done with the node: ignore does nothing, notify tells of the notice, cordon keeps new pods away, "+
				"drain also makes its pods leave."),
		optional("at", begin(&rule.Before),
			"When the drain begins: now, or so long before the announced start, such as start-30m. Needs kinds with a "+
				"start: "+kindsThat(hasStart)+". Default: now."),
		optional("within", anyText(&within, "the name of a window"),
			"The window in which the drain begins, unless that would be too late. Not for kinds that are about minutes. "+
				"Default: any time."),
		optional("force", oneOf(&force, "deadline", never),
			"Whether pods are forced before the deadline: deadline or never. Default: deadline."),
		optional("grace", duration(&rule.Grace),
			"The grace period of the pods, in place of their own: a duration of whole seconds, such as 60s."),
		optional("grace-at-most", duration(&rule.MostGrace),
			"The longest grace period of a pod: a longer one is cut to this."),
		optional("budgets", percentage(&rule.BudgetPercent),
			"How much of the notice PodDisruptionBudgets and webhooks may keep a pod whose grace period does not fit into it, "+
				"such as 30%. After that it is deleted with what is left; 0%: once its eviction was refused. Default: 50%."),
		optional("by", oneOf(&rule.By, decision.ByHandler, decision.ByKarpenter),
			"Who drains a node of Karpenter's: karpenter needs the option drain-by-karpenter. Default: karpenter with that "+
				"option, else handler."),
		optional("limit", limit(&rule.Limit),
			"How many of the nodes that the rule selects may be not ready or cordoned before further drains wait. Not for "+
				"kinds that are about minutes. Default: no limit but that of the option max-unready-nodes."),
		optional("first", oneOf(&first, "replacement"),
			"replacement: another instance of the node's Auto Scaling group is ready before the drain begins. Needs a "+
				"kind that leaves the time: "+kindsThat(decision.Replaceable)+". Default: none is waited for."),
		optional("wait", duration(&rule.Limit.Wait),
			"The longest wait for the limit or the replacement, such as 2h. Needs limit or first. Default: as long as the "+
				"drain can wait; for a replacement 15m."),
	)
}

func limit(l *decision.Limit) value {
	return object("",
		required("nodes", share(&l.Nodes),
			"How many nodes of a group may be not ready or cordoned, by whomever: a number, or a percentage of the group, "+
				"rounded down, and one at least."),
		optional("per", labelKey(&l.Per),
			"The key of a label, such as topology.kubernetes.io/zone: nodes with the same value, of those that the rule "+
				"selects, are one group. Default: these are all one group."),
	)
}

func podRule(rule *decision.PodRule) value {
	return object("A rule for pods.",
		required("name", name(&rule.Name, "stands for no rule", noRule),
			"Its name, which no other rule for pods has."),
		optional("pods", texts(&rule.Pods, labelSelector),
			"Label selectors of pods: one of them has to match. Default: all pods."),
		optional("annotations", texts(&rule.Annotations, labelSelector), "The same for annotations of the pods."),
		optional("namespaces", texts(&rule.Namespaces, pattern),
			"Patterns for the namespaces of the pods, such as data-*. Default: all."),
		optional("daemonsets", boolean(&rule.DaemonSets),
			"true: the rule is about pods of DaemonSets only. Only such a rule makes them leave."),
		required("leave", oneOf(&rule.Leave, departures...),
			"When the pod leaves. now: with most others. first: before them. after: after them, by its order. end: after "+
				"all others. last: as late as its grace period allows. surged: once a replacement is ready. never: not at all."),
		optional("order", integer(&rule.Order, 100, "1 to 100"),
			"The place among those that leave after the others. Needs leave: after. Default: 1."),
	)
}

func test(t *Test) value {
	t.Pod = &decision.Pod{Namespace: "default"}
	return object("A test of the rules: of a notice for a node, or of a pod.",
		required("name", anyText(&t.Name, "any text"), "What the test is about, for people."),
		optional("kind", kind(&t.Kind), "The kind of the notice. Needed in a test of a notice."),
		optional("code", anyText(&t.Code, "any text"), "The code of the scheduled change, or the status checks that fail."),
		optional("labels", labels(&t.Labels), "The labels of the node."),
		optional("now", moment(&t.Now),
			"When the notice comes, such as 2026-03-04T12:00:00Z. Needed where begin is expected."),
		optional("start", moment(&t.Start), "When the scheduled change begins."),
		optional("pod", pod(t.Pod), "The pod. Needed in a test of a pod."),
		required("expect", outcome(&t.Want), "What is to come out. What is not given is not compared."),
	)
}

func pod(p *decision.Pod) value {
	return object("",
		optional("namespace", anyText(&p.Namespace, "any text"), "Its namespace. Default: default."),
		optional("labels", labels(&p.Labels), "Its labels."),
		optional("annotations", labels(&p.Annotations), "Its annotations."),
		optional("daemonset", boolean(&p.DaemonSet), "Whether it is of a DaemonSet. Default: false."),
	)
}

func outcome(o *Outcome) value {
	return object("",
		optional("do", oneOf(&o.Do, words(efforts)...), "What is done with the node."),
		optional("rule", anyText(&o.Rule, "the name of a rule"),
			"The name of the rule that decides; for a pod none if there is no rule. Options and a label are the rules "+
				strings.Join(decision.ReservedRules, ", ")+"."),
		optional("begin", beginMoment(&o.Begin), "When the drain begins: now, or a time."),
		optional("leave", oneOf(&o.Leave, words(departures)...), "When the pod leaves, or never."),
	)
}
