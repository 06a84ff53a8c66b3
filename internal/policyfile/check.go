package policyfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

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
		if rule.place.has("order") && rule.place.says("leave", rule.Leave.String()) && rule.Leave != decision.LeaveAfter {
			rule.place.refuse(r, "order", "has an effect only with leave: after")
		}
	}
	for _, t := range w.tests {
		t.check(r, w)
	}
}

// refuse says what is wrong with a key of the object.
func (p place) refuse(r *reader, key, format string, args ...any) {
	n, path := p.of(key)
	r.refuse(n, path, format, args...)
}

// says reports whether the key has that text.
func (p place) says(key, text string) bool { return p.has(key) && p.keys[key].Value == text }

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

func (p place) line(key string) int {
	n, _ := p.of(key)
	return n.Line
}

// about are the kinds that the rule is about.
func (rule *nodeRule) about() []notice.Kind {
	if !rule.place.has("kinds") {
		return kinds()
	}
	return rule.Kinds
}

func (rule *nodeRule) check(r *reader, w *written) {
	if slices.Contains(rule.Kinds, notice.Ignored) {
		return // a kind was refused, and the rest depends on it
	}
	rule.checkKinds(r)
	p := rule.place
	if p.has("wait") && !p.has("limit") && !p.has("first") {
		p.refuse(r, "wait", "has no effect without limit or first")
	}
	if p.has("within") && rule.window != "" && w.window(rule.window) == nil {
		p.refuse(r, "within", "%s is not a window of this file%s", quoted(rule.window), w.windowNames(rule.window))
	}
	rule.checkPods(r)
	rule.checkEffort(r)
}

// checkKinds finds keys that say nothing about any of the rule's kinds.
func (rule *nodeRule) checkKinds(r *reader) {
	p, about := rule.place, rule.about()
	if p.has("codes") && (!p.has("kinds") || !all(about, hasCode)) {
		p.refuse(r, "codes", "needs kinds that have codes: give the rule kinds, and only of %s", kindsThat(hasCode))
	}
	if rule.at.given && (!p.has("kinds") || !all(about, hasStart)) {
		p.refuse(r, "at", "needs kinds with a start: give the rule kinds, and only of %s", kindsThat(hasStart))
	}
	for _, key := range []string{"within", "limit"} {
		if p.has(key) && !slices.ContainsFunc(about, canWait) {
			p.refuse(r, key, "has no effect, because none of the rule's kinds can wait; kinds that can: %s", kindsThat(canWait))
		}
	}
	if p.has("first") && !slices.ContainsFunc(about, decision.Replaceable) {
		p.refuse(r, "first", "has no effect, because none of the rule's kinds leaves the time; kinds that do: %s",
			kindsThat(decision.Replaceable))
	}
}

// checkPods finds keys about how pods leave that another key takes the effect of.
func (rule *nodeRule) checkPods(r *reader) {
	p := rule.place
	byKarpenter := p.says("by", string(decision.ByKarpenter))
	for _, key := range []string{"grace", "grace-at-most"} {
		if p.has(key) && byKarpenter {
			p.refuse(r, key, "has no effect with by: karpenter, which gives each pod its own grace period")
		}
	}
	switch {
	case p.has("budgets") && rule.Patient:
		p.refuse(r, "budgets", "has no effect with force: never")
	case p.has("budgets") && byKarpenter:
		p.refuse(r, "budgets", "has no effect with by: karpenter, which keeps each pod's own grace period")
	case p.has("budgets") && !slices.ContainsFunc(rule.about(), sharesNotice):
		p.refuse(r, "budgets", "has no effect, because none of the rule's kinds leaves budgets a share of its notice; "+
			"kinds that do: %s", kindsThat(sharesNotice))
	}
}

// checkEffort finds keys that say how to do what the rule does not do.
func (rule *nodeRule) checkEffort(r *reader) {
	p := rule.place
	if !p.says("do", rule.Do.String()) {
		return // it was refused
	}
	var idle []string
	switch rule.Do {
	case decision.Ignoring, decision.Notifying:
		idle = []string{"at", "within", "force", "grace", "grace-at-most", "budgets", "by", "limit", "first", "wait"}
	case decision.Cordoning:
		idle = []string{"force", "grace", "grace-at-most", "budgets", "by", "first"}
	case decision.Draining:
	}
	for _, key := range idle {
		if p.has(key) {
			p.refuse(r, key, "has no effect with do: %s", rule.Do)
		}
	}
	everything := !p.has("codes") && !p.has("nodes") && !slices.ContainsFunc(kinds(), rule.isNotAbout)
	if rule.Do == decision.Ignoring && everything {
		p.refuse(r, "do", "ignores every notice about every node: give the rule kinds or nodes")
	}
}

