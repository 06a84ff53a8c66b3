package policyfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
)

// written is a file as it is written down.
type written struct {
	place   place
	version int
	windows []*window
	nodes   []*nodeRule
	pods    []*podRule
	tests   []*test
}

type window struct {
	decision.Window
	node *yaml.Node // its name
	path string
	days []string
}

type nodeRule struct {
	decision.NodeRule
	place                place
	window, force, first string // as they are written; empty: they are not
}

type podRule struct {
	decision.PodRule
	place place
}

type test struct {
	Test
	podAsked             decision.Pod
	place, pod, expected place
}

func (w *written) value() value {
	return object(&w.place, "", []field{
		required("version", integer(&w.version, 1, 1), "The version of the format."),
		optional("windows", windows(&w.windows), "Times of the day at which drains may begin. Rules name them."),
		optional("nodes", objects(&w.nodes, maxRules, (*nodeRule).value),
			"What is done with a node that gets a notice: the first rule that matches decides. If none does, the options "+
				"decide."),
		optional("pods", objects(&w.pods, maxRules, (*podRule).value),
			"When the pods of a node leave: the first rule that matches decides. If none does, the pod leaves with most "+
				"others."),
		optional("tests", objects(&w.tests, maxTests, (*test).value),
			"What is expected of the rules: node-termination-handler policy test runs them."),
	})
}

func (w *window) value() value {
	var where place
	return object(&where, "A time of the day, on some days of the week.", []field{
		optional("days", texts(&w.days, weekday), "The days on which it opens. Default: all."),
		required("from", clock(&w.From, 24*60-1), "When it opens, by the clock of its zone: HH:MM."),
		required("to", clock(&w.To, 24*60),
			"When it closes: HH:MM, or 24:00. If that is not later than from, it closes on the next day."),
		optional("zone", zone(&w.Zone), "The time zone, as the IANA names it. Default: UTC."),
	})
}

