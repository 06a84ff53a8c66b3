package intent

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

func rebalance(id string, second int) Entry {
	return Entry{Kind: notice.RebalanceRecommendation, IDs: []string{id}, Time: at(second)}
}

func change(arn, id string, second, deadline int) Entry {
	return Entry{Kind: notice.ScheduledChange, Change: arn, IDs: []string{id}, Time: at(second), Deadline: at(deadline)}
}

func hasChange(i Intent, arn string) bool {
	return i.find(Entry{Kind: notice.ScheduledChange, Change: arn}) >= 0
}

func finished(i Intent, second int) Intent {
	i.FinishedAt, i.Hooks = at(second), nil
	return i
}

func TestANoticeForFinishedWorkBeginsANewEpisode(t *testing.T) {
	first := finished(Intent{Cordoned: true, Taints: []string{"spot-itn"}}.With(spot("a", 120), nil, now), 30)
	i := first.With(rebalance("b", 3600), nil, at(3600))
	if i.Finished() || !i.Deadline().IsZero() || i.Has(notice.SpotInterruption) {
		t.Errorf("the new episode is bound by the old one: %+v", i)
	}
	if !i.Cordoned || len(i.Taints) != 1 {
		t.Errorf("what may have to be undone is forgotten: %+v", i)
	}
	if !i.Covers(spot("a", 120)) || !i.Over(spot("a", 120)) {
		t.Error("a repeated message of the old episode is not known")
	}
	if again := i.With(spot("a", 120), nil, at(3601)); !cmp.Equal(i, again) {
		t.Errorf("it changes %+v to %+v", i, again)
	}
}

func TestAMachineThatStillGoesOutlivesTheEpisode(t *testing.T) {
	i := finished(Intent{}.With(spot("a", 120), nil, now), 30).With(change("x", "b", 40, 86400), nil, at(40))
	if !i.Deadline().Equal(at(120)) {
		t.Errorf("deadline %s, want that of the spot warning", i.Deadline())
	}
	if i = i.Without(notice.ScheduledChange, "x", at(50)); len(i.Entries) != 1 {
		t.Errorf("entries %+v, want the spot warning's", i.Entries)
	}
	hooked := finished(Intent{}.With(Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Deadline: at(3600)}, &Hook{Name: "drain", Deadline: at(3600)}, now), 30)
	if i = hooked.With(rebalance("b", 60), nil, at(60)); !i.Has(notice.ASGTerminate) || !i.Deadline().IsZero() {
		t.Errorf("%+v, want the termination, without the deadline of a hook that is completed", i)
	}
	gone := finished(Intent{}.With(spot("a", 120), nil, now), 30).Gone(at(60))
	if said := gone.AsAnnounced().Deadline(); !said.Equal(at(120)) || !gone.Memory(at(70)).Deadline.Equal(at(120)) {
		t.Errorf("AWS said %s, and %s is remembered of it", at(120), said)
	}
	if len(gone.Pending(at(60))) > 0 {
		t.Errorf("a machine that has gone still goes: %+v", gone.Pending(at(60)))
	}
}

func TestADeadlineOfLongAgoIsNone(t *testing.T) {
	i := Intent{}.With(spot("a", 120), &Hook{Name: "h", Deadline: at(120)}, now)
	if i = i.Current(at(120).Add(StaleAfter)); i.Deadline().IsZero() {
		t.Error("gone too soon")
	}
	if i = i.Current(at(121).Add(StaleAfter)); !i.Deadline().IsZero() || !i.hookDeadline().IsZero() {
		t.Errorf("deadlines %s and %s", i.Deadline(), i.hookDeadline())
	}
}

// Who passes a notice on to the next Node of a machine may have waited for EC2 for hours.
func TestANoticeOfLongAgoBringsNoDeadline(t *testing.T) {
	terminates := Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Deadline: at(120)}
	late := at(121).Add(StaleAfter)
	i := Intent{}.With(change("x", "c", 0, 120), nil, late).With(terminates, &Hook{Name: "drain", Deadline: at(120)}, late)
	if len(i.Entries) != 2 || len(i.Hooks) != 1 || !i.Deadline().IsZero() || !i.hookDeadline().IsZero() {
		t.Errorf("a deadline of long ago counts: %+v", i)
	}
	if i = (Intent{}).With(change("x", "c", 0, 120), nil, at(120).Add(StaleAfter)); !i.Deadline().Equal(at(120)) {
		t.Errorf("deadline %s, want the one that has just passed", i.Deadline())
	}
}

func TestTheNewestEventSaysWhenAChangeTakesPlace(t *testing.T) {
	events := []Entry{change("x", "a", 0, 1000), change("x", "b", 60, 9000), change("x", "c", 30, 500)}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}} {
		var i Intent
		for _, k := range order {
			i = i.With(events[k], nil, now)
		}
		if !i.Deadline().Equal(at(9000)) || len(i.Entries) != 1 {
			t.Errorf("in the order %v: deadline %s", order, i.Deadline())
		}
	}
}

func TestAChangeThatIsOverIsRememberedAndItsAnnouncementsAreVoid(t *testing.T) {
	i := Intent{}.With(change("x", "a", 0, 1000), nil, now).Without(notice.ScheduledChange, "x", at(100))
	if hasChange(i, "x") || !i.Over(change("x", "late", 99, 1000)) || i.Over(change("x", "newer", 101, 1000)) || i.Over(change("y", "other", 50, 1000)) {
		t.Errorf("%+v", i)
	}
	if i = i.Without(notice.ScheduledChange, "x", at(50)); !i.Over(change("x", "late", 99, 1000)) {
		t.Error("an older closing takes the newer one's place")
	}
}

