package controller

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/node-termination-handler/node-termination-handler/e2e/golden"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/eventpattern"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/nodedrain"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/notice/sample"
)

// The times of the doc's notices. No two of them make the same deadline, so that a
// deadline tells which of them it comes from.
const (
	docAge       = 10 * time.Second // of a notice
	docGrace     = 7 * time.Minute
	docTimeout   = 23 * time.Minute
	docHeartbeat = 3 * time.Hour
	docLead      = 30 * time.Hour // of a scheduled change
)

// now is when the doc is about.
var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

// A situation is one row of the doc: the sample of the kind, changed, and what is
// known of its instance.
type situation struct {
	words   string
	replace []string        // in the body, as of strings.NewReplacer
	age     time.Duration   // zero: docAge
	started bool            // the scheduled change has begun
	facts   decision.Facts  // but now
	limits  bool            // the hook's limits, if there is one, are known
	policy  decision.Policy // but NodeGracePeriod
	// instanceType is the type of the instances of a Capacity Block.
	instanceType string
}

// When a Capacity Block ends of which the doc tells, and when one of an UltraServer does.
var (
	blockEnd      = now.Add(40*time.Minute - docAge).Format(time.RFC3339)
	laterBlockEnd = now.Add(100*time.Minute - docAge).Format(time.RFC3339)
)

// retirement is the code of the sample of a scheduled change.
const retirement = "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED"

// known is what is known of the instance of a Node here.
var known = decision.Facts{Ownership: decision.Ours}

// restarted is the situation in which a notice is about an earlier life of its instance.
var restarted = situation{words: "EC2 says that the instance was started after the event", facts: decision.Facts{Ownership: decision.Ours, Launched: now}}

// notSpot is the situation in which a notice about spot instances cannot be true.
var notSpot = situation{words: "EC2 says that the instance is no spot instance", facts: decision.Facts{Ownership: decision.Ours, NotSpot: true}}

// overtaken is the situation in which there is nothing to drain any more.
var overtaken = situation{words: "the notice is more than a minute late, and EC2 says that the instance has stopped or terminated", age: 5 * time.Minute, facts: decision.Facts{Ownership: decision.Ours, State: decision.Gone}}

