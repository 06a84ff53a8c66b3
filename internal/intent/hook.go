package intent

import (
	"slices"
	"time"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

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
		i.Entries[entry].Deadline = i.HookDeadline()
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

// HookDeadline is when the first of the node's termination hooks ends by itself;
// zero: none is open, or it is not known.
func (i Intent) HookDeadline() time.Time {
	var d time.Time
	for _, h := range i.Hooks {
		d = Earlier(d, h.Deadline)
	}
	return d
}
