package timeline

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sent is when the notices of these tests were sent.
var sent = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds float64) time.Time {
	return sent.Add(time.Duration(seconds * float64(time.Second)))
}

// hooked is a notice about node a, with two pods, a hook and two minutes.
func hooked() Notice {
	return Notice{
		Name: "EC2 Instance-terminate Lifecycle Action", Instance: "i-0123456789abcdef0", Node: "a", Message: "m", Hook: "h",
		Pods: []string{"p1", "p2"}, Sent: sent, Deadline: at(120),
	}
}

// all is everything that should happen to hooked, in order.
func all() []Event {
	return []Event{
		{Time: at(1), Kind: NodeCordoned, Node: "a"},
		{Time: at(2), Kind: PodEvicted, Node: "a", Pod: "p1"},
		{Time: at(3), Kind: PodReady, Node: "b", Pod: "q1"},
		{Time: at(4), Kind: PodEvicted, Node: "a", Pod: "p2"},
		{Time: at(5), Kind: PodGone, Node: "a", Pod: "p1"},
		{Time: at(6), Kind: PodReady, Node: "b", Pod: "q2"},
		{Time: at(7), Kind: PodGone, Node: "a", Pod: "p2"},
		{Time: at(8), Kind: HookCompleted, Hook: "h", Result: "CONTINUE"},
		{Time: at(9), Kind: MessageDeleted, Message: "m"},
	}
}

// replay begins a notice and observes events.
func replay(n Notice, events []Event) (*Timeline, []Row) {
	t := Timeline{}
	rows := []Row{t.Begin(n)}
	for _, e := range events {
		rows = append(rows, t.Observe(e)...)
	}
	return &t, rows
}

func row(kind Kind, since time.Duration, what, where string) Row {
	return Row{Kind: kind, Since: since * time.Second, Left: (120 - since) * time.Second, What: what, Where: where}
}

