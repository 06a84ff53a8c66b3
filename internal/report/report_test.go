package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/node-termination-handler/node-termination-handler/internal/cluster"
	"github.com/node-termination-handler/node-termination-handler/internal/decision"
	"github.com/node-termination-handler/node-termination-handler/internal/evacuation"
	"github.com/node-termination-handler/node-termination-handler/internal/intent"
	"github.com/node-termination-handler/node-termination-handler/internal/notice"
	"github.com/node-termination-handler/node-termination-handler/internal/overview"
)

// witness keeps what it is told.
type witness struct{ heard []any }

func (w *witness) Decided(d Decision)      { w.heard = append(w.heard, d) }
func (w *witness) Recorded(e intent.Entry) { w.heard = append(w.heard, e) }
func (w *witness) Stepped(s Step)          { w.heard = append(w.heard, s) }
func (w *witness) Drained(d Drain)         { w.heard = append(w.heard, d) }

func TestEveryObserverIsToldEverything(t *testing.T) {
	var a, b witness
	node := cluster.Ref{Name: "node-1"}
	want := []any{
		Decision{Node: node, Action: decision.Drain, Why: decision.WhyRebalance},
		intent.Entry{Kind: notice.RebalanceRecommendation},
		Step{Node: node, Kind: Cordon, Why: decision.WhyRebalance, Err: errors.New("no")},
		Drain{Node: node, Outcome: intent.Drained},
	}
	all := Observers{&a, &b}
	all.Decided(want[0].(Decision))
	all.Recorded(want[1].(intent.Entry))
	all.Stepped(want[2].(Step))
	all.Drained(want[3].(Drain))
	for _, got := range [][]any{a.heard, b.heard} {
		if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
	}
}