func (rule *nodeRule) value() value {
	rule.Before = -1 // now, unless at says otherwise
	return object(&rule.place, "A rule for nodes.", []field{
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
		optional("within", anyText(&rule.window, "the name of a window"),
			"The window in which the drain begins, unless that would be too late. Not for kinds that are about minutes. "+
				"Default: any time."),
		optional("force", oneOf(&rule.force, "deadline", never),
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
		optional("first", oneOf(&rule.first, "replacement"),
			"replacement: another instance of the node's Auto Scaling group is ready before the drain begins. Needs a "+
				"kind that leaves the time: "+kindsThat(decision.Replaceable)+". Default: none is waited for."),
		optional("wait", duration(&rule.Limit.Wait),
			"The longest wait for the limit or the replacement, such as 2h. Needs limit or first. Default: as long as the "+
				"drain can wait; for a replacement 15m."),
	})
}

func limit(l *decision.Limit) value {
	var where place
	return object(&where, "", []field{
		required("nodes", share(&l.Nodes),
			"How many nodes of a group may be not ready or cordoned, by whomever: a number, or a percentage of the group, "+
				"rounded down, and one at least."),
		optional("per", text(&l.Per, schema{}, "the key of a label", parseKey),
			"The key of a label, such as topology.kubernetes.io/zone: nodes with the same value, of those that the rule "+
				"selects, are one group. Default: these are all one group."),
	})
}

func parseKey(text string) (string, error) {
	if len(validation.IsQualifiedName(text)) > 0 {
		return "", errors.New("is not the key of a label")
	}
	return text, nil
}

func (rule *podRule) value() value {
	return object(&rule.place, "A rule for pods.", []field{
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
		optional("order", integer(&rule.Order, 1, 100),
			"The place among those that leave after the others. Needs leave: after. Default: 1."),
	})
}

func (t *test) value() value {
	return object(&t.place, "A test of the rules: of a notice for a node, or of a pod.", []field{
		required("name", anyText(&t.Name, "any text"), "What the test is about, for people."),
		optional("kind", kind(&t.Kind), "The kind of the notice. Needed in a test of a notice."),
		optional("code", anyText(&t.Code, "any text"), "The code of the scheduled change, or the status checks that fail."),
		optional("labels", labels(&t.Labels), "The labels of the node."),
		optional("now", moment(&t.Now),
			"When the notice comes, such as 2026-03-04T12:00:00Z. Needed where begin is expected."),
		optional("start", moment(&t.Start), "When the scheduled change begins."),
		optional("pod", t.podValue(), "The pod. Needed in a test of a pod."),
		required("expect", t.expectValue(), "What is to come out. What is not given is not compared."),
	})
}

func (t *test) podValue() value {
	t.podAsked.Namespace = "default"
	return object(&t.pod, "", []field{
		optional("namespace", anyText(&t.podAsked.Namespace, "any text"), "Its namespace. Default: default."),
		optional("labels", labels(&t.podAsked.Labels), "Its labels."),
		optional("annotations", labels(&t.podAsked.Annotations), "Its annotations."),
		optional("daemonset", boolean(&t.podAsked.DaemonSet), "Whether it is of a DaemonSet. Default: false."),
	})
}

func (t *test) expectValue() value {
	return object(&t.expected, "", []field{
		optional("do", oneOf(&t.Want.Do, words(efforts)...), "What is done with the node."),
		optional("rule", anyText(&t.Want.Rule, "the name of a rule"),
			"The name of the rule that decides; for a pod none if there is no rule. Options and a label are the rules "+
				strings.Join(decision.ReservedRules, ", ")+"."),
		optional("begin", beginMoment(&t.Want.Begin), "When the drain begins: now, or a time."),
		optional("leave", oneOf(&t.Want.Leave, words(departures)...), "When the pod leaves, or never."),
	})
}

// windows takes a map of names to windows.
func windows(p *[]*window) value {
	looks := schema{
		"type": []string{"object", "null"}, "additionalProperties": new(window).value().schema,
		"propertyNames": schema{"pattern": nameForm.String()},
	}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, at string) {
		if isNull(n) {
			return
		}
		r.pairs(n, at, func(key, v *yaml.Node) {
			w := &window{node: key, path: join(at, plain(key.Value))}
			w.Name, w.Zone = key.Value, time.UTC
			if !nameForm.MatchString(key.Value) {
				r.refuse(key, w.path, "is not a name; allowed: %s", nameAllowed)
			}
			w.value().read(r, v, w.path)
			for day := range w.Days {
				w.Days[day] = len(w.days) == 0 || slices.Contains(w.days, weekdays[day])
			}
			*p = append(*p, w)
		})
	}}
}

// nameForm is a label of DNS, and not too long for a line.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

const nameAllowed = "at most 40 small letters, digits and -, with a letter or digit at both ends"

// name takes a name, but for those that are taken for the reason why.
func name(p *string, why string, taken ...string) value {
	return like(p, nameForm, nameAllowed, "is not a name", func(name string) (string, error) {
		if slices.Contains(taken, name) {
			return "", errors.New(why)
		}
		return name, nil
	})
}

// anyText takes any text but the empty one.
func anyText(p *string, allowed string) value {
	return text(p, schema{"minLength": 1}, allowed, func(text string) (string, error) {
		if text == "" {
			return "", errors.New("is empty")
		}
		return text, nil
	})
}

// patternForm has what codes and namespaces are made of, and *. What means something in other patterns,
// such as ? and [, is no part of it.
var patternForm = regexp.MustCompile(`^[A-Za-z0-9_.:, *-]+$`)

// pattern takes a pattern in which * stands for any characters.
func pattern(p *string) value {
	return like(p, patternForm, "letters, digits, - and _, and * for any of them", "is not a pattern", anything)
}

var weekdays = [7]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} // as time.Weekday

func weekday(p *string) value { return oneOf(p, append(weekdays[1:], weekdays[0])...) }

// clock takes HH:MM, in minutes since midnight, up to last.
func clock(p *int, last int) value {
	form, allowed := `^([01][0-9]|2[0-3]):[0-5][0-9]$`, `"00:00" to "23:59"`
	if last == 24*60 {
		form, allowed = `^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$`, `"00:00" to "24:00"`
	}
	return like(p, regexp.MustCompile(form), allowed, "is not a time of the day", func(text string) (int, error) {
		hours, _ := strconv.Atoi(text[:2])
		minutes, _ := strconv.Atoi(text[3:])
		return hours*60 + minutes, nil
	})
}

