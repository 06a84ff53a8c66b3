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
	days []time.Weekday
}

type nodeRule struct {
	decision.NodeRule
	place  place
	window string // its name; empty: none
	at     startBefore
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
		{"version", "The version of the format.", true, integer(&w.version, 1, 1)},
		{
			"windows", "Times of the day at which drains may begin. Rules name them.", false, windows(&w.windows),
		},
		{
			"nodes", "What is done with a node that gets a notice: the first rule that matches decides. If none does, " +
				"the options decide.", false, objects(&w.nodes, maxRules, (*nodeRule).value),
		},
		{
			"pods", "When the pods of a node leave: the first rule that matches decides. If none does, the pod leaves " +
				"with most others.", false, objects(&w.pods, maxRules, (*podRule).value),
		},
		{
			"tests", "What is expected of the rules: node-termination-handler policy test runs them.", false,
			objects(&w.tests, maxTests, (*test).value),
		},
	})
}

func (w *window) value() value {
	var where place
	return object(&where, "A time of the day, on some days of the week.", []field{
		{"days", "The days on which it opens. Default: all.", false, texts(&w.days, weekday)},
		{"from", "When it opens, by the clock of its zone: HH:MM.", true, clock(&w.From, 24*60-1)},
		{
			"to", "When it closes: HH:MM, or 24:00. If that is not later than from, it closes on the next day.", true,
			clock(&w.To, 24*60),
		},
		{"zone", "The time zone, as the IANA names it. Default: UTC.", false, zone(&w.Zone)},
	})
}

func (rule *nodeRule) value() value {
	return object(&rule.place, "A rule for nodes.", []field{
		{"name", "The name of the rule, which no other rule for nodes has.", true, name(&rule.Name, func(name string) error {
			if decision.IsOption(name) {
				return errors.New("stands for an option")
			}
			return nil
		})},
		{"kinds", "The kinds of notice that the rule is about. Default: all but launches.", false, texts(&rule.Kinds, kind)},
		{
			"codes", "Patterns for the code of a scheduled change, such as *_REBOOT_*, or for the status checks that " +
				"fail, of which there are instance, system, and both: instance, system. * stands for any characters. Needs " +
				"kinds that have codes: " + kindsThat(hasCode) + ". Default: any.", false, texts(&rule.Codes, pattern),
		},
		{
			"nodes", "Label selectors for the nodes that the rule is about: one of them has to match. Default: all nodes.",
			false, texts(&rule.Nodes, labelSelector),
		},
		{
			"do", "What is done with the node: ignore does nothing, notify tells of the notice, cordon keeps new pods " +
				"away, drain also makes its pods leave.", true,
			oneOf(&rule.Do, choices(decision.Ignoring, decision.Notifying, decision.Cordoning, decision.Draining)...),
		},
		{
			"at", "When the drain begins: now, or so long before the start of what is announced, such as start-30m. " +
				"Needs kinds with a start: " + kindsThat(hasStart) + ". Default: now.", false, begin(&rule.at),
		},
		{
			"within", "The name of the window in which the drain begins, unless that would be too late. Not for kinds " +
				"that are about minutes. Default: any time.", false, anyText(&rule.window, "the name of a window"),
		},
		{
			"force", "Whether pods that have not left are forced before the deadline: deadline or never. Default: " +
				"deadline.", false, oneOf(&rule.Patient, choice[bool]{"deadline", false}, choice[bool]{"never", true}),
		},
		{
			"grace", "The grace period of the pods, in place of their own: a duration of whole seconds, such as 60s.",
			false, duration(&rule.Grace),
		},
		{
			"grace-at-most", "The longest grace period of a pod, whoever sets it: a longer one is cut to this, a shorter one " +
				"stays.", false, duration(&rule.MostGrace),
		},
		{
			"budgets", "How much of the notice PodDisruptionBudgets may keep a pod whose grace period does not fit into it, " +
				"such as 30%. After that it is deleted with what is left; 0%: once its eviction was refused. Default: 50%.", false,
			percentage(&rule.BudgetPercent),
		},
		{
			"by", "Who gets the pods off a node of Karpenter's: karpenter needs the option drain-by-karpenter, and " +
				"then Karpenter's rules count for the pods. Default: karpenter with that option, else handler.", false,
			oneOf(&rule.By, drainer(decision.ByHandler), drainer(decision.ByKarpenter)),
		},
		{
			"limit", "How many nodes may be not ready or cordoned before further drains wait. Not for kinds that are " +
				"about minutes. Default: no limit but that of the option max-unready-nodes.", false, limit(&rule.Limit),
		},
		{
			"first", "replacement: another instance of the node's Auto Scaling group stands ready before the drain begins. " +
				"Needs a kind that leaves the time: " + kindsThat(decision.Replaceable) + ". Default: no replacement is " +
				"waited for.", false, oneOf(&rule.ReplaceFirst, choice[bool]{"replacement", true}),
		},
		{
			"wait", "How long the limit holds a drain back at most, and how long a replacement is waited for, such as 2h. " +
				"Needs limit or first. Default: as long as the drain can wait; for a replacement 15m.",
			false, duration(&rule.Limit.Wait),
		},
	})
}