func TestANodeTellsOfItsEpisodesThatHaveEnded(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	ref := cluster.Ref{Name: "a", Instance: "i-0123456789abcdef0"}
	last := &intent.Ended{Kind: notice.SpotInterruption, Outcome: intent.Missed, Began: at.Add(-time.Hour), FinishedAt: at.Add(-58 * time.Minute)}
	now := intent.Intent{}.With(intent.Entry{Kind: notice.RebalanceRecommendation, Time: at}, nil, at)
	ended := now
	ended.FinishedAt, ended.Outcome = at.Add(time.Minute), intent.Drained
	for name, tt := range map[string]struct {
		carried intent.Intent
		want    []string
	}{
		"nothing but a memory":    {intent.Intent{FinishedAt: at, Last: last}, []string{"missed"}},
		"nothing at all":          {intent.Intent{FinishedAt: at}, nil},
		"one that has ended":      {ended, []string{"drained"}},
		"and one before":          {func() intent.Intent { i := ended; i.Last = last; return i }(), []string{"drained", "missed"}},
		"one in progress":         {now, nil},
		"an outcome that is none": {intent.Intent{Last: &intent.Ended{Outcome: "splendid", Kind: 99}}, []string{""}},
	} {
		var got []string
		for _, e := range EpisodesOf(ref, tt.carried) {
			got = append(got, e.Outcome)
			if e.Node != "a" || e.Known != overview.AsCarried {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: the outcomes are %q, want %q", name, got, tt.want)
		}
	}
}

// A kubelet can write what a node carries: what this program has not written is not known.
func TestTheNextLeaderKnowsTheCountsThatANodeCarries(t *testing.T) {
	result := evacuation.Result{
		Evicted: 3, Forced: 7, Lost: []string{"ns/lost"}, Stayed: []string{"ns/kept"}, Returned: []string{"ns/new"},
		Record: evacuation.Record{CutShort: []string{"ns/cut (20 s of 60 s)"}},
	}
	for k := range 7 {
		result.Record.ForcedPods = append(result.Record.ForcedPods, fmt.Sprintf("ns/forced-%d", k))
	}
	counts := CountsOf(Drain{Result: result, Resumed: true})
	if want := []string{"ns/kept", "ns/new"}; counts.Stayed != 2 || !slices.Equal(counts.StayedPods, want) {
		t.Errorf("%d have stayed, %q, want %q", counts.Stayed, counts.StayedPods, want)
	}
	carried := intent.Pods(*counts)
	text, err := json.Marshal(intent.Intent{Version: 1, Entries: []intent.Entry{{}}, FinishedAt: time.Unix(1, 0), Pods: &carried})
	if err != nil {
		t.Fatal(err)
	}
	i, err := intent.Decode(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*overview.Counts{counts}, []*overview.Counts{EpisodesOf(cluster.Ref{}, i)[0].Pods}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again := intent.Intent{Last: i.Memory(time.Now())}
	if diff := cmp.Diff(counts, EpisodesOf(cluster.Ref{}, again)[0].Pods); diff != "" {
		t.Errorf("after the next episode (-want +got):\n%s", diff)
	}
	for name, forged := range map[string]intent.Pods{
		"less than none": {Evicted: -1}, "a long name": {Remaining: []string{strings.Repeat("x", 10_000)}},
	} {
		if got := EpisodeOf(cluster.Ref{}, intent.Intent{Pods: &forged}).Pods; got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := EpisodeOf(cluster.Ref{}, intent.Intent{Pods: &intent.Pods{Remaining: make([]string, 1000)}}).Pods; len(got.Remaining) > mostNames+1 {
		t.Errorf("%d names", len(got.Remaining))
	}
}

// What a leader asks first after it has taken over is not what the drain has asked first.
func TestTheFirstQuestionIsNotKnownAfterATakeOver(t *testing.T) {
	first, last := time.Unix(10, 0), time.Unix(20, 0)
	d := Drain{Result: evacuation.Result{Record: evacuation.Record{FirstAsked: first, LastAsked: last}}}
	for known, want := range map[overview.Known]time.Time{overview.Everything: first, overview.SinceTakeOver: {}} {
		if e := WithDrain(overview.Episode{Known: known}, d); !e.FirstAsked.Equal(want) || !e.LastAsked.Equal(last) {
			t.Errorf("%s: %+v", known, e)
		}
	}
}

func TestANodeIsStillCordonedAWhileAfterItsMachineWasToGo(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	spot := intent.Entry{Kind: notice.SpotInterruption, Time: at, Deadline: at.Add(2 * time.Minute)}
	ours := intent.Intent{Version: 1, Cordoned: true, Entries: []intent.Entry{spot}, FinishedAt: at.Add(time.Minute)}
	for name, tt := range map[string]struct {
		edit  func(i *intent.Intent)
		after time.Duration
		want  bool
	}{
		"long after":           {nil, 8 * time.Minute, true},
		"pods were left on it": {func(i *intent.Intent) { i.Outcome = intent.Missed }, time.Minute, true},
		"pods are unconfirmed": {func(i *intent.Intent) {
			i.Outcome, i.Pods = intent.Unconfirmed, &intent.Pods{Unconfirmed: 1, Remaining: []string{"a/b"}}
		}, time.Minute, true},
		"its pods left late": {func(i *intent.Intent) {
			i.Outcome, i.Pods = intent.Missed, &intent.Pods{Evicted: 3}
		}, time.Minute, false},
		"soon after its deadline":   {nil, 6 * time.Minute, false},
		"somebody else cordoned it": {func(i *intent.Intent) { i.Cordoned = false }, time.Hour, false},
		"its drain is in progress":  {func(i *intent.Intent) { i.FinishedAt = time.Time{} }, time.Hour, false},
		"it never had a deadline":   {func(i *intent.Intent) { i.Entries[0].Deadline = time.Time{} }, 6 * time.Minute, true},
		"a rule only cordons it":    {func(i *intent.Intent) { i.Outcome = intent.Cordoned }, time.Hour, false},
		"its hook is completed": {func(i *intent.Intent) {
			i.Entries[0].Kind, i.Entries[0].Deadline = notice.ASGTerminate, at.Add(time.Hour)
		}, 7 * time.Minute, true},
	} {
		i := ours
		i.Entries = slices.Clone(ours.Entries)
		if tt.edit != nil {
			tt.edit(&i)
		}
		c, still := CordonedOf(cluster.Ref{Name: "a"}, i, at.Add(tt.after))
		if still != tt.want || still && c.Node != "a" || c.Missed != strings.HasPrefix(name, "pods ") {
			t.Errorf("%s: %+v, %t", name, c, still)
		}
	}
}

// The pods of a drain that has missed the deadline of a hook are there when the machine goes: they are counted once, and
// are the reason for both ends.
func TestAPodThatWasToldIsNotCountedAgain(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	d := Drain{
		Intent:  intent.Intent{Entries: []intent.Entry{{Kind: notice.StateChange, Time: at, Deadline: at.Add(2 * time.Minute)}}},
		Outcome: intent.Gone, Result: evacuation.Result{Lost: []string{"shop/db-0", "shop/web"}}, Told: []string{"shop/db-0"},
	}
	d.Result.Record.PodsGone = at.Add(time.Minute)
	if _, lost, _ := d.Left(); lost != 1 || CountsOf(d).Lost != 1 {
		t.Errorf("%d are counted, want one", lost)
	}
	if names := d.Remaining(); !slices.Equal(names, d.Result.Lost) || !slices.Equal(CountsOf(d).Remaining, d.Result.Lost) {
		t.Errorf("the reasons are %q", names)
	}
	if slack, known := d.Slack(); slack > 0 || !known {
		t.Errorf("the slack is %s, %t", slack, known)
	}
}

func TestWhereNoKubeletConfirmsTheEndNobodyKnowsTheSlack(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	d := Drain{
		Intent: intent.Intent{Entries: []intent.Entry{{Kind: notice.SpotInterruption, Time: at, Deadline: at.Add(2 * time.Minute)}}},
		Result: evacuation.Result{Unconfirmed: []string{"shop/db-0"}},
	}
	d.Result.Record.PodsGone = at.Add(time.Minute)
	if slack, known := d.Slack(); known {
		t.Errorf("the slack is %s", slack)
	}
}

// A new term of the process resumes a drain whose end could not be written.
func TestTheEndOfADrainIsToldOnce(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	w := &witness{}
	o := Once(w)
	drain := func(node string, cordoned time.Time, outcome intent.Outcome) {
		o.Drained(Drain{Node: cluster.Ref{UID: types.UID(node)}, Intent: intent.Intent{CordonedAt: cordoned}, Outcome: outcome})
	}
	for _, tt := range []struct {
		name, node string
		cordoned   time.Time
		outcome    intent.Outcome
		want       int
	}{
		{"a drain", "a", at, intent.Drained, 1},
		{"the same, resumed", "a", at, intent.Drained, 1},
		{"which has come too late by then", "a", at, intent.Missed, 1},
		{"another node", "b", at, intent.Drained, 2},
		{"its next drain", "b", at.Add(time.Hour), intent.Missed, 3},
		{"a node that is cordoned", "c", at, intent.Cordoned, 4},
		{"and drained after all", "c", at, intent.Drained, 5},
		{"one that is called off", "d", at, intent.CalledOff, 6},
	} {
		if drain(tt.node, tt.cordoned, tt.outcome); len(w.heard) != tt.want {
			t.Errorf("%s: told %d times, want %d", tt.name, len(w.heard), tt.want)
		}
	}
	if o.Stepped(Step{}); len(w.heard) != 7 {
		t.Error("other reports are not passed on")
	}
}

// Who has the id of any event finds the drain by it.
func TestAnEpisodeHasTheIDsOfAllEventsOfItsNotices(t *testing.T) {
	at := time.Date(2026, 3, 4, 3, 0, 0, 0, time.UTC)
	i := intent.Intent{Version: 1, Entries: []intent.Entry{
		{Kind: notice.SpotInterruption, Time: at, IDs: []string{"a", "b", "c"}}, {Kind: notice.RebalanceRecommendation, Time: at},
	}}
	e := EpisodeOf(cluster.Ref{Name: "node"}, i)
	if n := e.Notices[0]; n.ID != "a" || !slices.Equal(n.Also, []string{"b", "c"}) || e.Notices[1].ID != "" {
		t.Errorf("%+v", e.Notices)
	}
}