func zone(p **time.Location) value {
	const allowed = "a name of the IANA, such as Europe/Berlin"
	return text(p, schema{"minLength": 1}, allowed, func(text string) (*time.Location, error) {
		at, err := time.LoadLocation(text)
		if err != nil || text == "" || text == "Local" { // which is another one on each machine
			return nil, errors.New("is not a time zone")
		}
		return at, nil
	})
}

// durationForm is a duration of whole numbers, one of which is not zero.
const durationForm = `^([0-9]+(s|m|h))*[0-9]*[1-9][0-9]*(s|m|h)([0-9]+(s|m|h))*$`

var durationLooks = regexp.MustCompile(durationForm)

// duration takes a duration of whole seconds, from one on.
func duration(p *time.Duration) value {
	return text(p, schema{"pattern": durationForm}, "a duration from 1s on, such as 90s, 30m or 2h30m", parseDuration)
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("is not a duration")
	case d < time.Second:
		return 0, errors.New("is less than a second")
	case !durationLooks.MatchString(text):
		return 0, errors.New("is not of whole hours, minutes or seconds")
	}
	return d, nil
}

// begin takes how long before the start a drain begins; negative: now.
func begin(p *time.Duration) value {
	looks := schema{"pattern": "^(now|start-" + strings.Trim(durationForm, "^$") + ")$"}
	return text(p, looks, "now, or start- and a duration, such as start-30m", func(text string) (time.Duration, error) {
		before, isStart := strings.CutPrefix(text, "start-")
		d, err := parseDuration(before)
		switch {
		case text == beginsNow:
			return -1, nil
		case !isStart:
			return 0, errors.New("is not a begin")
		case err != nil:
			return 0, fmt.Errorf("is not a begin: %s %w", quoted(before), err)
		}
		return d, nil
	})
}

// share takes a number of nodes or a percentage.
func share(p *string) value {
	looks := schema{"anyOf": []schema{
		{"type": "integer", "minimum": 1, "maximum": 100000},
		{"type": "string", "pattern": "^([1-9][0-9]?|100)%$"},
	}}
	return scalar(p, looks, "1 to 100000, or 1% to 100%", func(tag, text string) (nodes string, ok bool) {
		number, isPercent := strings.CutSuffix(text, "%")
		wanted, most := "!!int", 100_000
		if isPercent {
			wanted, most = "!!str", 100
		}
		i, err := strconv.Atoi(number)
		return text, err == nil && tag == wanted && 1 <= i && i <= most
	})
}

var percentageForm = regexp.MustCompile("^([0-9]|[1-9][0-9]|100)%$")

// percentage takes one from 0% to 100%.
func percentage(p **int) value {
	return like(p, percentageForm, "0% to 100%", "is no percentage", func(text string) (*int, error) {
		i, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
		return &i, err
	})
}

func moment(p *time.Time) value {
	return text(p, schema{"format": "date-time"}, momentAllowed, parseMoment)
}

const momentAllowed = "a time such as 2026-03-04T12:00:00Z"

func parseMoment(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, errors.New("is not a time")
	}
	return t.UTC(), nil
}

// beginMoment takes now or a time, which it keeps as now or in UTC.
func beginMoment(p *string) value {
	return text(p, schema{}, "now, or "+momentAllowed, func(text string) (string, error) {
		if text == beginsNow {
			return beginsNow, nil
		}
		t, err := parseMoment(text)
		return t.Format(time.RFC3339), err
	})
}

var (
	efforts    = []decision.Effort{decision.Ignoring, decision.Notifying, decision.Cordoning, decision.Draining}
	departures = []decision.Departure{
		decision.LeaveNow, decision.LeaveFirst, decision.LeaveAfter, decision.LeaveEnd, decision.LeaveLast,
		decision.LeaveSurged, decision.LeaveNever,
	}
)
