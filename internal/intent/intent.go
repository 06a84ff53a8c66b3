// Package intent is what a node carries from the first notice on: all that is needed to
// finish its drain without the messages, and to undo it. It is pure.
package intent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// An Intent is what a node carries from the first notice on: all that is needed
// to finish the work without the messages, and to undo it. Its methods return
// changed copies.
//
// The work goes in episodes. A notice for a node whose work is finished begins a
// new one. What the earlier one was about binds nobody any more, but for a machine
// that still goes: a deadline that is ahead. Who uncordons the node ends that too.
type Intent struct {
	Version int `json:"v"`
	// Queue is the URL of the queue that the first notice of the episode came from.
	// Handlers of other queues, which may have other options, ignore the intent.
	Queue string `json:"queue"`
	// AlsoQueues are those of others whose notices have joined.
	AlsoQueues []string `json:"alsoQueues,omitempty"`
	// Instance is the one that the notices are about, where the Node has no provider id that says so. A kubelet can
	// write it: only EC2 knows whether it is true. Empty: not known, or the Node says it.
	Instance string `json:"instance,omitempty"`
	// Entries are the notices of the episode.
	Entries []Entry `json:"notices"`
	// Past are those of earlier episodes: a repeated message is known by them.
	Past []Past `json:"past,omitempty"`
	// Hooks are the lifecycle actions that wait for this node.
	Hooks []Hook `json:"hooks,omitempty"`
	// Cordoned, Taints, Excluded and OutOfServiceAt (when; zero: never) are what this
	// controller changed and nobody had done before it: undoing touches nothing else.
	// They outlive the episode. ReadyAt is since when the Node was ready at OutOfServiceAt,
	// by the clock of its kubelet; zero: it was not.
	Cordoned       bool      `json:"cordoned,omitempty"`
	Taints         []string  `json:"taints,omitempty"`
	Excluded       bool      `json:"excluded,omitempty"`
	OutOfServiceAt time.Time `json:"outOfServiceAt,omitzero"`
	ReadyAt        time.Time `json:"readyAt,omitzero"`
	// HeldBack is set while the node is not to be touched: too many others are out
	// of use. The intent does not cordon it then.
	HeldBack bool `json:"heldBack,omitempty"`
	// Replacement is what has been done to have another instance ready before the drain.
	Replacement Replacement `json:"replacement,omitzero"`
	// Uncordoned is how often somebody else has uncordoned the node in the middle of
	// the episode. It is cordoned again after the first time, and never after the second.
	Uncordoned int `json:"uncordoned,omitempty"`
	// CordonedAt is when the node was cordoned last, or was found cordoned.
	CordonedAt time.Time `json:"cordonedAt"`
	// FirstCordonedAt is the CordonedAt of before, if the node was cordoned again in the episode; else zero.
	FirstCordonedAt time.Time `json:"firstCordonedAt,omitzero"`
	// BootID is the node's boot id when the episode began: another one means that the machine was
	// restarted since. Empty: not known.
	BootID string `json:"bootID,omitempty"`
	// DrainedAt is when the pods were gone; zero before.
	DrainedAt time.Time `json:"drainedAt,omitzero"`
	// DelegatedAt is when Karpenter was asked to get the pods off the node, by deleting its NodeClaim; zero:
	// it was not. That cannot be taken back: the drain stays Karpenter's, and the machine goes.
	DelegatedAt time.Time `json:"delegatedAt,omitzero"`
	// FinishedAt is when the hooks were completed too; zero before.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Outcome is how the drain ended; empty before FinishedAt. Pods is what became of the pods; nil: not known.
	Outcome Outcome `json:"outcome,omitempty"`
	Pods    *Pods   `json:"pods,omitempty"`
	// Last is the episode before, of which nothing else stands in the intent any more; nil: none is known.
	Last *Ended `json:"last,omitempty"`
}

// An Outcome says how the drain of a node ended. Empty: it has not.
type Outcome string

// The outcomes.
const (
	Drained     Outcome = "drained"     // all pods that had to leave have left
	Missed      Outcome = "missed"      // some were still there at the deadline
	Gone        Outcome = "gone"        // some were still there when the machine was gone
	Unconfirmed Outcome = "unconfirmed" // some should have ended, and no kubelet says that they have
	Cordoned    Outcome = "cordoned"    // none was asked to leave: the node is only cordoned
	CalledOff   Outcome = "called-off"  // nobody wanted it drained any more; the node has no such state
)