// following is the situation in which all is done already.
var following = situation{
	words: "an earlier notice announced this: its drain is finished, and all Nodes of the instance are still cordoned and empty",
	facts: decision.Facts{Ownership: decision.Ours, Drained: true}, limits: true,
}

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
		"EC2 reclaims a spot instance. It terminates or stops it two minutes after the event. A hibernation begins at once.",
		[]situation{
			{words: "`instance-action` is `hibernate`: that begins at once", replace: []string{`"terminate"`, `"hibernate"`}, facts: known},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 5 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
			notSpot,
			restarted,
		},
	},
	{
		sample.CapacityReservation, "Capacity reservation interruption", "",
		"EC2 takes back an instance that runs in an interruptible Capacity Reservation, or in a Capacity Block. The event says when\nit is terminated. AWS sends it two minutes before for interruptible reservations.",
		[]situation{
			{words: "the event does not say when", replace: []string{`"instance-termination-time"`, `"other"`}, facts: known},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 5 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
			restarted,
		},
	},
	{
		sample.CapacityBlock, "Capacity Block expiration", "",
		"A Capacity Block ends in 40 minutes, and EC2 begins to terminate its instances 30 minutes before its end. The event names the\nCapacity Reservation of the block; EC2 is asked for its instances. Each of them is a case of its own; the message is deleted\nwhen all are done. If EC2 shows no instance of the reservation, or the role lacks the permission, see\n[below](#instances-that-are-not-of-this-cluster).",
		[]situation{
			{words: "the instances are of an UltraServer: they are terminated earlier", replace: []string{blockEnd, laterBlockEnd}, instanceType: "p6e-gb200.36xlarge", facts: known},
			{words: "the instances are of an UltraServer, and the warning comes too late for that", instanceType: "p6e-gb200.36xlarge", facts: known},
			{words: "the event does not say when the block ends", replace: []string{`"end-date"`, `"other"`}, facts: known},
			{words: "the instance was started after the event: it ends with its block", facts: decision.Facts{Ownership: decision.Ours, Launched: now}},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 20 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
		},
	},
	{
		sample.Rebalance, "Rebalance recommendation", "enable-rebalance-draining",
		"A spot instance is at elevated risk of being interrupted. It may never be.",
		[]situation{notSpot, restarted},
	},
	{
		sample.StateChange, "Instance state change", "",
		"Somebody stops or terminates an instance: a person, an autoscaler, EC2 itself.",
		[]situation{
			{words: "state `shutting-down`", replace: []string{`"stopping"`, `"shutting-down"`}, facts: known},
			following,
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			{words: "the notice is more than a minute late, and EC2 says that the instance runs", age: 5 * time.Minute, facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}},
			overtaken,
			restarted,
			{words: "state `stopped` or `terminated`, and EC2 says for a minute that the instance runs", replace: []string{`"stopping"`, `"stopped"`}, facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}},
			{words: "state `stopped`", replace: []string{`"stopping"`, `"stopped"`}, facts: known},
			{words: "state `terminated`", replace: []string{`"stopping"`, `"terminated"`}, facts: known},
			{words: "state `running`", replace: []string{`"stopping"`, `"running"`}, facts: known},
			{words: "state `stopped` or `terminated`; no Node yet", replace: []string{`"stopping"`, `"terminated"`}, facts: decision.Facts{Ownership: decision.Pending}},
		},
	},
	{
		sample.Health, "Scheduled change", "enable-scheduled-event-draining",
		"AWS announces maintenance: a retirement, a reboot, a stop. One event can name several instances, or\nDedicated Hosts: then EC2 is asked for the instances on them. The handler decides about each instance, and deletes the\nmessage when it is done with all.",
		[]situation{
			{words: "by its code it reboots the machine", replace: []string{retirement, "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "by its code it cuts the network for a moment", replace: []string{retirement, "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "its code does not say what it does, or is new", replace: []string{retirement, "AWS_EC2_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "the start of the change has passed, or cannot be read", started: true, facts: known},
			restarted,
			{words: "`statusCode` is `closed` (the change is over or cancelled), or the `status` of the instance's entity is `RESOLVED` or `UNIMPAIRED`", replace: []string{`"upcoming"`, `"closed"`}, facts: known},
			{words: "`statusCode` is `closed`, and the instance has no Node", replace: []string{`"upcoming"`, `"closed"`}, facts: decision.Facts{Ownership: decision.Pending}},
			{words: "the message that cancels the change arrived before the one that announces it", facts: decision.Facts{Ownership: decision.Ours, CalledOff: true}},
		},
	},
	{
		sample.ASGTerminate, "Termination lifecycle hook", "enable-asg-lifecycle-draining",
		"Auto Scaling is about to terminate an instance, and waits for the hook. The cause can be a scale-in, an instance refresh, a\nrebalance of zones or an unhealthy instance. The handler reads the timeout and the global limit of the hook from Auto Scaling.",
		[]situation{
			{words: "with `heartbeat-interval`", facts: known, limits: true, policy: decision.Policy{HeartbeatUntil: docHeartbeat}},
			{words: "with `heartbeat-interval`, and `heartbeat-until` beyond the hook's global limit", facts: known, limits: true, policy: decision.Policy{HeartbeatUntil: 48 * time.Hour}},
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "the instance goes to a warm pool, or gets another root volume (`Destination`, `Action`): see [below](#machines-that-come-back)", replace: []string{`"Destination": "EC2"`, `"Destination": "WarmPool"`}, limits: true, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, limits: true, facts: known},
			following,
			restarted,
			{words: "`lifecycle-hook-names` does not name the hook", limits: true, policy: decision.Policy{HookNames: []string{"another"}}, facts: known},
			{words: "`lifecycle-hook-names` does not name the hook; the Node or the instance is gone", facts: decision.Facts{Ownership: decision.Departed}, policy: decision.Policy{HookNames: []string{"another"}}},
		},
	},
	{
		sample.ASGLaunch, "Launch lifecycle hook", "",
		"Auto Scaling has launched an instance, and waits for the hook. The handler completes the hook when the Node is ready. At the deadline\nthe hook's default result applies.",
		[]situation{
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "`lifecycle-hook-names` does not name the hook", limits: true, policy: decision.Policy{HookNames: []string{"another"}}, facts: known},
		},
	},
}