func drainer(by decision.By) choice[decision.By] { return choice[decision.By]{string(by), by} }

func limit(l *decision.Limit) value {
	var where place
	return object(&where, "", []field{
		{
			"nodes", "How many nodes of a group may be not ready or cordoned, by whomever: a number, or a percentage " +
				"of the group.", true, share(&l.Nodes),
		},
		{
			"per", "The key of a label, such as topology.kubernetes.io/zone: nodes with the same value are one group. " +
				"Default: all nodes are one group.", false,
			text(&l.Per, schema{}, "the key of a label", func(key string) (string, error) {
				if len(validation.IsQualifiedName(key)) > 0 {
					return "", errors.New("is not the key of a label")
				}
				return key, nil
			}),
		},
	})
}

func (rule *podRule) value() value {
	return object(&rule.place, "A rule for pods.", []field{
		{"name", "The name of the rule, which no other rule for pods has.", true, name(&rule.Name, func(name string) error {
			if name == noRule {
				return errors.New("stands for no rule")
			}
			return nil
		})},
		{
			"pods", "Label selectors for the pods that the rule is about: one of them has to match. Default: all pods.",
			false, texts(&rule.Pods, labelSelector),
		},
		{
			"annotations", "The same for annotations of the pods.",
			false, texts(&rule.Annotations, labelSelector),
		},
		{
			"namespaces", "Patterns for the namespaces of the pods, such as data-*. Default: all.", false,
			texts(&rule.Namespaces, pattern),
		},
		{
			"daemonsets", "true: the rule is about pods of DaemonSets, and about no others. Only such a rule makes " +
				"them leave.", false, boolean(&rule.DaemonSets),
		},
		{
			"leave", "When the pod leaves. now: with most others. first: before them. after: after them, by its order. " +
				"end: after all others. last: as late as its grace period allows. surged: once a replacement is " +
				"ready. never: not at all.", true, oneOf(&rule.Leave, departures...),
		},
		{
			"order", "The place among those that leave after the others. Needs leave: after. Default: 1.", false,
			integer(&rule.Order, 1, 100),
		},
	})
}

func (t *test) value() value {
	return object(&t.place, "A test of the rules: of a notice for a node, or of a pod.", []field{
		{"name", "What the test is about, for people.", true, anyText(&t.Name, "any text")},
		{"kind", "The kind of the notice. Needed in a test of a notice.", false, kind(&t.Kind)},
		{"code", "The code of the scheduled change, or the status checks that fail.", false, anyText(&t.Code, "any text")},
		{"labels", "The labels of the node.", false, labels(&t.Labels)},
		{
			"now", "When the notice comes, such as 2026-03-04T12:00:00Z. Needed where begin is expected.", false, moment(&t.Now),
		},
		{"start", "When the scheduled change begins.", false, moment(&t.Start)},
		{"pod", "The pod. Needed in a test of a pod.", false, t.podValue()},
		{"expect", "What is to come out. What is not given is not compared.", true, t.expectValue()},
	})
}

func (t *test) podValue() value {
	return object(&t.pod, "", []field{
		{"namespace", "Its namespace. Default: default.", false, anyText(&t.podAsked.Namespace, "any text")},
		{"labels", "Its labels.", false, labels(&t.podAsked.Labels)},
		{"annotations", "Its annotations.", false, labels(&t.podAsked.Annotations)},
		{"daemonset", "Whether it is of a DaemonSet. Default: false.", false, boolean(&t.podAsked.DaemonSet)},
	})
}

func (t *test) expectValue() value {
	var efforts []choice[string]
	for _, c := range choices(decision.Ignoring, decision.Notifying, decision.Cordoning, decision.Draining) {
		efforts = append(efforts, choice[string]{c.word, c.word})
	}
	var leaves []choice[string]
	for _, c := range departures {
		leaves = append(leaves, choice[string]{c.word, c.word})
	}
	return object(&t.expected, "", []field{
		{"do", "What is done with the node.", false, oneOf(&t.Want.Do, efforts...)},
		{
			"rule", "The name of the rule that decides; for a pod none if there is no rule. The options are the rules " +
				strings.Join(decision.OptionRules, ", ") + ".", false, anyText(&t.Want.Rule, "the name of a rule"),
		},
		{"begin", "When the drain begins: now, or a time.", false, beginMoment(&t.Want.Begin)},
		{"leave", "When the pod leaves, or never.", false, oneOf(&t.Want.Leave, leaves...)},
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
				w.Days[day] = len(w.days) == 0 || slices.Contains(w.days, time.Weekday(day))
			}
			*p = append(*p, w)
		})
	}}
}

// nameForm is a label of DNS, and not too long for a line.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

const nameAllowed = "at most 40 small letters, digits and -, with a letter or digit at both ends"

