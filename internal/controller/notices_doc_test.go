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
	short    string // in a list of kinds
	nth      string // the option of NTH that is no more
	intro    string
	specials []situation // beside those that every kind has
}

var docKinds = []docKind{
	{
		sample.Spot, "Spot interruption", "spot", "enable-spot-interruption-draining",
		"EC2 reclaims a spot instance: it terminates or stops it two minutes after the event. A hibernation begins at once.",
		[]situation{
			{words: "`instance-action` is `hibernate`", replace: []string{`"terminate"`, `"hibernate"`}, facts: known},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 5 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
			notSpot,
			restarted,
		},
	},
	{
		sample.CapacityReservation, "Capacity reservation interruption", "reservation", "",
		"EC2 takes back an instance in an interruptible Capacity Reservation, two minutes after the event, or in a Capacity Block.",
		[]situation{
			{words: "the event does not say when", replace: []string{`"instance-termination-time"`, `"other"`}, facts: known},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 5 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
			restarted,
		},
	},
	{
		sample.CapacityBlock, "Capacity Block expiration", "block", "",
		"A Capacity Block ends in 40 minutes, and EC2 begins to terminate its instances 30 minutes before its end. The event names the\nreservation of the block; EC2 is asked for its instances, each of which is a case of its own. A message that names a block without an\ninstance here is [left](#instances-that-are-not-of-this-cluster).",
		[]situation{
			{words: "the instances are of an UltraServer", replace: []string{blockEnd, laterBlockEnd}, instanceType: "p6e-gb200.36xlarge", facts: known},
			{words: "the instances are of an UltraServer, and the warning comes too late for that", instanceType: "p6e-gb200.36xlarge", facts: known},
			{words: "the event does not say when the block ends", replace: []string{`"end-date"`, `"other"`}, facts: known},
			{words: "the instance was started after the event: it ends with its block", facts: decision.Facts{Ownership: decision.Ours, Launched: now}},
			{words: "the notice is late: its deadline passed less than 15 minutes ago", age: 20 * time.Minute, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			overtaken,
		},
	},
	{
		sample.Rebalance, "Rebalance recommendation", "rebalance", "enable-rebalance-draining",
		"A spot instance is at elevated risk of being interrupted. It may never be. To cordon only, or to ignore it:\n[policy](policy.md#rules-for-nodes).",
		[]situation{notSpot, restarted},
	},
	{
		sample.StateChange, "Instance state change", "state change", "",
		"Somebody stops or terminates an instance: a person, an autoscaler, EC2 itself. The state is `stopping` or `shutting-down`, if the\ntable does not name another.",
		[]situation{
			{words: "state `shutting-down`", replace: []string{`"stopping"`, `"shutting-down"`}, facts: known},
			following,
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, facts: known},
			{words: "the notice is more than a minute late, and EC2 says that the instance runs", age: 5 * time.Minute, facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}},
			overtaken,
			restarted,
			{words: "state `stopped` or `terminated`, but EC2 says for a minute that the instance runs", replace: []string{`"stopping"`, `"stopped"`}, facts: decision.Facts{Ownership: decision.Ours, State: decision.Running}},
			{words: "state `stopped` or `terminated`", replace: []string{`"stopping"`, `"stopped"`}, facts: known},
			{words: "state `stopped` or `terminated`", replace: []string{`"stopping"`, `"terminated"`}, facts: known},
			{words: "state `running`", replace: []string{`"stopping"`, `"running"`}, facts: known},
			{words: "state `stopped` or `terminated`; no Node yet", replace: []string{`"stopping"`, `"terminated"`}, facts: decision.Facts{Ownership: decision.Pending}},
		},
	},
	{
		sample.Health, "Scheduled change", "scheduled change", "enable-scheduled-event-draining",
		"AWS announces maintenance: a retirement, a reboot, a stop. One event can name several instances, or Dedicated Hosts, whose instances\nEC2 is asked for. Each instance is a case of its own. The reason `scheduled-stop` is that of a retirement or a stop.",
		[]situation{
			{words: "by its code it reboots the machine", replace: []string{retirement, "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "by its code it cuts the network for a moment", replace: []string{retirement, "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "its code does not say what it does, or is new", replace: []string{retirement, "AWS_EC2_MAINTENANCE_SCHEDULED"}, facts: known},
			{words: "the start of the change has passed, or cannot be read", started: true, facts: known},
			restarted,
			{words: "the change is over or cancelled: `statusCode` is `closed`, or the `status` of the instance's entity is `RESOLVED` or `UNIMPAIRED`", replace: []string{`"upcoming"`, `"closed"`}, facts: known},
			{words: "the message that cancels the change came first", facts: decision.Facts{Ownership: decision.Ours, CalledOff: true}},
		},
	},
	{
		sample.ASGTerminate, "Termination lifecycle hook", "termination hook", "enable-asg-lifecycle-draining",
		"Auto Scaling is about to terminate an instance, and waits for the hook: after a scale-in, in an instance refresh, at a rebalance of\nzones, for an unhealthy instance. Also before an instance goes to a warm pool or gets another root volume: [it comes back](#machines-that-come-back).",
		[]situation{
			{words: "with `heartbeat-interval`", facts: known, limits: true, policy: decision.Policy{HeartbeatUntil: docHeartbeat}},
			{words: "with `heartbeat-interval`, and `heartbeat-until` beyond the hook's global limit", facts: known, limits: true, policy: decision.Policy{HeartbeatUntil: 48 * time.Hour}},
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "the instance goes to a warm pool", replace: []string{`"Destination": "EC2"`, `"Destination": "WarmPool"`}, limits: true, facts: known},
			{words: "the notice is late: its deadline passed more than 15 minutes ago, and the Node is still there", age: time.Hour, limits: true, facts: known},
			following,
			restarted,
			{words: "`lifecycle-hook-names` does not name the hook", limits: true, policy: decision.Policy{HookNames: []string{"another"}}, facts: known},
			{words: "`lifecycle-hook-names` does not name the hook; the Node or the instance is gone", facts: decision.Facts{Ownership: decision.Departed}, policy: decision.Policy{HookNames: []string{"another"}}},
		},
	},
	{
		sample.ASGLaunch, "Launch lifecycle hook", "launch hook", "",
		"Auto Scaling has launched an instance, and waits for the hook. The handler completes the hook when the Node is ready: with none of\n`startup-taints`, and no taint whose key begins with `readiness.k8s.io/`. At the deadline the hook's default result applies; that of an\ninstance on its way to a warm pool is completed.",
		[]situation{
			{words: "the limits of the hook cannot be read", facts: known},
			{words: "`lifecycle-hook-names` does not name the hook", limits: true, policy: decision.Policy{HookNames: []string{"another"}}, facts: known},
		},
	},
}