// ordinary are the situations that every kind can be in; the first is the usual one.
var ordinary = []situation{
	{words: "the instance has a Node", facts: decision.Facts{Ownership: decision.Ours}, limits: true},
	{words: "the instance has a Node; with `cordon-only`", facts: decision.Facts{Ownership: decision.Ours}, limits: true, policy: decision.Policy{CordonOnly: true}},
	{words: "the instance belongs to this cluster and is pending or running, but has no Node yet", facts: decision.Facts{Ownership: decision.Pending}, limits: true},
	{words: "the Node or the instance is gone", facts: decision.Facts{Ownership: decision.Departed}},
}

// strangers are the situations in which the kind does not matter.
var strangers = []situation{
	{words: "the instance has no Node here, and according to EC2 it does not exist or belongs to another cluster", facts: decision.Facts{Ownership: decision.Foreign}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: decision.Facts{Ownership: decision.Foreign}, policy: decision.Policy{DeleteForeign: true}},
	{words: "the event is of an account that is not in `event-accounts`, or of another region; logged once for each", facts: decision.Facts{Ownership: decision.Elsewhere}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: decision.Facts{Ownership: decision.Elsewhere}, policy: decision.Policy{DeleteForeign: true}},
	{words: "the instance lacks the managed tag, with `check-tag-before-draining`, which is the default", facts: decision.Facts{Ownership: decision.Unmanaged}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: decision.Facts{Ownership: decision.Unmanaged}, policy: decision.Policy{DeleteForeign: true}},
	{words: "the instance has no Node here, and the role lacks the permission to ask EC2 about it (without the tag check)", facts: decision.Facts{Ownership: decision.Unknown}},
	{words: "the same, with `delete-sqs-msg-if-node-not-found`", facts: decision.Facts{Ownership: decision.Unknown}, policy: decision.Policy{DeleteForeign: true}},
}

var ignoredWords = map[notice.Reason]string{
	notice.OtherService:     "an event of another service, or one after which no instance goes away, such as a successful launch or termination",
	notice.OtherState:       "the instance is `pending` or in another state that is not named above",
	notice.NotScheduled:     "AWS Health reports an issue, an account notification or another service than EC2",
	notice.NoInstance:       "a scheduled change that names no instance and no Dedicated Host",
	notice.TestNotification: "Auto Scaling tests whether it may send to the queue (`autoscaling:TEST_NOTIFICATION`)",
	notice.Replayed:         "a custom event bus replays an event (`aws:DeliveryType` is not `LIVE`)",
	notice.OtherPublisher:   "a custom event bus does not confirm, by `aws:Source`, that AWS has sent the event",
	notice.Confirmation:     "SNS asks to confirm a subscription, which the handler never does",
}

func TestNoticesDocIsWhatDecideSays(t *testing.T) {
	golden.Compare(t, "../../docs/notices.md", noticesDoc(t))
}

// Whatever reason the log and the metrics can give stands in the doc.
func TestNoticesDocHasEveryReason(t *testing.T) {
	t.Parallel()
	doc := noticesDoc(t)
	others := decision.Policy{HookNames: []string{"one of ours"}}
	for _, l := range append(others.Possible(), decision.Policy{}.Possible()...) {
		if !strings.Contains(doc, "| `"+string(l.Why)+"` |") {
			t.Errorf("docs/notices.md has no row with the reason %s (%s, %s)", l.Why, l.Kind, l.Action)
		}
	}
}

