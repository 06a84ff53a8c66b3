package intent

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/node-termination-handler/node-termination-handler/internal/notice"
)

// drawTerms are terms without the name of a rule: which of two names stays is a matter of order.
func drawTerms(r *rand.Rand) Terms {
	t := Terms{
		CordonOnly: r.IntN(2) == 0, Patient: r.IntN(2) == 0, GraceSeconds: int64(r.IntN(3)) * 10, MostGraceSeconds: int64(r.IntN(3)) * 10, ReplaceFirst: r.IntN(2) == 0,
	}
	t.By = []By{"", ByHandler, ByKarpenter}[r.IntN(3)]
	if k := r.IntN(4); k > 0 {
		t.BudgetPercent = new([]int{0, 50, 80}[k-1])
	}
	if k := r.IntN(4); k > 0 {
		t.NotBefore = time.Date(2026, 11, 20, k, 0, 0, 0, time.UTC)
	}
	return t
}

// weaker reports whether terms ask for no more than others in any respect.
func weaker(t, than Terms) bool {
	later := than.NotBefore.IsZero() || !t.NotBefore.IsZero() && !t.NotBefore.Before(than.NotBefore)
	longer := t.GraceSeconds == 0 || than.GraceSeconds > 0 && t.GraceSeconds >= than.GraceSeconds
	more := t.MostGraceSeconds == 0 || than.MostGraceSeconds > 0 && t.MostGraceSeconds >= than.MostGraceSeconds
	own := t.By != ByHandler || than.By == ByHandler
	return own && (t.CordonOnly || !than.CordonOnly) && (t.Patient || !than.Patient) && (t.ReplaceFirst || !than.ReplaceFirst) && later && longer && more &&
		t.BudgetShare() >= than.BudgetShare()
}

func TestTermsOfSeveralNoticesAreTheStrongest(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b, c := drawTerms(r), drawTerms(r), drawTerms(r)
		both := a.join(b)
		switch {
		case !cmp.Equal(both, b.join(a)):
			t.Fatalf("%+v and %+v: the order matters", a, b)
		case !cmp.Equal(both.join(c), a.join(b.join(c))):
			t.Fatalf("%+v, %+v and %+v: the grouping matters", a, b, c)
		case !cmp.Equal(a.join(a), a):
			t.Fatalf("%+v twice is %+v", a, a.join(a))
		case !weaker(a, both) || !weaker(b, both):
			t.Fatalf("%+v and %+v are %+v: one of them asks for more", a, b, both)
		}
		// Nothing stronger than need be: each part is that of one of the two.
		if both.NotBefore != a.NotBefore && both.NotBefore != b.NotBefore || both.GraceSeconds != a.GraceSeconds && both.GraceSeconds != b.GraceSeconds ||
			both.MostGraceSeconds != a.MostGraceSeconds && both.MostGraceSeconds != b.MostGraceSeconds ||
			both.By != a.By && both.By != b.By || both.CordonOnly != (a.CordonOnly && b.CordonOnly) || both.Patient != (a.Patient && b.Patient) ||
			both.ReplaceFirst != (a.ReplaceFirst && b.ReplaceFirst) || both.BudgetShare() != min(a.BudgetShare(), b.BudgetShare()) {
			t.Fatalf("%+v and %+v are %+v", a, b, both)
		}
	}
}

func TestWhatOnlyCordonsTakesNoPatienceFromWhatDrains(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	change := Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", Time: now, Deadline: now.Add(144 * time.Hour), Terms: Terms{Rule: "changes", CordonOnly: true}}
	for name, deadline := range map[string]time.Time{"with a deadline": now.Add(time.Hour), "without": {}} {
		termination := Entry{Kind: notice.ASGTerminate, IDs: []string{"t"}, Time: now, Deadline: deadline, Terms: Terms{Rule: "terminations", Patient: true}}
		for _, i := range []Intent{{Entries: []Entry{change, termination}}, {Entries: []Entry{termination, change}}} {
			if terms := i.Terms(); !terms.Patient || terms.CordonOnly {
				t.Errorf("%s: %+v, want the patience of the termination", name, terms)
			}
		}
	}
}

func TestTermsOfAnIntent(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	later := Terms{Rule: "reboots", NotBefore: now.Add(time.Hour), GraceSeconds: 60}
	i := Intent{}.With(Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", Time: now, Deadline: now.Add(2 * time.Hour), Terms: later}, nil, now)
	if got := i.Terms(); got != later {
		t.Errorf("one notice: %+v", got)
	}
	i = i.With(Entry{Kind: notice.RebalanceRecommendation, Time: now, Terms: Terms{Rule: "gpu", CordonOnly: true}}, nil, now)
	if got, want := i.Terms(), (Terms{Rule: "gpu", GraceSeconds: 60}); got != want {
		t.Errorf("two notices: %+v, want %+v", got, want)
	}
	// What has no deadline takes no share from what has one.
	i = i.With(Entry{Kind: notice.RebalanceRecommendation, Time: now, Terms: Terms{Rule: "gpu", BudgetPercent: new(0)}}, nil, now)
	if got := i.Terms().BudgetShare(); got != .5 {
		t.Errorf("budgets have %g of the notice, want half", got)
	}
	// The newest event about a scheduled change says when its drain begins.
	moved := later
	moved.NotBefore = now.Add(5 * time.Hour)
	i = Intent{}.With(Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", Time: now, Deadline: now.Add(2 * time.Hour), Terms: later}, nil, now)
	i = i.With(Entry{Kind: notice.ScheduledChange, Change: "instance-event-00000000000000001", Time: now.Add(time.Minute), Deadline: now.Add(6 * time.Hour), Terms: moved}, nil, now)
	if got := i.Terms(); got != moved {
		t.Errorf("a change that was moved: %+v", got)
	}
	encoded, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Decode(encoded); err != nil || back.Terms() != moved {
		t.Errorf("read again: %+v, %v", back.Terms(), err)
	}
}
