package policyfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// kinds are those that rules may be about. A launch hook takes no node away.
func kinds() []notice.Kind {
	return slices.DeleteFunc(slices.Clone(notice.Kinds), func(k notice.Kind) bool { return k == notice.ASGLaunch })
}

// kindsThat names the kinds of which that is true.
func kindsThat(is func(notice.Kind) bool) string { return named(kinds(), is) }

// named names those of kinds of which that is true.
func named(kinds []notice.Kind, is func(notice.Kind) bool) string {
	var all []string
	for _, k := range kinds {
		if is(k) {
			all = append(all, k.Dashed())
		}
	}
	return strings.Join(all, ", ")
}

func ofAnySort(notice.Kind) bool { return true }

// not is true of the other kinds.
func not(is func(notice.Kind) bool) func(notice.Kind) bool {
	return func(k notice.Kind) bool { return !is(k) }
}

// hasCode reports whether notices of the kind have a code in Notice.Detail that rules may be about.
func hasCode(k notice.Kind) bool { return k == notice.ScheduledChange || k == notice.InstanceImpaired }

// hasStart reports whether notices of the kind say when what they announce begins.
func hasStart(k notice.Kind) bool { return k == notice.ScheduledChange }

// canWait reports whether a drain for the kind can wait. An impaired machine may go at any moment.
func canWait(k notice.Kind) bool { return !k.Urgent() && k != notice.InstanceImpaired }

// sharesNotice reports whether a drain for the kind divides its time between budgets and grace periods. A
// recommendation has no deadline, and budgets do not count on a machine that stops or fails.
func sharesNotice(k notice.Kind) bool {
	return k != notice.RebalanceRecommendation && k != notice.StateChange && k != notice.InstanceImpaired
}

// A place is where an object of the file stands.
type place struct {
	*reader
	path string
}

// entry is where the entry k of a list stands.
func (r *reader) entry(list string, k int) place { return place{r, fmt.Sprintf("%s[%d]", list, k)} }

func (p place) has(key string) bool { return p.at[join(p.path, key)] != nil }

// of is where the key stands; the object if it does not have the key.
func (p place) of(key string) (*yaml.Node, string) {
	if path := join(p.path, key); p.at[path] != nil {
		return p.at[path], path
	}
	return p.at[p.path], p.path
}

func (p place) line(key string) int {
	n, _ := p.of(key)
	return n.Line
}

// text is what the key has; empty: it has no text.
func (p place) text(key string) string {
	if n := p.at[join(p.path, key)]; n != nil && isText(n) {
		return n.Value
	}
	return ""
}

// refuse says what is wrong with a key of the object.
func (p place) refuse(key, format string, args ...any) {
	n, path := p.of(key)
	p.reader.refuse(n, path, format, args...)
}

// refuseIf refuses those of the keys, which spaces separate, that the object has.
func (p place) refuseIf(wrong bool, keys, why string) {
	for key := range strings.FieldsSeq(keys) {
		if wrong && p.has(key) {
			p.refuse(key, "%s", why)
		}
	}
}

// finish finds what is wrong with values that are right by themselves, and sets what depends on several.
func (w *written) finish(r *reader) {
	nodes := r.names("nodes", len(w.Rules.Nodes), func(k int) string { return w.Rules.Nodes[k].Name })
	for k := range w.Rules.Nodes {
		w.finishNodeRule(r.entry("nodes", k), &w.Rules.Nodes[k])
	}
	pods := r.names("pods", len(w.Rules.Pods), func(k int) string { return w.Rules.Pods[k].Name })
	for k := range w.Rules.Pods {
		p, rule := r.entry("pods", k), &w.Rules.Pods[k]
		given := p.text("leave") == rule.Leave.String() // else it was refused
		p.refuseIf(given && rule.Leave != decision.LeaveAfter, "order", "has an effect only with leave: after")
		if rule.Leave == decision.LeaveAfter {
			rule.Order = max(1, rule.Order)
		}
	}
	nodes, pods = append(nodes, decision.ReservedRules...), slices.Insert(pods, 0, noRule)
	for k := range w.Tests {
		finishTest(r.entry("tests", k), &w.Tests[k], nodes, pods)
	}
}

