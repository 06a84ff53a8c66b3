package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// The names that this controller puts on a node.
const (
	// IntentAnnotation holds an Intent as JSON.
	IntentAnnotation = "node-termination-handler/intent"
	// StateLabel is one of the states below, for people and for selectors.
	StateLabel = "node-termination-handler/state"

	StateWaiting  = "waiting"  // the intent is held back
	StateDraining = "draining" // the intent has unfinished work
	StateDrained  = "drained"  // all of it is done
)

// An Intent is what a node carries from the first notice on: all that is needed
// to finish the work without the messages, and to undo it. Its methods return
// changed copies.
type Intent struct {
	Version int `json:"v"`
	// Queue is the URL of the queue that the first notice came from. Who serves
	// another queue, with other options, leaves the node's work to its owner.
	Queue   string  `json:"queue"`
	Entries []Entry `json:"notices"`
	// Hooks are the lifecycle actions that wait for this node.
	Hooks []Hook `json:"hooks,omitempty"`
	// Cordoned, Taints, Excluded and OutOfServiceAt (when; zero: never) are what this
	// controller changed and nobody had done before it: undoing touches nothing else.
	Cordoned       bool      `json:"cordoned,omitempty"`
	Taints         []string  `json:"taints,omitempty"`
	Excluded       bool      `json:"excluded,omitempty"`
	OutOfServiceAt time.Time `json:"outOfServiceAt,omitzero"`
	// HeldBack is set while the node is not to be touched: too many others are out
	// of use. The intent does not cordon it then.
	HeldBack bool `json:"heldBack,omitempty"`
	// CordonedAt is when the first notice was recorded, or when the node was no
	// longer held back.
	CordonedAt time.Time `json:"cordonedAt"`
	// DrainedAt is when the pods were gone; zero before.
	DrainedAt time.Time `json:"drainedAt,omitzero"`
	// FinishedAt is when the hooks were completed too; zero before.
	FinishedAt time.Time `json:"finishedAt,omitzero"`
}

// An Entry is what notices of one kind, or of one scheduled change, ask for.
type Entry struct {
	Kind   notice.Kind `json:"kind"`
	Change string      `json:"change,omitempty"`
	// IDs are the ids of the events, the latest few.
	IDs  []string  `json:"ids,omitempty"`
	Time time.Time `json:"time"`
	// Deadline is when the machine goes away; zero: not known, nothing is forced.
	Deadline time.Time `json:"deadline,omitzero"`
	// Trace is the span of the first of the events, as package trace carries it;
	// empty where there are no traces.
	Trace string `json:"trace,omitempty"`
}

// A Hook is a lifecycle action of the node's instance.
type Hook struct {
	Group    string    `json:"group"`
	Name     string    `json:"name"`
	Token    string    `json:"token,omitempty"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"`
}

const (
	intentVersion = 1
	// An instance has a handful of notices in its life. The bounds keep a flood
	// of them from growing the annotation beyond what the API server takes.
	maxEntries = 16
	maxIDs     = 8
	maxHooks   = 16
)

// ReadIntent returns the intent of a node. ok is false when there is none. An
// annotation that cannot be read is an error; the node is then as good as without.
func ReadIntent(node *corev1.Node) (i Intent, ok bool, err error) {
	text, ok := node.Annotations[IntentAnnotation]
	if !ok {
		return Intent{}, false, nil
	}
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return Intent{}, false, fmt.Errorf("annotation %s of node %s: %w; remove it to start afresh", IntentAnnotation, node.Name, err)
	}
	if i.Version != intentVersion {
		return Intent{}, false, fmt.Errorf("annotation %s of node %s has version %d, this program writes %d; remove it to start afresh", IntentAnnotation, node.Name, i.Version, intentVersion)
	}
	return i.of(node), true, nil
}