func noticesDoc(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# What happens on each kind of notice

<!-- Generated from internal/controller by make generate -->

A *notice* is what one message in the queue says. The [EventBridge rules](../deploy/eventbridge/patterns.json), which the templates
create, decide which kinds of notice arrive. The options that select kinds of notice count in [IMDS mode](imds.md) only. The tables hold
in that mode too: there the metadata of the instance tells what a message tells here. Events may also come
[by a topic of SNS or a custom event bus](fan-out.md), and Auto Scaling's own messages from a hook's notification target.

The tables are generated from the code. The column ` + "`why`" + ` is the reason of the decision, also in the log line ` + "`decided`" + ` and in
` + "`node_termination_handler_decisions_total`" + `.

- *Cordon*: one patch makes the Node unschedulable, and adds the taint and the label if the options ask for them. It also writes an
  annotation, the *intent*, which is enough to finish the drain without the message.
- *Drain*: the pods are evicted, each with its own grace period. If there is a deadline, and a PodDisruptionBudget still protects a
  pod, that pod is deleted at deadline − grace − 5 s. Where a grace period does not fit into the notice, the budget gets
  half of the time, and the pod is deleted with the rest ([the key budgets of a policy](policy.md#rules-for-nodes)).
- *Forced*: the pod is deleted instead of evicted, past PodDisruptionBudgets.
- All notices about a node share one drain, with the earliest of their deadlines. Each message waits for its end.
- With ` + "`dry-run`" + ` the decisions are the same, and nothing is written.
`)
	fmt.Fprintf(&b, "\n## At a glance\n\nWith the default options, for an instance that has a Node:\n\n"+
		"| Notice | What happens | Deadline | Limited by `max-unready-nodes` and `workers` |\n|---|---|---|---|\n")
	for _, k := range docKinds {
		n, d := k.ask(t, ordinary[0])
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s |\n", k.heading, strings.ReplaceAll(strings.ToLower(k.heading), " ", "-"),
			actionWords(n, d), deadlineWords(t, n, d), restraintWords(n, d))
	}
	rows, shared := rowsOf(t)
	b.WriteString("\n## What several kinds have in common\n\n| Situation | Kinds | What happens | `why` | Deadline | The message is deleted |\n|---|---|---|---|---|---|\n")
	for _, r := range shared {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.words, kindsWords(r.kinds), r.what, r.why, r.deadline, r.message)
	}
	for _, k := range docKinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n\n", k.heading, k.intro, k.origin(t))
		b.WriteString("| Situation | What happens | `why` | Deadline | The message is deleted |\n|---|---|---|---|---|\n")
		for _, r := range rows[k.kind] {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.words, r.what, r.why, r.deadline, r.message)
		}
	}
	b.WriteString("\n## Instances that are not of this cluster\n\nFor every kind:\n\n| Situation | What happens | `why` | The message is deleted |\n|---|---|---|---|\n")
	for _, s := range strangers {
		first, d := docKinds[0].ask(t, s)
		for _, k := range docKinds {
			if n, other := k.ask(t, s); other != d {
				t.Errorf("%s: %v is decided otherwise than %v: it needs a row of its own", s.words, n.Kind, first.Kind)
			}
		}
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s |\n", s.words, actionWords(first, d), d.Why, messageWords(t, first, d))
	}
	b.WriteString("\nA message that is left comes back until its retention ends. If EC2 cannot be reached, the handler keeps the message and asks again.\n" +
		"\nAn instance without a Node belongs to this cluster in these cases:\n\n" +
		"- With the tag check, it has the managed tag. With `cluster-name` too, it must not have only tags of other clusters.\n" +
		"- With `cluster-name`, it has the tag of this cluster.\n" +
		"- With neither of the two, it was launched less than 15 minutes ago.\n" +
		"\nA Node whose provider id names no instance, as in k3s, is found by its name: the private DNS name of the instance. Two clusters of\n" +
		"one account whose VPCs have the same addresses can have Nodes of the same name. Set `cluster-name` in both: then the instances' tags\n" +
		"tell them apart.\n" +
		"\nAn instance that is neither pending nor running counts as gone.\n" +
		polled(t) + personsDoc +
		"\n## Messages that ask for nothing\n\n| Message | `why` | It is |\n|---|---|---|\n")
	for _, reason := range notice.Reasons {
		words := ignoredWords[reason]
		if words == "" {
			t.Errorf("the doc has no words for %s", reason)
		}
		fmt.Fprintf(&b, "| %s | `%s` | deleted |\n", words, reason)
	}
	fmt.Fprintf(&b, "| an event about an id that is no instance id | `%s` | left; logged once. With `delete-sqs-msg-if-node-not-found` deleted |\n", decision.WhyNoInstanceID)
	fmt.Fprintf(&b, "| not an event, or an event without the fields of its type | `%s` | left for SQS to move to the dead-letter queue, if there is a redrive policy; else logged and deleted |\n", decision.WhyUndecodable)
	return b.String()
}

// A docRow is what happens in a situation, of the kinds for which that is the same.
type docRow struct {
	words, what, why, deadline, message string
	kinds                               []string // their headings
}

// rowsOf are the rows of each kind, and those that several kinds share.
func rowsOf(t *testing.T) (own map[sample.Kind][]docRow, shared []docRow) {
	t.Helper()
	var all []docRow
	for _, k := range docKinds {
		for i, s := range slices.Concat(ordinary[:2], k.specials, ordinary[2:]) {
			n, d := k.ask(t, s)
			r := docRow{s.words, actionWords(n, d), "`" + string(d.Why) + "`", deadlineWords(t, n, d), messageWords(t, n, d), []string{k.heading}}
			if n.Hook.Name != "" {
				r.message += "; the hook: " + hookWords(n, d, s.of())
			}
			same := slices.IndexFunc(all, func(o docRow) bool { return o.words == r.words && o.what == r.what && o.message == r.message })
			if i == 0 || same < 0 { // the usual situation is each kind's own
				all = append(all, r)
				continue
			}
			all[same].kinds = append(all[same].kinds, k.heading)
			if all[same].why != r.why {
				all[same].why = "that of the kind"
			}
			if all[same].deadline != r.deadline {
				all[same].deadline = "that of the kind"
			}
		}
	}
	own = map[sample.Kind][]docRow{}
	for _, r := range all {
		if len(r.kinds) > 1 {
			shared = append(shared, r)
			continue
		}
		k := slices.IndexFunc(docKinds, func(k docKind) bool { return k.heading == r.kinds[0] })
		own[docKinds[k].kind] = append(own[docKinds[k].kind], r)
	}
	return own, shared
}

// kindsWords names kinds, or those that are missing.
func kindsWords(kinds []string) string {
	var others []string
	for _, k := range docKinds {
		if !slices.Contains(kinds, k.heading) {
			others = append(others, strings.ToLower(k.heading))
		}
	}
	if len(others) <= 2 {
		return strings.TrimSuffix("all but "+strings.Join(others, ", "), " but ")
	}
	return strings.ToLower(strings.Join(kinds, ", "))
}

const personsDoc = `
## Lifecycle hooks without a notice

EventBridge delivers events with best effort, and a rule can be missing. So the leader asks Auto Scaling every 30 seconds
(sweep-interval) which instances wait: for a termination hook, or for the replacement of their root volume in an instance refresh.
If a node's instance waits at two sweeps in a row, and the node carries no such hook, it is handled as if the notice had come: the
rows of [termination lifecycle hook](#termination-lifecycle-hook) apply. A heartbeat asks whether the hook is open, and so its
timeout starts again. Both ` + "`autoscaling:DescribeAutoScalingGroups`" + ` and ` + "`autoscaling:RecordLifecycleActionHeartbeat`" + ` are needed.

Some hooks are left to their owners, unless ` + "`lifecycle-hook-names`" + ` names them: those of EKS managed node groups, those with a
notification target, and the other hooks of an instance of which a notice has told.

An instance that its group retains after an abandoned termination needs a person: its node gets the Event InstanceRetained.

## Machines that come back

Some machines go and come back, with their Node: after a reboot or a stop for a scheduled change, after another root volume in an
instance refresh (` + "`ReplaceRootVolume`" + `), from a warm pool, from hibernation. Then the cordon, the taints and the labels of
this handler are removed, and nothing that somebody else has added.

When a node is ready again, or its kubelet tells another boot id than at the cordon, the handler compares:

| What the node was drained for | It is over when |
|---|---|
| any notice but the expiration of a Capacity Block | EC2 says that the instance was started after it |
| a scheduled change | the node has another boot id, and the start of the change has passed |
| a termination hook after which the machine returns (` + "`Action`" + ` or ` + "`Destination`" + `) | the node has another boot id, and the hook is not open any more |
| any notice with a deadline, if the role lacks the permission to ask EC2 | the node has another boot id, and the deadline has passed |

A launch hook does the same for what came before it, and is completed after that. Its node is ready only if it has none of
` + "`startup-taints`" + `, and no taint whose key begins with ` + "`readiness.k8s.io/`" + `.

## Outdated messages

Some messages may be outdated: those that are more than a minute old, and those that say that the instance has stopped or terminated, or
that a scheduled change is over. The handler asks EC2 before it acts on one of these. It sets the out-of-service taint, and ends a
drain, only if EC2 confirms the message. Without the permission to ask EC2 it believes the message, but does not set the taint.

## A notice after a finished drain

A notice for a node whose drain is finished starts a new drain, with its own deadline. A repeated message does not. Nor does the notice
that the instance stops, if all pods left in the first drain, and the Nodes are still cordoned and empty.

## Several Nodes, or the next one

All Nodes of an instance are cordoned and drained. The hook is completed when the last of them is empty.

A Node that registers after or beside another Node of its instance gets the notices of that Node: if the drain is unfinished or the
deadline is in the future, and the instance was not started since. If a Node is deleted and EC2 says that its instance still runs, the
handler waits for the next Node until the deadline, but 15 minutes at most, or ` + "`node-termination-grace-period`" + ` if a lifecycle hook is
open.

## When somebody uncordons a node during its drain

| The node is drained for | What happens | ` + "`why`" + ` |
|---|---|---|
| a machine that goes away: a spot interruption, an interrupted Capacity Reservation, a Capacity Block that expires, a stopping instance, a termination hook, or a scheduled change less than ` + "`node-termination-grace-period`" + ` ahead | it is cordoned again, once, with a Warning Event; its pods are drained | ` + "`uncordoned-by-somebody`" + ` |
| the same, and somebody uncordons it again | it stays uncordoned, with a Warning Event; the drain continues, but new pods on the node stay | ` + "`uncordoned-by-somebody-again`" + ` |
| a notice that can wait: a rebalance recommendation, a scheduled change, a notice that forces nothing; or an impaired instance | the drain is called off and reverted; a newer notice starts a new drain | ` + "`uncordoned-by-somebody`" + ` |

If somebody uncordons a node after its drain, the handler takes any later cordon for somebody else's, and never reverts it.
`

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
	words := fmt.Sprintf("Event `%s` of `%s`", e.Type, e.Source)
	words += "; rule `" + ruleFor(t, body) + "`"
	if k.nth == "" {
		return words + "."
	}
	options, err := os.ReadFile("../../docs/options.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ofIMDS, _ := strings.Cut(string(options), "\n## IMDS mode\n")
	ofIMDS, _, _ = strings.Cut(ofIMDS, "\n## ")
	if !strings.Contains(ofIMDS, "| `"+k.nth+"` |") {
		t.Errorf("%s is no option of the IMDS mode", k.nth)
	}
	return words + fmt.Sprintf("; in IMDS mode option `%s`.", k.nth)
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

func (s situation) of() decision.Policy {
	p := s.policy
	p.NodeGracePeriod = docGrace
	return p
}

// ask has the kind's sample, as it is in the situation, read and decided about.
func (k docKind) ask(t *testing.T, s situation) (notice.Notice, decision.Decision) {
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
		Partition: "aws", Zone: "us-east-1a", Group: "workers", Hook: "drain", Token: "f2a5c0a1-6d3f-4b6a-9b62-000000000001",
		Reservation: "cr-0123456789abcdef0",
	}.Body()
	changed := strings.NewReplacer(s.replace...).Replace(body)
	if len(s.replace) > 0 && changed == body {
		t.Fatalf("%q: nothing to replace in %s", s.words, body)
	}
	n, err := notice.Parse(changed)
	if err != nil {
		t.Fatal(err)
	}
	n = n.OnType(s.instanceType)
	f := s.facts
	f.Now = now
	if s.limits && n.Hook.Name != "" {
		f.Limits = notice.HookLimits{Timeout: docTimeout, Global: 100 * docTimeout}
	}
	return n, decision.Decide(n, f, s.of())
}

func actionWords(n notice.Notice, d decision.Decision) string {
	switch d.Action {
	case decision.Leave, decision.Drop:
		return "nothing"
	case decision.Hold:
		return "waits for the Node, then as if it had been there"
	case decision.Cordon:
		return "cordon; the pods stay"
	case decision.Undo:
		return "what this handler did for the change is reverted, unless the node has another notice"
	case decision.Finish:
		return "the node's drain ends, its hooks are completed; the out-of-service taint if the option is set"
	case decision.Complete:
		return "the hook is completed"
	case decision.Launch:
		return "waits until the Node is ready, or the instance is gone"
	case decision.Drain:
	}
	terms := nodedrain.TermsOf(intent.Intent{}.With(d.Entry(n, time.Now()), nil, now))
	switch {
	case terms.IgnoreBudgets:
		return "cordon; the pods are deleted, not evicted"
	case terms.Deadline.IsZero():
		return "cordon, drain; nothing is forced"
	case !terms.Deadline.After(now):
		return "cordon; the pods are deleted with a grace period of one second"
	}
	return "cordon, drain; forced before the deadline"
}

// deadlineWords tells which time the deadline comes from.
func deadlineWords(t *testing.T, n notice.Notice, d decision.Decision) string {
	t.Helper()
	switch lead := d.Deadline.Sub(n.Time); {
	case d.Deadline.IsZero():
	case n.Kind == notice.CapacityReservationInterruption && !n.Deadline.IsZero():
		return "its `instance-termination-time`"
	case n.Kind == notice.CapacityBlockExpiration && n.Deadline.IsZero():
		return fmt.Sprintf("the event + %.0f minutes", lead.Minutes())
	case n.Kind == notice.CapacityBlockExpiration && lead == 10*time.Minute:
		return "30 minutes before its end"
	case n.Kind == notice.CapacityBlockExpiration && lead == 40*time.Minute:
		return "60 minutes before its end"
	}
	switch d.Deadline {
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
	case n.Time.Add(time.Hour):
		return "the event + 1 hour, Auto Scaling's default"
	case now.Add(docLead):
		return "its start"
	}
	t.Errorf("%v: the doc has no words for the deadline %s after the event, %s from now", n.Kind, d.Deadline.Sub(n.Time), d.Deadline.Sub(now))
	return ""
}

// messageWords says when the message is deleted.
func messageWords(t *testing.T, n notice.Notice, d decision.Decision) string {
	t.Helper()
	switch d.Action {
	case decision.Leave:
		return "not: left for other readers"
	case decision.Drop:
		return "at once"
	case decision.Cordon, decision.Undo, decision.Complete:
		return "when that is done"
	case decision.Finish:
		return "after the drain"
	case decision.Launch:
		return "when the hook is completed, or at the deadline"
	case decision.Hold:
		switch d.HoldUntil {
		case d.Deadline:
			return "when that is done, or at the deadline if no Node has come"
		case n.Time.Add(docGrace):
			return "when that is done, or `node-termination-grace-period` after the event if no Node has come"
		case n.Time.Add(decision.Young):
			return "when that is done, or 15 minutes after the event if no Node has come"
		}
	case decision.Drain:
		switch d.HoldUntil {
		case time.Time{}:
			return "after the drain"
		case now.Add(docGrace):
			return "after the drain, or after `node-termination-grace-period`"
		}
	}
	t.Errorf("%v: the doc has no words for %s with a patience to %s from now", n.Kind, d.Action, d.HoldUntil.Sub(now))
	return ""
}

// hookWords says what becomes of the notice's hook.
func hookWords(n notice.Notice, d decision.Decision, p decision.Policy) string {
	switch {
	case !p.Owns(n.Hook):
		return "left to its owner"
	case d.Action == decision.Drain:
		return "completed after the drain"
	case d.Action == decision.Cordon:
		return "completed when that is done"
	case d.Action == decision.Hold && p.WithoutNode(n) == decision.Complete:
		return "completed when that is done, or if no Node has come"
	case d.Action == decision.Launch:
		return "completed when the Node is ready"
	case d.Action == decision.Complete:
		return "completed at once"
	}
	return "stays open"
}

// restraintWords says whether the work waits for others, as restrain and takeSlot do.
func restraintWords(n notice.Notice, d decision.Decision) string {
	carried := intent.Intent{}.With(d.Entry(n, time.Now()), nil, now)
	p := decision.Policy{NodeGracePeriod: docGrace}
	switch {
	case d.Action != decision.Drain:
		return "no"
	case carried.Urgent():
		return "no"
	case !decision.CanWait(carried, now, p):
		return "no, so near the deadline"
	case d.Deadline.IsZero():
		return "yes"
	}
	return "yes, until `node-termination-grace-period` before the deadline"
}
