package controller

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/node-termination-handler/node-termination-handler/internal/asg"
	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

var update = flag.Bool("update", false, "write docs/notices.md")

// The times of the doc's notices. No two of them make the same deadline, so that a
// deadline tells which of them it comes from.
const (
	docAge       = 10 * time.Second // of a notice
	docGrace     = 7 * time.Minute
	docTimeout   = 23 * time.Minute
	docHeartbeat = 3 * time.Hour
	docLead      = 30 * time.Hour // of a scheduled change
)

// A situation is one row of the doc: the sample of the kind, changed, and what is
// known of its instance.
type situation struct {
	words   string
	replace []string      // in the body, as of strings.NewReplacer
	age     time.Duration // zero: docAge
	started bool          // the scheduled change has begun
	facts   facts         // but now
	limits  bool          // the hook's limits, if there is one, are known
	policy  Policy        // but NodeGracePeriod
}

// known is what is known of the instance of a Node here.
var known = facts{whose: ours}

// A docKind is a section of the doc.
type docKind struct {
	kind     sample.Kind
	heading  string
	nth      string // the option of NTH that is no more
	intro    string
	specials []situation // beside those that every kind has
}

var docKinds = []docKind{
	{
		sample.Spot, "Spot interruption", "enable-spot-interruption-draining",
		"EC2 takes a spot instance back. It terminates, stops or hibernates it two minutes after the event.",
		[]situation{
			{words: "`instance-action` is `hibernate`: that begins at once", replace: []string{`"terminate"`, `"hibernate"`}, facts: known},
			{words: "it came late: its deadline passed less than 15 minutes ago", age: 5 * time.Minute, facts: known},
			{words: "it came late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
		},
	},
	{
		sample.Rebalance, "Rebalance recommendation", "enable-rebalance-draining",
		"A spot instance is at elevated risk of being interrupted. It may never be.", nil,
	},
	{
		sample.StateChange, "Instance state change", "",
		"Somebody stops or terminates an instance: a person, an autoscaler, EC2 itself.",
		[]situation{
			{words: "state `shutting-down`", replace: []string{`"stopping"`, `"shutting-down"`}, facts: known},
			{words: "it came late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			{words: "state `stopped`", replace: []string{`"stopping"`, `"stopped"`}, facts: known},
			{words: "state `terminated`", replace: []string{`"stopping"`, `"terminated"`}, facts: known},
			{words: "state `stopped` or `terminated`; no Node yet", replace: []string{`"stopping"`, `"terminated"`}, facts: facts{whose: pending}},
		},
	},
	{
		sample.Health, "Scheduled change", "enable-scheduled-event-draining",
		"AWS announces maintenance: a retirement, a reboot, a stop. Each instance that the event names is a case of its own; the\nmessage is deleted when all are done.",
		[]situation{
			{words: "its start has passed, or cannot be read", started: true, facts: known},
			{words: "`statusCode` is `closed`: it is over, or called off", replace: []string{`"upcoming"`, `"closed"`}, facts: known},
			{words: "`closed`, and the instance has no Node", replace: []string{`"upcoming"`, `"closed"`}, facts: facts{whose: pending}},
			{words: "it was called off by a message that came before its announcement", facts: facts{whose: ours, calledOff: true}},
		},
	},
	{
		sample.ASGTerminate, "Termination lifecycle hook", "enable-asg-lifecycle-draining",
		"Auto Scaling takes an instance out of its group, and waits for the hook: a scale-in, an instance refresh, a rebalance of\nzones, an unhealthy instance. The limits of the hook are read from Auto Scaling.",
		[]situation{
			{words: "with `heartbeat-interval`", facts: known, limits: true, policy: Policy{HeartbeatUntil: docHeartbeat}},
			{words: "with `heartbeat-interval`, and `heartbeat-until` beyond the hook's global limit", facts: known, limits: true, policy: Policy{HeartbeatUntil: 48 * time.Hour}},
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "it came late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, limits: true, facts: known},
			{words: "`lifecycle-hook-names` does not have the hook", limits: true, policy: Policy{HookNames: []string{"another"}}, facts: known},
			{words: "`lifecycle-hook-names` does not have the hook; the Node or the instance is gone", facts: facts{whose: departed}, policy: Policy{HookNames: []string{"another"}}},
		},
	},
	{
		sample.ASGLaunch, "Launch lifecycle hook", "",
		"Auto Scaling holds a new instance back until the hook is completed: until its Node is ready.",
		[]situation{
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "`lifecycle-hook-names` does not have the hook", limits: true, policy: Policy{HookNames: []string{"another"}}, facts: known},
		},
	},
}

// ordinary are the situations that every kind can be in; the first is the usual one.
var ordinary = []situation{
	{words: "a Node has the instance", facts: facts{whose: ours}, limits: true},
	{words: "a Node has the instance; `cordon-only`", facts: facts{whose: ours}, limits: true, policy: Policy{CordonOnly: true}},
	{words: "no Node has it yet, but it is of this cluster and pending or running", facts: facts{whose: pending}, limits: true},
	{words: "the Node or the instance is gone", facts: facts{whose: departed}},
}

// strangers are the situations in which the kind does not matter.
var strangers = []situation{
	{words: "no Node has the instance, and EC2 knows it as none of this cluster's, or does not know it; or the event is of another account or region", facts: facts{whose: foreign}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: facts{whose: foreign}, policy: Policy{DeleteForeign: true}},
	{words: "the instance lacks the managed tag, with `check-tag-before-draining`, which is the default", facts: facts{whose: unmanaged}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: facts{whose: unmanaged}, policy: Policy{DeleteForeign: true}},
	{words: "no Node has the instance, and the role may not ask EC2 about it (without the tag check)", facts: facts{whose: unknown}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: facts{whose: unknown}, policy: Policy{DeleteForeign: true}},
}

var ignoredWords = map[notice.Reason]string{
	notice.OtherService:     "an event of another service, or of a type that takes no machine away, such as a launch or a termination that was successful",
	notice.OtherState:       "an instance is `pending`, `running` or in a state that is none of those above",
	notice.NotScheduled:     "AWS Health tells of an issue, an account notification or another service than EC2",
	notice.NoInstance:       "a scheduled change of other things than instances",
	notice.TestNotification: "Auto Scaling tries whether it may send to the queue (`autoscaling:TEST_NOTIFICATION`)",
	notice.Confirmation:     "SNS asks for a subscription to be confirmed: the handler does not do that",
}

func TestNoticesDocIsWhatDecideSays(t *testing.T) {
	const path = "../../docs/notices.md"
	doc := noticesDoc(t)
	if *update {
		if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(written), doc); diff != "" {
		t.Errorf("%s is stale, make generate writes it anew (-file +code):\n%s", path, diff)
	}
}

// Whatever reason the log and the metrics can give stands in the doc.
func TestNoticesDocHasEveryReason(t *testing.T) {
	doc := noticesDoc(t)
	others := &Controller{Policy: Policy{HookNames: []string{"one of ours"}}}
	for _, d := range append(others.Decisions(), new(Controller).Decisions()...) {
		if !strings.Contains(doc, "| `"+d.Why+"` |") {
			t.Errorf("docs/notices.md has no row with the reason %s (%s, %s)", d.Why, d.Notice.Kind, d.Action)
		}
	}
}

func noticesDoc(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# What happens on each kind of notice

<!-- Generated from internal/controller by make generate -->

The handler acts on what the queue brings: which kinds those are is for the rules of EventBridge to say. The rules by
their names are those of [deploy/eventbridge/patterns.json](../deploy/eventbridge/patterns.json), which both templates make; take a
rule away, and nothing of its kind arrives. The options by which NTH chose the kinds in IMDS mode have no effect here,
as they had none in its queue mode.

Each row is what the code decides, with its reason: the field ` + "`why`" + ` of the log line ` + "`decided`" + `, and the label of
` + "`node_termination_handler_decisions_total`" + `. For more about how pods leave see [architecture](architecture.md).

- *Cordon* is one patch of the Node: unschedulable, the taint and the label if they are wanted, and the annotation that holds
  all that is needed to finish without the message.
- *Drain* evicts the pods, each with its own grace. Under a deadline a pod that a budget still protects is deleted when its
  grace, and 5 s, are all that is left; one whose grace is longer gets what is left.
- All notices of a node are one drain with the earliest of their deadlines. Each message waits for its end.
- ` + "`dry-run`" + ` decides the same, writes nothing, and leaves the message and the hook as they are.
`)
	fmt.Fprintf(&b, "\n## At a glance\n\nWhere a Node has the instance, with the defaults:\n\n"+
		"| Notice | What happens | Deadline | Bound by `max-unready-nodes` and `workers` |\n|---|---|---|---|\n")
	for _, k := range docKinds {
		n, d := k.ask(t, ordinary[0])
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s |\n", k.heading, strings.ReplaceAll(strings.ToLower(k.heading), " ", "-"),
			actionWords(n, d), deadlineWords(t, n, d), restraintWords(n, d))
	}
	for _, k := range docKinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n\n", k.heading, k.intro, k.origin(t))
		row := func(n notice.Notice, cells ...string) {
			if n.Hook.Name == "" { // the last column is the hook's
				cells = cells[:len(cells)-1]
			}
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		}
		n, _ := k.ask(t, ordinary[0])
		row(n, "Situation", "What happens", "`why`", "Deadline", "The message", "The hook")
		row(n, "---", "---", "---", "---", "---", "---")
		for _, s := range slices.Concat(ordinary[:2], k.specials, ordinary[2:]) {
			n, d := k.ask(t, s)
			row(n, s.words, actionWords(n, d), "`"+string(d.why)+"`", deadlineWords(t, n, d), messageWords(t, n, d), hookWords(n, d, s.of()))
		}
	}
	b.WriteString("\n## Instances that are not of this cluster\n\nFor every kind:\n\n| Situation | What happens | `why` | The message |\n|---|---|---|---|\n")
	for _, s := range strangers {
		first, d := docKinds[0].ask(t, s)
		for _, k := range docKinds {
			if n, other := k.ask(t, s); other != d {
				t.Errorf("%s: %v is decided otherwise than %v: it needs a row of its own", s.words, n.Kind, first.Kind)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s |\n", s.words, actionWords(first, d), d.why, messageWords(t, first, d))
	}
	b.WriteString("\nA look-up that failed is none of these: the message is held, and the look-up tried again.\n" +
		"\nAn instance without a Node is of this cluster if it has the managed tag (with the tag check) or this cluster's tag (with\n`cluster-name`); with neither of the two, if it was launched less than 15 minutes ago. One that is not pending or running\nis gone, and so is one whose Node was seen to go.\n" +
		"\n## Messages that ask for nothing\n\n| Message | `why` | It is |\n|---|---|---|\n")
	for _, reason := range notice.Reasons {
		words := ignoredWords[reason]
		if words == "" {
			t.Errorf("the doc has no words for %s", reason)
		}
		fmt.Fprintf(&b, "| %s | `%s` | deleted |\n", words, reason)
	}
	fmt.Fprintf(&b, "| what is no event at all, or lacks what its type must have | `%s` | left where the queue has a redrive policy, and parked by SQS; else logged and deleted |\n", WhyUndecodable)
	return b.String()
}

// origin says where the kind's events come from.
func (k docKind) origin(t *testing.T) string {
	var e struct {
		Source string
		Type   string `json:"detail-type"`
	}
	body := sample.Notice{Kind: k.kind}.Body()
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatal(err)
	}
	words := fmt.Sprintf("Event `%s` of `%s`; rule `%s`", e.Type, e.Source, ruleFor(t, body))
	if k.nth == "" {
		return words + "."
	}
	options, err := os.ReadFile("../../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	_, noEffect, _ := strings.Cut(string(options), "\n## Accepted, without effect\n")
	if !strings.Contains(noEffect, "| `"+k.nth+"` |") {
		t.Errorf("%s is no option without effect", k.nth)
	}
	return words + fmt.Sprintf("; in IMDS mode NTH had `%s` for it.", k.nth)
}

// ruleFor is the rule of deploy/eventbridge that takes the event.
func ruleFor(t *testing.T, body string) string {
	text, err := os.ReadFile("../../deploy/eventbridge/patterns.json")
	if err != nil {
		t.Fatal(err)
	}
	var rules map[string]json.RawMessage
	if err := json.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for name, pattern := range rules {
		p, err := eventpattern.Parse(string(pattern))
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := p.Match(body); err != nil {
			t.Fatal(err)
		} else if ok {
			return name
		}
	}
	t.Fatalf("no rule takes %s", body)
	return ""
}

func (s situation) of() Policy {
	p := s.policy
	p.NodeGracePeriod = docGrace
	return p
}

// ask has the kind's sample, as it is in the situation, read and decided about.
func (k docKind) ask(t *testing.T, s situation) (notice.Notice, decision) {
	t.Helper()
	age, start := docAge, now.Add(docLead)
	if s.age != 0 {
		age = s.age
	}
	if s.started {
		start = now.Add(-time.Minute)
	}
	body := sample.Notice{
		Kind: k.kind, ID: "1", Time: now.Add(-age), Start: start, Instance: "i-0123456789abcdef0", Account: "123456789012", Region: "us-east-1",
		Partition: "aws", Zone: "us-east-1a", Group: "workers", Hook: "drain", Token: "1",
	}.Body()
	changed := strings.NewReplacer(s.replace...).Replace(body)
	if len(s.replace) > 0 && changed == body {
		t.Fatalf("%q: nothing to replace in %s", s.words, body)
	}
	n, err := notice.Parse(changed)
	if err != nil {
		t.Fatal(err)
	}
	f := s.facts
	f.now = now
	if s.limits && n.Hook.Name != "" {
		f.limits = asg.Limits{Timeout: docTimeout, Global: 100 * docTimeout}
	}
	return n, decide(n, f, s.of())
}

func actionWords(n notice.Notice, d decision) string {
	switch d.action {
	case leave, drop:
		return "nothing"
	case hold:
		return "waits for the Node, and does then as above"
	case cordon:
		return "cordon; the pods stay"
	case undo:
		return "what this handler did for the change is taken back, unless the node has another reason"
	case finish:
		return "the node's drain ends, its hooks are completed; the out-of-service taint if it is wanted"
	case complete:
		return "the hook is completed"
	case launch:
		return "waits until the Node is ready, or the instance is gone"
	case drain:
	}
	terms := termsOf(cluster.Intent{}.With(entryOf(n, d), nil, now))
	switch {
	case terms.IgnoreBudgets:
		return "cordon; the pods are deleted, budgets are not asked"
	case terms.Deadline.IsZero():
		return "cordon, drain; nothing is forced"
	case !terms.Deadline.After(now):
		return "cordon; the pods get a second"
	}
	return "cordon, drain; in the end force"
}

// deadlineWords tells which time the deadline comes from.
func deadlineWords(t *testing.T, n notice.Notice, d decision) string {
	t.Helper()
	switch d.deadline {
	case time.Time{}:
		return "none"
	case n.Time:
		return "the event"
	case n.Time.Add(2 * time.Minute):
		return "the event + 2 minutes"
	case n.Time.Add(docGrace):
		return "the event + `node-termination-grace-period`"
	case n.Time.Add(docTimeout - 5*time.Second):
		return "the event + the hook's timeout − 5 s"
	case n.Time.Add(docHeartbeat - 5*time.Second):
		return "the event + `heartbeat-until` − 5 s"
	case n.Time.Add(100*docTimeout - 5*time.Second):
		return "the event + the hook's global limit − 5 s"
	case now.Add(docLead):
		return "its start"
	}
	t.Errorf("%v: the doc has no words for the deadline %s after the event, %s from now", n.Kind, d.deadline.Sub(n.Time), d.deadline.Sub(now))
	return ""
}

// messageWords says what becomes of the message.
func messageWords(t *testing.T, n notice.Notice, d decision) string {
	t.Helper()
	switch d.action {
	case leave:
		return "left for other readers; it comes back until its retention ends"
	case drop:
		return "deleted"
	case cordon, undo, complete:
		return "deleted when that is done"
	case finish:
		return "deleted when the drain has ended"
	case launch:
		return "deleted when the hook is completed, or at the deadline"
	case hold:
		switch d.patience {
		case d.deadline:
			return "deleted when that is done, or at the deadline if no Node has come"
		case n.Time.Add(docGrace):
			return "deleted when that is done, or `node-termination-grace-period` after the event if no Node has come"
		case n.Time.Add(young):
			return "deleted when that is done, or 15 minutes after the event if no Node has come"
		}
	case drain:
		switch d.patience {
		case time.Time{}:
			return "deleted when the drain has ended"
		case now.Add(docGrace):
			return "deleted when the drain has ended, or after `node-termination-grace-period`: the Node carries the rest"
		}
	}
	t.Errorf("%v: the doc has no words for %s with a patience to %s from now", n.Kind, d.action, d.patience.Sub(now))
	return ""
}

// hookWords says what becomes of the notice's hook.
func hookWords(n notice.Notice, d decision, p Policy) string {
	switch {
	case !p.owns(n.Hook):
		return "left to whom it belongs"
	case d.action == drain:
		return "completed when the drain has ended"
	case d.action == cordon:
		return "completed when that is done"
	case d.action == hold && p.afterPatience(n) == complete:
		return "completed when that is done, or if no Node has come"
	case d.action == launch:
		return "completed when the Node is ready; at the deadline left to its default result"
	case d.action == complete:
		return "completed at once"
	}
	return "stays open"
}

// restraintWords says whether the work waits for others, as restrain and takeSlot do.
func restraintWords(n notice.Notice, d decision) string {
	intent := cluster.Intent{}.With(entryOf(n, d), nil, now)
	p := Policy{NodeGracePeriod: docGrace, MaxUnready: intstr.FromInt32(1)}
	switch {
	case d.action != drain:
		return "no"
	case urgent(intent):
		return "no"
	case !canWait(intent, now, p):
		return "no, so near the deadline"
	case d.deadline.IsZero():
		return "yes"
	}
	return "yes, until `node-termination-grace-period` before the deadline"
}
