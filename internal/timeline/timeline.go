// Package timeline puts together what becomes of notices from what can be seen
// from outside: nodes and pods of the API server, hooks and messages of AWS. It
// says what is news while it happens, and afterwards what is missing and what
// went wrong. It watches nothing itself and has no clock.
package timeline

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Notice is one notice about one node, as it was sent.
type Notice struct {
	Name     string // as AWS calls it, such as EC2 Spot Instance Interruption Warning
	Instance string
	Node     string
	// Message is the id of the message in the queue, whose deletion is the end of
	// the story. Empty: that cannot be seen, and the end is that of the node's work.
	Message  string
	Hook     string   // lifecycle hook that waits for the instance; empty: none
	Pods     []string // names of those that have to leave the node
	Sent     time.Time
	Deadline time.Time // when the instance goes away, ready or not; zero: not known
}

// Kind says what an event is.
type Kind int

// The kinds of events. NoticeSent and NodeEmpty are found out by the Timeline,
// the others are for Observe.
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
	WorkFinished        // a Node says that all work on it is done
	NodeHeldBack        // a Node carries the notice, and waits for its turn
)

// Event is one thing that was seen.
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
	Left  time.Duration // until its deadline, negative after it; Never if it has none
	What  string        // name of the pod, the node, the hook; id of the instance, the message
	Where string        // can be empty
}

// Never is the time that is left of a notice without a deadline.
const Never time.Duration = math.MaxInt64

// Timeline is what became of any number of notices, each about another node.
// The zero value has none. It is not safe for concurrent use.
type Timeline struct {
	// Alone: nobody else is at work in the cluster, and time is plenty. What no
	// notice explains is a trouble, as is a pod that is deleted and not evicted, and
	// every pod has to come up elsewhere.
	Alone bool

	stories  []*story
	troubles []string
}

// story is what was seen about one notice; a zero time stands for not yet.
type story struct {
	Notice
	cordoned, empty, completed, deleted, finished time.Time
	waits                                         bool // it was held back

	gone     map[string]time.Time // every pod that was, or is, on the node, by name
	replaced []string             // pods that came up elsewhere
}

// Begin adds a notice. Its events have to be observed after it was added.
func (t *Timeline) Begin(n Notice) Row {
	s := &story{Notice: n, gone: map[string]time.Time{}}
	for _, pod := range n.Pods {
		s.gone[pod] = time.Time{}
	}
	t.stories = append(t.stories, s)
	return s.row(NoticeSent, n.Sent, n.Instance, "on "+n.Node)
}

// Observe takes an event in and returns the rows that are news, in order: none
// for what was known or belongs to no notice. Events come in the order in which
// they were seen, which may differ from the order of their times by what a watch
// is late.
func (t *Timeline) Observe(e Event) []Row {
	switch e.Kind {
	case NodeCordoned:
		return t.cordoned(e)
	case PodEvicted, PodDeleted:
		return t.stopping(e)
	case PodGone:
		return t.podGone(e)
	case PodReady:
		return t.podReady(e)
	case HookCompleted, HookTimedOut:
		return t.hookEnded(e)
	case MessageDeleted:
		return t.messageDeleted(e)
	case WorkFinished:
		return t.workFinished(e)
	case NodeHeldBack:
		return t.heldBack(e)
	case None, NoticeSent, NodeEmpty:
	}
	return nil
}

func (t *Timeline) cordoned(e Event) []Row {
	s := t.about(e.Node)
	if s == nil {
		t.oddity("%s was cordoned, and no notice is about it", e.Node)
		return nil
	}
	if !s.cordoned.IsZero() {
		return nil
	}
	s.cordoned = e.Time
	return append([]Row{s.row(e.Kind, e.Time, e.Node, "")}, s.isEmpty(e.Time)...)
}

func (t *Timeline) stopping(e Event) []Row {
	s := t.about(e.Node)
	if s == nil {
		t.oddity("pod %s had to leave %s, and no notice is about that", e.Pod, e.Node)
		return nil
	}
	if _, known := s.gone[e.Pod]; !known { // it was bound late
		s.gone[e.Pod] = time.Time{}
	}
	if e.Kind == PodDeleted {
		t.oddity("pod %s was deleted, not evicted", e.Pod)
	}
	return []Row{s.row(e.Kind, e.Time, e.Pod, "from "+e.Node)}
}

// podGone is no news in itself, the last one is.
func (t *Timeline) podGone(e Event) []Row {
	s := t.about(e.Node)
	if s == nil {
		return nil
	}
	if when, known := s.gone[e.Pod]; !known || !when.IsZero() {
		return nil
	}
	s.gone[e.Pod] = e.Time
	return s.isEmpty(e.Time)
}

// podReady counts a pod for the oldest notice that has more pods than came up
// again: which one stands in for which is known to no ReplicaSet.
func (t *Timeline) podReady(e Event) []Row {
	for _, s := range t.stories {
		if s.Node != e.Node && len(s.replaced) < len(s.gone) && !slices.Contains(s.replaced, e.Pod) {
			s.replaced = append(s.replaced, e.Pod)
			return []Row{s.row(e.Kind, e.Time, e.Pod, "on "+e.Node)}
		}
	}
	return nil
}

