// Package overview is what an operator wants to know: which nodes are being drained and what each waits
// for ([Node]), and how earlier drains have gone ([Episode]). The leader serves both as JSON; people read them
// as a table, as a page, and as a report. It is pure.
package overview

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// The paths on which the leader serves JSON, on the port of the metrics. Other replicas answer 503.
const (
	StatusPath  = "/status"  // an Overview
	HistoryPath = "/history" // a History
)

// An Overview is what is in progress.
type Overview struct {
	At     time.Time `json:"at"`
	Source Source    `json:"source"`
	// Leader is the name of the pod that leads, or what its Lease names; empty: nobody leads.
	Leader string `json:"leader,omitempty"`
	// LeadsSince is since when it leads, and Transitions how often the leader has changed, both as the Lease says; zero:
	// not known.
	LeadsSince  time.Time `json:"leadsSince,omitzero"`
	Transitions int       `json:"transitions,omitempty"`
	// Missing says why the leader was not asked, if Source is Nodes; else it is empty.
	Missing string `json:"missing,omitempty"`
	// Leaderless: nobody has led for half a minute, by the Lease.
	Leaderless bool `json:"leaderless,omitempty"`
	// Paused says why the handler is paused; nil: it is not.
	Paused *string `json:"paused,omitempty"`
	// DryRun: the option is on.
	DryRun bool `json:"dryRun,omitempty"`
	// Resuming: the leader has just begun, and does not know yet all drains that nodes carry.
	Resuming bool `json:"resuming,omitempty"`
	// Queue is nil if the leader was not asked or is Resuming, and in IMDS mode.
	Queue *Queue `json:"queue,omitempty"`
	// Policy is nil if the leader was not asked, or there is no policy file.
	Policy *Policy `json:"policy,omitempty"`
	// HeldBack says how many drains are held back, and why; empty: none is.
	HeldBack string `json:"heldBack,omitempty"`
	// Held are messages about instances whose Nodes are waited for, the one that waits shortest first.
	Held []Held `json:"held,omitempty"`
	// Notices says why no notice is acted on, as Deaf does; empty: as far as is known, they are.
	Notices string `json:"notices,omitempty"`
	// LeftAlone are the names of nodes whose notices are not acted on, because people have given them the label for that.
	LeftAlone []string `json:"leftAlone,omitempty"`
	// Unseen says what cannot be seen at present, and why: sentences without a dot.
	Unseen []string `json:"unseen,omitempty"`
	// Unscheduled are the pods that have left nodes and find no other, most pods first.
	Unscheduled []Unscheduled `json:"unscheduled,omitempty"`
	// Cordoned are nodes that are cordoned though their drains have ended: long ago, or with pods left.
	Cordoned []Cordoned `json:"cordoned,omitempty"`
	// Nodes are sorted by their deadlines, those without one last.
	Nodes []Node `json:"nodes"`
}

// A Source is who has told an Overview.
type Source string

// The sources.
const (
	Leader Source = "leader" // all that it knows
	Nodes  Source = "nodes"  // what the nodes carry: no pods, and little of what is waited for
)

// A Queue is what the leader knows of its queue.
type Queue struct {
	InFlight    int       `json:"inFlight"`             // messages that the leader holds; SQS may count others
	Oldest      time.Time `json:"oldest,omitzero"`      // when the oldest of them was received; zero: none is
	LastReceive time.Time `json:"lastReceive,omitzero"` // when SQS last answered a receive; zero: never
	// FailingSince is since when no notice arrives, because receives fail or wait for room; zero: they do
	// not. Failure is why.
	FailingSince time.Time `json:"failingSince,omitzero"`
	Failure      string    `json:"failure,omitempty"`
}

// A Held is a message that has no drain yet.
type Held struct {
	Instance string    `json:"instance"`
	Until    time.Time `json:"until"` // its Node is waited for
}