// ordinary are the situations that every kind can be in; the first is the usual one.
var ordinary = []situation{
	{words: "the instance has a Node", facts: decision.Facts{Ownership: decision.Ours}, limits: true},
	{words: "with `cordon-only`", facts: decision.Facts{Ownership: decision.Ours}, limits: true, policy: decision.Policy{CordonOnly: true}},
	{words: "the instance belongs to this cluster and is pending or running, but has no Node yet", facts: decision.Facts{Ownership: decision.Pending}, limits: true},
	{words: "the Node or the instance is gone", facts: decision.Facts{Ownership: decision.Departed}},
}

// strangers are the situations in which the kind does not matter.
var strangers = []situation{
	{words: "no Node here, and according to EC2 the instance does not exist or belongs to another cluster", facts: decision.Facts{Ownership: decision.Foreign}},
	{words: "an account that is not in `event-accounts`, or another region; logged once for each", facts: decision.Facts{Ownership: decision.Elsewhere}},
	{words: "the instance lacks the managed tag (`check-tag-before-draining`, on by default)", facts: decision.Facts{Ownership: decision.Unmanaged}},
	{words: "no Node here, and the role lacks the permission to ask EC2 (without the tag check); or EC2 shows no tags of the instance, less than a minute after its launch", facts: decision.Facts{Ownership: decision.Unknown}},
}

