// Package timeline tells the story of notices from what can be seen from outside: nodes and pods
// in the API server, hooks and messages in AWS. It says what is new while it happens, and
// afterwards what is missing and what went wrong. It watches nothing itself and has no clock.
package timeline

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Notice is a notice about one node, as it was sent.
type Notice struct {
	Name     string // as AWS calls it, such as EC2 Spot Instance Interruption Warning
	Instance string
	Node     string
	Message  string   // id of the message in the queue; the story ends when it is deleted
	Hook     string   // lifecycle hook that waits for the instance; empty: none
	Pods     []string // names of those that have to leave the node
	Guarded  []string // of these, those that no budget lets go: they are deleted, and not evicted
	Sent     time.Time
	Deadline time.Time // when the instance goes away, ready or not
}

// Kind is the kind of an event.
type Kind int

// The kinds of events. The Timeline itself finds NoticeSent and NodeEmpty; the others are for Observe.
const (
	None           Kind = iota
	NoticeSent          // the story of a notice begins
	NodeCordoned        // a Node became unschedulable
	PodEvicted          // a Pod was told to stop, by the eviction API
	PodDeleted          // a Pod was told to stop, by other means
	PodGone             // a Pod does not exist any more
	PodReady            // a Pod became ready
	NodeEmpty           // the last of the pods of a notice is gone
	HookCompleted       // a lifecycle action was completed
	HookTimedOut        // a lifecycle action ended because nobody completed it
	MessageDeleted      // a message left the queue for good
	LeaderKilled        // the replica that leads
	LeaderElected       // the next one
)

// Event is something that was seen.
type Event struct {
	Time    time.Time
	Kind    Kind
	Node    string // of what happens to nodes and to pods on them
	Pod     string // name
	Hook    string // of lifecycle actions
	Result  string // of lifecycle actions: CONTINUE or ABANDON
	Message string // id
}

// Row is a line of the story of a notice.
type Row struct {
	Kind  Kind
	Since time.Duration // the notice
	Left  time.Duration // until its deadline, negative after it
	What  string        // name of the pod, the node, the hook; id of the instance, the message
	Where string        // can be empty
}

// Timeline is the story of any number of notices, each about another node. The zero value has
// none. It is not safe for concurrent use.
//
// Nothing else changes the cluster, and there is plenty of time. So an event that no notice explains is a trouble, as
// is a pod that is deleted and not evicted, unless it is guarded, and every pod has to come up elsewhere.
type Timeline struct {
	stories  []*story
	troubles []string
}

// story is what was seen of one notice. A zero time means: not yet.
type story struct {
	Notice
	cordoned, empty, completed, deleted time.Time

	gone     map[string]time.Time // every pod that was, or is, on the node, by name
	replaced []string             // pods that came up elsewhere
}

// Begin adds a notice. Its events have to be observed after that.
func (t *Timeline) Begin(n Notice) Row {
	s := &story{Notice: n, gone: map[string]time.Time{}}
	for _, pod := range n.Pods {
		s.gone[pod] = time.Time{}
	}
	t.stories = append(t.stories, s)
	return s.row(NoticeSent, n.Sent, n.Instance, "on "+n.Node)
}

// Observe adds an event and returns the rows that are new, in order: none if it was known or
// belongs to no notice. Events come in the order in which they were seen. As a watch may be late,
// their times may be in another order.
func (t *Timeline) Observe(e Event) []Row {
	s := t.about(e)
	if s == nil {
		t.unexplained(e)
		return nil
	}
	switch e.Kind {
	case NodeCordoned:
		if s.cordoned.IsZero() {
			s.cordoned = e.Time
			return append([]Row{s.row(e.Kind, e.Time, e.Node, "")}, s.noteEmpty(e.Time)...)
		}
	case PodEvicted, PodDeleted:
		return t.stopping(s, e)
	case PodGone: // there is a row only for the last pod
		if when, known := s.gone[e.Pod]; known && when.IsZero() {
			s.gone[e.Pod] = e.Time
			return s.noteEmpty(e.Time)
		}
	case PodReady:
		s.replaced = append(s.replaced, e.Pod)
		return []Row{s.row(e.Kind, e.Time, e.Pod, "on "+e.Node)}
	case HookCompleted, HookTimedOut:
		return t.hookEnded(s, e)
	case MessageDeleted:
		if s.deleted.IsZero() {
			s.deleted = e.Time
			return []Row{s.row(e.Kind, e.Time, e.Message, "")}
		}
	case None, NoticeSent, NodeEmpty, LeaderKilled, LeaderElected:
	}
	return nil
}

// about returns the story of an event; nil if there is none. A pod that gets ready counts for the oldest notice that
// still waits for pods to come up elsewhere. Nobody knows which pod replaces which: a ReplicaSet does not say.
func (t *Timeline) about(e Event) *story {
	for _, s := range t.stories {
		is := s.Node == e.Node
		switch e.Kind { //nolint:exhaustive // the others are about a node
		case PodReady:
			is = !is && len(s.replaced) < len(s.gone) && !slices.Contains(s.replaced, e.Pod)
		case HookCompleted, HookTimedOut:
			is = s.Hook != "" && s.Hook == e.Hook
		case MessageDeleted:
			is = s.Message == e.Message
		}
		if is {
			return s
		}
	}
	return nil
}