func (rule *nodeRule) isNotAbout(k notice.Kind) bool { return !slices.Contains(rule.about(), k) }

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
	var rules, keys []string // of the test's sort; keys of the other
	if aboutPod {
		rules = append(rules, noRule)
		for _, rule := range w.pods {
			rules = append(rules, rule.Name)
		}
		keys = []string{"do", "begin"}
		t.refuseKeys(r, p, []string{"code", "labels", "now", "start"}, "of a notice")
	} else {
		for _, rule := range w.nodes {
			rules = append(rules, rule.Name)
		}
		rules = append(rules, decision.OptionRules...)
		keys = []string{"leave"}
		t.checkNotice(r)
	}
	of := "of a pod"
	if aboutPod {
		of = "of a notice"
	}
	t.refuseKeys(r, t.expected, keys, of)
	if len(t.expected.keys) == 0 {
		r.refuse(t.expected.node, t.expected.path, "is empty: a test expects something")
	}
	if rule := t.Want.Rule; rule != "" && !slices.Contains(rules, rule) {
		t.expected.refuse(r, "rule", "%s is not a rule; allowed: %s%s", quoted(rule), some(rules), didYouMean(rule, rules))
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

// refuseKeys refuses keys of tests of the other sort.
func (t *test) refuseKeys(r *reader, p place, keys []string, of string) {
	for _, key := range keys {
		if p.has(key) {
			p.refuse(r, key, "is for a test %s", of)
		}
	}
}

func (t *test) checkNotice(r *reader) {
	p := t.place
	if t.Kind == notice.Ignored {
		return // it was refused
	}
	if p.has("code") && !hasCode(t.Kind) {
		p.refuse(r, "code", "needs a kind that has codes: %s", kindsThat(hasCode))
	}
	if p.has("start") && !hasStart(t.Kind) {
		p.refuse(r, "start", "needs a kind with a start: %s", kindsThat(hasStart))
	}
	if t.expected.has("begin") && !p.has("now") {
		t.expected.refuse(r, "begin", "needs now beside kind, so that the test says the same every day")
	}
}

// file is what was written, after it was checked.
func (w *written) file() File {
	var f File
	for _, v := range w.nodes {
		rule := v.NodeRule
		rule.Before = -1
		if v.at.given {
			rule.Before = v.at.Duration
		}
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
		pod := t.podAsked
		if pod.Namespace == "" {
			pod.Namespace = "default"
		}
		done.Pod = &pod
	}
	if !t.Now.IsZero() && t.Want.Begin == t.Now.Format(time.RFC3339) {
		done.Want.Begin = beginsNow
	}
	return done
}

// warnings are about a file without mistakes.
func (w *written) warnings() Problems {
	var r reader
	everyNode := ""               // the first rule that matches all of them
	everyPod := map[bool]string{} // the same, for pods of DaemonSets and for others
	for _, rule := range w.nodes {
		rule.place.comesAfter(&r, rule.Name, everyNode)
		if p := rule.place; everyNode == "" && !p.has("kinds") && !p.has("codes") && !p.has("nodes") {
			everyNode = p.named(rule.Name)
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
	var urgent []string
	for _, k := range rule.Kinds {
		if !canWait(k) {
			urgent = append(urgent, k.Dashed())
		}
	}
	for _, key := range []string{"within", "limit"} {
		if rule.place.has(key) && len(urgent) > 0 {
			rule.place.refuse(r, key, "has no effect on %s, which cannot wait", strings.Join(urgent, ", "))
		}
	}
	if rule.place.has("first") {
		var others []string
		for _, k := range rule.Kinds {
			if !decision.Replaceable(k) {
				others = append(others, k.Dashed())
			}
		}
		if len(others) > 0 {
			rule.place.refuse(r, "first", "has no effect on %s", strings.Join(others, ", "))
		}
	}
}