var ignoredWords = map[notice.Reason]string{
	notice.OtherService:     "an event after which no instance goes away, such as a successful launch",
	notice.OtherState:       "an instance state that is not named above",
	notice.NotScheduled:     "AWS Health reports something else than a change of EC2",
	notice.NoInstance:       "a scheduled change that names no instance and no Dedicated Host",
	notice.TestNotification: "Auto Scaling tests whether it may send to the queue",
	notice.Replayed:         "a custom event bus replays an event (`aws:DeliveryType` is not `LIVE`)",
	notice.OtherPublisher:   "a custom event bus does not confirm, by `aws:Source`, that AWS has sent the event",
	notice.Confirmation:     "SNS asks to confirm a subscription",
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
	b.WriteString(introDoc)
	for _, k := range docKinds {
		n, d := k.ask(t, ordinary[0])
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | `%s` |\n", k.heading, strings.ReplaceAll(strings.ToLower(k.heading), " ", "-"),
			actionWords(n, d), deadlineWords(t, n, d), restraintWords(n, d), d.Why)
	}
	b.WriteString(messageDoc)
	rows, shared := rowsOf(t)
	b.WriteString("\n## What several kinds have in common\n\n| Situation | Kinds | What happens | `why` |\n|---|---|---|---|\n")
	for _, r := range shared {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.words, kindsWords(r.kinds), r.what, r.why)
	}
	for _, k := range docKinds {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n", k.heading, k.intro, k.origin(t))
		if len(rows[k.kind]) > 0 {
			b.WriteString("\n| Situation | What happens | `why` |\n|---|---|---|\n")
		}
		for _, r := range rows[k.kind] {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.words, r.what, r.why)
		}
	}
	b.WriteString(strangersDoc)
	for _, s := range strangers {
		byOption := s
		byOption.policy.DeleteForeign = true
		_, d := docKinds[0].ask(t, s)
		_, deleted := docKinds[0].ask(t, byOption)
		for _, k := range docKinds {
			n, other := k.ask(t, s)
			if _, otherDeleted := k.ask(t, byOption); other != d || otherDeleted != deleted {
				t.Errorf("%s: %v is decided otherwise than other kinds: it needs a row of its own", s.words, n.Kind)
			}
		}
		if d.Action != decision.Leave {
			t.Errorf("%s: the doc says that the message is left, not %s", s.words, d.Action)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", s.words, d.Why, map[decision.Action]string{decision.Leave: "left", decision.Drop: "deleted"}[deleted.Action])
	}
	b.WriteString(ownersDoc + polled(t) + personsDoc +
		"\n## Messages that ask for nothing\n\nThey are deleted, but for the last two.\n\n| Message | `why` |\n|---|---|\n")
	for _, reason := range notice.Reasons {
		words := ignoredWords[reason]
		if words == "" {
			t.Errorf("the doc has no words for %s", reason)
		}
		fmt.Fprintf(&b, "| %s | `%s` |\n", words, reason)
	}
	fmt.Fprintf(&b, "| an event about an id that is no instance id: left in the queue | `%s` |\n", decision.WhyNoInstanceID)
	fmt.Fprintf(&b, "| not an event, or one without its fields: left for SQS to move to the dead-letter queue; without a redrive policy logged and deleted | `%s` |\n", decision.WhyUndecodable)
	return b.String()
}

// A docRow is what happens in a situation, of the kinds for which that is the same.
type docRow struct {
	words, what, why string
	kinds            []string // their short names
}

// rowsOf are the rows of each kind, and those that several kinds share. A situation in which the
// usual happens has no row.
func rowsOf(t *testing.T) (own map[sample.Kind][]docRow, shared []docRow) {
	t.Helper()
	var all []docRow
	for _, k := range docKinds {
		n, d := k.ask(t, ordinary[0])
		checkHeld(t, n, d)
		usual, usualDeadline := docRow{what: actionWords(n, d), why: "`" + string(d.Why) + "`"}, deadlineWords(t, n, d)
		for _, s := range slices.Concat(ordinary[1:2], k.specials, ordinary[2:]) {
			n, d := k.ask(t, s)
			checkHeld(t, n, d)
			r := docRow{s.words, actionWords(n, d), "`" + string(d.Why) + "`", []string{k.short}}
			deadline := deadlineWords(t, n, d)
			switch same := r.what == usual.what; {
			case same && deadline == usualDeadline && r.why == usual.why:
				continue
			case same && deadline == usualDeadline:
				r.what = "the usual"
			case same:
				r.what = "the usual; deadline: " + deadline
			case deadline != usualDeadline && deadline != "none":
				r.what += "; deadline: " + deadline
			}
			at := slices.IndexFunc(all, func(o docRow) bool { return o.words == r.words && o.what == r.what })
			if at < 0 {
				all = append(all, r)
				continue
			}
			if !slices.Contains(all[at].kinds, k.short) {
				all[at].kinds = append(all[at].kinds, k.short)
			}
			if all[at].why != r.why {
				all[at].why = "that of the kind"
			}
		}
	}
	own = map[sample.Kind][]docRow{}
	for _, r := range all {
		if len(r.kinds) > 1 {
			shared = append(shared, r)
			continue
		}
		k := slices.IndexFunc(docKinds, func(k docKind) bool { return k.short == r.kinds[0] })
		own[docKinds[k].kind] = append(own[docKinds[k].kind], r)
	}
	return own, shared
}

