package drain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var now = time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC)

func at(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }

func TestNext(t *testing.T) {
	s := time.Second
	for name, tt := range map[string]struct {
		pod   state
		front tier
		terms Terms
		want  move
	}{
		"with time to spare a pod gets its own grace": {
			pod: state{grace: 30 * s, own: true}, terms: Terms{Deadline: at(120)},
			want: move{verb: evict},
		},
		"or the one of the option": {
			pod: state{grace: 10 * s}, terms: Terms{Deadline: at(120)},
			want: move{verb: evict, grace: 10 * s},
		},
		"an option of zero is a second": {
			pod: state{}, want: move{verb: evict, grace: s},
		},
		"without a deadline nothing is forced": {
			pod: state{grace: time.Hour, own: true, refused: 9}, want: move{verb: evict},
		},
		"a refused pod is tried again later": {
			pod: state{grace: 30 * s, own: true, refused: 1, retry: at(3)}, terms: Terms{Deadline: at(120)},
			want: move{until: at(3)},
		},
		"but no later than it is forced": {
			pod: state{grace: 30 * s, own: true, refused: 1, retry: at(100)}, terms: Terms{Deadline: at(120)},
			want: move{until: at(85)},
		},
		"at deadline - grace - margin a refused pod is deleted with its full grace": {
			pod: state{grace: 30 * s, own: true, refused: 5, retry: at(3)}, terms: Terms{Deadline: at(35)},
			want: move{verb: remove, grace: 30 * s},
		},
		"a second before it is not": {
			pod: state{grace: 30 * s, own: true, refused: 5, retry: at(3)}, terms: Terms{Deadline: at(36)},
			want: move{until: at(1)},
		},
		"later it gets what is left": {
			pod: state{grace: 30 * s, own: true, refused: 5}, terms: Terms{Deadline: at(12)},
			want: move{verb: remove, grace: 12 * s},
		},
		"and never zero": {
			pod: state{grace: 30 * s, own: true, refused: 5}, terms: Terms{Deadline: at(-1)},
			want: move{verb: remove, grace: s},
		},
		"a grace longer than the notice is cut in the first eviction": {
			pod: state{grace: 600 * s, own: true}, terms: Terms{Deadline: at(117)},
			want: move{verb: evict, grace: 117 * s},
		},
		"a late eviction names the grace only if it differs": {
			pod: state{grace: 30 * s, own: true}, terms: Terms{Deadline: at(32)},
			want: move{verb: evict},
		},
		"a deletion that failed is tried again, not at once": {
			pod: state{grace: 30 * s, refused: 1, failed: 1, retry: at(1)}, terms: Terms{Deadline: at(20)},
			want: move{until: at(1)},
		},
		"where budgets are ignored the first request deletes": {
			pod: state{grace: 30 * s, own: true}, terms: Terms{Deadline: at(120), IgnoreBudgets: true},
			want: move{verb: remove, grace: 30 * s},
		},
		"a request under way is waited for": {
			pod: state{grace: 30 * s, asked: true}, terms: Terms{Deadline: at(1)},
			want: move{},
		},
		"a pod that is stopping in time is left alone": {
			pod: state{grace: 30 * s, deletion: at(30), asked: true}, terms: Terms{Deadline: at(30)},
			want: move{until: at(35)},
		},
		"and needs no second look without a deadline": {
			pod: state{grace: 30 * s, deletion: at(30), asked: true}, want: move{},
		},
		"one whose end has passed, by a clock behind ours, is left alone for now too": {
			pod: state{grace: 600 * s, deletion: at(-5), asked: true}, terms: Terms{Deadline: at(100)},
			want: move{until: at(95)},
		},
		"and also killed just before the deadline": {
			pod: state{grace: 600 * s, deletion: at(-5), asked: true}, terms: Terms{Deadline: at(5)},
			want: move{verb: remove, grace: s},
		},
		"one that would stop too late is left alone for now": {
			pod: state{grace: 600 * s, deletion: at(500), asked: true}, terms: Terms{Deadline: at(100)},
			want: move{until: at(95)},
		},
		"and killed just before the deadline": {
			pod: state{grace: 600 * s, deletion: at(500), asked: true}, terms: Terms{Deadline: at(5)},
			want: move{verb: remove, grace: s},
		},
		"once": {
			pod: state{grace: 600 * s, deletion: at(500), asked: true, cut: true}, terms: Terms{Deadline: at(5)},
			want: move{},
		},
		"and again if that failed, not at once": {
			pod: state{grace: 600 * s, deletion: at(500), failed: 1, retry: at(1)}, terms: Terms{Deadline: at(5)},
			want: move{until: at(1)},
		},
		"critical pods wait for workloads": {
			pod: state{tier: critical, grace: 30 * s, own: true}, terms: Terms{Deadline: at(120)},
			want: move{until: at(85)},
		},
		"for ever, without a deadline": {
			pod: state{tier: critical, grace: 30 * s, own: true}, want: move{},
		},
		"until the deadline is near": {
			pod: state{tier: critical, grace: 30 * s, own: true}, terms: Terms{Deadline: at(35)},
			want: move{verb: evict},
		},
		"or the workloads are gone": {
			pod: state{tier: critical, grace: 30 * s, own: true}, front: critical, terms: Terms{Deadline: at(120)},
			want: move{verb: evict},
		},
		"our own pod is never touched": {
			pod: state{tier: self, grace: 30 * s, own: true}, front: self, terms: Terms{Deadline: at(1)},
			want: move{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := next(tt.pod, tt.front, tt.terms, now)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(move{})); diff != "" {
				t.Errorf("move (-want +got):\n%s", diff)
			}
		})
	}
}