func TestADrainIsToldFromTheNoticeToTheEndOfItsMessage(t *testing.T) {
	got, rows := replay(hooked(), all())
	want := []Row{
		row(NoticeSent, 0, "i-0123456789abcdef0", "on a"),
		row(NodeCordoned, 1, "a", ""),
		row(PodEvicted, 2, "p1", "from a"),
		row(PodReady, 3, "q1", "on b"),
		row(PodEvicted, 4, "p2", "from a"),
		row(PodReady, 6, "q2", "on b"),
		row(NodeEmpty, 7, "a", "2 pods gone"),
		row(HookCompleted, 8, "h", "CONTINUE"),
		row(MessageDeleted, 9, "m", ""),
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if missing, troubles := got.Missing(), got.Troubles(); missing != nil || troubles != nil {
		t.Errorf("missing %q, troubles %q, want none", missing, troubles)
	}
	const summary = "1 notice, 1 node drained, 2 pods moved, 0 missed; left: 111 of 120 s"
	if got.Summary() != summary {
		t.Errorf("summary %q, want %q", got.Summary(), summary)
	}
}

func TestWhatIsSeenTwiceIsNewsOnce(t *testing.T) {
	tl, _ := replay(hooked(), all())
	for _, e := range all() {
		if e.Kind == PodEvicted || e.Kind == HookCompleted {
			continue // those would be another eviction, another completion
		}
		if rows := tl.Observe(e); rows != nil {
			t.Errorf("%+v again is news: %+v", e, rows)
		}
	}
	if troubles := tl.Troubles(); troubles != nil {
		t.Errorf("troubles %q, want none", troubles)
	}
}

func TestEachEventThatDoesNotComeIsMissing(t *testing.T) {
	want := []string{
		"a is not cordoned",
		"", // an eviction that was not seen is as good as seen, once the pod is gone
		"of the pods of a 1 did not get ready elsewhere",
		"",
		"pod p1 is still on a",
		"of the pods of a 1 did not get ready elsewhere",
		"pod p2 is still on a",
		"hook h is not completed",
		"message m is not deleted",
	}
	for skip, want := range want {
		events := all()
		events = append(events[:skip], events[skip+1:]...)
		tl, _ := replay(hooked(), events)
		var wanted []string
		if want != "" {
			wanted = []string{want}
		}
		if diff := cmp.Diff(wanted, tl.Missing()); diff != "" {
			t.Errorf("without %+v (-want +got):\n%s", all()[skip], diff)
		}
	}
}

func TestWhatShouldNotHappenIsTrouble(t *testing.T) {
	insert := func(e Event) []Event { return append(all(), e) }
	change := func(k int, change func(*Event)) []Event {
		events := all()
		change(&events[k])
		return events
	}
	for name, c := range map[string]struct {
		events []Event
		want   []string
	}{
		"another node is cordoned": {
			insert(Event{Time: at(10), Kind: NodeCordoned, Node: "c"}),
			[]string{"c was cordoned, and no notice is about it"},
		},
		"a pod of another node is evicted": {
			insert(Event{Time: at(10), Kind: PodEvicted, Node: "c", Pod: "r"}),
			[]string{"pod r had to leave c, and no notice is about that"},
		},
		"a pod is deleted instead of evicted": {
			change(1, func(e *Event) { e.Kind = PodDeleted }),
			[]string{"pod p1 was deleted, not evicted"},
		},
		"the hook is completed twice": {
			insert(Event{Time: at(10), Kind: HookCompleted, Hook: "h", Result: "CONTINUE"}),
			[]string{"hook h was completed again"},
		},
		"the hook times out": {
			change(7, func(e *Event) { e.Kind = HookTimedOut }),
			[]string{"hook h timed out"},
		},
		"the launch is abandoned": {
			change(7, func(e *Event) { e.Result = "ABANDON" }),
			[]string{"hook h was completed with ABANDON"},
		},
		"the hook is completed first": {
			change(7, func(e *Event) { e.Time = at(6) }),
			[]string{"hook h was completed before a was empty"},
		},
		"the watch is a little late": {
			change(7, func(e *Event) { e.Time = at(6.9) }),
			nil,
		},
		"the message is deleted first": {
			change(8, func(e *Event) { e.Time = at(1) }),
			[]string{"message m was deleted before a was empty", "message m was deleted before hook h was completed"},
		},
		"the message is deleted too late": {
			change(8, func(e *Event) { e.Time = at(121) }),
			[]string{"message m was deleted after the deadline"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tl, _ := replay(hooked(), c.events)
			if diff := cmp.Diff(c.want, tl.Troubles()); diff != "" {
				t.Errorf("troubles (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPodThatIsBoundLateHasToGoToo(t *testing.T) {
	tl, _ := replay(hooked(), []Event{{Time: at(1), Kind: PodEvicted, Node: "a", Pod: "late"}})
	for _, e := range all() {
		tl.Observe(e)
	}
	want := []string{"pod late is still on a", "of the pods of a 1 did not get ready elsewhere"}
	if diff := cmp.Diff(want, tl.Missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestAPodThatIsThereAtTheDeadlineIsMissed(t *testing.T) {
	events := all()
	events[6].Time = at(121)
	tl, _ := replay(hooked(), events[:7])
	const want = "1 notice, 1 node drained, 2 pods moved, 1 missed"
	if tl.Summary() != want {
		t.Errorf("summary %q, want %q", tl.Summary(), want)
	}
}

func TestNoticesAtOnceDoNotMixTheirPods(t *testing.T) {
	tl := Timeline{}
	tl.Begin(Notice{Node: "a", Message: "m1", Pods: []string{"p1"}, Sent: sent, Deadline: at(120)})
	tl.Begin(Notice{Node: "b", Message: "m2", Sent: at(1), Deadline: at(60)})
	rows := tl.Observe(Event{Time: at(2), Kind: NodeCordoned, Node: "b"})
	want := []Row{
		{Kind: NodeCordoned, Since: time.Second, Left: 58 * time.Second, What: "b"},
		{Kind: NodeEmpty, Since: time.Second, Left: 58 * time.Second, What: "b", Where: "0 pods gone"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if rows := tl.Observe(Event{Time: at(3), Kind: PodReady, Node: "a", Pod: "q"}); rows != nil {
		t.Errorf("a pod that gets ready on the node it has to leave is news: %+v", rows)
	}
	tl.Observe(Event{Time: at(4), Kind: MessageDeleted, Message: "m2"})
	wantMissing := []string{
		"a is not cordoned", "pod p1 is still on a", "of the pods of a 1 did not get ready elsewhere", "message m1 is not deleted",
	}
	if diff := cmp.Diff(wantMissing, tl.Missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}