func TestADeadlineThatWasAssumedGivesWayToOneThatIsKnown(t *testing.T) {
	entry := Entry{Kind: notice.ASGTerminate, IDs: []string{"a"}, Time: now, Deadline: at(120)}
	guess := Hook{Group: "g", Name: "h", Instance: "i", Deadline: at(120), Assumed: true}
	i := Intent{}.With(entry, &guess, now)
	if i = i.WithDeadline(guess, at(3600)); !i.Deadline().Equal(at(3600)) || i.Hooks[0].Assumed {
		t.Errorf("%+v", i)
	}
	if i = i.With(entry, &guess, now); !i.Deadline().Equal(at(3600)) {
		t.Errorf("a guess that comes again tightens what is known: %s", i.Deadline())
	}
	other := Hook{Group: "g", Name: "other", Instance: "i", Deadline: at(600)}
	if i = i.With(entry, &other, now); !i.Deadline().Equal(at(600)) || !i.hookDeadline().Equal(at(600)) {
		t.Errorf("two hooks: %s", i.Deadline())
	}
}

func TestWhatIsOlderThanTheLaunchIsForgottenButNotWhileAHookIsOpen(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now).With(rebalance("b", 300), nil, now)
	if i = i.SinceLaunch(at(200)); len(i.Entries) != 1 || i.Entries[0].Kind != notice.RebalanceRecommendation {
		t.Errorf("%+v", i.Entries)
	}
	if i = i.With(rebalance("c", 500), nil, now).SinceLaunch(at(400)); len(i.Entries) != 1 {
		t.Error("an entry with a newer event is forgotten")
	}
	hooked := Intent{}.With(Entry{Kind: notice.ASGTerminate, IDs: []string{"h"}, Time: now}, &Hook{Name: "drain"}, now)
	if len(hooked.SinceLaunch(at(200)).Entries) != 1 || len(finished(hooked, 10).SinceLaunch(at(200)).Entries) != 0 {
		t.Error("a termination counts as long as its hook is open, and no longer")
	}
}

func TestWhoJoinsUnderAnotherQueueIsNotedAndAnEpisodeHasTheQueueOfItsFirstNotice(t *testing.T) {
	i := Intent{}.With(spot("a", 120), nil, now).From("one").From("two")
	if !i.Serves("one") || !i.Serves("two") || i.Serves("three") || i.Queue != "one" {
		t.Errorf("%+v", i)
	}
	if i = finished(i, 10).With(rebalance("b", 600), nil, at(600)).From("three"); i.Queue != "three" || i.Serves("one") {
		t.Errorf("%+v", i)
	}
	for k := range 100 {
		i = i.From(fmt.Sprint(k))
	}
	if len(i.AlsoQueues) > maxQueues {
		t.Errorf("%d queues", len(i.AlsoQueues))
	}
}

// SQS delivers a message again, and late.
func TestAnEndTakesBackNoNewerAnnouncementOfItsClock(t *testing.T) {
	const polled = "instance-event-0123456789abcdef0"
	entry := func(kind notice.Kind, name, id string) Entry {
		return Entry{Kind: kind, Change: name, IDs: []string{id}, Time: at(200), Deadline: at(9000)}
	}
	for name, tt := range map[string]struct {
		entry Entry
		ended int
		stays bool
	}{
		"an older end":                          {entry(notice.ScheduledChange, "arn", "again"), 100, true},
		"an end of the same second":             {entry(notice.ScheduledChange, "arn", "again"), 200, false},
		"a newer end":                           {entry(notice.ScheduledChange, "arn", "again"), 300, false},
		"an older end of what a poll has moved": {entry(notice.ScheduledChange, "arn", polled+"-20261201T000000Z"), 100, false},
		"an end that a poll has found":          {entry(notice.ScheduledChange, polled, polled), 100, false},
		"the end of what the metadata has told": {entry(notice.ScheduledChange, polled, "imds-"+polled), 100, false},
		"an impairment that is over":            {entry(notice.InstanceImpaired, "", "impaired-1"), 100, false},
	} {
		other := change("another", "b", 0, 9000)
		i := Intent{}.With(other, nil, now).With(tt.entry, nil, now).EndedBy(tt.entry.Kind, tt.entry.Change, at(tt.ended))
		if i.Asks(tt.entry) != tt.stays || i.Over(tt.entry) == tt.stays || !i.Asks(other) {
			t.Errorf("%s: %+v, past %+v; stays %t, want %t", name, i.Entries, i.Past, i.Asks(tt.entry), tt.stays)
		}
	}
}

func TestEpisodesDoNotGrowTheAnnotation(t *testing.T) {
	var i Intent
	for k := range 500 {
		i = finished(i.With(change(fmt.Sprint("change", k), fmt.Sprint("id", k), k, k+1), nil, at(k)), k).Without(notice.ScheduledChange, fmt.Sprint("change", k), at(k))
		i = finished(i.With(spot(fmt.Sprint("spot", k), -5000), nil, at(k)), k)
	}
	text, err := json.Marshal(i)
	if err != nil || len(text) > 8192 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