// Pods say what became of the pods of a node, for the next leader: they are the counts of package overview. A kubelet
// can write them.
type Pods struct {
	Evicted     int      `json:"evicted,omitempty"`
	Forced      int      `json:"forced,omitempty"`
	Ended       int      `json:"ended,omitempty"`
	Missed      int      `json:"missed,omitempty"`
	Lost        int      `json:"lost,omitempty"`
	Unconfirmed int      `json:"unconfirmed,omitempty"`
	Cut         int      `json:"cut,omitempty"`
	ForcedPods  []string `json:"forcedPods,omitempty"`
	CutShort    []string `json:"cutShort,omitempty"`
	Remaining   []string `json:"remaining,omitempty"`
	Stayed      int      `json:"stayed,omitempty"`
	StayedPods  []string `json:"stayedPods,omitempty"`
	Partial     bool     `json:"partial,omitempty"`
}

// Ended is what stays known of an episode that has ended.
type Ended struct {
	Kind       notice.Kind `json:"kind"` // of the notice that bound the most
	Rule       string      `json:"rule,omitempty"`
	Outcome    Outcome     `json:"outcome"`
	Pods       *Pods       `json:"pods,omitempty"`
	Began      time.Time   `json:"began,omitzero"` // the first notice, as AWS says
	CordonedAt time.Time   `json:"cordonedAt,omitzero"`
	Deadline   time.Time   `json:"deadline,omitzero"`
	FinishedAt time.Time   `json:"finishedAt"`
}

// Memory is the episode that an intent tells of, as one that has ended by now; the one before, if there is none. A
// drain that has not ended was called off.
func (i Intent) Memory(now time.Time) *Ended {
	if len(i.Entries) == 0 || i.HeldBack && !i.Finished() && i.Last != nil { // what was only held back tells little
		return i.Last
	}
	cause := i.AsAnnounced().Cause()
	e := &Ended{
		Kind: cause.Kind, Rule: i.Terms().Rule, Outcome: i.Outcome, Pods: i.Pods, Began: i.Began(),
		CordonedAt: i.CordonedAt, Deadline: cause.Deadline, FinishedAt: i.FinishedAt,
	}
	if !i.Finished() {
		e.Outcome, e.FinishedAt = CalledOff, now
	}
	if i.HeldBack {
		e.CordonedAt = time.Time{} // it never was
	}
	return e
}

// Began is the time of the first notice, as AWS says.
func (i Intent) Began() (first time.Time) {
	for _, e := range i.Entries {
		first = Earlier(first, e.Time)
	}
	return first
}

const (
	// Version is that of the format.
	Version = 1

	// MaxEntries and the bounds below keep a flood of notices from growing the annotation beyond
	// what the API server takes: an instance has a handful of notices in its life.
	MaxEntries = 16
	// MaxHooks bounds the lifecycle hooks.
	MaxHooks  = 16
	maxIDs    = 8
	maxQueues = 4
)

// Decode reads an intent as Encode has written it.
func Decode(text string) (i Intent, err error) {
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return Intent{}, err
	}
	if i.Version != Version {
		return Intent{}, fmt.Errorf("it has version %d, and this program writes %d", i.Version, Version)
	}
	return i, nil
}

// Encode writes the intent as JSON.
func (i Intent) Encode() (string, error) {
	text, err := json.Marshal(i)
	return string(text), err
}

// ForInstance is the part of the intent that a node with this instance can carry: the
// hooks of the instance, MaxHooks at most, and taints whose keys have the prefix. A kubelet can write the
// annotations of its node, and must not gain rights by that. Otherwise it could complete
// the hooks of other instances, or remove taints that others have put on its node. Where
// the instance is not known (empty), no hook is the node's.
func (i Intent) ForInstance(instance, taintPrefix string) Intent {
	i.Hooks = slices.DeleteFunc(slices.Clone(i.Hooks), func(h Hook) bool {
		return instance == "" || h.Instance != instance
	})
	i.Hooks = i.Hooks[:min(len(i.Hooks), MaxHooks)] // the completions of all nodes have one rate
	i.Taints = slices.DeleteFunc(slices.Clone(i.Taints), func(key string) bool {
		return !strings.HasPrefix(key, taintPrefix)
	})
	return i
}

