package overview

import (
	"slices"
	"time"
)

// A History is what has happened.
type History struct {
	At time.Time `json:"at"`
	// Since is from when on the leader knows all episodes: it began to watch the nodes then, as it does before it leads
	// too, or has kept no older ones. Of what ended before it knows only what nodes carry.
	Since    time.Time `json:"since"`
	Episodes []Episode `json:"episodes"` // the newest first
}

// An Episode is the record of one episode of a node: from its first notice to the end of its drain. Times that
// are zero, and numbers in a nil pointer, are not known or did not come about.
type Episode struct {
	Node     string   `json:"node"`
	Instance string   `json:"instance,omitempty"`
	Kind     string   `json:"kind,omitempty"` // of the most urgent notice
	Notices  []Notice `json:"notices"`
	Rule     string   `json:"rule,omitempty"`
	// Outcome is drained, missed, gone, unconfirmed, cordoned or called-off.
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"` // it was called off
	// Known says how much is known.
	Known Known `json:"known"`

	Began      time.Time `json:"began,omitzero"` // the time of the first notice, as AWS says
	HeldBack   string    `json:"heldBack,omitempty"`
	CordonedAt time.Time `json:"cordonedAt,omitzero"` // the last time; zero: it never was
	// Uncordoned is why the node could not be cordoned when its pods had to leave; empty: it could. CordonedAt says if it
	// was later.
	Uncordoned string    `json:"uncordoned,omitempty"`
	FirstAsked time.Time `json:"firstAsked,omitzero"` // a pod was asked to leave; zero since a takeover
	LastAsked  time.Time `json:"lastAsked,omitzero"`
	PodsGone   time.Time `json:"podsGone,omitzero"` // no pod was waited for any more
	Ended      time.Time `json:"ended"`
	Deadline   time.Time `json:"deadline,omitzero"`
	// Slack is the time between PodsGone and the deadline, in seconds; not above zero where pods were missed or
	// lost. nil: there was no deadline, or it is not known.
	Slack *float64 `json:"slack,omitempty"`

	Pods    *Counts   `json:"pods,omitempty"`
	Refused []Refusal `json:"refused,omitempty"` // what has refused evictions or kept pods, that of most pods first
	// Targets are the load balancers' target groups that may still have had the machine when it went.
	Targets          []string `json:"targets,omitempty"`
	AwaitedBalancers float64  `json:"awaitedLoadBalancers,omitempty"` // seconds
	Volumes          int      `json:"volumes,omitempty"`              // of its pods, still attached at its end
	AwaitedVolumes   float64  `json:"awaitedVolumes,omitempty"`       // seconds
	Hooks            []Hook   `json:"hooks,omitempty"`                // that were completed
	// UncompletedHooks had ended before, by themselves or by others, or Auto Scaling refused to complete them.
	UncompletedHooks []Hook `json:"uncompletedHooks,omitempty"`
}

// Known says how much is known of an episode.
type Known string

// What can be known.
const (
	Everything    Known = "everything"      // this process has seen all of it
	SinceTakeOver Known = "since-take-over" // an earlier leader has begun it; see Counts.Partial
	AsCarried     Known = "as-carried"      // it ended under an earlier leader: only what the node carries, or did
)

// A Notice is one that belongs to an episode.
type Notice struct {
	Kind     string    `json:"kind"`
	At       time.Time `json:"at"`             // of its event, as AWS says
	ID       string    `json:"id,omitempty"`   // of the event
	Also     []string  `json:"also,omitempty"` // the ids of later events that say the same; at most seven
	Code     string    `json:"code,omitempty"` // of a scheduled change
	Rule     string    `json:"rule,omitempty"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Tells reports whether one of the episode's notices is of the event, as far as it is known.
func (e *Episode) Tells(event string) bool {
	return slices.ContainsFunc(e.Notices, func(n Notice) bool { return n.ID == event || slices.Contains(n.Also, event) })
}

// Counts say what became of the pods that had to leave. Each is in one of the first six, and one that was cut short in
// Cut too. Names are namespace/name; they are bounded, and the last one then says how many more there are.
type Counts struct {
	Evicted     int      `json:"evicted"`
	Forced      int      `json:"forced"`
	Ended       int      `json:"ended"`         // without us
	Missed      int      `json:"missed"`        // still there at the deadline
	Lost        int      `json:"lost"`          // still there when the machine was gone
	Unconfirmed int      `json:"unconfirmed"`   // should have ended, and no kubelet says so
	Cut         int      `json:"cut,omitempty"` // killed before their grace period was over
	ForcedPods  []string `json:"forcedPods,omitempty"`
	CutShort    []string `json:"cutShort,omitempty"`  // the names of those that were cut, with how much they had
	Remaining   []string `json:"remaining,omitempty"` // the names of the missed, lost and unconfirmed
	// Stayed did not have to leave, as an option, a rule or their owners say, or came during the drain, and go with the
	// machine. They are in no other count; StayedPods are their names.
	Stayed     int      `json:"stayed,omitempty"`
	StayedPods []string `json:"stayedPods,omitempty"`
	// Partial: an earlier leader began the drain, and what had left by then is in no count.
	Partial bool `json:"partial,omitempty"`
}

// A Refusal is what has refused evictions, or has kept pods to the end.
type Refusal struct {
	Cause Cause  `json:"cause"`
	Name  string `json:"name,omitempty"`
	Why   string `json:"why"`
	Pods  int    `json:"pods"`
}
