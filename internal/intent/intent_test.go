package intent

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

func spot(id string, deadline int) Entry {
	return Entry{Kind: notice.SpotInterruption, IDs: []string{id}, Time: now, Deadline: at(deadline)}
}

func TestADeadlineOnlyEverTightens(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now).With(spot("b", 300), nil, now)
	if got := i.Deadline(); !got.Equal(at(120)) {
		t.Errorf("deadline %s, want %s", got, at(120))
	}
	i = i.With(spot("c", 60), nil, now)
	i = i.With(Entry{Kind: notice.RebalanceRecommendation, IDs: []string{"d"}}, nil, now)
	if got := i.Deadline(); !got.Equal(at(60)) {
		t.Errorf("deadline %s, want %s", got, at(60))
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, i.Entries[0].IDs); diff != "" {
		t.Errorf("event ids (-want +got):\n%s", diff)
	}
}

func TestTheCauseIsTheNoticeThatBindsTheMost(t *testing.T) {
	rebalance := Entry{Kind: notice.RebalanceRecommendation}
	change := Entry{Kind: notice.ScheduledChange, Deadline: at(900)}
	hook := Entry{Kind: notice.ASGTerminate, Deadline: at(300)}
	tests := []struct {
		entries []Entry
		want    notice.Kind
	}{
		{nil, notice.Ignored},
		{[]Entry{rebalance, {Kind: notice.ScheduledChange}}, notice.RebalanceRecommendation},
		{[]Entry{rebalance, change}, notice.ScheduledChange},
		{[]Entry{change, rebalance, hook}, notice.ASGTerminate},
		{[]Entry{hook, change, rebalance}, notice.ASGTerminate},
		{[]Entry{hook, spot("a", 300)}, notice.ASGTerminate},
	}
	for _, test := range tests {
		if got := (Intent{Entries: test.entries}).Cause().Kind; got != test.want {
			t.Errorf("the cause of %v is %s, want %s", test.entries, got, test.want)
		}
	}
}

func TestAHookEndsWithItsNoticeAndOnlyWhileItIsOpen(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now)
	i = i.With(Entry{Kind: notice.ASGTerminate, IDs: []string{"b"}, Deadline: at(300)}, &Hook{Name: "drain", Deadline: at(300)}, now)
	if got := i.hookDeadline(); !got.Equal(at(300)) {
		t.Errorf("the hook ends at %s, want %s", got, at(300))
	}
	i.Hooks = nil
	if got := i.hookDeadline(); !got.IsZero() {
		t.Errorf("a hook that is completed ends at %s", got)
	}
}

// Any order and any repetition of notices gives the same end.
func TestTheOrderOfNoticesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []Entry
		for k := range rapid.IntRange(1, 6).Draw(t, "entries") {
			e := Entry{Kind: rapid.SampledFrom(notice.Kinds).Draw(t, "kind"), IDs: []string{fmt.Sprint(k)}}
			if rapid.Bool().Draw(t, "hard") {
				e.Deadline = at(rapid.IntRange(1, 1000).Draw(t, "deadline"))
			}
			entries = append(entries, e)
		}
		build := func(entries []Entry) (i Intent) {
			for _, e := range entries {
				i = i.With(e, nil, now)
			}
			return i
		}
		a := build(entries)
		b := build(append(rapid.Permutation(entries).Draw(t, "order"), entries...))
		if !a.Deadline().Equal(b.Deadline()) || len(a.Entries) != len(b.Entries) {
			t.Fatalf("%+v\n%+v", a, b)
		}
		for _, e := range entries {
			if !a.Covers(e) || !b.Covers(e) || !b.Has(e.Kind) {
				t.Fatalf("%+v is not covered", e)
			}
		}
	})
}

func TestAFloodOfNoticesDoesNotGrowTheAnnotation(t *testing.T) {
	var i Intent
	for k := range 1000 {
		e := Entry{Kind: notice.ScheduledChange, Change: fmt.Sprint(k), IDs: []string{fmt.Sprint(k)}, Deadline: at(10 + k)}
		i = i.With(e, &Hook{Group: "g", Name: "h", Token: fmt.Sprint(k)}, now).With(spot(fmt.Sprint(k), 5000), nil, now)
	}
	text, err := json.Marshal(i)
	if err != nil || len(text) > 8192 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if !i.Deadline().Equal(at(10)) {
		t.Errorf("the nearest deadline was lost: %s", i.Deadline())
	}
}

func TestARedeliveryOpensNothingThatIsFinished(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now)
	i.FinishedAt = now
	if again := i.With(spot("a", 120), nil, now); !again.Finished() {
		t.Error("a redelivery opened the finished intent")
	}
	if again := i.With(spot("b", 120), nil, now); again.Finished() {
		t.Error("a new warning left the intent finished")
	}
}

func TestWhatIsLeftBehindIsLookedAfter(t *testing.T) {
	reports, queue, other := OfReports("ns/nth"), "https://sqs/q", "https://sqs/other"
	for _, tt := range []struct {
		of, by string
		want   bool
	}{
		{OfMetadata, queue, true},
		{reports, queue, true},
		{other, queue, false},
		{other, reports, true},
		{OfMetadata, reports, true},
		{OfReports("ns/b"), reports, true},
	} {
		i := Intent{Queue: tt.of}
		if i.LeftBehind(tt.by) {
			t.Errorf("of %s, and not finished: looked after by %s", tt.of, tt.by)
		}
		i.FinishedAt = time.Now()
		if i.LeftBehind(tt.by) != tt.want {
			t.Errorf("of %s: looked after by %s is %t", tt.of, tt.by, !tt.want)
		}
	}
}