// UncordonedAfter reports whether somebody else has uncordoned the node after its work
// was finished.
func (i Intent) UncordonedAfter(cordoned bool) bool {
	return i.Finished() && !cordoned && (i.Cordoned || len(i.Entries) > 0)
}

// UncordonedHeldBack reports whether somebody else has uncordoned a node that an earlier episode
// has cordoned, while the drain of the present one is held back. Its notices stay.
func (i Intent) UncordonedHeldBack(cordoned bool) bool {
	return i.HeldBack && i.Cordoned && !cordoned
}

// CountUncordon counts it when somebody else has uncordoned the node during the
// episode. That can be told, because one write has both cordoned the node and recorded
// the intent.
func (i Intent) CountUncordon(cordoned bool) Intent {
	if i.UncordonedWithin(cordoned) {
		i.Uncordoned, i.Cordoned = min(i.Uncordoned+1, 2), false
	}
	return i
}

// InWork reports whether the node is being drained, and is not held back.
func (i Intent) InWork() bool { return i.Version > 0 && !i.Finished() && !i.HeldBack }

// UncordonedWithin reports whether somebody else has uncordoned the node during the
// episode.
func (i Intent) UncordonedWithin(cordoned bool) bool { return i.InWork() && !cordoned }

// Has reports whether the intent has a notice of the kind.
func (i Intent) Has(kind notice.Kind) bool {
	return slices.ContainsFunc(i.Entries, func(e Entry) bool { return e.Kind == kind })
}

// Forces reports whether a notice of the kind may force pods: it has a deadline, and its terms are not patient.
func (i Intent) Forces(kind notice.Kind) bool {
	return slices.ContainsFunc(i.Entries, func(e Entry) bool {
		return e.Kind == kind && !e.Deadline.IsZero() && !e.Patient
	})
}

// EndsInstance reports whether a notice says that the instance will end.
func (i Intent) EndsInstance() bool {
	return slices.ContainsFunc(i.Entries, func(e Entry) bool { return e.Kind.EndsInstance() })
}

// Urgent reports whether the machine goes away within minutes.
func (i Intent) Urgent() bool {
	return slices.ContainsFunc(i.Entries, func(e Entry) bool { return e.Kind.Urgent() && !e.Deadline.IsZero() })
}

// DrainedForEnd reports whether this is the intent of a finished drain for the end of the
// instance, which all pods had left.
func (i Intent) DrainedForEnd() bool {
	return i.Finished() && i.Outcome == Drained && i.EndsInstance()
}

// Delegated reports whether Karpenter was asked to get the pods off the node.
func (i Intent) Delegated() bool { return !i.DelegatedAt.IsZero() }

// Finished reports whether nothing is left to do.
func (i Intent) Finished() bool { return !i.FinishedAt.IsZero() }

// OfMetadata takes the place of the queue in what a pod in IMDS mode writes.
const OfMetadata = "imds"

// ofReports begins what takes the place of the queue where such pods report to a leader without one.
const ofReports = "reports:"

// OfReports takes the place of the queue in what a leader without a queue writes, which has the Lease namespace/name.
func OfReports(lease string) string { return ofReports + lease }

// LeftBehind reports whether the intent is finished, and a handler with this queue looks after what is left of it on
// its node: it is by the pod on the node, or by a leader without a queue. A leader without a queue looks after all.
func (i Intent) LeftBehind(queue string) bool {
	reported := func(q string) bool { return q == OfMetadata || strings.HasPrefix(q, ofReports) }
	byReports := reported(i.Queue) || slices.ContainsFunc(i.AlsoQueues, reported)
	return i.Finished() && (byReports || strings.HasPrefix(queue, ofReports))
}

// Serves reports whether a notice of the episode came from the queue.
func (i Intent) Serves(queue string) bool {
	return i.Queue == queue || slices.Contains(i.AlsoQueues, queue)
}

// SharedBy reports whether notices have joined that did not come from the queue.
func (i Intent) SharedBy(queue string) bool {
	return i.Queue != "" && (i.Queue != queue || len(i.AlsoQueues) > 0)
}

