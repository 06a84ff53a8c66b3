// Package report defines what the controller reports about its work to metrics, Kubernetes
// Events and the webhook. Receivers of reports implement [Observer].
package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// An Observer receives reports. Its methods are called concurrently, and must not
// block.
type Observer interface {
	// Decided is called for each decision about an instance, and for each message that names none.
	Decided(Decision)
	// Recorded is called when a cordoned node begins to carry a notice.
	Recorded(intent.Entry)
	// Stepped is called when a step of the work on a node is done, and each time it fails.
	Stepped(Step)
	// Drained is called at the end of a drain. It is not called if the drain is interrupted
	// and the next leader continues it.
	Drained(Drain)
}

// A Decision is the controller's decision about a notice for one instance, or about a
// message that names no instance.
type Decision struct {
	Notice   notice.Notice
	Instance string
	Node     cluster.Ref // zero: none
	Action   decision.Action
	Why      decision.Why
	Deadline time.Time // zero: none
	DryRun   bool      // the decision is not carried out
	Rule     string    // the name of the rule that decided; empty: none was asked
	Repeated bool      // the node carries the notice already: its message was redelivered
	Waited   bool      // a second decision, after waiting for the instance's Node
}

// A Step is one step of the work on a node.
type Step struct {
	Node cluster.Ref
	Kind StepKind
	Why  decision.Why
	// Detail explains Why to people; it can be empty.
	Detail string
	Err    error // nil: the step is done
}

// Reason is the reason for the step, for people.
func (s Step) Reason() string { return cmp.Or(s.Detail, string(s.Why)) }

// A StepKind names a step: a metric label, so a closed set. Cordon and Uncordon have the
// values that the label node_action has in the metrics of AWS Node Termination Handler.
type StepKind string

// The steps.
const (
	Cordon         StepKind = "cordon"
	Uncordon       StepKind = "uncordon"
	Undo           StepKind = "undo" // of a drain whose node the handler has not cordoned
	HoldBack       StepKind = "hold-back"
	CordonAgain    StepKind = "cordon-again"    // after somebody uncordoned the node during its drain
	LeftUncordoned StepKind = "left-uncordoned" // after somebody uncordoned it once more
	CallOff        StepKind = "call-off"        // after somebody uncordoned it, and the drain can wait
	Ignore         StepKind = "ignore"          // a notice about a node that the controller does not manage
	Retain         StepKind = "retain"          // by the Auto Scaling group, after an abandoned termination
	Unscheduled    StepKind = "unscheduled"     // pods that have left the node, and for which there is no other
	Impair         StepKind = "impair"          // the instance, of which the status checks fail
	Replace        StepKind = "replace"         // the node has a replacement before its drain, or gets none
	Delegate       StepKind = "ask-karpenter"   // to replace the node, and to get the pods off it
	TakeOver       StepKind = "take-over"       // from Karpenter, which does not do that
	KeepDelegated  StepKind = "keep-delegated"  // what asked for the drain is over, and Karpenter replaces the node
)

// A Drain is a drain that has ended.
type Drain struct {
	Node    cluster.Ref
	Intent  intent.Intent // as the node carried it then
	Outcome intent.Outcome
	Result  evacuation.Result
	Targets Targets
	Took    time.Duration // until the pods had left
	Resumed bool          // an earlier leader began it: Result and Took are about what came after
	Told    []string      // pods left behind that an earlier drain of the node has told of: they are not counted again
}

// Left are the numbers of pods left behind that are counted: those of Result, but for Told. They are zero where nobody
// has listed the pods.
func (d Drain) Left() (missed, lost, unconfirmed int) {
	if d.Result.Unlisted != nil {
		return 0, 0, 0
	}
	count := func(pods []string) (n int) {
		for _, name := range pods {
			if !slices.Contains(d.Told, name) {
				n++
			}
		}
		return n
	}
	return count(d.Result.Missed), count(d.Result.Lost), count(d.Result.Unconfirmed)
}

// Targets say how the machine left its load balancers, after its pods had left.
type Targets struct {
	Waited time.Duration // for load balancers
	// Left are the names of the target groups in which the machine is still, or of which that is not known.
	Left []string
}

// Deadline is when the machine goes away; zero: not known.
func (d Drain) Deadline() time.Time { return d.Intent.Deadline() }

// Slack is the time between the end of the pods and the deadline, and not positive where pods were there at its end. It
// is not known where one of the two is not, as where no kubelet has confirmed that pods have ended.
func (d Drain) Slack() (slack time.Duration, known bool) {
	deadline, gone := d.Deadline(), d.Result.Record.PodsGone
	left := len(d.Result.Missed)+len(d.Result.Lost) > 0
	switch {
	case deadline.IsZero(), gone.IsZero() && !left, len(d.Result.Unconfirmed) > 0 && !left:
		return 0, false
	case gone.IsZero(): // the machine was, before its pods were listed
		return 0, true
	case left:
		return min(0, deadline.Sub(gone)), true
	}
	return deadline.Sub(gone), true
}

// Remaining are the pods that are the reason for the drain's outcome.
func (d Drain) Remaining() []string {
	r := d.Result
	if d.Outcome == intent.Missed && len(r.Missed) == 0 { // it is late
		return r.Unconfirmed
	}
	return map[intent.Outcome][]string{
		intent.Missed: r.Missed, intent.Gone: r.Lost, intent.Unconfirmed: r.Unconfirmed,
	}[d.Outcome]
}

// A Delivery is the outcome of a message of the webhook. It is a metric label, so the set is closed.
type Delivery string

// The outcomes of a message.
const (
	Sent    Delivery = "sent"
	Failed  Delivery = "failed"
	Dropped Delivery = "dropped" // too many messages waited
)

// Load is what a controller has in progress.
type Load struct {
	Drains       int
	HeldBack     int       // drains that wait: for their time, for a limit, for a replacement
	HeldByLimit  int       // of these, because too many nodes are cordoned or not ready
	Oldest       time.Time // when the oldest drain began in this process; zero: none
	Deadline     time.Time // the nearest one of a drain that still waits for pods; zero: none
	Hooks        int       // open lifecycle hooks
	HookDeadline time.Time // the nearest timeout of a hook; zero: none, or unknown
}

// Observers pass each report to all, one after another.
type Observers []Observer

// Decided implements [Observer].
func (all Observers) Decided(d Decision) {
	for _, o := range all {
		o.Decided(d)
	}
}

// Recorded implements [Observer].
func (all Observers) Recorded(e intent.Entry) {
	for _, o := range all {
		o.Recorded(e)
	}
}

// Stepped implements [Observer].
func (all Observers) Stepped(s Step) {
	for _, o := range all {
		o.Stepped(s)
	}
}

// Drained implements [Observer].
func (all Observers) Drained(d Drain) {
	for _, o := range all {
		o.Drained(d)
	}
}