// Nodeless says in a line which instances' Nodes are waited for; empty: none is.
func (o *Overview) Nodeless() string {
	if len(o.Held) == 0 {
		return ""
	}
	instances := first(o.Held, mostNamed, func(h Held) string {
		return fmt.Sprintf("%s (until %s)", Clean(h.Instance), clock(h.Until, o.At))
	})
	return "messages about instances whose Nodes are waited for: " + strings.Join(instances, ", ")
}

// Deaf says since when and why no notice is acted on; empty: as far as is known, they are.
func (o *Overview) Deaf() string {
	switch {
	case o.Paused != nil && o.Leaderless:
		return PausedText(*o.Paused) + ". Nobody leads either: check that the handler's pods run"
	case o.Paused != nil:
		return PausedText(*o.Paused)
	case o.Leaderless:
		return "nobody leads, so no notice is acted on"
	case o.DryRun:
		return "dry-run is on: what is to be done about a notice is decided and logged, and not done"
	}
	q := o.Queue
	if q == nil || q.FailingSince.IsZero() {
		return ""
	}
	return "no notice arrives since " + Length(o.At.Sub(q.FailingSince)) + ": " + CleanText(q.Failure)
}

// Leads says since when the leader leads, and how often it has changed; empty: not known.
func (o *Overview) Leads() string {
	if o.LeadsSince.IsZero() {
		return ""
	}
	return fmt.Sprintf("leads since %s, transition %d", clock(o.LeadsSince, o.At), o.Transitions)
}

// NoNode is said where there are no Nodes.
func (o *Overview) NoNode() string {
	if o.Resuming {
		return "Which nodes are being drained is not known yet: the leader has just begun."
	}
	return "No node is being drained."
}

// PausedText says what it means that the handler is paused, and why it is; empty: nobody has said.
func PausedText(why string) string {
	if why = Clean(why); why != "" {
		why = " (" + why + ")"
	}
	return "the handler is paused" + why +
		": no node is drained, and notices wait, until kubectl nth resume"
}

// Unscheduled are pods that have left a node, and for which the scheduler finds no other.
type Unscheduled struct {
	Node string `json:"node"`
	Pods int    `json:"pods"`
	Why  string `json:"why"` // a sentence for people, with the words of the scheduler
}

// A Policy is what is known of the policy file.
type Policy struct {
	Rules int `json:"rules"` // of the last file that was valid
	// Problem says what is wrong with the file of now, whose rules do not count; empty: nothing.
	Problem string `json:"problem,omitempty"`
}

// A Node is one whose drain has not ended.
type Node struct {
	Name     string `json:"name"`
	Instance string `json:"instance,omitempty"`
	Kind     string `json:"kind,omitempty"` // of its most urgent notice, as its label node-termination-handler/kind has it
	Rule     string `json:"rule,omitempty"` // the policy's that has decided; empty: none
	Stage    Stage  `json:"stage"`
	// Since is the time of its first notice, as AWS says.
	Since      time.Time `json:"since,omitzero"`
	CordonedAt time.Time `json:"cordonedAt,omitzero"` // zero: it is not cordoned yet
	Deadline   time.Time `json:"deadline,omitzero"`   // zero: none
	// NotBefore is when a drain that is held back may begin; zero: as soon as nothing holds it back.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Pods      *Pods     `json:"pods,omitempty"`      // nil: not known
	LastAsked time.Time `json:"lastAsked,omitzero"`  // when a pod was last asked to leave
	LastLeft  time.Time `json:"lastLeft,omitzero"`   // when a pod had last left; zero: none has, or not known
	PodsGone  time.Time `json:"podsGone,omitzero"`   // when the last pod had left; zero: not yet, or not known
	Hooks     []Hook    `json:"hooks,omitempty"`     // that wait for the node
	WaitsFor  []Wait    `json:"waitsFor,omitempty"`  // by ByWeight; at most eight
	MoreWaits int       `json:"moreWaits,omitempty"` // what is not in WaitsFor
}