// of is the part of the intent that can be this node's. A kubelet may write the
// annotations of its node, and must not come by more rights in this way: not to
// complete the hooks of other instances, nor to remove taints that others put on it.
func (i Intent) of(node *corev1.Node) Intent {
	instance := InstanceID(node)
	i.Hooks = slices.DeleteFunc(i.Hooks, func(h Hook) bool { return instance != "" && h.Instance != instance })
	i.Taints = slices.DeleteFunc(i.Taints, func(key string) bool { return !strings.HasPrefix(key, taintPrefix) })
	return i
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

// HookDeadline is when the first of the node's termination hooks ends by itself;
// zero: none is open, or it is not known.
func (i Intent) HookDeadline() time.Time {
	var d time.Time
	if len(i.Hooks) == 0 {
		return d
	}
	for _, e := range i.Entries {
		if e.Kind == notice.ASGTerminate {
			d = Earlier(d, e.Deadline)
		}
	}
	return d
}

// Earlier is the earlier of two deadlines, of which a zero one means none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Traces are those of all notices, in their order.
func (i Intent) Traces() []string {
	var all []string
	for _, e := range i.Entries {
		if e.Trace != "" {
			all = append(all, e.Trace)
		}
	}
	return all
}

// Has reports whether the intent has a notice of the kind.
func (i Intent) Has(kind notice.Kind) bool {
	return slices.ContainsFunc(i.Entries, func(e Entry) bool { return e.Kind == kind })
}

// Finished reports whether nothing is left to do.
func (i Intent) Finished() bool { return !i.FinishedAt.IsZero() }

// Covers reports whether the intent already holds this event of e, so that a
// redelivery of its message adds nothing.
func (i Intent) Covers(e Entry) bool {
	at := i.find(e)
	return at >= 0 && len(e.IDs) > 0 && slices.Contains(i.Entries[at].IDs, e.IDs[0])
}

// With adds a notice and, where it has one, its hook. The entry's deadline only
// ever tightens. A notice that the intent does not cover opens finished work again.
func (i Intent) With(e Entry, hook *Hook, now time.Time) Intent {
	if i.Covers(e) && i.Finished() {
		return i
	}
	i.Version = intentVersion
	i.Entries = slices.Clone(i.Entries)
	if i.Finished() {
		i.FinishedAt, i.DrainedAt = time.Time{}, time.Time{}
		for k := range i.Entries {
			i.Entries[k].Trace = "" // it has ended
		}
	}
	if i.CordonedAt.IsZero() {
		i.CordonedAt = now
	}
	if at := i.find(e); at >= 0 {
		old := &i.Entries[at]
		old.Deadline = Earlier(old.Deadline, e.Deadline)
		old.Trace = cmp.Or(old.Trace, e.Trace)
		old.IDs = slices.Clone(old.IDs)
		for _, id := range e.IDs {
			if !slices.Contains(old.IDs, id) {
				old.IDs = append(old.IDs, id)
			}
		}
		old.IDs = old.IDs[max(0, len(old.IDs)-maxIDs):]
	} else {
		i.Entries = append(i.Entries, e)
	}
	for len(i.Entries) > maxEntries {
		i.Entries = slices.Delete(i.Entries, i.latest(), i.latest()+1)
	}
	if hook != nil && !slices.ContainsFunc(i.Hooks, hook.same) && len(i.Hooks) < maxHooks {
		i.Hooks = append(slices.Clone(i.Hooks), *hook)
	}
	return i
}

// Released lets a node that was held back go the way of the others.
func (i Intent) Released(now time.Time) Intent {
	if i.HeldBack {
		i.HeldBack, i.CordonedAt = false, now
	}
	return i
}

// Without takes back a scheduled change.
func (i Intent) Without(change string) Intent {
	i.Entries = slices.DeleteFunc(slices.Clone(i.Entries), func(e Entry) bool {
		return e.Kind == notice.ScheduledChange && e.Change == change
	})
	return i
}

// HasChange reports whether the intent holds this scheduled change.
func (i Intent) HasChange(change string) bool {
	return i.find(Entry{Kind: notice.ScheduledChange, Change: change}) >= 0
}

func (i Intent) find(e Entry) int {
	return slices.IndexFunc(i.Entries, func(have Entry) bool { return have.Kind == e.Kind && have.Change == e.Change })
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

func (h *Hook) same(other Hook) bool {
	return h.Group == other.Group && h.Name == other.Name && h.Token == other.Token && h.Instance == other.Instance
}