func name(p *string, check func(string) error) value {
	return text(p, schema{"pattern": nameForm.String()}, nameAllowed, func(name string) (string, error) {
		if !nameForm.MatchString(name) {
			return "", errors.New("is not a name")
		}
		return name, check(name)
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
	const allowed = "letters, digits, - and _, and * for any of them"
	return text(p, schema{"pattern": patternForm.String()}, allowed, func(text string) (string, error) {
		if !patternForm.MatchString(text) {
			return "", errors.New("is not a pattern")
		}
		return text, nil
	})
}

func weekday(p *time.Weekday) value {
	var days []choice[time.Weekday]
	for day := range 7 {
		at := time.Weekday((day + 1) % 7)
		days = append(days, choice[time.Weekday]{strings.ToLower(at.String()[:3]), at})
	}
	return oneOf(p, days...)
}

// clock takes HH:MM, in minutes since midnight, up to last.
func clock(p *int, last int) value {
	form := `^([01][0-9]|2[0-3]):[0-5][0-9]$`
	allowed := `"00:00" to "23:59"`
	if last == 24*60 {
		form, allowed = `^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$`, `"00:00" to "24:00"`
	}
	like := regexp.MustCompile(form)
	return text(p, schema{"pattern": form}, allowed, func(text string) (int, error) {
		if !like.MatchString(text) {
			return 0, errors.New("is not a time of the day")
		}
		hours, _ := strconv.Atoi(text[:2])
		minutes, _ := strconv.Atoi(text[3:])
		return hours*60 + minutes, nil
	})
}

func zone(p **time.Location) value {
	const allowed = "a name of the IANA, such as Europe/Berlin"
	return text(p, schema{"minLength": 1}, allowed, func(text string) (*time.Location, error) {
		if text == "" || text == "Local" { // which is another one on each machine
			return nil, errors.New("is not a time zone")
		}
		at, err := time.LoadLocation(text)
		if err != nil {
			return nil, errors.New("is not a time zone")
		}
		return at, nil
	})
}

const durationForm = `^([0-9]+(\.[0-9]+)?(s|m|h))+$`

// duration takes a duration of whole seconds, from one on.
func duration(p *time.Duration) value {
	return text(p, schema{"pattern": durationForm}, "a duration from 1s on, such as 90s, 30m or 2h30m",
		func(text string) (time.Duration, error) { return parseDuration(text) })
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("is not a duration")
	case d < time.Second:
		return 0, errors.New("is less than a second")
	case d%time.Second != 0:
		return 0, errors.New("is not a number of whole seconds")
	}
	return d, nil
}

// startBefore is how long before the start a drain begins; the zero value stands for now.
type startBefore struct {
	time.Duration
	given bool
}

func begin(p *startBefore) value {
	looks := schema{"pattern": "^(now|start-" + strings.Trim(durationForm, "^$") + ")$"}
	return text(p, looks, "now, or start- and a duration, such as start-30m", func(text string) (startBefore, error) {
		if text == "now" {
			return startBefore{}, nil
		}
		before, ok := strings.CutPrefix(text, "start-")
		if !ok {
			return startBefore{}, errors.New("is not a begin")
		}
		d, err := parseDuration(before)
		if err != nil {
			return startBefore{}, fmt.Errorf("is not a begin: %s %w", quoted(before), err)
		}
		return startBefore{d, true}, nil
	})
}

// share takes a number of nodes or a percentage.
func share(p *string) value {
	const allowed = "1 to 100000, or 1% to 100%"
	looks := schema{"anyOf": []schema{
		{"type": "integer", "minimum": 1, "maximum": 100000},
		{"type": "string", "pattern": "^([1-9][0-9]?|100)%$"},
	}}
	return value{schema: looks, read: func(r *reader, n *yaml.Node, at string) {
		number, isPercent := strings.CutSuffix(n.Value, "%")
		most := 100_000
		if isPercent {
			most = 100
		}
		i, err := strconv.Atoi(number)
		wanted := map[bool]string{false: "!!int", true: "!!str"}[isPercent]
		if n.ShortTag() != wanted || err != nil || i < 1 || i > most {
			r.refuse(n, at, "is %s; allowed: %s", kindOf(n), allowed)
			return
		}
		*p = n.Value
	}}
}

// percentage takes one from 0% to 100%.
func percentage(p **int) value {
	looks := schema{"pattern": "^([0-9]|[1-9][0-9]|100)%$"}
	return text(p, looks, "0% to 100%", func(text string) (*int, error) {
		number, isPercent := strings.CutSuffix(text, "%")
		i, err := strconv.Atoi(number)
		if !isPercent || err != nil || i < 0 || i > 100 || strconv.Itoa(i) != number {
			return nil, errors.New("is no percentage")
		}
		return &i, nil
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

func choices[T fmt.Stringer](all ...T) []choice[T] {
	var words []choice[T]
	for _, v := range all {
		words = append(words, choice[T]{v.String(), v})
	}
	return words
}

var departures = choices(decision.LeaveNow, decision.LeaveFirst, decision.LeaveAfter, decision.LeaveEnd,
	decision.LeaveLast, decision.LeaveSurged, decision.LeaveNever)
