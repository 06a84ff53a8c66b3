package policyfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// refuseIf refuses those of the keys, which spaces separate, that the object has.
func (p place) refuseIf(r *reader, wrong bool, keys, why string) {
	for key := range strings.FieldsSeq(keys) {
		if wrong && p.has(key) {
			p.refuse(r, key, "%s", why)
		}
	}
}

// refuse says what is wrong with a key of the object.
func (p place) refuse(r *reader, key, format string, args ...any) {
	n, path := p.of(key)
	r.refuse(n, path, format, args...)
}

// says reports whether the key has that text.
func (p place) says(key, text string) bool { return p.has(key) && p.keys[key].Value == text }

func (p place) line(key string) int {
	n, _ := p.of(key)
	return n.Line
}

// check finds what is wrong with values that are right by themselves.
func (w *written) check(r *reader) {
	names := map[string]int{}
	for _, rule := range w.nodes {
		once(r, names, rule.place, rule.Name)
		rule.check(r, w)
	}
	names = map[string]int{}
	for _, rule := range w.pods {
		once(r, names, rule.place, rule.Name)
		given := rule.place.says("leave", rule.Leave.String()) // else it was refused
		rule.place.refuseIf(r, given && rule.Leave != decision.LeaveAfter, "order", "has an effect only with leave: after")
	}
	for _, t := range w.tests {
		t.check(r, w)
	}
}

// once refuses a name that an earlier rule has.
func once(r *reader, seen map[string]int, p place, name string) {
	if name == "" {
		return // refused already
	}
	if line, again := seen[name]; again {
		p.refuse(r, "name", "%q is the name of the rule in line %d already", name, line)
		return
	}
	seen[name] = p.line("name")
}

func (rule *nodeRule) check(r *reader, w *written) {
	if slices.Contains(rule.Kinds, notice.Ignored) {
		return // a kind was refused, and the rest depends on it
	}
	p, about := rule.place, rule.about()
	none := func(is func(notice.Kind) bool) bool { return !slices.ContainsFunc(about, is) }
	only := func(is func(notice.Kind) bool) bool { return p.has("kinds") && all(about, is) }
	everyKind := all(kinds(), func(k notice.Kind) bool { return slices.Contains(about, k) })
	idle := func(do decision.Effort) bool { return rule.Do == do && p.says("do", do.String()) }
	noEffect := "has no effect with do: " + rule.Do.String()
	byKarpenter := p.says("by", string(decision.ByKarpenter))
	if rule.window != "" && w.window(rule.window) == nil {
		p.refuse(r, "within", "%s is not a window of this file%s", quoted(rule.window), w.windowNames(rule.window))
	}
	p.refuseIf(r, !only(hasCode), "codes",
		"needs kinds that have codes: give the rule kinds, and only of "+kindsThat(hasCode))
	p.refuseIf(r, rule.Before >= 0 && !only(hasStart), "at",
		"needs kinds with a start: give the rule kinds, and only of "+kindsThat(hasStart))
	p.refuseIf(r, none(canWait), "within limit",
		"has no effect, because none of the rule's kinds can wait; kinds that can: "+kindsThat(canWait))
	p.refuseIf(r, none(decision.Replaceable), "first", "has no effect, because none of the rule's kinds leaves the time; "+
		"kinds that do: "+kindsThat(decision.Replaceable))
	p.refuseIf(r, !p.has("limit") && !p.has("first"), "wait", "has no effect without limit or first")
	p.refuseIf(r, byKarpenter, "grace grace-at-most",
		"has no effect with by: karpenter, which gives each pod its own grace period")
	p.refuseIf(r, rule.force == never, "budgets", "has no effect with force: never")
	p.refuseIf(r, byKarpenter, "budgets", "has no effect with by: karpenter, which keeps each pod's own grace period")
	p.refuseIf(r, none(sharesNotice), "budgets", "has no effect, because none of the rule's kinds leaves budgets a share "+
		"of its notice; kinds that do: "+kindsThat(sharesNotice))
	p.refuseIf(r, idle(decision.Ignoring) || idle(decision.Notifying),
		"at within force grace grace-at-most budgets by limit first wait", noEffect)
	p.refuseIf(r, idle(decision.Cordoning), "force grace grace-at-most budgets by first", noEffect)
	p.refuseIf(r, idle(decision.Ignoring) && everyKind && !p.has("codes") && !p.has("nodes"), "do",
		"ignores every notice about every node: give the rule kinds or nodes")
}

// about are the kinds that the rule is about.
func (rule *nodeRule) about() []notice.Kind {
	if rule.place.has("kinds") {
		return rule.Kinds
	}
	return kinds()
}

func all[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(t T) bool { return !is(t) })
}

func (w *written) window(name string) *window {
	at := slices.IndexFunc(w.windows, func(v *window) bool { return v.Name == name })
	if at < 0 {
		return nil
	}
	return w.windows[at]
}

func (w *written) windowNames(given string) string {
	var names []string
	for _, v := range w.windows {
		names = append(names, v.Name)
	}
	if len(names) == 0 {
		return ", which has no windows"
	}
	return "; allowed: " + strings.Join(names, ", ") + didYouMean(given, names)
}

