package policyfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMistakesAreToldWithTheirLineAndWhatIsAllowed(t *testing.T) {
	rule := func(more string) string { return "version: 1\nnodes:\n  - {name: a, do: drain, " + more + "}\n" }
	test := func(more string) string {
		return "version: 1\nnodes: [{name: a, do: drain}]\npods: [{name: p, leave: last}]\ntests:\n  - {name: t, " + more + "}\n"
	}
	for _, c := range []struct{ name, file, want string }{
		{"empty", "", `line 1: the file is empty: it begins with version: 1`},
		{"only a comment", "# version: 1\n", `line 1: the file is empty: it begins with version: 1`},
		{"not a map", "- version: 1\n", `line 1, column 1: the file is a list, and has to be a map of keys and values`},
		{"no version", "nodes: []\n", `line 1, column 1: version: is missing: the version of the format`},
		{"another version", "version: 2\n", `line 1, column 10: version: is 2; allowed: 1`},
		{"not UTF-8", "version: 1\nnodes: \xff\n", `line 2, column 8: the file has bytes that are not UTF-8`},
		{"a control character", "version: 1\nnodes: \a\n", `line 2, column 8: the file has the character U+0007, which no text has`},
		{"a second document", "version: 1\n---\nversion: 1\n", `line 2, column 1: the file has a second document, and one is allowed`},
		{"something after the end", "version: 1\n--- {\n", `line 3: the file is not YAML: did not find expected node content; is the line indented as those before it, and each bracket closed?`},
		{"an alias", "version: 1\nnodes: &a []\npods: *a\n", `line 2, column 8: the file has the anchor &a: anchors are not allowed
line 3, column 7: the file has the alias *a: aliases are not allowed`},
		{"an alias of nothing", "version: 1\nnodes: []\npods: *none\n", `line 3: the file is not YAML: unknown anchor 'none' referenced`},
		{"a tag", "version: !!int 1\n", `line 1, column 10: the file has the tag !!int: tags are not allowed`},
		{"a line that is not indented", "version: 1\nnodes:\n  - name: a\n   do: drain\n", `line 4: the file is not YAML: did not find expected '-' indicator; is the line indented as those before it, and each bracket closed?`},
		{"a bracket that is not closed", "version: 1\nnodes: [\n  {name: a, do: drain}\n", `line 2: the file is not YAML: did not find expected ',' or ']'; is the line indented as those before it, and each bracket closed?`},
		{"a tab", "version: 1\nnodes:\n\t- name: a\n", `line 3: the file is not YAML: found character that cannot start any token; indent with spaces, not with tabs`},
		{"a text that does not end", "version: 1\nwindows: {n: {from: \"22:00}}\n", `line 2: the file is not YAML: found unexpected end of stream`},
		{"a key of the options", "version: 1\nrules: []\ncordonOnly: true\n", `line 2, column 1: rules: there is no such key; allowed: version, windows, nodes, pods, tests
line 3, column 1: cordonOnly: there is no such key; allowed: version, windows, nodes, pods, tests`},
		{"a key that is a list", "version: 1\n[a]: 1\n", `line 2, column 1: the file has a list as a key, and keys are texts`},
		{"a key that merges", "version: 1\nnodes: [{<<: {do: drain}, name: a, do: drain}]\n", `line 2, column 10: nodes[0].<<: there is no such key; allowed: name, kinds, codes, nodes, do, at, within, force, grace, grace-at-most, budgets, by, limit, first, wait`},
		{"a key that comes twice", "version: 1\nnodes: []\nnodes: []\n", `line 3, column 1: nodes: is given twice, the first time in line 2`},
		{"lists that are none", "version: 1\nnodes: {}\npods: 5\ntests: yes\nwindows: []\n", `line 2, column 8: nodes: is a map, and has to be a list
line 3, column 7: pods: is 5, and has to be a list
line 4, column 8: tests: is "yes", and has to be a list
line 5, column 10: windows: is a list, and has to be a map of keys and values`},
		{"entries that are no maps", "version: 1\nnodes: [5]\npods: [[]]\ntests: [a]\nwindows: {n: }\n", `line 2, column 9: nodes[0]: is 5, and has to be a map of keys and values
line 3, column 8: pods[0]: is a list, and has to be a map of keys and values
line 4, column 9: tests[0]: is "a", and has to be a map of keys and values
line 5, column 14: windows.n: is empty, and has to be a map of keys and values`},
		{"typing errors", "version: 1\nnodes:\n  - {nam: a, do: drian, kind: [sport], force: Never}\n", `line 3, column 5: nodes[0].name: is missing: its name, which no other rule for nodes has
line 3, column 6: nodes[0].nam: there is no such key; allowed: name, kinds, codes, nodes, do, at, within, force, grace, grace-at-most, budgets, by, limit, first, wait; did you mean name?
line 3, column 18: nodes[0].do: "drian" is none of them; allowed: ignore, notify, cordon, drain; did you mean drain?
line 3, column 25: nodes[0].kind: there is no such key; allowed: name, kinds, codes, nodes, do, at, within, force, grace, grace-at-most, budgets, by, limit, first, wait; did you mean kinds?
line 3, column 47: nodes[0].force: "Never" is none of them; allowed: deadline, never; did you mean never?`},
		{"names", "version: 1\nnodes:\n  - {name: A, do: drain}\n  - {name: drain, do: drain}\n  - {name: b, do: drain}\n  - {name: b, do: drain}\n" +
			"pods:\n  - {name: none, leave: now}\n  - {name: c, leave: now}\n  - {name: c, leave: now}\n", `line 3, column 12: nodes[0].name: "A" is not a name; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends
line 4, column 12: nodes[1].name: "drain" stands for an option or a label; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends
line 6, column 12: nodes[3].name: "b" is the name of the rule in line 5 already
line 8, column 12: pods[0].name: "none" stands for no rule; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends
line 10, column 12: pods[2].name: "c" is the name of the rule in line 9 already`},
		{"a name that is too long", "version: 1\nnodes: [{name: " + strings.Repeat("a", 99) + ", do: drain}]\n", `line 2, column 16: nodes[0].name: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"… is not a name; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends`},
		{"a name that is a number", "version: 1\nnodes: [{name: 5, do: drain}]\n", `line 2, column 16: nodes[0].name: is 5, and has to be a text: write "5"; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends`},
		{"kinds", rule("kinds: [spot, launch, asg-launch, 5, {}]"), `line 3, column 40: nodes[0].kinds[1]: "launch" is not a kind of notice; allowed: spot-interruption, rebalance-recommendation, state-change, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration, instance-impaired
line 3, column 48: nodes[0].kinds[2]: "asg-launch" is a launch, for which no node is drained; allowed: spot-interruption, rebalance-recommendation, state-change, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration, instance-impaired
line 3, column 60: nodes[0].kinds[3]: is 5, and has to be a text; allowed: spot-interruption, rebalance-recommendation, state-change, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration, instance-impaired
line 3, column 63: nodes[0].kinds[4]: is a map, and has to be a text; allowed: spot-interruption, rebalance-recommendation, state-change, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration, instance-impaired`},
		{"kinds that are left empty", rule("kinds: "), `line 3, column 33: nodes[0].kinds: is empty, and has to be a text; allowed: spot-interruption, rebalance-recommendation, state-change, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration, instance-impaired`},
		{"kinds that are an empty list", rule("kinds: []"), `line 3, column 33: nodes[0].kinds: is empty: leave the key out, or give at least one`},
		{"a pattern", rule("kinds: health, codes: [\"[\"]"), `line 3, column 49: nodes[0].codes[0]: "[" is not a pattern; allowed: letters, digits, - and _, and * for any of them`},
		{"codes of any kind", rule("codes: \"*_REBOOT_*\""), `line 3, column 33: nodes[0].codes: needs kinds that have codes: give the rule kinds, and only of scheduled-change, instance-impaired`},
		{"codes of a kind without", rule("kinds: [health, spot], codes: \"*_REBOOT_*\""), `line 3, column 56: nodes[0].codes: needs kinds that have codes: give the rule kinds, and only of scheduled-change, instance-impaired`},
		{"selectors", rule("nodes: [\"a in\", \"\", \"a=b c\", \"-a\", \"a > x\", \"x=*\", \"a,,b\"]"), `line 3, column 34: nodes[0].nodes[0]: "a in" is not a label selector (found '' expected: '('); allowed: a label selector, such as team=batch,!gpu
line 3, column 42: nodes[0].nodes[1]: "" selects everything: leave the key out; allowed: a label selector, such as team=batch,!gpu
line 3, column 46: nodes[0].nodes[2]: "a=b c" is not a label selector (found 'c', expected: ',' or 'end of string'); allowed: a label selector, such as team=batch,!gpu
line 3, column 55: nodes[0].nodes[3]: "-a" is not a label selector ("-a": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character); allowed: a label selector, such as team=batch,!gpu
line 3, column 61: nodes[0].nodes[4]: "a > x" is not a label selector ("x": for 'Gt', 'Lt' operators, the value must be an integer); allowed: a label selector, such as team=batch,!gpu
line 3, column 70: nodes[0].nodes[5]: "x=*" is not a label selector ("*": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character); allowed: a label selector, such as team=batch,!gpu
line 3, column 77: nodes[0].nodes[6]: "a,,b" is not a label selector (found ',', expected: identifier after ','); allowed: a label selector, such as team=batch,!gpu`},
		{"a selector that is a map", rule("nodes: {team: batch}"), `line 3, column 33: nodes[0].nodes: is a map, and has to be a text; allowed: a label selector, such as team=batch,!gpu`},
		{"at for any kind", rule("at: start-30m"), `line 3, column 30: nodes[0].at: needs kinds with a start: give the rule kinds, and only of scheduled-change`},
		{"at for kinds without a start", rule("kinds: [health, rebalance], at: start-30m"), `line 3, column 58: nodes[0].at: needs kinds with a start: give the rule kinds, and only of scheduled-change`},
		{"at that is none", rule("kinds: health, at: 30m"), `line 3, column 45: nodes[0].at: "30m" is not a begin; allowed: now, or start- and a duration, such as start-30m`},
		{"at with half a duration", rule("kinds: health, at: start-30"), `line 3, column 45: nodes[0].at: "start-30" is not a begin: "30" is not a duration; allowed: now, or start- and a duration, such as start-30m`},
		{"within an unknown window", "version: 1\nwindows: {nights: {from: \"22:00\", to: \"05:00\"}}\nnodes: [{name: a, do: drain, within: night}]\n", `line 3, column 38: nodes[0].within: "night" is not a window of this file; allowed: nights; did you mean nights?`},
		{"within where there are none", rule("within: nights"), `line 3, column 34: nodes[0].within: "nights" is not a window of this file, which has no windows`},
		{"within and limit for minutes", "version: 1\nwindows: {nights: {from: \"22:00\", to: \"05:00\"}}\nnodes: [{name: a, kinds: [spot, impaired], do: drain, within: nights, limit: {nodes: 1}}]\n", `line 3, column 63: nodes[0].within: has no effect, because none of the rule's kinds can wait; kinds that can: rebalance-recommendation, scheduled-change, asg-terminate
line 3, column 78: nodes[0].limit: has no effect, because none of the rule's kinds can wait; kinds that can: rebalance-recommendation, scheduled-change, asg-terminate`},
		{"durations", rule("limit: {nodes: 1}, grace: 60, wait: 0s"), `line 3, column 52: nodes[0].grace: is 60, and has to be a text; allowed: a duration from 1s on, such as 90s, 30m or 2h30m
line 3, column 62: nodes[0].wait: "0s" is less than a second; allowed: a duration from 1s on, such as 90s, 30m or 2h30m`},
		{"a longest grace of nodes that Karpenter drains", rule("by: karpenter, grace-at-most: 5m"), `line 3, column 56: nodes[0].grace-at-most: has no effect with by: karpenter, which gives each pod its own grace period`},
		{"a grace that is cut each time", rule("grace: 90s, grace-at-most: 10s"), `line 3, column 33: nodes[0].grace: is longer than grace-at-most, which cuts it`},
		{"budgets of more than the notice", rule("budgets: 101%"), `line 3, column 35: nodes[0].budgets: "101%" is no percentage; allowed: 0% to 100%`},
		{"budgets without a percent sign", rule("budgets: 50"), `line 3, column 35: nodes[0].budgets: is 50, and has to be a text; allowed: 0% to 100%`},
		{"budgets where nothing is forced", rule("force: never, budgets: 50%"), `line 3, column 49: nodes[0].budgets: has no effect with force: never`},
		{"budgets of nodes that Karpenter drains", rule("by: karpenter, budgets: 50%"), `line 3, column 50: nodes[0].budgets: has no effect with by: karpenter, which keeps each pod's own grace period`},
		{"budgets of kinds that give them no time", rule("kinds: [rebalance, impaired, state-change], budgets: 50%"), `line 3, column 79: nodes[0].budgets: has no effect, because none of the rule's kinds leaves budgets a share of its notice; kinds that do: spot-interruption, scheduled-change, asg-terminate, capacity-reservation-interruption, capacity-block-expiration`},
		{"half a second", rule("grace: 1500ms"), `line 3, column 33: nodes[0].grace: "1500ms" is not of whole hours, minutes or seconds; allowed: a duration from 1s on, such as 90s, 30m or 2h30m`},
		{"limits", rule("limit: {nodes: 0, per: a b}"), `line 3, column 41: nodes[0].limit.nodes: is 0; allowed: 1 to 100000, or 1% to 100%
line 3, column 49: nodes[0].limit.per: "a b" is not the key of a label; allowed: the key of a label`},
		{"a limit of more than all", rule("limit: {nodes: 101%}"), `line 3, column 41: nodes[0].limit.nodes: is "101%"; allowed: 1 to 100000, or 1% to 100%`},
		{"a limit that is a number", rule("limit: 2"), `line 3, column 33: nodes[0].limit: is 2, and has to be a map of keys and values`},
		{"wait without a limit", rule("wait: 2h"), `line 3, column 32: nodes[0].wait: has no effect without limit or first`},
		{"what is ignored is not drained", "version: 1\nnodes: [{name: a, kinds: health, do: ignore, at: start-5m, force: never, grace: 5s, limit: {nodes: 1}, wait: 5m}]\n", `line 2, column 50: nodes[0].at: has no effect with do: ignore
line 2, column 67: nodes[0].force: has no effect with do: ignore
line 2, column 81: nodes[0].grace: has no effect with do: ignore
line 2, column 92: nodes[0].limit: has no effect with do: ignore
line 2, column 110: nodes[0].wait: has no effect with do: ignore`},
		{"nobody drains by halves", rule("by: somebody"), `line 3, column 30: nodes[0].by: "somebody" is none of them; allowed: handler, karpenter`},
		{"a grace period that Karpenter does not know", rule("by: karpenter, grace: 5s"), `line 3, column 48: nodes[0].grace: has no effect with by: karpenter, which gives each pod its own grace period`},
		{"what is cordoned is not drained by anybody", "version: 1\nnodes: [{name: a, do: cordon, by: karpenter}]\n", `line 2, column 35: nodes[0].by: has no effect with do: cordon`},
		{"what is cordoned is not drained", "version: 1\nnodes: [{name: a, do: cordon, force: deadline, grace: 5s}]\n", `line 2, column 38: nodes[0].force: has no effect with do: cordon
line 2, column 55: nodes[0].grace: has no effect with do: cordon`},
		{"everything is ignored", "version: 1\nnodes: [{name: a, do: ignore}]\n", `line 2, column 23: nodes[0].do: ignores every notice about every node: give the rule kinds or nodes`},
		{"every kind is ignored", "version: 1\nnodes: [{name: a, do: ignore, kinds: [spot, rebalance, state-change, health, asg, capacity-reservation, capacity-block, impaired]}]\n", `line 2, column 23: nodes[0].do: ignores every notice about every node: give the rule kinds or nodes`},
		{"windows", "version: 1\nwindows:\n  n: {from: 5:00, to: \"24:01\", zone: Berlin, days: [monday, Tue]}\n  N: {from: \"24:00\", to: \"24:00\", zone: Local, days: []}\n", `line 3, column 13: windows.n.from: "5:00" is not a time of the day; allowed: "00:00" to "23:59"
line 3, column 23: windows.n.to: "24:01" is not a time of the day; allowed: "00:00" to "24:00"
line 3, column 38: windows.n.zone: "Berlin" is not a time zone; allowed: a name of the IANA, such as Europe/Berlin
line 3, column 53: windows.n.days[0]: "monday" is none of them; allowed: mon, tue, wed, thu, fri, sat, sun
line 3, column 61: windows.n.days[1]: "Tue" is none of them; allowed: mon, tue, wed, thu, fri, sat, sun; did you mean tue?
line 4, column 3: windows.N: is not a name; allowed: at most 40 small letters, digits and -, with a letter or digit at both ends
line 4, column 13: windows.N.from: "24:00" is not a time of the day; allowed: "00:00" to "23:59"
line 4, column 41: windows.N.zone: "Local" is not a time zone; allowed: a name of the IANA, such as Europe/Berlin
line 4, column 54: windows.N.days: is empty: leave the key out, or give at least one`},
		{"a window without its end", "version: 1\nwindows: {n: {from: \"05:00\"}}\n", `line 2, column 14: windows.n.to: is missing: when it closes: HH:MM, or 24:00`},
		{"pods", "version: 1\npods: [{name: a, leave: late, order: 5, daemonsets: yes, namespaces: [], annotations: \"a b\"}]\n", `line 2, column 25: pods[0].leave: "late" is none of them; allowed: now, first, after, end, last, surged, never; did you mean last?
line 2, column 53: pods[0].daemonsets: is "yes"; allowed: true or false
line 2, column 70: pods[0].namespaces: is empty: leave the key out, or give at least one
line 2, column 87: pods[0].annotations: "a b" is not a label selector (found 'b', expected: in, notin, =, ==, !=, gt, lt); allowed: a label selector, such as team=batch,!gpu`},
		{"an order without after", "version: 1\npods: [{name: a, leave: last, order: 5}]\n", `line 2, column 38: pods[0].order: has an effect only with leave: after`},
		{"an order that is none", "version: 1\npods: [{name: a, leave: after, order: 101}]\n", `line 2, column 39: pods[0].order: is 101; allowed: 1 to 100`},
		{"a test of nothing", test("expect: {do: drain}"), `line 5, column 5: tests[0]: needs kind or pod: a test is of a pod or of a notice`},
		{"a test of two things", test("kind: spot, pod: {}, expect: {do: drain}"), `line 5, column 32: tests[0].pod: stands beside kind: a test is of a pod or of a notice`},
		{"a test that expects nothing", test("kind: spot, expect: {}"), `line 5, column 35: tests[0].expect: is empty: a test expects something`},
		{"a test without expect", test("kind: spot"), `line 5, column 5: tests[0].expect: is missing: what is to come out`},
		{"a test of a notice", test("kind: spot, code: X, start: 2026-03-04T12:00:00Z, expect: {leave: now, rule: b, begin: now}"), `line 5, column 33: tests[0].code: needs a kind that has codes: scheduled-change, instance-impaired
line 5, column 43: tests[0].start: needs a kind with a start: scheduled-change
line 5, column 81: tests[0].expect.leave: is for a test of a pod
line 5, column 92: tests[0].expect.rule: "b" is not a rule; allowed: a, leave-alone, cordon-only, cordon-rebalance, drain
line 5, column 102: tests[0].expect.begin: needs now beside kind, so that the test says the same every day`},
		{"a test of a pod", test("pod: {label: {}}, code: X, labels: {}, now: 2026-03-04, expect: {do: drain, rule: a, leave: surge}"), `line 5, column 21: tests[0].pod.label: there is no such key; allowed: namespace, labels, annotations, daemonset; did you mean labels?
line 5, column 39: tests[0].code: is for a test of a notice
line 5, column 50: tests[0].labels: is for a test of a notice
line 5, column 59: tests[0].now: "2026-03-04" is not a time; allowed: a time such as 2026-03-04T12:00:00Z
line 5, column 59: tests[0].now: is for a test of a notice
line 5, column 84: tests[0].expect.do: is for a test of a notice
line 5, column 97: tests[0].expect.rule: "a" is not a rule; allowed: none, p
line 5, column 107: tests[0].expect.leave: "surge" is none of them; allowed: now, first, after, end, last, surged, never; did you mean surged?`},
		{"labels of a test", test("kind: spot, labels: {a: true, b: {}, c: 1.5}, expect: {rule: drain}"), `line 5, column 39: tests[0].labels.a: is true, and has to be a text: write "true"; allowed: any text
line 5, column 48: tests[0].labels.b: is a map, and has to be a text; allowed: any text
line 5, column 55: tests[0].labels.c: is 1.5, and has to be a text: write "1.5"; allowed: any text`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.file))
			problems, ok := errors.AsType[Problems](err)
			if !ok {
				t.Fatalf("the error is %v", err)
			}
			if diff := cmp.Diff(strings.Split(c.want, "\n"), strings.Split(problems.Error(), "\n")); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
