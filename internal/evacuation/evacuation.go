// Package evacuation has the words of the drain's main part, in which the pods leave the node: what is
// asked of it, how far it has come, how it ends. Package drain carries it out. Whoever only asks or reports
// needs this package alone, which makes no request and does not know kubectl.
package evacuation

import (
	"errors"
	"time"

	"github.com/go-logr/logr"

	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// A Request is an evacuation that somebody asks for.
type Request struct {
	Node  string
	Terms Terms
	// Resumed: an earlier leader has begun it. What that has asked of pods that are still there counts here.
	Resumed bool
	// Rules say when each pod leaves. They must not change meanwhile. Pods have annotations for that,
	// too, which count without a rule; see [decision.Rules.TurnOf].
	Rules decision.Rules
	// Changed delivers new terms; nil: they never change.
	Changed <-chan Terms
	// Asked delivers questions for the progress of the drain. Each is answered at once, but for the moment in which
	// the drain has not begun or has ended: who asks must not wait for ever. The channels need room for the answer.
	// nil: nobody asks.
	Asked <-chan chan<- Progress
	// NodeState returns the present state of the node. It is called often, and makes no request;
	// nil: the node is ready and cordoned.
	NodeState func() NodeState
	Log       logr.Logger
}

// NodeState is what a drain has to know of its node.
type NodeState struct {
	Ready    bool // its kubelet is there
	Cordoned bool
	// CordonPending: somebody has uncordoned the node, and it will be cordoned again. Pods that come
	// meanwhile have to leave too, so that the drain does not end before.
	CordonPending bool
}

// ErrMachineGone is the cause with which the caller ends the context of an evacuation when nothing runs
// on the machine any more, or when its Node is gone. The evacuation is then over.
var ErrMachineGone = errors.New("nothing runs on the node any more")

// Terms are what a drain has to observe. They can change while it runs. Each value of them is
// safe: without a deadline nothing is forced.
type Terms struct {
	// Deadline is when the machine goes away. Zero: not known, and nothing is forced.
	Deadline time.Time
	// IgnoreBudgets has pods deleted instead of evicted: the machine is going away already, and a
	// budget cannot keep a pod on it. It has no effect without a Deadline.
	IgnoreBudgets bool
	// Patient: nothing is forced, whatever the deadline: no pod is deleted, and none gets less than
	// its grace. The drain ends at the deadline all the same.
	Patient bool
	// NoticedAt is when the notice of the deadline came, or when its drain could begin, if that had to wait. Zero: every
	// grace period fits into the notice.
	NoticedAt time.Time
	// BudgetShare is how much of the notice a budget may keep a pod, from 0 to 1, where the pod's grace
	// period does not fit into the notice. Then it is deleted with what is left.
	BudgetShare float64
	// Grace replaces the grace period of the pods, also that of the drainer; zero: it does not.
	// Requests are in whole seconds.
	Grace time.Duration
	// MostGrace is the longest grace period of a pod, whoever sets it; zero: there is none.
	MostGrace time.Duration
	// Reserve: somebody else gets the pods off the node. A pod is asked to leave only at its last moment, and
	// without a deadline never. It has no effect with IgnoreBudgets.
	Reserve bool
	// CordonedAt is when the node was last cordoned.
	CordonedAt time.Time
}

// Progress is how far a drain has come.
type Progress struct {
	Listed    bool // the pods of the node are known
	Pods      overview.Pods
	LastAsked time.Time // when a pod was last asked to leave; zero: never
	LastLeft  time.Time // when a pod had last left; zero: none has
	PodsGone  time.Time // when no pod was waited for any more; zero: not yet
	// Waits are what the drain waits for, what keeps most pods first.
	Waits []overview.Wait
}