func (t *test) check(r *reader, w *written) {
	p := t.place
	if len(p.keys) == 0 {
		return // it is no map, which was refused
	}
	aboutPod := p.has("pod")
	switch {
	case aboutPod && p.has("kind"):
		p.refuse(r, "pod", "stands beside kind: a test is of a pod or of a notice")
		return
	case !aboutPod && !p.has("kind"):
		p.refuse(r, "", "needs kind or pod: a test is of a pod or of a notice")
		return
	case t.expected.node == nil:
		return // it was refused
	}
	var rules []string // of the test's sort
	if aboutPod {
		rules = append(rules, noRule)
		for _, rule := range w.pods {
			rules = append(rules, rule.Name)
		}
	} else {
		for _, rule := range w.nodes {
			rules = append(rules, rule.Name)
		}
		rules = append(rules, decision.ReservedRules...)
	}
	const ofNotice = "is for a test of a notice"
	known := t.Kind != notice.Ignored // else it was refused, or the test is of a pod
	p.refuseIf(r, aboutPod, "code labels now start", ofNotice)
	p.refuseIf(r, known && !hasCode(t.Kind), "code", "needs a kind that has codes: "+kindsThat(hasCode))
	p.refuseIf(r, known && !hasStart(t.Kind), "start", "needs a kind with a start: "+kindsThat(hasStart))
	t.expected.refuseIf(r, aboutPod, "do begin", ofNotice)
	t.expected.refuseIf(r, !aboutPod, "leave", "is for a test of a pod")
	t.expected.refuseIf(r, known && !p.has("now"), "begin",
		"needs now beside kind, so that the test says the same every day")
	if rule := t.Want.Rule; rule != "" && !slices.Contains(rules, rule) {
		t.expected.refuse(r, "rule", "%s is not a rule; allowed: %s%s", quoted(rule), some(rules), didYouMean(rule, rules))
	}
	if len(t.expected.keys) == 0 {
		r.refuse(t.expected.node, t.expected.path, "is empty: a test expects something")
	}
}

// some lists the first of many names.
func some(names []string) string {
	const most = 20
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// file is what was written, after it was checked.
func (w *written) file() File {
	var f File
	for _, v := range w.nodes {
		rule := v.NodeRule
		rule.Patient, rule.ReplaceFirst = v.force == never, v.first != ""
		if v.window != "" {
			rule.Within = &w.window(v.window).Window
		}
		f.Rules.Nodes = append(f.Rules.Nodes, rule)
	}
	for _, v := range w.pods {
		rule := v.PodRule
		if rule.Leave == decision.LeaveAfter {
			rule.Order = max(1, rule.Order)
		}
		f.Rules.Pods = append(f.Rules.Pods, rule)
	}
	for _, v := range w.tests {
		f.Tests = append(f.Tests, v.finished())
	}
	return f
}

func (t *test) finished() Test {
	done := t.Test
	done.Line = t.place.line("name")
	if t.place.has("pod") {
		done.Pod = &t.podAsked
	}
	if !t.Now.IsZero() && t.Want.Begin == t.Now.Format(time.RFC3339) {
		done.Want.Begin = beginsNow
	}
	return done
}

// warnings are about a file without mistakes.
func (w *written) warnings() Problems {
	var r reader
	taken := map[notice.Kind]string{} // the first rule that matches all nodes and codes
	everyPod := map[bool]string{}     // the same, for pods of DaemonSets and for others
	for _, rule := range w.nodes {
		var by []string // nothing is left by these
		for _, kind := range rule.about() {
			if name := taken[kind]; !slices.Contains(by, name) {
				by = append(by, name)
			}
		}
		if !slices.Contains(by, "") {
			rule.place.comesAfter(&r, rule.Name, strings.Join(by, " or "))
		}
		for _, kind := range rule.about() {
			if p := rule.place; taken[kind] == "" && !p.has("codes") && !p.has("nodes") {
				taken[kind] = p.named(rule.Name)
			}
		}
		rule.warn(&r)
	}
	for _, rule := range w.pods {
		every := everyPod[rule.DaemonSets]
		rule.place.comesAfter(&r, rule.Name, every)
		if p := rule.place; every == "" && !p.has("pods") && !p.has("annotations") && !p.has("namespaces") {
			everyPod[rule.DaemonSets] = p.named(rule.Name)
		}
	}
	for _, v := range w.windows {
		if !slices.ContainsFunc(w.nodes, func(n *nodeRule) bool { return n.window == v.Name }) {
			r.refuse(v.node, v.path, "is a window that no rule uses")
		}
	}
	r.wrong.sort()
	return r.wrong
}

func (p place) named(name string) string { return fmt.Sprintf("%s in line %d", name, p.line("name")) }

// comesAfter warns of a rule after one that matches everything; empty: there is none.
func (p place) comesAfter(r *reader, name, everything string) {
	if everything != "" {
		p.refuse(r, "name", "the rule %s never matches, because %s matches all that it would match", name, everything)
	}
}

// warn tells of kinds for which the rule says when, and that cannot wait for it.
func (rule *nodeRule) warn(r *reader) {
	others := func(than func(notice.Kind) bool) string {
		return named(rule.Kinds, func(k notice.Kind) bool { return !than(k) })
	}
	urgent, irreplaceable := others(canWait), others(decision.Replaceable)
	rule.place.refuseIf(r, urgent != "", "within limit", "has no effect on "+urgent+", which cannot wait")
	rule.place.refuseIf(r, irreplaceable != "", "first", "has no effect on "+irreplaceable)
}