func (t *Timeline) hookEnded(e Event) []Row {
	at := slices.IndexFunc(t.stories, func(s *story) bool { return s.Hook != "" && s.Hook == e.Hook })
	if at < 0 {
		return nil
	}
	s := t.stories[at]
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

func (t *Timeline) messageDeleted(e Event) []Row {
	at := slices.IndexFunc(t.stories, func(s *story) bool { return s.Message == e.Message })
	if at < 0 || !t.stories[at].deleted.IsZero() {
		return nil
	}
	s := t.stories[at]
	s.deleted = e.Time
	return []Row{s.row(e.Kind, e.Time, e.Message, "")}
}

func (t *Timeline) heldBack(e Event) []Row {
	s := t.about(e.Node)
	if s == nil || s.waits {
		return nil
	}
	s.waits = true
	return []Row{s.row(e.Kind, e.Time, e.Node, "")}
}

func (t *Timeline) workFinished(e Event) []Row {
	s := t.about(e.Node)
	if s == nil || s.Message != "" || !s.finished.IsZero() {
		return nil
	}
	s.finished = e.Time
	return []Row{s.row(e.Kind, e.Time, e.Node, "")}
}

// about is the story of a node; nil when there is none.
func (t *Timeline) about(node string) *story {
	for _, s := range t.stories {
		if s.Node == node {
			return s
		}
	}
	return nil
}

func (t *Timeline) trouble(format string, args ...any) {
	t.troubles = append(t.troubles, fmt.Sprintf(format, args...))
}

// oddity is a trouble if nobody else is at work.
func (t *Timeline) oddity(format string, args ...any) {
	if t.Alone {
		t.trouble(format, args...)
	}
}

func (s *story) row(kind Kind, at time.Time, what, where string) Row {
	left := Never
	if !s.Deadline.IsZero() {
		left = s.Deadline.Sub(at)
	}
	return Row{Kind: kind, Since: at.Sub(s.Sent), Left: left, What: what, Where: where}
}

// isEmpty notes when the node is cordoned and without the pods of the notice.
func (s *story) isEmpty(at time.Time) []Row {
	if s.cordoned.IsZero() || len(s.left()) > 0 || !s.empty.IsZero() {
		return nil
	}
	s.empty = at
	return []Row{s.row(NodeEmpty, at, s.Node, count(len(s.gone), "pod")+" gone")}
}

// left are the pods that are not gone, by name.
func (s *story) left() []string {
	var left []string
	for _, pod := range slices.Sorted(maps.Keys(s.gone)) {
		if s.gone[pod].IsZero() {
			left = append(left, pod)
		}
	}
	return left
}

// Missing says what has not happened yet; nil when all notices have come to their end.
func (t *Timeline) Missing() []string {
	var missing []string
	note := func(is bool, format string, args ...any) {
		if is {
			missing = append(missing, fmt.Sprintf(format, args...))
		}
	}
	for _, s := range t.stories {
		note(s.cordoned.IsZero(), "%s is not cordoned", s.Node)
		for _, pod := range s.left() {
			note(true, "pod %s is still on %s", pod, s.Node)
		}
		lack := len(s.gone) - len(s.replaced)
		note(t.Alone && lack > 0, "of the pods of %s %d did not get ready elsewhere", s.Node, lack)
		note(s.Hook != "" && s.completed.IsZero(), "hook %s is not completed", s.Hook)
		note(s.Message != "" && s.deleted.IsZero(), "message %s is not deleted", s.Message)
		note(s.Message == "" && s.finished.IsZero(), "the work on %s is not finished", s.Node)
	}
	return missing
}

// blur is what a watch may be late compared with a record made on the spot: one
// that is later than another by less was not necessarily later.
const blur = 250 * time.Millisecond

// Troubles says what happened and should not have, or not in this order.
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
		if s.Deadline.IsZero() {
			continue
		}
		note(tooEarly(s.Deadline, s.deleted, 0), "message %s was deleted after the deadline", s.Message)
		note(s.Message == "" && tooEarly(s.Deadline, s.empty, blur), "%s was empty after the deadline", s.Node)
	}
	return troubles
}

// Summary is the whole of it in one line. A pod is missed when it was still there
// at the deadline of its notice, or still is.
func (t *Timeline) Summary() string {
	var drained, moved, missed int
	left := ""
	for _, s := range t.stories {
		if !s.empty.IsZero() {
			drained++
		}
		moved += len(s.replaced)
		for _, when := range s.gone {
			if when.IsZero() || !s.Deadline.IsZero() && when.After(s.Deadline) {
				missed++
			}
		}
		end := s.deleted
		if s.Message == "" {
			end = s.finished
		}
		if !end.IsZero() && !s.Deadline.IsZero() {
			left += fmt.Sprintf(", %.0f s of %.0f s", s.Deadline.Sub(end).Seconds(), s.Deadline.Sub(s.Sent).Seconds())
		}
	}
	line := fmt.Sprintf("%s, %s drained, %s moved, %d missed",
		count(len(t.stories), "notice"), count(drained, "node"), count(moved, "pod"), missed)
	if left != "" {
		line += "; left at the end: " + left[len(", "):]
	}
	return line
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