// names are those of the rules in a list. It refuses one that an earlier rule has.
func (r *reader) names(list string, length int, name func(k int) string) []string {
	var all []string
	lines := map[string]int{}
	for k := range length {
		p, name := r.entry(list, k), name(k)
		line, again := lines[name]
		switch {
		case again:
			p.refuse("name", "%q is the name of the rule in line %d already", name, line)
		case name != "": // else it was refused
			all, lines[name] = append(all, name), p.line("name")
		}
	}
	return all
}

func (w *written) finishNodeRule(p place, rule *decision.NodeRule) {
	if slices.Contains(rule.Kinds, notice.Ignored) {
		return // a kind was refused, and the rest depends on it
	}
	rule.Within, rule.Patient, rule.ReplaceFirst = w.window(p), p.text("force") == never, p.has("first")
	about, byKarpenter := p.about(rule), rule.By == decision.ByKarpenter
	none := func(is func(notice.Kind) bool) bool { return !slices.ContainsFunc(about, is) }
	only := func(is func(notice.Kind) bool) bool { return p.has("kinds") && !slices.ContainsFunc(about, not(is)) }
	everyKind := !slices.ContainsFunc(kinds(), func(k notice.Kind) bool { return !slices.Contains(about, k) })
	idle := func(do decision.Effort) bool { return p.text("do") == do.String() }
	p.refuseIf(!only(hasCode), "codes",
		"needs kinds that have codes: give the rule kinds, and only of "+kindsThat(hasCode))
	p.refuseIf(rule.Before >= 0 && !only(hasStart), "at",
		"needs kinds with a start: give the rule kinds, and only of "+kindsThat(hasStart))
	p.refuseIf(none(canWait), "within limit",
		"has no effect, because none of the rule's kinds can wait; kinds that can: "+kindsThat(canWait))
	p.refuseIf(none(decision.Replaceable), "first", "has no effect, because none of the rule's kinds leaves the time; "+
		"kinds that do: "+kindsThat(decision.Replaceable))
	p.refuseIf(!p.has("limit") && !p.has("first"), "wait", "has no effect without limit or first")
	p.refuseIf(byKarpenter, "grace grace-at-most",
		"has no effect with by: karpenter, which gives each pod its own grace period")
	p.refuseIf(rule.Grace > rule.MostGrace && rule.MostGrace > 0, "grace", "is longer than grace-at-most, which cuts it")
	p.refuseIf(rule.Patient, "budgets", "has no effect with force: never")
	p.refuseIf(byKarpenter, "budgets", "has no effect with by: karpenter, which keeps each pod's own grace period")
	p.refuseIf(none(sharesNotice), "budgets", "has no effect, because none of the rule's kinds leaves budgets a share "+
		"of its notice; kinds that do: "+kindsThat(sharesNotice))
	p.refuseIf(idle(decision.Ignoring) || idle(decision.Notifying),
		"at within force grace grace-at-most budgets by limit first wait", "has no effect with do: "+p.text("do"))
	p.refuseIf(idle(decision.Cordoning), "force grace grace-at-most budgets by first", "has no effect with do: cordon")
	p.refuseIf(idle(decision.Ignoring) && everyKind && !p.has("codes") && !p.has("nodes"), "do",
		"ignores every notice about every node: give the rule kinds or nodes")
}

// about are the kinds that a rule is about.
func (p place) about(rule *decision.NodeRule) []notice.Kind {
	if p.has("kinds") {
		return rule.Kinds
	}
	return kinds()
}

// window is the one that a rule names; nil: there is none.
func (w *written) window(p place) *decision.Window {
	var names []string
	given := p.text("within")
	for _, v := range w.windows {
		if v.Name == given {
			return v
		}
		names = append(names, v.Name)
	}
	switch {
	case given == "":
	case len(names) == 0:
		p.refuse("within", "%s is not a window of this file, which has no windows", quoted(given))
	default:
		p.refuse("within", "%s is not a window of this file%s", quoted(given), choice(given, names))
	}
	return nil
}