// unexplained notes an event that no notice explains.
func (t *Timeline) unexplained(e Event) {
	if e.Kind == NodeCordoned {
		t.trouble("%s was cordoned, and no notice is about it", e.Node)
	}
	if e.Kind == PodEvicted || e.Kind == PodDeleted {
		t.trouble("pod %s had to leave %s, and no notice is about that", e.Pod, e.Node)
	}
}

func (t *Timeline) stopping(s *story, e Event) []Row {
	if _, known := s.gone[e.Pod]; !known { // it was bound late
		s.gone[e.Pod] = time.Time{}
	}
	switch guarded := slices.Contains(s.Guarded, e.Pod); {
	case e.Kind == PodDeleted && !guarded:
		t.trouble("pod %s was deleted, not evicted", e.Pod)
	case e.Kind == PodEvicted && guarded:
		t.trouble("pod %s was evicted against its budget", e.Pod)
	}
	return []Row{s.row(e.Kind, e.Time, e.Pod, "from "+e.Node)}
}

func (t *Timeline) hookEnded(s *story, e Event) []Row {
	switch {
	case e.Kind == HookTimedOut:
		t.trouble("hook %s timed out", e.Hook)
	case !s.completed.IsZero():
		t.trouble("hook %s was completed again", e.Hook)
	case e.Result != "CONTINUE":
		t.trouble("hook %s was completed with %s", e.Hook, e.Result)
	}
	if !s.completed.IsZero() {
		return nil
	}
	s.completed = e.Time
	return []Row{s.row(e.Kind, e.Time, e.Hook, e.Result)}
}

func (t *Timeline) trouble(format string, args ...any) {
	t.troubles = append(t.troubles, fmt.Sprintf(format, args...))
}

func (s *story) row(kind Kind, at time.Time, what, where string) Row {
	return Row{Kind: kind, Since: at.Sub(s.Sent), Left: s.Deadline.Sub(at), What: what, Where: where}
}

// noteEmpty records that the node is cordoned and all pods of the notice are gone, and returns the
// row for it.
func (s *story) noteEmpty(at time.Time) []Row {
	if s.cordoned.IsZero() || len(s.left()) > 0 || !s.empty.IsZero() {
		return nil
	}
	s.empty = at
	return []Row{s.row(NodeEmpty, at, s.Node, count(len(s.gone), "pod")+" gone")}
}

// left returns the names of the pods that are not gone.
func (s *story) left() []string {
	var left []string
	for _, pod := range slices.Sorted(maps.Keys(s.gone)) {
		if s.gone[pod].IsZero() {
			left = append(left, pod)
		}
	}
	return left
}

// Missing says what has not happened yet; nil if all notices have come to their end.
func (t *Timeline) Missing() []string {
	var missing []string
	for _, s := range t.stories {
		missing = append(missing, s.missing()...)
	}
	return missing
}

// missing says what has not happened yet.
func (s *story) missing() (missing []string) {
	note := func(is bool, format string, args ...any) {
		if is {
			missing = append(missing, fmt.Sprintf(format, args...))
		}
	}
	note(s.cordoned.IsZero(), "%s is not cordoned", s.Node)
	for _, pod := range s.left() {
		note(true, "pod %s is still on %s", pod, s.Node)
	}
	lack := len(s.gone) - len(s.replaced)
	note(lack > 0, "of the pods of %s %d did not get ready elsewhere", s.Node, lack)
	note(s.Hook != "" && s.completed.IsZero(), "hook %s is not completed", s.Hook)
	note(s.deleted.IsZero(), "message %s is not deleted", s.Message)
	return missing
}

// blur is how late a watch may be, compared with a record made on the spot. Of two events that are
// closer to each other, either may have been first.
const blur = 250 * time.Millisecond

// Troubles says what should not have happened, or not in this order.
func (t *Timeline) Troubles() []string {
	troubles := slices.Clone(t.troubles)
	note := func(is bool, format string, args ...any) {
		if is {
			troubles = append(troubles, fmt.Sprintf(format, args...))
		}
	}
	tooEarly := func(end, need time.Time, slack time.Duration) bool { return !end.IsZero() && need.Sub(end) > slack }
	for _, s := range t.stories {
		note(tooEarly(s.completed, s.empty, blur), "hook %s was completed before %s was empty", s.Hook, s.Node)
		note(tooEarly(s.deleted, s.empty, blur), "message %s was deleted before %s was empty", s.Message, s.Node)
		note(tooEarly(s.deleted, s.completed, 0), "message %s was deleted before hook %s was completed", s.Message, s.Hook)
		note(tooEarly(s.Deadline, s.deleted, 0), "message %s was deleted after the deadline", s.Message)
	}
	return troubles
}

// Summary is the whole story in a line. A pod is missed if it was still there at the deadline of
// its notice, or is there now.
func (t *Timeline) Summary() string {
	drained, moved, missed, left := 0, 0, 0, ""
	for _, s := range t.stories {
		if !s.empty.IsZero() {
			drained++
		}
		moved += len(s.replaced)
		for _, when := range s.gone {
			if when.IsZero() || when.After(s.Deadline) {
				missed++
			}
		}
		if !s.deleted.IsZero() {
			left += fmt.Sprintf(", %.0f of %.0f s", s.Deadline.Sub(s.deleted).Seconds(), s.Deadline.Sub(s.Sent).Seconds())
		}
	}
	line := fmt.Sprintf("%s, %s drained, %s moved, %d missed",
		count(len(t.stories), "notice"), count(drained, "node"), count(moved, "pod"), missed)
	if left != "" {
		line += "; left: " + left[len(", "):]
	}
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