// Pods are numbers of pods that have or had to leave.
type Pods struct {
	Left   int `json:"left"`   // still on the node
	Forced int `json:"forced"` // deleted, because time ran out or budgets are ignored; some may still be there
	Gone   int `json:"gone"`   // have left
}

// A Stage is how far a drain has come.
type Stage string

// The stages, in their order.
const (
	HeldBack   Stage = "held-back"  // not touched yet
	Draining   Stage = "draining"   // pods leave
	Detaching  Stage = "detaching"  // the pods have left; their volumes or load balancers are waited for
	Completing Stage = "completing" // nothing is left on the node; its hooks are completed
)

// A Hook is a lifecycle hook that waits for a node.
type Hook struct {
	Group    string    `json:"group"`
	Name     string    `json:"name"`
	Deadline time.Time `json:"deadline,omitzero"` // when it ends by itself; zero: not known
}

// A Wait is what a drain waits for.
type Wait struct {
	Cause Cause `json:"cause"`
	// Name is of what it waits for, such as the namespace and name of a budget; empty: it has none.
	Name string `json:"name,omitempty"`
	Why  string `json:"why"`            // a sentence for people, without a dot
	Pods int    `json:"pods,omitempty"` // that it keeps; 0: it is not about pods
	Pod  string `json:"pod,omitempty"`  // namespace and name of one of them
	// Until is when the wait ends at the latest, because the pod is forced then or the time has come;
	// zero: it has no end that is known.
	Until time.Time `json:"until,omitzero"`
}

// A Cause is the sort of what is waited for.
type Cause string

// The causes.
const (
	Window          Cause = "window"           // the time at which a rule lets the drain begin
	Limit           Cause = "limit"            // a rule's limit of nodes out of use
	MaxUnready      Cause = "max-unready"      // the option max-unready-nodes
	Replacement     Cause = "replacement"      // an instance that replaces this one
	Worker          Cause = "worker"           // the option workers
	FailingWrite    Cause = "failing-write"    // a write to the Node, which fails for a while
	Unreadable      Cause = "unreadable"       // an intent of the Node that cannot be read
	List            Cause = "list"             // the list of the node's pods
	FailingList     Cause = "failing-list"     // one that fails for a while
	Karpenter       Cause = "karpenter"        // Karpenter gets the pods off
	Budget          Cause = "budget"           // a PodDisruptionBudget that allows no disruption
	TwoBudgets      Cause = "two-budgets"      // two budgets cover a pod, which the eviction API refuses
	Namespace       Cause = "namespace"        // a namespace that is being deleted, with its pods
	Webhook         Cause = "webhook"          // an admission webhook that denies evictions
	AdmissionPolicy Cause = "admission-policy" // one that denies evictions
	Refused         Cause = "refused"          // evictions or deletions that fail for another reason
	Grace           Cause = "grace"            // pods that are stopping
	Finalizer       Cause = "finalizer"        // pods that have ended, and that finalizers keep: for seconds
	Kubelet         Cause = "kubelet"          // pods that should have ended, and no kubelet says so
	Turn            Cause = "turn"             // pods that others have to leave before, or that leave last
	Surge           Cause = "surge"            // a pod's replacement
	Gate            Cause = "gate"             // a free place among the requests to the API server
	Answer          Cause = "answer"           // an answer of the API server, or its effect
	Volume          Cause = "volume"           // volumes that are still attached
	Target          Cause = "load-balancer"
	Delay           Cause = "delay"        // the option complete-lifecycle-action-delay-seconds
	OtherNode       Cause = "other-node"   // another Node of the same machine
	Completion      Cause = "hook"         // the completion of a lifecycle hook
	FailingHook     Cause = "failing-hook" // one whose completion fails
)

// ByDeadline orders nodes: the one whose machine goes first comes first, those without a deadline come last.
func ByDeadline(a, b Node) int {
	if a.Deadline.IsZero() != b.Deadline.IsZero() {
		if a.Deadline.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Deadline.Compare(b.Deadline), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
}