// finishTest gets the names of the rules that there are for nodes, and for pods.
func finishTest(p place, t *Test, nodes, pods []string) {
	t.Line = p.line("name")
	if !p.has("pod") {
		t.Pod = nil
	}
	if !t.Now.IsZero() && t.Want.Begin == t.Now.Format(time.RFC3339) {
		t.Want.Begin = beginsNow
	}
	expected := place{p.reader, join(p.path, "expect")}
	aboutPod, rules := t.Pod != nil, nodes
	if aboutPod {
		rules = pods
	}
	switch {
	case p.at[p.path].Kind != yaml.MappingNode: // it was refused
		return
	case aboutPod && p.has("kind"):
		p.refuse("pod", "stands beside kind: a test is of a pod or of a notice")
		return
	case !aboutPod && !p.has("kind"):
		p.refuse("", "needs kind or pod: a test is of a pod or of a notice")
		return
	case !p.has("expect"):
		return // it was refused
	}
	const ofNotice = "is for a test of a notice"
	known := t.Kind != notice.Ignored // else it was refused, or the test is of a pod
	p.refuseIf(aboutPod, "code labels now start", ofNotice)
	p.refuseIf(known && !hasCode(t.Kind), "code", "needs a kind that has codes: "+kindsThat(hasCode))
	p.refuseIf(known && !hasStart(t.Kind), "start", "needs a kind with a start: "+kindsThat(hasStart))
	expected.refuseIf(aboutPod, "do begin", ofNotice)
	expected.refuseIf(!aboutPod, "leave", "is for a test of a pod")
	expected.refuseIf(known && !p.has("now"), "begin",
		"needs now beside kind, so that the test says the same every day")
	if rule := t.Want.Rule; rule != "" && !slices.Contains(rules, rule) {
		expected.refuse("rule", "%s is not a rule%s", quoted(rule), choice(rule, rules))
	}
	if len(p.at[expected.path].Content) == 0 {
		expected.refuse("", "is empty: a test expects something")
	}
}

// warn tells of what can hardly be meant in a file without mistakes.
func (w *written) warn(r *reader) {
	taken := map[notice.Kind]string{} // the rule that matches all nodes and codes
	for k := range w.Rules.Nodes {
		p, rule := r.entry("nodes", k), &w.Rules.Nodes[k]
		warnOfShadow(p, taken, p.about(rule), !p.has("codes") && !p.has("nodes"))
		urgent, irreplaceable := named(rule.Kinds, not(canWait)), named(rule.Kinds, not(decision.Replaceable))
		p.refuseIf(urgent != "", "within limit", "has no effect on "+urgent+", which cannot wait")
		p.refuseIf(irreplaceable != "", "first", "has no effect on "+irreplaceable)
	}
	everyPod := map[bool]string{} // the same, for pods of DaemonSets and for others
	for k, rule := range w.Rules.Pods {
		p := r.entry("pods", k)
		everything := !p.has("pods") && !p.has("annotations") && !p.has("namespaces")
		warnOfShadow(p, everyPod, []bool{rule.DaemonSets}, everything)
	}
	for _, v := range w.windows {
		if !slices.ContainsFunc(w.Rules.Nodes, func(rule decision.NodeRule) bool { return rule.Within == v }) {
			place{r, "windows"}.refuse(v.Name, "is a window that no rule uses")
		}
	}
}

// warnOfShadow tells of a rule of which others take all that it is about. It takes that itself if it matches
// everything.
func warnOfShadow[T comparable](p place, taken map[T]string, about []T, everything bool) {
	var by []string
	for _, what := range about {
		if !slices.Contains(by, taken[what]) {
			by = append(by, taken[what])
		}
	}
	if name := p.text("name"); !slices.Contains(by, "") {
		const format = "the rule %s never matches, because %s matches all that it would match"
		p.refuse("name", format, name, strings.Join(by, " or "))
	}
	for _, what := range about {
		if everything && taken[what] == "" {
			taken[what] = fmt.Sprintf("%s in line %d", p.text("name"), p.line("name"))
		}
	}
}