// checkHeld expects the message to be held for as long as messageDoc says.
func checkHeld(t *testing.T, n notice.Notice, d decision.Decision) {
	t.Helper()
	var want time.Time
	switch {
	case d.Action == decision.Hold && n.Kind == notice.ASGTerminate:
		want = intent.Earlier(n.Time.Add(docGrace), d.Deadline)
	case d.Action == decision.Hold:
		want = intent.Earlier(n.Time.Add(decision.Young), d.Deadline)
	case d.Action == decision.Drain && (d.Deadline.IsZero() || n.Kind == notice.ScheduledChange):
		want = now.Add(docGrace)
	case d.Action != decision.Drain:
		return
	}
	if !d.HoldUntil.Equal(want) {
		t.Errorf("%v: the message is held until %s from now for %s, which the doc does not say", n.Kind, d.HoldUntil.Sub(now), d.Action)
	}
}

// kindsWords names kinds, or those that are missing.
func kindsWords(kinds []string) string {
	var others []string
	for _, k := range docKinds {
		if !slices.Contains(kinds, k.short) {
			others = append(others, k.short)
		}
	}
	if len(others) <= 2 {
		return "all but " + strings.Join(others, ", ")
	}
	return strings.Join(kinds, ", ")
}

const introDoc = `# What happens on each kind of notice

<!-- Generated from internal/controller by make generate -->

A *notice* is what one message in the queue says, or in [IMDS mode](imds.md) the metadata of the instance. The
[EventBridge rules](../deploy/eventbridge/patterns.json) of the templates decide which kinds arrive. ` + "`why`" + ` is the reason of the decision,
also in the log line ` + "`decided`" + ` and in ` + "`node_termination_handler_decisions_total`" + `.

- *Cordon*: one patch makes the Node unschedulable, and adds the taint and the label that options ask for.
- *Drain*: the pods are evicted, each with its own grace period, which ends 2 s before the deadline at the latest.
- *Forced*: a pod that a PodDisruptionBudget or a webhook still protects at deadline − grace − 5 s is deleted instead. Where its grace
  period does not fit into what is left at the cordon, they get [half of that](policy.md#rules-for-nodes), and the pod the rest.
- All notices about a node share one drain, with the earliest of their deadlines.

## At a glance

With the default options, for an instance that has a Node. Below is what differs from this:

| Notice | What happens | Deadline | Limited by ` + "`max-unready-nodes`" + ` and ` + "`workers`" + ` | ` + "`why`" + ` |
|---|---|---|---|---|
`

const messageDoc = `
## The message and the hook

A message is deleted when what it asks for is done, and at once where that is nothing. A drain for a scheduled change, or in which nothing
is forced, goes on without its message after ` + "`node-termination-grace-period`" + `.

A termination hook is completed after the drain of all Nodes of its instance. It is completed at once where nothing is left to drain.
If the instance was started after the event, and Auto Scaling does not wait for the hook any more, nothing is done.

A notice for an instance whose Node is still to come waits for it: until the deadline, but 15 minutes from the event at most. For
a termination hook it is ` + "`node-termination-grace-period`" + `; then the hook is completed, if the instance is [surely of this
cluster](#instances-that-are-not-of-this-cluster).
`

const strangersDoc = `
## Instances that are not of this cluster

Nothing is done, whatever the kind. The message is not deleted: SQS delivers it again, and with the templates moves it to the
dead-letter queue after ten receives:

| Situation | ` + "`why`" + ` | With ` + "`delete-sqs-msg-if-node-not-found`" + ` |
|---|---|---|
`