// What must hold for every pod at every moment.
func TestNextNeverBreaksItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(name string, low, high int) time.Duration {
			return time.Duration(rapid.IntRange(low, high).Draw(t, name)) * time.Second
		}
		p := state{
			tier:    tier(rapid.IntRange(int(workload), int(self)).Draw(t, "tier")),
			grace:   seconds("grace", 0, 700),
			own:     rapid.Bool().Draw(t, "own"),
			refused: rapid.IntRange(0, 3).Draw(t, "refused"),
			failed:  rapid.IntRange(0, 3).Draw(t, "failed"),
			retry:   now.Add(seconds("retry", -10, 60)),
		}
		if rapid.Bool().Draw(t, "stopping") {
			p.deletion = now.Add(seconds("deletion", -10, 700))
		}
		var terms Terms
		if rapid.Bool().Draw(t, "hard") {
			terms.Deadline = now.Add(seconds("deadline", -10, 700))
			terms.IgnoreBudgets = rapid.Bool().Draw(t, "ignore budgets")
		}
		m := next(p, workload, terms, now)
		left := terms.Deadline.Sub(now)
		switch {
		case p.tier == self && p.deletion.IsZero() && m.verb != wait:
			t.Fatalf("our own pod: %+v", m)
		case m.verb == remove && m.grace < time.Second:
			t.Fatalf("a deletion with grace %s", m.grace)
		case m.verb == remove && terms.Deadline.IsZero():
			t.Fatalf("forced without a deadline: %+v", m)
		case m.verb != wait && !terms.Deadline.IsZero() && m.grace > max(left, time.Second) && now.After(terms.Deadline.Add(-p.grace-margin)):
			t.Fatalf("grace %s with %s left", m.grace, left)
		case m.verb == wait && !m.until.IsZero() && !m.until.After(now):
			t.Fatalf("waits until %s, which has passed", m.until)
		case m.verb == wait && !terms.Deadline.IsZero() && p.tier != self && p.deletion.IsZero() && p.failed == 0 &&
			!now.Before(terms.Deadline.Add(-p.grace-margin)):
			t.Fatalf("waits although it has to be forced")
		}
	})
}

func TestBackoffGrowsToItsBound(t *testing.T) {
	for n := 1; n < 100; n++ {
		if pause := backoff(n); pause < firstRetry || pause > lastRetry+lastRetry/5 {
			t.Fatalf("the pause after failure %d is %s", n, pause)
		}
	}
}

func BenchmarkPlanOf100Pods(b *testing.B) {
	pods := make([]state, 100)
	for k := range pods {
		pods[k] = state{grace: 30 * time.Second, own: true, refused: k % 3}
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range pods {
			next(p, workload, Terms{Deadline: at(120)}, now)
		}
	}
}