// From notes that a notice has come from the queue.
func (i Intent) From(queue string) Intent {
	switch {
	case i.Queue == "":
		i.Queue = queue
	case !i.Serves(queue) && len(i.AlsoQueues) < maxQueues:
		i.AlsoQueues = append(slices.Clone(i.AlsoQueues), queue)
	}
	return i
}

// Covers reports whether the intent already holds this event of e, in this
// episode or an earlier one, so that a redelivery of its message adds nothing, nor does the
// same news by the other way.
func (i Intent) Covers(e Entry) bool {
	at := i.find(e)
	return at >= 0 && (hasID(i.Entries[at].IDs, e) || i.Entries[at].sameNews(e)) || i.hadBefore(e)
}

// hadBefore reports whether the event belongs to an earlier episode.
func (i Intent) hadBefore(e Entry) bool {
	return slices.ContainsFunc(i.Past, func(p Past) bool {
		return p.Kind == e.Kind && p.Change == e.Change && hasID(p.IDs, e)
	})
}

// void reports whether e announces something that was over at the time of the announcement or
// later.
func (i Intent) void(e Entry) bool {
	return e.Kind.CanEnd() && slices.ContainsFunc(i.Past, func(p Past) bool {
		return p.Kind == e.Kind && p.Change == e.Change && !p.CalledOff.IsZero() && !e.Time.After(p.CalledOff)
	})
}

// Over reports whether nothing is left to do for e: its event belongs to an earlier
// episode, or it announces what is over.
func (i Intent) Over(e Entry) bool { return i.hadBefore(e) || i.void(e) }

// Asks reports whether the intent has a notice of the entry's kind, about the same change.
func (i Intent) Asks(e Entry) bool { return i.find(e) >= 0 }

func (i Intent) find(e Entry) int {
	return slices.IndexFunc(i.Entries, func(have Entry) bool { return have.Kind == e.Kind && have.Change == e.Change })
}

// A Hook is one lifecycle action in progress: an instance that waits because of a lifecycle
// hook of its Auto Scaling group.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
type Hook struct {
	Group string `json:"group"` // name of the Auto Scaling group
	Name  string `json:"name"`  // of the lifecycle hook
	// Token identifies the lifecycle action. If it is empty, Auto Scaling uses the
	// instance's current action, which may be a newer one.
	Token    string    `json:"token,omitempty"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"` // zero: not known
	// Deadline is when the hook ends by itself; zero: not known. It decides what is
	// urgent, and does not identify the action; nor do Started and Assumed.
	Deadline time.Time `json:"deadline,omitzero"`
	// Assumed: the deadline is a guess, because the limits of the hook could not be read so far.
	Assumed bool `json:"assumed,omitempty"`
}

// Action is the lifecycle action alone, for comparisons.
func (h Hook) Action() Hook {
	return Hook{Group: h.Group, Name: h.Name, Token: h.Token, Instance: h.Instance}
}

// Same reports whether both are the same lifecycle action.
func (h Hook) Same(other Hook) bool { return h.Action() == other.Action() }

// MayBe reports whether both are the same lifecycle action as far as is known: of one that a sweep has found the
// token is not.
func (h Hook) MayBe(other Hook) bool {
	if h.Token == "" || other.Token == "" {
		h.Token, other.Token = "", ""
	}
	return h.Same(other)
}

// withHook adds a hook, or what is known of it by now. Beyond MaxHooks it is left
// out; see HasHook.
func (i Intent) withHook(hook Hook) Intent {
	at := slices.IndexFunc(i.Hooks, hook.Same)
	switch {
	case at < 0 && len(i.Hooks) < MaxHooks:
		i.Hooks = append(i.Hooks, hook)
	case at < 0:
		return i
	case i.Hooks[at].Assumed && !hook.Assumed:
		i.Hooks[at].Deadline, i.Hooks[at].Assumed = hook.Deadline, false
	case i.Hooks[at].Assumed == hook.Assumed:
		i.Hooks[at].Deadline = Earlier(i.Hooks[at].Deadline, hook.Deadline)
	}
	// The notices of termination hooks share an entry, which has the nearest of their deadlines.
	if entry := i.find(Entry{Kind: notice.ASGTerminate}); entry >= 0 {
		i.Entries[entry].Deadline = i.hookDeadline()
	}
	return i
}