const ownersDoc = `
If EC2 cannot be reached, the handler keeps the message and asks again.

An instance without a Node belongs to this cluster in these cases:

- With the tag check, it has the managed tag. With ` + "`cluster-name`" + ` too, it must not have only tags of other clusters. Without it, the
  termination hook of an instance that has the tag of a cluster, and no Node here in time, is left to others.
- With ` + "`cluster-name`" + `, it has the tag of this cluster.
- With neither of the two, it was launched less than 15 minutes ago.
- A Node of it was deleted here within the last hour.

A Node whose provider id names no instance, as in k3s, is found by the private DNS name of the instance. If two clusters of one account
can have Nodes of the same name, set ` + "`cluster-name`" + ` in both. The sweep of lifecycle hooks, and what EC2 says only to those who ask, do not
find such a Node.
`

const personsDoc = `
## Lifecycle hooks without a notice

EventBridge delivers with best effort. So the leader asks Auto Scaling every 30 seconds (` + "`sweep-interval`" + `) which instances wait for a
termination hook or for another root volume. If a node's instance waits at two sweeps in a row, it is handled as if the
[notice](#termination-lifecycle-hook) had come. A heartbeat asks whether the hook is open, and so its timeout starts again. The role
needs ` + "`autoscaling:DescribeAutoScalingGroups`" + ` and ` + "`autoscaling:RecordLifecycleActionHeartbeat`" + `.

Left to their owners, unless ` + "`lifecycle-hook-names`" + ` names them, are hooks of EKS managed node groups, hooks with a notification
target, and the other hooks of an instance of which a notice has told.

An instance that its group retains after an abandoned termination needs a person: its node gets the Event InstanceRetained.

## Machines that come back

A machine can come back with its Node: after a reboot or a stop, with another root volume, from a warm pool, from hibernation. Then
the cordon, the taints and the labels of this handler are removed, and nothing that somebody else has added:

| What the node was drained for | It is over when |
|---|---|
| any notice but the expiration of a Capacity Block | EC2 says that the instance was started after it |
| a scheduled change that reboots the machine, unless the leader has found it by asking EC2 | the node has another boot id, and the start of the change has passed |
| a termination hook after which the machine returns (` + "`Action`" + ` or ` + "`Destination`" + `) | the node has another boot id, and the hook is not open any more |
| any notice but a scheduled change, a rebalance recommendation or the expiration of a Capacity Block, if the role lacks the permission to ask EC2 | the node has another boot id, no deadline is ahead, and no termination hook is open |

## Outdated messages

The handler asks EC2 before it acts on a message that is more than a minute old, or that tells of a state or of a scheduled change.
Without the permission to ask, it believes the message if the tag check is off, but does not set the out-of-service taint. With the tag
check it believes an announcement about a Node whose tag EC2 has shown within 24 hours; other messages wait.

A notice for a node whose drain is finished starts a new drain. A repeated message does not.

## Several Nodes, or the next one

All Nodes of an instance are cordoned and drained. A Node that registers after or beside another Node of its instance gets the notices
of that Node: if the drain is unfinished or the deadline is in the future, and the instance was not started since. If a Node is deleted
and its instance still runs, the handler [waits](#the-message-and-the-hook) for the next one.

## When somebody uncordons a node during its drain

| The node is drained for | What happens | ` + "`why`" + ` |
|---|---|---|
| a machine that goes away, also by a scheduled change less than ` + "`node-termination-grace-period`" + ` ahead | it is cordoned again, once, with a Warning Event; its pods are drained | ` + "`uncordoned-by-somebody`" + ` |
| the same, and somebody uncordons it again | it stays uncordoned, with a Warning Event; the drain continues, but new pods stay until somebody cordons it | ` + "`uncordoned-by-somebody-again`" + ` |
| a notice that can wait: a rebalance recommendation, another scheduled change, a notice that forces nothing; an impaired instance | the drain is called off and reverted; a newer notice starts a new drain | ` + "`uncordoned-by-somebody`" + ` |

After the drain, the handler takes any later cordon for somebody else's, and never reverts it.
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
		return "what this handler did is reverted, unless the node has another notice"
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
		return "the event + `heartbeat-until`, or the hook's timeout if that is longer, − 5 s"
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