// WithDeadline is the intent with the deadline of a hook that could be read by now.
func (i Intent) WithDeadline(hook Hook, deadline time.Time) Intent {
	if !i.HasHook(hook) {
		return i
	}
	i.Entries, i.Hooks = slices.Clone(i.Entries), slices.Clone(i.Hooks)
	hook.Deadline, hook.Assumed = deadline, false
	return i.withHook(hook)
}

// HasHook reports whether the intent has this lifecycle action.
func (i Intent) HasHook(hook Hook) bool { return slices.ContainsFunc(i.Hooks, hook.Same) }

// hookDeadline is the nearest deadline of the node's termination hooks, also if it is a guess;
// zero: none is open, or it is not known.
func (i Intent) hookDeadline() time.Time {
	var d time.Time
	for _, h := range i.Hooks {
		d = Earlier(d, h.Deadline)
	}
	return d
}

// A Replacement is what was done so that another instance stands ready before the node is drained. It is written down
// before the call to AWS, so that the next leader knows what may have happened.
//
//	choosing ─▶ marking ─▶ marked: the Auto Scaling group replaces the instance
//	         ─▶ over: there is none
type Replacement struct {
	Step ReplacementStep `json:"step"`
	// Group is the Auto Scaling group of the instance.
	Group string `json:"group,omitempty"`
	// Until is how long the replacement is awaited.
	Until time.Time `json:"until,omitzero"`
	// Why is why there is none, or why it is not awaited any more; for people.
	Why string `json:"why,omitempty"`
}

// A ReplacementStep says how far a replacement has come.
type ReplacementStep string

// The steps.
const (
	NotReplacing ReplacementStep = ""        // nothing was chosen
	Marking      ReplacementStep = "marking" // the group may have been asked to replace the instance
	Marked       ReplacementStep = "marked"  // the group replaces it, and tells of its termination
	Over         ReplacementStep = "over"    // nothing is awaited
)

// ReplacesFirst reports whether the node gets a replacement before its drain begins, or is to get one:
// all its notices ask for that.
func (i Intent) ReplacesFirst() bool {
	return len(i.Entries) > 0 && !i.Finished() && i.Terms().ReplaceFirst &&
		i.Replacement.Step != Over && i.Replacement.Why == ""
}

// StaleAfter is how long after its deadline a machine that is still there is taken
// to go any moment. After that it has been started again, or its notice lay in the
// queue: nothing is known of its end any more, and nothing is forced.
const StaleAfter = 15 * time.Minute

// Current is the intent without deadlines that passed more than StaleAfter ago.
func (i Intent) Current(now time.Time) Intent {
	i.Entries, i.Hooks = slices.Clone(i.Entries), slices.Clone(i.Hooks)
	for k := range i.Entries {
		i.Entries[k].Deadline = InForce(i.Entries[k].Deadline, now)
	}
	for k := range i.Hooks {
		i.Hooks[k].Deadline = InForce(i.Hooks[k].Deadline, now)
	}
	return i
}

// InForce is the deadline, or zero where it passed more than StaleAfter ago.
func InForce(deadline, now time.Time) time.Time {
	if now.Sub(deadline) > StaleAfter {
		return time.Time{}
	}
	return deadline
}

// Deadline is the earliest deadline of all notices; zero when none has one.
func (i Intent) Deadline() time.Time {
	var d time.Time
	for _, e := range i.Entries {
		d = Earlier(d, e.Deadline)
	}
	return d
}

// Cause is the notice that binds the most: the one with the nearest deadline, the
// first where none has one.
func (i Intent) Cause() Entry {
	var cause Entry
	for k, e := range i.Entries {
		if k == 0 || !Earlier(cause.Deadline, e.Deadline).Equal(cause.Deadline) {
			cause = e
		}
	}
	return cause
}

// Earlier is the earlier of two deadlines, of which a zero one means none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// latest is the index of the entry whose deadline binds the least.
func (i Intent) latest() int {
	at := 0
	for k, e := range i.Entries {
		if Earlier(i.Entries[at].Deadline, e.Deadline).Equal(i.Entries[at].Deadline) {
			at = k
		}
	}
	return at
}
